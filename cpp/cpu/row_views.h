// SPDX-License-Identifier: Apache-2.0
// A forward or backward problem as its kernels see it, and the steps that every kernel shares: how a row is fetched and
// how its statistics are finished.
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_kernels.h"
#include "cpu/simd_element.h"
#include "math/moments.h"

namespace normact::cpu::NORMACT_ISA {

/// What a forward kernel works on: a range of columns of every row.
template <class T>
struct Forward {
  using N = Accumulator<T>;

  /// scratch as for Rows, for two rows of these columns.
  NORMACT_SIMD Forward(const ForwardWork& work, Range columns, T* scratch)
      : kind(work.problem->kind),
        eps(work.problem->eps),
        cols(columns.end - columns.begin),
        share(1 / double(cols)),
        weight(work.weight ? static_cast<const N*>(work.weight) + (columns.begin - work.parameters_from) : nullptr),
        bias(work.bias ? static_cast<const N*>(work.bias) + (columns.begin - work.parameters_from) : nullptr),
        x(*work.problem, work.problem->x, columns, scratch),
        residual(*work.problem, work.problem->residual, columns, scratch + cols),
        sum(*work.problem, work.problem->residual_out, columns, scratch),
        y(*work.problem, work.problem->y, columns, scratch + cols),
        mean(*work.problem, work.problem->mean),
        rstd(*work.problem, work.problem->rstd),
        activation(work.activation),
        streams(work.streams) {}

  NormKind kind;
  double eps;
  int64_t cols;
  double share;  // of one column in a mean over these
  const N* weight;
  const N* bias;
  Rows<T> x, residual, sum, y;
  RowStarts<N> mean, rstd;
  const ArrayActivation* activation;
  bool streams;
};

/// s = round(x + residual); s may be either.
template <class T>
NORMACT_SIMD void add_residual(const T* x, const T* residual, T* s, int64_t cols) {
  for_vectors<T>(cols,
                 [&](int64_t j, auto lanes) { store(s + j, load(x + j, lanes) + load(residual + j, lanes), lanes); });
}

/// The row s as an array; writes residual_out if there is a residual.
template <class T>
NORMACT_SIMD const T* fetch_row(const Forward<T>& f, int64_t row) {
  if (!f.residual) return f.x.read(row);
  T* const s = f.sum.target(row);
  add_residual<T>(f.x.read(row), f.residual.read(row), s, f.cols);
  f.sum.write(row);
  return s;
}

/// Moments of cols = 1 / share elements from its sums of deviations from `shift` and of their squares, where shift is
/// the mean but for rounding; the deviations correct that.
NORMACT_SIMD Moments<double> corrected(double shift, double deviations, double squares, int64_t cols, double share) {
  Moments<double> moments = moments_about(shift, deviations, squares, double(cols), share);
  if (deviations - deviations != 0) moments.mean = shift;  // a row with an Inf has an infinite mean, not NaN
  return moments;
}

/// Moments of kRows rows of so many elements, each quantity an array: the rows are a vector's lanes.
template <int kRows>
struct RowMoments {
  double mean[kRows];
  double m2[kRows];
};

/// Moments to mean and rstd, rounded to the accumulator type, and stored where wanted.
template <class T, int kRows>
NORMACT_SIMD void finish(const Forward<T>& f, int64_t row, const RowMoments<kRows>& moments, double count,
                         Accumulator<T> (&mean)[kRows], Accumulator<T> (&rstd)[kRows]) {
  using N = Accumulator<T>;
  const auto rsqrt = [](double v) __attribute__((always_inline)) { return 1 / __builtin_sqrt(v); };
  for (int r = 0; r < kRows; ++r) mean[r] = N(moments.mean[r]);
  for (int r = 0; r < kRows; ++r) rstd[r] = N(reciprocal_std(moments.m2[r] / count, f.eps, rsqrt));
  for (int r = 0; r < kRows && f.mean; ++r) *f.mean[row + r] = mean[r];
  for (int r = 0; r < kRows && f.rstd; ++r) *f.rstd[row + r] = rstd[r];
}

/// The same of one row.
template <class T>
NORMACT_SIMD Statistics finish(const Forward<T>& f, int64_t row, const Moments<double>& moments) {
  Accumulator<T> mean[1], rstd[1];
  finish<T, 1>(f, row, {{moments.mean}, {moments.m2}}, moments.count, mean, rstd);
  return {mean[0], rstd[0]};
}

/// What a backward kernel works on: a range of columns of every row.
template <class T>
struct Backward {
  using N = Accumulator<T>;

  /// scratch as for Rows, for three rows of these columns.
  NORMACT_SIMD Backward(const BackwardWork& work, Range columns, ParameterSums sums, T* scratch)
      : kind(work.problem->kind),
        plain(work.problem->contiguous && work.problem->geometry.row_ndim == 1),
        share(1 / double(work.problem->geometry.cols)),
        cols(columns.end - columns.begin),
        weight(static_cast<const N*>(work.weight) + columns.begin),
        bias(work.bias ? static_cast<const N*>(work.bias) + columns.begin : nullptr),
        dweight(sums.dweight ? static_cast<N*>(sums.dweight) + columns.begin : nullptr),
        dbias(sums.dbias ? static_cast<N*>(sums.dbias) + columns.begin : nullptr),
        dy(*work.problem, work.problem->dy, columns, scratch),
        x(*work.problem, work.problem->x, columns, scratch + cols),
        dresidual(*work.problem, work.problem->dresidual, columns, scratch + 2 * cols),
        dx(*work.problem, work.problem->dx, columns, scratch),
        mean(*work.problem, work.problem->mean),
        rstd(*work.problem, work.problem->rstd),
        activation(work.activation),
        streams(work.streams) {}

  NormKind kind;
  bool plain;    // contiguous, and the rows have one dimension
  double share;  // of one column in a mean over the row
  int64_t cols;
  const N* weight;
  const N* bias;
  N* dweight;
  N* dbias;
  Rows<T> dy, x, dresidual, dx;
  RowStarts<N> mean, rstd;
  const ArrayActivation* activation;
  bool streams;
};

/// One row as the sweeps see it. D: T, or its accumulator for gradients that came through an activation.
template <class T, class D = T>
struct GradientRow {
  const D* dy;
  const T* x;
  Accumulator<T> mean;  // 0 for rms
  Accumulator<T> rstd;
};

template <class T>
NORMACT_SIMD GradientRow<T> fetch_row(const Backward<T>& b, int64_t row) {
  return {b.dy.read(row), b.x.read(row), b.mean ? *b.mean[row] : 0, *b.rstd[row]};
}

}  // namespace normact::cpu::NORMACT_ISA
