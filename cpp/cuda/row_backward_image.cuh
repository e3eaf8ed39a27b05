// SPDX-License-Identifier: Apache-2.0
// Row norm backward of images that a cluster keeps: variant image (row_image.cuh).
//
// Work     a persistent grid; a cluster has one image after the other. A thread sees the same rows in all its packs,
//          of each of which it leaves the parameter gradients of its columns; a thread a column adds these up.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; a cluster leaves a row of parameter
//          sums in the workspace, and parameter_sum.cuh adds these up in a fixed order.
// Pipeline as soon as a thread has written a pack of dx, it starts copying what the next image has in place of its x
//          and dy.
// Barriers of the block seven an image (rms: five); of the cluster, where it has several blocks, two.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_factors.cuh"
#include "cuda/row_image.cuh"

namespace normact::cuda {

/// The weights of a slice's columns, and of the next one, to shared memory.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ const A* keep_weights(const RowBackward& p, const Scalars<A>& scalars, const ImageSplit& s,
                                                 const ImageShare<T>& share) {
  A* const weights = reinterpret_cast<A*>(image_shared + s.weights_at);
  for (int c = threadIdx.x; c <= s.slice_cols(); c += s.threads) {
    weights[c] = weight_of_column<T>(p, p.weight, scalars.weight_offset, share.first_column() + c);
  }
  return weights;
}

/// The sums of a slice's columns, in shared memory.
template <class T>
struct ImageColumns {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  SumPair<A>* of_packs;  // of an image
  SumPair<double>* of_images;

  __device__ __forceinline__ explicit ImageColumns(const ImageSplit& s)
      : of_packs(reinterpret_cast<SumPair<A>*>(image_shared + s.scratch_at)),
        of_images(reinterpret_cast<SumPair<double>*>(image_shared + s.totals_at)) {
    for (int column = threadIdx.x; column < s.slice_cols(); column += s.threads) of_images[column] = {0.0, 0.0};
  }
  /// What a thread has of its pack k, of those that are added up together, from of_packs[at] on.
  template <class Cut>
  __device__ __forceinline__ void put(const ImageSplit& s, const ImageShare<T>& share, int at, Cut cut, int k,
                                      const SumPair<A> (&sums)[2]) const {
    SumPair<A>* const of_band = of_packs + at + (share.line + k * s.lines) * s.band_sums();
    of_band[share.pack] = sums[0];
    if (cut() && share.split < kSize) of_band[s.band_packs + share.column] = sums[1];
  }
  /// Adds the sums of an image's bands from `first` on, of the slice, to those of all images. All threads, behind a
  /// barrier.
  __device__ __forceinline__ void add_up(const ImageSplit& s, const ImageShare<T>& share, int at, int first,
                                         int bands) const {
    constexpr int kHelpers = 4;
    const int columns = min(bands, share.bands_of(share.slice) - first) << s.band_log;
    const int helper = static_cast<int>(threadIdx.x) % kHelpers;
    for (int some = 0; some < columns; some += s.threads / kHelpers) {
      const int column = some + static_cast<int>(threadIdx.x) / kHelpers;
      SumPair<A> sum{A(0), A(0)};
      if (column < columns) {
        const int of_band = column & (s.band_cols() - 1), begin = of_band * s.places;
        const SumPair<A>* const from = of_packs + at + (column >> s.band_log) * s.band_sums();
        if (helper == 0 && of_band > 0) sum = from[s.band_packs + of_band - 1];
#pragma unroll 4
        for (int pack = (begin + kSize - 1) / kSize + helper; pack * kSize < begin + s.places; pack += kHelpers) {
          sum = {sum.first + from[pack].first, sum.second + from[pack].second};
        }
      }
      sum = {sum_of_helpers(sum.first, kHelpers), sum_of_helpers(sum.second, kHelpers)};
      if (helper > 0 || column >= columns) continue;
      SumPair<double>& total = of_images[(first << s.band_log) + column];
      total = {total.first + sum.first, total.second + sum.second};
    }
  }
  /// Writes those of all images. All threads, behind a barrier.
  __device__ __forceinline__ void leave(const ImageSplit& s, const ImageShare<T>& share,
                                        const Partials<A>& partials) const {
    const int columns = share.columns_of(share.slice);
    for (int column = threadIdx.x; column < columns; column += s.threads) {
      const SumPair<double> of = of_images[column];
      const int to = share.first_column() + column;
      if (partials.dweight != nullptr) partials.dweight[to] = static_cast<A>(of.first);
      if (partials.dbias != nullptr) partials.dbias[to] = static_cast<A>(of.second);
    }
  }
};

/// Starts copying mean (0, of rms) and rstd of the rows of an image to shared memory.
template <class A>
__device__ __forceinline__ void copy_statistics(const RowBackward& p, const ImageSplit& s, int image,
                                                const BandNumbers<A>& means, const BandNumbers<A>& rstds) {
  const int last = p.geometry.row_ndim - 1;
  const bool centred = p.mean.data != nullptr;
  const A* const mean = image_in<const A>(p.mean, p.geometry, image);
  const A* const rstd = image_in<const A>(p.rstd, p.geometry, image);
  for (int row = threadIdx.x; row < s.places; row += s.threads) {
    for (int at = row; at < s.places << s.band_log; at += s.places) {
      copy_async<sizeof(A)>(shared_address(means.numbers + at), mean + row * p.mean.row_stride[last], centred);
      copy_async<sizeof(A)>(shared_address(rstds.numbers + at), rstd + row * p.rstd.row_stride[last], true);
    }
  }
}

/// The sums of g * (x - mean) and, of a layer norm, of g over a thread's part of each of its rows, g = dy * weight.
template <class T, NormKind kKind>
struct ImageSums {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  A product[kSize] = {}, gradient[kSize] = {};

  /// Adds those of the packs begin .. end - 1. used(cut, k, columns) is called behind each: what it has of dy * xhat
  /// and dy in its column, and in the next one.
  template <class Packs, class Used>
  __device__ __forceinline__ void add(const ImageShare<T>& share, const BandNumbers<A>& means,
                                      const BandNumbers<A>& rstds, const A* weights, const Packs& packs, int begin,
                                      int end, Used used) {
    A mean[kSize], rstd[kSize];
    if constexpr (kKind == NormKind::layer) means.get(share, mean);
    rstds.get(share, rstd);
    share.visit([&](auto cut) {
#pragma unroll 2
      for (int k = begin; k < end; ++k) {
        const A* const of = weights + share.column_of(k);
        Pack<T> pack[2];
        packs.fetch(k, pack);
        A x[kSize], dy[kSize], weight[kSize];
        unpack(pack[0], x);
        unpack(pack[1], dy);
        share.template spread<cut()>(of[0], of[cut() ? 1 : 0], weight);
        SumPair<A> columns[2] = {};
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const A term = (kKind == NormKind::layer ? x[j] - mean[j] : x[j]) * dy[j];
          product[j] += weight[j] * term;
          if constexpr (kKind == NormKind::layer) gradient[j] += weight[j] * dy[j];
          if (!cut() || j < share.split) {
            columns[0] = {columns[0].first + term * rstd[j], columns[0].second + dy[j]};
          } else {
            columns[1] = {columns[1].first + term * rstd[j], columns[1].second + dy[j]};
          }
        }
        used(cut, k, columns);
      }
    });
  }
  /// Leaves those of g * xhat and of g over the slice's part of each row in `own`. All threads, behind a barrier.
  __device__ __forceinline__ void leave(const ImageSplit& s, const ImageShare<T>& share, const BandNumbers<A>& rstds,
                                        SumPair<A>* own) const {
    sum_rows(s, share, product, [&](int row, A total) { own[row] = {rstds.of(row) * total, A(0)}; });
    if constexpr (kKind == NormKind::layer) {
      __syncthreads();
      sum_rows(s, share, gradient, [&](int row, A total) { own[row].second = total; });
    }
  }
};

/// What a thread needs of its rows for dx (row_factors.cuh), in shared memory.
template <class T, NormKind kKind>
struct ImageFactors {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kCentred = RowFactors<T>::kOfCentred && kKind == NormKind::layer;

  BandNumbers<A> rstds, c1s, c2s, means;  // means: only with kCentred

  /// Of a row, from its sums.
  __device__ __forceinline__ void put(const ImageSplit& s, int row, A mean, A rstd, A reciprocal_cols,
                                      const SumPair<A>& sums) const {
    A c1, c2;
    RowFactors<T>::template of_row<kKind == NormKind::layer>(mean, rstd, reciprocal_cols, sums.first, sums.second, &c1,
                                                             &c2);
    rstds.put(s, row, rstd);
    c1s.put(s, row, c1);
    c2s.put(s, row, c2);
    if constexpr (kCentred) means.put(s, row, mean);
  }
  /// dx of the thread's packs, behind a barrier.
  template <class Packs>
  __device__ __forceinline__ void write(const RowBackward& p, const ImageShare<T>& share, const A* weights, int image,
                                        const Packs& packs) const {
    A rstd[kSize], c1[kSize], c2[kSize], mean[kSize];
    rstds.get(share, rstd);
    c1s.get(share, c1);
    c2s.get(share, c2);
    if constexpr (kCentred) means.get(share, mean);
    const RowGeometry& g = p.geometry;
    T* const dx = image_in<T>(p.dx, g, image);
    const T* const addends = image_in<const T>(p.dresidual, g, image);
    share.visit([&](auto cut) {
#pragma unroll 2
      for (int k = 0; k < share.count; ++k) {
        const A* const of = weights + share.column_of(k);
        Pack<T> addend{};
        if (p.dresidual.data != nullptr) addend = load_pack(share.in(addends, k));
        Pack<T> pack[2];
        packs.fetch(k, pack);
        A x[kSize], gradient[kSize], weight[kSize];
        unpack(pack[0], x);
        unpack(pack[1], gradient);
        packs.used(k);
        share.template spread<cut()>(of[0], of[cut() ? 1 : 0], weight);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          if constexpr (kCentred) x[j] -= mean[j];
          gradient[j] = input_gradient(gradient[j] * weight[j], x[j], rstd[j], c1[j], c2[j]);
        }
        if (p.dresidual.data != nullptr) {
          unpack(addend, x);
#pragma unroll
          for (int j = 0; j < kSize; ++j) gradient[j] += x[j];
        }
        store_pack(share.in(dx, k), to_pack<T>(gradient));
      }
    });
  }
};

template <class T, NormKind kKind>
__global__ void __launch_bounds__(image_threads(false, true))
    row_backward_image_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                              const __grid_constant__ ImageSplit s, void* partials) {
  using A = Accumulator<T>;
  const ImageShare<T> share(s);
  const ImageEntries<SumPair<A>> entries{s};
  const bool gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const int step = s.image_step(), cluster = s.first_image();
  // Of this image and of the next.
  const auto means_of = [&](int parity) { return BandNumbers<A>(s, 2 * parity); };
  const auto rstds_of = [&](int parity) { return BandNumbers<A>(s, 2 * parity + 1); };
  entries_are_read(s);  // none yet, but the block is there
  start_after_previous();
  int image = cluster, parity = 0;
  copy_statistics(p, s, image, means_of(0), rstds_of(0));
  KeptPacks<T, 2> packs{share, {image_in<const T>(p.x, p.geometry, image), image_in<const T>(p.dy, p.geometry, image)}};
  packs.copy();
  const A* const weights = keep_weights(p, scalars, s, share);
  const ImageColumns<T> columns(s);
  for (; image < s.images; image += step, parity ^= 1) {
    const int next = image + step < s.images ? image + step : -1;
    wait_all_copies();
    __syncthreads();
    const BandNumbers<A> means = means_of(parity), rstds = rstds_of(parity);
    if (next >= 0) copy_statistics(p, s, next, means_of(parity ^ 1), rstds_of(parity ^ 1));
    ImageSums<T, kKind> sums;
    sums.add(share, means, rstds, weights, packs, 0, share.count, [&](auto cut, int k, const SumPair<A>(&of)[2]) {
      if (gradients) columns.put(s, share, 0, cut, k, of);
    });
    if (gradients) {
      __syncthreads();
      columns.add_up(s, share, 0, 0, s.slice_bands);
      __syncthreads();
    }
    sums.leave(s, share, rstds, entries.of(share.slice));
    __syncthreads();
    begin_exchange(s, entries, share.slice);
    end_exchange(s);
    const ImageFactors<T, kKind> factors{rstds, BandNumbers<A>(s, 4), BandNumbers<A>(s, 5), means};
    for (int row = threadIdx.x; row < s.places; row += s.threads) {
      SumPair<A> sum{A(0), A(0)};
      for (int block = 0; block < s.slices; ++block) {
        const SumPair<A> of = entries.of(block)[row];
        sum = {sum.first + of.first, sum.second + of.second};
      }
      factors.put(s, row, means.of(row), rstds.of(row), scalars.reciprocal_cols, sum);
    }
    __syncthreads();
    if (next >= 0) entries_are_read(s);
    packs.next[0] = next >= 0 ? image_in<const T>(p.x, p.geometry, next) : nullptr;
    packs.next[1] = image_in<const T>(p.dy, p.geometry, next);
    factors.write(p, share, weights, image, packs);
  }
  if (gradients) columns.leave(s, share, Partials<A>(p, partials, step, cluster));
}

}  // namespace normact::cuda
