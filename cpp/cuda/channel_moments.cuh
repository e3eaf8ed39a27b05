// SPDX-License-Identifier: Apache-2.0
// What a thread adds up of the channels that it owns, for their moments.
#pragma once

#include "cuda/channel_sums.cuh"

namespace normact::cuda {

/// A thread's sums of each of its channels, about its own first element (planes: the mean of its first access). Lanes
/// that belong together bring theirs to the mean of these numbers and add them up. With such a number for the mean,
/// squares are summed that exceed those about the mean by n times the square of what lies between: not more than n
/// times, and for data without outliers twice or so; a thread has some hundred elements.
template <class T, class Walk>
struct ThreadSums {
  using A = Accumulator<T>;
  static constexpr int kWidth = Walk::kWidth, kOwned = Walk::kOwned;

  A pivot[kOwned] = {}, sum[kOwned] = {}, square[kOwned] = {};
  int count = 0;  // elements of each channel

  /// The first access, of which `elements` are inside. The others are 0.
  __device__ __forceinline__ void begin(const A (&value)[kWidth], int elements) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) pivot[Walk::owner(j)] += value[j];
    if constexpr (Walk::kPlanes) pivot[0] /= static_cast<A>(elements);
  }
  /// inside(j): whether element j of the access is one of the `elements`.
  template <class Inside>
  __device__ __forceinline__ void add(const A (&value)[kWidth], int elements, Inside inside) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      A centred = value[j] - pivot[Walk::owner(j)];
      if (!inside(j)) centred = A(0);
      sum[Walk::owner(j)] += centred;
      square[Walk::owner(j)] += centred * centred;
    }
    count += elements;
  }
  /// Adds up what the lanes of a warp that belong together have: from, 2 * from, ... < to apart, powers of two. All
  /// threads of the warp.
  __device__ __forceinline__ void join_all(int from, int to) {
    A centre[kOwned], lanes = count > 0 ? A(1) : A(0);
    const A most = static_cast<A>(to) / static_cast<A>(from);  // a power of two
#pragma unroll
    for (int o = 0; o < kOwned; ++o) centre[o] = pivot[o] / most;  // their sum does not overflow
    join(from, to, [&](int offset) {
      lanes += __shfl_xor_sync(kFullWarp, lanes, offset);
#pragma unroll
      for (int o = 0; o < kOwned; ++o) centre[o] += __shfl_xor_sync(kFullWarp, centre[o], offset);
    });
    const A share = lanes > A(0) ? most * quick_reciprocal(lanes) : A(0), n = static_cast<A>(count);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      centre[o] *= share;
      move_centre(n, pivot[o] - centre[o], &sum[o], &square[o]);
      pivot[o] = centre[o];
    }
    join(from, to, [&](int offset) {
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
    const A n = static_cast<A>(count), share = quick_reciprocal(n);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Moments<A> moments = moments_about(pivot[o] - origin[o], sum[o], square[o], n, share);
      pivot[o] = moments.mean;
      square[o] = max(moments.m2, A(0));
    }
  }
};

}  // namespace normact::cuda
