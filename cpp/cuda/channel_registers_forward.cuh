// SPDX-License-Identifier: Apache-2.0
// Group and instance norm forward of small sets in the registers of a few threads (channel_registers.cuh).
#pragma once

#include "cuda/channel_registers.cuh"
#include "cuda/values.cuh"

namespace normact::cuda {

/// mean and sum of squares about it of the sets of a turn, to all their threads, and x - mean in the place of x. What
/// elements have about the mean is summed after it is known, and so is what its rounding has left.
template <class Share, class A>
__device__ __forceinline__ void centre_sets(const Share& share, A reciprocal, typename Share::Sum& sum,
                                            typename Share::Values& x, NumberPair<A> (&moments)[Share::kSamples]) {
  constexpr int kSamples = Share::kSamples, kWidth = Share::kSetElements / Share::kAccessCount;
  A total[kSamples], about[2 * kSamples] = {};
#pragma unroll
  for (int q = 0; q < kSamples; ++q) total[q] = total_of(x[q]);  // others are zeros
  sum.run(total);
#pragma unroll
  for (int q = 0; q < kSamples; ++q) {
    const A mean = total[q] * reciprocal;
    moments[q].first = mean;
#pragma unroll
    for (int i = 0; i < Share::kSetElements; ++i) {
      x[q][i] -= mean;
      if (!share.has_access(i / kWidth)) continue;
      about[2 * q] += x[q][i];
      about[2 * q + 1] += x[q][i] * x[q][i];
    }
  }
  sum.run(about);
#pragma unroll
  for (int q = 0; q < kSamples; ++q) {
    const Moments<A> m = moments_about(moments[q].first, about[2 * q], about[2 * q + 1], A(0), reciprocal);
    centre(x[q], about[2 * q] * reciprocal);
    moments[q] = {m.mean, m.m2 < A(0) ? A(0) : m.m2};  // max() would lose NaN
  }
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
    centre_sets(share, reciprocal, sum, x, moments);
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
