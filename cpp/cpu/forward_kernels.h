// SPDX-License-Identifier: Apache-2.0
// Forward row norms: y = affine(normalized(s)), s = x or round(x + residual).
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_kernels.h"
#include "cpu/simd.h"
#include "math/moments.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

/// totals[k] += the sums of what term(column, lanes, accumulators) adds to accumulators[k], over all columns.
/// A block is short enough for fp32 (16 additions to an accumulator); blocks are added up in double.
template <class T, int kSums, class Term>
NORMACT_SIMD void block_sums(int64_t cols, double (&totals)[kSums], Term term) {
  constexpr int64_t kStep = kLanes<T>;
  constexpr int64_t kBlock = 64 * kStep;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    Vec<T> a[4][kSums] = {};
    int64_t column = begin;
    for (; column + 4 * kStep <= end; column += 4 * kStep) {
      term(column, All{}, a[0]);
      term(column + kStep, All{}, a[1]);
      term(column + 2 * kStep, All{}, a[2]);
      term(column + 3 * kStep, All{}, a[3]);
    }
    for (; column + kStep <= end; column += kStep) term(column, All{}, a[0]);
    if (column < end) term(column, First{int(end - column)}, a[1]);
    for (int k = 0; k < kSums; ++k) totals[k] += sum((a[0][k] + a[1][k]) + (a[2][k] + a[3][k]));
  }
}

/// Two passes: the mean, then the squares centred on it. The second also sums the deviations themselves, which corrects
/// the rounding of the first mean (Chan, Golub, LeVeque 1983, eq. 1.7).
template <class T>
NORMACT_SIMD Moments<double> centred_moments(const T* s, int64_t cols) {
  using V = Vec<T>;
  double first[1] = {};
  block_sums<T>(cols, first, [&](int64_t j, auto lanes, V* a) { a[0] += load(s + j, lanes); });
  const double count = double(cols);
  const auto shift = Accumulator<T>(first[0] / count);
  const V centre = broadcast(shift);
  double second[2] = {};
  block_sums<T>(cols, second, [&](int64_t j, auto lanes, V* a) {
    const V d = keep(load(s + j, lanes) - centre, lanes);
    a[0] += d;
    a[1] = multiply_add(d, d, a[1]);
  });
  const double correction = second[0] / count;
  const bool finite = correction - correction == 0;  // a row with an Inf has an infinite mean, not NaN
  return {shift + (finite ? correction : 0), second[1] - second[0] * correction, count};
}

template <class T>
NORMACT_SIMD Moments<double> raw_moments(const T* s, int64_t cols) {
  double squares[1] = {};
  block_sums<T>(cols, squares, [&](int64_t j, auto lanes, Vec<T>* a) {
    const Vec<T> v = load(s + j, lanes);
    a[0] = multiply_add(v, v, a[0]);
  });
  return {0, squares[0], double(cols)};
}

template <class T>
NORMACT_SIMD Moments<double> moments_of(NormKind kind, const T* s, int64_t cols) {
  return kind == NormKind::layer ? centred_moments(s, cols) : raw_moments(s, cols);
}

/// s = round(x + residual); s may be either.
template <class T>
NORMACT_SIMD void add_residual(const T* x, const T* residual, T* s, int64_t cols) {
  for_vectors<T>(cols, [&](int64_t j, auto lanes) { store(s + j, load(x + j, lanes) + load(residual + j, lanes), lanes); });
}

template <class T, bool kWeight, bool kBias>
NORMACT_SIMD void normalize(const T* s, T* y, const Accumulator<T>* weight, const Accumulator<T>* bias, int64_t cols,
                            Statistics statistics) {
  using V = Vec<T>;
  const V mean = broadcast(Accumulator<T>(statistics.mean));
  const V rstd = broadcast(Accumulator<T>(statistics.rstd));
  for_vectors<T>(cols, [&](int64_t j, auto lanes) {
    V value = normalized(load(s + j, lanes), mean, rstd);
    if constexpr (kWeight && kBias) {
      value = affine(value, load(weight + j, lanes), load(bias + j, lanes));
    } else if constexpr (kWeight) {
      value = value * load(weight + j, lanes);
    } else if constexpr (kBias) {
      value = value + load(bias + j, lanes);
    }
    store(y + j, value, lanes);
  });
}

/// Moments to mean and rstd, rounded to the accumulator type, and stored where wanted.
template <class T>
NORMACT_SIMD Statistics finish(const RowForward& p, int64_t row, const Moments<double>& moments) {
  using N = Accumulator<T>;
  const auto rsqrt = [](double v) __attribute__((always_inline)) { return 1 / __builtin_sqrt(v); };
  const N mean = N(moments.mean);
  const N rstd = N(reciprocal_std(moments.m2, moments.count, p.eps, rsqrt));
  if (p.mean.data) row_element<N>(p, p.mean, row) = mean;
  if (p.rstd.data) row_element<N>(p, p.rstd, row) = rstd;
  return {mean, rstd};
}

/// The rows s of a problem: where they are, and how they get there.
template <class T>
NORMACT_SIMD RowView<T> input_row(const RowForward& p, int64_t row, Range columns, T* scratch) {
  return RowView<T>(p, p.residual.data ? p.residual_out : p.x, row, columns, scratch);
}

template <class T>
NORMACT_SIMD void store_sum(const RowForward& p, int64_t row, Range columns, T* scratch) {
  const int64_t cols = columns.end - columns.begin;
  const RowView<T> s(p, p.residual_out, row, columns, scratch);
  const RowView<T> x(p, p.x, row, columns, scratch);
  const RowView<T> residual(p, p.residual, row, columns, scratch + cols);
  add_residual<T>(x.read().data(), residual.read().data(), s.data(), cols);
  s.write();
}

template <class T>
Moments<double> forward_moments(const ForwardWork& work, int64_t row, Range columns, void* scratch) {
  const RowForward& p = *work.problem;
  T* const buffer = static_cast<T*>(scratch);
  if (p.residual.data) store_sum(p, row, columns, buffer);
  const RowView<T> s = input_row(p, row, columns, buffer);
  if (!p.residual.data) s.read();
  return moments_of<T>(p.kind, s.data(), columns.end - columns.begin);
}

template <class T>
Statistics forward_merge(const ForwardWork& work, int64_t row, const Moments<double>* chunks, int64_t count) {
  Moments<double> total = chunks[0];
  for (int64_t i = 1; i < count; ++i) total = merge(total, chunks[i]);
  return finish<T>(*work.problem, row, total);
}

template <class T>
NORMACT_SIMD void apply(const ForwardWork& work, const T* s, T* y, Range columns, Statistics statistics) {
  using N = Accumulator<T>;
  const int64_t cols = columns.end - columns.begin;
  const N* weight = work.weight ? static_cast<const N*>(work.weight) + columns.begin : nullptr;
  const N* bias = work.bias ? static_cast<const N*>(work.bias) + columns.begin : nullptr;
  if (weight && bias) return normalize<T, true, true>(s, y, weight, bias, cols, statistics);
  if (weight) return normalize<T, true, false>(s, y, weight, bias, cols, statistics);
  if (bias) return normalize<T, false, true>(s, y, weight, bias, cols, statistics);
  normalize<T, false, false>(s, y, weight, bias, cols, statistics);
}

template <class T>
void forward_apply(const ForwardWork& work, int64_t row, Range columns, Statistics statistics, void* scratch) {
  const RowForward& p = *work.problem;
  T* const buffer = static_cast<T*>(scratch);
  const RowView<T> y(p, p.y, row, columns, buffer + (columns.end - columns.begin));
  apply<T>(work, input_row(p, row, columns, buffer).read().data(), y.data(), columns, statistics);
  y.write();
}

template <class T>
void forward_rows(const ForwardWork& work, Range rows, void* scratch) {
  const RowForward& p = *work.problem;
  const int64_t cols = p.geometry.cols;
  const Range columns = {0, cols};
  T* const buffer = static_cast<T*>(scratch);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (p.residual.data) store_sum(p, row, columns, buffer);
    const RowView<T> s = input_row(p, row, columns, buffer);
    if (!p.residual.data) s.read();
    Moments<double> total = moments_of<T>(p.kind, s.data(), cols < kChunk ? cols : kChunk);
    for (int64_t begin = kChunk; begin < cols; begin += kChunk) {
      const int64_t count = cols - begin < kChunk ? cols - begin : kChunk;
      total = merge(total, moments_of<T>(p.kind, s.data() + begin, count));
    }
    const RowView<T> y(p, p.y, row, columns, buffer + cols);
    apply<T>(work, s.data(), y.data(), columns, finish<T>(p, row, total));
    y.write();
  }
}

}  // namespace normact::cpu::NORMACT_ISA
