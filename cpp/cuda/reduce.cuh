// SPDX-License-Identifier: Apache-2.0
// Sums over the threads that share a row, in a fixed order, so that every run gives the same bits. All threads of the
// group get the result. Warp: butterfly shuffles. Block: warp sums through shared memory, one barrier, and every warp
// adds them up for itself. Cluster: block results through distributed shared memory.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>

#include "cuda/memory.cuh"
#include "math/moments.h"

namespace normact::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;
constexpr int kMaxCluster = 16;

/// The warp of a block's thread, told by one lane to all: where code depends on it, the compiler knows that no warp
/// parts. Else it would have ways for warps that have around each shuffle behind that, and schedule nothing across
/// them.
__device__ __forceinline__ int uniform_warp(int thread) { return __shfl_sync(kFullWarp, thread / kWarp, 0); }
__device__ __forceinline__ int uniform_warp() { return uniform_warp(static_cast<int>(threadIdx.x)); }

/// Sum over groups of kLanes neighbours (a power of two up to 32); the whole warp takes part.
template <int kLanes, class A>
__device__ __forceinline__ A lane_sum(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// Sum over the groups of kLanes lanes in a warp: every lane adds up what the lanes in its place hold.
template <int kLanes, class A>
__device__ __forceinline__ A sum_over_groups(A value) {
#pragma unroll
  for (int offset = kLanes; offset < kWarp; offset <<= 1) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
  return lane_sum<kWarp>(value);
}

/// Sums of two values over groups of kLanes neighbours: that of the first to the lower half of a group, that of the
/// second to the upper one. Half of the shuffles that two sums take, of which a multiprocessor does one a cycle.
template <int kLanes, class A>
__device__ __forceinline__ A sums_by_halves(A first, A second) {
  constexpr int kHalf = kLanes / 2;
  const bool upper = (threadIdx.x & kHalf) != 0;
  const A own = upper ? second : first, other = upper ? first : second;
  return lane_sum<kHalf>(own + __shfl_xor_sync(kFullWarp, other, kHalf));
}

/// Sum of each value over groups of kLanes neighbours, to all of them; the whole warp takes part.
template <int kLanes, class A, int kCount>
__device__ __forceinline__ void lane_sums(A (&value)[kCount]) {
  if constexpr (kCount == 2 && kLanes > 4) {
    const A own = sums_by_halves<kLanes>(value[0], value[1]);
    const A other = __shfl_xor_sync(kFullWarp, own, kLanes / 2);
    const bool upper = (threadIdx.x & (kLanes / 2)) != 0;
    value[0] = upper ? other : own;
    value[1] = upper ? own : other;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = lane_sum<kLanes>(value[i]);
  }
}

/// Sum over groups of so many neighbours (a power of two up to 32); the whole warp takes part.
template <class A>
__device__ __forceinline__ A sum_of_helpers(A value, int helpers) {
  for (int offset = helpers / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// The moments of the sets that each(visit) goes through, twice, to all helpers: the mean first, told from `pivot`,
/// then what each has about it. One division in all.
template <class A, class Each>
__device__ __forceinline__ Moments<A> moments_of_sets(int helpers, A pivot, Each each) {
  A count = A(0), shift = A(0), m2 = A(0);
  each([&](const Moments<A>& m) {
    count += m.count;
    shift += m.count > A(0) ? m.count * (m.mean - pivot) : A(0);
  });
  for (int offset = helpers / 2; offset > 0; offset >>= 1) {
    count += __shfl_xor_sync(kFullWarp, count, offset);
    shift += __shfl_xor_sync(kFullWarp, shift, offset);
  }
  const A mean = count > A(0) ? pivot + shift * quick_reciprocal(count) : A(0);
  each([&](const Moments<A>& m) { m2 += recentred(m, mean); });
  return {mean, sum_of_helpers(m2, helpers), count};
}

/// A barrier among `threads` (a multiple of 32) threads that call it with the same id in 1..15; id 0 is the block's.
__device__ __forceinline__ void group_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Lets the stream's next kernel start if it was launched to overlap with this one; it still waits for this one's end
/// before it reads what this one wrote.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// First of all in a kernel that is launched with after_previous: every thread waits until what the stream did before
/// has ended. Nothing may be read or written before this; it may be prefetched to the L2 cache, which is where all
/// agree on memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// The same, and from then on the next kernel may start in the same way.
__device__ __forceinline__ void start_after_previous() {
  wait_for_previous_kernel();
  allow_next_kernel();
}

/// Where the warps of each of a block's groups leave their sums of kCount values, kTurns times before anything is left
/// in the same place again.
template <class A, int kCount, int kTurns = 1>
struct GroupScratch {
  static constexpr int kWarps = 16 / static_cast<int>(sizeof(A)) / kCount;  // warps whose sums one access reads
  static constexpr int kTogether = 4;                                       // accesses: one, two, or some of these
  static constexpr int kMost = kMaxWarps;                                   // warps in a block

  /// Warps, with those that are not there, of whose sums whole accesses are read.
  static constexpr int padded(int warps) {
    const int accesses = (warps + kWarps - 1) / kWarps;
    return (accesses <= 2 ? accesses : (accesses + kTogether - 1) / kTogether * kTogether) * kWarps;
  }
  /// Of all groups of a block; the smallest group of several warps is two.
  static constexpr int slots() {
    int most = 0;
    for (int warps = 2; warps <= kMost; ++warps) {
      const int all = kMost / warps * padded(warps);
      if (all > most) most = all;
    }
    return most;
  }

  struct alignas(16) Turn {
    A slot[slots() * kCount];
  };
  Turn turn[kTurns];
};

/// Sums of kCount values over all threads of a group of some warps, as one of them goes about it: in each warp, and
/// behind a barrier over the warps.
template <class A, int kCount, int kTurns = 1>
class GroupSum {
 public:
  using Scratch = GroupScratch<A, kCount, kTurns>;

  /// All threads of the group. barrier: an id of its own, or 0 where it is the block.
  __device__ __forceinline__ GroupSum(Scratch& scratch, int group, int warp, int warps, int barrier)
      : from_(shared_address(at_known_address(scratch).turn[0].slot + group * Scratch::padded(warps) * kCount)),
        own_(from_ + (warp * kCount + (kHalves ? lane() / kHalf : 0)) * static_cast<int>(sizeof(A))),
        accesses_(Scratch::padded(warps) / Scratch::kWarps),
        barrier_(barrier),
        threads_(warps * kWarp) {
    if (warp != warps - 1) return;  // zeros for the warps that are not there
    for (int i = warps * kCount + lane(); i < Scratch::padded(warps) * kCount; i += kWarp) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) store_shared_value(from_ + turn * kTurnBytes + i * kBytes, A(0));
    }
  }

  /// The sum of each value over the group, to all its threads. `turn` may be the same again once every thread of the
  /// group has passed another barrier of the group.
  __device__ __forceinline__ void run(A (&value)[kCount], int turn) const {
    if constexpr (kHalves) {
      const A sum = sums_by_halves<kWarp>(value[0], value[1]);
      if (lane() % kHalf == 0) store_shared_value(own_ + turn * kTurnBytes, sum);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = warp_sum(value[i]);
        if (lane() == 0) store_shared_value(own_ + turn * kTurnBytes + i * kBytes, value[i]);
      }
    }
    group_barrier(barrier_, threads_);
    const SharedAddress from = from_ + turn * kTurnBytes;
    if (accesses_ == 1) return read<1>(from, value);
    if (accesses_ == 2) return read<2>(from, value);
    read<Scratch::kTogether>(from, value);
#pragma unroll 1
    for (int access = Scratch::kTogether; access < accesses_; access += Scratch::kTogether) {
      A more[kCount];
      read<Scratch::kTogether>(from + access * kPackBytes, more);
#pragma unroll
      for (int i = 0; i < kCount; ++i) value[i] += more[i];
    }
  }

 private:
  static constexpr bool kHalves = kCount == 2;  // a warp's halves leave a value each
  static constexpr int kHalf = kWarp / 2;
  static constexpr int kBytes = sizeof(A), kTurnBytes = sizeof(typename Scratch::Turn);

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  /// The sums of so many accesses, added up in pairs.
  template <int kAccesses>
  static __device__ __forceinline__ void read(SharedAddress from, A (&value)[kCount]) {
    if constexpr (kAccesses == 1) {
      const Pack<A> sums = load_shared_pack<A>(from);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = sums.word[i];
#pragma unroll
        for (int w = 1; w < Scratch::kWarps; ++w) value[i] += sums.word[w * kCount + i];
      }
    } else {
      A more[kCount];
      read<kAccesses / 2>(from, value);
      read<kAccesses / 2>(from + kAccesses / 2 * kPackBytes, more);
#pragma unroll
      for (int i = 0; i < kCount; ++i) value[i] += more[i];
    }
  }

  SharedAddress from_, own_;
  int accesses_, barrier_, threads_;
};

/// In its place, where groups are some lanes of a warp; the whole warp takes part.
template <int kLanes, class A, int kCount>
class LaneSum {
 public:
  struct Scratch {};

  __device__ __forceinline__ LaneSum(Scratch&, int, int, int, int) {}
  __device__ __forceinline__ void run(A (&value)[kCount], int) const { lane_sums<kLanes>(value); }
};

/// Whether a row takes several warps; 0 stands for a number of them that is known at run time only.
template <int kLanes>
constexpr bool kSeveralWarps = kLanes == 0 || kLanes > kWarp;

/// Over the kLanes threads that share a row.
template <int kLanes, class A, int kCount, int kTurns = 1>
using RowSum = std::conditional_t<kSeveralWarps<kLanes>, GroupSum<A, kCount, kTurns>, LaneSum<kLanes, A, kCount>>;

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
namespace cg = cooperative_groups;

/// Publishes `mine` to slot `rank` of `slots` in every block of the cluster. The caller makes sure that all blocks of
/// the cluster have started, and that nobody still reads those slots.
template <class V>
__device__ __forceinline__ void cluster_publish(const V& mine, V* slots, int blocks) {
  cg::cluster_group cluster = cg::this_cluster();
  const int peer = threadIdx.x;
  if (peer < blocks) cluster.map_shared_rank(slots, peer)[cluster.block_rank()] = mine;
}
#endif

}  // namespace normact::cuda
