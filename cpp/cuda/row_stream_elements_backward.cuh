// SPDX-License-Identifier: Apache-2.0
// Row norm backward for rows of single elements that lie apart and that no other variant takes. Variant stream, in two
// kernels and parameter_sum.cuh.
//
// Work     sums: row_stream_elements.cuh; a row's leader leaves its two gradient means in the workspace. apply: a
//          thread owns kApplyColumns columns in a range of rows, of which a warp has a power of two at a time.
// Bytes    x and dy are read twice, dresidual once, dx is written once; one row of partial parameter sums a row range.
// Plan     any strides, less than 2^31 elements within a row; up to 2^31 rows.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_stream_backward.cuh"
#include "cuda/row_stream_elements.cuh"
#include "cuda/row_stream_forward.cuh"

namespace normact::cuda {

/// T, X: as in row_backward.cuh.
template <class T, class X, NormKind kKind, bool kActivated>
__global__ void __launch_bounds__(kElementThreads, (kElementBlocks<T, kActivated>))
    row_stream_elements_sums_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                    const Scalars<Accumulator<T>> scalars, const __grid_constant__ ColumnPlaces columns,
                                    const ElementSplit split, GradientMeans<Accumulator<T>>* __restrict__ means) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, StreamUnit::dense>;
  using Sums = SumPair<A>;
  constexpr int kUnits = kElementUnits<T>;
  const RowGeometry& g = p.geometry;
  const int blocks = blocks_of_row();
  const ElementThread thread(split, g, blocks);
  start_after_previous();
  const Operand* const operands[] = {&p.x, &p.dy, &p.mean, &p.rstd};
  int64_t at[4];
  row_offsets(thread.row, g, operands, at);
  const T* const x = static_cast<const T*>(p.x.data) + at[0];
  const X* const dy = static_cast<const X*>(p.dy.data) + at[1];
  A mean = A(0), rstd = A(0);
  if (thread.there) {
    if constexpr (kKind == NormKind::layer) mean = static_cast<const A*>(p.mean.data)[at[2]];
    rstd = static_cast<const A*>(p.rstd.data)[at[3]];
  }
  const int apart = kElementWarps << split.log_strands;  // columns of a strand
  const auto of_strand = [&](int64_t first) {
    Sums sums{A(0), A(0)};
    for (int64_t base = first; base < thread.end; base += apart * kUnits) {
      const int units = units_within<kUnits>(thread.end - base, apart);
      const NearPlaces<kUnits, 4> places(columns, g, base, apart, p.x, p.dy, p.weight, p.bias);
      A x_value[kUnits][1], gradient[kUnits][1], w[kUnits][1];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        x_value[u][0] = gradient[u][0] = A(0);
        if (u >= units) continue;
        Io::load(places.in(x, 0, u), x_value[u]);
        Io::load(places.in(dy, 1, u), gradient[u]);
      }
      Io::weights(p.weight, places, 2, 0, units, scalars.weight_offset, w);
      if constexpr (kActivated) {
        A h[kUnits][1];
        Io::parameters(p.bias, places, 3, 0, units, A(0), h);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          if (u >= units) continue;
          h[u][0] = affine(normalized(x_value[u][0], mean, rstd), w[u][0], h[u][0]);
          multiply_slopes<T>(gradient[u], h[u], p);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u >= units) continue;
        const A weighted = gradient[u][0] * w[u][0];
        if constexpr (kKind == NormKind::layer) sums.first += weighted;
        sums.second += weighted * normalized(x_value[u][0], mean, rstd);
      }
    }
    return sums;
  };
  __shared__ ElementSlots slots;
  const SumPair<double> sum = sum_over_warps(thread.sum_of_strands(split, of_strand), slots, thread, blocks);
  if (thread.leads) {
    const A by = rstd / scalars.cols;
    means[thread.row] = {by * static_cast<A>(sum.first), by * static_cast<A>(sum.second)};
  }
#if __CUDA_ARCH__ >= 900
  cluster_arrive(blocks);  // has read what the others left
  cluster_wait(blocks);
#endif
}

/// T, X: as in row_backward.cuh. log_rows: of a warp at a time.
template <class T, class X, NormKind kKind, bool kActivated>
__global__ void __launch_bounds__(kElementThreads, (kElementBlocks<T, kActivated>))
    row_stream_elements_apply_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                     const Scalars<Accumulator<T>> scalars,
                                     const __grid_constant__ ColumnPlaces columns,
                                     const __grid_constant__ RowPlaces rows, int log_rows,
                                     const GradientMeans<Accumulator<T>>* __restrict__ means, int64_t rows_per_part,
                                     void* partial_sums) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, StreamUnit::dense>;
  constexpr int kColumns = kApplyColumns;
  const RowGeometry& g = p.geometry;
  const int lane = threadIdx.x % kWarp, apart = kWarp >> log_rows;  // columns of a thread
  const int64_t of_warp = (static_cast<int64_t>(blockIdx.x) * kElementWarps + uniform_warp()) * kColumns * apart;
  start_after_previous();
  if (of_warp >= g.cols) return;
  const int64_t first = of_warp + (lane >> log_rows);
  const int count = units_within<kColumns>(g.cols - first, apart);
  const NearPlaces<kColumns, 7> places(columns, g, first, apart, p.x, p.dy, p.dresidual, p.dx, p.daddend, p.weight,
                                       p.bias);
  A w[kColumns][1], b[kColumns][1];
  Io::weights(p.weight, places, 5, 0, count, scalars.weight_offset, w);
  if constexpr (kActivated) Io::parameters(p.bias, places, 6, 0, count, A(0), b);
  const bool has_residual = p.dresidual.data != nullptr, has_addend = p.daddend.data != nullptr;
  const Operand* const operands[] = {&p.x, &p.dy, &p.dresidual, &p.dx, &p.daddend, &p.mean, &p.rstd};
  __shared__ double shared_places[2 * kColumns][kElementThreads];
  const PlacesOfSums places_of_sums{&shared_places[0][threadIdx.x], kElementThreads};
  places_of_sums.clear(2 * kColumns);
  A dweight[kColumns] = {}, dbias[kColumns] = {};
  int summed = 0;  // rows
  const int64_t end = min(g.rows, (blockIdx.y + 1) * rows_per_part);
  const int64_t begin = blockIdx.y * rows_per_part + (lane & ((1 << log_rows) - 1));
  for (int64_t row = begin; row < end; row += int64_t{1} << log_rows) {
    int64_t at[7];
    rows.find(g, row, operands, at);
    const T* const x = static_cast<const T*>(p.x.data) + at[0];
    const T* const dresidual = static_cast<const T*>(p.dresidual.data) + at[2];
    const X* const dy = static_cast<const X*>(p.dy.data) + at[1];
    typename Io::template Loaded<T> x_read[kColumns], addend_read[kColumns];
    typename Io::template Loaded<X> dy_read[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {  // all reads before the first write, which the compiler may not overtake
      if (j >= count) continue;
      x_read[j].load(places.in(x, 0, j));
      dy_read[j].load(places.in(dy, 1, j));
      if (has_residual) addend_read[j].load(places.in(dresidual, 2, j));
    }
    A mean = A(0);
    if constexpr (kKind == NormKind::layer) mean = static_cast<const A*>(p.mean.data)[at[5]];
    const A rstd = static_cast<const A*>(p.rstd.data)[at[6]];
    const GradientMeans<A> factors = means[row];
    X* const dx = static_cast<X*>(p.dx.data) + at[3];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (j >= count) continue;
      A x_value[1], value[1], addend[1];
      x_read[j].take(x_value);
      dy_read[j].take(value);
      if (has_residual) addend_read[j].take(addend);
      const A xhat = normalized(x_value[0], mean, rstd);
      if constexpr (kActivated) {
        const A h[1] = {affine(xhat, w[j][0], b[j][0])};
        multiply_slopes<T>(value, h, p);
      }
      dweight[j] += value[0] * xhat;
      dbias[j] += value[0];
      value[0] = input_gradient(value[0] * w[j][0], xhat, rstd, factors.c1, factors.c2);
      if (has_residual) value[0] += addend[0];
      if constexpr (!std::is_same_v<X, T>) {
        if (has_addend) Io::store(places.in(static_cast<T*>(p.daddend.data) + at[4], 4, j), value);
      }
      Io::store(places.in(dx, 3, j), value);
    }
    if (++summed % kRowsASum == 0) places_of_sums.take(dweight, dbias);
  }
  places_of_sums.give(dweight, dbias);
  const Partials<A> partials(p, partial_sums, gridDim.y, blockIdx.y);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const A weight_sum = sum_of_helpers(dweight[j], 1 << log_rows);
    const A bias_sum = sum_of_helpers(dbias[j], 1 << log_rows);
    if ((lane & ((1 << log_rows) - 1)) != 0 || j >= count) continue;
    if (partials.dweight != nullptr) partials.dweight[first + j * apart] = weight_sum;
    if (partials.dbias != nullptr) partials.dbias[first + j * apart] = bias_sum;
  }
}

}  // namespace normact::cuda
