// SPDX-License-Identifier: Apache-2.0
// Row norm backward of images: variant image (row_image.cuh).
//
// Work     a persistent grid; a cluster has one image after the other. A thread sees the same rows in all its packs,
//          and adds up the parameter gradients of one of the block's columns, or of a part of its rows.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; a cluster leaves a row of parameter
//          sums in the workspace, and parameter_sum.cuh adds these up in a fixed order.
// Pipeline as soon as a thread has written a pack of dx, it starts copying what the next image has in place of its x
//          and dy. While a cluster exchanges the sums of rows, its blocks add up those of columns.
// Barriers of the block six an image (rms: four); of the cluster, where it has several blocks, two.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_factors.cuh"
#include "cuda/row_image.cuh"

namespace normact::cuda {

/// The statistics of a thread's rows.
template <class T, NormKind kKind>
struct ImageStatistics {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  A mean[kSize], rstd[kSize];  // 0, of rms

  /// from: RowNumbers, or what has the same get().
  template <class Numbers>
  __device__ __forceinline__ ImageStatistics(const ImageShare<T>& share, const Numbers& from) {
    from.get(share, mean, rstd);
  }
  __device__ __forceinline__ void get_rstd(A (&value)[kSize]) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = rstd[j];
  }
  /// x to x - mean.
  __device__ __forceinline__ void centre(A (&value)[kSize]) const {
    if constexpr (kLayer) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] -= mean[j];
    }
  }
};

/// The sums of g * xhat and, of a layer norm, of g over a thread's part of each of its rows, g = dy * weight.
template <class T, NormKind kKind>
struct ImageSums {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  A product[kSize] = {}, gradient[kSize] = {};

  /// A pack, whose first column has the weight at `of`.
  __device__ __forceinline__ void add(const ImageShare<T>& share, const ImageStatistics<T, kKind>& rows, const A* of,
                                      const Pack<T>& x_pack, const Pack<T>& dy_pack) {
    A x[kSize], g[kSize], weight[kSize];
    unpack(x_pack, x);
    unpack(dy_pack, g);
    share.spread(of[0], of[1], weight);
    rows.centre(x);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      g[j] *= weight[j];
      product[j] += g[j] * x[j];  // to be scaled by rstd
      if constexpr (kKind == NormKind::layer) gradient[j] += g[j];
    }
  }
  /// Leaves the sums over the block's part of each row in its entries. All threads.
  __device__ __forceinline__ void leave(const ImageSplit& s, const ImageShare<T>& share, const ImageMemory<T>& memory,
                                        const ImageStatistics<T, kKind>& rows) {
    SumPair<A>* const own = memory.entries(s, share.rank);
#pragma unroll
    for (int j = 0; j < kSize; ++j) product[j] *= rows.rstd[j];
    memory.sum_rows(s, share, product, [&](int row, A total) { own[row] = {total, A(0)}; });
    if constexpr (kKind == NormKind::layer) {
      __syncthreads();
      memory.sum_rows(s, share, gradient, [&](int row, A total) { own[row].second = total; });
    }
  }
};

/// What all blocks of the cluster have of a row.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ SumPair<A> sum_of_entries(const ImageSplit& s, const ImageMemory<T>& memory, int row) {
  SumPair<A> sum = memory.entries(s, 0)[row];
  for (int block = 1; block < s.cluster; ++block) {
    const SumPair<A> of = memory.entries(s, block)[row];
    sum = {sum.first + of.first, sum.second + of.second};
  }
  return sum;
}

/// These sums of the packs in shared memory.
template <class T, NormKind kKind, class A = Accumulator<T>>
__device__ __forceinline__ void reduce_image(const ImageSplit& s, const ImageShare<T>& share,
                                             const ImageMemory<T>& memory, const ImageStatistics<T, kKind>& rows,
                                             const A* weights) {
  ImageSums<T, kKind> sums;
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    sums.add(share, rows, weights + share.column_of(k), load_shared_pack<T>(share.slot(0, k)),
             load_shared_pack<T>(share.slot(1, k)));
  }
  sums.leave(s, share, memory, rows);
}

/// The parameter gradients of a column of the block, of a part of the rows of all images.
template <class T>
struct ImageColumn {
  using A = Accumulator<T>;
  int column, first, end;  // rows first .. end - 1; none of threads that are left over
  A dweight[1] = {A(0)}, dbias[1] = {A(0)};

  __device__ __forceinline__ ImageColumn(const ImageSplit& s, int columns) {
    const int helpers = s.threads / s.cols_a_block();
    const int helper = static_cast<int>(s.by_cols.quotient(threadIdx.x));
    column = static_cast<int>(threadIdx.x) - helper * s.cols_a_block();
    const bool any = helper < helpers && column < columns;
    first = any ? helper * s.places / helpers : 0;
    end = any ? (helper + 1) * s.places / helpers : 0;
  }
  /// All of the block's packs are there.
  __device__ __forceinline__ void add(const ImageSplit& s, const RowNumbers<A>& statistics) {
    const T* const x = reinterpret_cast<const T*>(image_shared) + column * s.places;
    const T* const dy = reinterpret_cast<const T*>(image_shared + s.part_bytes) + column * s.places;
    for (int row = first; row < end;) {  // numbers of up to 32 rows follow each other
      const int stop = min(end, (row / 32 + 1) * 32);
      const A* number = &statistics.first(row);
      A of_x = A(0), of_dy = A(0);
#pragma unroll 4
      for (; row < stop; ++row, ++number) {
        const A g = convert<A>(dy[row]);
        of_x += g * normalized(convert<A>(x[row]), number[0], number[s.apart]);
        of_dy += g;
      }
      dweight[0] += of_x;
      dbias[0] += of_dy;
    }
  }
  /// Writes the sums of a column from those of its threads, in a fixed order. All threads, behind a barrier.
  __device__ __forceinline__ void leave(const ImageSplit& s, const ImageMemory<T>& memory, const Partials<A>& partials,
                                        int first_column, int columns) const {
    const int helpers = s.threads / s.cols_a_block(), used = helpers * s.cols_a_block();
    auto* const sums = reinterpret_cast<SumPair<A>*>(memory.scratch);
    if (static_cast<int>(threadIdx.x) < used) sums[threadIdx.x] = {dweight[0], dbias[0]};
    __syncthreads();
    if (static_cast<int>(threadIdx.x) >= columns) return;
    SumPair<A> sum = sums[threadIdx.x];
    for (int helper = 1; helper < helpers; ++helper) {
      const SumPair<A> of = sums[threadIdx.x + helper * s.cols_a_block()];
      sum = {sum.first + of.first, sum.second + of.second};
    }
    if (partials.dweight != nullptr) partials.dweight[first_column + threadIdx.x] = sum.first;
    if (partials.dbias != nullptr) partials.dbias[first_column + threadIdx.x] = sum.second;
  }
};

/// dx of the thread's packs. As soon as packs of x and dy have been used, what the next image has in their place is on
/// its way.
template <class T, NormKind kKind, class A = Accumulator<T>>
__device__ __forceinline__ void write_image_gradients(const RowBackward& p, const Scalars<A>& scalars,
                                                      const ImageSplit& s, const ImageShare<T>& share,
                                                      const ImageMemory<T>& memory,
                                                      const ImageStatistics<T, kKind>& rows, const A* weights,
                                                      int image, int next) {
  constexpr int kSize = kPackSize<T>;
  constexpr int kSums = kKind == NormKind::layer ? 2 : 1;
  RowFactors<T> factors;
  {
    A sum[kSums][kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      sum[0][j] = memory.results.first(share.row(j));
      if constexpr (kSums > 1) sum[kSums - 1][j] = memory.results.second(share.row(j));
    }
    factors.find(rows, scalars.reciprocal_cols, sum);
  }
  const RowGeometry& g = p.geometry;
  T* const dx = image_in<T>(p.dx, g, image);
  const T* const addends = image_in<const T>(p.dresidual, g, image);
  const T* const next_x = image_in<const T>(p.x, g, next);
  const T* const next_dy = image_in<const T>(p.dy, g, next);
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    const A* const of = weights + share.column_of(k);
    Pack<T> addend{};
    if (p.dresidual.data != nullptr) addend = load_pack(share.in(addends, k));
    A x[kSize], gradient[kSize], weight[kSize];
    unpack(load_shared_pack<T>(share.slot(0, k)), x);
    unpack(load_shared_pack<T>(share.slot(1, k)), gradient);
    share.spread(of[0], of[1], weight);
    if constexpr (RowFactors<T>::kOfCentred) rows.centre(x);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      gradient[j] = input_gradient(gradient[j] * weight[j], x[j], factors.rstd[j], factors.c1[j], factors.c2[j]);
    }
    if (p.dresidual.data != nullptr) {
      unpack(addend, x);
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] += x[j];
    }
    store_pack(share.in(dx, k), to_pack<T>(gradient));
    if (next < s.images) {
      copy_async(share.slot(0, k), share.in(next_x, k));
      copy_async(share.slot(1, k), share.in(next_dy, k));
    }
  }
}

/// The weights of a block's columns, and of the next one, to shared memory.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ A* keep_weights(const RowBackward& p, const Scalars<A>& scalars, const ImageSplit& s,
                                           const ImageShare<T>& share) {
  A* const weights = reinterpret_cast<A*>(image_shared + s.parameters_at);
  for (int c = threadIdx.x; c <= s.cols_a_block(); c += s.threads) {
    weights[c] = weight_of_column<T>(p, p.weight, scalars.weight_offset, share.first_column() + c);
  }
  return weights;
}

/// Starts copying mean (0, of rms) and rstd of the rows of an image to shared memory.
template <class A>
__device__ __forceinline__ void copy_statistics(const RowBackward& p, const ImageSplit& s, int image,
                                                const RowNumbers<A>& to) {
  const int last = p.geometry.row_ndim - 1;
  const bool centred = p.mean.data != nullptr;
  const A* const means = image_in<const A>(p.mean, p.geometry, image);
  const A* const rstds = image_in<const A>(p.rstd, p.geometry, image);
  for (int row = threadIdx.x; row < s.places; row += s.threads) {
    copy_async<sizeof(A)>(shared_address(&to.first(row)), means + row * p.mean.row_stride[last], centred);
    copy_async<sizeof(A)>(shared_address(&to.second(row)), rstds + row * p.rstd.row_stride[last], true);
  }
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(image_threads(false, true))
    row_backward_image_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                              const __grid_constant__ ImageSplit s, void* workspace, double* places) {
  using A = Accumulator<T>;
  const ImageShare<T> share(s);
  const ImageMemory<T> memory(s);
  const bool gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const int step = static_cast<int>(gridDim.x) / s.cluster, cluster = static_cast<int>(blockIdx.x) / s.cluster;
  // Of this image and of the next.
  const auto statistics_of = [&](int parity) {
    return RowNumbers<A>(s, s.statistics_at + parity * ((s.parameters_at - s.statistics_at) / 2));
  };
  entries_are_read(s);  // none yet, but the block is there
  start_after_previous();
  int image = cluster, parity = 0;
  copy_statistics(p, s, image, statistics_of(parity));
  share.copy(0, image_in<const T>(p.x, p.geometry, image));
  share.copy(1, image_in<const T>(p.dy, p.geometry, image));
  const A* const weights = keep_weights(p, scalars, s, share);
  ImageColumn<T> column(s, share.columns_of(share.rank));
  const ParameterPlaces<1> many(places);
  for (int number = 0; image < s.images; image += step, parity ^= 1, ++number) {
    const int next = image + step;
    wait_all_copies();
    __syncthreads();
    const RowNumbers<A> statistics = statistics_of(parity);
    const ImageStatistics<T, kKind> rows(share, statistics);
    reduce_image<T, kKind>(s, share, memory, rows, weights);
    __syncthreads();
    begin_exchange(s, memory, share.rank);
    if (gradients) column.add(s, statistics);
    many.after(number, column.dweight, column.dbias);
    if (next < s.images) copy_statistics(p, s, next, statistics_of(parity ^ 1));
    end_exchange(s);
    for (int row = threadIdx.x; row < s.places; row += s.threads) {
      const SumPair<A> sum = sum_of_entries(s, memory, row);
      memory.results.set(row, sum.first, sum.second);
    }
    __syncthreads();
    if (next < s.images) entries_are_read(s);
    write_image_gradients<T, kKind>(p, scalars, s, share, memory, rows, weights, image, next);
  }
  if (!gradients) return;
  many.give(column.dweight, column.dbias);
  column.leave(s, memory, Partials<A>(p, workspace, step, cluster), share.first_column(), share.columns_of(share.rank));
}

}  // namespace normact::cuda
