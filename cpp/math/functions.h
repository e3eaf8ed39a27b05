// SPDX-License-Identifier: Apache-2.0
// The elementary functions of the activations, generic over a math policy M: the number type, the precision that the
// results need, and the operations that float, double and the SIMD vectors of the CPU do not share. M offers
//
//   Number                       what is computed with
//   kBits                        8: results go to bf16 (2^-17 is enough); 11: to fp16 or bf16 (2^-20); 24: to fp32;
//                                53: to fp64
//   kExp2Instruction             whether exp2(t) exists: 2^t for any t, within 2^-22; always at 8 bits
//   kLookup                      whether polynomials are looked up in tables (math/piecewise.h)
//   constant(c)                  the double c in every lane
//   multiply_add(a, b, c)        a * b + c, fused where the hardware can
//   multiply(a, b)               a * b, rounded: never fused with what is done to it
//   product_error(a, b, p)       a * b - p, rounded once, for p within 1 of a * b or a * b rounded
//   abs(a), copy_sign(a, sign)
//   minimum(a, b), maximum(a, b) NaN if a is NaN; b never is
//   select(condition, yes, no)   condition: a comparison of Numbers; false for NaN
//   reciprocal(d)                1 / d for 2^-100 < d < 2^100 and NaN, within 1 ulp; with kExp2Instruction and up to 11
//                                bits for any d > 2^-100, infinity too, and may flush to 0
//   select_negative(x, yes, no)  yes where x < 0; either where x is -0 or NaN
//   nearest_word(a, b)           the integer n nearest to a * b, |a * b| < 2^20, as the next two take it
//   nearest_of(word)             n as a Number
//   scale(a, word)               a * 2^n for n <= 0 and 1/2 < a < 2; may flush to 0 below the least normal number
//
// NaN comes out of every function here that it goes into. Infinity goes into none: callers bound their arguments.
#pragma once

#include "math/hd.h"
#include "math/polynomials.h"

namespace normact {

/// The sum of two numbers, low below half a unit of the last place of high. Up to 11 bits low is 0 and costs nothing.
template <class M>
struct Split {
  typename M::Number high;
  typename M::Number low;
};

/// c + rest, which may be more than a double holds.
template <class M>
NORMACT_HD Split<M> split_constant(double c, double rest) {
  if constexpr (M::kBits <= 24) {
    const auto high = static_cast<double>(static_cast<float>(c));
    return {M::constant(high), M::constant((c - high) + rest)};
  } else {
    return {M::constant(c), M::constant(rest)};
  }
}

/// a * b to twice the precision.
template <class M>
NORMACT_HD Split<M> product(Split<M> a, Split<M> b) {
  const auto high = M::multiply(a.high, b.high);
  if constexpr (M::kBits <= 11) {
    return {high, M::constant(0)};
  } else {
    const auto cross = M::multiply_add(a.high, b.low, a.low * b.high);
    return {high, M::product_error(a.high, b.high, high) + cross};
  }
}

/// The same for numbers whose low is 0.
template <class M>
NORMACT_HD Split<M> product(typename M::Number a, Split<M> b) {
  const auto high = M::multiply(a, b.high);
  if constexpr (M::kBits <= 11) {
    return {high, M::constant(0)};
  } else {
    return {high, M::multiply_add(a, b.low, M::product_error(a, b.high, high))};
  }
}
template <class M>
NORMACT_HD Split<M> square(typename M::Number a) {
  const auto high = M::multiply(a, a);
  if constexpr (M::kBits <= 11) {
    return {high, M::constant(0)};
  } else {
    return {high, M::product_error(a, a, high)};
  }
}

/// a + b to twice the precision (Knuth's sum).
template <class M>
NORMACT_HD Split<M> sum(Split<M> a, Split<M> b) {
  const auto high = a.high + b.high;
  if constexpr (M::kBits <= 11) {
    return {high, M::constant(0)};
  } else {
    const auto b_part = high - a.high;
    const auto a_part = high - b_part;
    return {high, ((a.high - a_part) + (b.high - b_part)) + (a.low + b.low)};
  }
}

// ---- Exponentials ---------------------------------------------------------------------------------------------------

/// y = n + f, n an integer, of which this is the word, and |f| <= 1/2.
template <class M>
struct Parts {
  typename M::Number word;
  typename M::Number f;
};

/// Of y = a * b, |y| < 2^20; f is wrong by 2^-25 (2^-54) at most, however large y is.
template <class M>
NORMACT_HD Parts<M> parts(typename M::Number a, Split<M> b) {
  const auto word = M::nearest_word(a, b.high);
  const auto n = M::nearest_of(word);
  if constexpr (M::kBits <= 11) {
    return {word, M::multiply_add(a, b.high, -n)};
  } else {
    return {word, M::multiply_add(a, b.low, M::product_error(a, b.high, n))};
  }
}
template <class M>
NORMACT_HD Parts<M> parts(Split<M> a, Split<M> b) {
  const auto by_high = parts<M>(a.high, b);
  if constexpr (M::kBits <= 11) {
    return by_high;
  } else {
    return {by_high.word, M::multiply_add(a.low, b.high, by_high.f)};
  }
}

/// 2^(a * b) for -2^20 < a * b <= 0, within 2 ulp; a: a Number or a Split. Rounding a * b first would cost |a * b| / 2
/// ulp.
template <class M, class A>
NORMACT_HD typename M::Number exp2_product(A a, Split<M> b) {
  if constexpr (M::kExp2Instruction) {
    const Split<M> y = product<M>(a, b);
    const auto e = M::exp2(y.high);
    if constexpr (M::kBits <= 11) return e;
    return M::multiply_add(e, y.low * M::constant(0.6931471805599453), e);
  } else {
    const Parts<M> y = parts<M>(a, b);
    return M::scale(M::multiply_add(y.f, exp2_ratio<M>(y.f), M::constant(1)), y.word);
  }
}

/// e = 2^y and minus_1 = 2^y - 1, each with full relative accuracy.
template <class M>
struct Exp2AndMinus1 {
  typename M::Number e;
  typename M::Number minus_1;
};

/// For y = a * b, -2^20 < y <= 0. 2^y - 1 = 2^n (2^f - 1) + (2^n - 1), in which nothing cancels as |f| <= 1/2.
template <class M>
NORMACT_HD Exp2AndMinus1<M> exp2_and_minus_1(typename M::Number a, Split<M> b) {
  const Parts<M> y = parts<M>(a, b);
  const auto fraction = y.f * exp2_ratio<M>(y.f);
  const auto power = M::scale(M::constant(1), y.word);
  return {M::multiply_add(power, fraction, power), M::multiply_add(power, fraction, power - M::constant(1))};
}

constexpr double kLog2E = 1.4426950408889634, kLog2ERest = 2.0355273740931033e-17;

/// exp(-z) is 0 from here on, and z times a number near the least is small: what z = |x| is bounded to.
template <class M>
NORMACT_HD typename M::Number exp_reach() {
  return M::constant(M::kBits <= 24 ? 110 : 760);
}

/// exp(-z) for 0 <= z <= 2 exp_reach.
template <class M>
NORMACT_HD typename M::Number exp_minus(typename M::Number z) {
  return exp2_product<M>(z, split_constant<M>(-kLog2E, -kLog2ERest));
}

// ---- Logarithm, logistic function, normal distribution --------------------------------------------------------------

/// log(1 + e) for 0 <= e <= 1, with full relative accuracy: 2 atanh(s) with s = e / (2 + e) <= 1/3.
template <class M>
NORMACT_HD typename M::Number log1p_unit(typename M::Number e) {
  const auto s = e * M::reciprocal(e + M::constant(2));
  const auto u = s * s;
  return M::multiply_add(s * u, atanh_rest<M>(u), s + s);
}

/// The two values of a distribution function that is symmetric about 0: lower = F(-z), upper = 1 - lower = F(z).
template <class M>
struct Tails {
  typename M::Number lower;
  typename M::Number upper;
};

/// Of the logistic function, for e = exp(-z), z >= 0. Its density is lower * upper.
template <class M>
NORMACT_HD Tails<M> logistic_tails(typename M::Number e) {
  const auto upper = M::reciprocal(M::constant(1) + e);
  return {e * upper, upper};
}

/// S(-z) and S(-z) S(z), S the logistic function, for 0 <= z <= 2 exp_reach.
template <class M>
NORMACT_HD typename M::Number logistic_lower(typename M::Number z) {
  return logistic_tails<M>(exp_minus<M>(z)).lower;
}
template <class M>
NORMACT_HD typename M::Number logistic_density(typename M::Number z) {
  const Tails<M> tails = logistic_tails<M>(exp_minus<M>(z));
  return tails.lower * tails.upper;
}

/// The slope of tanh, for z <= exp_reach.
template <class M>
NORMACT_HD typename M::Number tanh_density(typename M::Number z) {
  return M::constant(4) * logistic_density<M>(z + z);
}

/// Of a distribution function F at -z, z >= 0: lower = F(-z), slope = F(-z) - z F'(-z), that of x F(x).
template <class M>
struct DistributionTail {
  typename M::Number lower;
  typename M::Number slope;
};

template <class M>
NORMACT_HD DistributionTail<M> tail_of_density(typename M::Number z, typename M::Number lower,
                                               typename M::Number density) {
  return {lower, M::multiply_add(-z, density, lower)};
}

/// From here on phi and Phi(-z) are 0 in M's numbers.
template <class M>
NORMACT_HD typename M::Number normal_reach() {
  return M::constant(M::kBits <= 24 ? 16 : 40);
}

/// The normal distribution at 0 <= z <= normal_reach. Phi(-z) = exp(-z^2 / 2) times a function of z that varies little.
/// At 8 bits what is needed, log2(Phi(-z)) or the slope, is fitted itself: two thirds of the operations for either, but
/// not for both, and the rounding of the logarithm costs |log2(Phi(-z))| ulp. z = 0 gives 1/2 exactly.
template <class M>
NORMACT_HD DistributionTail<M> normal_tail(typename M::Number z) {
  if constexpr (M::kBits <= 8) {
    const auto exponent = M::multiply_add(z, normal_tail_exponent_rest<M>(z), M::constant(-1));
    return {M::exp2(exponent), M::exp2(z * M::constant(-kLog2E / 2) * z) * normal_tail_slope<M>(z)};
  } else {
    const auto e = exp2_product<M>(square<M>(z), split_constant<M>(-kLog2E / 2, -kLog2ERest / 2));
    const auto r = M::reciprocal(z + M::constant(4));
    const auto s = M::multiply_add(r, M::constant(-8), M::constant(1));  // (z - 4) / (z + 4)
    const auto ratio = M::multiply_add(z, normal_tail_rest<M>(s), M::constant(8));
    return tail_of_density<M>(z, e * (r * r * ratio), e * M::constant(0.3989422804014327));
  }
}

}  // namespace normact
