// SPDX-License-Identifier: Apache-2.0
// Elements that are some way apart, from and to an array without gaps.
#pragma once

#include "cpu/simd_interleave.h"

namespace normact::cpu::NORMACT_ISA {

/// Copies from kBytes to twice as many bytes, or fewer by smaller pieces: the first and the last of them, which
/// overlap.
template <int kBytes>
NORMACT_SIMD void copy_ends(const char* source, int64_t bytes, char* target) {
  struct Piece {
    char bytes[kBytes];
  };
  if (bytes >= kBytes) {
    Piece first, last;
    __builtin_memcpy(&first, source, kBytes);
    __builtin_memcpy(&last, source + bytes - kBytes, kBytes);
    __builtin_memcpy(target, &first, kBytes);
    __builtin_memcpy(target + bytes - kBytes, &last, kBytes);
  } else if constexpr (kBytes > 2) {
    copy_ends<kBytes / 2>(source, bytes, target);
  }
}

/// target[i] = source[i], apart from each other. Short arrays, for which a call of memcpy costs more than its copying.
template <class T>
NORMACT_SIMD void copy_array(const T* source, int64_t count, T* target) {
  using V = typename Raw<sizeof(T)>::type;
  constexpr int kStep = kLanesOfRaw<V>;
  if (count < kStep) {
    const int64_t bytes = count * int64_t{sizeof(T)};
    return copy_ends<kVectorBytes / 2>(reinterpret_cast<const char*>(source), bytes, reinterpret_cast<char*>(target));
  }
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) store_raw(target + i, load_raw<V>(source + i, All{}), All{});
  // The last vector overlaps the one before it.
  if (i < count) store_raw(target + count - kStep, load_raw<V>(source + count - kStep, All{}), All{});
}

// Strided loops take four elements a turn: of the few instructions of one, the time would hang on where they lie.

/// target[i] = source[i * step].
template <class T>
NORMACT_SIMD void copy_from(const T* source, int64_t step, int64_t count, T* target) {
  if (step == 1) {
    copy_array(source, count, target);
  } else if (step == 2) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < count; ++i) target[i] = source[2 * i];
  } else {
#pragma GCC unroll 4
    for (int64_t i = 0; i < count; ++i) target[i] = source[i * step];
  }
}

/// target[i * step] = source[i].
template <class T>
NORMACT_SIMD void copy_to(const T* source, int64_t step, int64_t count, T* target) {
  if (step == 1) {
    copy_array(source, count, target);
  } else {
#pragma GCC unroll 4
    for (int64_t i = 0; i < count; ++i) target[i * step] = source[i];
  }
}

/// target[i * to] = source[i * from].
template <class T>
NORMACT_SIMD void copy_between(const T* source, int64_t from, int64_t count, T* target, int64_t to) {
  if (to == 1) return copy_from(source, from, count, target);
  if (from == 1) return copy_to(source, to, count, target);
#pragma GCC unroll 4
  for (int64_t i = 0; i < count; ++i) target[i * to] = source[i * from];
}

/// Arrays of kLength elements, so many steps apart.
template <int kLength, class T>
NORMACT_SIMD void copy_arrays(const T* source, int64_t from, int64_t count, T* target, int64_t to) {
  for (int64_t i = 0; i < count; ++i) __builtin_memcpy(target + i * to, source + i * from, kLength * sizeof(T));
}

/// Lines of `length` elements: target[i * to + j * to_apart] = source[i * from + j * from_apart].
template <class T>
NORMACT_SIMD void copy_lines(const T* source, int64_t from, int64_t from_apart, int64_t count, int64_t length,
                             T* target, int64_t to, int64_t to_apart) {
  const bool arrays = from_apart == 1 && to_apart == 1;
  if (arrays && length == 2) return copy_arrays<2>(source, from, count, target, to);
  if (arrays && length == 3) return copy_arrays<3>(source, from, count, target, to);
  if (arrays && length == 4) return copy_arrays<4>(source, from, count, target, to);
  for (int64_t j = 0; j < length; ++j) {
    copy_between(source + j * from_apart, from, count, target + j * to_apart, to);
  }
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
