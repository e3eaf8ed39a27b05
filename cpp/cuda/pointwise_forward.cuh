// SPDX-License-Identifier: Apache-2.0
// Activations, with a bias and gated, forward.
#pragma once

#include "core/visit_activation.h"
#include "cuda/pointwise_space.cuh"
#include "cuda/reduce.cuh"
#include "math/gate.h"

namespace normact::cuda {

/// act(x), or act(gate) * up: every tensor's element in, the output's out.
template <class Act, bool kGated, class A>
__device__ __forceinline__ A activated(A x, A up, const PointwiseScalars<A>& scalars) {
  if constexpr (kGated) return Gated<Act>::value(x, up, scalars.activation, scalars.gate);
  return Act::at(x, scalars.activation).value;
}

/// Bit j tells value[j] > 0.
template <class A, int kCount>
__device__ __forceinline__ unsigned positive_bits(const A (&value)[kCount]) {
  unsigned bits = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) bits |= value[j] > A(0) ? 1u << j : 0;
  return bits;
}

/// Writes a pack's bits of a mask. Neighbouring lanes have neighbouring packs; packs are a multiple of a byte's.
template <int kSize>
__device__ __forceinline__ void store_mask(uint8_t* mask, int64_t pack, unsigned bits, bool valid) {
  constexpr int kPacks = 8 / kSize;  // a byte's
#pragma unroll
  for (int p = 1; p < kPacks; ++p) bits |= __shfl_down_sync(kFullWarp, bits, p) << (p * kSize);
  if (valid && pack % kPacks == 0) mask[pack / kPacks] = static_cast<uint8_t>(bits);
}

/// Work     a thread computes kVectors packs of the space, all loads first; where the space is flat, the first threads
///          of the last block also the elements after the last whole pack.
/// Bytes    each element of x (and up) is read once, each of y written once; biases come from the L1 cache.
/// Barriers none.
template <class T, class Act, bool kGated, class Space, int kVectors>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_forward_kernel(const __grid_constant__ PointwiseForward p, const __grid_constant__ Space space,
                             const PointwiseScalars<Accumulator<T>> scalars) {
  using A = Accumulator<T>;
  using Bias = typename Space::template Bias<T>;
  constexpr int kSize = kPackSize<T>;
  const typename Space::template Cursor<kVectors> cursor(space);
  Pack<T> x[kVectors], up[kGated ? kVectors : 1];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!cursor.holds(v)) continue;
    if constexpr (kGated) {
      const PackPair<T> pair = load_gated<T>(cursor, v, p.x, p.up);
      x[v] = pair.first;
      up[v] = pair.second;
    } else {
      x[v] = load_pack(static_cast<const T*>(p.x.data) + cursor.template offset<T>(p.x, v));
    }
  }
  const Bias bias(space, p.bias), up_bias(space, p.up_bias);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    A value[kSize] = {}, factor[kSize] = {};
    if (cursor.holds(v)) {
      unpack(x[v], value);
      bias.add(cursor, v, value);
      if constexpr (kGated) {
        unpack(up[v], factor);
        up_bias.add(cursor, v, factor);
      }
    }
    if constexpr (std::is_same_v<Act, Relu<Math<T>>> && !kGated && std::is_base_of_v<FlatSpace, Space>) {
      if (p.mask != nullptr) store_mask<kSize>(p.mask, cursor.pack(v), positive_bits(value), cursor.holds(v));
    }
    if (!cursor.holds(v)) continue;
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = activated<Act, kGated>(value[j], factor[j], scalars);
    store_pack(static_cast<T*>(p.y.data) + cursor.template offset<T>(p.y, v), to_pack<T>(value));
  }
  if (const int64_t element = space.template tail_element<T>(); element >= 0) {
    const A value = load_element<T>(p.x, element) + bias.of_element(element);
    A factor = A(0);
    if constexpr (kGated) factor = load_element<T>(p.up, element) + up_bias.of_element(element);
    store_element<T>(p.y, element, activated<Act, kGated>(value, factor, scalars));
  }
}

/// Any strides and alignment.
/// Work     a thread computes kCount elements of a space, all loads first.
/// Bytes    as above, if the tensors' layouts allow it.
/// Barriers none.
template <class T, bool kGated, class Space, int kCount>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_forward_elements_kernel(const __grid_constant__ PointwiseForward p, const __grid_constant__ Space space,
                                      const PointwiseScalars<Accumulator<T>> scalars) {
  using A = Accumulator<T>;
  const View* const views[] = {&p.x, &p.y, &p.bias, &p.up, &p.up_bias};
  const typename Space::template Cursor<kCount, kGated ? 5 : 3> cursor(space, views);
  A x[kCount] = {}, up[kCount] = {}, bias[kCount] = {}, up_bias[kCount] = {};
  int64_t to[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!cursor.holds(i)) continue;
    const auto place = cursor.place(i);
    x[i] = load_element<T>(p.x, place[0]);
    bias[i] = load_bias<T>(p.bias, place[2]);
    if constexpr (kGated) {
      up[i] = load_element<T>(p.up, place[3]);
      up_bias[i] = load_bias<T>(p.up_bias, place[4]);
    }
    to[i] = place[1];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {  // not sooner: a sum waits for its loads
    x[i] += bias[i];
    up[i] += up_bias[i];
  }
  if constexpr (std::is_same_v<Space, ElementSpace> && !kGated) {
    if (p.mask != nullptr) {
      const int lane = threadIdx.x % kWarp;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool valid = cursor.holds(i);
        const unsigned bits = __ballot_sync(kFullWarp, valid && x[i] > A(0));
        if (valid && lane % 8 == 0) p.mask[cursor.number(i) / 8] = static_cast<uint8_t>(bits >> lane);
      }
    }
  }
  visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!cursor.holds(i)) continue;
      store_element<T>(p.y, to[i], activated<decltype(act), kGated>(x[i], up[i], scalars));
    }
  });
}

}  // namespace normact::cuda
