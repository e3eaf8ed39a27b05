// SPDX-License-Identifier: Apache-2.0
// Batch norm forward of bands of channels in the shared memory of a cluster (channel_band_slab.cuh).
#pragma once

#include "cuda/channel_band_slab.cuh"
#include "cuda/channel_slab_forward.cuh"

namespace normact::cuda {

/// Work     a cluster a band.
/// Bytes    each element of x (and addend) is read once, each of y written once.
/// Barriers three of the block, three more where it sums once more; of these, one a time is the cluster's where it has
///          several blocks.
template <class T, class Act>
__global__ void __launch_bounds__(kChannelThreads, kBandForwardBlocks)
    band_slab_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                             const __grid_constant__ BandSpace space) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const BandShare<T> share(space);
  BandSums<T> sums(space, share);
  begin_cluster(space.blocks);
  start_after_previous();
  share.copy(p.x, 0, 0, share.half());
  commit_copies();
  share.copy(p.x, 0, share.half(), share.count);
  commit_copies();
  if (p.addend.data != nullptr) share.copy(p.addend, 1);
  commit_copies();
  const OfBoth<A> origin = share.of_both([&](int channel) { return share.middle(p.x, channel * share.places()); });
  const OfBoth<NumberPair<A>> parameters = share.of_both([&](int channel) {
    const int64_t index = share.first_group + channel;
    return NumberPair<A>{entry_or<T>(p.weight, index, A(1)), entry_or<T>(p.bias, index, A(0))};
  });
  const int64_t group = share.first_group + share.channel.low;
  const RunningEntry<A> before = share.leads() ? running_of_set(p, group) : RunningEntry<A>();

  // The moments of both channels, about the middle, from which means are told, too. Where that proves to be so far from
  // the mean that digits are lost, once more about the mean.
  const A elements = static_cast<A>(space.rows) * static_cast<A>(share.places());
  const A reciprocal = quick_reciprocal(elements);
  OfBoth<A> centre = origin;
  OfBoth<Moments<A>> moments;
  for (bool first = true;; first = false) {
    A about[kWidth], sum[kWidth] = {}, square[kWidth] = {};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) about[j] = share.of(j, centre);
    add_up_squares<1, 2>(share, about, sum, square);
    const OfBoth<NumberPair<A>> total = sums.total(sum, square);
    bool far = false;
    const auto moments_of = [&](const NumberPair<A>& of, A from, A* about) {
      Moments<A> m = moments_about(*about - from, of.first, of.second, elements, reciprocal);
      m.m2 = m.m2 < A(0) ? A(0) : m.m2;  // max() would lose NaN
      if (is_far(m, *about - from)) {
        far = true;
        *about = from + m.mean;
      }
      m.mean += from;
      return m;
    };
    moments = {moments_of(total.low, origin.low, &centre.low), moments_of(total.high, origin.high, &centre.high)};
    if (!__syncthreads_or(first && far)) break;
  }
  const OfBoth<A> rstd{rstd_of(variance(moments.low), p.eps), rstd_of(variance(moments.high), p.eps)};
  if (share.leads()) {
    leave_statistics<A>(p, 0, group, moments.low, rstd.low, nullptr, before);
    if (group == 0) count_batch(p.running);
  }
  const OfBoth<A> scale{channel_scale(rstd.low, parameters.low.first), channel_scale(rstd.high, parameters.high.first)};
  A means[kWidth], scales[kWidth], biases[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    means[j] = share.of(j, moments).mean;
    scales[j] = share.of(j, scale);
    biases[j] = share.of(j, parameters).second;
  }
  wait_copies<0>();
  with_extras<T, Act>(p, [&](auto adds, auto marks) {
#pragma unroll 2
    for (int k = 0; k < share.count; ++k) {
      Pack<T> addend;
      if constexpr (adds) addend = load_shared_pack<T>(share.at(1, k));
      write_pack<T, Act, adds, marks>(p, share, k, means, scales, biases, addend);
    }
  });
}

}  // namespace normact::cuda
