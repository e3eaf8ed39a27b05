// SPDX-License-Identifier: Apache-2.0
// How the moments of the lanes of a warp, of the warps of a block and of the blocks of a cluster become those of a row
// or a set of planes (sm_90). Sums of a lane are of the accumulator type, those of warps and blocks fp64.
#pragma once

#include "core/problem.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/reduce.cuh"
#include "math/moments.h"

namespace normact::cuda {

#if __CUDA_ARCH__ >= 900

/// Sum, and sum of squares about the mean, of kCount parts a lane, from those of each about its own mean. count(i),
/// reciprocal_count(i): of the elements of a lane's part i, 0 where it has none; reciprocal_total: of all elements.
template <NormKind kKind, int kCount, class Count, class ReciprocalCount>
__device__ __forceinline__ SumPair<double> merge_parts(const SumPair<double> (&part)[kCount], Count count,
                                                       ReciprocalCount reciprocal_count, double reciprocal_total) {
  SumPair<double> lane{0, 0};
  if constexpr (kKind == NormKind::layer) {
#pragma unroll
    for (const SumPair<double>& of : part) lane.first += of.first;
    lane.first = warp_sum(lane.first);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kKind == NormKind::layer) {
      const Moments<double> moments{part[i].first * reciprocal_count(i), part[i].second, count(i)};
      lane.second += recentred(moments, lane.first * reciprocal_total);
    } else {
      lane.second += part[i].second;
    }
  }
  return {lane.first, warp_sum(lane.second)};
}

/// Parts of a whole, one a lane, as the exchange merges them.
struct RowParts {
  double count;  // elements of this lane's part; 0 if it has none
  double reciprocal_count;
  double reciprocal_total;  // of all lanes together

  __device__ RowParts(int elements, int total)
      : count(elements), reciprocal_count(elements > 0 ? 1.0 / elements : 0.0), reciprocal_total(1.0 / max(total, 1)) {}

  template <NormKind kKind>
  __device__ __forceinline__ SumPair<double> merge(const SumPair<double>& part) const {
    const SumPair<double> parts[1] = {part};
    return merge_parts<kKind>(
        parts, [&](int) { return count; }, [&](int) { return reciprocal_count; }, reciprocal_total);
  }
};

/// Those of a serving warp: the warps of its block, and the blocks of its cluster.
struct ClusterParts {
  RowParts warps;
  RowParts blocks;

  /// Elements: of this lane's warp, and of this lane's block; 0 where there is none.
  __device__ __forceinline__ ClusterParts(int of_warp, int of_all_warps, int of_block, int of_all_blocks)
      : warps(of_warp, of_all_warps), blocks(of_block, of_all_blocks) {}

  /// Mean and variance of a turn's whole, to all lanes.
  template <NormKind kKind, class A>
  __device__ __forceinline__ SumPair<double> merge(int turn, const ClusterBlocks& of,
                                                   WarpExchange<double, A>& exchange) const {
    const SumPair<double> total = exchange.merge(
        turn, of.warps, of.blocks, of.rank, [&](const SumPair<double>& part) { return warps.merge<kKind>(part); },
        [&](const SumPair<double>& part) { return blocks.merge<kKind>(part); });
    return {total.first * blocks.reciprocal_total, total.second * blocks.reciprocal_total};
  }
};

/// Sum of a warp's elements, and of their squares about their mean, from what each lane has of its own about `centre`.
template <class A>
__device__ __forceinline__ SumPair<double> moments_of_warp(A centre, A total, A square, A lane_count,
                                                           A reciprocal_lane_count, A reciprocal_warp_count,
                                                           int elements) {
  const A shift = total * reciprocal_lane_count;
  square -= total * shift;
  // The lanes' means are compared with the first lane's centre, so that they keep their digits.
  const A origin = __shfl_sync(kFullWarp, centre, 0);
  const A mean = (centre - origin) + shift;
  const A beyond = warp_sum(mean * lane_count);
  square = recentred(Moments<A>{mean, square, lane_count}, beyond * reciprocal_warp_count);
  return {static_cast<double>(origin) * elements + static_cast<double>(beyond), static_cast<double>(warp_sum(square))};
}

#endif

}  // namespace normact::cuda
