// SPDX-License-Identifier: Apache-2.0
// How kernels touch memory: streaming 16-byte accesses for data that is used once, cached ones for parameters, and
// asynchronous copies into shared memory.
#pragma once

#include "core/problem.h"
#include "cuda/numeric.cuh"

namespace normact::cuda {

/// Reads data that this kernel will not read again. Not the read-only path: an output may be the same tensor.
template <class T>
__device__ __forceinline__ Pack<T> load_streaming(const T* from) {
  const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
  return *reinterpret_cast<const Pack<T>*>(&raw);
}

/// Writes data that this kernel will not read again.
template <class T>
__device__ __forceinline__ void store_streaming(T* to, const Pack<T>& pack) {
  __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
}

template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* from) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  return *reinterpret_cast<const Pack<T>*>(&raw);
}

/// A weight or bias vector of x's type or of the accumulator's; absent when data is null.
template <class T>
struct Parameter {
  const void* data;
  bool wide;  // stored in the accumulator type

  __device__ explicit Parameter(const Operand& operand)
      : data(operand.data), wide(operand.dtype == DType::f32 || operand.dtype == DType::f64) {}

  /// Parameter `index`, for any layout.
  __device__ __forceinline__ Accumulator<T> at(int64_t index) const {
    using A = Accumulator<T>;
    return wide ? __ldg(static_cast<const A*>(data) + index) : convert<A>(__ldg(static_cast<const T*>(data) + index));
  }

  /// The parameters of one pack of x; index is a multiple of the pack size and data is 16-byte aligned.
  __device__ __forceinline__ void load(int64_t index, Accumulator<T> (&value)[kPackSize<T>]) const {
    using A = Accumulator<T>;
    if (wide) {
#pragma unroll
      for (int j = 0; j < kPackSize<T>; j += kPackSize<A>) {
        const uint4 raw = __ldg(reinterpret_cast<const uint4*>(static_cast<const A*>(data) + index + j));
        const Pack<A> pack = *reinterpret_cast<const Pack<A>*>(&raw);
#pragma unroll
        for (int i = 0; i < kPackSize<A>; ++i) value[j + i] = pack.element[i];
      }
    } else {
      const uint4 raw = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(data) + index));
      unpack(*reinterpret_cast<const Pack<T>*>(&raw), value);
    }
  }
};

/// Where a row of this operand starts. If rows have more than one dimension, their number is below 2^31 (the planner
/// sees to it): 32-bit divisions are inlined, 64-bit ones would be calls that cost every kernel its registers.
template <class T>
__device__ __forceinline__ T* row_pointer(const Operand& operand, const RowGeometry& g, int64_t row) {
  T* base = static_cast<T*>(operand.data);
  if (g.row_ndim == 1) return base + row * operand.row_stride[0];
  unsigned index = static_cast<unsigned>(row);
#pragma unroll 1
  for (int d = g.row_ndim - 1; d > 0; --d) {
    const unsigned size = static_cast<unsigned>(g.row_shape[d]);
    const unsigned next = index / size;
    base += (index - next * size) * operand.row_stride[d];
    index = next;
  }
  return base + index * operand.row_stride[0];
}

/// Writes a value in the operand's own type: T or the accumulator type.
template <class T, class A>
__device__ __forceinline__ void store_parameter(const Operand& operand, int64_t index, A value) {
  if (operand.dtype == DType::f32 || operand.dtype == DType::f64) {
    static_cast<A*>(operand.data)[index] = value;
  } else {
    static_cast<T*>(operand.data)[index] = convert<T>(value);
  }
}

/// Starts copying 16 bytes from global to shared memory; before sm_80 the copy is done when it returns.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global));
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

/// Closes a group of this thread's copies; a group may be empty.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}

/// Waits until at most `kPending` of this thread's groups are under way; their bytes are then visible to this thread.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace normact::cuda
