// SPDX-License-Identifier: Apache-2.0
// Weight and bias into, and their gradients out of, arrays of the accumulator type.
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_kernels.h"
#include "cpu/simd_element.h"
#include "math/cascade_sum.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int64_t kPiece = 512;  // columns that pass through a buffer on the stack

/// The operand's columns `piece`, straight from memory or gathered into buffer.
template <class T>
NORMACT_SIMD const T* read_piece(const Operand& operand, const RowGeometry& geometry, Range piece, T* buffer) {
  const T* const base = static_cast<const T*>(operand.data);
  if (geometry.col_ndim == 1 && operand.col_stride[0] == 1) return base + piece.begin;
  T* target = buffer;
  for_runs(geometry.col_ndim, geometry.col_shape, operand.col_stride, piece,
           [&](int64_t offset, int64_t step, int64_t count) {
             for (int64_t i = 0; i < count; ++i) *target++ = base[offset + i * step];
           });
  return buffer;
}

template <class T>
void load_parameter_as(const Operand& parameter, const RowGeometry& geometry, double offset, Range columns,
                       Accumulator<T>* target) {
  const Vec<T> shift = broadcast(Accumulator<T>(offset));
  T buffer[kPiece];
  for (int64_t begin = columns.begin; begin < columns.end; begin += kPiece) {
    const Range piece = {begin, begin + kPiece < columns.end ? begin + kPiece : columns.end};
    const T* source = read_piece<T>(parameter, geometry, piece, buffer);
    for_vectors<T>(piece.end - piece.begin, [&](int64_t j, auto lanes) {
      store(target + (begin - columns.begin) + j, effective_weight(load(source + j, lanes), shift), lanes);
    });
  }
}

/// N is the accumulator type of the problem.
template <class N>
void load_parameter(const Operand& parameter, const RowGeometry& geometry, double offset, Range columns,
                    void* target_array) {
  N* const target = static_cast<N*>(target_array);
  if (!parameter.data) {
    for (int64_t i = 0; i < columns.end - columns.begin; ++i) target[i] = 1;
    return;
  }
  if constexpr (sizeof(N) == 8) {
    load_parameter_as<double>(parameter, geometry, offset, columns, target);
  } else if (parameter.dtype == DType::f32) {
    load_parameter_as<float>(parameter, geometry, offset, columns, target);
  } else if (parameter.dtype == DType::f16) {
    load_parameter_as<Half>(parameter, geometry, offset, columns, target);
  } else {
    load_parameter_as<BFloat>(parameter, geometry, offset, columns, target);
  }
}

/// Of arrays of blocks of rows, or of samples.
template <class N, class Lanes>
NORMACT_SIMD Vec<N> sum_of_partials(const N* partials, int64_t stride, int64_t count, Lanes lanes) {
  CascadeSum<Vec<N>> total;
  for (int64_t i = 0; i < count; i += 8) {
    Vec<N> part = {};
    for (int64_t k = i; k < i + 8 && k < count; ++k) part += load(partials + k * stride, lanes);
    total.add(part);
  }
  return total.total();
}

template <class T>
void reduce_parameter_as(const Operand& gradient, const RowGeometry& geometry, const Accumulator<T>* partials,
                         int64_t stride, int64_t count, Range columns) {
  T* const base = static_cast<T*>(gradient.data);
  const bool direct = geometry.col_ndim == 1 && gradient.col_stride[0] == 1;
  T buffer[kPiece];
  for (int64_t begin = columns.begin; begin < columns.end; begin += kPiece) {
    const Range piece = {begin, begin + kPiece < columns.end ? begin + kPiece : columns.end};
    T* const target = direct ? base + begin : buffer;
    for_vectors<T>(piece.end - piece.begin, [&](int64_t j, auto lanes) {
      store(target + j, sum_of_partials(partials + begin + j, stride, count, lanes), lanes);
    });
    if (direct) continue;
    const T* source = buffer;
    for_runs(geometry.col_ndim, geometry.col_shape, gradient.col_stride, piece,
             [&](int64_t offset, int64_t step, int64_t run) {
               for (int64_t i = 0; i < run; ++i) base[offset + i * step] = *source++;
             });
  }
}

template <class N>
void reduce_parameter(const Operand& gradient, const RowGeometry& geometry, const void* partial_arrays, int64_t stride,
                      int64_t count, Range columns) {
  const N* const partials = static_cast<const N*>(partial_arrays);
  if constexpr (sizeof(N) == 8) {
    reduce_parameter_as<double>(gradient, geometry, partials, stride, count, columns);
  } else if (gradient.dtype == DType::f32) {
    reduce_parameter_as<float>(gradient, geometry, partials, stride, count, columns);
  } else if (gradient.dtype == DType::f16) {
    reduce_parameter_as<Half>(gradient, geometry, partials, stride, count, columns);
  } else {
    reduce_parameter_as<BFloat>(gradient, geometry, partials, stride, count, columns);
  }
}

template <class N>
void add(void* target_array, const void* source_array, int64_t count) {
  N* const target = static_cast<N*>(target_array);
  const N* const source = static_cast<const N*>(source_array);
  for_vectors<N>(count, [&](int64_t j, auto lanes) {
    store(target + j, load(target + j, lanes) + load(source + j, lanes), lanes);
  });
}

}  // namespace normact::cpu::NORMACT_ISA
