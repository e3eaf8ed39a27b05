// SPDX-License-Identifier: Apache-2.0
// dweight and dbias of a norm whose sets are not channels, or the table of sums of a batch norm in parts: sums of the
// entries of all batches. A launch of its own, or blocks of a second pass, which is a launch already.
#pragma once

#include "cuda/channel_slopes.cuh"
#include "cuda/channel_sums.cuh"
#include "math/cascade_sum.h"

namespace normact::cuda {

constexpr int kFinishWarps = kChannelThreads / kWarp;

/// The channel of this warp, of so many a block.
__device__ __forceinline__ int64_t warp_channel(unsigned block) {
  return static_cast<int64_t>(block) * kFinishWarps + threadIdx.x / kWarp;
}

/// Blocks with a warp for each channel.
inline unsigned finish_blocks(int64_t channels) {
  return static_cast<unsigned>((channels + kFinishWarps - 1) / kFinishWarps);
}

template <class T>
struct ChannelGradients {
  using A = Accumulator<T>;
  ChannelVector dweight, dbias;
  ChannelTable table;
  const NumberPair<A>* entries;
  int64_t batches, channels, parts;
  unsigned blocks;  // that it takes, a warp a channel; 0 if nothing is wanted

  /// What a problem asks for; `first_entries` are those that a first pass leaves.
  ChannelGradients(const BackwardProblem<A>& p, ChannelPasses passes, const ChannelPlan& plan,
                   const NumberPair<A>* first_entries)
      : dweight(p.dweight),
        dbias(p.dbias),
        table(passes == ChannelPasses::reduce ? p.sums : ChannelTable{}),
        entries(first_entries),
        batches(plan.batches),
        channels(p.geometry.channels),
        parts(plan.parts) {
    const bool gradients = dweight.data != nullptr || dbias.data != nullptr;
    const bool sets_are_channels = p.set == ChannelSet::channel && plan.units > 0;  // then the passes have them
    const bool wanted =
        passes == ChannelPasses::reduce || (passes == ChannelPasses::both && gradients && !sets_are_channels);
    blocks = wanted ? finish_blocks(channels) : 0;
  }

  /// A warp adds up the entries of a channel; zeros without any.
  __device__ __forceinline__ void add_up(unsigned block) const {
    const int64_t channel = warp_channel(block);
    if (channel >= channels) return;
    CascadeSum<A> first, second;
    const int64_t count = batches * parts;
    for (int64_t begin = threadIdx.x % kWarp; begin < count; begin += 16 * kWarp) {
      NumberPair<A> sum{A(0), A(0)};
#pragma unroll 4
      for (int64_t i = begin; i < begin + 16 * kWarp && i < count; i += kWarp) {
        const int64_t batch = parts == 1 ? i : i / parts;
        const auto entry = handed<Arrival::there>(entries + (batch * channels + channel) * parts + (i - batch * parts));
        sum.first += entry.first;
        sum.second += entry.second;
      }
      first.add(sum.first);
      second.add(sum.second);
    }
    const NumberPair<A> sum{warp_sum(first.total()), warp_sum(second.total())};
    if (threadIdx.x % kWarp != 0) return;
    if (dbias.data != nullptr) store_parameter<T>(dbias, channel * dbias.stride, sum.first);
    if (dweight.data != nullptr) store_parameter<T>(dweight, channel * dweight.stride, sum.second);
    if (table.data == nullptr) return;
    *table_at<A>(table, 0, channel) = sum.second;
    *table_at<A>(table, 1, channel) = sum.first;
  }
};

/// The gradients from what the passes before have left.
template <class T>
__global__ void __launch_bounds__(kChannelThreads)
    channel_gradients_kernel(const __grid_constant__ ChannelGradients<T> gradients) {
  wait_for_previous_kernel();
  gradients.add_up(blockIdx.x);
}

/// How many blocks of a second pass have parts; the others, which come last, add up gradients.
template <class T>
__device__ __forceinline__ unsigned blocks_of_parts(const ChannelGradients<T>& gradients) {
  return gridDim.x - gradients.blocks;
}

/// What the others do.
template <class T>
__device__ __forceinline__ void add_up_beside_parts(const ChannelGradients<T>& gradients) {
  start_after_previous();
  gradients.add_up(blockIdx.x - blocks_of_parts(gradients));
}

}  // namespace normact::cuda
