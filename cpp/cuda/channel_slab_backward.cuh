// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward of slabs in the shared memory of some blocks (channel_slab.cuh).
#pragma once

#include "cuda/channel_slab.cuh"
#include "cuda/channel_slab_slopes.cuh"

namespace normact::cuda {

/// What belongs to a channel.
template <class A>
struct alignas(4 * sizeof(A)) SlabParameters {
  A mean, rstd, weight, bias;
};

/// Work     some blocks a slab.
/// Bytes    each element of x and dy is read once (y and addend, where the slope needs them, twice unless dh is kept),
///          each of dx and daddend is written once.
/// Barriers four of the block; one more, and those of clusters or teams, where slabs have several blocks.
template <class T, class Act, bool kKeeps, bool kTeam>
__global__ void __launch_bounds__(kChannelThreads, 2)
    slab_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                         const __grid_constant__ SlabSpace space, NumberPair<Accumulator<T>>* entries,
                         NumberPair<Accumulator<T>>* handed_over) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const SlabShare<T> share(space);
  const SlabMemory<T, SlabParameters<A>, kTeam> memory(space, share.rank);
  const SlabSpace& s = space;
  if constexpr (!kTeam) begin_cluster(s.blocks);
  start_after_previous();
  copy_for_slopes<T, Act>(p, share);
  SlabExchange<A, kTeam> exchange(s, handed_over);
  for (int c = threadIdx.x; c < s.channels; c += kChannelThreads) {
    const int64_t index = share.parameter_of(c), group = share.first_group + share.group_of(c);
    memory.parameters[c] = {*statistic_at<A>(p.mean, share.batch, group), *statistic_at<A>(p.rstd, share.batch, group),
                            entry_or<T>(p.weight, index, A(1)), entry_or<T>(p.bias, index, A(0))};
  }
  __syncthreads();
  SlabSlopes<T, Act, RowWalk<T, kWidth>, SlabShare<T>, kKeeps> slopes(p, share);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const SlabParameters<A> own = memory.parameters[share.column + j];
    slopes.set(j, own.mean, channel_scale(own.rstd, own.weight), own.bias);
  }
  A sum[kWidth] = {}, product[kWidth] = {};
  add_up_slopes<T, Act>(share, slopes, sum, product);
  memory.leave(s, share.line, share.column, 0, false, sum);
  memory.leave(s, share.line, share.column, 1, false, product);
  __syncthreads();
  // Of the block: of each channel, weighed where several make up a group, and of each group.
  const bool weighted = p.set == ChannelSet::group, several = s.by_group.size > 1;
  NumberPair<A>* const channels = several ? memory.totals : memory.own;
  const auto leave = [&](int channel, int lane, int, const A(&total)[2]) {
    if (lane != 0) return;
    const SlabParameters<A> own = memory.parameters[channel];
    const NumberPair<A> sums{total[0], total[1] * own.rstd};
    if (weighted) {
      hand(entries + (share.batch * p.geometry.channels + share.first + channel) * s.blocks + share.rank, sums);
    }
    const A weight = weighted ? own.weight : A(1);
    channels[channel] = {weight * sums.first, weight * sums.second};
  };
  memory.template for_each_range<2>(s, s.channels, Divisor(), false, leave);
  __syncthreads();
  const int helpers = memory.lanes_for(s.groups), helper = static_cast<int>(threadIdx.x) & (helpers - 1);
  const int group = static_cast<int>(threadIdx.x) / helpers, any = min(group, s.groups - 1);
  const bool leads = helper == 0 && group < s.groups;
  const auto total_of = [&](const NumberPair<A>* from, int count, int step) {  // all lanes of a warp take part
    NumberPair<A> total{A(0), A(0)};
    for (int i = helper; i < count; i += helpers) {
      total.first += from[i * step].first;
      total.second += from[i * step].second;
    }
    return NumberPair<A>{sum_of_helpers(total.first, helpers), sum_of_helpers(total.second, helpers)};
  };
  const int of_group = static_cast<int>(s.by_group.size);
  NumberPair<A> total = total_of(channels + any * of_group, of_group, 1);
  if (s.blocks > 1) {
    if (several) {
      if (leads) memory.own[group] = total;
      __syncthreads();
    }
    exchange.run(share, memory);
    total = total_of(memory.entries + any, s.blocks, s.groups);
  }
  if (leads) {
    if (!weighted && share.rank == 0) store_gradients<T>(p, share.first_group + group, total);
    const SlabParameters<A> own = memory.parameters[group * of_group];
    const A elements = static_cast<A>(s.rows) * static_cast<A>(of_group);
    const NumberPair<A> c = correction_of(p, channel_scale(own.rstd, weighted ? A(1) : own.weight) / elements, total);
    memory.results[group] = {c.first, c.second * own.rstd};  // of x - mean instead of xhat
  }
  __syncthreads();
  A c1[kWidth], c2[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const NumberPair<A> of = memory.results[share.group_of(share.column + j)];
    c1[j] = of.first;
    c2[j] = of.second;
  }
  write_gradients<T>(p, share, slopes, c1, c2);
}

}  // namespace normact::cuda
