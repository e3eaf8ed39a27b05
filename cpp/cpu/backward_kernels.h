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
constexpr int64_t kMaxSharedFinishCols = 512;  // rows that share the second sweep too; longer ones are faster apart
constexpr int64_t kMinFarSharedCols = 2048;    // from memory, shorter rows come faster one by one, asked for early

/// Rows that go through the sweeps together, with what the second reads and writes beside.
template <class T, class X, int kRows>
struct RowGroup {
  GradientRow<T, X> rows[kRows];
  const T* dresidual[kRows];
  InputGradient<T, X> to[kRows];
};

/// One row of a problem of any strides; write_row() then puts its gradients in place.
template <class T, class X>
__attribute__((noinline)) RowGroup<T, X, 1> gather_group(const Backward<T, X>& b, int64_t index) {
  return {{fetch_row(b, index)},
          {b.dresidual ? b.dresidual.read(index) : nullptr},
          {{b.dx.target(index), b.daddend ? b.daddend.target(index) : nullptr}}};
}

template <class T, class X>
NORMACT_SIMD void write_row(const Backward<T, X>& b, int64_t index) {
  b.dx.write(index);
  if (b.daddend) b.daddend.write(index);
}

/// Of a plain problem.
template <int kRows, class T, class X>
NORMACT_SIMD RowGroup<T, X, kRows> plain_group(const Backward<T, X>& b, int64_t index) {
  RowGroup<T, X, kRows> group;
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = index + r;
    group.rows[r] = {b.dy.plain(row), b.x.plain(row), b.mean ? *b.mean.plain(row) : 0, *b.rstd.plain(row)};
    group.dresidual[r] = b.dresidual ? b.dresidual.plain(row) : nullptr;
    group.to[r] = {b.dx.plain(row), b.daddend ? b.daddend.plain(row) : nullptr};
  }
  return group;
}

/// dx of a group from the sums over the whole rows.
template <bool kFar, class T, class X, int kRows>
NORMACT_SIMD void finish_group(const Backward<T, X>& b, const RowGroup<T, X, kRows>& group,
                               const RowSums (&totals)[kRows]) {
  InputFactors<T> c[kRows];
  for (int r = 0; r < kRows; ++r) c[r] = InputFactors<T>(b, group.rows[r].rstd, totals[r]);
  if constexpr (kRows > 1) {
    if (b.cols <= kMaxSharedFinishCols) {
      return input_gradients<T, kRows, kFar>(b.streams, group.rows, group.dresidual, group.to, b.weight, b.cols, c);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    write_gradients<T, kFar>(b, group.rows[r], group.dresidual[r], group.to[r], 0, b.cols, c[r]);
  }
}

/// The group of rows from `index`, of any length. A function of its own, without calls, so that the sums have the
/// registers, and without a way of the group through memory: it would be read in other pieces than it is written.
template <int kRows, Gradients kGradients, bool kPlain, bool kFar, class T, class X>
__attribute__((noinline)) NORMACT_SCALARS_APART void backward_group(const Backward<T, X>& b, int64_t index) {
  const auto group = [&]() __attribute__((always_inline)) {
    if constexpr (kPlain) {
      return plain_group<kRows>(b, index);
    } else {
      return gather_group(b, index);
    }
  }();
  RowSums totals[kRows] = {};
  sum_columns<T, kRows, kGradients, kFar>(group.rows, b.weight, b.dweight, b.dbias, b.cols, totals);
  finish_group<kFar>(b, group, totals);
  if constexpr (!kPlain) write_row(b, index);
}

template <Gradients kGradients, class T, class X>
NORMACT_SIMD void backward_rows_with(const Backward<T, X>& b, Range rows, bool in_groups, bool far) {
  int64_t row = rows.begin;
  if (!b.plain) {
    for (; row < rows.end; ++row) backward_group<1, kGradients, false, false>(b, row);
  }
  if (in_groups) {
    for (; row + kSharedRows <= rows.end; row += kSharedRows)
      backward_group<kSharedRows, kGradients, true, false>(b, row);
  }
  if (far) {
    for (; row < rows.end; ++row) backward_group<1, kGradients, true, true>(b, row);
  }
  for (; row < rows.end; ++row) backward_group<1, kGradients, true, false>(b, row);
}

template <class T, class X>
void backward_rows(const BackwardWork& work, Range rows, ParameterSums sums, void* scratch) {
  const RowProblem& p = *work.problem;
  const Backward<T, X> b(work, {0, p.geometry.cols}, sums, scratch);
  const bool far = b.plain && p.geometry.rows * b.cols * int64_t(sizeof(T)) >= kFarBytes;
  const bool in_groups = b.plain && b.cols <= kMaxSharedCols && !(far && b.cols < kMinFarSharedCols);
  if (b.activation) {
    backward_activated_rows(b, rows);
  } else if (b.cols <= kNarrowVectors * kLanes<T>) {
    backward_narrow(b, rows);
  } else if (b.dbias) {
    backward_rows_with<Gradients::both>(b, rows, in_groups, far);
  } else if (b.dweight) {
    backward_rows_with<Gradients::weight>(b, rows, in_groups, far);
  } else {
    backward_rows_with<Gradients::none>(b, rows, in_groups, far);
  }
  if (b.streams) stream_fence();
}

template <class T, class X>
RowSums backward_sums(const BackwardWork& work, int64_t index, Range columns, ParameterSums sums, void* scratch) {
  const Backward<T, X> b(work, columns, sums, scratch);
  const GradientRow<T, X> row[1] = {fetch_row(b, index)};
  if (b.activation) {
    Activated<T> g;
    return activated_sums(b, row[0], {0, b.cols}, g);
  }
  RowSums total[1] = {};
  if (b.dbias) {
    sum_columns<T, 1, Gradients::both, false>(row, b.weight, b.dweight, b.dbias, b.cols, total);
  } else if (b.dweight) {
    sum_columns<T, 1, Gradients::weight, false>(row, b.weight, b.dweight, b.dbias, b.cols, total);
  } else {
    sum_columns<T, 1, Gradients::none, false>(row, b.weight, b.dweight, b.dbias, b.cols, total);
  }
  return total[0];
}

template <class T, class X>
void backward_apply(const BackwardWork& work, int64_t index, Range columns, RowSums total, void* scratch) {
  const Backward<T, X> b(work, columns, {}, scratch);
  if (b.activation) {
    Activated<T> g;
    finish_activated_row(b, index, fetch_row(b, index), total, g);
  } else {
    finish_group<false>(b, gather_group(b, index), {total});
    write_row(b, index);
  }
  if (b.streams) stream_fence();
}

}  // namespace normact::cpu::NORMACT_ISA
