// SPDX-License-Identifier: Apache-2.0
// Two vectors as one number. The formulas are long chains of dependent operations; two of them side by side keep the
// arithmetic units busy where the processor does not look far enough ahead to find the next vector's.
#pragma once

#include <type_traits>

#include "cpu/simd_element.h"
#include "cpu/simd_interleave.h"
#include "cpu/simd_stream.h"

namespace normact::cpu::NORMACT_ISA {

/// V: a vector, what a comparison of vectors gives, or a pair of those.
template <class V>
struct Pair {
  V a;
  V b;

  friend NORMACT_SIMD Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
  friend NORMACT_SIMD Pair operator-(Pair x, Pair y) { return {x.a - y.a, x.b - y.b}; }
  friend NORMACT_SIMD Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
  friend NORMACT_SIMD Pair operator-(Pair x) { return {-x.a, -x.b}; }
  NORMACT_SIMD Pair& operator+=(Pair x) { return *this = *this + x; }
};

template <class A, class B>
NORMACT_SIMD Pair<A> pair(A a, B b) {
  return {a, b};
}

template <class V>
NORMACT_SIMD Pair<V> multiply_add(Pair<V> x, Pair<V> y, Pair<V> z) {
  return {multiply_add(x.a, y.a, z.a), multiply_add(x.b, y.b, z.b)};
}

template <class V>
NORMACT_SIMD auto operator<(Pair<V> x, Pair<V> y) {
  return pair(x.a < y.a, x.b < y.b);
}
template <class V>
NORMACT_SIMD auto operator>(Pair<V> x, Pair<V> y) {
  return pair(x.a > y.a, x.b > y.b);
}
template <class V>
NORMACT_SIMD auto operator<=(Pair<V> x, Pair<V> y) {
  return pair(x.a <= y.a, x.b <= y.b);
}
template <class V>
NORMACT_SIMD auto operator>=(Pair<V> x, Pair<V> y) {
  return pair(x.a >= y.a, x.b >= y.b);
}

/// The math policy M for pairs of its numbers.
template <class M>
struct PairMath {
  using Number = Pair<typename M::Number>;
  static constexpr int kBits = M::kBits;
  static constexpr bool kExp2Instruction = M::kExp2Instruction;
  static constexpr bool kLookup = M::kLookup;

  NORMACT_SIMD static Number constant(double c) { return pair(M::constant(c), M::constant(c)); }
  NORMACT_SIMD static Number multiply(Number x, Number y) { return pair(M::multiply(x.a, y.a), M::multiply(x.b, y.b)); }
  NORMACT_SIMD static Number multiply_add(Number x, Number y, Number z) {
    return pair(M::multiply_add(x.a, y.a, z.a), M::multiply_add(x.b, y.b, z.b));
  }
  NORMACT_SIMD static Number product_error(Number x, Number y, Number p) {
    return pair(M::product_error(x.a, y.a, p.a), M::product_error(x.b, y.b, p.b));
  }
  NORMACT_SIMD static Number abs(Number x) { return pair(M::abs(x.a), M::abs(x.b)); }
  NORMACT_SIMD static Number copy_sign(Number x, Number sign) {
    return pair(M::copy_sign(x.a, sign.a), M::copy_sign(x.b, sign.b));
  }
  NORMACT_SIMD static Number minimum(Number x, Number y) { return pair(M::minimum(x.a, y.a), M::minimum(x.b, y.b)); }
  NORMACT_SIMD static Number maximum(Number x, Number y) { return pair(M::maximum(x.a, y.a), M::maximum(x.b, y.b)); }
  template <class Condition>
  NORMACT_SIMD static Number select(Condition condition, Number yes, Number no) {
    return pair(M::select(condition.a, yes.a, no.a), M::select(condition.b, yes.b, no.b));
  }
  NORMACT_SIMD static Number reciprocal(Number x) { return pair(M::reciprocal(x.a), M::reciprocal(x.b)); }
  NORMACT_SIMD static Number select_negative(Number x, Number yes, Number no) {
    return pair(M::select_negative(x.a, yes.a, no.a), M::select_negative(x.b, yes.b, no.b));
  }
  NORMACT_SIMD static Number nearest_word(Number x, Number y) {
    return pair(M::nearest_word(x.a, y.a), M::nearest_word(x.b, y.b));
  }
  NORMACT_SIMD static Number nearest_of(Number x) { return pair(M::nearest_of(x.a), M::nearest_of(x.b)); }
  template <class Table>
  NORMACT_SIMD static Number lookup(const Table& table, Number x) {
    return pair(M::lookup(table, x.a), M::lookup(table, x.b));
  }
  NORMACT_SIMD static bool any_below(Number x, Number bound) {
    return (M::below(x.a, bound.a) | M::below(x.b, bound.b)) != 0;
  }
  NORMACT_SIMD static Number scale(Number x, Number word) { return pair(M::scale(x.a, word.a), M::scale(x.b, word.b)); }
};

// ---- Loads and stores of pairs --------------------------------------------------------------------------------------

template <class T>
constexpr int kPairLanes = 2 * kLanes<T>;

/// Whether the pair's vectors are the elements at even and odd places: halves of words, which take no shuffles.
template <class T>
constexpr bool kEvenAndOdd = false;
template <>
inline constexpr bool kEvenAndOdd<BFloat> = true;

/// Two vectors of consecutive lanes as those that load_pair<T> gives, and back.
template <class T, class V>
NORMACT_SIMD Pair<V> arranged(Pair<V> v) {
  if constexpr (!kEvenAndOdd<T>) return v;
  constexpr std::make_integer_sequence<int, kLanes<T>> kIndices;
  return pair(every_other<0>(v.a, v.b, kIndices), every_other<1>(v.a, v.b, kIndices));
}
template <class T, class V>
NORMACT_SIMD Pair<V> rearranged(Pair<V> v) {
  if constexpr (!kEvenAndOdd<T>) return v;
  constexpr std::make_integer_sequence<int, kLanes<T>> kIndices;
  return pair(in_turn<0>(v.a, v.b, kIndices), in_turn<kLanes<T> / 2>(v.a, v.b, kIndices));
}

template <class T>
NORMACT_SIMD Pair<Vec<T>> load_pair(const T* source) {
  if constexpr (kEvenAndOdd<T>) {
    const WordVec words = load_raw<WordVec>(source, All{});
    return pair((FloatVec)(words << 16U), (FloatVec)(words & 0xffff0000U));
  } else {
    return pair(load(source, All{}), load(source + kLanes<T>, All{}));
  }
}

/// The rounded numbers of even places in the lower halves, those of odd places in the upper.
NORMACT_SIMD WordVec rounded_words(Pair<FloatVec> v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256 a = (__m256)v.a, b = (__m256)v.b;
  if (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) == 0) [[likely]] {
    // The halves of 16 numbers side by side: the upper ones are 1 larger where lower + 0x7fff + (upper & 1) overflows,
    // which the average of lower and the rest, (lower + rest + 1) / 2, has in its highest bit.
    const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32((__m256i)a, 16), (__m256i)b, 0xaa);
    const __m256i lower = _mm256_blend_epi16((__m256i)a, _mm256_slli_epi32((__m256i)b, 16), 0xaa);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi16(1));
    const __m256i average = _mm256_avg_epu16(lower, _mm256_or_si256(odd, _mm256_set1_epi16(0x7ffe)));
    return (WordVec)_mm256_add_epi16(upper, _mm256_srli_epi16(average, 15));
  }
#endif
  return (rounded_bits(v.a) >> 16U) | (rounded_bits(v.b) & 0xffff0000U);
}

/// Rounds to T. lanes: All or Streamed.
template <class T, class Lanes = All>
NORMACT_SIMD void store_pair(T* target, Pair<Vec<T>> v, Lanes lanes = {}) {
  if constexpr (kEvenAndOdd<T>) {
    store_raw(target, rounded_words(v), lanes);
  } else {
    store(target, v.a, lanes);
    store(target + kLanes<T>, v.b, lanes);
  }
}

/// Accumulators that belong to elements of type T.
template <class T>
NORMACT_SIMD Pair<Vec<T>> load_beside(const Accumulator<T>* source) {
  return arranged<T>(pair(load(source, All{}), load(source + kLanes<T>, All{})));
}
template <class T>
NORMACT_SIMD void store_beside(Accumulator<T>* target, Pair<Vec<T>> v) {
  const Pair<Vec<T>> in_order = rearranged<T>(v);
  store(target, in_order.a, All{});
  store(target + kLanes<T>, in_order.b, All{});
}

template <class N>
NORMACT_SIMD auto broadcast_pair(N value) {
  return pair(broadcast(value), broadcast(value));
}

// ---- Loops over pairs -----------------------------------------------------------------------------------------------

/// The lanes of a load or a store that touches a pair.
struct Two {};

template <class T>
NORMACT_SIMD Pair<Vec<T>> load(const T* source, Two) {
  return load_pair(source);
}
template <class T>
NORMACT_SIMD void store(T* target, Pair<Vec<T>> v, Two) {
  store_pair(target, v);
}
template <class T>
NORMACT_SIMD void store_exact(T* target, Pair<Vec<T>> v, Two) {
  if constexpr (kEvenAndOdd<T>) {
    store_raw(target, ((WordVec)v.a >> 16U) | ((WordVec)v.b & 0xffff0000U), All{});
  } else {
    store_pair(target, v);
  }
}
template <Storing kStoring, class T>
NORMACT_SIMD void store(T* target, Pair<Vec<T>> v, Two) {
  store_pair(target, v, std::conditional_t<kStoring == Storing::past, Streamed, All>{});
}
template <class V>
NORMACT_SIMD Pair<V> keep(Pair<V> v, Two) {
  return v;
}

/// How many elements lanes touch.
template <class T, class Lanes>
NORMACT_SIMD int number_of(Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, First>) {
    return lanes.count;
  } else {
    return std::is_same_v<Lanes, Two> ? kPairLanes<T> : kLanes<T>;
  }
}

/// A number in every lane, for what lanes touch.
template <class V, class Lanes>
NORMACT_SIMD auto spread(V v, Lanes) {
  if constexpr (std::is_same_v<Lanes, Two>) {
    return pair(v, v);
  } else {
    return v;
  }
}

/// body(element, lanes) for a row as for_vectors has it, but for a pair at a time where that takes fewer instructions.
template <class T, class Body>
NORMACT_SIMD void for_pairs(int64_t cols, Body body) {
  int64_t column = 0;
  if constexpr (kEvenAndOdd<T>) {
    for (; column + kPairLanes<T> <= cols; column += kPairLanes<T>) body(column, Two{});
  }
  for (; column + kLanes<T> <= cols; column += kLanes<T>) body(column, All{});
  if (column < cols) body(column, First{int(cols - column)});
}

}  // namespace normact::cpu::NORMACT_ISA
