// SPDX-License-Identifier: Apache-2.0
// Activations made of exponentials. All but x_times_logistic use exp of a number <= 0, so that nothing overflows, and
// the symmetry of their distribution functions, so that nothing cancels. |x| is bounded where a factor x meets an
// exponential that is 0.
//
// The heads say the largest errors in ulp, of value and slope, in fp32 and fp64; where the slope has a zero, within 1
// of it, its error is absolute, in units of 2^-24 (2^-53). Results below 2^-112 (2^-1008) may have lost to flushed
// subnormals. With 11 bits, more than 99.9 % of all fp16 and bf16 inputs, with 8 bits of all bf16 inputs, give the
// correctly rounded value and slope. tests/cpp/activation_math_test.cpp checks all this on the CPU, and
// activation_device_math_test.cpp what a GPU computes for 16 bits. Its ex2.approx, off by 2^-22.5, may add 3 ulp in
// fp32.
#pragma once

#include "math/activation_types.h"
#include "math/piecewise.h"

namespace normact {

/// Whether x_times_logistic serves: exponentials are one instruction, which overflows to infinity, and what cancels in
/// its slope, near x = 4, is below 11 bits.
template <class M>
constexpr bool kLogisticOfAny = M::kExp2Instruction && M::kBits <= 11;

/// x S(u) and S + x u' S (1 - S), S(u) = 1 / (1 + e) the logistic function, for e = exp(-u) of any u: a fifth fewer
/// operations than by symmetry. x is bounded from below, as it may meet an S of 0; rise = x u' with x bounded from
/// above, too, as it may meet a 1 - S of 0.
template <class M>
NORMACT_HD ValueAndSlope<typename M::Number> x_times_logistic(typename M::Number x, typename M::Number e,
                                                              typename M::Number rise) {
  const auto one = M::constant(1);
  const auto share = M::reciprocal(one + e);
  return {x * share, share * M::multiply_add(rise, one - share, one)};
}

/// x Phi(x); Phi(x) + x phi(x).
/// Errors: fp32 6 and 4, fp64 6 and 3.5; near the zero 3. The value is within 5e-7, relatively, for x >= -12.
template <class M>
struct Gelu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    return x_times_distribution<M, NormalLower, NormalSlope, normal_tail<M>>(x, normal_reach<M>());
  }
};

/// x S(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), S the logistic function; S + x 2 u' S (1 - S). This is
/// x (1 + tanh(u)) / 2.
/// Errors: fp32 3.5 and 7, fp64 3.5 and 6; near the zero 2.
template <class M>
struct GeluTanh {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N reach = M::constant(24);  // 2 u = 1024
    if constexpr (kLogisticOfAny<M>) {
      const N bounded = M::maximum(x, -reach), both = M::minimum(bounded, reach);
      const N e = M::exp2(bounded * M::multiply_add(bounded * bounded, M::constant(kCubic), M::constant(kLinear)));
      const N twice_u_slope = M::multiply_add(both * both, M::constant(kSlopeSquare), M::constant(kSlope));
      return x_times_logistic<M>(bounded, e, both * twice_u_slope);
    } else {
      return x_times_distribution<M, TanhLower, TanhSlope, tail>(x, reach);
    }
  }

 private:
  NORMACT_HD static DistributionTail<M> tail(N z) {
    const Split<M> z_square = square<M>(z);
    // -2 u log2(e) = z (linear + cubic z^2)
    const Split<M> linear = split_constant<M>(kLinear, kLinearRest);
    const Split<M> cubic = split_constant<M>(kCubic, kCubicRest);
    const Split<M> rate = sum<M>(linear, product<M>(z_square, cubic));
    const Tails<M> tails = logistic_tails<M>(exp2_product<M>(z, rate));
    const N twice_u_slope = M::multiply_add(z_square.high, M::constant(kSlopeSquare), M::constant(kSlope));
    return tail_of_density<M>(z, tails.lower, twice_u_slope * (tails.lower * tails.upper));
  }

  static constexpr double kSlope = 1.5957691216057308;         // 2 sqrt(2 / pi)
  static constexpr double kSlopeSquare = 0.21406444881780073;  // kSlope * 3 * 0.044715
  static constexpr double kLinear = -2.3022081981443248, kLinearRest = -1.3132826040769712e-16;
  static constexpr double kCubic = -0.1029432395800235, kCubicRest = 5.978177400718744e-18;
};

/// x S(1.702 x); S + x 1.702 S (1 - S).
/// Errors: fp32 3.5 and 6.5, fp64 3.5 and 5.5; near the zero 2.
template <class M>
struct QuickGelu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N reach = exp_reach<M>(), factor = M::constant(1.702);
    constexpr double kRate = -2.4554669595930156, kRateRest = -7.816541847237075e-17;  // -1.702 log2(e)
    if constexpr (kLogisticOfAny<M>) {
      const N bounded = M::maximum(x, -reach);
      return x_times_logistic<M>(bounded, M::exp2(bounded * M::constant(kRate)), M::minimum(bounded, reach) * factor);
    } else {
      const N z = bounded_size<M>(x, reach);
      const Tails<M> tails = logistic_tails<M>(exp2_product<M>(z, split_constant<M>(kRate, kRateRest)));
      const N density = factor * (tails.lower * tails.upper);
      return x_times_distribution<M>(x, z, tail_of_density<M>(z, tails.lower, density));
    }
  }
};

/// x S(x), S(x) = 1 / (1 + exp(-x)); S + x S (1 - S).
/// Errors: fp32 3.5 and 6, fp64 3.5 and 5.5; near the zero 1.5.
template <class M>
struct Silu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N reach = exp_reach<M>();
    if constexpr (kLogisticOfAny<M>) {
      const N bounded = M::maximum(x, -reach);
      return x_times_logistic<M>(bounded, M::exp2(bounded * M::constant(-kLog2E)), M::minimum(bounded, reach));
    } else {
      return x_times_distribution<M, LogisticLower, LogisticSlope, tail>(x, reach);
    }
  }

 private:
  NORMACT_HD static DistributionTail<M> tail(N z) {
    const Tails<M> tails = logistic_tails<M>(exp_minus<M>(z));
    return tail_of_density<M>(z, tails.lower, tails.lower * tails.upper);
  }
};

/// S(x) = 1 / (1 + exp(-x)); S (1 - S).
/// Errors: fp32 3 and 4.5, fp64 3 and 4.
template <class M>
struct Sigmoid {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    if constexpr (M::kLookup) {
      const N z = M::abs(x);
      const N lower = piecewise_or<M, LogisticLower, logistic_lower<M>>(z);
      return {M::select_negative(x, lower, M::constant(1) - lower),
              piecewise_or<M, LogisticDensity, logistic_density<M>>(z)};
    } else {
      const Tails<M> tails = logistic_tails<M>(exp_minus<M>(bounded_size<M>(x, exp_reach<M>())));
      return {M::select_negative(x, tails.lower, tails.upper), tails.lower * tails.upper};
    }
  }
  NORMACT_HD static N slope_from_output(N y, const ActivationScalars<N>&) { return y * (M::constant(1) - y); }
};

/// (1 - e) / (1 + e) for x >= 0, e = exp(-2 |x|), and odd; 4 e / (1 + e)^2 = 1 - y^2.
/// Errors: fp32 4 and 5.5, fp64 4 and 5.
template <class M>
struct Tanh {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N z = bounded_size<M>(x, exp_reach<M>());
    const Split<M> rate = split_constant<M>(-2 * kLog2E, -2 * kLog2ERest);
    const Exp2AndMinus1<M> exponential = exp2_and_minus_1<M>(z, rate);
    const N r = M::reciprocal(exponential.minus_1 + M::constant(2));
    const N value = M::copy_sign(exponential.minus_1 * r, x);
    if constexpr (M::kLookup) {
      return {value, piecewise_or<M, TanhDensity, tanh_density<M>>(M::abs(x))};
    } else {
      const N twice = r + r;
      return {value, exponential.e * (twice * twice)};
    }
  }
  NORMACT_HD static N slope_from_output(N y, const ActivationScalars<N>&) {
    return M::multiply_add(-y, y, M::constant(1));
  }
};

/// x > 0 ? x : alpha (exp(x) - 1); x > 0 ? 1 : alpha exp(x). The slope from the output needs alpha >= 0.
/// Errors: fp32 3.5 and 2, fp64 3.5 and 2.
template <class M>
struct Elu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>& s) {
    const N z = bounded_size<M>(x, exp_reach<M>());
    const Split<M> rate = split_constant<M>(-kLog2E, -kLog2ERest);
    const Exp2AndMinus1<M> exponential = exp2_and_minus_1<M>(z, rate);
    const auto positive = x > M::constant(0);
    return {M::select(positive, x, s.alpha * exponential.minus_1),
            M::select(positive, M::constant(1), s.alpha * exponential.e)};
  }
  NORMACT_HD static N slope_from_output(N y, const ActivationScalars<N>& s) {
    return M::select(y > M::constant(0), M::constant(1), y + s.alpha);
  }
};

/// log(1 + exp(beta x)) / beta, and x where beta x > threshold; S(beta x), and 1 there.
/// Errors: fp32 4 and 3, fp64 3.5 and 3.
template <class M>
struct Softplus {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>& s) {
    const N zero = M::constant(0);
    const N scaled = s.beta * x;
    const N z = bounded_size<M>(x, s.reach);
    const N e = exp2_product<M>(z, Split<M>{s.rate_high, s.rate_low});
    const N value = M::multiply_add(log1p_unit<M>(e), s.reciprocal_beta, M::select(scaled > zero, x, zero));
    const Tails<M> tails = logistic_tails<M>(e);
    const N slope = M::select_negative(scaled, tails.lower, tails.upper);
    const auto linear = scaled > s.threshold;
    return {M::select(linear, x, value), M::select(linear, M::constant(1), slope)};
  }
};

/// x T(x), T(x) = tanh(log(1 + exp(x))) = n / d; T + x T'. With w = exp(-|x|):
///   x < 0:  n = w (w + 2), d = n + 2,      T' = 4 w (1 + w) / d^2
///   x >= 0: n = 1 + 2 w,   d = n + 2 w^2,  T' = 4 w^2 (1 + w) / d^2
/// Errors: fp32 4.5 and 8, fp64 4.5 and 7.5; near the zero 2.
template <class M>
struct Mish {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N one = M::constant(1);
    const N z = bounded_size<M>(x, exp_reach<M>());
    const N w = exp_minus<M>(z);
    const N twice = w + w;
    const N n = M::select_negative(x, M::multiply_add(w, w, twice), one + twice);
    const N r = M::reciprocal(n + M::select_negative(x, M::constant(2), twice * w));
    const N share = n * r;
    const N factor = M::select_negative(x, -z, z * w);  // of T': x, and the other w of x >= 0
    const N slope = (twice + twice) * (one + w) * (r * r);
    return {M::maximum(x, -exp_reach<M>()) * share, M::multiply_add(factor, slope, share)};
  }
};

}  // namespace normact
