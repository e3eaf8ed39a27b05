// SPDX-License-Identifier: Apache-2.0
// Where the elements of a pointwise problem lie, and which bias belongs to them: what the pointwise kernels share.
//
// A pack is kPackSize elements that are neighbours in every tensor of x's shape. In dense problems pack i is at element
// i * kPackSize of each tensor; else it has a row, in up to two dimensions, and a place in it.
#pragma once

#include "core/plan_pointwise.h"
#include "cuda/device_math.cuh"
#include "cuda/memory.cuh"
#include "math/gate.h"

namespace normact::cuda {

constexpr int kPointwiseThreads = 256;

/// The policy that T is computed by.
template <class T>
using Math = DeviceMath<Accumulator<T>, sizeof(T) == 2   ? 11
                                        : sizeof(T) == 4 ? 24
                                                         : 53>;

/// The numbers of a problem in the type that kernels compute in: converted once, on the host.
template <class A>
struct PointwiseScalars {
  ActivationScalars<A> activation;
  GateScalars<A> gate;

  explicit PointwiseScalars(const PointwiseProblem& p)
      : activation(activation_scalars<A>(p.activation.alpha, p.activation.beta, p.activation.threshold)),
        gate{static_cast<A>(p.limit), static_cast<A>(p.up_offset)} {}
};

template <class T>
__device__ __forceinline__ Accumulator<T> load_element(const View& view, int64_t offset) {
  return convert<Accumulator<T>>(static_cast<const T*>(view.data)[offset]);
}
template <class T>
__device__ __forceinline__ void store_element(const View& view, int64_t offset, Accumulator<T> value) {
  static_cast<T*>(view.data)[offset] = convert<T>(value);
}

/// A pack's place: its number, and where it is not dense, its row's coordinates and its own place in the row.
struct PackPlace {
  int64_t pack;
  unsigned outer, inner, column;
};

/// The packs of a problem.
struct PackSpace {
  int64_t packs;  // whole ones
  int tail;       // elements after them
  bool dense;
  int bias_dim;
  BiasAccess bias;
  Divisor columns;   // rows: packs in a row
  Divisor rows;      // rows: rows of the inner row dimension
  Divisor inner;     // dense bias: packs (rows) or elements (straddled) from one entry's to the next one's
  Divisor channels;  // dense bias: packs (packs) or entries (others) of the bias

  PackSpace(const PointwiseProblem& p, const PointwisePlan& plan, int pack_size)
      : packs(p.geometry.size / pack_size),
        tail(static_cast<int>(p.geometry.size % pack_size)),
        dense(plan.access == PointwiseAccess::dense),
        bias_dim(p.geometry.bias_dim),
        bias(plan.bias) {
    const PointwiseGeometry& g = p.geometry;
    if (!dense) {
      columns = Divisor(static_cast<unsigned>(g.shape[g.ndim - 1] / pack_size));
      rows = Divisor(g.ndim == 3 ? static_cast<unsigned>(g.shape[1]) : 1);
    } else if (bias != BiasAccess::none) {
      inner = Divisor(static_cast<unsigned>(bias == BiasAccess::rows ? plan.inner / pack_size : plan.inner));
      channels = Divisor(static_cast<unsigned>(bias == BiasAccess::packs ? plan.channels / pack_size : plan.channels));
    }
  }

  __device__ __forceinline__ PackPlace place(int64_t pack) const {
    if (dense) return {pack, 0, 0, 0};
    const unsigned row = columns.quotient(static_cast<unsigned>(pack));
    const unsigned outer = rows.quotient(row);
    return {pack, outer, row - outer * rows.size, static_cast<unsigned>(pack) - row * columns.size};
  }

  /// The pack's first element in a view.
  template <class T>
  __device__ __forceinline__ T* at(const View& view, const PackPlace& place) const {
    T* data = static_cast<T*>(view.data);
    if (dense) return data + place.pack * kPackSize<T>;
    const int64_t row = place.outer * view.stride[0] + (rows.size > 1 ? place.inner * view.stride[1] : 0);
    return data + row + place.column * kPackSize<T>;
  }

  /// Adds the bias of the pack's elements to them.
  template <class T>
  __device__ __forceinline__ void add_bias(const View& view, const PackPlace& place,
                                           Accumulator<T> (&value)[kPackSize<T>]) const {
    constexpr int kSize = kPackSize<T>;
    if (view.data == nullptr) return;
    const Parameter<T> bias_of(view);
    const auto pack = static_cast<unsigned>(place.pack);
    const auto entry = [&](unsigned channel) { return bias_of.at(channel * view.stride[bias_dim]); };
    if (bias == BiasAccess::packs) {
      const unsigned at = dense ? pack - channels.quotient(pack) * channels.size : place.column;
      Accumulator<T> addend[kSize];
      bias_of.load(at * kSize, addend);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] += addend[j];
    } else if (bias == BiasAccess::rows) {
      unsigned channel = bias_dim == 0 ? place.outer : place.inner;
      if (dense) {
        const unsigned row = inner.quotient(pack);
        channel = row - channels.quotient(row) * channels.size;
      }
      const Accumulator<T> addend = entry(channel);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] += addend;
    } else if (bias == BiasAccess::columns) {
      const unsigned first =
          dense ? pack * kSize - channels.quotient(pack * kSize) * channels.size : place.column * kSize;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const unsigned channel = first + j;
        value[j] += entry(dense && channel >= channels.size ? channel - channels.size : channel);
      }
    } else {
      const unsigned row = inner.quotient(pack * kSize);
      const unsigned rest = inner.size - (pack * kSize - row * inner.size);  // elements of this entry from here on
      const unsigned channel = row - channels.quotient(row) * channels.size;
      const Accumulator<T> here = entry(channel);
      const Accumulator<T> next = entry(channel + 1 == channels.size ? 0 : channel + 1);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] += j < rest ? here : next;
    }
  }

  /// The element of a dense problem's tail that this thread of the last block computes; -1: none. Problems whose biases
  /// are found by whole packs have no tail.
  template <class T>
  __device__ __forceinline__ int64_t tail_element() const {
    const bool mine = blockIdx.x == gridDim.x - 1 && static_cast<int>(threadIdx.x) < tail;
    return mine ? packs * kPackSize<T> + threadIdx.x : -1;
  }
  template <class T>
  __device__ __forceinline__ Accumulator<T> tail_bias(const View& view, int64_t element) const {
    if (view.data == nullptr) return Accumulator<T>(0);
    const auto at = static_cast<unsigned>(element);
    const unsigned row = bias == BiasAccess::straddled ? inner.quotient(at) : at;
    return Parameter<T>(view).at((row - channels.quotient(row) * channels.size) * view.stride[bias_dim]);
  }
};

/// Any problem, element by element.
struct ElementSpace {
  int64_t size;
  int ndim;
  bool small;  // below 2^31 elements: no division
  int64_t shape[kMaxDims];
  Divisor divisor[kMaxDims];

  explicit ElementSpace(const PointwiseGeometry& g) : size(g.size), ndim(g.ndim), small(g.size <= 2147483647) {
    for (int d = 0; d < kMaxDims; ++d) {
      shape[d] = d < ndim ? g.shape[d] : 1;
      if (small && shape[d] > 0) divisor[d] = Divisor(static_cast<unsigned>(shape[d]));
    }
  }
};

/// The coordinates of an element.
struct ElementPlace {
  int ndim;
  int64_t coordinate[kMaxDims];

  __device__ __forceinline__ ElementPlace(const ElementSpace& space, int64_t element) : ndim(space.ndim) {
    int64_t rest = element;
#pragma unroll
    for (int d = kMaxDims - 1; d > 0; --d) {
      coordinate[d] = 0;
      if (d >= ndim) continue;
      const int64_t next = space.small ? space.divisor[d].quotient(static_cast<unsigned>(rest)) : rest / space.shape[d];
      coordinate[d] = rest - next * space.shape[d];
      rest = next;
    }
    coordinate[0] = rest;
  }

  __device__ __forceinline__ int64_t offset(const View& view) const {
    int64_t offset = coordinate[0] * view.stride[0];
#pragma unroll
    for (int d = 1; d < kMaxDims; ++d) {
      if (d < ndim) offset += coordinate[d] * view.stride[d];
    }
    return offset;
  }

  template <class T>
  __device__ __forceinline__ Accumulator<T> load(const View& view) const {
    return load_element<T>(view, offset(view));
  }
  /// 0 without a bias.
  template <class T>
  __device__ __forceinline__ Accumulator<T> bias(const View& view) const {
    return view.data != nullptr ? Parameter<T>(view).at(offset(view)) : Accumulator<T>(0);
  }
};

}  // namespace normact::cuda
