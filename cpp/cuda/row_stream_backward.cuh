// SPDX-License-Identifier: Apache-2.0
// Row norm backward for rows that no other variant takes: see row_stream_forward.cuh. Variant stream, in two kernels
// (three of long rows) and parameter_sum.cuh.
//
// Work     sums: a block owns a row, or a slice of a long one, and leaves its share of the two gradient means in the
//          workspace; a warp adds up those of a row. apply: a block owns some units of columns (a unit is a pack of 16
//          bytes or one element: StreamUnit) and a range of rows, several at a time where they are short.
// Bytes    x and dy are read twice, dresidual once, dx is written once; one row of partial parameter sums a row range,
//          or the gradients of parameters themselves where a block has all rows.
// Plan     packs: aligned as for the register variants. Otherwise anything.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_forward.cuh"
#include "cuda/row_stream.cuh"

namespace normact::cuda {

constexpr int kApplyThreads = 256;
/// Units of a row that a thread sums up at a time. Of packs, one: with more, registers leave a quarter of the threads.
template <int kSize>
constexpr int kSumsUnroll = kSize == 1 ? kStreamUnroll : 1;
/// Rows of a unit that a thread has under way, by the elements of a unit: as many as registers hold.
template <int kSize>
constexpr int kApplyUnroll = kSize == 8 ? 2 : kStreamUnroll;
/// Blocks of a multiprocessor that apply, as far as their registers are enough.
template <class T, bool kActivated, StreamUnit kUnit>
constexpr int kApplyBlocks = sizeof(T) == 8                              ? 1
                             : kUnit == StreamUnit::dense && !kActivated ? 4
                                                                         : 2;

/// c1 = rstd * E[g] and c2 = rstd * E[g * xhat] of one row; or what a slice adds to them.
template <class A>
struct GradientMeans {
  A c1;
  A c2;
};

/// T, X: as in row_backward.cuh.
template <class T, class X, NormKind kKind, bool kActivated, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads)
    row_stream_backward_sums_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                    const Scalars<Accumulator<T>> scalars, const __grid_constant__ ColumnPlaces columns,
                                    unsigned slices, GradientMeans<Accumulator<T>>* __restrict__ means) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize, kUnroll = kSumsUnroll<kSize>;
  const RowGeometry& g = p.geometry;
  __shared__ GroupScratch<A, 2> scratch;
  const GroupSum<A, 2> block_sum(scratch, 0, threadIdx.x / kWarp, blockDim.x / kWarp, 0);
  start_after_previous();
  const int64_t row = slices > 1 ? blockIdx.x / slices : blockIdx.x;
  const Operand* const operands[] = {&p.x, &p.dy, &p.mean, &p.rstd};
  int64_t at[4];
  row_offsets(row, g, operands, at);
  const T* const x = static_cast<const T*>(p.x.data) + at[0];
  const X* const dy = static_cast<const X*>(p.dy.data) + at[1];
  A mean = A(0);
  if constexpr (kKind == NormKind::layer) mean = static_cast<const A*>(p.mean.data)[at[2]];
  const A rstd = static_cast<const A*>(p.rstd.data)[at[3]];
  A sum[2] = {A(0), A(0)};
  const int apart = blockDim.x;  // units of a thread
  const int64_t share = slices > 1 ? (g.cols / kSize + slices - 1) / slices : g.cols / kSize;
  const int64_t begin = (blockIdx.x - row * slices) * share, end = min(begin + share, g.cols / kSize);
  for (int64_t base = begin + threadIdx.x; base < end; base += static_cast<int64_t>(apart) * kUnroll) {
    const int units = units_within<kUnroll>(end - base, apart);
    const typename Io::template Places<kUnroll, 4> places(columns, g, base, apart, units, p.x, p.dy, p.weight, p.bias);
    A x_value[kUnroll][kSize], gradient[kUnroll][kSize], w[kUnroll][kSize];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= units) continue;
      Io::load(places.in(x, 0, u), x_value[u]);
      Io::load(places.in(dy, 1, u), gradient[u]);
    }
    Io::weights(p.weight, places, 2, 0, units, scalars.weight_offset, w);
    if constexpr (kActivated) {
      A h[kUnroll][kSize];
      Io::parameters(p.bias, places, 3, 0, units, A(0), h);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= units) continue;
#pragma unroll
        for (int j = 0; j < kSize; ++j) h[u][j] = affine(normalized(x_value[u][j], mean, rstd), w[u][j], h[u][j]);
        multiply_slopes<T>(gradient[u], h[u], p);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= units) continue;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const A weighted = gradient[u][j] * w[u][j];
        if constexpr (kKind == NormKind::layer) sum[0] += weighted;
        sum[1] += weighted * normalized(x_value[u][j], mean, rstd);
      }
    }
  }
  block_sum.run(sum, 0);
  if (threadIdx.x == 0) means[blockIdx.x] = {rstd * sum[0] / scalars.cols, rstd * sum[1] / scalars.cols};
}

/// Adds up the slices of each row, a warp each row.
template <class A>
__global__ void __launch_bounds__(kWarp)
    row_stream_means_kernel(const GradientMeans<A>* __restrict__ of_slices, unsigned slices,
                            GradientMeans<A>* __restrict__ means) {
  start_after_previous();
  const GradientMeans<A>* const of_row = of_slices + static_cast<int64_t>(blockIdx.x) * slices;
  GradientMeans<A> sum{A(0), A(0)};
  for (unsigned slice = threadIdx.x; slice < slices; slice += kWarp) {
    sum.c1 += of_row[slice].c1;
    sum.c2 += of_row[slice].c2;
  }
  sum = {warp_sum(sum.c1), warp_sum(sum.c2)};
  if (threadIdx.x == 0) means[blockIdx.x] = sum;
}

/// Groups of threads with a row each, of a block that applies: several where rows are short. Of units side by side, few
/// problems have short rows here.
template <StreamUnit kUnit>
__device__ __forceinline__ int row_groups() {
  return kUnitsApart<kUnit> ? static_cast<int>(blockDim.y) : 1;
}

/// One unit of columns, or a row's number, in every `groups`-th row of a tensor, at equal distances.
template <class E>
struct RowSteps {
  E* at;
  int64_t step;

  __device__ __forceinline__ RowSteps(const Operand& operand, const RowGeometry& g, int64_t first, int groups) {
    const int64_t apart = operand.row_stride[g.row_ndim - 1];
    at = static_cast<E*>(operand.data) + first + (groups > 1 ? static_cast<int>(threadIdx.y) * apart : 0);
    step = groups * apart;
  }
  __device__ __forceinline__ E* next() {
    E* const now = at;
    at += step;
    return now;
  }
};

/// Leaves the sums of all groups of threads, in their order, with the first one. `places` has room for each thread's;
/// all threads of the block call it.
template <class A, int kSize>
__device__ __forceinline__ void sum_over_row_groups(const PlacesOfSums& places, int groups, A (&dweight)[kSize],
                                                    A (&dbias)[kSize]) {
  if (groups == 1) return;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    places.own[j * places.apart] = dweight[j];
    places.own[(kSize + j) * places.apart] = dbias[j];
  }
  __syncthreads();
  for (unsigned group = 1; threadIdx.y == 0 && group < static_cast<unsigned>(groups); ++group) {
    const double* const of_group = places.own + group * blockDim.x;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      dweight[j] += of_group[j * places.apart];
      dbias[j] += of_group[(kSize + j) * places.apart];
    }
  }
}

/// Gradients of the parameters of columns from `first` on, by way of the thread's places: unrolled, the addresses would
/// take the registers of the rest.
template <class X, class Problem, class A, int kSize>
__device__ __forceinline__ void store_sums(const Problem& p, int64_t first, const PlacesOfSums& places,
                                           const A (&dweight)[kSize], const A (&dbias)[kSize]) {
  const RowGeometry& g = p.geometry;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    places.own[j * places.apart] = dweight[j];
    places.own[(kSize + j) * places.apart] = dbias[j];
  }
#pragma unroll 1
  for (int j = 0; j < 2 * kSize; ++j) {
    const Operand& to = j < kSize ? p.dweight : p.dbias;
    if (to.data == nullptr) continue;
    const int64_t column = first + j % kSize;
    const int64_t at =
        g.col_ndim == 1 ? column * to.col_stride[0] : strided_offset(column, g.col_ndim, g.col_shape, to.col_stride);
    store_parameter<X>(to, at, static_cast<A>(places.own[j * places.apart]));
  }
}

/// T, X: as in row_backward.cuh.
template <class T, class X, NormKind kKind, bool kActivated, StreamUnit kUnit>
__global__ void __launch_bounds__(kApplyThreads, (kApplyBlocks<T, kActivated, kUnit>))
    row_stream_backward_apply_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                     const Scalars<Accumulator<T>> scalars,
                                     const __grid_constant__ ColumnPlaces columns,
                                     const GradientMeans<Accumulator<T>>* __restrict__ means, int64_t rows_per_part,
                                     void* partial_sums) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize, kUnroll = kApplyUnroll<kSize>;
  const RowGeometry& g = p.geometry;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int groups = row_groups<kUnit>();
  start_after_previous();
  const bool there = unit * kSize < g.cols;
  if (!kUnitsApart<kUnit> && !there) return;  // others wait for each other below
  const int64_t end = there ? min(g.rows, (blockIdx.y + 1) * rows_per_part) : 0;
  const Operand* const operands[] = {&p.x, &p.dy, &p.dresidual, &p.dx, &p.daddend, &p.mean, &p.rstd};
  const typename Io::template Places<1, 7> column(columns, g, unit, 0, there, p.x, p.dy, p.dresidual, p.dx, p.daddend,
                                                  p.weight, p.bias);
  A w[1][kSize], b[1][kSize];
  Io::weights(p.weight, column, 5, 0, there, scalars.weight_offset, w);
  if constexpr (kActivated) Io::parameters(p.bias, column, 6, 0, there, A(0), b);
  const bool has_residual = p.dresidual.data != nullptr, has_addend = p.daddend.data != nullptr;
  __shared__ double shared_places[2 * kSize][kApplyThreads];
  const PlacesOfSums places{&shared_places[0][threadIdx.y * blockDim.x + threadIdx.x], kApplyThreads};
  places.clear(2 * kSize);
  A dweight[kSize] = {}, dbias[kSize] = {};
  int summed = 0;  // times that rows were added
  int64_t until = 0;
  for (int64_t row = blockIdx.y * rows_per_part; row < end; row = until) {
    // Rows at equal distances: to the end of their last dimension.
    const int64_t inner = g.row_shape[g.row_ndim - 1];
    until = g.row_ndim == 1 ? end : min(end, (row / inner + 1) * inner);
    int64_t at[7];
    row_offsets(row, g, operands, at);
    RowSteps<const T> x(p.x, g, at[0] + column.from_first(0, 0), groups),
        dresidual(p.dresidual, g, at[2] + column.from_first(2, 0), groups);
    RowSteps<const X> dy(p.dy, g, at[1] + column.from_first(1, 0), groups);
    RowSteps<X> dx(p.dx, g, at[3] + column.from_first(3, 0), groups);
    RowSteps<T> daddend(p.daddend, g, at[4] + column.from_first(4, 0), groups);
    RowSteps<const A> mean(p.mean, g, at[5], groups), rstd(p.rstd, g, at[6], groups);
    for (row += groups > 1 ? threadIdx.y : 0; row < until; row += groups * kUnroll) {
      const int rows = units_within<kUnroll>(until - row, groups);
      typename Io::template Loaded<T> x_read[kUnroll], addend_read[kUnroll];
      typename Io::template Loaded<X> dy_read[kUnroll];
      A means_of[kUnroll], rstds[kUnroll];
      GradientMeans<A> factors[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {  // all reads before the first write, which the compiler may not overtake
        if (u >= rows) continue;
        x_read[u].load(x.next());
        dy_read[u].load(dy.next());
        if (has_residual) addend_read[u].load(dresidual.next());
        means_of[u] = A(0);
        if constexpr (kKind == NormKind::layer) means_of[u] = *mean.next();
        rstds[u] = *rstd.next();
        factors[u] = means[row + u * groups];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= rows) continue;
        A x_value[kSize], value[kSize], addend[kSize];
        x_read[u].take(x_value);
        dy_read[u].take(value);
        if (has_residual) addend_read[u].take(addend);
        if constexpr (kActivated) {
          A h[kSize];
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            h[j] = affine(normalized(x_value[j], means_of[u], rstds[u]), w[0][j], b[0][j]);
          }
          multiply_slopes<T>(value, h, p);
        }
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const A xhat = normalized(x_value[j], means_of[u], rstds[u]);
          dweight[j] += value[j] * xhat;
          dbias[j] += value[j];
          value[j] = input_gradient(value[j] * w[0][j], xhat, rstds[u], factors[u].c1, factors[u].c2);
          if (has_residual) value[j] += addend[j];
        }
        if constexpr (!std::is_same_v<X, T>) {
          if (has_addend) Io::store(daddend.next(), value);
        }
        Io::store(dx.next(), value);
      }
      if (++summed == kRowsASum / kUnroll) {
        places.take(dweight, dbias);
        summed = 0;
      }
    }
  }
  const Partials<A> partials(p, partial_sums, gridDim.y, blockIdx.y);
  places.give(dweight, dbias);
  sum_over_row_groups(places, groups, dweight, dbias);
  if (!there || threadIdx.y > 0) return;
  if (partials.single) return store_sums<X>(p, unit * kSize, places, dweight, dbias);
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    if (partials.dweight != nullptr) partials.dweight[unit * kSize + j] = dweight[j];
    if (partials.dbias != nullptr) partials.dbias[unit * kSize + j] = dbias[j];
  }
}

}  // namespace normact::cuda
