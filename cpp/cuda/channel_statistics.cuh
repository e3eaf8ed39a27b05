// SPDX-License-Identifier: Apache-2.0
// What every way through batch, group and instance norm forward does with statistics, parameters and bits of a mask.
#pragma once

#include "cuda/channel_activation.cuh"
#include "cuda/channel_sums.cuh"

namespace normact::cuda {

template <class A>
using ForwardProblem = ActivatedProblem<ChannelForward, A>;

/// The entry of a channel.
template <class T>
__device__ __forceinline__ Accumulator<T> entry_or(const ChannelVector& vector, int64_t channel,
                                                   Accumulator<T> otherwise) {
  return vector.data != nullptr ? Parameter<T>(vector).at(channel * vector.stride) : otherwise;
}

template <class A>
__device__ __forceinline__ A* statistic_at(const ChannelStatistic& statistic, int64_t batch, int64_t group) {
  return static_cast<A*>(statistic.data) + batch * statistic.sample_stride + group * statistic.group_stride;
}

/// The first element of a sample's channel.
template <class T>
__device__ __forceinline__ T first_element(const ChannelView& x, int64_t sample, int64_t channel) {
  return static_cast<const T*>(x.data)[sample * x.sample_stride + channel * x.channel_stride];
}

template <class A>
__device__ __forceinline__ A rstd_of(A variance, double eps) {
  return reciprocal_std(variance, static_cast<A>(eps), [](A v) { return reciprocal_sqrt(v); });
}

/// Running statistics of a channel. To read them takes as long as memory does: where others wait for who enters new
/// ones, that is begun long before.
template <class A>
struct RunningEntry {
  A mean = A(0), variance = A(0);

  RunningEntry() = default;
  __device__ __forceinline__ RunningEntry(const RunningStatistics& running, int64_t channel) {
    if (running.mean.data == nullptr) return;
    mean = static_cast<const A*>(running.mean.data)[channel * running.mean.stride];
    variance = static_cast<const A*>(running.variance.data)[channel * running.variance.stride];
  }
  /// Those of `mean` and `variance` entered.
  __device__ __forceinline__ void update(const RunningStatistics& running, int64_t channel, A of_mean,
                                         A of_variance) const {
    if (running.mean.data == nullptr) return;
    const A share = running_share<A>(running.cumulative, running.batches, running.momentum);
    static_cast<A*>(running.mean.data)[channel * running.mean.stride] = updated_running(mean, of_mean, share);
    static_cast<A*>(running.variance.data)[channel * running.variance.stride] =
        updated_running(variance, of_variance, share);
  }
};

template <class A>
__device__ __forceinline__ void update_running(const RunningStatistics& running, int64_t channel, A mean, A variance) {
  RunningEntry<A>(running, channel).update(running, channel, mean, variance);
}
/// What a set's statistics are entered into, where it is a channel.
template <class A>
__device__ __forceinline__ RunningEntry<A> running_of_set(const ForwardProblem<A>& p, int64_t group) {
  return p.set == ChannelSet::channel ? RunningEntry<A>(p.running, group) : RunningEntry<A>();
}

/// Which elements of h pass ReLU.
template <class T, class A, int kWidth>
__device__ __forceinline__ unsigned relu_bits(const A (&h)[kWidth], const ForwardProblem<A>& p) {
  unsigned bits = 0;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    bits |= Relu<Math<T>>::slope_from_output(h[j], p.scalars) != A(0) ? 1u << j : 0u;
  }
  return bits;
}

/// One of the launch's threads, where statistics are x's.
__device__ __forceinline__ void count_batch(const RunningStatistics& running) {
  if (running.batches != nullptr && !running.cumulative) ++*running.batches;
}

/// Writes the statistics of a set, and enters them into running ones, which were `before`, or into `entry`, of which
/// those of instance norm are made, unless it has them and others may be reading it. One thread.
template <class A>
__device__ __forceinline__ void leave_statistics(const ForwardProblem<A>& p, int64_t batch, int64_t group,
                                                 const Moments<A>& m, A rstd, MomentsEntry<A>* entry,
                                                 const RunningEntry<A>& before) {
  if (p.mean.data != nullptr) *statistic_at<A>(p.mean, batch, group) = m.mean;
  if (p.rstd.data != nullptr) *statistic_at<A>(p.rstd, batch, group) = rstd;
  if (p.set == ChannelSet::channel) {
    before.update(p.running, group, m.mean, unbiased_variance(m));
  } else if (p.running.mean.data != nullptr && entry != nullptr) {
    *entry = {m.mean, m.m2, m.count, A(0)};
  }
}

/// mean and rstd that are not x's.
template <class T>
__device__ __forceinline__ NumberPair<Accumulator<T>> constant_statistics(const ForwardProblem<Accumulator<T>>& p,
                                                                          int64_t batch, int64_t group) {
  using A = Accumulator<T>;
  if (p.source == StatisticsSource::given)
    return {*statistic_at<A>(p.mean, batch, group), *statistic_at<A>(p.rstd, batch, group)};
  return {entry_or<T>(p.running.mean, group, A(0)), rstd_of(entry_or<T>(p.running.variance, group, A(1)), p.eps)};
}

}  // namespace normact::cuda
