// SPDX-License-Identifier: Apache-2.0
// Backward row norms with an activation: the sweeps of backward_sweeps.h over dy * act'(h), some hundred columns of
// which are in a buffer at a time.
#pragma once

#include "cpu/backward_sweeps.h"
#include "cpu/row_affine.h"

namespace normact::cpu::NORMACT_ISA {

/// dy * act'(h) of some columns. What is past a row's end must be numbers too.
template <class T>
struct Activated {
  alignas(64) Accumulator<T> g[kActivated] = {};
};

/// The first sweep over at most kChunk columns.
template <class T, class X>
__attribute__((noinline)) RowSums activated_sums(const Backward<T, X>& b, const GradientRow<T, X>& row, Range columns,
                                                 Activated<T>& buffer) {
  RowSums sums[1] = {};
  for (int64_t begin = columns.begin; begin < columns.end; begin += kActivated) {
    const int64_t count = columns.end - begin < kActivated ? columns.end - begin : kActivated;
    activated_gradients(b, row, begin, count, buffer.g);
    const GradientRow<T, Accumulator<T>> rows[1] = {{buffer.g, row.x + begin, row.mean, row.rstd}};
    const auto sweep = [&]<Gradients kGradients>(auto* dweight, auto* dbias) __attribute__((always_inline)) {
      sum_columns<T, 1, kGradients, false>(rows, b.weight + begin, dweight, dbias, count, sums);
    };
    if (b.dbias) {
      sweep.template operator()<Gradients::both>(b.dweight + begin, b.dbias + begin);
    } else if (b.dweight) {
      sweep.template operator()<Gradients::weight>(b.dweight + begin, b.dbias);
    } else {
      sweep.template operator()<Gradients::none>(b.dweight, b.dbias);
    }
  }
  return sums[0];
}

/// dx of a fetched row. A row that fits into the buffer is still there from the first sweep.
template <class T, class X>
__attribute__((noinline)) void finish_activated_row(const Backward<T, X>& b, int64_t index,
                                                    const GradientRow<T, X>& row, RowSums total, Activated<T>& buffer,
                                                    bool ready = false) {
  const InputFactors<T> c(b, row.rstd, total);
  const InputGradient<T, X> to = {b.dx.target(index), b.daddend ? b.daddend.target(index) : nullptr};
  const T* const dresidual = b.dresidual ? b.dresidual.read(index) : nullptr;
  for (int64_t begin = 0; begin < b.cols; begin += kActivated) {
    const int64_t count = b.cols - begin < kActivated ? b.cols - begin : kActivated;
    if (!ready) activated_gradients(b, row, begin, count, buffer.g);
    const GradientRow<T, Accumulator<T>> piece = {buffer.g, row.x + begin, row.mean, row.rstd};
    write_gradients<T, false>(b, piece, dresidual, to, begin, count, c);
  }
  b.dx.write(index);
  if (b.daddend) b.daddend.write(index);
}

/// Rows of any length. Sums of chunks join in order, as where threads share a row.
template <class T, class X>
__attribute__((noinline)) void backward_activated_rows(const Backward<T, X>& b, Range rows) {
  Activated<T> buffer;
  for (int64_t index = rows.begin; index < rows.end; ++index) {
    const GradientRow<T, X> row = fetch_row(b, index);
    RowSums total = {};
    for (int64_t begin = 0; begin < b.cols; begin += kChunk) {
      const RowSums part = activated_sums(b, row, {begin, begin + kChunk < b.cols ? begin + kChunk : b.cols}, buffer);
      total.g += part.g;
      total.g_xhat += part.g_xhat;
    }
    finish_activated_row(b, index, row, total, buffer, b.cols <= kActivated);
  }
}

}  // namespace normact::cpu::NORMACT_ISA
