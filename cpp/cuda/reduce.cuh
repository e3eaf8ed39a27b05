// SPDX-License-Identifier: Apache-2.0
// Sums over the threads that share a row, in a fixed order, so that every run gives the same bits. All threads of the
// group get the result. Warp: butterfly shuffles. Block: warp sums through shared memory, one barrier, and every warp
// adds them up for itself. Cluster: block results through distributed shared memory.
#pragma once

#include <cooperative_groups.h>

#include "cuda/memory.cuh"
#include "math/moments.h"

namespace normact::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;
constexpr int kMaxCluster = 16;

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

/// Where the warps of each of a block's groups leave their sums of kCount values.
template <class A, int kCount>
struct GroupScratch {
  static constexpr int kWarps = 16 / static_cast<int>(sizeof(A)) / kCount;  // warps whose sums one access reads
  static constexpr int kMost = 24;                                          // warps in a block
  // A group's slots are padded to whole accesses; the smallest group of several warps is two.
  alignas(16) A slot[(kMost + kMost / 2 * (kWarps - 1)) * kCount];

  __device__ __forceinline__ A* slots(int group, int warps) {
    return slot + group * ((warps + kWarps - 1) / kWarps * kWarps * kCount);
  }
};

/// Sum of each of kCount values over the `warps` warps of a group. `slots` may be used again once every thread of the
/// group has passed another barrier of the group.
template <int kCount, class A>
__device__ __forceinline__ void group_sum(A (&value)[kCount], A* slots, int warp, int warps, int barrier) {
  constexpr int kWarps = GroupScratch<A, kCount>::kWarps;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = warp_sum(value[i]);
  if (lane == 0 || (warp == warps - 1 && lane < kWarps - warp % kWarps)) {  // zeros up to a whole access
#pragma unroll
    for (int i = 0; i < kCount; ++i) slots[(warp + lane) * kCount + i] = lane == 0 ? value[i] : A(0);
  }
  group_barrier(barrier, warps * kWarp);
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = A(0);
#pragma unroll 4
  for (int w = 0; w < warps; w += kWarps) {
    const auto sums = load_shared_pack<A>(shared_address(slots + w * kCount));
#pragma unroll
    for (int i = 0; i < kWarps * kCount; ++i) value[i % kCount] += sums.word[i];
  }
}

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
