// SPDX-License-Identifier: Apache-2.0
// Activations, with a bias and gated, backward; bias gradients are in bias_gradient.cuh.
#pragma once

#include "core/visit_activation.h"
#include "cuda/pointwise_space.cuh"
#include "math/gate.h"

namespace normact::cuda {

/// What the slope is a function of.
enum class SlopeSource : uint8_t { input, output, mask };

template <class A>
struct PointwiseGradient {
  A x;   // of x, or of the gate
  A up;  // gated only
};

/// The gradients of one element. from: x, y, or the mask's bit as 0 or 1.
template <class Act, bool kGated, SlopeSource kSource, class A>
__device__ __forceinline__ PointwiseGradient<A> gradient_of(A dy, A from, A up, const PointwiseScalars<A>& scalars) {
  if constexpr (kGated) {
    const GateGradients<A> gradients = Gated<Act>::gradients(dy, from, up, scalars.activation, scalars.gate);
    return {gradients.gate, gradients.up};
  } else if constexpr (kSource == SlopeSource::mask) {
    return {dy * from, A(0)};
  } else if constexpr (kSource == SlopeSource::output) {
    if constexpr (Act::kSlopeFromOutput) return {dy * Act::slope_from_output(from, scalars.activation), A(0)};
    return {A(0), A(0)};  // the reader refuses these kinds
  } else {
    return {dy * Act::at(from, scalars.activation).slope, A(0)};
  }
}

/// value[j] = bit `element` + j of a mask; all of them are in one byte.
template <class A, int kSize>
__device__ __forceinline__ void load_mask(const uint8_t* mask, int64_t element, A (&value)[kSize]) {
  const unsigned bits = mask[element / 8] >> (element % 8);
#pragma unroll
  for (int j = 0; j < kSize; ++j) value[j] = (bits >> j & 1) != 0 ? A(1) : A(0);
}

/// Work     a thread computes kVectors packs of the space, all loads first; where the space is flat, the first threads
///          of the last block also the elements after the last whole pack.
/// Bytes    each element of dy and x (or y, or the mask's bit; and up) is read once, each of dx (and dup) written once.
/// Barriers none.
template <class T, class Act, bool kGated, SlopeSource kSource, class Space, int kVectors>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_backward_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ Space space,
                              const PointwiseScalars<Accumulator<T>> scalars) {
  using A = Accumulator<T>;
  using Bias = typename Space::template Bias<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr bool kInput = kSource == SlopeSource::input, kMask = kSource == SlopeSource::mask;
  const View& source = kInput ? p.x : p.y;
  const typename Space::template Cursor<kVectors> cursor(space);
  const auto load = [&](const View& view, int v) {
    return load_pack(static_cast<const T*>(view.data) + cursor.template offset<T>(view, v));
  };
  Pack<T> dy[kVectors], from[kMask ? 1 : kVectors], up[kGated ? kVectors : 1];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!cursor.holds(v)) continue;
    dy[v] = load(p.dy, v);
    if constexpr (kGated) {
      const PackPair<T> pair = load_gated<T>(cursor, v, p.x, p.up);
      from[v] = pair.first;
      up[v] = pair.second;
    } else if constexpr (!kMask) {
      from[v] = load(source, v);
    }
  }
  const View absent{};
  const Bias bias(space, kInput ? p.bias : absent), up_bias(space, p.up_bias);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!cursor.holds(v)) continue;
    A gradient[kSize], value[kSize], factor[kSize] = {}, dup[kSize];
    unpack(dy[v], gradient);
    if constexpr (kMask) {
      load_mask(p.mask, cursor.pack(v) * kSize, value);
    } else {
      unpack(from[v], value);
    }
    if constexpr (kInput) bias.add(cursor, v, value);
    if constexpr (kGated) {
      unpack(up[v], factor);
      up_bias.add(cursor, v, factor);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const auto g = gradient_of<Act, kGated, kSource>(gradient[j], value[j], factor[j], scalars);
      gradient[j] = g.x;
      dup[j] = g.up;
    }
    if constexpr (kGated) {
      store_gated<T>(cursor, v, p.dx, p.dup, {to_pack<T>(gradient), to_pack<T>(dup)});
    } else {
      store_pack(static_cast<T*>(p.dx.data) + cursor.template offset<T>(p.dx, v), to_pack<T>(gradient));
    }
  }
  if constexpr (kMask) return;  // problems with a mask have no tail
  if (const int64_t element = space.template tail_element<T>(); element >= 0) {
    A value = load_element<T>(source, element), factor = A(0);
    if constexpr (kInput) value += bias.of_element(element);
    if constexpr (kGated) factor = load_element<T>(p.up, element) + up_bias.of_element(element);
    const auto g = gradient_of<Act, kGated, kSource>(load_element<T>(p.dy, element), value, factor, scalars);
    store_element<T>(p.dx, element, g.x);
    if constexpr (kGated) store_element<T>(p.dup, element, g.up);
  }
}

/// What one element's gradients are made of, for kernels that go element by element.
template <class T, bool kGated, SlopeSource kSource>
struct GradientElement {
  using A = Accumulator<T>;
  A dy, from, up, bias, up_bias;  // not added up: a sum waits for its loads

  GradientElement() = default;
  /// place: in the views of the kernel below.
  template <class Cursor, class Place>
  __device__ __forceinline__ GradientElement(const PointwiseBackward& p, const Cursor& cursor, int i,
                                             const Place& place)
      : dy(load_element<T>(p.dy, place[0])), up(A(0)), bias(A(-0.0)), up_bias(A(-0.0)) {
    if constexpr (kSource == SlopeSource::mask) {
      A bit[1];
      load_mask(p.mask, cursor.number(i), bit);
      from = bit[0];
    } else if constexpr (kSource == SlopeSource::output) {
      from = load_element<T>(p.y, place[2]);
    } else {
      from = load_element<T>(p.x, place[2]);
      bias = load_bias<T>(p.bias, place[3]);
    }
    if constexpr (kGated) {
      up = load_element<T>(p.up, place[4]);
      up_bias = load_bias<T>(p.up_bias, place[5]);
    }
  }
};

/// Any strides and alignment.
/// Work     a thread computes kCount elements of a space, all loads first.
/// Bytes    as above, if the tensors' layouts allow it.
/// Barriers none.
template <class T, bool kGated, SlopeSource kSource, class Space, int kCount>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_backward_elements_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ Space space,
                                       const PointwiseScalars<Accumulator<T>> scalars) {
  const View& source = kSource == SlopeSource::output ? p.y : p.x;
  const View* const views[] = {&p.dy, &p.dx, &source, &p.bias, &p.up, &p.up_bias, &p.dup};
  constexpr int kViews = kGated ? 7 : kSource == SlopeSource::input ? 4 : kSource == SlopeSource::output ? 3 : 2;
  const typename Space::template Cursor<kCount, kViews> cursor(space, views);
  GradientElement<T, kGated, kSource> in[kCount];
  int64_t to[kCount], to_up[kGated ? kCount : 1];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!cursor.holds(i)) continue;
    const auto place = cursor.place(i);
    in[i] = GradientElement<T, kGated, kSource>(p, cursor, i, place);
    to[i] = place[1];
    if constexpr (kGated) to_up[i] = place[6];
  }
  visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!cursor.holds(i)) continue;
      const auto g = gradient_of<decltype(act), kGated, kSource>(in[i].dy, in[i].from + in[i].bias,
                                                                 in[i].up + in[i].up_bias, scalars);
      store_element<T>(p.dx, to[i], g.x);
      if constexpr (kGated) store_element<T>(p.dup, to_up[i], g.up);
    }
  });
}

}  // namespace normact::cuda
