// SPDX-License-Identifier: Apache-2.0
// Rows of any length at any element alignment, on sm_90: the tiles in which they pass through shared memory, and the
// warps that move these from and to global memory. run_access.cuh says what a thread owns of a row there,
// row_cluster_runs.cuh how the blocks of a cluster share wide rows.
//
// Tile     consecutive rows, one for each group of lanes. It lies in shared memory at the same phase modulo 16 bytes as
//          in global memory, so that all but its ragged ends moves in bulk copies of whole 16-byte granules.
// Movers   the block's last warp (forward: two) only moves data: it starts the copies of the tiles to come, and writes
//          finished tiles out of one of two buffers, and forward's statistics, but those of a cluster's rows. All
//          others wait for it: where a tile is one piece, its lanes take the tensors side by side.
// Direct   rows of up to a warp's lanes with gaps between them pass by shared memory: each would take bulk copies of
//          its own, of some 150 cycles for any few bytes (H200).
// Barriers `full` (a slot of the ring has arrived), `finished` (an output buffer has been filled, and the slot behind
//          it is no longer read) and `free` (an output buffer has been read by what sends it).
#pragma once

#include "core/run_layout.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/run_access.cuh"
#include "cuda/tile_ring.cuh"

namespace normact::cuda {

/// A tensor's rows as byte addresses.
struct RunTensor {
  uintptr_t data;
  int64_t row_stride[2];
  // Multiples of 16: the granules from low to high lie between the tensor's first and last element, so that they may be
  // read even where they are partly other rows'.
  uintptr_t low, high;

  RunTensor() = default;
  RunTensor(const Operand& operand, const RowGeometry& g) : data(reinterpret_cast<uintptr_t>(operand.data)) {
    const int64_t size = size_of(operand.dtype);
    low = data;
    high = data + g.cols * size;
    for (int d = 0; d < 2; ++d) {
      row_stride[d] = d < g.row_ndim ? operand.row_stride[d] * size : 0;
      const int64_t reach = d < g.row_ndim ? (g.row_shape[d] - 1) * row_stride[d] : 0;
      (reach < 0 ? low : high) += reach;
    }
    low = (low + 15) / 16 * 16;
    high = high / 16 * 16;
  }
  __device__ __forceinline__ uintptr_t row(const RowIndex& index) const {
    return data + (index.outer * row_stride[0] + index.inner * row_stride[1]);
  }
};

/// What the kernels of this file's rows are told beside the problem.
template <int kInputs, int kOutputs>
struct RunTiles {
  RunTensor input[kInputs];
  RunTensor output[kOutputs];
  RunLayout layout;
  int lanes;  // that share a row
  int rows;   // of a tile
  int count;  // of tiles
  int last_rows;
  int stages;  // of the ring
  bool dense;  // every tensor's rows follow each other: a tile is one piece
  bool direct;
  bool residual;

  /// All but the tensors.
  RunTiles(const RowProblem& p, const RowPlan& plan, bool with_residual)
      : layout(run_layout(run_slice(p.geometry.cols, plan.cluster), p.dtype, plan.rows_per_block, plan.dense)),
        lanes(plan.threads_per_row),
        rows(plan.rows_per_block),
        count(static_cast<int>((p.geometry.rows + rows - 1) / rows)),
        last_rows(static_cast<int>(p.geometry.rows - int64_t{count - 1} * rows)),
        stages(plan.stages),
        dense(plan.dense),
        direct(!plan.dense && plan.threads_per_row <= kWarp),
        residual(with_residual) {}

  /// Tensors that are there: the last, of each side if there are several, goes with a residual.
  __device__ __forceinline__ int inputs() const { return residual ? kInputs : kInputs - 1; }
  __device__ __forceinline__ int outputs() const { return residual || kOutputs == 1 ? kOutputs : kOutputs - 1; }
  /// The tensor of this number: the inputs come first.
  __device__ __forceinline__ const RunTensor& tensor(int which) const {
    return which < kInputs ? input[which] : output[which - kInputs];
  }
  /// Rows of a tile.
  __device__ __forceinline__ int rows_of(int tile) const { return tile == count - 1 ? last_rows : rows; }
};

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Where a piece begins in each tensor, modulo 16 bytes: a byte for each, in the order of RunTiles::tensor().
struct PiecePhases {
  uint32_t of_tensors;

  __device__ __forceinline__ int operator[](int tensor) const { return of_tensors >> 8 * tensor & 15; }
};

/// Those of a block.
struct RunBarriers {
  Mbarrier full[kMaxRunStages];
  Mbarrier finished[2], free[2];
  PiecePhases phases[kMaxRunStages];  // of what a PieceBringer has brought to a slot
};

/// Sets them up; `brings` arrive at a slot's, `workers` are warps that work on rows. The whole block calls it.
__device__ __forceinline__ void start_barriers(RunBarriers& barriers, int stages, int brings, int workers, int movers) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) barriers.full[s].init(brings);
    for (int b = 0; b < 2; ++b) {
      barriers.finished[b].init(workers);
      barriers.free[b].init(movers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
  }
  __syncthreads();
}

// ---- A mover's side. All lanes of its warp call these together.

/// Waits until all warps have finished a tile: then bulk copies may read the buffer, and write the slot. They come
/// after what was read and written before by this fence, which the movers need, not everybody.
__device__ __forceinline__ void finished_tile(Mbarrier& finished, int phase) {
  finished.wait(phase);
  fence_async();
}

/// Which of the two output buffers is the next to be sent, and the parity of its `finished`.
struct OutputTurn {
  int buffer = 0, phase = 0;

  __device__ __forceinline__ void next() {
    phase ^= buffer;
    buffer ^= 1;
  }
};

__device__ __forceinline__ void store_bulk(uintptr_t global, const char* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until at most kPending of this thread's groups of bulk stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void wait_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// A row, or a tile whose rows follow each other, in global and shared memory: as 16-byte granules from `base` on.
struct Piece {
  uintptr_t base;  // a multiple of 16
  int begin, end;  // bytes from there to the first element and past the last
  char* shared;    // where base is

  __device__ __forceinline__ Piece(uintptr_t first, int bytes, char* to) : shared(to) {
    begin = static_cast<int>(first % 16);
    base = first - begin;
    end = begin + bytes;
  }
  template <class T>
  __device__ __forceinline__ T* global_at(int byte) const {
    return reinterpret_cast<T*>(base + byte);
  }
  template <class T>
  __device__ __forceinline__ T* shared_at(int byte) const {
    return reinterpret_cast<T*>(shared + byte);
  }
};

/// Visits the rows that this lane moves, each a piece, of `rows` rows from `first` on.
template <class Tiles, class Visit>
__device__ __forceinline__ void for_each_row(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                             int64_t first, int rows, char* shared, Visit visit) {
#pragma unroll 1
  for (int i = threadIdx.x % kWarp; i < rows; i += kWarp) {
    visit(Piece(tensor.row(RowIndex(divisor, first + i)), tiles.layout.row_bytes, shared + i * tiles.layout.pitch));
  }
}

/// Starts bringing a piece of a tensor; returns the bytes that will come. Where a granule is not all the tensor's, its
/// elements are there on return.
template <class T>
__device__ __forceinline__ int fetch_piece(const Piece& piece, const RunTensor& tensor, Mbarrier& full) {
  constexpr int kStep = sizeof(T);
  const int whole = (piece.end + 15) & ~15;
  const int low = piece.base < tensor.low ? 16 : 0;
  const int high = piece.base + whole > tensor.high ? whole - 16 : whole;
  if (low < high) {
    full.copy(shared_address(piece.shared + low), piece.template global_at<const void>(low), high - low);
  }
  if (low != 0) {
#pragma unroll 1
    for (int at = piece.begin; at < min(low, piece.end); at += kStep) {
      *piece.template shared_at<T>(at) = *piece.template global_at<const T>(at);
    }
  }
  if (high != whole) {
#pragma unroll 1
    for (int at = max(max(low, high), piece.begin); at < piece.end; at += kStep) {
      *piece.template shared_at<T>(at) = *piece.template global_at<const T>(at);
    }
  }
  return max(high - low, 0);
}

/// The same of one tensor's rows from `first` on, into `to`.
template <class T, class Tiles>
__device__ __forceinline__ int fetch_rows(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int rows, char* to, Mbarrier& full) {
  int coming = 0;
  for_each_row(tiles, tensor, divisor, first, rows, to,
               [&](const Piece& piece) { coming += fetch_piece<T>(piece, tensor, full); });
  return coming;
}

/// Starts writing the whole granules of a piece.
__device__ __forceinline__ void send_piece(const Piece& piece) {
  const int low = (piece.begin + 15) & ~15, high = piece.end & ~15;
  if (low < high) store_bulk(piece.base + low, piece.shared + low, high - low);
}

/// Those of a tile's rows.
template <class Tiles>
__device__ __forceinline__ void send_rows(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int rows, char* from) {
  for_each_row(tiles, tensor, divisor, first, rows, from, [&](const Piece& piece) { send_piece(piece); });
}

/// Lanes that write what send_piece() leaves of a piece.
template <class T>
constexpr int kEndLanes = 2 * kPackSize<T>;

/// Writes one element, if any, of those before and after the whole granules of a piece.
template <class T>
__device__ __forceinline__ void send_end(const Piece& piece, int lane) {
  const int low = min((piece.begin + 15) & ~15, piece.end), high = max(piece.end & ~15, low);
  const int place = lane % kPackSize<T> * static_cast<int>(sizeof(T));
  const bool head = lane < kPackSize<T>;
  const int at = head ? place : high + place;
  if (lane < kEndLanes<T> && (head ? at >= piece.begin && at < low : at < piece.end)) {
    *piece.template global_at<T>(at) = *piece.template shared_at<const T>(at);
  }
}

/// All of those of a tile's rows.
template <class T, class Tiles>
__device__ __forceinline__ void send_ends(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int rows, char* from) {
#pragma unroll 1
  for (int i = 0; i < rows; ++i) {
    const Piece piece(tensor.row(RowIndex(divisor, first + i)), tiles.layout.row_bytes, from + i * tiles.layout.pitch);
    send_end<T>(piece, threadIdx.x % kWarp);
  }
}

/// Brings tiles that are a piece of each tensor. One warp moves what up to sixteen others work on, so it takes the
/// tensors together: the first kTensors of its lanes have one each, and arrive at a slot's barrier. Those of the
/// outputs only tell where a piece begins.
template <class T, int kInputs, int kOutputs>
class PieceBringer {
 public:
  static constexpr int kTensors = kInputs + kOutputs;
  static_assert(kTensors <= static_cast<int>(sizeof(PiecePhases)));

  /// column: of the pieces' first element, in its row.
  __device__ __forceinline__ PieceBringer(const RunTiles<kInputs, kOutputs>& tiles, int column)
      : tensor_(tiles.tensor(0)),
        lane_(threadIdx.x % kWarp),
        tile_bytes_(tiles.layout.tile_bytes),
        brings_(lane_ < tiles.inputs()) {
#pragma unroll
    for (int i = 1; i < kTensors; ++i) {
      if (lane_ == i) tensor_ = tiles.tensor(i);
    }
    tensor_.data += column * sizeof(T);
  }
  /// What this lane has of it.
  __device__ __forceinline__ const RunTensor& tensor() const { return tensor_; }
  /// Starts bringing `bytes` bytes of each tensor, of this lane's from `first` on, to a slot of a block.
  __device__ __forceinline__ void bring(uintptr_t first, int bytes, char* ring, int slot_bytes, int slot,
                                        RunBarriers& barriers) const {
    if (lane_ >= kTensors) return;
    const Piece piece(first, bytes, ring + slot * slot_bytes + lane_ * tile_bytes_);
    reinterpret_cast<uint8_t*>(barriers.phases + slot)[lane_] = static_cast<uint8_t>(piece.begin);
    barriers.full[slot].arrive_and_expect(brings_ ? fetch_piece<T>(piece, tensor_, barriers.full[slot]) : 0);
  }

 private:
  RunTensor tensor_;
  int lane_, tile_bytes_;
  bool brings_;
};

/// Sends them: each output has kEndLanes lanes.
template <class T, int kInputs, int kOutputs>
class PieceSender {
 public:
  static_assert(kOutputs * kEndLanes<T> <= kWarp);

  __device__ __forceinline__ PieceSender(const RunTiles<kInputs, kOutputs>& tiles, int column)
      : tensor_(tiles.output[0]), lane_(threadIdx.x % kEndLanes<T>) {
    const int which = threadIdx.x % kWarp / kEndLanes<T>;
    if (kOutputs > 1 && which > 0) tensor_ = tiles.output[kOutputs - 1];
    tensor_.data += column * sizeof(T);
    place_ = which * tiles.layout.tile_bytes;
    sends_ = which < tiles.outputs();
  }
  __device__ __forceinline__ const RunTensor& tensor() const { return tensor_; }
  /// Starts sending `bytes` bytes from a buffer; wait_bulk_read() waits until it has been read.
  __device__ __forceinline__ void send(uintptr_t first, int bytes, char* buffer) const {
    if (!sends_) return;
    const Piece piece(first, bytes, buffer + place_);
    if (lane_ == 0) send_piece(piece);
    commit_bulk();
    send_end<T>(piece, lane_);
  }

 private:
  RunTensor tensor_;
  int lane_, place_;
  bool sends_;
};

/// Visits the statistics of `rows` rows from `first` on, one row a lane at a time.
template <class A, class Visit>
__device__ __forceinline__ void for_each_statistic(const Operand& operand, const RowDivisor& divisor, int64_t first,
                                                   int rows, Visit visit) {
  const int lane = threadIdx.x % kWarp;
  if (divisor.flat) {
    A* at = static_cast<A*>(operand.data) + (first + lane) * operand.row_stride[0];
    const int64_t step = kWarp * operand.row_stride[0];
#pragma unroll 2
    for (int i = lane; i < rows; i += kWarp, at += step) visit(at, i);
  } else {
#pragma unroll 1
    for (int i = lane; i < rows; i += kWarp) visit(row_pointer<A>(operand, RowIndex(divisor, first + i)), i);
  }
}

// ---- The other warps' side.

template <int kLanes>
constexpr bool kMayBeDirect = kLanes != 0 && kLanes <= kWarp;

/// Which slot of the ring holds the next tile, and which output buffer will, with the parity that each waits for.
struct RunCursor {
  int slot = 0, phase = 0;         // of full
  int buffer = 0, free_phase = 1;  // of free

  __device__ __forceinline__ void next(int stages) {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
    buffer ^= 1;
    free_phase ^= buffer ^ 1;
  }
};

/// Where row `row` of the tile that begins with row `first` lies, from the start of a slot, or of a buffer, of a
/// tensor.
template <class Tiles>
__device__ __forceinline__ int row_offset(const Tiles& tiles, PiecePhases phases, int tensor, const RowDivisor& divisor,
                                          int64_t first, int row) {
  const int phase =
      tiles.dense ? phases[tensor] : static_cast<int>(tiles.tensor(tensor).row(RowIndex(divisor, first + row)) % 16);
  return phase + row * tiles.layout.pitch;
}

/// This warp has filled its part of an output buffer, and has read its part of the slot behind it. Movers come to know
/// by finished_tile().
__device__ __forceinline__ void finish_tile(Mbarrier& finished) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) finished.arrive();
}

#endif

}  // namespace normact::cuda
