// SPDX-License-Identifier: Apache-2.0
// Two arrays from and to one that holds them in turn.
#pragma once

#include <utility>

#include "cpu/simd_stream.h"

namespace normact::cpu::NORMACT_ISA {

/// A whole vector of raw elements.
template <int kBytes>
struct Raw;
template <>
struct Raw<2> {
  typedef uint16_t type __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Raw<4> {
  typedef uint32_t type __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Raw<8> {
  typedef uint64_t type __attribute__((vector_size(kVectorBytes)));
};

template <class V>
constexpr int kLanesOfRaw = int(sizeof(V) / sizeof(V{}[0]));

/// Every other element of a and b, from this one on.
template <int kFirst, class V, int... i>
NORMACT_SIMD V every_other(V a, V b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (kFirst + 2 * i)...);
}

/// Elements of a and b in turn, from this one on.
template <int kFirst, class V, int... i>
NORMACT_SIMD V in_turn(V a, V b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (kFirst + i / 2 + i % 2 * int(sizeof...(i)))...);
}

/// even[i] = source[2 i], odd[i] = source[2 i + 1], apart from these. asks: for what is to come.
template <class T>
__attribute__((noinline)) void deinterleave(const T* source, int64_t count, bool asks, T* even, T* odd) {
  using V = typename Raw<sizeof(T)>::type;
  constexpr int kStep = kVectorBytes / int(sizeof(T));
  constexpr std::make_integer_sequence<int, kStep> kIndices;
  const auto step = [&](int64_t i) __attribute__((always_inline)) {
    const V a = load_raw<V>(source + 2 * i, All{}), b = load_raw<V>(source + 2 * i + kStep, All{});
    store_raw(even + i, every_other<0>(a, b, kIndices), All{});
    store_raw(odd + i, every_other<1>(a, b, kIndices), All{});
  };
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    if (asks) ask_ahead<2 * kStep>(source + 2 * i);
    step(i);
  }
  if (i < count && count > kStep) return step(count - kStep);  // some elements again
  for (; i < count; ++i) {
    even[i] = source[2 * i];
    odd[i] = source[2 * i + 1];
  }
}

/// target[2 i] = even[i], target[2 i + 1] = odd[i].
template <class T>
__attribute__((noinline)) void interleave(const T* even, const T* odd, int64_t count, T* target) {
  using V = typename Raw<sizeof(T)>::type;
  constexpr int kStep = kVectorBytes / int(sizeof(T));
  constexpr std::make_integer_sequence<int, kStep> kIndices;
  const auto step = [&](int64_t i) __attribute__((always_inline)) {
    const V a = load_raw<V>(even + i, All{}), b = load_raw<V>(odd + i, All{});
    store_raw(target + 2 * i, in_turn<0>(a, b, kIndices), All{});
    store_raw(target + 2 * i + kStep, in_turn<kStep / 2>(a, b, kIndices), All{});
  };
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) step(i);
  if (i < count && count > kStep) return step(count - kStep);
  for (; i < count; ++i) {
    target[2 * i] = even[i];
    target[2 * i + 1] = odd[i];
  }
}

}  // namespace normact::cpu::NORMACT_ISA
