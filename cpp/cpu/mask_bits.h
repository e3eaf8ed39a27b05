// SPDX-License-Identifier: Apache-2.0
// A bit per lane, from comparisons and back.
#pragma once

#include "cpu/simd.h"

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

/// count <= 16 bits, of which the first is this one of the mask; higher bits may be anything. Touches no other bytes.
NORMACT_SIMD uint32_t read_bits(const uint8_t* mask, int64_t first, int count) {
  const uint8_t* const source = mask + first / 8;
  const unsigned shift = unsigned(first % 8);
  uint32_t bits = source[0];
  if (int(shift) + count > 8) bits |= uint32_t(source[1]) << 8U;
  if (int(shift) + count > 16) bits |= uint32_t(source[2]) << 16U;
  return bits >> shift;
}

}  // namespace normact::cpu::NORMACT_ISA
