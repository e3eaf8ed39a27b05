// SPDX-License-Identifier: Apache-2.0
// Forward row norms: y = act(affine(normalized(s))), s = x or round(x + residual).
#pragma once

#include "cpu/narrow_kernels.h"
#include "cpu/row_affine.h"
#include "cpu/row_kernels.h"
#include "cpu/row_views.h"
#include "cpu/simd_element.h"
#include "math/moments.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int kGroup = 4;             // rows that go through the steps together ...
constexpr int64_t kGroupCols = 1024;  // ... if they are this short (longer rows hide their own latency)

/// ... and come from the cache; what comes from memory is faster row by row, unless conversions take the time.
template <class T>
NORMACT_SIMD bool in_groups(const RowProblem& problem) {
  constexpr int64_t kCacheBytes = 4 * 1024 * 1024;
  const RowGeometry& geometry = problem.geometry;
  if (!problem.contiguous || geometry.cols > kGroupCols) return false;
  return sizeof(T) == 2 || geometry.rows * geometry.cols * int64_t(sizeof(T)) <= kCacheBytes;
}

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

/// First pass of a row that is centred: its mean (share = 1 / cols), as yet with the rounding of the sum.
template <class T>
NORMACT_SIMD Accumulator<T> first_mean(const T* s, int64_t cols, double share) {
  double total[1] = {};
  block_sums<T>(cols, total, [&](int64_t j, auto lanes, Vec<T>* a) { a[0] += load(s + j, lanes); });
  return Accumulator<T>(total[0] * share);
}

/// Second pass: the squares centred on `shift`, the first mean.
template <class T>
NORMACT_SIMD Moments<double> centred_moments(const T* s, int64_t cols, double share, Accumulator<T> shift) {
  using V = Vec<T>;
  const V centre = broadcast(shift);
  double totals[2] = {};
  block_sums<T>(cols, totals, [&](int64_t j, auto lanes, V* a) {
    const V d = keep(load(s + j, lanes) - centre, lanes);
    a[0] += d;
    a[1] = multiply_add(d, d, a[1]);
  });
  return corrected(shift, totals[0], totals[1], cols, share);
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
NORMACT_SIMD Moments<double> moments_of(NormKind kind, const T* s, int64_t cols, double share) {
  return kind == NormKind::layer ? centred_moments(s, cols, share, first_mean(s, cols, share)) : raw_moments(s, cols);
}

template <class T>
NORMACT_SIMD void apply(const Forward<T>& f, const T* s, T* y, Statistics statistics) {
  if (f.activation) [[unlikely]]
    return normalize_activated<T>(f, s, y, statistics);
  normalize<T>(s, y, f.weight, f.bias, f.cols, statistics);
}

/// One row of any length.
template <class T>
NORMACT_SIMD void forward_row(const Forward<T>& f, int64_t row) {
  const T* s = fetch_row(f, row);
  Moments<double> total;
  for (int64_t begin = 0; begin < f.cols; begin += kChunk) {
    const int64_t count = f.cols - begin < kChunk ? f.cols - begin : kChunk;
    const Moments<double> part = moments_of<T>(f.kind, s + begin, count, 1 / double(count));
    total = begin == 0 ? part : merge(total, part);
  }
  apply<T>(f, s, f.y.target(row), finish(f, row, total));
  f.y.write(row);
}

/// kGroup short rows, a step for all before the next step: the sums of one row are a chain of dependent operations, and
/// the other rows fill its gaps. Each row's own operations are those of forward_row.
template <class T>
NORMACT_SIMD void forward_group(const Forward<T>& f, int64_t row) {
  const T* s[kGroup];
  Accumulator<T> mean[kGroup];
  Moments<double> moments[kGroup];
  Statistics statistics[kGroup];
  for (int r = 0; r < kGroup; ++r) s[r] = fetch_row(f, row + r);
  if (f.kind == NormKind::layer) {
    for (int r = 0; r < kGroup; ++r) mean[r] = first_mean(s[r], f.cols, f.share);
    for (int r = 0; r < kGroup; ++r) moments[r] = centred_moments(s[r], f.cols, f.share, mean[r]);
  } else {
    for (int r = 0; r < kGroup; ++r) moments[r] = raw_moments(s[r], f.cols);
  }
  for (int r = 0; r < kGroup; ++r) statistics[r] = finish(f, row + r, moments[r]);
  for (int r = 0; r < kGroup; ++r) apply<T>(f, s[r], f.y.target(row + r), statistics[r]);
}

template <class T>
void forward_rows(const ForwardWork& work, Range rows, void* scratch) {
  const RowProblem& p = *work.problem;
  const Forward<T> f(work, {0, p.geometry.cols}, static_cast<T*>(scratch));
  if (f.cols <= kLanes<T> && !f.activation) return forward_narrow(f, rows);
  int64_t row = rows.begin;
  if (in_groups<T>(p)) {
    for (; row + kGroup <= rows.end; row += kGroup) forward_group<T>(f, row);
  }
  for (; row < rows.end; ++row) forward_row<T>(f, row);
}

template <class T>
Moments<double> forward_moments(const ForwardWork& work, int64_t row, Range columns, void* scratch) {
  const Forward<T> f(work, columns, static_cast<T*>(scratch));
  return moments_of<T>(f.kind, fetch_row(f, row), f.cols, f.share);
}

template <class T>
Statistics forward_merge(const ForwardWork& work, int64_t row, const Moments<double>* chunks, int64_t count) {
  const Forward<T> f(work, {0, 0}, nullptr);
  Moments<double> total = chunks[0];
  for (int64_t i = 1; i < count; ++i) total = merge(total, chunks[i]);
  return finish(f, row, total);
}

template <class T>
void forward_apply(const ForwardWork& work, int64_t row, Range columns, Statistics statistics, void* scratch) {
  const Forward<T> f(work, columns, static_cast<T*>(scratch));
  const T* s = f.residual ? f.sum.read(row) : f.x.read(row);
  apply<T>(f, s, f.y.target(row), statistics);
  f.y.write(row);
}

}  // namespace normact::cpu::NORMACT_ISA
