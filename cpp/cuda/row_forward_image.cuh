// SPDX-License-Identifier: Apache-2.0
// Row norm forward of images: variant image (row_image.cuh).
//
// Work     a persistent grid; a cluster has one image after the other. A thread sees the same rows in all its packs.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Pipeline as soon as a thread has written a pack of y, it starts copying what the next image has in its place.
// Barriers of the block: layer seven, rms four an image, five more in the rare one whose moments are summed again;
//          of the cluster, where it has several blocks, two.
// Sums     about a number near each row's mean; their order depends on the columns alone.
#pragma once

#include "cuda/row_image.cuh"

namespace normact::cuda {

/// Puts s = round(x + residual) in the place of x, and writes it to residual_out.
template <class T>
__device__ __forceinline__ void add_residual(const RowForward& p, const ImageShare<T>& share, int image) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>, kTogether = 4;  // loads do not pass the stores before them
  const T* const from = image_in<const T>(p.residual, p.geometry, image);
  T* const to = image_in<T>(p.residual_out, p.geometry, image);
#pragma unroll 1
  for (int begin = 0; begin < share.count; begin += kTogether) {
    Pack<T> more[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i < share.count) more[i] = load_pack(share.in(from, begin + i));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int k = begin + i;
      if (k >= share.count) break;
      A value[kSize], addend[kSize];
      unpack(load_shared_pack<T>(share.slot(0, k)), value);
      unpack(more[i], addend);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] += addend[j];
      const Pack<T> rounded = to_pack<T>(value);
      store_shared_pack(share.slot(0, k), rounded);
      store_pack(share.in(to, k), rounded);
    }
  }
}

/// A number near a mean that deviations are told from. Of 16 bits, so that deviations of these are exact: else all
/// would be rounded alike, and their sum be off by what they were.
template <class T>
__device__ __forceinline__ Accumulator<T> as_centre(Accumulator<T> mean) {
  return convert<Accumulator<T>>(convert<T>(finite_or_zero(mean)));
}

/// Centres for the block's part of each row: the means of eight of its elements.
template <class T>
__device__ __forceinline__ void guess_means(const ImageSplit& s, const ImageShare<T>& share,
                                            const ImageMemory<T>& memory) {
  using A = Accumulator<T>;
  constexpr int kSamples = 8;
  const T* const part = reinterpret_cast<const T*>(image_shared);
  for (int row = threadIdx.x; row < s.places; row += s.threads) {
    A of[kSamples];
#pragma unroll
    for (int i = 0; i < kSamples; ++i) {
      const int band = share.bands * i / kSamples;
      of[i] = A(1.0 / kSamples) * finite_or_zero(convert<A>(part[band * s.band_packs * kPackSize<T> + row]));
    }
#pragma unroll
    for (int half = kSamples / 2; half > 0; half /= 2) {  // pairs, so that the mean of equal numbers is exact
#pragma unroll
      for (int i = 0; i < half; ++i) of[i] += of[i + half];
    }
    memory.results.first(row) = as_centre<T>(of[0]);
  }
}

/// The moments of the block's part of each row, in its entries; of an rms norm the sum of squares alone. About a guess
/// of the mean, or where that proves to be far from it, once more about the mean. All threads, behind a barrier; the
/// entries need one.
template <class T, NormKind kKind>
__device__ __forceinline__ void find_moments(const ImageSplit& s, const ImageShare<T>& share,
                                             const ImageMemory<T>& memory) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  SumPair<A>* const own = memory.entries(s, share.rank);
  if constexpr (kLayer) {
    guess_means(s, share, memory);
    __syncthreads();
  }
  const A elements = static_cast<A>(share.columns_of(share.rank)), reciprocal = quick_reciprocal(elements);
  for (bool first = true;; first = false) {
    A centre[kSize], sum[kSize] = {}, square[kSize] = {};
#pragma unroll
    for (int j = 0; j < kSize; ++j) centre[j] = kLayer ? memory.results.first(share.row(j)) : A(0);
#pragma unroll 2
    for (int k = 0; k < share.count; ++k) {
      A value[kSize];
      unpack(load_shared_pack<T>(share.slot(0, k)), value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if constexpr (kLayer) {
          value[j] -= centre[j];
          sum[j] += value[j];
        }
        square[j] += value[j] * value[j];
      }
    }
    if constexpr (kLayer) {
      memory.sum_rows(s, share, sum, [&](int row, A total) { own[row].first = total; });
      __syncthreads();
    }
    bool far = false;
    memory.sum_rows(s, share, square, [&](int row, A total) {
      if constexpr (!kLayer) {
        own[row] = {A(0), total};
        return;
      }
      const A about = memory.results.first(row);
      const Moments<A> m = moments_about(about, own[row].first, total, elements, reciprocal);
      far = far || is_far(m, about);
      own[row] = {m.mean, m.m2 < A(0) ? A(0) : m.m2};  // max() would lose NaN
    });
    if constexpr (!kLayer) return;
    if (!__syncthreads_or(first && far)) return;
    for (int row = threadIdx.x; row < s.places; row += s.threads) {
      memory.results.first(row) = as_centre<T>(own[row].first);
    }
    __syncthreads();
  }
}

/// Mean and rstd of each row from what all blocks of the cluster have, which the first writes where they are wanted.
template <class T, NormKind kKind, class A = Accumulator<T>>
__device__ __forceinline__ void settle_moments(const RowForward& p, const Scalars<A>& scalars, const ImageSplit& s,
                                               const ImageShare<T>& share, const ImageMemory<T>& memory, int image) {
  const int last = p.geometry.row_ndim - 1;
  for (int row = threadIdx.x; row < s.places; row += s.threads) {
    Moments<A> m{A(0), A(0), scalars.cols};
    if constexpr (kKind == NormKind::rms) {
      for (int block = 0; block < s.cluster; ++block) m.m2 += memory.entries(s, block)[row].second;
    } else {
      m = moments_of_sets(1, finite_or_zero(memory.entries(s, 0)[row].first), [&](auto visit) {
        for (int block = 0; block < s.cluster; ++block) {
          const SumPair<A> part = memory.entries(s, block)[row];
          visit(Moments<A>{part.first, part.second, static_cast<A>(share.columns_of(block))});
        }
      });
    }
    const A rstd = reciprocal_std(m.m2 * scalars.reciprocal_cols, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
    memory.results.set(row, m.mean, rstd);
    if (share.rank != 0) continue;
    if (p.mean.data != nullptr) image_in<A>(p.mean, p.geometry, image)[row * p.mean.row_stride[last]] = m.mean;
    if (p.rstd.data != nullptr) image_in<A>(p.rstd, p.geometry, image)[row * p.rstd.row_stride[last]] = rstd;
  }
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(image_threads(true, true))
    row_forward_image_kernel(const __grid_constant__ RowForward p, const Scalars<Accumulator<T>> scalars,
                             const __grid_constant__ ImageSplit s) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  const ImageShare<T> share(s);
  const ImageMemory<T> memory(s);
  const int step = static_cast<int>(gridDim.x) / s.cluster;
  int image = static_cast<int>(blockIdx.x) / s.cluster;
  SumPair<A>* const parameters = reinterpret_cast<SumPair<A>*>(image_shared + s.parameters_at);
  entries_are_read(s);  // none yet, but the block is there
  start_after_previous();
  share.copy(0, image_in<const T>(p.x, p.geometry, image));
  for (int c = threadIdx.x; c <= s.cols_a_block(); c += s.threads) {
    const int column = share.first_column() + c;
    const bool biased = p.bias.data != nullptr && column < p.geometry.cols;
    parameters[c] = {weight_of_column<T>(p, p.weight, scalars.weight_offset, column),
                     biased ? Parameter<T>(p.bias).at(column * p.bias.col_stride[0]) : A(0)};
  }
  for (; image < s.images; image += step) {
    wait_all_copies();
    if (p.residual.data != nullptr) add_residual(p, share, image);
    __syncthreads();
    find_moments<T, kKind>(s, share, memory);
    if constexpr (kKind == NormKind::rms) __syncthreads();
    begin_exchange(s, memory, share.rank);
    end_exchange(s);
    settle_moments<T, kKind>(p, scalars, s, share, memory, image);
    __syncthreads();
    const int next = image + step;
    if (next < s.images) entries_are_read(s);

    A mean[kSize], rstd[kSize];
    memory.results.get(share, mean, rstd);
    T* const y = image_in<T>(p.y, p.geometry, image);
    const T* const next_x = image_in<const T>(p.x, p.geometry, next);
#pragma unroll 2
    for (int k = 0; k < share.count; ++k) {
      const SumPair<A>* const of = parameters + share.column_of(k);
      A value[kSize], weight[kSize], bias[kSize];
      unpack(load_shared_pack<T>(share.slot(0, k)), value);
      share.spread(of[0].first, of[1].first, weight);
      share.spread(of[0].second, of[1].second, bias);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean[j], rstd[j]), weight[j], bias[j]);
      store_pack(share.in(y, k), to_pack<T>(value));
      if (next < s.images) copy_async(share.slot(0, k), share.in(next_x, k));
    }
  }
}

}  // namespace normact::cuda
