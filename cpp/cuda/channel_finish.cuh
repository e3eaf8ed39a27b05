// SPDX-License-Identifier: Apache-2.0
// What follows the channel kernels: tables of moments for batch norm in parts, running statistics of instance norm, and
// masks whose bytes hold elements of several threads. Small, but for the masks.
#pragma once

#include "cuda/channel_backward.cuh"
#include "cuda/channel_chunks.cuh"
#include "cuda/channel_forward.cuh"

namespace normact::cuda {

/// Zeros the counters before a kernel whose blocks draw tickets: in a graph a memset takes 2.3 us, this 0.5 (H200).
static __global__ void __launch_bounds__(kChannelThreads) channel_counters_kernel(unsigned* counters, unsigned count) {
  const unsigned i = blockIdx.x * kChannelThreads + threadIdx.x;
  if (i < count) counters[i] = 0;
}

/// The settle items between two passes that are launches of their own, a block for each.
/// Pass      the forward's or the backward's, of any activation.
/// grid      slabs * settles_a_slab.
template <class Pass, class Problem, class Entry, class A = Accumulator<typename Pass::Type>>
__global__ void __launch_bounds__(kChannelThreads)
    channel_settle_kernel(const __grid_constant__ Problem p, const __grid_constant__ ChannelSpace space, Entry* entries,
                          NumberPair<A>* finals) {
  allow_next_kernel();  // whose blocks come as those of the first pass end
  wait_for_previous_kernel();
  const Pass pass{p, space, entries, finals, nullptr};
  const unsigned slab = blockIdx.x / space.settles_a_slab;
  pass.template settle<kManyTogether>(ChannelSettle(space, slab, blockIdx.x - slab * space.settles_a_slab), true);
}

/// The table of moments from the entries of the only batch; zeros without any.
/// Work     a warp merges the entries of a channel.
/// grid     ceil(channels / kFinishWarps).
template <class T>
__global__ void __launch_bounds__(kChannelThreads)
    channel_moments_kernel(const ChannelTable table, const MomentsEntry<Accumulator<T>>* entries, int64_t channels,
                           int64_t parts) {
  using A = Accumulator<T>;
  wait_for_previous_kernel();
  const int64_t channel = warp_channel(blockIdx.x);
  if (channel >= channels) return;
  const Moments<A> sum =
      merge_entries<Arrival::there, kManyTogether>(entries + channel * parts, static_cast<unsigned>(parts),
                                                   threadIdx.x % kWarp, kWarp, [](unsigned i) { return i; });
  if (threadIdx.x % kWarp != 0) return;
  *table_at<A>(table, 0, channel) = sum.count > A(0) ? sum.mean : A(0);
  *table_at<A>(table, 1, channel) = sum.m2;
  *table_at<A>(table, 2, channel) = sum.count;
}

/// ChannelMerge: mean, rstd and running statistics from the moments of all processes.
/// Work     a thread merges the parts of a channel, in their order.
template <class A>
__global__ void __launch_bounds__(kChannelThreads) channel_merge_kernel(const __grid_constant__ ChannelMerge p) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x;
  if (channel >= p.geometry.channels) return;
  Moments<A> sum{A(0), A(0), A(0)};
  for (int64_t part = 0; part < p.parts; ++part) {
    ChannelTable table = p.moments;
    table.data = static_cast<A*>(table.data) + part * table.part_stride;
    sum = merge(sum, Moments<A>{*table_at<A>(table, 0, channel), *table_at<A>(table, 1, channel),
                                *table_at<A>(table, 2, channel)});
  }
  *statistic_at<A>(p.mean, 0, channel) = sum.mean;
  *statistic_at<A>(p.rstd, 0, channel) = rstd_of(variance(sum), p.eps);
  if (sum.count > A(0)) update_running(p.running, channel, sum.mean, unbiased_variance(sum));
}

/// num_batches_tracked after a merge: counts a batch in which any process had elements. One warp.
template <class A>
__global__ void channel_count_kernel(const __grid_constant__ ChannelMerge p) {
  bool any = false;
  for (int64_t part = threadIdx.x; part < p.parts; part += kWarp) {
    ChannelTable table = p.moments;
    table.data = static_cast<A*>(table.data) + part * table.part_stride;
    any = any || *table_at<A>(table, 2, 0) > A(0);
  }
  any = __any_sync(kFullWarp, any);
  if (any && threadIdx.x == 0) ++*p.running.batches;
}

/// The same after a forward whose kernel read the number of batches.
static __global__ void channel_batch_kernel(int64_t* batches) { ++*batches; }

/// Running statistics of instance norm: the means over the samples enter them.
/// Work     a warp adds up the samples of a channel, of which each has the moments in its first entry, or
///          what blocks have left of many of them.
template <class A, class Entry>
__global__ void __launch_bounds__(kChannelThreads)
    instance_running_kernel(const __grid_constant__ ChannelForward p, const Entry* entries, int64_t batches,
                            int64_t parts) {
  wait_for_previous_kernel();
  const int64_t channel = warp_channel(blockIdx.x), channels = p.geometry.channels;
  if (channel >= channels) return;
  const NumberPair<A> sum = warp_sum_of_pairs<A>(batches, [&](int64_t batch) {
    return summed(handed<Arrival::there>(entries + (batch * channels + channel) * parts));
  });
  const A samples = static_cast<A>(p.geometry.samples), mean = sum.first / samples, variance = sum.second / samples;
  if (threadIdx.x % kWarp == 0) update_running(p.running, channel, mean, variance);
}

/// A mask whose bytes are not single accesses of the apply pass: h again, a byte of eight elements a thread.
/// Bytes    x and addend are read once more.
template <class T>
__global__ void __launch_bounds__(kChannelThreads)
    channel_mask_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                        const __grid_constant__ ChannelSpace space, void* finals) {
  using A = Accumulator<T>;
  using Walk = RowWalk<T, 1>;
  const ForwardPass<T, Identity<Math<T>>, Walk, false> pass{p, space, nullptr, static_cast<NumberPair<A>*>(finals),
                                                            nullptr};
  const ChannelGeometry& g = p.geometry;
  const int64_t size = g.samples * g.channels * g.places;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kChannelThreads + threadIdx.x) * 8;
  if (first >= size) return;
  const int64_t runs = g.places / g.places_after;
  const int64_t outer = first / g.places_after, next = outer / g.channels;
  int64_t after = first - outer * g.places_after, channel = outer - next * g.channels;
  int64_t sample = next / runs, before = next - sample * runs;
  A mean{}, scale{}, bias{};
  unsigned bits = 0;
#pragma unroll 1
  for (int j = 0; j < 8 && first + j < size; ++j) {
    if (j == 0 || after == 0) {
      const NumberPair<A> of = pass.statistics(p.set == ChannelSet::channel ? 0 : sample, channel, 0);
      mean = of.first;
      const auto own = pass.parameters_of(sample, channel);
      scale = channel_scale(of.second, own.weight);
      bias = own.bias;
    }
    const int64_t place = before * g.places_after + after;
    const auto at = [&](const ChannelView& view) {
      return static_cast<const T*>(view.data)[sample * view.sample_stride + channel * view.channel_stride +
                                              strided_offset(place, g.place_ndim, g.place_shape, view.place_stride)];
    };
    A h = channel_affine(convert<A>(at(p.x)), mean, scale, bias);
    if (p.addend.data != nullptr) h += convert<A>(at(p.addend));
    bits |= Relu<Math<T>>::slope_from_output(h, p.scalars) != A(0) ? 1u << j : 0u;
    if (++after < g.places_after) continue;
    after = 0;
    if (++channel < g.channels) continue;
    channel = 0;
    if (++before < runs) continue;
    before = 0;
    ++sample;
  }
  p.mask[first / 8] = static_cast<uint8_t>(bits);
}

}  // namespace normact::cuda
