// SPDX-License-Identifier: Apache-2.0
// A bit per lane, from comparisons and back.
#pragma once

#include "cpu/simd_pair.h"

namespace normact::cpu::NORMACT_ISA {

/// Bit i: whether the condition (a comparison of vectors) holds in lane i.
NORMACT_SIMD uint32_t bits_of(IntVec condition) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)condition);
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_ps((__m256)condition));
#elif defined(__x86_64__)
  return uint32_t(_mm_movemask_ps((__m128)condition));
#else
  return uint32_t(-(condition[0] + 2 * condition[1] + 4 * condition[2] + 8 * condition[3]));
#endif
}
NORMACT_SIMD uint32_t bits_of(LongVec condition) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)condition);
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_pd((__m256d)condition));
#elif defined(__x86_64__)
  return uint32_t(_mm_movemask_pd((__m128d)condition));
#else
  return uint32_t(-(condition[0] + 2 * condition[1]));
#endif
}

/// The same of a pair of even and odd places, in the order of the places.
NORMACT_SIMD uint32_t bits_of(Pair<IntVec> condition) {
  const WordVec halves = ((WordVec)condition.a & 0xffffU) | ((WordVec)condition.b & 0xffff0000U);
#if defined(__AVX512F__)
  return _mm512_movepi16_mask((__m512i)halves);
#elif defined(__AVX2__)
  const auto bits = uint32_t(_mm256_movemask_epi8(_mm256_packs_epi16((__m256i)halves, (__m256i)halves)));
  return (bits & 0xffU) | (bits >> 8U & 0xff00U);
#elif defined(__x86_64__)
  return uint32_t(_mm_movemask_epi8(_mm_packs_epi16((__m128i)halves, (__m128i)halves))) & 0xffU;
#else
  const uint32_t even = bits_of(condition.a), odd = bits_of(condition.b);
  uint32_t bits = 0;
  for (unsigned i = 0; i < 4; ++i) bits |= (even >> i & 1U) << 2 * i | (odd >> i & 1U) << (2 * i + 1);
  return bits;
#endif
}

/// v in the lanes whose bit is set, 0 elsewhere.
#if defined(__AVX512F__)
NORMACT_SIMD FloatVec where_bits(uint32_t bits, FloatVec v) {
  return (FloatVec)_mm512_maskz_mov_ps(__mmask16(bits), (__m512)v);
}
NORMACT_SIMD DoubleVec where_bits(uint32_t bits, DoubleVec v) {
  return (DoubleVec)_mm512_maskz_mov_pd(__mmask8(bits), (__m512d)v);
}
#else
#if defined(__AVX2__)
constexpr IntVec kLaneBits = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr LongVec kLongLaneBits = {1, 2, 4, 8};
#else
constexpr IntVec kLaneBits = {1, 2, 4, 8};
constexpr LongVec kLongLaneBits = {1, 2};
#endif
NORMACT_SIMD FloatVec where_bits(uint32_t bits, FloatVec v) {
  return (FloatVec)((IntVec)v & ((kLaneBits & int32_t(bits)) != 0));
}
NORMACT_SIMD DoubleVec where_bits(uint32_t bits, DoubleVec v) {
  return (DoubleVec)((LongVec)v & ((kLongLaneBits & int64_t(bits)) != 0));
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
/// The same of the lanes of a pair of even and odd places.
NORMACT_SIMD Pair<FloatVec> where_bits(uint32_t bits, Pair<FloatVec> v) {
  constexpr IntVec kEven = {1, 4, 16, 64, 256, 1024, 4096, 16384};
  return {(FloatVec)((IntVec)v.a & ((kEven & int32_t(bits)) != 0)),
          (FloatVec)((IntVec)v.b & (((kEven << 1) & int32_t(bits)) != 0))};
}
#endif

/// count <= 16 bits, of which the first is this one of the mask; higher bits may be anything. Touches no other bytes.
NORMACT_SIMD uint32_t read_bits(const uint8_t* mask, int64_t first, int count) {
  const uint8_t* const source = mask + first / 8;
  const unsigned shift = unsigned(first % 8);
  uint32_t bits = source[0];
  if (int(shift) + count > 8) bits |= uint32_t(source[1]) << 8U;
  if (int(shift) + count > 16) bits |= uint32_t(source[2]) << 16U;
  return bits >> shift;
}

/// v where the bits of a mask are set, of which the first is this one, 0 elsewhere; `rest` elements are left.
template <class T, class Lanes>
NORMACT_SIMD auto mask_where(const uint8_t* mask, int64_t first, Vec<T> v, Lanes, int64_t rest) {
  if constexpr (!std::is_same_v<Lanes, Two>) {
    return where_bits(read_bits(mask, first, int(rest < kLanes<T> ? rest : kLanes<T>)), v);
#if defined(__AVX2__) && !defined(__AVX512F__)
  } else if constexpr (kEvenAndOdd<T>) {
    return where_bits(read_bits(mask, first, kPairLanes<T>), pair(v, v));
#endif
  } else {
    return arranged<T>(pair(where_bits(read_bits(mask, first, kLanes<T>), v),
                            where_bits(read_bits(mask, first + kLanes<T>, kLanes<T>), v)));
  }
}

}  // namespace normact::cpu::NORMACT_ISA
