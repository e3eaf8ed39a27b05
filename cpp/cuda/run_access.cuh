// SPDX-License-Identifier: Apache-2.0
// Rows of any length at any element alignment: which elements of a row a thread owns, and how it reads and writes them
// in shared memory. row_runs.cuh says how they get there.
//
// Owner    lane t of the `lanes` lanes of a row owns two or three runs of kRun consecutive elements, at
//          e * lanes * kRun + t * kRun. That depends on the column only, never on where the row lies, so neither do
//          the sums.
// Words    a run is read from shared memory in words, whichever half of a word it begins in; kRun is chosen so that
//          neighbours' runs begin an odd number of words apart, which keeps them off each other's banks.
#pragma once

#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

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
  static constexpr int kRunSize = kRun;
  static constexpr int kValues = kRuns * kRun;
  static constexpr int kLanesOfWarp = kLanes == 0 || kLanes > kWarp ? kWarp : kLanes;  // that share a row

  __device__ __forceinline__ OwnRuns(int lane, int lanes, int cols)
      : first_(lane * kRun), step_(lanes * kRun), cols_(cols), last_(count_at(kRuns - 1)) {
    whole_ = kLanes == 0 || kLanes >= kWarp ? __all_sync(kFullWarp, last_ == kRun) : false;
  }
  __device__ __forceinline__ int cols() const { return cols_; }
  /// Elements of all lanes of a warp, where a row takes whole warps.
  static __device__ __forceinline__ int count_of_warp(int warp, int lanes, int cols) {
    constexpr int kOfWarp = kWarp * kRun;  // a run a lane
    return (kRuns - 1) * kOfWarp + min(max(cols - (kRuns - 1) * lanes * kRun - warp * kOfWarp, 0), kOfWarp);
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
  /// The same of a row in global memory, element by element, with zeros beyond it, or in the place of another's row:
  /// that may be written already, in place.
  __device__ __forceinline__ void load_elements(const T* row, bool own_row, A (&value)[kValues]) const {
#pragma unroll
    for (int j = 0; j < kValues; ++j) value[j] = own_row && valid(j) ? convert<A>(row[column(j)]) : A(0);
  }
  __device__ __forceinline__ void store_elements(T* row, const A (&value)[kValues]) const {
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      if (valid(j)) row[column(j)] = convert<T>(value[j]);
    }
  }
  __device__ __forceinline__ void add_elements(const T* row, A (&value)[kValues]) const {
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      if (valid(j)) value[j] += convert<A>(row[column(j)]);
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

}  // namespace normact::cuda
