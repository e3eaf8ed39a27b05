// SPDX-License-Identifier: Apache-2.0
// The math policy (math/functions.h) of the device: float through the approximate instructions, which flush
// subnormals and are one issue each, double through exact ones.
#pragma once

#include "cuda/numeric.cuh"
#include "math/activation.h"

namespace normact::cuda {

template <class N, int kPrecision>
struct DeviceMath;

/// kPrecision: 8, 11 or 24.
template <int kPrecision>
struct DeviceMath<float, kPrecision> {
  using Number = float;
  static constexpr int kBits = kPrecision;
  static constexpr bool kExp2Instruction = true;
  static constexpr bool kLookup = false;

  static __device__ __forceinline__ constexpr float constant(double c) { return static_cast<float>(c); }
  static __device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
  static __device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
  static __device__ __forceinline__ float product_error(float a, float b, float p) { return fmaf(a, b, -p); }
  static __device__ __forceinline__ float abs(float a) { return fabsf(a); }
  static __device__ __forceinline__ float copy_sign(float a, float sign) { return copysignf(a, sign); }

  static __device__ __forceinline__ float minimum(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return b < a ? b : a;
#endif
  }
  static __device__ __forceinline__ float maximum(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return b > a ? b : a;
#endif
  }

  static __device__ __forceinline__ float select(bool condition, float yes, float no) { return condition ? yes : no; }
  static __device__ __forceinline__ float select_negative(float x, float yes, float no) { return x < 0 ? yes : no; }

  static __device__ __forceinline__ float reciprocal(float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    if constexpr (kBits > 11) r = fmaf(r, fmaf(-d, r, 1.0f), r);  // from 1 ulp to half
    return r;
  }

  /// Within 2 ulp; exact at 0.
  static __device__ __forceinline__ float exp2(float t) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(t));
    return result;
  }

  /// To add 1.5 * 2^23 rounds to an integer. No compiler may undo it: __fadd_rn.
  static __device__ __forceinline__ float nearest_word(float a, float b) {
    return __fadd_rn(__fadd_rn(a * b, 0x1.8p23f), -0x1.8p23f);
  }
  static __device__ __forceinline__ float nearest_of(float word) { return word; }
  static __device__ __forceinline__ float scale(float a, float word) { return a * exp2(word); }
};

template <>
struct DeviceMath<double, 53> {
  using Number = double;
  static constexpr int kBits = 53;
  static constexpr bool kExp2Instruction = false;
  static constexpr bool kLookup = false;

  static __device__ __forceinline__ constexpr double constant(double c) { return c; }
  static __device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
  static __device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }
  static __device__ __forceinline__ double product_error(double a, double b, double p) { return fma(a, b, -p); }
  static __device__ __forceinline__ double abs(double a) { return fabs(a); }
  static __device__ __forceinline__ double copy_sign(double a, double sign) { return copysign(a, sign); }
  static __device__ __forceinline__ double minimum(double a, double b) { return b < a ? b : a; }
  static __device__ __forceinline__ double maximum(double a, double b) { return b > a ? b : a; }
  static __device__ __forceinline__ double select(bool condition, double yes, double no) {
    return condition ? yes : no;
  }
  static __device__ __forceinline__ double select_negative(double x, double yes, double no) { return x < 0 ? yes : no; }
  static __device__ __forceinline__ double reciprocal(double d) { return 1 / d; }
  static __device__ __forceinline__ double nearest_word(double a, double b) { return rint(a * b); }
  static __device__ __forceinline__ double nearest_of(double word) { return word; }
  /// Flushes to 0 below the least normal number.
  static __device__ __forceinline__ double scale(double a, double word) {
    const int exponent = static_cast<int>(fmin(fmax(word, -1023.0), 1024.0)) + 1023;
    return a * __hiloint2double(exponent << 20, 0);
  }
};

/// The policy for results that are rounded to T.
template <class T>
using Math = DeviceMath<Accumulator<T>, std::is_same_v<T, __nv_bfloat16> ? 8
                                        : sizeof(T) == 2                 ? 11
                                        : sizeof(T) == 4                 ? 24
                                                                         : 53>;

}  // namespace normact::cuda
