// SPDX-License-Identifier: Apache-2.0
// Pointwise problems element by element: any strides, any alignment, any number of dimensions.
#pragma once

#include "core/pointwise.h"
#include "cuda/memory.cuh"

namespace normact::cuda {

template <class T>
__device__ __forceinline__ Accumulator<T> load_element(const View& view, int64_t offset) {
  return convert<Accumulator<T>>(static_cast<const T*>(view.data)[offset]);
}
template <class T>
__device__ __forceinline__ void store_element(const View& view, int64_t offset, Accumulator<T> value) {
  static_cast<T*>(view.data)[offset] = convert<T>(value);
}

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
  int64_t coordinate[kMaxDims] = {};

  __device__ __forceinline__ ElementPlace(const ElementSpace& space, int64_t element) : ndim(space.ndim) {
    int64_t rest = element;
#pragma unroll
    for (int d = kMaxDims - 1; d > 0; --d) {
      if (d < ndim) {
        const int64_t next =
            space.small ? space.divisor[d].quotient(static_cast<unsigned>(rest)) : rest / space.shape[d];
        coordinate[d] = rest - next * space.shape[d];
        rest = next;
      }
    }
    coordinate[0] = rest;
  }

  __device__ __forceinline__ int64_t offset(const View& view) const {
    int64_t offset = coordinate[0] * view.stride[0];
    if (ndim > 1) offset += coordinate[1] * view.stride[1];
    if (ndim > 2) {
#pragma unroll
      for (int d = 2; d < kMaxDims; ++d) {
        if (d < ndim) offset += coordinate[d] * view.stride[d];
      }
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
