// SPDX-License-Identifier: Apache-2.0
// Row norm forward of images that a cluster keeps: variant image (row_image.cuh).
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

/// What a slice has of a row: its mean as a centre and the distance from it, as their sum would lose digits where means
/// are large, and the sum of squares about it (of an rms norm of the numbers themselves, and this alone).
template <class A>
struct SliceMoments {
  A centre, shift, m2;
};

/// A number near a mean that deviations are told from. Of 16 bits, so that deviations of these are exact: else all
/// would be rounded alike, and their sum be off by what they were.
template <class T>
__device__ __forceinline__ Accumulator<T> as_centre(Accumulator<T> mean) {
  return convert<Accumulator<T>>(convert<T>(finite_or_zero(mean)));
}

/// Centres for the slice's part of each row: the means of eight of its elements, in the first bands of the slice, so
/// many of which are in shared memory.
template <class T, class A>
__device__ __forceinline__ void guess_means(const ImageSplit& s, int bands, const BandNumbers<A>& centres) {
  constexpr int kSamples = 8;
  const T* const slice = reinterpret_cast<const T*>(image_shared);
  for (int row = threadIdx.x; row < s.places; row += s.threads) {
    A of[kSamples];
#pragma unroll
    for (int i = 0; i < kSamples; ++i) {
      const int column = ((bands * i / kSamples) << s.band_log) + (i & (s.band_cols() - 1));
      of[i] = A(1.0 / kSamples) * finite_or_zero(convert<A>(slice[column * s.places + row]));
    }
#pragma unroll
    for (int half = kSamples / 2; half > 0; half /= 2) {  // pairs, so that the mean of equal numbers is exact
#pragma unroll
      for (int i = 0; i < half; ++i) of[i] += of[i + half];
    }
    centres.put(s, row, as_centre<T>(of[0]));
  }
}

/// The moments of the slice's part of each row, in `own`; of an rms norm the sum of squares alone. About a guess of the
/// mean, from the first bands, or where that proves to be far from it, once more about the mean. next(k) gives the
/// packs in order, again(k) any of them once more. All threads, behind a barrier; `own` needs one.
template <class T, NormKind kKind, class A = Accumulator<T>, class Next, class Again>
__device__ __forceinline__ void find_moments(const ImageSplit& s, const ImageShare<T>& share, int bands,
                                             SliceMoments<A>* own, Next next, Again again) {
  constexpr int kSize = kPackSize<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  const BandNumbers<A> centres(s);
  if constexpr (kLayer) {
    guess_means<T>(s, bands, centres);
    __syncthreads();
  }
  const A elements = static_cast<A>(share.columns_of(share.slice)), reciprocal = quick_reciprocal(elements);
  for (bool first = true;; first = false) {
    A centre[kSize] = {}, sum[kSize] = {}, square[kSize] = {};
    if constexpr (kLayer) centres.get(share, centre);
#pragma unroll 2
    for (int k = 0; k < share.count; ++k) {
      A value[kSize];
      unpack(first ? next(k) : again(k), value);
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
      sum_rows(s, share, sum, [&](int row, A total) { own[row].shift = total; });
      __syncthreads();
    }
    bool far = false;
    sum_rows(s, share, square, [&](int row, A total) {
      if constexpr (!kLayer) {
        own[row] = {A(0), A(0), total};
        return;
      }
      const Moments<A> m = moments_about(A(0), own[row].shift, total, elements, reciprocal);
      far = far || is_far(m, A(0));
      own[row] = {centres.of(row), m.mean, m.m2 < A(0) ? A(0) : m.m2};  // max() would lose NaN
    });
    if constexpr (!kLayer) return;
    if (!__syncthreads_or(first && far)) return;
    for (int row = threadIdx.x; row < s.places; row += s.threads) {
      centres.put(s, row, as_centre<T>(own[row].centre + own[row].shift));
    }
    __syncthreads();
  }
}

/// Mean and rstd of each row, to shared memory, from part_of(row, slice), what the slices have of it. The first slice's
/// block writes them where they are wanted.
template <class T, NormKind kKind, class A = Accumulator<T>, class Parts>
__device__ __forceinline__ void settle_moments(const RowForward& p, const Scalars<A>& scalars, const ImageSplit& s,
                                               const ImageShare<T>& share, int image, const BandNumbers<A>& means,
                                               const BandNumbers<A>& rstds, Parts part_of) {
  const int last = p.geometry.row_ndim - 1;
  for (int row = threadIdx.x; row < s.places; row += s.threads) {
    Moments<A> m{A(0), A(0), scalars.cols};
    if constexpr (kKind == NormKind::rms) {
#pragma unroll 4
      for (int slice = 0; slice < s.slices; ++slice) m.m2 += part_of(row, slice).m2;
    } else {
      A pivot = A(0);  // about the mean, from which all are told
#pragma unroll 4
      for (int slice = 0; slice < s.slices; ++slice) {
        const SliceMoments<A> part = part_of(row, slice);
        pivot += (part.centre + part.shift) * static_cast<A>(share.columns_of(slice)) * scalars.reciprocal_cols;
      }
      pivot = finite_or_zero(pivot);
      m = moments_of_sets(1, A(0), [&](auto visit) {
#pragma unroll 4
        for (int slice = 0; slice < s.slices; ++slice) {
          const SliceMoments<A> part = part_of(row, slice);
          visit(Moments<A>{part.centre - pivot + part.shift, part.m2, static_cast<A>(share.columns_of(slice))});
        }
      });
      m.mean += pivot;
      means.put(s, row, m.mean);
    }
    const A rstd = reciprocal_std(m.m2 * scalars.reciprocal_cols, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
    rstds.put(s, row, rstd);
    if (share.slice != 0) continue;
    if (p.mean.data != nullptr) image_in<A>(p.mean, p.geometry, image)[row * p.mean.row_stride[last]] = m.mean;
    if (p.rstd.data != nullptr) image_in<A>(p.rstd, p.geometry, image)[row * p.rstd.row_stride[last]] = rstd;
  }
}

/// The weights and biases of a slice's columns, and of the next one, to shared memory.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ const SumPair<A>* keep_parameters(const RowForward& p, const Scalars<A>& scalars,
                                                             const ImageSplit& s, const ImageShare<T>& share) {
  SumPair<A>* const parameters = reinterpret_cast<SumPair<A>*>(image_shared + s.weights_at);
  for (int c = threadIdx.x; c <= s.slice_cols(); c += s.threads) {
    const int column = share.first_column() + c;
    const bool biased = p.bias.data != nullptr && column < p.geometry.cols;
    parameters[c] = {weight_of_column<T>(p, p.weight, scalars.weight_offset, column),
                     biased ? Parameter<T>(p.bias).at(column * p.bias.col_stride[0]) : A(0)};
  }
  return parameters;
}

/// y of the thread's packs, behind the barrier that settle_moments() needs.
template <class T, NormKind kKind, class A = Accumulator<T>, class Packs>
__device__ __forceinline__ void write_image(const ImageShare<T>& share, const BandNumbers<A>& means,
                                            const BandNumbers<A>& rstds, const SumPair<A>* parameters, T* y,
                                            const Packs& packs) {
  constexpr int kSize = kPackSize<T>;
  A mean[kSize] = {}, rstd[kSize];
  if constexpr (kKind == NormKind::layer) means.get(share, mean);
  rstds.get(share, rstd);
  share.visit([&](auto cut) {
#pragma unroll 2
    for (int k = 0; k < share.count; ++k) {
      const SumPair<A>* const of = parameters + share.column_of(k);
      Pack<T> pack[1];
      packs.fetch(k, pack);
      A value[kSize], weight[kSize], bias[kSize];
      unpack(pack[0], value);
      packs.used(k);
      share.template spread<cut()>(of[0].first, of[cut() ? 1 : 0].first, weight);
      share.template spread<cut()>(of[0].second, of[cut() ? 1 : 0].second, bias);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean[j], rstd[j]), weight[j], bias[j]);
      store_pack(share.in(y, k), to_pack<T>(value));
    }
  });
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(image_threads(true, true))
    row_forward_image_kernel(const __grid_constant__ RowForward p, const Scalars<Accumulator<T>> scalars,
                             const __grid_constant__ ImageSplit s) {
  using A = Accumulator<T>;
  const ImageShare<T> share(s);
  const ImageEntries<SliceMoments<A>> entries{s};
  const BandNumbers<A> means(s), rstds(s, 1);
  const int step = s.image_step();
  entries_are_read(s);  // none yet, but the block is there
  start_after_previous();
  KeptPacks<T, 1> packs{share, {image_in<const T>(p.x, p.geometry, s.first_image())}};
  packs.copy();
  const SumPair<A>* const parameters = keep_parameters(p, scalars, s, share);
  for (int image = s.first_image(); image < s.images; image += step) {
    wait_all_copies();
    if (p.residual.data != nullptr) add_residual(p, share, image);
    __syncthreads();
    const auto pack = [&](int k) { return load_shared_pack<T>(share.slot(0, k)); };
    find_moments<T, kKind>(s, share, share.bands_of(share.slice), entries.of(share.slice), pack, pack);
    if constexpr (kKind == NormKind::rms) __syncthreads();
    begin_exchange(s, entries, share.slice);
    end_exchange(s);
    settle_moments<T, kKind>(p, scalars, s, share, image, means, rstds,
                             [&](int row, int slice) { return entries.of(slice)[row]; });
    __syncthreads();
    const int next = image + step;
    if (next < s.images) entries_are_read(s);
    packs.next[0] = next < s.images ? image_in<const T>(p.x, p.geometry, next) : nullptr;
    write_image<T, kKind>(share, means, rstds, parameters, image_in<T>(p.y, p.geometry, image), packs);
  }
}

}  // namespace normact::cuda
