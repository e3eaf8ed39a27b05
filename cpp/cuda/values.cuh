// SPDX-License-Identifier: Apache-2.0
// What kernels do to the few values of a row that a thread holds in registers.
#pragma once

namespace normact::cuda {

template <class A, int kCount>
__device__ __forceinline__ A total_of(const A (&value)[kCount]) {
  A total = value[0];
#pragma unroll
  for (int j = 1; j < kCount; ++j) total += value[j];
  return total;
}

template <class A, int kCount>
__device__ __forceinline__ void centre(A (&value)[kCount], A mean) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) value[j] -= mean;
}

template <class A, int kCount>
__device__ __forceinline__ A squares_of(const A (&value)[kCount]) {
  A total = value[0] * value[0];
#pragma unroll
  for (int j = 1; j < kCount; ++j) total += value[j] * value[j];
  return total;
}

}  // namespace normact::cuda
