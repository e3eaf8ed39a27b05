// SPDX-License-Identifier: Apache-2.0
// How kernels touch memory: 16-byte accesses, parameters through the read-only path, and asynchronous copies into
// shared memory.
#pragma once

#include "core/problem.h"
#include "cuda/narrow_pack.cuh"
#include "cuda/numeric.cuh"
#include "cuda/row_index.cuh"
#include "math/normalize.h"

namespace normact::cuda {

// Data that is used once moves by ordinary accesses all the same: on an H200 the evict-first forms (.cs) cost 1 to 4 %
// from 64 MiB on, those that do not allocate in L1 up to 5 %. Not the read-only path: an output may be the same tensor.

template <class T>
__device__ __forceinline__ Pack<T> to_pack(const uint4& bits) {
  if constexpr (sizeof(T) == 2) {
    return {bits.x, bits.y, bits.z, bits.w};
  } else if constexpr (sizeof(T) == 4) {
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
  } else {
    return {__hiloint2double(static_cast<int>(bits.y), static_cast<int>(bits.x)),
            __hiloint2double(static_cast<int>(bits.w), static_cast<int>(bits.z))};
  }
}

template <class T>
__device__ __forceinline__ uint4 to_bits(const Pack<T>& pack) {
  const auto& w = pack.word;
  if constexpr (sizeof(T) == 2) {
    return {w[0], w[1], w[2], w[3]};
  } else if constexpr (sizeof(T) == 4) {
    return {__float_as_uint(w[0]), __float_as_uint(w[1]), __float_as_uint(w[2]), __float_as_uint(w[3])};
  } else {
    return {static_cast<unsigned>(__double2loint(w[0])), static_cast<unsigned>(__double2hiint(w[0])),
            static_cast<unsigned>(__double2loint(w[1])), static_cast<unsigned>(__double2hiint(w[1]))};
  }
}

// Global and shared memory by name: the compiler may take an access through a pointer to uint4 apart into four.

template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* from) {
  uint4 bits;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return to_pack<T>(bits);
}

template <class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T>& pack) {
  const uint4 bits = to_bits(pack);
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
}

/// As many elements as a pack of T has.
template <class T, class X>
__device__ __forceinline__ PackBeside<X, T> load_pack_beside(const X* from) {
  if constexpr (std::is_same_v<X, T>) {
    return load_pack(from);
  } else {
    return load_narrow_pack(from);
  }
}

constexpr int kLineBytes = 128;

/// Has the line at an address on its way to the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/// The same pointer, of which the compiler does not know where it comes from: what is read through it is read after
/// what precedes this, and addresses at constant distances from it are one register and an offset each.
template <class T>
__device__ __forceinline__ T* one_base(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

/// A pack of which only the elements that inside(j) names are there; the others are 0.
template <class T, class Inside>
__device__ __forceinline__ Pack<T> load_pack_elements(const T* from, Inside inside) {
  Pack<T> pack{};
#pragma unroll
  for (int j = 0; j < kPackSize<T>; ++j) {
    if (!inside(j)) continue;
    if constexpr (sizeof(T) == 2) {
      pack.word[j / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[j]) << (j % 2 * 16);
    } else {
      pack.word[j] = from[j];
    }
  }
  return pack;
}

/// An address in shared memory takes one register, a pointer two.
using SharedAddress = unsigned;

__device__ __forceinline__ SharedAddress shared_address(const void* shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}

/// The same, kept in a register: the compiler would compute it again, from the block's place in the cluster, wherever
/// it is used.
__device__ __forceinline__ SharedAddress known_address(const void* shared) {
  SharedAddress address = shared_address(shared);
  asm volatile("" : "+r"(address));
  return address;
}

/// The same object in shared memory, at its known_address().
template <class Object>
__device__ __forceinline__ Object& at_known_address(Object& object) {
  return *static_cast<Object*>(__cvta_shared_to_generic(known_address(&object)));
}

template <class T>
__device__ __forceinline__ Pack<T> load_shared_pack(SharedAddress from) {
  uint4 bits;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "r"(from)
               : "memory");
  return to_pack<T>(bits);
}

template <class X, class T>
__device__ __forceinline__ PackBeside<X, T> load_shared_pack_beside(SharedAddress from) {
  if constexpr (std::is_same_v<X, T>) {
    return load_shared_pack<T>(from);
  } else {
    return load_shared_narrow_pack<X>(from);
  }
}

template <class T>
__device__ __forceinline__ void store_shared_pack(SharedAddress to, const Pack<T>& pack) {
  const uint4 bits = to_bits(pack);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
}

__device__ __forceinline__ void store_shared_value(SharedAddress to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared_value(SharedAddress to, double value) {
  asm volatile("st.shared.f64 [%0], %1;" ::"r"(to), "d"(value) : "memory");
}

/// A weight or bias vector of x's type X or of the accumulator's; absent when data is null.
template <class T, class X = T>
struct Parameter {
  const void* data;
  bool wide;  // stored in the accumulator type

  template <class Tensor>
  __device__ explicit Parameter(const Tensor& operand)
      : data(operand.data), wide(operand.dtype == DType::f32 || operand.dtype == DType::f64) {}

  /// Parameter `index`, for any layout. An ordinary load: one through the read-only path may be moved out of the
  /// condition that guards it, and then reads a null pointer.
  __device__ __forceinline__ Accumulator<T> at(int64_t index) const {
    using A = Accumulator<T>;
    return wide ? static_cast<const A*>(data)[index] : convert<A>(static_cast<const X*>(data)[index]);
  }

  /// The parameters of one pack of T; index is a multiple of the pack size and data is 16-byte aligned.
  __device__ __forceinline__ void load(int64_t index, Accumulator<T> (&value)[kPackSize<T>]) const {
    using A = Accumulator<T>;
    if (wide) {
#pragma unroll
      for (int j = 0; j < kPackSize<T>; j += kPackSize<A>) {
        const auto pack = to_pack<A>(__ldg(reinterpret_cast<const uint4*>(static_cast<const A*>(data) + index + j)));
#pragma unroll
        for (int i = 0; i < kPackSize<A>; ++i) value[j + i] = pack.word[i];
      }
    } else if constexpr (std::is_same_v<X, T>) {
      unpack(to_pack<T>(__ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(data) + index))), value);
    } else {
      unpack(load_constant_narrow_pack(static_cast<const X*>(data) + index), value);
    }
  }
};

/// Writes a value in the operand's own type: T or the accumulator type.
template <class T, class Tensor, class A>
__device__ __forceinline__ void store_parameter(const Tensor& operand, int64_t index, A value) {
  if (operand.dtype == DType::f32 || operand.dtype == DType::f64) {
    static_cast<A*>(operand.data)[index] = value;
  } else {
    static_cast<T*>(operand.data)[index] = convert<T>(value);
  }
}

/// to[0 .. 16 bytes) = value[0 ..), in one access to shared memory.
template <class A>
__device__ __forceinline__ void store_shared_values(SharedAddress to, const A* value) {
  Pack<A> pack;
#pragma unroll
  for (int j = 0; j < kPackSize<A>; ++j) pack.word[j] = value[j];
  store_shared_pack(to, pack);
}
template <class A>
__device__ __forceinline__ void store_shared_values(A* to, const A* value) {
  store_shared_values(shared_address(to), value);
}

/// Parameters of one pack of T, stored in T, in the accumulator type or in 16 bits, through the read-only path; where
/// there are none, `otherwise`.
template <class T, class Stored>
__device__ __forceinline__ void load_parameters(const Stored* from, bool present, Accumulator<T> otherwise,
                                                Accumulator<T> (&value)[kPackSize<T>]) {
  if constexpr (kPackSize<Stored> > kPackSize<T>) {
#pragma unroll
    for (int j = 0; j < kPackSize<T>; ++j) value[j] = otherwise;
    if (present) unpack(load_constant_narrow_pack(from), value);
  } else {
#pragma unroll
    for (int j = 0; j < kPackSize<T>; j += kPackSize<Stored>) {
      Pack<Stored> pack = constant_pack<Stored>(otherwise);
      if (present) pack = to_pack<Stored>(__ldg(reinterpret_cast<const uint4*>(from + j)));
      unpack(pack, value + j);
    }
  }
}

/// The same without a branch, so that other loads need not wait: for the longest chains of instructions.
template <class T, class Stored>
__device__ __forceinline__ void load_parameters_if(const Stored* from, bool present, Accumulator<T> otherwise,
                                                   Accumulator<T> (&value)[kPackSize<T>]) {
#pragma unroll
  for (int j = 0; j < kPackSize<T>; j += kPackSize<Stored>) {
    uint4 bits = to_bits(constant_pack<Stored>(otherwise));
    asm volatile(
        "{\n"
        ".reg .pred present;\n"
        "setp.ne.s32 present, %5, 0;\n"
        "@present ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w)
        : "l"(from + j), "r"(static_cast<int>(present)));
    unpack(to_pack<Stored>(bits), value + j);
  }
}

/// Has the parameter of so many columns on its way to the L2 cache; the first blocks of the grid do it for all.
template <class T>
__device__ __forceinline__ void prefetch_parameter(const Operand& parameter, int64_t cols) {
  constexpr int kBlocks = 8;
  if (blockIdx.x >= kBlocks || parameter.data == nullptr) return;
  const int64_t bytes = cols * (parameter.dtype == DType::f32 ? 4 : static_cast<int64_t>(sizeof(T)));
  const int threads = blockDim.x * blockDim.y;
  const int thread = blockIdx.x * threads + threadIdx.y * blockDim.x + threadIdx.x;
  for (int64_t at = thread * kLineBytes; at < bytes; at += kBlocks * threads * kLineBytes) {
    prefetch_line(static_cast<const char*>(parameter.data) + at);
  }
}

/// A parameter in shared memory in the accumulator type, for kernels that use it for many rows. A pack of T spans one
/// or two packs of the accumulator type; each of these has an array of its own, so that neighbouring threads read
/// neighbouring banks.
template <class T>
struct StagedParameter {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr int kPart = kPackSize<A>;
  static constexpr int kParts = kSize / kPart;
  SharedAddress begin;
  int part_bytes;

  /// Of so many packs of T.
  static __device__ __forceinline__ int bytes(int packs) { return packs * kParts * kPackBytes; }
  __device__ StagedParameter(SharedAddress memory, int packs) : begin(memory), part_bytes(packs * kPackBytes) {}

  /// Brings in all columns, whole packs at multiples of 16 bytes, with `offset` added to each; without a parameter,
  /// `otherwise`.
  template <class X>
  __device__ void fill_packs(const Parameter<T, X>& from, int packs, A otherwise, A offset) const {
    const int threads = blockDim.x * blockDim.y;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < packs; i += threads) {
      A value[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = otherwise;
      if (from.data != nullptr) {
        from.load(i * kSize, value);
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] = effective_weight(value[j], offset);
      }
      put(i * kPackBytes, value);
    }
  }

  /// A pack of T, whose place in a row of T would be so many bytes from its beginning.
  __device__ __forceinline__ void put(int bytes, const A (&value)[kSize]) const {
#pragma unroll
    for (int h = 0; h < kParts; ++h) store_shared_values(begin + h * part_bytes + bytes, value + h * kPart);
  }
  __device__ __forceinline__ void get(int bytes, A (&value)[kSize]) const {
#pragma unroll
    for (int h = 0; h < kParts; ++h) {
      const Pack<A> piece = load_shared_pack<A>(begin + h * part_bytes + bytes);
#pragma unroll
      for (int j = 0; j < kPart; ++j) value[h * kPart + j] = piece.word[j];
    }
  }
};

/// The numbers of a problem in the type that kernels compute in: converted once, on the host.
template <class A>
struct Scalars {
  A eps;
  A weight_offset;
  A cols;
  A reciprocal_cols;
  RowDivisor rows;

  explicit Scalars(const RowProblem& p)
      : eps(static_cast<A>(p.eps)),
        weight_offset(static_cast<A>(p.weight_offset)),
        cols(static_cast<A>(p.geometry.cols)),
        reciprocal_cols(static_cast<A>(1.0 / static_cast<double>(p.geometry.cols))),
        rows(p.geometry) {}
};

/// Starts copying 16 bytes from global to shared memory; before sm_80 the copy is done when it returns.
__device__ __forceinline__ void copy_async(SharedAddress shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
#else
  store_shared_pack(shared, load_pack(static_cast<const float*>(global)));
#endif
}

/// The same for 4, 8 or 16 bytes, which are zero if they are not `inside`; then `global` is not read.
template <int kBytes>
__device__ __forceinline__ void copy_async(SharedAddress shared, const void* global, bool inside) {
#if __CUDA_ARCH__ >= 800
  const int bytes = inside ? kBytes : 0;
  if constexpr (kBytes == kPackBytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
#else
  const uint32_t* from = static_cast<const uint32_t*>(global);
#pragma unroll
  for (int w = 0; w < kBytes / 4; ++w) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + w * 4), "r"(inside ? from[w] : 0u) : "memory");
  }
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

/// Waits until all of them are there, committed or not.
__device__ __forceinline__ void wait_all_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace normact::cuda
