// SPDX-License-Identifier: Apache-2.0
// Element types on the device: their accumulator, the 16-byte pack that one access moves, and the conversions. Every
// conversion to a 16-bit type rounds to nearest even, and each output is converted exactly once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace normact::cuda {

template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
/// What sums and statistics of T are kept in: fp32, and fp64 for fp64.
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

constexpr int kPackBytes = 16;

/// Elements in one 16-byte access.
template <class T>
constexpr int kPackSize = kPackBytes / static_cast<int>(sizeof(T));

/// 16 bytes of consecutive elements (or 8: narrow_pack.cuh), as one access moves them. 16-bit elements lie in pairs, so
/// that choosing between two packs moves whole registers.
template <class T, int kBytes = kPackBytes>
struct alignas(kBytes) Pack {
  using Word = std::conditional_t<sizeof(T) == 2, uint32_t, T>;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));
  Word word[kWords];
};

template <class To, class From>
__device__ __forceinline__ To convert(From value) {
  return static_cast<To>(value);
}
template <>
__device__ __forceinline__ float convert<float, __half>(__half value) {
  return __half2float(value);
}
template <>
__device__ __forceinline__ float convert<float, __nv_bfloat16>(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <>
__device__ __forceinline__ __half convert<__half, float>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 convert<__nv_bfloat16, float>(float value) {
  return __float2bfloat16_rn(value);
}

/// Two neighbours of a 16-bit type at once: one instruction.
template <class T>
__device__ __forceinline__ uint32_t convert_pair(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

/// value[0 ..) = the pack's elements.
template <class A, class T, int kBytes>
__device__ __forceinline__ void unpack(const Pack<T, kBytes>& pack, A* value) {
#pragma unroll
  for (int j = 0; j < Pack<T, kBytes>::kWords; ++j) {
    const auto word = pack.word[j];
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // bf16 is the upper half of fp32
      value[2 * j] = __uint_as_float(word << 16);
      value[2 * j + 1] = __uint_as_float(word & 0xffff0000u);
    } else if constexpr (std::is_same_v<T, __half>) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
      value[2 * j] = both.x;
      value[2 * j + 1] = both.y;
    } else {
      value[j] = static_cast<A>(word);
    }
  }
}

template <class T, class A>
__device__ __forceinline__ Pack<T> to_pack(const A (&value)[kPackSize<T>]) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < kPackSize<typename Pack<T>::Word>; ++j) {
    if constexpr (sizeof(T) == 2) {
      pack.word[j] = convert_pair<T>(value[2 * j], value[2 * j + 1]);
    } else {
      pack.word[j] = value[j];
    }
  }
  return pack;
}

template <class T, class A>
__device__ __forceinline__ Pack<T> constant_pack(A constant) {
  A value[kPackSize<T>];
#pragma unroll
  for (int j = 0; j < kPackSize<T>; ++j) value[j] = constant;
  return to_pack<T>(value);
}

/// 1 / value within 2^-22 or better, for what needs no more.
__device__ __forceinline__ float rough_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ double rough_reciprocal(double value) { return 1 / value; }

/// 1 / value to within two units in the last place, for numbers between 2^-100 and 2^100.
__device__ __forceinline__ float quick_reciprocal(float value) { return __fdividef(1.0f, value); }
__device__ __forceinline__ double quick_reciprocal(double value) { return 1.0 / value; }

template <class A>
__device__ __forceinline__ A finite_or_zero(A value) {
  return value - value == A(0) ? value : A(0);
}

/// 1 / sqrt(value): the hardware's estimate (2^-22.9) and one Newton step, within one ulp for less than half the
/// instructions of a division by a square root. Zero gives infinity, as it must.
__device__ __forceinline__ float reciprocal_sqrt(float value) {
  const float estimate = rsqrtf(value);
  const float error = fmaf(-value * estimate, estimate, 1.0f);
  return fabsf(error) < 1.0f ? fmaf(0.5f * estimate, error, estimate) : estimate;
}
__device__ __forceinline__ double reciprocal_sqrt(double value) { return 1.0 / sqrt(value); }

}  // namespace normact::cuda
