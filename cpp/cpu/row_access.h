// SPDX-License-Identifier: Apache-2.0
// Rows as arrays without gaps: where the tensor's are, themselves; otherwise gathered into scratch and scattered back.
#pragma once

#include "core/problem.h"
#include "cpu/row_kernels.h"
#include "cpu/simd.h"

namespace normact::cpu::NORMACT_ISA {

/// visit(offset of the columns' first element, step, how many) for each run of columns with one stride.
template <class Visit>
NORMACT_SIMD void for_runs(const RowGeometry& geometry, const int64_t* stride, Range columns, Visit visit) {
  const int last = geometry.col_ndim - 1;
  const int64_t inner = geometry.col_shape[last];
  for (int64_t column = columns.begin; column < columns.end;) {
    const int64_t to_end = columns.end - column;
    const int64_t to_turn = inner - column % inner;
    const int64_t count = to_turn < to_end ? to_turn : to_end;
    visit(strided_offset(column, geometry.col_ndim, geometry.col_shape, stride), stride[last], count);
    column += count;
  }
}

/// The rows of one operand with columns.
template <class T>
class RowView {
 public:
  /// scratch: room for columns.end - columns.begin elements, used if the problem is not contiguous.
  NORMACT_SIMD RowView(const RowProblem& problem, const Operand& operand, int64_t row, Range columns, T* scratch)
      : geometry_(problem.geometry), operand_(operand), columns_(columns), direct_(problem.contiguous) {
    base_ = static_cast<T*>(operand.data) +
            strided_offset(row, geometry_.row_ndim, geometry_.row_shape, operand.row_stride);
    data_ = direct_ ? base_ + columns.begin : scratch;
  }

  /// The columns as an array; of an input that read() has fetched, or of an output that write() will put in place.
  NORMACT_SIMD T* data() const { return data_; }

  NORMACT_SIMD const RowView& read() const {
    if (!direct_) gather();
    return *this;
  }
  NORMACT_SIMD void write() const {
    if (!direct_) scatter();
  }

 private:
  __attribute__((noinline)) void gather() const {
    T* target = data_;
    for_runs(geometry_, operand_.col_stride, columns_, [&](int64_t offset, int64_t step, int64_t count) {
      for (int64_t i = 0; i < count; ++i) *target++ = base_[offset + i * step];
    });
  }
  __attribute__((noinline)) void scatter() const {
    const T* source = data_;
    for_runs(geometry_, operand_.col_stride, columns_, [&](int64_t offset, int64_t step, int64_t count) {
      for (int64_t i = 0; i < count; ++i) base_[offset + i * step] = *source++;
    });
  }

  const RowGeometry& geometry_;
  const Operand& operand_;
  Range columns_;
  bool direct_;
  T* base_;
  T* data_;
};

/// One element of an operand that has no columns (mean, rstd).
template <class N>
NORMACT_SIMD N& row_element(const RowProblem& problem, const Operand& operand, int64_t row) {
  return static_cast<N*>(operand.data)[strided_offset(row, problem.geometry.row_ndim, problem.geometry.row_shape,
                                                      operand.row_stride)];
}

}  // namespace normact::cpu::NORMACT_ISA
