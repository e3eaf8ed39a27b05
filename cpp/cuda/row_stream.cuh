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

/// A unit: a pack of 16 bytes, or one element, of columns side by side in all tensors or anywhere. `dense` is for
/// itself because it spends few instructions on addresses: of strides of 64 bits an element needs ten for each tensor.
enum class StreamUnit { packs, dense, strided };

/// How many of kCount units that are `apart` from each other begin among the next `left`.
template <int kCount>
__device__ __forceinline__ int units_within(int64_t left, int apart) {
  const int near = left < INT_MAX ? static_cast<int>(left) : INT_MAX;
  int units = 0;
#pragma unroll
  for (int u = 0; u < kCount; ++u) units += u * apart < near ? 1 : 0;
  return units;
}

/// Reads and writes one unit of a row: a pack of T, or as many elements of another type, or one element.
/// X: the type of parameters that are not in the accumulator's.
template <class T, class X, StreamUnit kUnit>
struct StreamAccess {
  static constexpr bool kPacks = kUnit == StreamUnit::packs;
  static constexpr int kSize = kPacks ? kPackSize<T> : 1;
  using A = Accumulator<T>;

  /// Where a unit begins in a row, in elements.
  static __device__ __forceinline__ int64_t offset(const Operand& operand, const RowGeometry& g, int64_t unit) {
    if constexpr (kUnit == StreamUnit::strided) {
      return strided_offset(unit, g.col_ndim, g.col_shape, operand.col_stride);
    } else {
      return unit * kSize;
    }
  }
  /// Where unit `first + ahead` is in a row: one addition for each of several that a loop has ahead.
  template <class E>
  static __device__ __forceinline__ E* unit(E* row, const Operand& operand, const RowGeometry& g, int64_t first,
                                            int ahead) {
    if constexpr (kUnit == StreamUnit::strided) return row + offset(operand, g, first + ahead);
    return row + first * kSize + ahead * kSize;
  }

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

  /// A parameter of the first `count` of kCount units, `apart` from each other; without one, and for the others,
  /// `otherwise`. Ordinary loads, see Parameter::at().
  template <int kCount>
  static __device__ __forceinline__ void parameters(const Operand& operand, const RowGeometry& g, int64_t first,
                                                    int apart, int count, A otherwise, A (&value)[kCount][kSize]) {
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
        if (u < count) from.load((first + u * apart) * kSize, value[u]);
      }
    } else {
      const auto read = [&](auto* data) {
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
          if (u < count) value[u][0] = convert<A>(*unit(data, operand, g, first, u * apart));
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
  template <int kCount>
  static __device__ __forceinline__ void weights(const Operand& operand, const RowGeometry& g, int64_t first, int apart,
                                                 int count, A weight_offset, A (&value)[kCount][kSize]) {
    parameters(operand, g, first, apart, count, A(1), value);
    if (operand.data == nullptr) return;
#pragma unroll
    for (auto& unit : value) {
#pragma unroll
      for (A& of : unit) of = effective_weight(of, weight_offset);
    }
  }
};

}  // namespace normact::cuda
