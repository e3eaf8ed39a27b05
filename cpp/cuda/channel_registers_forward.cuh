// SPDX-License-Identifier: Apache-2.0
// Group and instance norm forward of small sets in the registers of a few threads (channel_registers.cuh).
#pragma once

#include "cuda/channel_registers.cuh"

namespace normact::cuda {

/// mean and sum of squares about it of the sets of a turn, to all their threads, and x - mean in the place of x. The
/// mean is told from an element of the set, and what elements have about it is summed after it is known.
template <class Share, class A>
__device__ __forceinline__ void centre_sets(const ChannelView& view, const Share& share, A reciprocal, int turn,
                                            typename Share::Sum& sum, typename Share::Values& x,
                                            NumberPair<A> (&moments)[Share::kSamples]) {
  constexpr int kWidth = Share::kSetElements / Share::kAccessCount;
  A total[Share::kSamples];
#pragma unroll
  for (int q = 0; q < Share::kSamples; ++q) {
    moments[q].first = share.origin(view, x, turn, q);
    total[q] = A(0);
#pragma unroll
    for (int i = 0; i < Share::kSetElements; ++i) {
      x[q][i] -= moments[q].first;
      if (share.has_access(i / kWidth)) total[q] += x[q][i];
    }
  }
  sum.run(total);
#pragma unroll
  for (int q = 0; q < Share::kSamples; ++q) {
    const A mean = total[q] * reciprocal;
    moments[q].first += mean;
    total[q] = A(0);
#pragma unroll
    for (int i = 0; i < Share::kSetElements; ++i) {
      x[q][i] -= mean;
      if (share.has_access(i / kWidth)) total[q] += x[q][i] * x[q][i];
    }
  }
  sum.run(total);
#pragma unroll
  for (int q = 0; q < Share::kSamples; ++q) moments[q].second = total[q];
}

/// Work     a block the sets of some groups of the samples of a part, several at a time.
/// Bytes    each element of x is read once, each of y written once.
/// Barriers none; two a turn where sets have several warps; one where running statistics are made.
template <class T, class Act, int kWidth, int kAccesses, bool kAlike, int kThreads>
__global__ void __launch_bounds__(kThreads, register_blocks(kThreads, kWidth))
    register_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                            const __grid_constant__ RegisterSpace space, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  using Share = RegisterShare<T, kWidth, kAccesses, kAlike>;
  constexpr int kSamples = Share::kSamples, kElements = Share::kSetElements;
  start_after_previous();
  const Share share(space, p.geometry.groups, p.x);
  typename Share::Sum sum(space.lanes);
  A weight[kElements], bias[kElements];
  share.parameters(p.weight, A(1), weight);
  share.parameters(p.bias, A(0), bias);
  const A count = static_cast<A>(space.elements), reciprocal = A(1) / count;
  NumberPair<A> averages{A(0), A(0)};  // of a lane that leads: sums of means and of squares
#pragma unroll 1
  for (int turn = 0; turn < share.turns(); ++turn) {
    typename Share::Values x;
    NumberPair<A> moments[kSamples];
    share.load(p.x, turn, x);
    centre_sets(p.x, share, reciprocal, turn, sum, x, moments);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      const A rstd = rstd_of(moments[q].second * reciprocal, p.eps);
      if (share.has(turn, q) && share.lane() == 0) {
        if (p.mean.data != nullptr) *statistic_at<A>(p.mean, share.sample(turn, q), share.group()) = moments[q].first;
        if (p.rstd.data != nullptr) *statistic_at<A>(p.rstd, share.sample(turn, q), share.group()) = rstd;
        averages.first += moments[q].first;
        averages.second += moments[q].second;
      }
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[q][i] = affine(x[q][i], channel_scale(rstd, weight[i]), bias[i]);
    }
    apply_activation<T, Act>(reinterpret_cast<A(&)[kRegisterElements]>(x), p);
    share.store(p.y, turn, x);
  }
  if (entries == nullptr) return;
  averages.second = unbiased_variance(Moments<A>{A(0), averages.second, count});
  reinterpret_cast<NumberPair<A>*>(channel_shared)[threadIdx.x] = averages;
  __syncthreads();
  leave_entries(space, p.geometry.groups, share.first_group(), space.lines,
                entries + share.part() * p.geometry.channels,
                [&](int group, int, int line) { return (line * space.tile + group) << space.lane_bits; });
}

}  // namespace normact::cuda
