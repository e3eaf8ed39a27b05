// SPDX-License-Identifier: Apache-2.0
// What a thread adds up of the channels that it owns, for their moments.
#pragma once

#include "cuda/channel_sums.cuh"

namespace normact::cuda {

/// A thread's sums of each of its channels, about a number of its data that is near their mean (begin). Where items
/// are kept, that is the mean of the first accesses of all lanes that belong together, and these add up what they
/// have; else it is the thread's own first element (planes: the mean of its first access), and moments merge by
/// Chan's formula. With an element for the mean, squares are summed that exceed those about the mean by n times the
/// square of what lies between: not more than n times, and for data without outliers twice or so; a thread has some
/// hundred elements. Sums that go on over tiles of a group are about the first one's: as many times more as there
/// are.
template <class T, class Walk>
struct ThreadSums {
  using A = Accumulator<T>;
  using Spot = typename Walk::Spot;
  static constexpr int kWidth = Walk::kWidth, kOwned = Walk::kOwned;

  A pivot[kOwned] = {}, sum[kOwned] = {}, square[kOwned] = {};
  int count = 0;  // elements of each channel

  __device__ __forceinline__ void begin(const A (&value)[kWidth], int elements) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) pivot[Walk::owner(j)] += value[j];
    if constexpr (Walk::kPlanes) pivot[0] /= static_cast<A>(elements);
  }
  /// All threads of a warp.
  __device__ __forceinline__ void begin_together(const ChannelSpace& s, const Walk& walk, const KeptPacks& kept) {
    *this = ThreadSums();
    int elements = 0;
    Spot first;
    if (walk.peek(&first)) {
      A value[kWidth];
      walk.get(load_shared_pack<T>(kept.at(0, 0)), value);
      elements = walk.count(first);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) pivot[Walk::owner(j)] += walk.inside(first, j) ? value[j] : A(0);
    }
    join(s, [&](int offset) {
      elements += __shfl_xor_sync(kFullWarp, elements, offset);
#pragma unroll
      for (int o = 0; o < kOwned; ++o) pivot[o] += __shfl_xor_sync(kFullWarp, pivot[o], offset);
    });
    const A share = elements > 0 ? A(1) / static_cast<A>(elements) : A(0);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) pivot[o] *= share;
  }
  __device__ __forceinline__ void add(const Walk& walk, const Spot& spot, const A (&value)[kWidth], int elements) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      A centred = value[j] - pivot[Walk::owner(j)];
      if (!walk.inside(spot, j)) centred = A(0);
      sum[Walk::owner(j)] += centred;
      square[Walk::owner(j)] += centred * centred;
    }
    count += elements;
  }
  /// All threads of a warp: those of the lanes that began together.
  __device__ __forceinline__ void join_all(const ChannelSpace& s) {
    join(s, [&](int offset) {
      count += __shfl_xor_sync(kFullWarp, count, offset);
#pragma unroll
      for (int o = 0; o < kOwned; ++o) {
        sum[o] += __shfl_xor_sync(kFullWarp, sum[o], offset);
        square[o] += __shfl_xor_sync(kFullWarp, square[o], offset);
      }
    });
  }
  /// To mean (in pivot, from `origin` on) and sum of squares about it.
  __device__ __forceinline__ void finish(const A (&origin)[kOwned]) {
    if (count == 0) return;
    const A n = static_cast<A>(count), share = A(1) / n;
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Moments<A> moments = moments_about(pivot[o] - origin[o], sum[o], square[o], n, share);
      pivot[o] = moments.mean;
      square[o] = max(moments.m2, A(0));
    }
  }
};

}  // namespace normact::cuda
