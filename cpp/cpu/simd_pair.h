// SPDX-License-Identifier: Apache-2.0
// Two vectors as one number. The formulas are long chains of dependent operations; two of them side by side keep the
// arithmetic units busy where the processor does not look far enough ahead to find the next vector's.
#pragma once

#include "cpu/simd_element.h"

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

  NORMACT_SIMD static Number constant(double c) { return pair(M::constant(c), M::constant(c)); }
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
  NORMACT_SIMD static Number scale(Number x, Number n) { return pair(M::scale(x.a, n.a), M::scale(x.b, n.b)); }
};

template <class T>
constexpr int kPairLanes = 2 * kLanes<T>;

template <class T>
NORMACT_SIMD Pair<Vec<T>> load_pair(const T* source) {
  return pair(load(source, All{}), load(source + kLanes<T>, All{}));
}

/// Rounds to T.
template <class T>
NORMACT_SIMD void store_pair(T* target, Pair<Vec<T>> v) {
  store(target, v.a, All{});
  store(target + kLanes<T>, v.b, All{});
}

template <class N>
NORMACT_SIMD auto broadcast_pair(N value) {
  return pair(broadcast(value), broadcast(value));
}

}  // namespace normact::cpu::NORMACT_ISA
