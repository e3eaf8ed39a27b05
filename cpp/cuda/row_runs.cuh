// SPDX-License-Identifier: Apache-2.0
// Rows of any length at any element alignment, on sm_90: what a thread owns of a row, and the warp that moves tiles of
// rows between global and shared memory.
//
// Owner    lane t of the `lanes` lanes of a row owns two or three runs of kRun consecutive elements, at
//          e * lanes * kRun + t * kRun. That depends on the column only, never on where the row lies, so neither do
//          the sums. A run is read from shared memory in words, whichever half of a word it begins in; kRun is chosen
//          so that neighbours' runs begin an odd number of words apart, which keeps them off each other's banks.
// Tile     consecutive rows, one for each group of lanes. It lies in shared memory at the same phase modulo 16 bytes as
//          in global memory, so that all but its ragged ends moves in bulk copies of whole 16-byte granules.
// Movers   the block's last warp (forward: two) only moves data: it starts the copies of the tiles to come, and writes
//          finished tiles out of one of two buffers, and forward's statistics.
// Barriers `full` (a slot of the ring has arrived), `free` (an output buffer has been sent), and a named barrier an
//          output buffer, at which the other warps arrive when they have finished a tile, and the movers wait.
#pragma once

#include "core/run_layout.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/tile_ring.cuh"

namespace normact::cuda {

constexpr int kFinishedBarrier = 14;  // and 15: of the two output buffers; groups of warps have 1 and up

/// Whether a row takes several warps; 0 stands for a number of them that is known at run time only.
template <int kLanes>
constexpr bool kSeveralWarps = kLanes == 0 || kLanes > kWarp;

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
  bool residual;

  /// Rows of a tile.
  __device__ __forceinline__ int rows_of(int tile) const { return tile == count - 1 ? last_rows : rows; }
};

// ---- Runs in shared memory.

template <class V>
__device__ __forceinline__ void store_shared_if(bool condition, SharedAddress to, V value) {
  const int flag = condition;
  if constexpr (sizeof(V) == 2) {
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(&value);
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.u16 [%0], %1;\n}" ::"r"(to), "h"(bits),
                 "r"(flag)
                 : "memory");
  } else if constexpr (sizeof(V) == 4) {
    const unsigned bits = *reinterpret_cast<const unsigned*>(&value);
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.u32 [%0], %1;\n}" ::"r"(to), "r"(bits),
                 "r"(flag)
                 : "memory");
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.f64 [%0], %1;\n}" ::"r"(to), "d"(value),
                 "r"(flag)
                 : "memory");
  }
}

/// The lower or upper element of a word of two.
template <class T, bool kUpper>
__device__ __forceinline__ float half_of(uint32_t word) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __uint_as_float(kUpper ? word & 0xffff0000u : word << 16);
  } else {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
    return kUpper ? both.y : both.x;
  }
}

/// kRun elements at `at`; for 16-bit types kOdd says that they begin in the upper half of a word.
template <class T, int kRun, bool kOdd>
struct RunAccess {
  using A = Accumulator<T>;

  static __device__ __forceinline__ void load(const char* at, A* value) {
    if constexpr (sizeof(T) == 2) {
      const auto* words = reinterpret_cast<const uint32_t*>(at - (kOdd ? 2 : 0));
      uint32_t word = words[0];
#pragma unroll
      for (int j = 0; j < kRun; j += 2) {
        const uint32_t next = kOdd ? words[j / 2 + 1] : word;
        value[j] = half_of<T, kOdd>(word);
        value[j + 1] = half_of<T, !kOdd>(next);
        word = kOdd ? next : j + 2 < kRun ? words[j / 2 + 1] : 0;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) value[j] = reinterpret_cast<const T*>(at)[j];
    }
  }

  static __device__ __forceinline__ void store(char* at, const A* value) {
    if constexpr (sizeof(T) == 2) {
      if (kOdd) *reinterpret_cast<T*>(at) = convert<T>(value[0]);
#pragma unroll
      for (int j = kOdd; j + 1 < kRun; j += 2) {
        *reinterpret_cast<uint32_t*>(at + 2 * j) = convert_pair<T>(value[j], value[j + 1]);
      }
      if (kOdd) *reinterpret_cast<T*>(at + 2 * kRun - 2) = convert<T>(value[kRun - 1]);
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) reinterpret_cast<T*>(at)[j] = value[j];
    }
  }

  /// The first `count` elements only.
  static __device__ __forceinline__ void store_cut(char* at, const A* value, int count) {
    const SharedAddress to = shared_address(at);
    if constexpr (sizeof(T) == 2) {
      if (kOdd) store_shared_if(count > 0, to, convert<T>(value[0]));
#pragma unroll
      for (int j = kOdd; j < kRun; j += 2) {
        if (j + 1 < kRun) store_shared_if(j + 1 < count, to + 2 * j, convert_pair<T>(value[j], value[j + 1]));
        store_shared_if(j + 1 == count, to + 2 * j, convert<T>(value[j]));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j) store_shared_if(j < count, to + j * static_cast<int>(sizeof(T)), value[j]);
    }
  }
};

/// The runs of a row that a thread owns. kLanes: lanes that share the row, or 0 if that is known at run time only. Only
/// the last run may be cut by the row's end, or lie beyond it; a row of one lane may be shorter still.
template <class T, int kRuns, int kRun, int kLanes>
class OwnRuns {
 public:
  using A = Accumulator<T>;
  static constexpr int kValues = kRuns * kRun;

  __device__ __forceinline__ OwnRuns(int lane, int lanes, int cols)
      : first_(lane * kRun), step_(lanes * kRun), cols_(cols), last_(count_at(kRuns - 1)) {
    whole_ = kLanes == 0 || kLanes >= kWarp ? __all_sync(kFullWarp, last_ == kRun) : false;
  }
  /// Bytes from a row's first element to this thread's.
  __device__ __forceinline__ int offset() const { return first_ * static_cast<int>(sizeof(T)); }
  __device__ __forceinline__ int column(int j) const { return j / kRun * step() + first_ + j % kRun; }
  __device__ __forceinline__ bool valid(int j) const { return !may_be_cut(j / kRun) || j % kRun < count(j / kRun); }

  /// `at` is this thread's first element; what lies beyond the row comes as it is, until clear().
  __device__ __forceinline__ void load(const char* at, A (&value)[kValues]) const {
    if (odd(at)) {
      load_all<true>(at, value);
    } else {
      load_all<false>(at, value);
    }
  }
  __device__ __forceinline__ void store(char* at, const A (&value)[kValues]) const {
    if (odd(at)) {
      store_all<true>(at, value);
    } else {
      store_all<false>(at, value);
    }
  }
  __device__ __forceinline__ void clear(A (&value)[kValues]) const {
    if (whole_) return;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      if (!valid(j)) value[j] = A(0);
    }
  }
  /// value += what lies at `at`, one run at a time to save registers.
  __device__ __forceinline__ void add(const char* at, A (&value)[kValues]) const {
#pragma unroll
    for (int e = 0; e < kRuns; ++e) {
      A addend[kRun];
      const char* from = at + e * step_bytes();
      if (odd(at)) {
        RunAccess<T, kRun, sizeof(T) == 2>::load(from, addend);
      } else {
        RunAccess<T, kRun, false>::load(from, addend);
      }
#pragma unroll
      for (int j = 0; j < kRun; ++j) value[e * kRun + j] += addend[j];
    }
  }

 private:
  static __device__ __forceinline__ bool odd(const char* at) { return sizeof(T) == 2 && shared_address(at) % 4 != 0; }
  static constexpr __device__ bool may_be_cut(int run) { return run == kRuns - 1 || kLanes == 1; }
  __device__ __forceinline__ int step() const { return kLanes != 0 ? kLanes * kRun : step_; }
  __device__ __forceinline__ int step_bytes() const { return step() * static_cast<int>(sizeof(T)); }
  __device__ __forceinline__ int count_at(int run) const { return min(max(cols_ - run * step() - first_, 0), kRun); }
  __device__ __forceinline__ int count(int run) const { return run == kRuns - 1 ? last_ : count_at(run); }

  template <bool kOdd>
  __device__ __forceinline__ void load_all(const char* at, A (&value)[kValues]) const {
#pragma unroll
    for (int e = 0; e < kRuns; ++e) {
      RunAccess<T, kRun, kOdd && sizeof(T) == 2>::load(at + e * step_bytes(), value + e * kRun);
    }
  }
  template <bool kOdd>
  __device__ __forceinline__ void store_all(char* at, const A (&value)[kValues]) const {
    using Access = RunAccess<T, kRun, kOdd && sizeof(T) == 2>;
#pragma unroll
    for (int e = 0; e < kRuns; ++e) {
      char* to = at + e * step_bytes();
      if (!may_be_cut(e) || whole_) {
        Access::store(to, value + e * kRun);
      } else {
        Access::store_cut(to, value + e * kRun, count(e));
      }
    }
  }

  int first_, step_, cols_;
  int last_;    // elements in the last run
  bool whole_;  // no thread of the warp has a cut run
};

/// value = value as T holds it.
template <class T, int kCount, class A>
__device__ __forceinline__ void round_to(A (&value)[kCount]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {
      const uint32_t pair = convert_pair<T>(value[j], value[j + 1]);
      value[j] = half_of<T, false>(pair);
      value[j + 1] = half_of<T, true>(pair);
    }
  }
}

/// Two sums of alternate elements: half the latency of one.
template <int kCount, class A, class Term>
__device__ __forceinline__ A sum_of(Term term) {
  A half[2] = {};
#pragma unroll
  for (int j = 0; j < kCount; ++j) half[j % 2] += term(j);
  return half[0] + half[1];
}

/// Which row of its tile a thread works on. In a warp with several rows these lie an even number of rows apart: words
/// then begin in the same half in all of them, and odd rows meet in few banks.
template <class T, int kLanes>
__device__ __forceinline__ int row_of_tile(int lanes, int threads) {
  if constexpr (kLanes == 0 || kLanes > kWarp) {
    return static_cast<int>(threadIdx.x) / lanes;
  } else {
    const int warps = threads / kWarp, warp = threadIdx.x / kWarp;
    const int apart = min(kLanes * (sizeof(T) == 2 ? 2 : 1), warps & -warps);  // divides the number of warps
    return warp / apart * (apart * kWarp / kLanes) + threadIdx.x % kWarp / kLanes * apart + warp % apart;
  }
}

#if __CUDA_ARCH__ >= 900

// ---- A mover's side. All lanes of its warp call these together.

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// This warp has finished output buffer `buffer` and the tile behind it; `threads` are those of the whole block.
__device__ __forceinline__ void finish_tile(int buffer, int threads) {
  fence_async();  // bulk copies read the buffer, and write the slot
  asm volatile("bar.arrive %0, %1;" ::"r"(kFinishedBarrier + buffer), "r"(threads) : "memory");
}

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

#endif

}  // namespace normact::cuda
