// SPDX-License-Identifier: Apache-2.0
// x F(x) for a distribution function F, by looking polynomials up instead of computing an exponential and a quotient:
// half the operations, where a processor holds tables in registers. A policy M with kLookup offers
//
//   nearest_word(a, b)   a * b + c for a c that leaves the integer nearest to a * b in the low bits, |a * b| < 2^20
//   nearest_of(word)     that integer as a Number
//   lookup(table, word)  table[word mod kPieces] in each lane; any lane for NaN
//   any_below(a, bound)  whether a < bound in any lane
#pragma once

#include "math/activation_types.h"
#include "math/pieces.h"

namespace normact {

/// By Horner's rule.
template <class M, class Word, int kCount>
NORMACT_HD typename M::Number looked_up_polynomial(const float (&coefficients)[kCount][kPieces], Word word,
                                                   typename M::Number offset) {
  auto sum = M::lookup(coefficients[kCount - 1], word);
  for (int k = kCount - 2; k >= 0; --k) sum = M::multiply_add(offset, sum, M::lookup(coefficients[k], word));
  return sum;
}

/// F at 0 <= z <= F::kReach; of no use beyond, NaN for NaN.
template <class M, class F>
NORMACT_HD typename M::Number piecewise(typename M::Number z) {
  const auto word = M::nearest_word(z, M::constant(1 / F::kWidth));
  const auto offset = M::multiply_add(M::nearest_of(word), M::constant(-F::kWidth), z);
  if constexpr (M::kBits <= 11) {
    return looked_up_polynomial<M>(F::k11, word, offset);
  } else {
    return looked_up_polynomial<M>(F::k24, word, offset);
  }
}

/// Lower, Slope: F(-z) and F(-z) - z F'(z); at kReach so small that x >= kReach gives x and 1. For x < -kReach tail(z)
/// gives F(-z) and F'(z), z = |x| <= reach: it is computed if any lane needs it, and taken by those alone, so that a
/// result never depends on its neighbours.
template <class M, class Lower, class Slope, class Tail>
NORMACT_HD ValueAndSlope<typename M::Number> x_times_distribution_by_pieces(typename M::Number x,
                                                                            typename M::Number reach, Tail tail) {
  const auto zero = M::constant(0), end = M::constant(Lower::kReach);
  auto z = M::minimum(M::abs(x), end);
  auto lower = piecewise<M, Lower>(z), slope = piecewise<M, Slope>(z);
  if (M::any_below(x, -end)) {
    const auto is_far = x < -end;
    const auto size = M::minimum(M::abs(x), reach);
    const auto far = tail(size);
    z = M::select(is_far, size, z);
    lower = M::select(is_far, far.lower, lower);
    slope = M::select(is_far, M::multiply_add(-size, far.density, far.lower), slope);
  }
  return {M::multiply_add(-z, lower, M::maximum(x, zero)), M::select(x < zero, slope, M::constant(1) - slope)};
}

}  // namespace normact
