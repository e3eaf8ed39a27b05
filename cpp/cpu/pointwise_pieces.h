// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors as arrays without gaps: where the elements are, or gathered into a buffer and scattered back.
#pragma once

#include "cpu/pointwise_kernels.h"
#include "cpu/simd_element.h"
#include "cpu/simd_interleave.h"
#include "cpu/strided_copy.h"

namespace normact::cpu::NORMACT_ISA {

/// An element of the index space by its coordinates.
class Position {
 public:
  NORMACT_SIMD Position(const PointwiseGeometry& geometry, int64_t element) : geometry_(&geometry) {
    for (int d = geometry.ndim - 1; d > 0; --d) {
      const int64_t next = element / geometry.shape[d];
      index_[d] = element - next * geometry.shape[d];
      element = next;
    }
    index_[0] = element;
  }

  NORMACT_SIMD int64_t offset(const int64_t* stride) const {
    int64_t sum = index_[0] * stride[0];
    for (int d = 1; d < geometry_->ndim; ++d) sum += index_[d] * stride[d];
    return sum;
  }

  /// Elements up to the end of the innermost dimension.
  NORMACT_SIMD int64_t to_turn() const {
    const int last = geometry_->ndim - 1;
    return geometry_->shape[last] - index_[last];
  }

  /// Onwards by at most to_turn().
  NORMACT_SIMD void advance(int64_t count) { advance(count, geometry_->ndim - 1); }

  /// Whole lines, the elements of the innermost dimension, that begin here and lie evenly. Two dimensions or more.
  NORMACT_SIMD int64_t lines_to_turn() const {
    const int last = geometry_->ndim - 1;
    return index_[last] == 0 ? geometry_->shape[last - 1] - index_[last - 1] : 0;
  }
  /// Onwards by at most lines_to_turn().
  NORMACT_SIMD void advance_lines(int64_t count) { advance(count, geometry_->ndim - 2); }

  NORMACT_SIMD int64_t line() const { return geometry_->shape[geometry_->ndim - 1]; }

 private:
  NORMACT_SIMD void advance(int64_t count, int d) {
    index_[d] += count;
    for (; d > 0 && index_[d] == geometry_->shape[d]; --d) {
      index_[d] = 0;
      ++index_[d - 1];
    }
  }

  const PointwiseGeometry* geometry_;
  int64_t index_[kMaxDims];
};

constexpr int64_t kShortLine = 12;  // shorter ones are taken together, place by place

/// body(offset of the first element, step from one to the next, how many, where the first is in the piece, step there)
/// for elements that lie evenly: a run of the innermost dimension, or one place of many lines that are short.
template <class Body>
NORMACT_SIMD void for_even_elements(const int64_t* stride, int last, Position at, int64_t count, Body body) {
  const int64_t line = at.line();
  int64_t done = 0;
  while (done < count) {
    if (last > 0) {
      const int64_t to_turn = at.lines_to_turn(), whole = (count - done) / line;
      const int64_t lines = to_turn < whole ? to_turn : whole;
      if (lines > 1) {
        const int64_t offset = at.offset(stride), step = stride[last], apart = stride[last - 1];
        if (line < kShortLine) {
          for (int64_t i = 0; i < line; ++i) body(offset + i * step, apart, lines, done + i, line);
        } else {
          for (int64_t i = 0; i < lines; ++i) body(offset + i * apart, step, line, done + i * line, 1);
        }
        at.advance_lines(lines);
        done += lines * line;
        continue;
      }
    }
    const int64_t to_turn = at.to_turn(), rest = count - done, run = to_turn < rest ? to_turn : rest;
    body(at.offset(stride), stride[last], run, done, 1);
    at.advance(run);
    done += run;
  }
}

template <class T>
__attribute__((noinline)) void gather(const T* base, const int64_t* stride, int last, const Position& at, int64_t count,
                                      T* target) {
  for_even_elements(stride, last, at, count,
                    [&](int64_t offset, int64_t step, int64_t number, int64_t place, int64_t apart) {
                      copy_between(base + offset, step, number, target + place, apart);
                    });
}

template <class T>
__attribute__((noinline)) void scatter(const T* source, const int64_t* stride, int last, const Position& at,
                                       int64_t count, T* base) {
  for_even_elements(stride, last, at, count,
                    [&](int64_t offset, int64_t step, int64_t number, int64_t place, int64_t apart) {
                      copy_between(source + place, apart, number, base + offset, step);
                    });
}

/// A tensor, piece by piece.
template <class T>
class Pieces {
 public:
  /// buffer: room for a piece.
  NORMACT_SIMD Pieces(const PointwiseGeometry& geometry, const PieceRule& rule, const View& view, T* buffer)
      : base_(static_cast<T*>(view.data)),
        stride_(view.stride),
        last_(geometry.ndim - 1),
        direct_(rule.runs ? view.stride[last_] == 1 : is_dense(view, geometry)),
        buffer_(buffer) {}

  NORMACT_SIMD explicit operator bool() const { return base_ != nullptr; }

  /// Whether pieces are arrays in the tensor itself.
  NORMACT_SIMD bool direct() const { return direct_; }

  /// The piece as an array, for reading; null if there is no tensor.
  NORMACT_SIMD T* read(const Position& at, int64_t count) const {
    if (!base_) return nullptr;
    if (direct_) return base_ + at.offset(stride_);
    gather<T>(base_, stride_, last_, at, count, buffer_);
    return buffer_;
  }
  /// The same for writing; write() then puts it in place.
  NORMACT_SIMD T* target(const Position& at) const { return direct_ ? base_ + at.offset(stride_) : buffer_; }
  NORMACT_SIMD void write(const Position& at, int64_t count) const {
    if (!direct_) scatter<T>(buffer_, stride_, last_, at, count, base_);
  }

 private:
  T* base_;
  const int64_t* stride_;
  int last_;
  bool direct_;
  T* buffer_;
};

/// Two tensors, or one and none. If they lie in turn in one memory, that is gone through once for both.
template <class T>
class PiecesOfTwo {
 public:
  NORMACT_SIMD PiecesOfTwo(const PointwiseGeometry& geometry, const PieceRule& rule, const View& first,
                           const View& second, T* first_buffer, T* second_buffer)
      : first_(geometry, rule, first, first_buffer),
        second_(geometry, rule, second, second_buffer),
        base_(static_cast<T*>(first.data)),
        stride_(first.stride),
        last_(geometry.ndim - 1),
        first_buffer_(first_buffer),
        second_buffer_(second_buffer),
        asks_(rule.streams),
        in_turn_(base_ && !first_.direct() && second.data == base_ + 1 && first.stride[geometry.ndim - 1] == 2) {
    for (int d = 0; d < geometry.ndim; ++d) in_turn_ = in_turn_ && first.stride[d] == second.stride[d];
  }

  NORMACT_SIMD void read(const Position& at, int64_t count, const T*& first, const T*& second) const {
    if (!in_turn_) {
      first = first_.read(at, count);
      second = second_.read(at, count);
      return;
    }
    take_in_turn(at, count);
    first = first_buffer_;
    second = second_buffer_;
  }
  NORMACT_SIMD bool direct() const { return first_.direct() && (!second_ || second_.direct()); }
  NORMACT_SIMD void target(const Position& at, T*& first, T*& second) const {
    first = first_.target(at);
    second = second_ ? second_.target(at) : nullptr;
  }
  NORMACT_SIMD void write(const Position& at, int64_t count) const {
    if (in_turn_) return put_in_turn(at, count);
    first_.write(at, count);
    if (second_) second_.write(at, count);
  }

 private:
  __attribute__((noinline)) void take_in_turn(const Position& at, int64_t count) const {
    for_even_elements(
        stride_, last_, at, count, [&](int64_t offset, int64_t step, int64_t number, int64_t place, int64_t apart) {
          T *const from = base_ + offset, *const first = first_buffer_ + place, *const second = second_buffer_ + place;
          if (step == 2 && apart == 1) return deinterleave<T>(from, number, asks_, first, second);
          copy_between(from, step, number, first, apart);
          copy_between(from + 1, step, number, second, apart);
        });
  }
  __attribute__((noinline)) void put_in_turn(const Position& at, int64_t count) const {
    for_even_elements(
        stride_, last_, at, count, [&](int64_t offset, int64_t step, int64_t number, int64_t place, int64_t apart) {
          T *const to = base_ + offset, *const first = first_buffer_ + place, *const second = second_buffer_ + place;
          if (step == 2 && apart == 1) return interleave<T>(first, second, number, to);
          copy_between(first, apart, number, to, step);
          copy_between(second, apart, number, to + 1, step);
        });
  }

  Pieces<T> first_, second_;
  T* base_;
  const int64_t* stride_;
  int last_;
  T *first_buffer_, *second_buffer_;
  bool asks_, in_turn_;
};

/// visit(position, first element, count) for each piece of a range.
template <class Visit>
NORMACT_SIMD void for_pieces(const PointwiseGeometry& geometry, const PieceRule& rule, Range elements, Visit visit) {
  Position at(geometry, elements.begin);
  for (int64_t begin = elements.begin; begin < elements.end;) {
    int64_t count = elements.end - begin < rule.limit ? elements.end - begin : rule.limit;
    if (rule.runs) {
      const int64_t to_turn = at.to_turn();
      if (to_turn < count) count = to_turn;
      visit(at, begin, count);
      at.advance(count);
    } else if (rule.lines) {
      const int64_t to_turn = at.lines_to_turn() * at.line();
      if (to_turn < count) count = to_turn;
      visit(at, begin, count);
      at.advance_lines(count / at.line());
    } else {
      visit(at, begin, count);
      at = Position(geometry, begin + count);
    }
    begin += count;
  }
}

}  // namespace normact::cpu::NORMACT_ISA
