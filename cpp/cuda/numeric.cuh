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

/// 16 bytes of consecutive elements, as one access moves them.
template <class T>
struct alignas(kPackBytes) Pack {
  T element[kPackSize<T>];
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

/// Two neighbours at once: one conversion instruction for a pair of 16-bit values.
template <class T, class A>
__device__ __forceinline__ void convert_pair(T* out, A low, A high) {
  out[0] = convert<T>(low);
  out[1] = convert<T>(high);
}
template <>
__device__ __forceinline__ void convert_pair<__half, float>(__half* out, float low, float high) {
  *reinterpret_cast<__half2*>(out) = __floats2half2_rn(low, high);
}
template <>
__device__ __forceinline__ void convert_pair<__nv_bfloat16, float>(__nv_bfloat16* out, float low, float high) {
  *reinterpret_cast<__nv_bfloat162*>(out) = __floats2bfloat162_rn(low, high);
}

template <class A, class T>
__device__ __forceinline__ void unpack(const Pack<T>& pack, A (&value)[kPackSize<T>]) {
  if constexpr (sizeof(T) == 2) {  // by pairs: one instruction an element, without taking the pair apart first
#pragma unroll
    for (int j = 0; j < kPackSize<T>; j += 2) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(&pack.element[j]);
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // bf16 is the upper half of fp32
        value[j] = __uint_as_float(pair << 16);
        value[j + 1] = __uint_as_float(pair & 0xffff0000u);
      } else {
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        value[j] = both.x;
        value[j + 1] = both.y;
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kPackSize<T>; ++j) value[j] = convert<A>(pack.element[j]);
  }
}

template <class T, class A>
__device__ __forceinline__ Pack<T> to_pack(const A (&value)[kPackSize<T>]) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < kPackSize<T>; j += 2) convert_pair(&pack.element[j], value[j], value[j + 1]);
  return pack;
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
