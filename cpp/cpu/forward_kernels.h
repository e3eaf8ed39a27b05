// SPDX-License-Identifier: Apache-2.0
// Forward row norms: y = act(affine(normalized(s))), s = x or round(x + residual).
#pragma once

#include "cpu/narrow_kernels.h"
#include "cpu/row_affine.h"
#include "cpu/row_kernels.h"
#include "cpu/row_views.h"
#include "cpu/simd_element.h"
#include "cpu/simd_sums.h"
#include "math/moments.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

// Rows that go through the steps together if they are this short (longer rows hide their own latency) ...
constexpr int kGroup = 4;
constexpr int64_t kGroupCols = 1024;
constexpr int kLargeGroup = 8;
constexpr int64_t kLargeGroupCols = 512;

/// ... and come from a cache near by; what comes from farther is faster row by row, unless conversions take the time
/// (fp32 on a Xeon, 512x768 and 512x1000: 125 and 175 us in groups, 114 and 162 row by row).
template <class T, class X>
NORMACT_SIMD bool in_groups(const RowProblem& problem) {
  constexpr int64_t kCacheBytes = 1024 * 1024;
  const RowGeometry& geometry = problem.geometry;
  if (!problem.contiguous || geometry.cols > kGroupCols) return false;
  return sizeof(X) == 2 || geometry.rows * geometry.cols * int64_t(sizeof(T)) <= kCacheBytes;
}

/// totals[k][r] += the sums of what term(row, column, lanes, accumulators) adds to accumulators[k], over all columns of
/// row r. A block is short enough for fp32 (16 additions to an accumulator); blocks are added up in double.
template <class T, int kSums, int kRows, class Term>
NORMACT_SIMD void block_sums(int64_t cols, double (&totals)[kSums][kRows], Term term) {
  constexpr int64_t kStep = kLanes<T>;
  constexpr int64_t kBlock = 64 * kStep;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    Vec<T> sums[kSums][kRows];
    for (int r = 0; r < kRows; ++r) {
      Vec<T> a[4][kSums] = {};
      int64_t column = begin;
      for (; column + 4 * kStep <= end; column += 4 * kStep) {
        term(r, column, All{}, a[0]);
        term(r, column + kStep, All{}, a[1]);
        term(r, column + 2 * kStep, All{}, a[2]);
        term(r, column + 3 * kStep, All{}, a[3]);
      }
      for (; column + kStep <= end; column += kStep) term(r, column, All{}, a[0]);
      if (column < end) term(r, column, First{int(end - column)}, a[1]);
      for (int k = 0; k < kSums; ++k) sums[k][r] = (a[0][k] + a[1][k]) + (a[2][k] + a[3][k]);
    }
    for (int k = 0; k < kSums; ++k) add_sums(totals[k], sums[k]);
  }
}

/// First pass of rows that are centred: their means (share = 1 / cols), as yet with the rounding of the sums.
template <class T, int kRows>
NORMACT_SIMD void first_means(const T* const (&s)[kRows], int64_t cols, double share, Accumulator<T> (&means)[kRows]) {
  double totals[1][kRows] = {};
  block_sums<T>(cols, totals, [&](int r, int64_t j, auto lanes, Vec<T>* a) { a[0] += load(s[r] + j, lanes); });
  for (int r = 0; r < kRows; ++r) means[r] = Accumulator<T>(totals[0][r] * share);
}

/// Second pass: the squares centred on `shifts`, the first means.
template <class T, int kRows>
NORMACT_SIMD RowMoments<kRows> centred_moments(const T* const (&s)[kRows], int64_t cols, double share,
                                               const Accumulator<T> (&shifts)[kRows]) {
  using V = Vec<T>;
  double totals[2][kRows] = {};
  block_sums<T>(cols, totals, [&](int r, int64_t j, auto lanes, V* a) {
    const V d = keep(load(s[r] + j, lanes) - broadcast(shifts[r]), lanes);
    a[0] += d;
    a[1] = multiply_add(d, d, a[1]);
  });
  RowMoments<kRows> moments;
  for (int r = 0; r < kRows; ++r) {
    const Moments<double> of_row = corrected(shifts[r], totals[0][r], totals[1][r], cols, share);
    moments.mean[r] = of_row.mean;
    moments.m2[r] = of_row.m2;
  }
  return moments;
}

template <class T, int kRows>
NORMACT_SIMD RowMoments<kRows> raw_moments(const T* const (&s)[kRows], int64_t cols) {
  double squares[1][kRows] = {};
  block_sums<T>(cols, squares, [&](int r, int64_t j, auto lanes, Vec<T>* a) {
    const Vec<T> v = load(s[r] + j, lanes);
    a[0] = multiply_add(v, v, a[0]);
  });
  RowMoments<kRows> moments = {};
  for (int r = 0; r < kRows; ++r) moments.m2[r] = squares[0][r];
  return moments;
}

/// A row's moments do not depend on its companions.
template <class T, int kRows>
NORMACT_SIMD RowMoments<kRows> moments_of(NormKind kind, const T* const (&s)[kRows], int64_t cols, double share) {
  if (kind == NormKind::rms) return raw_moments<T, kRows>(s, cols);
  Accumulator<T> means[kRows];
  first_means<T, kRows>(s, cols, share, means);
  return centred_moments<T, kRows>(s, cols, share, means);
}

template <class T>
NORMACT_SIMD Moments<double> moments_of(NormKind kind, const T* s, int64_t cols, double share) {
  const T* const rows[1] = {s};
  const RowMoments<1> moments = moments_of<T, 1>(kind, rows, cols, share);
  return {moments.mean[0], moments.m2[0], double(cols)};
}

template <class T, class X>
NORMACT_SIMD void apply(const Forward<T, X>& f, const T* s, X* y, Statistics statistics) {
  if (f.activation) [[unlikely]]
    return normalize_activated(f, s, y, statistics);
  if (f.streams) return normalize_streamed(f, s, y, statistics);
  normalize<T>(s, y, f.weight, f.bias, f.cols, statistics);
}

/// One row of any length.
template <class T, class X>
NORMACT_SIMD void forward_row(const Forward<T, X>& f, int64_t row) {
  NearRows<T, 1> near;
  const T* s = fetch_row(f, row, near.row(f, 0));
  Moments<double> total;
  for (int64_t begin = 0; begin < f.cols; begin += kChunk) {
    const int64_t count = f.cols - begin < kChunk ? f.cols - begin : kChunk;
    const Moments<double> part = moments_of<T>(f.kind, s + begin, count, 1 / double(count));
    total = begin == 0 ? part : merge(total, part);
  }
  apply(f, s, f.y.target(row), finish(f, row, total));
  f.y.write(row);
}

/// Short rows, a step for all before the next step: the sums of one row are a chain of dependent operations, and the
/// other rows fill its gaps.
template <int kRows, class T, class X>
NORMACT_SIMD void forward_group(const Forward<T, X>& f, int64_t row) {
  const T* s[kRows];
  Accumulator<T> mean[kRows], rstd[kRows];
  NearRows<T, kRows> near;
  for (int r = 0; r < kRows; ++r) s[r] = fetch_row(f, row + r, near.row(f, r));
  finish<T, kRows>(f, row, moments_of<T, kRows>(f.kind, s, f.cols, f.share), double(f.cols), mean, rstd);
  for (int r = 0; r < kRows; ++r) apply(f, s[r], f.y.target(row + r), {mean[r], rstd[r]});
}

template <class T, class X>
void forward_rows(const ForwardWork& work, Range rows, void* scratch) {
  const RowProblem& p = *work.problem;
  const Forward<T, X> f(work, {0, p.geometry.cols}, scratch);
  if (f.cols <= kLanes<T> && !f.activation) return forward_narrow(f, rows);
  int64_t row = rows.begin;
  if (in_groups<T, X>(p)) {
    if (f.cols <= kLargeGroupCols) {
      for (; row + kLargeGroup <= rows.end; row += kLargeGroup) forward_group<kLargeGroup>(f, row);
    }
    for (; row + kGroup <= rows.end; row += kGroup) forward_group<kGroup>(f, row);
  }
  for (; row < rows.end; ++row) forward_row(f, row);
  if (f.streams || f.streams_sum) stream_fence();
}

template <class T, class X>
Moments<double> forward_moments(const ForwardWork& work, int64_t row, Range columns, void* scratch) {
  const Forward<T, X> f(work, columns, scratch);
  return moments_of<T>(f.kind, fetch_row(f, row), f.cols, f.share);
}

template <class T, class X>
Statistics forward_merge(const ForwardWork& work, int64_t row, const Moments<double>* chunks, int64_t count) {
  const Forward<T, X> f(work, {0, 0}, nullptr);
  Moments<double> total = chunks[0];
  for (int64_t i = 1; i < count; ++i) total = merge(total, chunks[i]);
  return finish(f, row, total);
}

template <class T, class X>
void forward_apply(const ForwardWork& work, int64_t row, Range columns, Statistics statistics, void* scratch) {
  const Forward<T, X> f(work, columns, scratch);
  const T* s;
  if constexpr (std::is_same_v<T, X>) {
    s = f.residual ? f.sum.read(row) : f.x.read(row);
  } else {
    s = f.sum.read(row);
  }
  apply(f, s, f.y.target(row), statistics);
  f.y.write(row);
  if (f.streams) stream_fence();
}

}  // namespace normact::cpu::NORMACT_ISA
