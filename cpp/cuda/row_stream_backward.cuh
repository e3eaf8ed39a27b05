// SPDX-License-Identifier: Apache-2.0
// Row norm backward for rows that no other variant takes: see row_stream_forward.cuh. Variant stream, in two
// kernels and parameter_sum.cuh.
//
// Work     sums: a block owns a row and leaves its two gradient means in the workspace. apply: a block owns
//          blockDim units of columns (a unit is a pack of 16 bytes or one element) and a range of rows.
// Bytes    x and dy are read twice, dresidual once, dx is written once; one row of partial parameter sums a row range.
// Plan     packs: aligned as for the register variants. Otherwise anything.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_stream_forward.cuh"

namespace normact::cuda {

constexpr int kApplyThreads = 256;
/// Rows of a thread under way, of units of so many elements: as many as registers hold.
template <int kSize>
constexpr int kApplyUnroll = kSize == 8 ? 2 : 4;

/// c1 = rstd * E[g] and c2 = rstd * E[g * xhat] of one row.
template <class A>
struct GradientMeans {
  A c1;
  A c2;
};

/// T, X: as in row_backward.cuh.
template <class T, class X, NormKind kKind, bool kActivated, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads)
    row_stream_backward_sums_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                    const Scalars<Accumulator<T>> scalars,
                                    GradientMeans<Accumulator<T>>* __restrict__ means) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize;
  const RowGeometry& g = p.geometry;
  __shared__ GroupScratch<A, 2> scratch;
  start_after_previous();
  const int64_t row = blockIdx.x;
  const T* x = any_row_pointer<const T>(p.x, g, row);
  const X* dy = any_row_pointer<const X>(p.dy, g, row);
  A mean = A(0);
  if constexpr (kKind == NormKind::layer) mean = *any_row_pointer<const A>(p.mean, g, row);
  const A rstd = *any_row_pointer<const A>(p.rstd, g, row);
  const Parameter<T, X> weight(p.weight), bias(p.bias);
  A sum[2] = {A(0), A(0)};
  const int64_t units = g.cols / kSize;
#pragma unroll kStreamUnroll
  for (int64_t unit = threadIdx.x; unit < units; unit += blockDim.x) {
    A x_value[kSize], dy_value[kSize], w[kSize];
    Io::load(x + Io::offset(p.x, g, unit * kSize), x_value);
    Io::load(dy + Io::offset(p.dy, g, unit * kSize), dy_value);
    if (weight.data != nullptr) Io::parameter(weight, p.weight, g, unit * kSize, w);
    if constexpr (kActivated) {
      A h[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) h[j] = A(0);
      if (bias.data != nullptr) Io::parameter(bias, p.bias, g, unit * kSize, h);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const A effective = weight.data != nullptr ? effective_weight(w[j], scalars.weight_offset) : A(1);
        h[j] = affine(normalized(x_value[j], mean, rstd), effective, h[j]);
      }
      multiply_slopes<T>(dy_value, h, p);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const A effective = weight.data != nullptr ? effective_weight(w[j], scalars.weight_offset) : A(1);
      const A gradient = dy_value[j] * effective;
      if constexpr (kKind == NormKind::layer) sum[0] += gradient;
      sum[1] += gradient * normalized(x_value[j], mean, rstd);
    }
  }
  group_sum(sum, scratch.slots(0, blockDim.x / kWarp), threadIdx.x / kWarp, blockDim.x / kWarp, 0);
  if (threadIdx.x == 0) means[row] = {rstd * sum[0] / scalars.cols, rstd * sum[1] / scalars.cols};
}

/// T, X: as in row_backward.cuh.
template <class T, class X, NormKind kKind, bool kActivated, StreamUnit kUnit>
__global__ void __launch_bounds__(kApplyThreads)
    row_stream_backward_apply_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                     const Scalars<Accumulator<T>> scalars,
                                     const GradientMeans<Accumulator<T>>* __restrict__ means, int64_t rows_per_part,
                                     void* partial_sums) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize, kUnroll = kApplyUnroll<kSize>;
  const RowGeometry& g = p.geometry;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kApplyThreads + threadIdx.x) * kSize;
  start_after_previous();
  if (column >= g.cols) return;
  const int64_t begin = blockIdx.y * rows_per_part;
  const int64_t end = begin + rows_per_part < g.rows ? begin + rows_per_part : g.rows;
  const Parameter<T, X> weight(p.weight);
  A w[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) w[j] = A(1);
  if (weight.data != nullptr) {
    Io::parameter(weight, p.weight, g, column, w);
#pragma unroll
    for (int j = 0; j < kSize; ++j) w[j] = effective_weight(w[j], scalars.weight_offset);
  }
  A b[kSize];
  if constexpr (kActivated) {
    const Parameter<T, X> bias(p.bias);
#pragma unroll
    for (int j = 0; j < kSize; ++j) b[j] = A(0);
    if (bias.data != nullptr) Io::parameter(bias, p.bias, g, column, b);
  }
  // Where the unit begins in a row of each.
  const int64_t x_at = Io::offset(p.x, g, column), dy_at = Io::offset(p.dy, g, column);
  const int64_t addend_at = Io::offset(p.dresidual, g, column), daddend_at = Io::offset(p.daddend, g, column);
  const int64_t dx_at = Io::offset(p.dx, g, column);
  A dweight[kSize] = {};
  A dbias[kSize] = {};
  for (int64_t base = begin; base < end; base += kUnroll) {
    A x_value[kUnroll][kSize], value[kUnroll][kSize], addend[kUnroll][kSize];
    A means_of[kUnroll], rstds[kUnroll];
    GradientMeans<A> factors[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // all reads before the first write, which the compiler may not overtake
      const int64_t row = base + u;
      if (row >= end) continue;
      Io::load(any_row_pointer<const T>(p.x, g, row) + x_at, x_value[u]);
      Io::load(any_row_pointer<const X>(p.dy, g, row) + dy_at, value[u]);
      if (p.dresidual.data != nullptr) {
        Io::load(any_row_pointer<const T>(p.dresidual, g, row) + addend_at, addend[u]);
      }
      means_of[u] = A(0);
      if constexpr (kKind == NormKind::layer) means_of[u] = *any_row_pointer<const A>(p.mean, g, row);
      rstds[u] = *any_row_pointer<const A>(p.rstd, g, row);
      factors[u] = means[row];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = base + u;
      if (row >= end) continue;
      const A mean = means_of[u], rstd = rstds[u];
      if constexpr (kActivated) {
        A h[kSize];
#pragma unroll
        for (int j = 0; j < kSize; ++j) h[j] = affine(normalized(x_value[u][j], mean, rstd), w[j], b[j]);
        multiply_slopes<T>(value[u], h, p);
      }
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const A xhat = normalized(x_value[u][j], mean, rstd);
        dweight[j] += value[u][j] * xhat;
        dbias[j] += value[u][j];
        value[u][j] = input_gradient(value[u][j] * w[j], xhat, rstd, factors[u].c1, factors[u].c2);
      }
      if (p.dresidual.data != nullptr) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[u][j] += addend[u][j];
      }
      if constexpr (!std::is_same_v<X, T>) {
        if (p.daddend.data != nullptr) Io::store(any_row_pointer<T>(p.daddend, g, row) + daddend_at, value[u]);
      }
      Io::store(any_row_pointer<X>(p.dx, g, row) + dx_at, value[u]);
    }
  }
  const Partials<A> partials(p, partial_sums, gridDim.y, blockIdx.y);
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    if (partials.dweight != nullptr) partials.dweight[column + j] = dweight[j];
    if (partials.dbias != nullptr) partials.dbias[column + j] = dbias[j];
  }
}

}  // namespace normact::cuda
