// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward of sets of planes in the shared memory of a cluster (channel_plane_slab.cuh).
#pragma once

#include "cuda/channel_plane_slab.cuh"

namespace normact::cuda {

/// A number near the mean of the set, the same in all its blocks: what lies in the middle of four elements. Whole
/// warps.
template <class T, bool kCut, class A = Accumulator<T>>
__device__ __forceinline__ A middle_of_set(const PlaneSlabShare<T, kCut>& share, const ChannelView& x) {
  const int pack = static_cast<int>(threadIdx.x) % 4 * (share.s.packs / 4);
  const int64_t at = share.base + pack * kPackSize<T> + share.plane_of(pack) * share.s.gap;
  const A own = finite_or_zero(convert<A>(static_cast<const T*>(x.data)[at]));
  const A other = __shfl_xor_sync(kFullWarp, own, 1);
  const A low = min(own, other), high = max(own, other);
  return middle_of_pairs(low, __shfl_xor_sync(kFullWarp, low, 2), high, __shfl_xor_sync(kFullWarp, high, 2));
}

/// The moments of the block's part of its set, to all threads, the mean told from `origin`: sums about that; where it
/// proves to be so far from the mean that digits are lost, once more about the mean.
template <class T, bool kCut, class A = Accumulator<T>>
__device__ __forceinline__ Moments<A> plane_slab_moments(const PlaneSlabShare<T, kCut>& share,
                                                         const PlaneSlabMemory<A>& memory, A origin) {
  constexpr int kWidth = kPackSize<T>, kApart = 4;  // a thread's sums: fp32 bears some fifty elements of each
  const A elements = static_cast<A>((share.end() - share.begin()) * kWidth), reciprocal = quick_reciprocal(elements);
  A centre = origin;
  for (bool first = true;; first = false) {
    A sum[kApart] = {}, square[kApart] = {};
#pragma unroll 4
    for (int k = 0; k < share.count; ++k) {
      A value[kWidth];
      unpack(load_shared_pack<T>(share.at(0, k)), value);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[j] -= centre;
        sum[j % kApart] += value[j];
        square[j % kApart] += value[j] * value[j];
      }
    }
    const NumberPair<A> total = sum_of_warps(memory, NumberPair<A>{(sum[0] + sum[1]) + (sum[2] + sum[3]),
                                                                   (square[0] + square[1]) + (square[2] + square[3])});
    Moments<A> m = moments_about(centre - origin, total.first, total.second, elements, reciprocal);
    m.m2 = m.m2 < A(0) ? A(0) : m.m2;  // max() would lose NaN
    if (!first || !is_far(m, centre - origin)) return m;
    centre = origin + m.mean;
    __syncthreads();
  }
}

/// Work     a cluster a set.
/// Bytes    each element of x is read once, each of y written once.
/// Barriers one of the block, two more where it sums once more; two of the cluster, where it has several blocks.
template <class T, class Act, bool kCut>
__global__ void __launch_bounds__(kMostPlaneSlabThreads, 2)
    plane_slab_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                              const __grid_constant__ PlaneSlabSpace space, MomentsEntry<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const PlaneSlabShare<T, kCut> share(space);
  const PlaneSlabMemory<A> memory(space);
  begin_cluster(space.blocks);
  start_after_previous();
  share.copy(p.x, 0);
  const NumberPair<A> only = keep_parameters(share, memory, p.weight, p.bias);
  const A origin = middle_of_set(share, p.x);
  const bool leads = share.rank == 0 && threadIdx.x == 0;
  const RunningEntry<A> before = leads ? running_of_set(p, share.group) : RunningEntry<A>();
  wait_all_copies();
  Moments<A> m = plane_slab_moments(share, memory, origin);
  if (space.blocks > 1) {
    exchange_entry(space, share.rank, m);
    const Moments<A>* const of = cluster_entries<Moments<A>>();
    m = moments_of_sets(1, finite_or_zero(of->mean), [&](auto visit) {
      for (int block = 0; block < space.blocks; ++block) visit(of[block]);
    });
  }
  m.mean += origin;
  const A rstd = rstd_of(variance(m), p.eps);
  if (leads) {
    leave_statistics(p, share.batch, share.group, m, rstd, entries + share.set, before);
    if (share.set == 0) count_batch(p.running);
  }
  const bool several = share.several();
  const int first_plane = several ? share.first_plane() : 0;
  A scale = channel_scale(rstd, only.first), bias = only.second;
#pragma unroll 4
  for (int k = 0; k < share.count; ++k) {
    const int plane = share.plane(k);
    const NumberPair<A>* const own = memory.parameters + plane - first_plane;
    A h[kWidth];
    unpack(load_shared_pack<T>(share.at(0, k)), h);
    if constexpr (kCut) {
      A scales[kWidth], biases[kWidth];
      cut_parameters(own, share.elements_before_cut(k, plane), rstd, scales, biases);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], m.mean, scales[j], biases[j]);
    } else {
      if (several) {
        scale = channel_scale(rstd, own->first);
        bias = own->second;
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], m.mean, scale, bias);
    }
    apply_activation<T, Act>(h, p);
    store_pack_streaming(static_cast<T*>(p.y.data) + share.element(k, plane), to_pack<T>(h));
  }
}

}  // namespace normact::cuda
