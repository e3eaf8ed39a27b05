// SPDX-License-Identifier: Apache-2.0
// Backward row norms: a sweep for the two sums of each row and the parameter gradients, then one for dx from the cache.
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_kernels.h"
#include "cpu/simd.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

/// Which parameter gradients a sweep sums; dbias comes only together with dweight.
enum class Gradients { none, weight, both };

/// Rows of one sweep. Several rows share the loads and stores of what is per column; what a row's own sums are does not
/// depend on its companions.
template <class T, int kRows>
struct RowGroup {
  const T* dy[kRows];
  const T* x[kRows];
  Accumulator<T> mean[kRows];
  Accumulator<T> rstd[kRows];
  RowSums sums[kRows];
};

/// One vector of columns of every row: adds to the accumulators of each row and to the parameter sums.
template <class T, int kRows, Gradients kGradients, class Lanes>
NORMACT_SIMD void sum_vector(const RowGroup<T, kRows>& rows, const Accumulator<T>* weight, Accumulator<T>* dweight,
                             Accumulator<T>* dbias, int64_t j, Lanes lanes, Vec<T> (&g_sum)[kRows],
                             Vec<T> (&g_xhat_sum)[kRows]) {
  using V = Vec<T>;
  const V w = load(weight + j, lanes);
  V dw = {}, db = {};
  if constexpr (kGradients != Gradients::none) dw = load(dweight + j, lanes);
  if constexpr (kGradients == Gradients::both) db = load(dbias + j, lanes);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const V dy = load(rows.dy[r] + j, lanes);
    const V xhat = normalized(load(rows.x[r] + j, lanes), broadcast(rows.mean[r]), broadcast(rows.rstd[r]));
    const V g = dy * w;  // 0 in the lanes beyond the row
    g_sum[r] += g;
    g_xhat_sum[r] = multiply_add(g, keep(xhat, lanes), g_xhat_sum[r]);
    dw = multiply_add(dy, xhat, dw);
    db += dy;
  }
  if constexpr (kGradients != Gradients::none) store(dweight + j, dw, lanes);
  if constexpr (kGradients == Gradients::both) store(dbias + j, db, lanes);
}

/// The first sweep over at most kChunk columns.
template <class T, int kRows, Gradients kGradients>
NORMACT_SIMD void sum_chunk(RowGroup<T, kRows>& rows, const Accumulator<T>* weight, Accumulator<T>* dweight,
                            Accumulator<T>* dbias, Range columns) {
  using V = Vec<T>;
  constexpr int64_t kStep = kLanes<T>;
  constexpr int64_t kBlock = 32 * kStep;  // additions to one fp32 accumulator; blocks are added up in double
  double g_total[kRows] = {}, g_xhat_total[kRows] = {};
  for (int64_t begin = columns.begin; begin < columns.end; begin += kBlock) {
    const int64_t end = begin + kBlock < columns.end ? begin + kBlock : columns.end;
    V g[2][kRows] = {}, g_xhat[2][kRows] = {};
    int64_t j = begin;
    for (; j + 2 * kStep <= end; j += 2 * kStep) {
      sum_vector<T, kRows, kGradients>(rows, weight, dweight, dbias, j, All{}, g[0], g_xhat[0]);
      sum_vector<T, kRows, kGradients>(rows, weight, dweight, dbias, j + kStep, All{}, g[1], g_xhat[1]);
    }
    if (j + kStep <= end) {
      sum_vector<T, kRows, kGradients>(rows, weight, dweight, dbias, j, All{}, g[0], g_xhat[0]);
      j += kStep;
    }
    if (j < end) {
      sum_vector<T, kRows, kGradients>(rows, weight, dweight, dbias, j, First{int(end - j)}, g[1], g_xhat[1]);
    }
    for (int r = 0; r < kRows; ++r) {
      g_total[r] += sum(g[0][r] + g[1][r]);
      g_xhat_total[r] += sum(g_xhat[0][r] + g_xhat[1][r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    rows.sums[r].g += g_total[r];
    rows.sums[r].g_xhat += g_xhat_total[r];
  }
}

/// The second sweep: dx of one row (dx may be any of the inputs).
template <class T, bool kResidual>
NORMACT_SIMD void input_gradients(const T* dy_row, const T* x_row, const T* dresidual, T* dx,
                                  const Accumulator<T>* weight, int64_t cols, Accumulator<T> mean_of_row,
                                  Accumulator<T> rstd_of_row, Accumulator<T> c1_of_row, Accumulator<T> c2_of_row) {
  using V = Vec<T>;
  const V mean = broadcast(mean_of_row), rstd = broadcast(rstd_of_row);
  const V c1 = broadcast(c1_of_row), c2 = broadcast(c2_of_row);
  for_vectors<T>(cols, [&](int64_t j, auto lanes) {
    const V g = load(dy_row + j, lanes) * load(weight + j, lanes);
    const V xhat = normalized(load(x_row + j, lanes), mean, rstd);
    V value = input_gradient(g, xhat, rstd, c1, c2);
    if constexpr (kResidual) value += load(dresidual + j, lanes);
    store(dx + j, value, lanes);
  });
}

/// The mean that is subtracted from row: 0 for rms.
template <class T>
NORMACT_SIMD Accumulator<T> mean_of(const RowBackward& p, int64_t row) {
  return p.mean.data ? row_element<Accumulator<T>>(p, p.mean, row) : 0;
}

/// dx of one row; dy and x are its columns, scratch_dx and scratch_residual serve problems that are not contiguous.
template <class T>
NORMACT_SIMD void finish_row(const BackwardWork& work, int64_t row, Range columns, const T* dy, const T* x,
                             RowSums total, T* scratch_dx, T* scratch_residual) {
  using N = Accumulator<T>;
  const RowBackward& p = *work.problem;
  const int64_t cols = columns.end - columns.begin;
  const double count = double(p.geometry.cols);
  const N* weight = static_cast<const N*>(work.weight) + columns.begin;
  const N mean = mean_of<T>(p, row), rstd = row_element<N>(p, p.rstd, row);
  const N c1 = p.kind == NormKind::layer ? N(total.g / count) : 0, c2 = N(total.g_xhat / count);
  const RowView<T> dx(p, p.dx, row, columns, scratch_dx);
  if (p.dresidual.data) {
    const T* dresidual = RowView<T>(p, p.dresidual, row, columns, scratch_residual).read().data();
    input_gradients<T, true>(dy, x, dresidual, dx.data(), weight, cols, mean, rstd, c1, c2);
  } else {
    input_gradients<T, false>(dy, x, nullptr, dx.data(), weight, cols, mean, rstd, c1, c2);
  }
  dx.write();
}

/// Both sweeps of kRows rows that begin at `row`.
template <class T, int kRows, Gradients kGradients>
NORMACT_SIMD void backward_group(const BackwardWork& work, int64_t row, ParameterSums sums, T* scratch) {
  using N = Accumulator<T>;
  const RowBackward& p = *work.problem;
  const int64_t cols = p.geometry.cols;
  const Range all = {0, cols};
  RowGroup<T, kRows> rows = {};
  for (int r = 0; r < kRows; ++r) {
    rows.dy[r] = RowView<T>(p, p.dy, row + r, all, scratch + 2 * r * cols).read().data();
    rows.x[r] = RowView<T>(p, p.x, row + r, all, scratch + (2 * r + 1) * cols).read().data();
    rows.mean[r] = mean_of<T>(p, row + r);
    rows.rstd[r] = row_element<N>(p, p.rstd, row + r);
  }
  for (int64_t begin = 0; begin < cols; begin += kChunk) {
    const Range chunk = {begin, begin + kChunk < cols ? begin + kChunk : cols};
    sum_chunk<T, kRows, kGradients>(rows, static_cast<const N*>(work.weight), static_cast<N*>(sums.dweight),
                                    static_cast<N*>(sums.dbias), chunk);
  }
  for (int r = 0; r < kRows; ++r) {
    finish_row<T>(work, row + r, all, rows.dy[r], rows.x[r], rows.sums[r], scratch + 2 * r * cols,
                  scratch + 2 * kMaxGroup * cols);
  }
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kGroup = 4;  // 32 vector registers
#else
constexpr int kGroup = 2;  // 16
#endif
constexpr int64_t kMaxGroupCols = 4 * kChunk;  // longer rows go one by one, to be in the cache for the second sweep

template <class T, Gradients kGradients>
void backward_rows_with(const BackwardWork& work, Range rows, ParameterSums sums, T* scratch) {
  int64_t row = rows.begin;
  if (work.problem->geometry.cols <= kMaxGroupCols) {
    for (; row + kGroup <= rows.end; row += kGroup) backward_group<T, kGroup, kGradients>(work, row, sums, scratch);
  }
  for (; row < rows.end; ++row) backward_group<T, 1, kGradients>(work, row, sums, scratch);
}

template <class T>
void backward_rows(const BackwardWork& work, Range rows, ParameterSums sums, void* scratch) {
  T* const buffer = static_cast<T*>(scratch);
  if (sums.dbias) return backward_rows_with<T, Gradients::both>(work, rows, sums, buffer);
  if (sums.dweight) return backward_rows_with<T, Gradients::weight>(work, rows, sums, buffer);
  backward_rows_with<T, Gradients::none>(work, rows, sums, buffer);
}

template <class T>
RowSums backward_sums(const BackwardWork& work, int64_t row, Range columns, ParameterSums sums, void* scratch) {
  using N = Accumulator<T>;
  const RowBackward& p = *work.problem;
  const int64_t cols = columns.end - columns.begin;
  T* const buffer = static_cast<T*>(scratch);
  RowGroup<T, 1> rows = {};
  rows.dy[0] = RowView<T>(p, p.dy, row, columns, buffer).read().data();
  rows.x[0] = RowView<T>(p, p.x, row, columns, buffer + cols).read().data();
  rows.mean[0] = mean_of<T>(p, row);
  rows.rstd[0] = row_element<N>(p, p.rstd, row);
  const N* weight = static_cast<const N*>(work.weight) + columns.begin;
  N* dweight = sums.dweight ? static_cast<N*>(sums.dweight) + columns.begin : nullptr;
  N* dbias = sums.dbias ? static_cast<N*>(sums.dbias) + columns.begin : nullptr;
  const Range local = {0, cols};
  if (dbias) {
    sum_chunk<T, 1, Gradients::both>(rows, weight, dweight, dbias, local);
  } else if (dweight) {
    sum_chunk<T, 1, Gradients::weight>(rows, weight, dweight, dbias, local);
  } else {
    sum_chunk<T, 1, Gradients::none>(rows, weight, dweight, dbias, local);
  }
  return rows.sums[0];
}

template <class T>
void backward_apply(const BackwardWork& work, int64_t row, Range columns, RowSums total, void* scratch) {
  const RowBackward& p = *work.problem;
  const int64_t cols = columns.end - columns.begin;
  T* const buffer = static_cast<T*>(scratch);
  const T* dy = RowView<T>(p, p.dy, row, columns, buffer).read().data();
  const T* x = RowView<T>(p, p.x, row, columns, buffer + cols).read().data();
  finish_row<T>(work, row, columns, dy, x, total, buffer, buffer + 2 * cols);
}

}  // namespace normact::cpu::NORMACT_ISA
