// SPDX-License-Identifier: Apache-2.0
// Elements that are some way apart, from and to an array without gaps.
#pragma once

#include "cpu/simd_interleave.h"

namespace normact::cpu::NORMACT_ISA {

/// target[i] = source[i], apart from each other. Short arrays, for which a call of memcpy costs more than its copying.
template <class T>
NORMACT_SIMD void copy_array(const T* source, int64_t count, T* target) {
  using V = typename Raw<sizeof(T)>::type;
  constexpr int kStep = kLanesOfRaw<V>;
  if (count < kStep) {
    __builtin_memcpy(target, source, size_t(count) * sizeof(T));
    return;
  }
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) store_raw(target + i, load_raw<V>(source + i, All{}), All{});
  // The last vector overlaps the one before it.
  if (i < count) store_raw(target + count - kStep, load_raw<V>(source + count - kStep, All{}), All{});
}

/// target[i] = source[i * step].
template <class T>
NORMACT_SIMD void copy_from(const T* source, int64_t step, int64_t count, T* target) {
  if (step == 1) {
    copy_array(source, count, target);
  } else if (step == 2) {
    for (int64_t i = 0; i < count; ++i) target[i] = source[2 * i];
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = source[i * step];
  }
}

/// target[i * step] = source[i].
template <class T>
NORMACT_SIMD void copy_to(const T* source, int64_t step, int64_t count, T* target) {
  if (step == 1) {
    copy_array(source, count, target);
  } else {
    for (int64_t i = 0; i < count; ++i) target[i * step] = source[i];
  }
}

/// target[i * to] = source[i * from].
template <class T>
NORMACT_SIMD void copy_between(const T* source, int64_t from, int64_t count, T* target, int64_t to) {
  if (to == 1) return copy_from(source, from, count, target);
  if (from == 1) return copy_to(source, to, count, target);
  for (int64_t i = 0; i < count; ++i) target[i * to] = source[i * from];
}

// ---- Short rows, one after the other, from and to columns -----------------------------------------------------------

/// kCount vectors of elements in turn become a vector of each: as often as halving takes, the even ones go before the
/// odd ones.
template <class V, int kCount>
NORMACT_SIMD void split_turns(V (&v)[kCount]) {
  constexpr std::make_integer_sequence<int, kLanesOfRaw<V>> kIndices;
#pragma GCC unroll 4
  for (int round = 1; round < kCount; round *= 2) {
    V next[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount / 2; ++i) {
      next[i] = every_other<0>(v[2 * i], v[2 * i + 1], kIndices);
      next[kCount / 2 + i] = every_other<1>(v[2 * i], v[2 * i + 1], kIndices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) v[i] = next[i];
  }
}

/// The way back.
template <class V, int kCount>
NORMACT_SIMD void join_turns(V (&v)[kCount]) {
  constexpr int kLanes = kLanesOfRaw<V>;
  constexpr std::make_integer_sequence<int, kLanes> kIndices;
#pragma GCC unroll 4
  for (int round = 1; round < kCount; round *= 2) {
    V next[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount / 2; ++i) {
      next[2 * i] = in_turn<0>(v[i], v[kCount / 2 + i], kIndices);
      next[2 * i + 1] = in_turn<kLanes / 2>(v[i], v[kCount / 2 + i], kIndices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) v[i] = next[i];
  }
}

/// columns[c * stride + r] = rows[r * kCols + c].
template <int kCols, class T>
NORMACT_SIMD void split_rows(const T* rows, int64_t count, T* columns, int64_t stride) {
  using V = typename Raw<sizeof(T)>::type;
  constexpr int kStep = kLanesOfRaw<V>;
  int64_t r = 0;
  for (; r + kStep <= count; r += kStep) {
    V v[kCols];
#pragma GCC unroll 16
    for (int c = 0; c < kCols; ++c) v[c] = load_raw<V>(rows + r * kCols + c * kStep, All{});
    split_turns(v);
#pragma GCC unroll 16
    for (int c = 0; c < kCols; ++c) store_raw(columns + c * stride + r, v[c], All{});
  }
  for (; r < count; ++r) {
    for (int c = 0; c < kCols; ++c) columns[c * stride + r] = rows[r * kCols + c];
  }
}

/// rows[r * kCols + c] = columns[c * stride + r].
template <int kCols, class T>
NORMACT_SIMD void join_rows(const T* columns, int64_t stride, int64_t count, T* rows) {
  using V = typename Raw<sizeof(T)>::type;
  constexpr int kStep = kLanesOfRaw<V>;
  int64_t r = 0;
  for (; r + kStep <= count; r += kStep) {
    V v[kCols];
#pragma GCC unroll 16
    for (int c = 0; c < kCols; ++c) v[c] = load_raw<V>(columns + c * stride + r, All{});
    join_turns(v);
#pragma GCC unroll 16
    for (int c = 0; c < kCols; ++c) store_raw(rows + r * kCols + c * kStep, v[c], All{});
  }
  for (; r < count; ++r) {
    for (int c = 0; c < kCols; ++c) rows[r * kCols + c] = columns[c * stride + r];
  }
}

/// The same of any number of columns.
template <class T>
__attribute__((noinline)) void split_rows(const T* rows, int64_t count, int64_t cols, T* columns, int64_t stride) {
  if (cols == 2) return split_rows<2>(rows, count, columns, stride);
  if (cols == 4) return split_rows<4>(rows, count, columns, stride);
  if (cols == 8) return split_rows<8>(rows, count, columns, stride);
  if (cols == 16) return split_rows<16>(rows, count, columns, stride);
  for (int64_t c = 0; c < cols; ++c) copy_from(rows + c, cols, count, columns + c * stride);
}
template <class T>
__attribute__((noinline)) void join_rows(const T* columns, int64_t stride, int64_t count, int64_t cols, T* rows) {
  if (cols == 2) return join_rows<2>(columns, stride, count, rows);
  if (cols == 4) return join_rows<4>(columns, stride, count, rows);
  if (cols == 8) return join_rows<8>(columns, stride, count, rows);
  if (cols == 16) return join_rows<16>(columns, stride, count, rows);
  for (int64_t c = 0; c < cols; ++c) copy_to(columns + c * stride, cols, count, rows + c);
}

}  // namespace normact::cpu::NORMACT_ISA
