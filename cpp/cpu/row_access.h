// SPDX-License-Identifier: Apache-2.0
// Rows as arrays without gaps: where the tensor's are, themselves; otherwise gathered into scratch and scattered back.
//
// These objects are made once per kernel call and copied out of the problem: the compiler must assume that a store to a
// tensor changes the problem, but can keep a local object in registers.
#pragma once

#include "core/problem.h"
#include "cpu/row_kernels.h"
#include "cpu/simd_element.h"
#include "cpu/strided_copy.h"

namespace normact::cpu::NORMACT_ISA {

/// visit(offset of the run's first element, step, how many) for each run with one stride in a range of an index space.
/// Only the first is found by divisions.
template <class Visit>
NORMACT_SIMD void for_runs(int ndim, const int64_t* shape, const int64_t* stride, Range range, Visit visit) {
  if (range.begin >= range.end) return;
  const int last = ndim - 1;
  int64_t at[kMaxDims];  // the index of the run's first element
  int64_t offset = 0, rest = range.begin;
  for (int d = last; d >= 0; --d) {
    const int64_t next = d > 0 ? rest / shape[d] : 0;
    at[d] = rest - next * shape[d];
    offset += at[d] * stride[d];
    rest = next;
  }
  for (int64_t left = range.end - range.begin; left > 0;) {
    const int64_t to_turn = shape[last] - at[last], count = to_turn < left ? to_turn : left;
    visit(offset, stride[last], count);
    left -= count;
    if (left == 0) return;
    offset -= at[last] * stride[last];
    at[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      offset += stride[d];
      if (++at[d] < shape[d]) break;
      offset -= shape[d] * stride[d];
      at[d] = 0;
    }
  }
}

/// base: where the index space begins.
template <class T>
__attribute__((noinline)) void gather(const T* base, int ndim, const int64_t* shape, const int64_t* stride, Range range,
                                      T* target) {
  for_runs(ndim, shape, stride, range, [&](int64_t offset, int64_t step, int64_t count) {
    copy_from(base + offset, step, count, target);
    target += count;
  });
}

template <class T>
__attribute__((noinline)) void scatter(const T* source, int ndim, const int64_t* shape, const int64_t* stride,
                                       Range range, T* base) {
  for_runs(ndim, shape, stride, range, [&](int64_t offset, int64_t step, int64_t count) {
    copy_to(source, step, count, base + offset);
    source += count;
  });
}

/// Where the rows of an operand begin.
template <class T>
class RowStarts {
 public:
  NORMACT_SIMD RowStarts(const RowProblem& problem, const Operand& operand)
      : geometry_(&problem.geometry),
        row_stride_(operand.row_stride),
        data_(static_cast<T*>(operand.data)),
        stride_(operand.row_stride[0]),
        one_dimension_(problem.geometry.row_ndim == 1) {}

  /// Whether there is such an operand.
  NORMACT_SIMD explicit operator bool() const { return data_ != nullptr; }

  NORMACT_SIMD T* operator[](int64_t row) const {
    if (one_dimension_) return data_ + row * stride_;
    return data_ + strided_offset(row, geometry_->row_ndim, geometry_->row_shape, row_stride_);
  }
  /// Those of neighbouring rows, of an operand without columns; zeros where there is none.
  NORMACT_SIMD void read(int64_t row, int64_t count, T* target) const {
    for (int64_t i = 0; !data_ && i < count; ++i) target[i] = 0;
    if (data_) gather<T>(data_, geometry_->row_ndim, geometry_->row_shape, row_stride_, {row, row + count}, target);
  }
  /// Nothing where there is none.
  NORMACT_SIMD void write(int64_t row, int64_t count, const T* source) const {
    if (data_) scatter<T>(source, geometry_->row_ndim, geometry_->row_shape, row_stride_, {row, row + count}, data_);
  }
  /// The same where the rows have one dimension.
  NORMACT_SIMD T* plain(int64_t row) const { return data_ + row * stride_; }

 private:
  const RowGeometry* geometry_;
  const int64_t* row_stride_;
  T* data_;
  int64_t stride_;
  bool one_dimension_;
};

/// A range of columns of the rows of an operand.
template <class T>
class Rows {
 public:
  /// scratch: room for the columns, used if the problem is not contiguous.
  NORMACT_SIMD Rows(const RowProblem& problem, const Operand& operand, Range columns, T* scratch)
      : starts_(problem, operand),
        geometry_(&problem.geometry),
        operand_(&operand),
        columns_(columns),
        scratch_(scratch),
        contiguous_(problem.contiguous) {}

  NORMACT_SIMD explicit operator bool() const { return bool(starts_); }

  /// The columns as an array, for reading.
  NORMACT_SIMD T* read(int64_t row) const {
    if (contiguous_) return starts_[row] + columns_.begin;
    gather<T>(starts_[row], geometry_->col_ndim, geometry_->col_shape, operand_->col_stride, columns_, scratch_);
    return scratch_;
  }
  /// The columns as an array of a contiguous problem whose rows have one dimension, for reading or writing.
  NORMACT_SIMD T* plain(int64_t row) const { return starts_.plain(row) + columns_.begin; }
  /// The same for writing; write() then puts them in place.
  NORMACT_SIMD T* target(int64_t row) const { return contiguous_ ? starts_[row] + columns_.begin : scratch_; }
  NORMACT_SIMD void write(int64_t row) const {
    if (contiguous_) return;
    scatter<T>(scratch_, geometry_->col_ndim, geometry_->col_shape, operand_->col_stride, columns_, starts_[row]);
  }

 private:
  RowStarts<T> starts_;
  const RowGeometry* geometry_;
  const Operand* operand_;
  Range columns_;
  T* scratch_;
  bool contiguous_;
};

}  // namespace normact::cpu::NORMACT_ISA
