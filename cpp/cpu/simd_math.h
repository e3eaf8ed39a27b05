// SPDX-License-Identifier: Apache-2.0
// The math policy (math/functions.h) of the CPU's vectors. Selections of lanes are vector selections; there is no call
// and no branch, so a loop over vectors stays one.
#pragma once

#include <type_traits>

#include "cpu/simd.h"
#include "math/activation.h"

namespace normact::cpu::NORMACT_ISA {

/// The bit layout of a lane, and what depends on it.
template <class V>
struct Lane;
template <>
struct Lane<FloatVec> {
  using Scalar = float;
  using Bits = IntVec;
  static constexpr int32_t kMagnitude = 0x7fffffff;
  static constexpr int kMantissaBits = 23;
  static constexpr float kBias = 127;
  static constexpr float kShifter = 0x1.8p23f;  // to add it rounds to an integer, which is then in the low bits
  static constexpr float kSplitter = 0x1.001p12f;
};
template <>
struct Lane<DoubleVec> {
  using Scalar = double;
  using Bits = LongVec;
  static constexpr int64_t kMagnitude = 0x7fffffffffffffff;
  static constexpr int kMantissaBits = 52;
  static constexpr double kBias = 1023;
  static constexpr double kShifter = 0x1.8p52;
  static constexpr double kSplitter = 0x1.0000002p27;
};

// ---- What processors have an instruction for
// -------------------------------------------------------------------------

// NaN in a stays, and so does a where the two are equal.
#if defined(__AVX512F__)
NORMACT_SIMD FloatVec minimum(FloatVec a, FloatVec b) {
  return (FloatVec)_mm512_maskz_min_ps(0xffff, (__m512)b, (__m512)a);
}
NORMACT_SIMD FloatVec maximum(FloatVec a, FloatVec b) {
  return (FloatVec)_mm512_maskz_max_ps(0xffff, (__m512)b, (__m512)a);
}
NORMACT_SIMD DoubleVec minimum(DoubleVec a, DoubleVec b) {
  return (DoubleVec)_mm512_maskz_min_pd(0xff, (__m512d)b, (__m512d)a);
}
NORMACT_SIMD DoubleVec maximum(DoubleVec a, DoubleVec b) {
  return (DoubleVec)_mm512_maskz_max_pd(0xff, (__m512d)b, (__m512d)a);
}

/// a * 2^n.
NORMACT_SIMD FloatVec power_scaled(FloatVec a, FloatVec n) {
  return (FloatVec)_mm512_maskz_scalef_ps(0xffff, (__m512)a, (__m512)n);
}
NORMACT_SIMD DoubleVec power_scaled(DoubleVec a, DoubleVec n) {
  return (DoubleVec)_mm512_maskz_scalef_pd(0xff, (__m512d)a, (__m512d)n);
}
#elif defined(__AVX2__)
NORMACT_SIMD FloatVec minimum(FloatVec a, FloatVec b) { return (FloatVec)_mm256_min_ps((__m256)b, (__m256)a); }
NORMACT_SIMD FloatVec maximum(FloatVec a, FloatVec b) { return (FloatVec)_mm256_max_ps((__m256)b, (__m256)a); }
NORMACT_SIMD DoubleVec minimum(DoubleVec a, DoubleVec b) { return (DoubleVec)_mm256_min_pd((__m256d)b, (__m256d)a); }
NORMACT_SIMD DoubleVec maximum(DoubleVec a, DoubleVec b) { return (DoubleVec)_mm256_max_pd((__m256d)b, (__m256d)a); }
#elif defined(__x86_64__)
NORMACT_SIMD FloatVec minimum(FloatVec a, FloatVec b) { return (FloatVec)_mm_min_ps((__m128)b, (__m128)a); }
NORMACT_SIMD FloatVec maximum(FloatVec a, FloatVec b) { return (FloatVec)_mm_max_ps((__m128)b, (__m128)a); }
NORMACT_SIMD DoubleVec minimum(DoubleVec a, DoubleVec b) { return (DoubleVec)_mm_min_pd((__m128d)b, (__m128d)a); }
NORMACT_SIMD DoubleVec maximum(DoubleVec a, DoubleVec b) { return (DoubleVec)_mm_max_pd((__m128d)b, (__m128d)a); }
#else
template <class V>
NORMACT_SIMD V minimum(V a, V b) {
  return b < a ? b : a;
}
template <class V>
NORMACT_SIMD V maximum(V a, V b) {
  return b > a ? b : a;
}
#endif

/// V: FloatVec with 11 or 24 bits, DoubleVec with 53.
template <class V, int kPrecision>
struct VectorMath {
  using Number = V;
  using L = Lane<V>;
  using Bits = typename L::Bits;
  static constexpr int kBits = kPrecision;
  static constexpr bool kExp2Instruction = false;
  static constexpr bool kLookup = kVectorBytes == 64 && kBits <= 24;

  NORMACT_SIMD static V constant(double c) { return broadcast(static_cast<typename L::Scalar>(c)); }
  NORMACT_SIMD static V multiply(V a, V b) { return a * b; }  // -ffp-contract=off keeps it alone
  NORMACT_SIMD static V multiply_add(V a, V b, V c) { return NORMACT_ISA::multiply_add(a, b, c); }

  NORMACT_SIMD static V product_error(V a, V b, V p) {
#if defined(__FMA__) || defined(__aarch64__)
    return multiply_add(a, b, -p);
#else
    // Dekker's product: the halves have half the bits each, so their products are exact.
    const V a_high = upper_half(a), a_low = a - a_high;
    const V b_high = upper_half(b), b_low = b - b_high;
    return ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low;
#endif
  }

  NORMACT_SIMD static V abs(V a) { return (V)((Bits)a & L::kMagnitude); }
  NORMACT_SIMD static V copy_sign(V a, V sign) {
    return (V)(((Bits)a & L::kMagnitude) | ((Bits)sign & ~L::kMagnitude));
  }

  NORMACT_SIMD static V minimum(V a, V b) { return NORMACT_ISA::minimum(a, b); }
  NORMACT_SIMD static V maximum(V a, V b) { return NORMACT_ISA::maximum(a, b); }

  template <class Condition>
  NORMACT_SIMD static V select(Condition condition, V yes, V no) {
    return condition ? yes : no;
  }

  NORMACT_SIMD static V select_negative(V x, V yes, V no) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(typename L::Scalar) == 4) return (V)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)x);
    if constexpr (sizeof(typename L::Scalar) == 8) return (V)_mm256_blendv_pd((__m256d)no, (__m256d)yes, (__m256d)x);
#endif
    return x < 0 ? yes : no;
  }

  NORMACT_SIMD static V reciprocal(V d) {
#if defined(__AVX512F__)
    if constexpr (sizeof(typename L::Scalar) == 4) {
      // 2^-14, then 2^-28 by Newton's method: a division takes the time of half a formula.
      const V r = (V)_mm512_maskz_rcp14_ps(0xffff, (__m512)d);
      return multiply_add(r, multiply_add(-d, r, constant(1)), r);
    }
#endif
    return 1 / d;
  }

#if defined(__AVX512F__)
  NORMACT_SIMD static V nearest_word(V a, V b) { return multiply_add(a, b, constant(L::kShifter)); }
  NORMACT_SIMD static V nearest_of(V word) { return word - L::kShifter; }
  NORMACT_SIMD static V scale(V a, V word) { return power_scaled(a, nearest_of(word)); }
#else
  // The low bits of a word are the exponent of 2^n: 0, and with it the result, below the least normal number.
  NORMACT_SIMD static V nearest_word(V a, V b) { return multiply_add(a, b, constant(L::kShifter + L::kBias)); }
  NORMACT_SIMD static V nearest_of(V word) { return word - (L::kShifter + L::kBias); }
  NORMACT_SIMD static V scale(V a, V word) {
    return a * (V)(larger_bits(word, constant(L::kShifter)) << L::kMantissaBits);
  }
#endif

#if defined(__AVX512F__)
  NORMACT_SIMD static V lookup(const float (&table)[kPieces], V word) {
    static_assert(kPieces == 2 * sizeof(V) / sizeof(float));
    return (V)_mm512_permutex2var_ps(_mm512_load_ps(table), (__m512i)word, _mm512_load_ps(table + kPieces / 2));
  }
  NORMACT_SIMD static unsigned below(V a, V bound) { return _mm512_cmp_ps_mask((__m512)a, (__m512)bound, _CMP_LT_OQ); }
  NORMACT_SIMD static bool any_below(V a, V bound) { return below(a, bound) != 0; }
#endif

 private:
#if !defined(__AVX512F__)
  /// The bits of maximum(a, b), both positive; any of NaN.
  NORMACT_SIMD static Bits larger_bits(V a, V b) {
#if defined(__AVX2__)
    // As integers: the units of floating-point minima and maxima are those that multiply.
    if constexpr (sizeof(typename L::Scalar) == 4) return (Bits)_mm256_max_epi32((__m256i)a, (__m256i)b);
#endif
    return (Bits)maximum(a, b);
  }
#endif
  NORMACT_SIMD static V upper_half(V a) {
    const V large = a * L::kSplitter;
    return large - (large - a);
  }
};

/// The policy for elements of type T.
template <class T>
using Math = VectorMath<Vec<T>, sizeof(T) == 2   ? 11
                                : sizeof(T) == 4 ? 24
                                                 : 53>;

/// An activation's scalars in every lane.
template <class T>
NORMACT_SIMD ActivationScalars<Vec<T>> broadcast_scalars(const ActivationScalars<Accumulator<T>>& s) {
  return map_scalars<Vec<T>>(s, [](Accumulator<T> scalar) __attribute__((always_inline)) { return broadcast(scalar); });
}

}  // namespace normact::cpu::NORMACT_ISA
