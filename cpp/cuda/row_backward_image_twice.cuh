// SPDX-License-Identifier: Apache-2.0
// Row norm backward of images that are read twice, as too few would be at work if a cluster kept them
// (row_backward_image.cuh): variant image, in two kernels and parameter_sum.cuh.
//
// Work     sums: a cluster has an image, a block some of its bands; the two sums of each row go to the workspace.
//          apply: a block has up to kImageBands bands a thread, in some images one after the other. So a thread adds up
//          the parameter gradients of the columns of its packs in registers.
// Bytes    x and dy are read twice, dresidual once, dx is written once; two sums a row, and a row of parameter sums for
//          each range of images.
// Order    apply begins with the last images, which are surest to be in the L2 cache.
// Barriers of the block: sums four (rms: three), and two of the cluster, where it has several blocks; apply one an
//          image, and two.
#pragma once

#include "cuda/row_backward_image.cuh"

namespace normact::cuda {

/// Statistics of a thread's rows in global memory.
template <class A>
struct StatisticsInPlace {
  const A* mean;  // null: 0
  const A* rstd;
  int64_t mean_step, rstd_step;

  __device__ __forceinline__ StatisticsInPlace(const RowBackward& p, int image)
      : mean(p.mean.data != nullptr ? image_in<const A>(p.mean, p.geometry, image) : nullptr),
        rstd(image_in<const A>(p.rstd, p.geometry, image)),
        mean_step(p.mean.row_stride[p.geometry.row_ndim - 1]),
        rstd_step(p.rstd.row_stride[p.geometry.row_ndim - 1]) {}
  template <class T, int kSize>
  __device__ __forceinline__ void get(const ImageShare<T>& share, A (&means)[kSize], A (&rstds)[kSize]) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      means[j] = mean != nullptr ? mean[share.row(j) * mean_step] : A(0);
      rstds[j] = rstd[share.row(j) * rstd_step];
    }
  }
};

/// All threads of the blocks that share an image.
__device__ __forceinline__ void cluster_barrier(const ImageSplit& s) {
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  cluster_arrive(s.cluster);
  cluster_wait(s.cluster);
#endif
}

/// What these blocks have of a row, each in entries of its own.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ SumPair<A> sum_over_cluster(const ImageSplit& s, const ImageMemory<T>& memory, int row) {
  SumPair<A> sum{A(0), A(0)};
#pragma unroll 4
  for (int block = 0; block < s.cluster; ++block) {
    const SumPair<A>* from = memory.entries(s, block) + row;
#if __CUDA_ARCH__ >= 900
    from = cg::this_cluster().map_shared_rank(from, block);
#endif
    const SumPair<A> of = *from;
    sum = {sum.first + of.first, sum.second + of.second};
  }
  return sum;
}

/// Packs of x and dy on their way to a thread.
template <class T>
struct ImagePacks {
  static constexpr int kTogether = 4;
  Pack<T> x[kTogether], dy[kTogether];

  __device__ __forceinline__ void load(const ImageShare<T>& share, const T* of_x, const T* of_dy, int first) {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + k >= share.count) break;
      x[k] = load_pack(share.in(of_x, first + k));
      dy[k] = load_pack(share.in(of_dy, first + k));
    }
  }
};

template <class T, NormKind kKind>
__global__ void __launch_bounds__(image_threads(false, false), 2)
    row_image_sums_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                          const __grid_constant__ ImageSplit s, SumPair<Accumulator<T>>* __restrict__ sums) {
  using A = Accumulator<T>;
  constexpr int kTogether = ImagePacks<T>::kTogether;
  const ImageShare<T> share(s);
  const ImageMemory<T> memory(s);
  const int image = static_cast<int>(blockIdx.x) / s.cluster;
  start_after_previous();
  const T* const x = image_in<const T>(p.x, p.geometry, image);
  const T* const dy = image_in<const T>(p.dy, p.geometry, image);
  ImagePacks<T> packs;
  packs.load(share, x, dy, 0);
  const ImageStatistics<T, kKind> rows(share, StatisticsInPlace<A>(p, image));
  const A* const weights = keep_weights(p, scalars, s, share);
  __syncthreads();
  ImageSums<T, kKind> own;
  for (int first = 0; first < share.count; first += kTogether) {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + k >= share.count) break;
      own.add(share, rows, weights + share.column_of(first + k), packs.x[k], packs.dy[k]);
    }
    packs.load(share, x, dy, first + kTogether);
  }
  own.leave(s, share, memory, rows);
  cluster_barrier(s);
  SumPair<A>* const of_image = sums + static_cast<int64_t>(image) * s.places;
  for (int row = share.rank * s.threads + threadIdx.x; row < s.places; row += s.cluster * s.threads) {
    of_image[row] = sum_over_cluster(s, memory, row);
  }
  cluster_barrier(s);  // no block ends while others read what it has
}

/// What a thread adds up for the two columns that its pack k may have elements of.
template <class T>
struct BandGradients {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  SumPair<A> own[kImageBands][2] = {};  // dweight and dbias

  /// Writes the sums of the block's columns, a warp each, in a fixed order. All threads; packs are no longer read.
  __device__ __forceinline__ void leave(const ImageSplit& s, const ImageShare<T>& share,
                                        const Partials<A>& partials) const {
    auto* const scratch = reinterpret_cast<SumPair<A>*>(image_shared);
    const int thread = static_cast<int>(threadIdx.x), columns = share.columns_of(share.rank);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kImageBands; ++k) {
#pragma unroll
      for (int c = 0; c < 2; ++c) scratch[(2 * k + c) * s.threads + thread] = own[k][c];
    }
    __syncthreads();
    for (int column = thread / kWarp; column < columns; column += s.threads / kWarp) {
      const int band = column >> s.band_log, k = band / s.lines, line = band - k * s.lines;
      const int begin = (column & (s.band_cols() - 1)) * s.places, end = begin + s.places;
      const SumPair<A>* const of_line = scratch + 2 * k * s.threads + line * s.band_packs;
      SumPair<A> sum{A(0), A(0)};
      for (int pack = begin / kSize + thread % kWarp; pack * kSize < end; pack += kWarp) {
        const SumPair<A> of = of_line[pack + (pack * kSize < begin ? s.threads : 0)];
        sum = {sum.first + of.first, sum.second + of.second};
      }
      sum = {warp_sum(sum.first), warp_sum(sum.second)};
      if (thread % kWarp != 0) continue;
      if (partials.dweight != nullptr) partials.dweight[share.first_column() + column] = sum.first;
      if (partials.dbias != nullptr) partials.dbias[share.first_column() + column] = sum.second;
    }
  }
};

/// dx of a pack whose columns have the weights first and next, and what it adds to the gradients of these.
template <class T, NormKind kKind, class A = Accumulator<T>>
__device__ __forceinline__ Pack<T> image_gradient(const ImageShare<T>& share, const ImageStatistics<T, kKind>& rows,
                                                  const RowFactors<T, true>& factors, A first, A next,
                                                  const Pack<T>& x_pack, const Pack<T>& dy_pack, const Pack<T>* addend,
                                                  SumPair<A> (&sums)[2]) {
  constexpr int kSize = kPackSize<T>;
  A x[kSize], dy[kSize];
  unpack(x_pack, x);
  unpack(dy_pack, dy);
  rows.centre(x);
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const A scaled = factors.rstd[j] * dy[j];
    if (j < share.split) {
      sums[0].first += scaled * x[j];
      sums[0].second += dy[j];
    } else {
      sums[1].first += scaled * x[j];
      sums[1].second += dy[j];
    }
    dy[j] = input_gradient(j < share.split ? first : next, x[j], scaled, factors.c1[j], factors.c2[j]);
  }
  if (addend != nullptr) {
    unpack(*addend, x);
#pragma unroll
    for (int j = 0; j < kSize; ++j) dy[j] += x[j];
  }
  return to_pack<T>(dy);
}

/// s.cluster: blocks of an image, in each range of images.
template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMostImageThreads, 2)
    row_image_apply_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                           const __grid_constant__ ImageSplit s, const SumPair<Accumulator<T>>* __restrict__ sums,
                           int images_a_part, void* partials) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  const ImageShare<T> share(s);
  const int parts = static_cast<int>(gridDim.x) / s.cluster;
  const int part = parts - 1 - static_cast<int>(blockIdx.x) / s.cluster;
  const int begin = part * images_a_part, end = min(begin + images_a_part, s.images);
  const int numbers = (s.parameters_at - s.statistics_at) / 4;
  const auto statistics_of = [&](int parity) { return RowNumbers<A>(s, s.statistics_at + 2 * parity * numbers); };
  const auto sums_of = [&](int parity) { return RowNumbers<A>(s, s.statistics_at + (2 * parity + 1) * numbers); };
  const auto fetch = [&](int image, int parity) {
    share.copy(2 * parity, image_in<const T>(p.x, p.geometry, image));
    share.copy(2 * parity + 1, image_in<const T>(p.dy, p.geometry, image));
    copy_statistics(p, s, image, statistics_of(parity));
    const SumPair<A>* const of_image = sums + static_cast<int64_t>(image) * s.places;
    const RowNumbers<A> to = sums_of(parity);
    for (int row = threadIdx.x; row < s.places; row += s.threads) {
      copy_async<sizeof(A)>(shared_address(&to.first(row)), &of_image[row].first, true);
      copy_async<sizeof(A)>(shared_address(&to.second(row)), &of_image[row].second, true);
    }
  };
  start_after_previous();
  if (begin < end) fetch(begin, 0);
  const A* const weights = keep_weights(p, scalars, s, share);
  BandGradients<T> columns;
  for (int image = begin, parity = 0; image < end; ++image, parity ^= 1) {
    const T* const addends = image_in<const T>(p.dresidual, p.geometry, image);
    T* const dx = image_in<T>(p.dx, p.geometry, image);
    wait_all_copies();
    __syncthreads();  // the numbers of this image are there, and nobody reads those of the one before
    if (image + 1 < end) fetch(image + 1, parity ^ 1);
    const ImageStatistics<T, kKind> rows(share, statistics_of(parity));
    RowFactors<T, true> factors;
    {
      A sum[2][kSize];
      sums_of(parity).get(share, sum[0], sum[1]);
      factors.find(rows, scalars.reciprocal_cols, sum);
    }
#pragma unroll
    for (int k = 0; k < kImageBands; ++k) {
      if (k >= share.count) break;
      const A* const of = weights + share.column_of(k);
      Pack<T> addend{};
      if (p.dresidual.data != nullptr) addend = load_pack(share.in(addends, k));
      store_pack(
          share.in(dx, k),
          image_gradient<T, kKind>(share, rows, factors, of[0], of[1], load_shared_pack<T>(share.slot(2 * parity, k)),
                                   load_shared_pack<T>(share.slot(2 * parity + 1, k)),
                                   p.dresidual.data != nullptr ? &addend : nullptr, columns.own[k]));
    }
  }
  if (p.dweight.data != nullptr || p.dbias.data != nullptr) {
    columns.leave(s, share, Partials<A>(p, partials, parts, part));
  }
}

}  // namespace normact::cuda
