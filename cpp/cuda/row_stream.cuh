// SPDX-License-Identifier: Apache-2.0
// What both directions of variant stream have in common: units of a row, and how they are read and written.
#pragma once

#include <climits>

#include "cuda/memory.cuh"
#include "cuda/narrow_pack.cuh"
#include "cuda/row_index.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// Units of a thread under way.
constexpr int kStreamUnroll = 4;

/// A unit: a pack of 16 bytes of columns side by side, or in pieces that are whole packs; or one element, of columns
/// side by side in all tensors, or anywhere. Those that are not 2^31 apart have kernels of their own
/// (row_stream_elements.cuh).
enum class StreamUnit { packs, pieces, dense, far };

template <StreamUnit kUnit>
constexpr bool kUnitsApart = kUnit == StreamUnit::pieces || kUnit == StreamUnit::far;

/// How many of kCount units that are `apart` from each other begin among the next `left`.
template <int kCount>
__device__ __forceinline__ int units_within(int64_t left, int apart) {
  const int near = left < INT_MAX ? static_cast<int>(left) : INT_MAX;
  int units = 0;
#pragma unroll
  for (int u = 0; u < kCount; ++u) units += u * apart < near ? 1 : 0;
  return units;
}

/// Where units of columns at any strides are.
struct ColumnPlaces {
  Divisor by[kMaxDims];  // sizes in units; but for find_far()

  /// near: as in the plan. Packs are always fewer than 2^31.
  ColumnPlaces(const RowGeometry& g, int unit_size, bool near) {
    for (int d = 0; (near || unit_size > 1) && d < g.col_ndim; ++d) {
      by[d] = Divisor(static_cast<unsigned>(g.col_shape[d] / (d + 1 == g.col_ndim ? unit_size : 1)));
    }
  }

  /// Where the pack of kSize columns of this index is in each of some operands, in elements.
  template <int kSize, class... Operands>
  __device__ __forceinline__ void find_pack(const RowGeometry& g, int64_t index, int64_t (&offset)[sizeof...(Operands)],
                                            const Operands&... operands) const {
    int d = g.col_ndim - 1, i = 0;
    unsigned rest = by[d].quotient(static_cast<unsigned>(index));
    const unsigned in_piece = static_cast<unsigned>(index) - rest * by[d].size;
#pragma unroll
    for (int64_t& of : offset) of = in_piece * kSize;
#pragma unroll 1
    for (--d; d > 0; --d) {
      const unsigned outer = by[d].quotient(rest), inner = rest - outer * by[d].size;
      i = 0;
      ((offset[i++] += inner * operands.col_stride[d]), ...);
      rest = outer;
    }
    i = 0;
    ((offset[i++] += rest * operands.col_stride[0]), ...);
  }

  /// Where kUnits elements, `apart` from each other, are in each of some operands, less than 2^31 from their row's
  /// first. One loop for all, and 32 bits: else this is half of a kernel's instructions.
  template <int kUnits, class... Operands>
  __device__ __forceinline__ void find_near(const RowGeometry& g, int64_t first, int apart,
                                            int (&at)[kUnits][sizeof...(Operands)], const Operands&... operands) const {
    constexpr int kTensors = sizeof...(Operands);
    unsigned index[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      index[u] = static_cast<unsigned>(first) + u * apart;
#pragma unroll
      for (int i = 0; i < kTensors; ++i) at[u][i] = 0;
    }
#pragma unroll 1
    for (int d = g.col_ndim - 1; d > 0; --d) {
      const int stride[] = {static_cast<int>(operands.col_stride[d])...};
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const unsigned outer = by[d].quotient(index[u]);
        const int inner = static_cast<int>(index[u] - outer * by[d].size);
#pragma unroll
        for (int i = 0; i < kTensors; ++i) at[u][i] += inner * stride[i];
        index[u] = outer;
      }
    }
    const int stride[] = {static_cast<int>(operands.col_stride[0])...};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kTensors; ++i) at[u][i] += static_cast<int>(index[u]) * stride[i];
    }
  }

  /// Where any element is. A function: divisions of 64 bits, inlined at each use, made kernels of 15,000 instructions.
  static __device__ __noinline__ int64_t find_far(const RowGeometry& g, const Operand& operand, int64_t column) {
    return strided_offset(column, g.col_ndim, g.col_shape, operand.col_stride);
  }
};

/// Where a thread's next units of kSize columns are, kUnits of them, `apart` from each other and `count` of them there,
/// in the columns of some tensors.
template <bool kApart, int kSize, int kUnits, int kTensors>
struct UnitPlaces {
  int64_t first;
  int apart;

  template <class... Operands>
  __device__ __forceinline__ UnitPlaces(const ColumnPlaces&, const RowGeometry&, int64_t first_unit, int units_apart,
                                        int, const Operands&...)
      : first(first_unit), apart(units_apart) {}
  /// Unit u of a row of tensor i. One addition for each: a loop's units lie ahead of its first one.
  template <class E>
  __device__ __forceinline__ E* in(E* row, int, int u) const {
    return row + first * kSize + u * apart * kSize;
  }
  /// Where it is in the row, in elements.
  __device__ __forceinline__ int64_t from_first(int, int u) const { return (first + u * apart) * kSize; }
};

template <int kSize, int kUnits, int kTensors>
struct UnitPlaces<true, kSize, kUnits, kTensors> {
  int64_t at[kUnits][kTensors];

  template <class... Operands>
  __device__ __forceinline__ UnitPlaces(const ColumnPlaces& columns, const RowGeometry& g, int64_t first, int apart,
                                        int count, const Operands&... operands) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u >= count) continue;
      if constexpr (kSize == 1) {
        int i = 0;
        ((at[u][i++] = ColumnPlaces::find_far(g, operands, first + u * apart)), ...);
      } else {
        columns.find_pack<kSize>(g, first + u * apart, at[u], operands...);
      }
    }
  }
  template <class E>
  __device__ __forceinline__ E* in(E* row, int i, int u) const {
    return row + at[u][i];
  }
  __device__ __forceinline__ int64_t from_first(int i, int u) const { return at[u][i]; }
};

/// Reads and writes one unit of a row: a pack of T, or as many elements of another type, or one element.
/// X: the type of parameters that are not in the accumulator's.
template <class T, class X, StreamUnit kUnit>
struct StreamAccess {
  static constexpr bool kPacks = kUnit == StreamUnit::packs || kUnit == StreamUnit::pieces;
  static constexpr int kSize = kPacks ? kPackSize<T> : 1;
  using A = Accumulator<T>;
  template <int kUnits, int kTensors>
  using Places = UnitPlaces<kUnitsApart<kUnit>, kSize, kUnits, kTensors>;

  /// What is read of a tensor of E before it is unpacked: single elements as they are, so that several can be under
  /// way. Packs are unpacked at once, as there are no registers for both.
  template <class E>
  struct Loaded {
    std::conditional_t<kPacks, A[kSize], E> read;

    __device__ __forceinline__ void load(const E* unit) {
      if constexpr (kPacks) {
        StreamAccess::load(unit, read);
      } else {
        read = *unit;
      }
    }
    __device__ __forceinline__ void take(A (&value)[kSize]) const {
      if constexpr (kPacks) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] = read[j];
      } else {
        value[0] = convert<A>(read);
      }
    }
  };

  template <class E>
  static __device__ __forceinline__ void load(const E* unit, A (&value)[kSize]) {
    if constexpr (kPacks) {
      unpack(load_pack_beside<T>(unit), value);
    } else {
      value[0] = convert<A>(*unit);
    }
  }

  /// Rounds, writes, and leaves the rounded values behind.
  template <class E>
  static __device__ __forceinline__ void store(E* unit, A (&value)[kSize]) {
    if constexpr (kPacks) {
      const PackBeside<E, T> pack = to_pack_beside<E, T>(value);
      using Bits = std::conditional_t<sizeof(pack) == kPackBytes, uint4, uint2>;
      *reinterpret_cast<Bits*>(unit) = *reinterpret_cast<const Bits*>(&pack);
      unpack(pack, value);
    } else {
      const E rounded = convert<E>(value[0]);
      *unit = rounded;
      value[0] = convert<A>(rounded);
    }
  }

  /// A parameter, tensor i of the places, of kCount units from unit `first` on, of which `count` are there; without
  /// one, and for the others, `otherwise`. Ordinary loads, see Parameter::at().
  template <class OfUnits, int kCount>
  static __device__ __forceinline__ void parameters(const Operand& operand, const OfUnits& places, int i, int first,
                                                    int count, A otherwise, A (&value)[kCount][kSize]) {
#pragma unroll
    for (auto& unit : value) {
#pragma unroll
      for (A& of : unit) of = otherwise;
    }
    const Parameter<T, X> from(operand);
    if (from.data == nullptr) return;
    if constexpr (kPacks) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        if (u < count) from.load(places.from_first(i, first + u), value[u]);
      }
    } else {
      const auto read = [&](auto* data) {
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
          if (u < count) value[u][0] = convert<A>(*places.in(data, i, first + u));
        }
      };
      if (from.wide) {
        read(static_cast<const A*>(from.data));
      } else {
        read(static_cast<const X*>(from.data));
      }
    }
  }

  /// The same of weights, as they take effect: 1 where there is no weight.
  template <class OfUnits, int kCount>
  static __device__ __forceinline__ void weights(const Operand& operand, const OfUnits& places, int i, int first,
                                                 int count, A weight_offset, A (&value)[kCount][kSize]) {
    parameters(operand, places, i, first, count, A(1), value);
    if (operand.data == nullptr) return;
#pragma unroll
    for (auto& unit : value) {
#pragma unroll
      for (A& of : unit) of = effective_weight(of, weight_offset);
    }
  }
};

}  // namespace normact::cuda
