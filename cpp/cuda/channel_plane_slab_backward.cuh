// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward of sets of planes in the shared memory of a cluster (channel_plane_slab.cuh).
// Where sets have several channels, 32 packs side by side are of one.
#pragma once

#include "cuda/channel_plane_slab.cuh"
#include "cuda/channel_slab_slopes.cuh"

namespace normact::cuda {

/// Leaves a warp's sums of two numbers.
template <class A>
__device__ __forceinline__ void leave_sum_of_warp(NumberPair<A>* to, const NumberPair<A>& of) {
  const int lane = threadIdx.x % kWarp;
  const bool upper = lane >= kWarp / 2;  // which go on with the second number
  A sum = upper ? of.second : of.first;
  sum += __shfl_xor_sync(kFullWarp, upper ? of.first : of.second, kWarp / 2);
  sum = sum_of_helpers(sum, kWarp / 2);
  if (lane % (kWarp / 2) == 0) (upper ? to->second : to->first) = sum;
}

/// sum(w dh) and sum(w dh xhat) of the block's planes, to all threads, from what warps have left of pieces of them,
/// behind a barrier; what each channel has for itself goes to `entries`.
///
/// A warp leaves a number for each plane that it has some of: number plane + warp. As both grow together, those of a
/// plane are neighbours.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ NumberPair<A> sum_of_planes(const PlaneSlabShare<T>& share, const PlaneSlabMemory<A>& memory,
                                                       A rstd, NumberPair<A>* entries) {
  const PlaneSlabSpace& s = share.s;
  const int run = static_cast<int>(s.by_run.size), packs = share.end() - share.begin(), planes = share.planes();
  NumberPair<A> total{A(0), A(0)};
  for (int plane = threadIdx.x % kWarp; plane < planes; plane += kWarp) {
    const int first = static_cast<int>(s.by_warp.quotient(plane * run));
    const int last = static_cast<int>(s.by_warp.quotient(min((plane + 1) * run, packs) - 1));
    NumberPair<A> sum{A(0), A(0)};
    for (int warp = first; warp <= last; ++warp) {
      const NumberPair<A> of = memory.sums[plane + warp];
      sum.first += of.first;
      sum.second += of.second;
    }
    sum.second *= rstd;
    if (threadIdx.x < kWarp) hand(entries + share.first_plane() + plane, sum);
    const A weight = memory.parameters[plane].first;
    total.first += weight * sum.first;
    total.second += weight * sum.second;
  }
  return {warp_sum(total.first), warp_sum(total.second)};
}

/// Work     a cluster a set.
/// Bytes    each element of x and dy is read once, each of dx (and daddend) is written once.
/// Barriers one of the block, one more where sets have several channels, and two of the cluster, where it has several
///          blocks.
template <class T, class Act, bool kKeeps>
__global__ void __launch_bounds__(kMostPlaneSlabThreads, 2)
    plane_slab_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                               const __grid_constant__ PlaneSlabSpace space, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const PlaneSlabShare<T> share(space);
  const PlaneSlabMemory<A> memory(space);
  begin_cluster(space.blocks);
  start_after_previous();
  share.copy(p.x, 0);
  share.copy(p.dy, 1);
  const NumberPair<A> only = keep_parameters(share, memory, p.weight, p.bias);
  const A mean = *statistic_at<A>(p.mean, share.batch, share.group),
          rstd = *statistic_at<A>(p.rstd, share.batch, share.group);
  SlabSlopes<T, Act, PlaneWalk<T, true>, PlaneSlabShare<T>, kKeeps> slopes(p, share);
  slopes.set(0, mean, channel_scale(rstd, only.first), only.second);
  const bool several = share.several();
  const int first_plane = several ? share.first_plane() : 0;
  int current = -1;  // plane, of several
  const auto enter = [&](int plane) {
    current = plane;
    const NumberPair<A> own = memory.parameters[plane - first_plane];
    slopes.set(0, mean, channel_scale(rstd, own.first), own.second);
  };
  if (several) __syncthreads();
  wait_all_copies();

  NumberPair<A> sum{A(0), A(0)};
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    if (several && share.plane(k) != current) {  // a warp is of one mind
      if (k > 0) leave_sum_of_warp(memory.sums + current - first_plane + share.warp(), sum);
      sum = {A(0), A(0)};
      enter(share.plane(k));
    }
    A dh[kWidth], centred[kWidth];
    slopes.template differentiate<false>(k, 0, dh, centred);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum.first += dh[j];
      sum.second += dh[j] * centred[j];
    }
  }
  const bool weighted = p.set == ChannelSet::group;
  NumberPair<A>* const own_entries = entries + share.batch * p.geometry.channels + share.channel;
  NumberPair<A> total;
  if (several) {
    if (share.count > 0) leave_sum_of_warp(memory.sums + current - first_plane + share.warp(), sum);
    __syncthreads();
    total = sum_of_planes(share, memory, rstd, own_entries);
  } else {
    total = sum_of_warps(memory, sum);
    total.second *= rstd;
  }
  if (space.blocks > 1) total = sum_of_cluster(space, share.rank, total);
  if (!several && share.rank == 0 && threadIdx.x == 0) {
    weighted ? hand(own_entries, total) : store_gradients<T>(p, share.group, total);
  }
  const A elements = static_cast<A>(space.packs) * static_cast<A>(kWidth);
  const NumberPair<A> c = correction_of(p, channel_scale(rstd, several ? A(1) : only.first) / elements, total);
  const A c1 = c.first, c2 = c.second * rstd;  // of x - mean instead of xhat
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    const int plane = share.plane(k);
    if (several && plane != current) enter(plane);
    const int64_t at = share.element(k, plane);
    A dh[kWidth], centred[kWidth];
    slopes.template differentiate<true>(k, at, dh, centred);
    if (p.daddend.data != nullptr) store_pack_streaming(static_cast<T*>(p.daddend.data) + at, to_pack<T>(dh));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dh[j] = normact::channel_input_gradient(dh[j], centred[j], slopes.scale[0], c1, c2);
    }
    store_pack_streaming(static_cast<T*>(p.dx.data) + at, to_pack<T>(dh));
  }
}

}  // namespace normact::cuda
