// SPDX-License-Identifier: Apache-2.0
// How kernels touch memory: streaming 16-byte accesses for data that is used once, cached ones for parameters, and
// asynchronous copies into shared memory.
#pragma once

#include "core/problem.h"
#include "cuda/numeric.cuh"
#include "math/normalize.h"

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

  /// Parameter `index`, for any layout. An ordinary load: one through the read-only path may be moved out of the
  /// condition that guards it, and then reads a null pointer.
  __device__ __forceinline__ Accumulator<T> at(int64_t index) const {
    using A = Accumulator<T>;
    return wide ? static_cast<const A*>(data)[index] : convert<A>(static_cast<const T*>(data)[index]);
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

/// A row's index in at most two merged dimensions, which is what the register kernels serve. The division is done once
/// a row, not once a tensor; rows in two dimensions are fewer than 2^31 (the planner sees to both).
struct RowIndex {
  int64_t outer;
  int64_t inner;

  __device__ RowIndex(const RowGeometry& g, int64_t row) : outer(0), inner(row) {
    if (g.row_ndim > 1) {
      const unsigned size = static_cast<unsigned>(g.row_shape[1]);
      outer = static_cast<unsigned>(row) / size;
      inner = static_cast<unsigned>(row) - static_cast<unsigned>(outer) * size;
    }
  }
};

/// Where a row of this operand starts.
template <class T>
__device__ __forceinline__ T* row_pointer(const Operand& operand, const RowGeometry& g, const RowIndex& row) {
  T* base = static_cast<T*>(operand.data);
  if (g.row_ndim == 1) return base + row.inner * operand.row_stride[0];
  return base + row.outer * operand.row_stride[0] + row.inner * operand.row_stride[1];
}

/// The same for rows in any number of dimensions.
template <class T>
__device__ __forceinline__ T* any_row_pointer(const Operand& operand, const RowGeometry& g, int64_t row) {
  return static_cast<T*>(operand.data) + strided_offset(row, g.row_ndim, g.row_shape, operand.row_stride);
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

/// A pack of a weight or bias, stored in the accumulator type (kWide) or in x's, read through the read-only path.
template <class T, bool kWide>
struct ParameterPack {
  using A = Accumulator<T>;
  using Stored = std::conditional_t<kWide, A, T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr int kPacks = kSize / kPackSize<Stored>;
  Pack<Stored> pack[kPacks];

  /// `count` elements from `index` on; the others keep their value. Whole packs of an aligned vector in 16-byte reads.
  __device__ __forceinline__ void load(const void* from, int64_t index, int count, bool aligned) {
    const Stored* base = static_cast<const Stored*>(from) + index;
    if (count == kSize && aligned) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const uint4 bits = __ldg(reinterpret_cast<const uint4*>(base) + i);
        pack[i] = *reinterpret_cast<const Pack<Stored>*>(&bits);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (j < count) pack[j / kPackSize<Stored>].element[j % kPackSize<Stored>] = base[j];
      }
    }
  }
  __device__ __forceinline__ void fill(A constant) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      pack[j / kPackSize<Stored>].element[j % kPackSize<Stored>] = convert<Stored>(constant);
    }
  }
  __device__ __forceinline__ void get(A (&value)[kSize]) const {
    if constexpr (kPacks == 1) {
      unpack(pack[0], value);
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = pack[j / kPackSize<A>].element[j % kPackSize<A>];
    }
  }
};

/// A parameter in shared memory in the accumulator type, for kernels that use it for many rows. A pack of T spans one
/// or two packs of the accumulator type; each of these has an array of its own, so that neighbouring threads read
/// neighbouring banks.
template <class T>
struct StagedParameter {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr int kPart = kPackSize<A>;
  static constexpr int kParts = kSize / kPart;
  Pack<A>* part[kParts];

  __device__ StagedParameter(void* shared, int packs) {
#pragma unroll
    for (int h = 0; h < kParts; ++h) part[h] = static_cast<Pack<A>*>(shared) + h * packs;
  }

  /// Brings in columns [first, first + cols) with `offset` added to each; ones without a parameter. The last pack's
  /// elements past the end are 0.
  __device__ void fill(const Parameter<T>& from, int64_t first, int cols, A offset) const {
    const int packs = cols > kSize ? (cols + kSize - 1) / kSize : 1;  // threads without a pack read the first one
    for (int i = threadIdx.x; i < packs * kSize; i += blockDim.x) {
      A value = A(i < cols ? 1 : 0);
      if (from.data != nullptr && i < cols) value = effective_weight(from.at(first + i), offset);
      part[i % kSize / kPart][i / kSize].element[i % kPart] = value;
    }
  }

  __device__ __forceinline__ void get(int pack, A (&value)[kSize]) const {
#pragma unroll
    for (int h = 0; h < kParts; ++h) {
      const Pack<A> piece = part[h][pack];
#pragma unroll
      for (int j = 0; j < kPart; ++j) value[h * kPart + j] = piece.element[j];
    }
  }
};

/// The numbers of a problem in the type that kernels compute in: converted once, on the host.
template <class A>
struct Scalars {
  A eps;
  A weight_offset;
  A cols;

  explicit Scalars(const RowProblem& p)
      : eps(static_cast<A>(p.eps)),
        weight_offset(static_cast<A>(p.weight_offset)),
        cols(static_cast<A>(p.geometry.cols)) {}
};

/// Starts copying 16 bytes from global to shared memory; before sm_80 the copy is done when it returns.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
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

/// A row of any alignment on its way through shared memory. It lies there at the same offset modulo 16 as in global
/// memory, so that all but its ragged ends moves in aligned 16-byte pieces; packs are counted from the row's first
/// element, wherever that is. So the arithmetic on a row does not depend on where the row lies.
template <class T>
class StagedRow {
 public:
  static constexpr int kSize = kPackSize<T>;

  /// Shared bytes that a row needs, at the worst offset, with room to read one piece past its last.
  static __host__ __device__ int bytes(int64_t cols) {
    return static_cast<int>((cols * static_cast<int64_t>(sizeof(T)) + 3 * kPackBytes - 1) / kPackBytes * kPackBytes);
  }

  __device__ StagedRow(char* shared, const void* row, int cols)
      : shared_(shared), offset_(static_cast<int>(reinterpret_cast<uintptr_t>(row) % kPackBytes)), cols_(cols) {}

  /// Starts bringing the row in, shared out over `lanes` threads.
  __device__ __forceinline__ void copy_in(const T* row, int lane, int lanes) const {
    for_each_piece(lane, lanes, [&](int at, int begin, int end) {
      const char* from = reinterpret_cast<const char*>(row) + at;
      char* to = shared_ + offset_ + at;
      if (begin == 0 && end == kPackBytes) {
        copy_async(to, from);
      } else {
        for (int b = begin; b < end; b += static_cast<int>(sizeof(T))) {
          *reinterpret_cast<T*>(to + b) = *reinterpret_cast<const T*>(from + b);
        }
      }
    });
  }

  /// Writes the row out.
  __device__ __forceinline__ void copy_out(T* row, int lane, int lanes) const {
    for_each_piece(lane, lanes, [&](int at, int begin, int end) {
      char* to = reinterpret_cast<char*>(row) + at;
      const char* from = shared_ + offset_ + at;
      if (begin == 0 && end == kPackBytes) {
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(from));
      } else {
        for (int b = begin; b < end; b += static_cast<int>(sizeof(T))) {
          *reinterpret_cast<T*>(to + b) = *reinterpret_cast<const T*>(from + b);
        }
      }
    });
  }

  /// Pack `pack` of the row, from the two pieces that it lies in; elements past the row's end are zero.
  __device__ __forceinline__ Pack<T> read(int pack) const {
    const uint4* pieces = reinterpret_cast<const uint4*>(shared_) + pack;
    const uint4 low = pieces[0], high = pieces[1];
    const bool two = offset_ & 8, one = offset_ & 4;
    const unsigned a0 = two ? low.z : low.x, a1 = two ? low.w : low.y, a2 = two ? high.x : low.z;
    const unsigned a3 = two ? high.y : low.w, a4 = two ? high.z : high.x, a5 = two ? high.w : high.y;
    const unsigned b0 = one ? a1 : a0, b1 = one ? a2 : a1, b2 = one ? a3 : a2, b3 = one ? a4 : a3, b4 = one ? a5 : a4;
    const unsigned bits = 8 * (offset_ & 2);
    const uint4 words{__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits), __funnelshift_r(b2, b3, bits),
                      __funnelshift_r(b3, b4, bits)};
    Pack<T> out = *reinterpret_cast<const Pack<T>*>(&words);
    const int count = cols_ - pack * kSize;
    if (count < kSize) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (j >= count) out.element[j] = T{};
      }
    }
    return out;
  }

  __device__ __forceinline__ void write(int pack, const Pack<T>& value) const {
    T* to = reinterpret_cast<T*>(shared_ + offset_) + pack * kSize;
    const int count = cols_ - pack * kSize;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j < count) to[j] = value.element[j];
    }
  }

 private:
  /// visit(at, begin, end): the piece at byte `at` of the row (negative for a ragged first one), of which the bytes
  /// [begin, end) belong to the row.
  template <class Visit>
  __device__ __forceinline__ void for_each_piece(int lane, int lanes, Visit visit) const {
    const int bytes = cols_ * static_cast<int>(sizeof(T));
    for (int at = lane * kPackBytes - offset_; at < bytes; at += lanes * kPackBytes) {
      visit(at, at < 0 ? -at : 0, at + kPackBytes > bytes ? bytes - at : kPackBytes);
    }
  }

  char* shared_;
  int offset_;
  int cols_;
};

}  // namespace normact::cuda
