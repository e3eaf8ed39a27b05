// SPDX-License-Identifier: Apache-2.0
// F(x) and x F(x) for a distribution function F, by looking polynomials up instead of computing an exponential and a
// quotient: half the operations, where a processor holds tables in registers. A policy M with kLookup has words whose
// low bits are the integer, and offers
//
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

/// f(z) of a function f that falls towards 0, z >= 0: F in pieces; beyond them kBeyond of at most exp_reach, which is
/// computed if any lane needs it and taken by those alone, so that a result never depends on its neighbours.
template <class M, class F, typename M::Number (*kBeyond)(typename M::Number)>
NORMACT_HD typename M::Number piecewise_or(typename M::Number z) {
  const auto end = M::constant(F::kReach);
  const auto near = piecewise<M, F>(M::minimum(z, end));
  return M::any_below(end, z) ? M::select(end < z, kBeyond(M::minimum(z, exp_reach<M>())), near) : near;
}

/// |x|, at most reach.
template <class M>
NORMACT_HD typename M::Number bounded_size(typename M::Number x, typename M::Number reach) {
  return M::minimum(M::abs(x), reach);
}

/// x F(x) and F(x) + x F'(x) for a distribution function F with F(-x) = 1 - F(x), from F(-z) and the slope at -z; z =
/// |x|, bounded.
template <class M>
NORMACT_HD ValueAndSlope<typename M::Number> x_times_lower(typename M::Number x, typename M::Number z,
                                                           typename M::Number lower, typename M::Number slope) {
  const auto zero = M::constant(0);
  return {M::multiply_add(-z, lower, M::maximum(x, zero)), M::select_negative(x, slope, M::constant(1) - slope)};
}

template <class M>
NORMACT_HD ValueAndSlope<typename M::Number> x_times_distribution(typename M::Number x, typename M::Number z,
                                                                  const DistributionTail<M>& tail) {
  return x_times_lower<M>(x, z, tail.lower, tail.slope);
}

/// The same of any x, looked up where M can. kTail(z): that of F at z <= reach, beyond which it is 0. Lower, Slope:
/// F(-z) and the slope at -z in pieces; at kReach so small that x >= kReach gives x and 1. For x < -kReach the tail is
/// computed if any lane needs it, and taken by those alone, so that a result never depends on its neighbours.
template <class M, class Lower, class Slope, DistributionTail<M> (*kTail)(typename M::Number)>
NORMACT_HD ValueAndSlope<typename M::Number> x_times_distribution(typename M::Number x, typename M::Number reach) {
  if constexpr (!M::kLookup) {
    const auto z = bounded_size<M>(x, reach);
    return x_times_distribution<M>(x, z, kTail(z));
  } else {
    const auto end = M::constant(Lower::kReach);
    auto z = bounded_size<M>(x, end);
    auto lower = piecewise<M, Lower>(z), slope = piecewise<M, Slope>(z);
    if (M::any_below(x, -end)) {
      const auto is_far = x < -end;
      const auto size = bounded_size<M>(x, reach);
      const DistributionTail<M> far = kTail(size);
      z = M::select(is_far, size, z);
      lower = M::select(is_far, far.lower, lower);
      slope = M::select(is_far, far.slope, slope);
    }
    return x_times_lower<M>(x, z, lower, slope);
  }
}

}  // namespace normact
