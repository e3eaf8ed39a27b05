// SPDX-License-Identifier: Apache-2.0
// One vector type for every instruction set: the compiler's own (GCC and Clang vector extensions), whose + - * / are
// the operators that the formulas of cpp/math use. Here is what those lack: partial loads and stores, 16-bit types,
// fused multiply-add, the sum of the lanes.
//
// Everything lives in a namespace named after the instruction set (NORMACT_ISA, defined by the including file) and is
// always inlined: a function built for AVX-512 can never be the one that baseline code links to.
#pragma once

#include <cstdint>

#include "cpu/element.h"

#if !defined(NORMACT_ISA)
#error "define NORMACT_ISA before including this header"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define NORMACT_SIMD inline __attribute__((always_inline))

/// For a function of several rows: GCC would put their pointers in vectors, and wait for these to go through memory.
#if defined(__GNUC__) && !defined(__clang__)
#define NORMACT_SCALARS_APART __attribute__((optimize("no-tree-slp-vectorize")))
#else
#define NORMACT_SCALARS_APART
#endif

namespace normact::cpu::NORMACT_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef float FloatVec __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVec __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntVec __attribute__((vector_size(kVectorBytes)));
typedef int64_t LongVec __attribute__((vector_size(kVectorBytes)));
typedef uint32_t WordVec __attribute__((vector_size(kVectorBytes)));
typedef uint16_t ShortVec __attribute__((vector_size(kVectorBytes / 2)));

template <class T>
struct VecOf {
  typedef FloatVec type;
};
template <>
struct VecOf<double> {
  typedef DoubleVec type;
};

/// The vector that elements of type T are computed in.
template <class T>
using Vec = typename VecOf<T>::type;

template <class T>
constexpr int kLanes = kVectorBytes / sizeof(Accumulator<T>);

/// Which lanes a load or a store touches: all, or the first count (1 <= count < lanes). Untouched lanes load as 0.
struct All {};
struct First {
  int count;
};
/// All, stored past the caches to an address that is a multiple of the vector's size; see simd_stream.h.
struct Streamed {};

NORMACT_SIMD FloatVec broadcast(float value) { return value - FloatVec{}; }  // - 0 keeps the sign of -0
NORMACT_SIMD DoubleVec broadcast(double value) { return value - DoubleVec{}; }

/// v in a register: where it is used several times, compilers would load it for each of them.
template <class V>
NORMACT_SIMD V loaded_once(V v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

// ---- Masks ----------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
NORMACT_SIMD uint32_t mask_of(First lanes) { return (1U << unsigned(lanes.count)) - 1; }
#elif defined(__AVX2__)
NORMACT_SIMD IntVec float_mask(First lanes) { return IntVec{0, 1, 2, 3, 4, 5, 6, 7} < lanes.count; }
NORMACT_SIMD LongVec double_mask(First lanes) { return LongVec{0, 1, 2, 3} < int64_t(lanes.count); }
#else
NORMACT_SIMD IntVec float_mask(First lanes) { return IntVec{0, 1, 2, 3} < lanes.count; }
NORMACT_SIMD LongVec double_mask(First lanes) { return LongVec{0, 1} < int64_t(lanes.count); }
#endif

/// v with 0 in the lanes that are not chosen.
template <class V>
NORMACT_SIMD V keep(V v, All) {
  return v;
}
#if defined(__AVX512F__)
NORMACT_SIMD FloatVec keep(FloatVec v, First lanes) {
  return (FloatVec)_mm512_maskz_mov_ps(__mmask16(mask_of(lanes)), (__m512)v);
}
NORMACT_SIMD DoubleVec keep(DoubleVec v, First lanes) {
  return (DoubleVec)_mm512_maskz_mov_pd(__mmask8(mask_of(lanes)), (__m512d)v);
}
#else
NORMACT_SIMD FloatVec keep(FloatVec v, First lanes) { return (FloatVec)((IntVec)v & float_mask(lanes)); }
NORMACT_SIMD DoubleVec keep(DoubleVec v, First lanes) { return (DoubleVec)((LongVec)v & double_mask(lanes)); }
#endif

// ---- Raw loads and stores -------------------------------------------------------------------------------------------

/// V at any address. Unlike memcpy, such a store tells the compiler that it changes elements and nothing else.
template <class V>
struct Unaligned {
  typedef V type __attribute__((aligned(1)));
};

template <class V, class T>
NORMACT_SIMD V load_raw(const T* source, All) {
  return *reinterpret_cast<const typename Unaligned<V>::type*>(source);
}
template <class V, class T>
NORMACT_SIMD void store_raw(T* target, V v, All) {
  *reinterpret_cast<typename Unaligned<V>::type*>(target) = v;
}

template <class V, class T>
NORMACT_SIMD void store_raw(T* target, V v, Streamed) {
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 8) _mm_stream_si64((long long*)target, (long long)v);
  if constexpr (sizeof(V) == 16) _mm_stream_si128((__m128i*)target, (__m128i)v);
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) _mm256_stream_si256((__m256i*)target, (__m256i)v);
#endif
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) _mm512_stream_si512((__m512i*)target, (__m512i)v);
#endif
#else
  store_raw(target, v, All{});  // no driver asks for more there
#endif
}

template <class V, class T>
NORMACT_SIMD V load_raw(const T* source, First lanes) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 8) return (V)_mm512_maskz_loadu_pd(__mmask8(mask_of(lanes)), source);
  if constexpr (sizeof(T) == 4) return (V)_mm512_maskz_loadu_ps(__mmask16(mask_of(lanes)), source);
  if constexpr (sizeof(T) == 2) return (V)_mm256_maskz_loadu_epi16(__mmask16(mask_of(lanes)), source);
#else
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 8) return (V)_mm256_maskload_pd((const double*)source, (__m256i)double_mask(lanes));
  if constexpr (sizeof(T) == 4) return (V)_mm256_maskload_ps((const float*)source, (__m256i)float_mask(lanes));
#endif
  V v = {};
  for (int i = 0; i < lanes.count; ++i) __builtin_memcpy((char*)&v + i * int(sizeof(T)), source + i, sizeof(T));
  return v;
#endif
}

template <class V, class T>
NORMACT_SIMD void store_raw(T* target, V v, First lanes) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 8) _mm512_mask_storeu_pd(target, __mmask8(mask_of(lanes)), (__m512d)v);
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(target, __mmask16(mask_of(lanes)), (__m512)v);
  if constexpr (sizeof(T) == 2) _mm256_mask_storeu_epi16(target, __mmask16(mask_of(lanes)), (__m256i)v);
#else
#if defined(__AVX2__)
  if constexpr (sizeof(T) == 8) return _mm256_maskstore_pd((double*)target, (__m256i)double_mask(lanes), (__m256d)v);
  if constexpr (sizeof(T) == 4) return _mm256_maskstore_ps((float*)target, (__m256i)float_mask(lanes), (__m256)v);
#endif
  for (int i = 0; i < lanes.count; ++i) __builtin_memcpy(target + i, (const char*)&v + i * int(sizeof(T)), sizeof(T));
#endif
}

// ---- Arithmetic that the operators lack -----------------------------------------------------------------------------

/// a * b + c, fused where the instruction set has it.
#if defined(__AVX512F__)
NORMACT_SIMD FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return (FloatVec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
NORMACT_SIMD DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return (DoubleVec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__FMA__)
NORMACT_SIMD FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return (FloatVec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
NORMACT_SIMD DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return (DoubleVec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#elif defined(__aarch64__)
NORMACT_SIMD FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec c) {
  return (FloatVec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
NORMACT_SIMD DoubleVec multiply_add(DoubleVec a, DoubleVec b, DoubleVec c) {
  return (DoubleVec)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
template <class V>
NORMACT_SIMD V multiply_add(V a, V b, V c) {
  return a * b + c;
}
#endif

/// The same as an argument of a formula.
constexpr auto kFused = [](auto a, auto b, auto c) __attribute__((always_inline)) { return multiply_add(a, b, c); };

/// The sum of the lanes: halves are added to halves.
NORMACT_SIMD float sum(FloatVec v) {
#if defined(__AVX512F__)
  const auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(__AVX2__)
  const auto eight = v;
#endif
#if defined(__AVX2__)
  const auto four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#else
  const auto four = v;
#endif
  const auto two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
  return two[0] + two[1];
}
NORMACT_SIMD double sum(DoubleVec v) {
#if defined(__AVX512F__)
  const auto four = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#elif defined(__AVX2__)
  const auto four = v;
#endif
#if defined(__AVX2__)
  const auto two = __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
#else
  const auto two = v;
#endif
  return two[0] + two[1];
}

}  // namespace normact::cpu::NORMACT_ISA
