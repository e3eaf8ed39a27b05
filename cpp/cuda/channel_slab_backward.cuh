// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward of slabs in the shared memory of a cluster (channel_slab.cuh).
#pragma once

#include "cuda/channel_slab.cuh"
#include "cuda/channel_slab_slopes.cuh"

namespace normact::cuda {

/// What belongs to a channel.
template <class A>
struct alignas(4 * sizeof(A)) SlabParameters {
  A mean, rstd, weight, bias;
};

/// Work     a cluster a slab.
/// Bytes    each element of x and dy is read once (y and addend, where the slope needs them, twice unless dh is kept),
///          each of dx and daddend is written once.
/// Barriers four of the block; one more, and two of the cluster, where it has several blocks.
template <class T, class Act, bool kKeeps>
__global__ void __launch_bounds__(kChannelThreads, 2)
    slab_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                         const __grid_constant__ SlabSpace space, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const SlabShare<T> share(space);
  const SlabMemory<T, SlabParameters<A>> memory(space);
  const SlabSpace& s = space;
  begin_cluster(s.blocks);
  start_after_previous();
  const auto copy = [&] {
    share.copy(p.x, 0);
    share.copy(p.dy, 1);
    if constexpr (!kIdentity<T, Act>) share.prefetch(slope_view(p));
  };
  if (kRelu<T, Act> && p.mask != nullptr) {
    share.keep_bits(p.mask, copy);
  } else {
    copy();
  }
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
  wait_all_copies();

  A sum[kWidth] = {}, product[kWidth] = {};
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    A dh[kWidth], centred[kWidth];
    slopes.template differentiate<false>(k, share.offset + k * share.step(), dh, centred);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum[j] += dh[j];
      product[j] += dh[j] * centred[j];
    }
  }
  memory.leave(s, share.line, share.column, 0, false, sum);
  memory.leave(s, share.line, share.column, 1, false, product);
  __syncthreads();
  // Of each channel; over the cluster in the place of the first block's.
  const bool weighted = p.set == ChannelSet::group;
  const auto settle = [&](int c, const NumberPair<A>& total) {
    if (weighted && share.rank == 0) hand(entries + share.batch * p.geometry.channels + share.first + c, total);
    const A weight = weighted ? memory.parameters[c].weight : A(1);
    memory.entries[c] = {weight * total.first, weight * total.second};
  };
  const auto leave = [&](int channel, int lane, int, const A(&total)[2]) {
    if (lane != 0) return;
    const NumberPair<A> sums{total[0], total[1] * memory.parameters[channel].rstd};
    if (s.blocks == 1) {
      settle(channel, sums);
    } else {
      memory.entries[share.rank * s.channels + channel] = sums;
    }
  };
  memory.template for_each_range<2>(s, s.channels, Divisor(), false, leave);
  __syncthreads();
  if (s.blocks > 1) {
    exchange_entries(s, memory, share.rank, s.channels);
    for (int c = threadIdx.x; c < s.channels; c += kChannelThreads) {
      NumberPair<A> total{A(0), A(0)};
      for (int block = 0; block < s.blocks; ++block) {
        const NumberPair<A> of = memory.entries[block * s.channels + c];
        total.first += of.first;
        total.second += of.second;
      }
      settle(c, total);
    }
    __syncthreads();
  }
  const int lanes = memory.lanes_for(s.groups), lane = threadIdx.x & (lanes - 1);
  const int of_warp = (threadIdx.x & ~(kWarp - 1)) / lanes, of_group = static_cast<int>(s.by_group.size);
  for (int first = 0; first + of_warp < s.groups; first += kChannelThreads / lanes) {
    const int group = first + static_cast<int>(threadIdx.x) / lanes;
    NumberPair<A> total{A(0), A(0)};
    for (int i = lane; i < of_group && group < s.groups; i += lanes) {
      total.first += memory.entries[group * of_group + i].first;
      total.second += memory.entries[group * of_group + i].second;
    }
    total = {sum_of_helpers(total.first, lanes), sum_of_helpers(total.second, lanes)};
    if (lane != 0 || group >= s.groups) continue;
    if (!weighted && share.rank == 0) store_gradients<T>(p, share.first_group + group, total);
    const SlabParameters<A> own = memory.parameters[group * of_group];
    const A elements = static_cast<A>(s.rows) * static_cast<A>(of_group);
    const A factor = p.frozen ? A(0) : channel_scale(own.rstd, weighted ? A(1) : own.weight) / elements;
    memory.results[group] = {factor * total.first, factor * total.second * own.rstd};  // of x - mean instead of xhat
  }
  __syncthreads();
  A c1[kWidth], c2[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const NumberPair<A> of = memory.results[share.group_of(share.column + j)];
    c1[j] = of.first;
    c2[j] = of.second;
  }
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    const int64_t at = share.offset + k * share.step();
    A dh[kWidth], centred[kWidth];
    slopes.template differentiate<true>(k, at, dh, centred);
    if (p.daddend.data != nullptr) store_pack_streaming(static_cast<T*>(p.daddend.data) + at, to_pack<T>(dh));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dh[j] = normact::channel_input_gradient(dh[j], centred[j], slopes.scale[j], c1[j], c2[j]);
    }
    store_pack_streaming(static_cast<T*>(p.dx.data) + at, to_pack<T>(dh));
  }
}

}  // namespace normact::cuda
