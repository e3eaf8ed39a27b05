// SPDX-License-Identifier: Apache-2.0
// Numbers that blocks of a launch hand each other through the workspace.
#pragma once

#include <cooperative_groups.h>

#include <cstring>
#include <utility>

#include "cuda/reduce.cuh"
#include "math/moments.h"

namespace normact::cuda {

/// Whether a reader has to wait for what another block of its launch hands it.
enum class Arrival : uint8_t { there, awaited };

constexpr uint64_t kAbsentPair = ~uint64_t{0};  // two NaNs that no arithmetic makes

/// Numbers in the workspace, that one block may hand another: past the L1 cache, in pairs that arrive whole, each for
/// itself. What has not arrived is absent. So data needs neither a flag nor a fence: a store, and loads until it is
/// seen.
template <class A, int kNumbers>
struct Handed {
  static constexpr int kPairs = kNumbers / 2;
  uint64_t pair[kPairs];

  __device__ __forceinline__ void load(const void* from) {
    if constexpr (kPairs == 1) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(pair[0]) : "l"(from) : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(pair[0]), "=l"(pair[1])
                   : "l"(from)
                   : "memory");
    }
  }
  __device__ __forceinline__ void store(void* to) const {
    if constexpr (kPairs == 1) {
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(pair[0]) : "memory");
    } else {
      asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(pair[0]), "l"(pair[1]) : "memory");
    }
  }
  /// Whether all of it is there.
  __device__ __forceinline__ bool there() const { return pair[0] != kAbsentPair && pair[kPairs - 1] != kAbsentPair; }
  /// Returns when all of it is there.
  __device__ __forceinline__ void wait(const void* from) {
    while (!there()) {
      __nanosleep(20);
      load(from);
    }
  }
};

/// Those of kernels that accumulate in fp64, which wait for no such numbers.
template <int kNumbers>
struct Handed<double, kNumbers> {
  double2 pair[kNumbers / 2];

  __device__ __forceinline__ void load(const void* from) {
#pragma unroll
    for (int i = 0; i < kNumbers / 2; ++i) pair[i] = __ldcg(static_cast<const double2*>(from) + i);
  }
  __device__ __forceinline__ void store(void* to) const {
#pragma unroll
    for (int i = 0; i < kNumbers / 2; ++i) static_cast<double2*>(to)[i] = pair[i];
  }
  __device__ __forceinline__ void wait(const void*) {}
};

/// An item's moments of a channel; the mean is told from the set's first element, `origin`.
template <class A>
struct alignas(4 * sizeof(A)) MomentsEntry {
  A mean, m2, count, origin;

  __device__ __forceinline__ Moments<A> moments() const { return {mean, m2, count}; }
};

/// Two numbers: an item's sums of dh and dh * xhat of a channel, or what is left of a group's entries: mean and rstd in
/// the forward, c1 and c2 (math/channel.h) in the backward.
template <class A>
struct alignas(2 * sizeof(A)) NumberPair {
  A first, second;
};

template <class Numbers>
struct HandedAs;
template <class A>
struct HandedAs<MomentsEntry<A>> {
  using Type = Handed<A, 4>;
};
template <class A>
struct HandedAs<NumberPair<A>> {
  using Type = Handed<A, 2>;
};

template <class Numbers>
__device__ __forceinline__ void hand(Numbers* to, const Numbers& numbers) {
  typename HandedAs<Numbers>::Type bits;
  memcpy(&bits, &numbers, sizeof(bits));
  bits.store(to);
}

template <Arrival kArrival, class Numbers>
__device__ __forceinline__ Numbers handed(const Numbers* from) {
  typename HandedAs<Numbers>::Type bits;
  bits.load(from);
  if constexpr (kArrival == Arrival::awaited) bits.wait(from);
  Numbers numbers;
  memcpy(&numbers, &bits, sizeof(bits));
  return numbers;
}

constexpr unsigned kFewTogether = 4, kManyTogether = 12;

/// visit(entries[at(i)]) for i = lane, lane + lanes, ... below count; kTogether of them are under way together: few
/// where a kernel's registers are in use, many where it does nothing else, so that those of all blocks of a device are.
template <Arrival kArrival, unsigned kTogether, class Numbers, class At, class Visit>
__device__ __forceinline__ void for_each_handed(const Numbers* entries, unsigned count, unsigned lane, unsigned lanes,
                                                At at, Visit visit) {
#pragma unroll 1
  for (unsigned first = lane; first < count; first += kTogether * lanes) {
    typename HandedAs<Numbers>::Type bits[kTogether];
#pragma unroll
    for (unsigned t = 0; t < kTogether; ++t) {
      if (first + t * lanes < count) bits[t].load(entries + at(first + t * lanes));
    }
#pragma unroll
    for (unsigned t = 0; t < kTogether; ++t) {
      if (first + t * lanes >= count) break;
      if constexpr (kArrival == Arrival::awaited) bits[t].wait(entries + at(first + t * lanes));
      Numbers numbers;
      memcpy(&numbers, &bits[t], sizeof(numbers));
      visit(numbers);
    }
  }
}

/// Blocks of a launch wait for each other's sums by looking for them, so all are absent at first. A launch clears them
/// itself, in the shadow of the first copies: a memset before it would cost 2.3 us in a graph (H200).
class AbsentSums {
 public:
  /// All threads, before anything else. needed: whether they hand each other any; begin: at 16 bytes; end: behind
  /// these, at a pair.
  __device__ __forceinline__ AbsentSums(bool needed, void* begin, void* end) : needed_(needed) {
    if (!needed_) return;
    const auto pairs = static_cast<unsigned>((static_cast<char*>(end) - static_cast<char*>(begin)) / sizeof(uint64_t));
    const unsigned first = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = first; i < pairs / 2; i += gridDim.x * blockDim.x) {
      static_cast<uint4*>(begin)[i] = {~0u, ~0u, ~0u, ~0u};
    }
    if (pairs % 2 != 0 && first == 0) static_cast<uint64_t*>(begin)[pairs - 1] = kAbsentPair;
    token_ = cooperative_groups::this_grid().barrier_arrive();
  }
  /// All threads, once, before the first sums are stored.
  __device__ __forceinline__ void wait() {
    if (needed_) cooperative_groups::this_grid().barrier_wait(std::move(token_));
    needed_ = false;
  }

 private:
  bool needed_;
  cooperative_groups::grid_group::arrival_token token_{};
};

}  // namespace normact::cuda
