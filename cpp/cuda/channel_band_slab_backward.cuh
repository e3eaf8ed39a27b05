// SPDX-License-Identifier: Apache-2.0
// Batch norm backward of bands of channels in the shared memory of a cluster (channel_band_slab.cuh).
#pragma once

#include "cuda/channel_band_slab.cuh"
#include "cuda/channel_slab_slopes.cuh"

namespace normact::cuda {

/// Work     a cluster a band.
/// Bytes    each element of x and dy is read once (y and addend, where the slope needs them, twice unless dh is kept),
///          each of dx and daddend is written once.
/// Barriers two of the block, the second is the cluster's where it has several blocks.
template <class T, class Act, bool kKeeps>
__global__ void __launch_bounds__(kChannelThreads, kBandBackwardBlocks)
    band_slab_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                              const __grid_constant__ BandSpace space) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const BandShare<T> share(space);
  BandSums<T> sums(space, share);
  begin_cluster(space.blocks);
  start_after_previous();
  copy_for_slopes<T, Act>(p, share);
  struct Channel {
    A mean, rstd, scale, bias;
  };
  const OfBoth<Channel> own = share.of_both([&](int channel) {
    const int64_t group = share.first_group + channel;
    const A rstd = *statistic_at<A>(p.rstd, 0, group);
    return Channel{*statistic_at<A>(p.mean, 0, group), rstd, channel_scale(rstd, entry_or<T>(p.weight, group, A(1))),
                   entry_or<T>(p.bias, group, A(0))};
  });
  SlabSlopes<T, Act, RowWalk<T, kWidth>, BandShare<T>, kKeeps> slopes(p, share);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const Channel& of = share.of(j, own);
    slopes.set(j, of.mean, of.scale, of.bias);
  }
  A sum[kWidth] = {}, product[kWidth] = {};
  add_up_slopes<T, Act>(share, slopes, sum, product);
  const A elements = static_cast<A>(space.rows) * static_cast<A>(share.places());
  const auto of_channel = [&](const NumberPair<A>& total, const Channel& of) {
    const NumberPair<A> c = correction_of(p, of.scale / elements, total);
    return NumberPair<A>{c.first, c.second * of.rstd * of.rstd};  // of x - mean, not of xhat
  };
  const OfBoth<NumberPair<A>> total = sums.total(sum, product);
  if (share.leads()) {
    store_gradients<T>(p, share.first_group + share.channel.low,
                       NumberPair<A>{total.low.first, total.low.second * own.low.rstd});
  }
  const OfBoth<NumberPair<A>> correction{of_channel(total.low, own.low), of_channel(total.high, own.high)};
  A c1[kWidth], c2[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    c1[j] = share.of(j, correction).first;
    c2[j] = share.of(j, correction).second;
  }
  write_gradients<T>(p, share, slopes, c1, c2);
}

}  // namespace normact::cuda
