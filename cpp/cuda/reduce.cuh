// SPDX-License-Identifier: Apache-2.0
// Sums over the threads that share a row, in a fixed order, so that every run gives the same bits. All threads of the
// group get the result. Warp: butterfly shuffles. Block: warp sums through shared memory, one barrier, and every warp
// adds them up for itself. Cluster: block results through distributed shared memory.
#pragma once

#include <cooperative_groups.h>

#include "math/moments.h"

namespace normact::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;
constexpr int kMaxCluster = 16;

/// The lanes of a warp that belong to this thread's group of `lanes` neighbours (a power of two up to 32). Groups of
/// one warp may make different numbers of turns, so they must not name each other's lanes.
__device__ __forceinline__ unsigned group_mask(int lanes) {
  return lanes >= kWarp ? kFullWarp : ((1u << lanes) - 1) << (threadIdx.x % kWarp / lanes * lanes);
}

/// Sum over such a group.
template <class A>
__device__ __forceinline__ A lane_sum(A value, int lanes) {
  const unsigned mask = group_mask(lanes);
  for (int offset = lanes >> 1; offset > 0; offset >>= 1) value += __shfl_xor_sync(mask, value, offset);
  return value;
}

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
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

/// Sum of each of kCount values over the `warps` warps of a group. `scratch` holds kCount * warps values and may be
/// used again once every thread of the group has passed another barrier of the group.
template <int kCount, class A>
__device__ __forceinline__ void group_sum(A (&value)[kCount], A* scratch, int warp, int warps, int barrier) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    value[i] = warp_sum(value[i]);
    if (lane == 0) scratch[i * warps + warp] = value[i];
  }
  group_barrier(barrier, warps * kWarp);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    value[i] = scratch[i * warps];
    for (int w = 1; w < warps; ++w) value[i] += scratch[i * warps + w];
  }
}

/// The moments of `parts` disjoint sets together: Chan's formula for many sets at once, in a fixed order. In fp64, so
/// that the means' own rounding does not show where they are far larger than their differences.
__device__ inline Moments<double> merge_all(const Moments<double>* part, int parts, double count) {
  Moments<double> total{0, 0, count};
  for (int i = 0; i < parts; ++i) total.mean += part[i].count * part[i].mean;
  total.mean /= count;
  for (int i = 0; i < parts; ++i) total.m2 += recentred(part[i], total.mean);
  return total;
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
