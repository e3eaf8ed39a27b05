// SPDX-License-Identifier: Apache-2.0
// Element types on the device: their accumulator, the 16-byte pack that one access moves, and the conversions. Every
// conversion to a 16-bit type rounds to nearest even, and each output is converted exactly once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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
#pragma unroll
  for (int j = 0; j < kPackSize<T>; ++j) value[j] = convert<A>(pack.element[j]);
}

template <class T, class A>
__device__ __forceinline__ Pack<T> to_pack(const A (&value)[kPackSize<T>]) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < kPackSize<T>; j += 2) convert_pair(&pack.element[j], value[j], value[j + 1]);
  return pack;
}

__device__ __forceinline__ float reciprocal_sqrt(float value) { return 1.0f / sqrtf(value); }
__device__ __forceinline__ double reciprocal_sqrt(double value) { return 1.0 / sqrt(value); }

}  // namespace normact::cuda
