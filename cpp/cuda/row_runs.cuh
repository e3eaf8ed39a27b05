// SPDX-License-Identifier: Apache-2.0
// Rows of any length at any element alignment, on sm_90: the tiles in which they pass through shared memory, and the
// warps that move these from and to global memory. run_access.cuh says what a thread owns of a row there,
// row_cluster_runs.cuh how the blocks of a cluster share wide rows.
//
// Tile     consecutive rows, one for each group of lanes. It lies in shared memory at the same phase modulo 16 bytes as
//          in global memory, so that all but its ragged ends moves in bulk copies of whole 16-byte granules.
// Movers   the block's last warp (forward: two) only moves data: it starts the copies of the tiles to come, and writes
//          finished tiles out of one of two buffers, and forward's statistics, but those of a cluster's rows.
// Direct   rows of up to a warp's lanes with gaps between them pass by shared memory: each would take bulk copies of
//          its own, of some 150 cycles for any few bytes (H200).
// Barriers `full` (a slot of the ring has arrived), `finished` (an output buffer has been filled, and the slot behind
//          it is no longer read) and `free` (an output buffer has been sent).
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
  static constexpr bool kSliced = false;  // a tile is a part of one row, whose statistics another warp writes

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

  /// Rows of a tile.
  __device__ __forceinline__ int rows_of(int tile) const { return tile == count - 1 ? last_rows : rows; }
  /// A block's tiles: from the first on, so far apart.
  __device__ __forceinline__ int begin() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int step() const { return static_cast<int>(gridDim.x); }
};

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Those of a block.
struct RunBarriers {
  Mbarrier full[kMaxRunStages];
  Mbarrier finished[2], free[2];
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

/// Visits the pieces that this lane moves of `rows` rows from `first` on; kDense: the tile is one piece.
template <bool kDense, class Tiles, class Visit>
__device__ __forceinline__ void for_each_piece(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                               int64_t first, int rows, char* shared, int lane, Visit visit) {
  if constexpr (kDense) {
    if (lane == 0) visit(Piece(tensor.data + first * tiles.layout.row_bytes, rows * tiles.layout.row_bytes, shared));
  } else {
#pragma unroll 1
    for (int i = lane; i < rows; i += kWarp) {
      visit(Piece(tensor.row(RowIndex(divisor, first + i)), tiles.layout.row_bytes, shared + i * tiles.layout.pitch));
    }
  }
}

/// Starts bringing one tensor's rows from `first` on into `to`; returns the bytes that will come. Where a granule
/// is not all the tensor's, its elements are there on return.
template <class T, bool kDense, class Tiles>
__device__ __forceinline__ int fetch_rows(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int rows, char* to, Mbarrier& full) {
  constexpr int kStep = sizeof(T);
  int coming = 0;
  for_each_piece<kDense>(tiles, tensor, divisor, first, rows, to, threadIdx.x % kWarp, [&](const Piece& piece) {
    const int whole = (piece.end + 15) & ~15;
    const int low = piece.base < tensor.low ? 16 : 0;
    const int high = piece.base + whole > tensor.high ? whole - 16 : whole;
    if (low < high) {
      full.copy(shared_address(piece.shared + low), piece.template global_at<const void>(low), high - low);
      coming += high - low;
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
  });
  return coming;
}

/// Starts writing the whole granules of a tile.
template <bool kDense, class Tiles>
__device__ __forceinline__ void send_rows(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int rows, char* from) {
  for_each_piece<kDense>(tiles, tensor, divisor, first, rows, from, threadIdx.x % kWarp, [&](const Piece& piece) {
    const int low = (piece.begin + 15) & ~15, high = piece.end & ~15;
    if (low < high) store_bulk(piece.base + low, piece.shared + low, high - low);
  });
}

/// Writes the elements before and after those: one a lane.
template <class T, bool kDense, class Tiles>
__device__ __forceinline__ void send_ends(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int rows, char* from) {
  constexpr int kSize = kPackSize<T>;
  const int lane = threadIdx.x % kWarp;
  const auto send = [&](const Piece& piece) {
    const int low = min((piece.begin + 15) & ~15, piece.end), high = max(piece.end & ~15, low);
    const int place = lane % kSize * static_cast<int>(sizeof(T));
    const bool head = lane < kSize;
    const int at = head ? place : high + place;
    if (lane < 2 * kSize && (head ? at >= piece.begin && at < low : at < piece.end)) {
      *piece.template global_at<T>(at) = *piece.template shared_at<const T>(at);
    }
  };
  if constexpr (kDense) {
    for_each_piece<true>(tiles, tensor, divisor, first, rows, from, 0, send);
  } else {
#pragma unroll 1
    for (int i = 0; i < rows; ++i) {
      send(Piece(tensor.row(RowIndex(divisor, first + i)), tiles.layout.row_bytes, from + i * tiles.layout.pitch));
    }
  }
}

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

/// Where row `row` of the tile that begins with row `first` lies, from a slot's or buffer's start on.
template <class Tiles>
__device__ __forceinline__ int row_offset(const Tiles& tiles, const RunTensor& tensor, const RowDivisor& divisor,
                                          int64_t first, int row) {
  // Only the low bits of the address matter.
  unsigned address = static_cast<unsigned>(tensor.data);
  if (tiles.dense) {
    address += static_cast<unsigned>(first) * static_cast<unsigned>(tiles.layout.row_bytes);
  } else {
    address = static_cast<unsigned>(tensor.row(RowIndex(divisor, first + row)));
  }
  return static_cast<int>(address % 16) + row * tiles.layout.pitch;
}

/// This warp has filled its part of an output buffer, and has read its part of the slot behind it.
__device__ __forceinline__ void finish_tile(Mbarrier& finished) {
  fence_async();  // bulk copies read the buffer, and write the slot
  __syncwarp();
  if (threadIdx.x % kWarp == 0) finished.arrive();
}

#endif

}  // namespace normact::cuda
