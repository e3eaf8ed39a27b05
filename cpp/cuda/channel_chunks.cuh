// SPDX-License-Identifier: Apache-2.0
// Few entries of each channel in the place of those of many batches: gradients of parameters, or averages for running
// statistics, of norms whose sets are of one sample.
#pragma once

#include "cuda/channel_gradients.cuh"
#include "math/cascade_sum.h"

namespace normact::cuda {

/// What is added up of an entry: sums as they are; of moments the mean and the variance.
template <class A>
__device__ __forceinline__ NumberPair<A> summed(const NumberPair<A>& of) {
  return of;
}
template <class A>
__device__ __forceinline__ NumberPair<A> summed(const MomentsEntry<A>& of) {
  return {of.mean + of.origin, unbiased_variance(of.moments())};
}

/// Entries of batches, a row of columns each: an entry of a column is the first of `step`.
template <class Entry>
struct ChannelChunks {
  const Entry* entries;
  int64_t batches, columns, step, batches_a_chunk;
  int lines = columns < kChannelThreads ? kChannelThreads / static_cast<int>(columns) : 1;     // of a block at a time
  unsigned blocks = static_cast<unsigned>((columns + kChannelThreads - 1) / kChannelThreads);  // of a chunk
};

/// Work     a block a chunk of batches, of 256 columns or of all. A thread has the batches of a line; one of each
///          column adds up the lines.
/// Bytes    entries are read once.
/// Barriers one.
template <class A, class Entry>
__global__ void __launch_bounds__(kChannelThreads)
    channel_chunks_kernel(const __grid_constant__ ChannelChunks<Entry> chunks, NumberPair<A>* to) {
  __shared__ NumberPair<A> left[kChannelThreads];
  const int64_t width = min(chunks.columns, static_cast<int64_t>(kChannelThreads));
  const int line = static_cast<int>(threadIdx.x / width);
  const unsigned chunk = blockIdx.x / chunks.blocks;
  const int64_t column =
      static_cast<int64_t>(blockIdx.x - chunk * chunks.blocks) * kChannelThreads + (threadIdx.x - line * width);
  const int64_t begin = chunk * chunks.batches_a_chunk;
  const int64_t end = min(begin + chunks.batches_a_chunk, chunks.batches);
  const bool works = line < chunks.lines && column < chunks.columns;
  CascadeSum<A> first, second;
  start_after_previous();
#pragma unroll 4
  for (int64_t batch = begin + line; batch < end && works; batch += chunks.lines) {
    const auto of = summed(handed<Arrival::there>(chunks.entries + (batch * chunks.columns + column) * chunks.step));
    first.add(of.first);
    second.add(of.second);
  }
  left[threadIdx.x] = {first.total(), second.total()};
  __syncthreads();
  if (line > 0 || !works) return;
  first = second = CascadeSum<A>();
  for (int other = 0; other < chunks.lines; ++other) {
    const NumberPair<A> of = left[other * width + threadIdx.x];
    first.add(of.first);
    second.add(of.second);
  }
  to[chunk * chunks.columns + column] = {first.total(), second.total()};
}

}  // namespace normact::cuda
