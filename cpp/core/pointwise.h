// SPDX-License-Identifier: Apache-2.0
// The validated pointwise problem that the back ends work on: an activation of every element, with a bias along one
// dimension, or a gated activation. Plain data, no tensor descriptors, nothing left to check.
//
// There is one index space, a product of dimensions sorted by x's strides (slowest first), so that a transposed tensor
// is as good as a contiguous one; where x is expanded, or absent, the next tensor decides. Dimensions that lie evenly
// in memory in every operand have been merged, those of size 1 dropped; most problems have one dimension, or two or
// three with a bias. With a mask the dimensions keep the caller's order, which its bits follow. Packed gated tensors
// are two views here.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/dtype.h"
#include "core/problem.h"
#include "math/hd.h"

namespace normact {

struct PointwiseGeometry {
  int64_t size;             // the product of shape
  int ndim;                 // >= 1
  int bias_dim;             // the dimension that biases run along, never merged with another; -1: there is none.
                            // Of size 1 it comes first, with stride 0 (1 in a bias, or where it is the only one)
  int64_t shape[kMaxDims];  // slowest first
};

/// One tensor; absent when data is null. Strides are in elements; a bias has stride 0 in all dimensions but bias_dim.
struct View {
  void* data;
  DType dtype;
  int64_t stride[kMaxDims];
};

/// What both directions have in common. An activation without a gate is in x and bias; with one, these are the gate's.
struct PointwiseProblem {
  PointwiseGeometry geometry;
  Activation activation;
  DType dtype;  // of x and everything of x's shape
  bool gated;
  double limit;  // gated: of the gate from above, of up on both sides; infinity: none
  double up_offset;
};

/// y = act(x + bias), or act(min(x + bias, limit)) * (clamp(up + up_bias) + up_offset). geometry.size >= 1.
struct PointwiseForward : PointwiseProblem {
  View x, bias, up, up_bias;  // bias, up_bias may be absent; up is there iff gated
  View y;
  uint8_t* mask;  // relu only; null: not wanted. Element i of the index space is bit i % 8 of byte i / 8
};

/// geometry.size >= 0: with size 0, dbias and dup_bias are still to be zeroed; the shape is then {0, size of these}.
struct PointwiseBackward : PointwiseProblem {
  View dy, x, bias, up, up_bias;  // x and bias are absent where y or mask stands for them
  View y;                         // the slope is a function of the output
  const uint8_t* mask;            // or of these bits, as in the forward
  View dx, dup;                   // dup is there iff gated
  View dbias, dup_bias;           // may be absent
};

/// Whether the view is one array in the order of the index space.
NORMACT_HD bool is_dense(const View& view, const PointwiseGeometry& geometry) {
  int64_t stride = 1;
  for (int d = geometry.ndim - 1; d >= 0; --d) {
    if (view.stride[d] != stride && geometry.shape[d] != 1) return false;
    stride *= geometry.shape[d];
  }
  return true;
}

/// The index space as biases see it: outer * channels * inner elements, of which a bias has `channels` entries.
struct BiasDims {
  int64_t outer;
  int64_t channels;
  int64_t inner;
};

NORMACT_HD BiasDims bias_dims(const PointwiseGeometry& geometry) {
  BiasDims dims = {1, 1, 1};
  for (int d = 0; d < geometry.ndim; ++d) {
    int64_t& part = d < geometry.bias_dim ? dims.outer : d == geometry.bias_dim ? dims.channels : dims.inner;
    part *= geometry.shape[d];
  }
  return dims;
}

}  // namespace normact
