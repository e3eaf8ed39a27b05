// SPDX-License-Identifier: Apache-2.0
// Backward row norms: a sweep for the two sums of each row and the parameter gradients, then one for dx from the cache.
#pragma once

#include "cpu/backward_activated.h"
#include "cpu/backward_sweeps.h"
#include "cpu/narrow_kernels.h"

namespace normact::cpu::NORMACT_ISA {

// Rows that go through the first sweep together: it reads and writes the parameter sums once for both, and their chains
// of additions fill each other's gaps. Four leave no room in the first cache and are slower than two.
constexpr int kSharedRows = 2;
// Longer rows would leave the second cache before the second sweep.
constexpr int64_t kMaxSharedCols = 4 * kChunk;
constexpr int64_t kMinFarSharedCols = 2048;  // from memory, shorter rows come faster one by one, asked for early

/// kRows rows of any length.
template <class T, int kRows, Gradients kGradients, bool kFar>
NORMACT_SIMD void backward_group(const Backward<T>& b, int64_t index) {
  GradientRow<T> rows[kRows];
  RowSums totals[kRows] = {};
  for (int r = 0; r < kRows; ++r) rows[r] = fetch_row(b, index + r);
  for (int64_t begin = 0; begin < b.cols; begin += kChunk) {
    const Range chunk = {begin, begin + kChunk < b.cols ? begin + kChunk : b.cols};
    sum_chunk<T, kRows, kGradients, kFar>(rows, b.weight, b.dweight, b.dbias, chunk, totals);
  }
  for (int r = 0; r < kRows; ++r) finish_row<T, kFar>(b, index + r, rows[r], totals[r]);
}

template <class T, Gradients kGradients>
NORMACT_SIMD void backward_rows_with(const Backward<T>& b, Range rows, bool in_groups, bool far) {
  int64_t row = rows.begin;
  if (in_groups) {
    for (; row + kSharedRows <= rows.end; row += kSharedRows) backward_group<T, kSharedRows, kGradients, false>(b, row);
  }
  if (far) {
    for (; row < rows.end; ++row) backward_group<T, 1, kGradients, true>(b, row);
  }
  for (; row < rows.end; ++row) backward_group<T, 1, kGradients, false>(b, row);
}

template <class T>
void backward_rows(const BackwardWork& work, Range rows, ParameterSums sums, void* scratch) {
  const RowProblem& p = *work.problem;
  const Backward<T> b(work, {0, p.geometry.cols}, sums, static_cast<T*>(scratch));
  const bool far = p.contiguous && p.geometry.rows * b.cols * int64_t(sizeof(T)) >= kFarBytes;
  const bool in_groups = p.contiguous && b.cols <= kMaxSharedCols && !(far && b.cols < kMinFarSharedCols);
  if (b.activation) {
    backward_activated_rows(b, rows);
  } else if (b.cols <= kNarrowVectors * kLanes<T>) {
    backward_narrow(b, rows);
  } else if (b.dbias) {
    backward_rows_with<T, Gradients::both>(b, rows, in_groups, far);
  } else if (b.dweight) {
    backward_rows_with<T, Gradients::weight>(b, rows, in_groups, far);
  } else {
    backward_rows_with<T, Gradients::none>(b, rows, in_groups, far);
  }
  if (b.streams) stream_fence();
}

template <class T>
RowSums backward_sums(const BackwardWork& work, int64_t index, Range columns, ParameterSums sums, void* scratch) {
  const Backward<T> b(work, columns, sums, static_cast<T*>(scratch));
  const GradientRow<T> row[1] = {fetch_row(b, index)};
  if (b.activation) {
    Activated<T> g;
    return activated_sums(b, row[0], {0, b.cols}, g);
  }
  RowSums total[1] = {};
  const Range all = {0, b.cols};
  if (b.dbias) {
    sum_chunk<T, 1, Gradients::both, false>(row, b.weight, b.dweight, b.dbias, all, total);
  } else if (b.dweight) {
    sum_chunk<T, 1, Gradients::weight, false>(row, b.weight, b.dweight, b.dbias, all, total);
  } else {
    sum_chunk<T, 1, Gradients::none, false>(row, b.weight, b.dweight, b.dbias, all, total);
  }
  return total[0];
}

template <class T>
void backward_apply(const BackwardWork& work, int64_t index, Range columns, RowSums total, void* scratch) {
  const Backward<T> b(work, columns, {}, static_cast<T*>(scratch));
  if (b.activation) {
    Activated<T> g;
    finish_activated_row(b, index, fetch_row(b, index), total, g);
  } else {
    finish_row<T, false>(b, index, fetch_row(b, index), total);
  }
  if (b.streams) stream_fence();
}

}  // namespace normact::cpu::NORMACT_ISA
