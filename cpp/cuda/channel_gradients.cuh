// SPDX-License-Identifier: Apache-2.0
// dweight and dbias of a norm whose sets are not channels, or the table of sums of a batch norm in parts: sums of the
// entries of all batches. A launch of its own, or blocks of a second pass, which is a launch already. Where batches are
// many, a launch before it makes few entries of them (channel_chunks.cuh).
#pragma once

#include "cuda/channel_slopes.cuh"
#include "cuda/channel_sums.cuh"

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

/// The sum of pairs at(0) .. at(count - 1), to all lanes of a warp: of any number of them without long chains, which
/// fp32 would not bear.
template <class A, class At>
__device__ __forceinline__ NumberPair<A> warp_sum_of_pairs(int64_t count, At at) {
  constexpr int kApart = 4, kTerms = 16;
  NumberPair<A> total{A(0), A(0)};
  for (int64_t begin = threadIdx.x % kWarp; begin < count; begin += kTerms * kApart * kWarp) {
    NumberPair<A> sum[kApart] = {};
    const int64_t end = min(begin + kTerms * kApart * kWarp, count);
    for (int64_t first = begin; first < end; first += kApart * kWarp) {
#pragma unroll
      for (int k = 0; k < kApart; ++k) {
        if (first + k * kWarp >= end) continue;
        const NumberPair<A> of = at(first + k * kWarp);
        sum[k].first += of.first;
        sum[k].second += of.second;
      }
    }
    total.first += (sum[0].first + sum[1].first) + (sum[2].first + sum[3].first);
    total.second += (sum[0].second + sum[1].second) + (sum[2].second + sum[3].second);
  }
  return {warp_sum(total.first), warp_sum(total.second)};
}

template <class T>
struct ChannelGradients {
  using A = Accumulator<T>;
  ChannelVector dweight, dbias;
  ChannelTable table;
  const NumberPair<A>* entries;
  int64_t batches, channels, parts;
  unsigned blocks;  // that it takes, a warp a channel; 0 if nothing is wanted

  /// What a problem asks for, of the entries that the launches before leave.
  ChannelGradients(const BackwardProblem<A>& p, ChannelPasses passes, const ChannelPlan& plan,
                   const NumberPair<A>* left)
      : dweight(p.dweight),
        dbias(p.dbias),
        table(passes == ChannelPasses::reduce ? p.sums : ChannelTable{}),
        entries(left),
        batches(plan.chunks > 0 ? plan.chunks : plan.batches),
        channels(p.geometry.channels),
        parts(plan.parts) {
    const bool gradients = dweight.data != nullptr || dbias.data != nullptr;
    const bool sets_are_channels = p.set == ChannelSet::channel && plan.units > 0;  // then the passes have them
    const bool wanted =
        passes == ChannelPasses::reduce || (passes == ChannelPasses::both && gradients && !sets_are_channels);
    blocks = wanted ? finish_blocks(channels) : 0;
  }

  /// The same as blocks of a second pass, if it has any.
  ChannelGradients beside(const ChannelPlan& plan) const {
    ChannelGradients gradients = *this;
    if (!plan.gradients_beside()) gradients.blocks = 0;
    return gradients;
  }

  /// A warp adds up the entries of a channel; zeros without any.
  __device__ __forceinline__ void add_up(unsigned block) const {
    const int64_t channel = warp_channel(block);
    if (channel >= channels) return;
    const NumberPair<A> sum = warp_sum_of_pairs<A>(batches * parts, [&](int64_t i) {
      const int64_t batch = parts == 1 ? i : i / parts;
      return handed<Arrival::there>(entries + (batch * channels + channel) * parts + (i - batch * parts));
    });
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
