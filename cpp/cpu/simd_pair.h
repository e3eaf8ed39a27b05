// SPDX-License-Identifier: Apache-2.0
// Two vectors as one number. The formulas are long chains of dependent operations; two of them side by side keep the
// arithmetic units busy where the processor does not look far enough ahead to find the next vector's.
#pragma once

#include "cpu/simd_element.h"
#include "cpu/simd_interleave.h"

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
};

template <class A, class B>
NORMACT_SIMD Pair<A> pair(A a, B b) {
  return {a, b};
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
  NORMACT_SIMD static Number nearest(Number x) { return pair(M::nearest(x.a), M::nearest(x.b)); }
  NORMACT_SIMD static auto nearest_word(Number x, Number y) {
    return pair(M::nearest_word(x.a, y.a), M::nearest_word(x.b, y.b));
  }
  template <class Word>
  NORMACT_SIMD static Number nearest_of(Pair<Word> x) {
    return pair(M::nearest_of(x.a), M::nearest_of(x.b));
  }
  template <class Table, class Word>
  NORMACT_SIMD static Number lookup(const Table& table, Pair<Word> x) {
    return pair(M::lookup(table, x.a), M::lookup(table, x.b));
  }
  NORMACT_SIMD static bool any_below(Number x, Number bound) {
    return (M::below(x.a, bound.a) | M::below(x.b, bound.b)) != 0;
  }
  NORMACT_SIMD static Number scale(Number x, Number n) { return pair(M::scale(x.a, n.a), M::scale(x.b, n.b)); }
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

/// Rounds to T. lanes: All or Streamed.
template <class T, class Lanes = All>
NORMACT_SIMD void store_pair(T* target, Pair<Vec<T>> v, Lanes lanes = {}) {
  if constexpr (kEvenAndOdd<T>) {
    store_raw(target, (rounded_bits(v.a) >> 16U) | (rounded_bits(v.b) & 0xffff0000U), lanes);
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

}  // namespace normact::cpu::NORMACT_ISA
