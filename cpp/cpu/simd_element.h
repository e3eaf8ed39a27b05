// SPDX-License-Identifier: Apache-2.0
// Vectors from and to memory by element type. The 16-bit types are exact on the way to fp32 and rounded to nearest even
// on the way back; NaN stays NaN.
#pragma once

#include <type_traits>

#include "cpu/simd.h"

namespace normact::cpu::NORMACT_ISA {

// ---- 16 bits between 32 --------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr __mmask16 kAllLanes = 0xffff;  // for the masked forms: GCC 12 warns of its own unmasked ones
NORMACT_SIMD WordVec to_words(ShortVec v) { return (WordVec)_mm512_maskz_cvtepu16_epi32(kAllLanes, (__m256i)v); }
NORMACT_SIMD ShortVec to_shorts(WordVec v) { return (ShortVec)_mm512_maskz_cvtepi32_epi16(kAllLanes, (__m512i)v); }
#elif defined(__AVX2__)
NORMACT_SIMD WordVec to_words(ShortVec v) { return (WordVec)_mm256_cvtepu16_epi32((__m128i)v); }
/// The high halves of v must be 0.
NORMACT_SIMD ShortVec to_shorts(WordVec v) {
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (ShortVec)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
#else
NORMACT_SIMD WordVec to_words(ShortVec v) { return __builtin_convertvector(v, WordVec); }
NORMACT_SIMD ShortVec to_shorts(WordVec v) { return __builtin_convertvector(v, ShortVec); }
#endif

/// Where the condition (a comparison of vectors) holds, yes, elsewhere no.
NORMACT_SIMD WordVec select(IntVec condition, WordVec yes, WordVec no) { return condition ? yes : no; }

// ---- bf16 ----------------------------------------------------------------------------------------------------------

NORMACT_SIMD FloatVec widen(ShortVec bits, BFloat) { return (FloatVec)(to_words(bits) << 16U); }

/// The upper half is the rounded number.
NORMACT_SIMD WordVec rounded_bits(FloatVec v) {
  const WordVec bits = (WordVec)v;
  const WordVec rounded = bits + 0x7fffU + ((bits >> 16U) & 1U);
#if defined(__AVX512F__)
  return select(v == v, rounded, bits | 0x400000U);
#else
  return rounded | (WordVec)(v != v);  // all ones are NaN
#endif
}
NORMACT_SIMD ShortVec narrow(FloatVec v, BFloat) { return to_shorts(rounded_bits(v) >> 16U); }

// ---- fp16 ----------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
NORMACT_SIMD FloatVec widen(ShortVec bits, Half) { return (FloatVec)_mm512_maskz_cvtph_ps(kAllLanes, (__m256i)bits); }
NORMACT_SIMD ShortVec narrow(FloatVec v, Half) {
  return (ShortVec)_mm512_maskz_cvtps_ph(kAllLanes, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
NORMACT_SIMD FloatVec widen(ShortVec bits, Half) { return (FloatVec)_mm256_cvtph_ps((__m128i)bits); }
NORMACT_SIMD ShortVec narrow(FloatVec v, Half) {
  return (ShortVec)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__aarch64__)
NORMACT_SIMD FloatVec widen(ShortVec bits, Half) { return (FloatVec)vcvt_f32_f16((float16x4_t)bits); }
NORMACT_SIMD ShortVec narrow(FloatVec v, Half) { return (ShortVec)vcvt_f16_f32((float32x4_t)v); }
#else
/// The bits of the fp32 number 2^(biased - 127).
constexpr uint32_t power(uint32_t biased) { return biased << 23U; }

NORMACT_SIMD FloatVec widen(ShortVec bits, Half) {
  const WordVec all = to_words(bits);
  const WordVec magnitude = (all & 0x7fffU) << 13U;
  const WordVec normal = magnitude + power(127 - 15);
  const WordVec special = magnitude | power(255);  // Inf and NaN
  // A subnormal half: 2^-14 * (1 + mantissa) - 2^-14, exact and free of fp32 subnormals.
  const WordVec small = (WordVec)((FloatVec)(magnitude + power(113)) - (FloatVec)(WordVec{} + power(113)));
  const WordVec finite = select(magnitude < power(1), small, normal);
  return (FloatVec)(select(magnitude < power(31), finite, special) | ((all & 0x8000U) << 16U));
}
NORMACT_SIMD ShortVec narrow(FloatVec v, Half) {
  const WordVec bits = (WordVec)v;
  const WordVec magnitude = bits & 0x7fffffffU;
  const WordVec normal = (magnitude - power(127 - 15) + 0xfffU + ((magnitude >> 13U) & 1U)) >> 13U;
  // Below 2^-14: adding 1/2 leaves the half's subnormal mantissa, rounded, in the low bits.
  const WordVec small = (WordVec)((FloatVec)magnitude + 0.5f) - power(126);
  const WordVec finite = select(magnitude < power(113), small, normal);
  const WordVec special = select(magnitude > power(255), WordVec{} + 0x7e00U, WordVec{} + 0x7c00U);
  const WordVec result = select(magnitude < power(143), finite, special);  // 2^16 and above is infinite
  return to_shorts(result | ((bits >> 16U) & 0x8000U));
}
#endif

// ---- Loads and stores of elements -----------------------------------------------------------------------------------

template <class T, class Lanes>
NORMACT_SIMD Vec<T> load(const T* source, Lanes lanes) {
  if constexpr (sizeof(T) == 2) {
    return widen(load_raw<ShortVec>(source, lanes), T{});
  } else {
    return load_raw<Vec<T>>(source, lanes);
  }
}

/// Rounds to T.
template <class T, class Lanes>
NORMACT_SIMD void store(T* target, Vec<T> v, Lanes lanes) {
  if constexpr (sizeof(T) == 2) {
    store_raw(target, narrow(v, T{}), lanes);
  } else {
    store_raw(target, v, lanes);
  }
}

/// The same of numbers that are T's already.
template <class T, class Lanes>
NORMACT_SIMD void store_exact(T* target, Vec<T> v, Lanes lanes) {
  if constexpr (std::is_same_v<T, BFloat>) {
    store_raw(target, to_shorts((WordVec)v >> 16U), lanes);
  } else {
    store(target, v, lanes);
  }
}

/// What comes back from a T in memory.
template <class T>
NORMACT_SIMD Vec<T> rounded(Vec<T> v) {
  if constexpr (sizeof(T) == 2) return widen(narrow(v, T{}), T{});
  return v;
}

/// body(column, lanes) for every vector of a row of cols columns, in order.
template <class T, class Body>
NORMACT_SIMD void for_vectors(int64_t cols, Body body) {
  int64_t column = 0;
  for (; column + kLanes<T> <= cols; column += kLanes<T>) body(column, All{});
  if (column < cols) body(column, First{int(cols - column)});
}

}  // namespace normact::cpu::NORMACT_ISA
