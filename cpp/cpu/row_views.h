// SPDX-License-Identifier: Apache-2.0
// A forward or backward problem as its kernels see it, and the steps that every kernel shares: how a row is fetched and
// how its statistics are finished.
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_kernels.h"
#include "cpu/simd_element.h"
#include "cpu/simd_stream.h"
#include "math/moments.h"

#include <type_traits>

namespace normact::cpu::NORMACT_ISA {

/// The row of scratch that begins so many bytes behind the first.
template <class T>
NORMACT_SIMD T* row_after(void* scratch, int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(scratch) + bytes);
}

/// What a forward kernel works on: a range of columns of every row. T: the type of sums, X: that of x and y; they
/// differ in mixed problems alone.
template <class T, class X = T>
struct Forward {
  using N = Accumulator<T>;

  /// scratch as for Rows, for a row of sums, then one of x, of these columns.
  NORMACT_SIMD Forward(const ForwardWork& work, Range columns, void* scratch)
      : kind(work.problem->kind),
        eps(work.problem->eps),
        cols(columns.end - columns.begin),
        share(1 / double(cols)),
        weight(work.weight ? static_cast<const N*>(work.weight) + (columns.begin - work.parameters_from) : nullptr),
        bias(work.bias ? static_cast<const N*>(work.bias) + (columns.begin - work.parameters_from) : nullptr),
        x(*work.problem, work.problem->x, columns, row_after<X>(scratch, cols * int64_t{sizeof(T)})),
        y(*work.problem, work.problem->y, columns, row_after<X>(scratch, cols * int64_t{sizeof(T)})),
        residual(*work.problem, work.problem->residual, columns, static_cast<T*>(scratch)),
        sum(*work.problem, work.problem->residual_out, columns, static_cast<T*>(scratch)),
        mean(*work.problem, work.problem->mean),
        rstd(*work.problem, work.problem->rstd),
        activation(work.activation),
        streams(work.streams),
        streams_sum(work.streams_sum) {}

  NormKind kind;
  double eps;
  int64_t cols;
  double share;  // of one column in a mean over these
  const N* weight;
  const N* bias;
  Rows<X> x, y;
  Rows<T> residual, sum;
  RowStarts<N> mean, rstd;
  const ArrayActivation* activation;
  bool streams;
  bool streams_sum;
};

/// s = round(x + residual); s may be either.
template <class T, class X>
NORMACT_SIMD void add_residual(const X* x, const T* residual, T* s, int64_t cols) {
  for_vectors<T>(cols,
                 [&](int64_t j, auto lanes) { store(s + j, load(x + j, lanes) + load(residual + j, lanes), lanes); });
}

/// Room in the first cache for the sums of some rows that go past the caches: what is read of them later is read there.
template <class T, int kRows>
struct NearRows {
  static constexpr int64_t kBytes = 16384;
  alignas(kLineBytes) T rows[kBytes / sizeof(T)];

  template <class X>
  NORMACT_SIMD T* row(const Forward<T, X>& f, int r) {
    return f.streams_sum && kRows * f.cols * int64_t{sizeof(T)} <= kBytes ? rows + r * f.cols : nullptr;
  }
};

/// The row s as an array; writes residual_out if there is a residual, as in mixed problems there is. near: room for a
/// sum that goes past the caches, or null.
template <class T, class X>
NORMACT_SIMD const T* fetch_row(const Forward<T, X>& f, int64_t row, T* near = nullptr) {
  if constexpr (std::is_same_v<T, X>) {
    if (!f.residual) return f.x.read(row);
  }
  T* const s = near ? near : f.sum.target(row);
  add_residual(f.x.read(row), f.residual.read(row), s, f.cols);
  if (near) {
    stream(near, f.sum.target(row), f.cols);
  } else {
    f.sum.write(row);
  }
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

/// Moments to mean and rstd, rounded to the accumulator type.
template <int kRows, class N>
NORMACT_SIMD void round_statistics(const RowMoments<kRows>& moments, double count, double eps, N (&mean)[kRows],
                                   N (&rstd)[kRows]) {
  const auto rsqrt = [](double v) __attribute__((always_inline)) { return 1 / __builtin_sqrt(v); };
  for (int r = 0; r < kRows; ++r) mean[r] = N(moments.mean[r]);
  for (int r = 0; r < kRows; ++r) rstd[r] = N(reciprocal_std(moments.m2[r] / count, eps, rsqrt));
}

/// The same, stored where wanted.
template <class T, int kRows, class X>
NORMACT_SIMD void finish(const Forward<T, X>& f, int64_t row, const RowMoments<kRows>& moments, double count,
                         Accumulator<T> (&mean)[kRows], Accumulator<T> (&rstd)[kRows]) {
  round_statistics(moments, count, f.eps, mean, rstd);
  for (int r = 0; r < kRows && f.mean; ++r) *f.mean[row + r] = mean[r];
  for (int r = 0; r < kRows && f.rstd; ++r) *f.rstd[row + r] = rstd[r];
}

/// The same of one row.
template <class T, class X>
NORMACT_SIMD Statistics finish(const Forward<T, X>& f, int64_t row, const Moments<double>& moments) {
  Accumulator<T> mean[1], rstd[1];
  finish<T, 1>(f, row, {{moments.mean}, {moments.m2}}, moments.count, mean, rstd);
  return {mean[0], rstd[0]};
}

/// What a backward kernel works on: a range of columns of every row. T: the type of x, dresidual and daddend, X: that
/// of dy and dx; they differ in mixed problems alone.
template <class T, class X = T>
struct Backward {
  using N = Accumulator<T>;

  /// scratch as for Rows, for rows of x, of dresidual, and of dy, of these columns.
  NORMACT_SIMD Backward(const BackwardWork& work, Range columns, ParameterSums sums, void* scratch)
      : kind(work.problem->kind),
        plain(work.problem->contiguous && work.problem->geometry.row_ndim == 1),
        share(1 / double(work.problem->geometry.cols)),
        cols(columns.end - columns.begin),
        weight(static_cast<const N*>(work.weight) + columns.begin),
        bias(work.bias ? static_cast<const N*>(work.bias) + columns.begin : nullptr),
        dweight(sums.dweight ? static_cast<N*>(sums.dweight) + columns.begin : nullptr),
        dbias(sums.dbias ? static_cast<N*>(sums.dbias) + columns.begin : nullptr),
        dy(*work.problem, work.problem->dy, columns, row_after<X>(scratch, 2 * cols * int64_t{sizeof(T)})),
        dx(*work.problem, work.problem->dx, columns, row_after<X>(scratch, 2 * cols * int64_t{sizeof(T)})),
        x(*work.problem, work.problem->x, columns, static_cast<T*>(scratch)),
        daddend(*work.problem, work.problem->daddend, columns, static_cast<T*>(scratch)),
        dresidual(*work.problem, work.problem->dresidual, columns, row_after<T>(scratch, cols * int64_t{sizeof(T)})),
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
  Rows<X> dy, dx;
  Rows<T> x, daddend, dresidual;
  RowStarts<N> mean, rstd;
  const ArrayActivation* activation;
  bool streams;
};

/// One row as the sweeps see it. D: the type of dy, or its accumulator for gradients that came through an activation.
template <class T, class D = T>
struct GradientRow {
  const D* dy;
  const T* x;
  Accumulator<T> mean;  // 0 for rms
  Accumulator<T> rstd;
};

template <class T, class X>
NORMACT_SIMD GradientRow<T, X> fetch_row(const Backward<T, X>& b, int64_t row) {
  return {b.dy.read(row), b.x.read(row), b.mean ? *b.mean[row] : 0, *b.rstd[row]};
}

}  // namespace normact::cpu::NORMACT_ISA
