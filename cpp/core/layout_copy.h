// SPDX-License-Identifier: Apache-2.0
// Moving a tensor of any strides into an array without gaps, or back: what tensors go through whose layout no fast
// kernel serves.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace normact {

constexpr int kCopyDims = kMaxDims + 2;

/// Dimensions are in the order of the array, fastest first; those that lie evenly in the tensor are merged. Sizes and
/// strides are in units.
struct LayoutCopy {
  void* tensor;
  void* array;
  bool gathers;    // from the tensor to the array; else back
  int unit_bytes;  // elements side by side that move together: 2, 4, 8 or 16 bytes
  int ndim;        // at least 1
  int across;      // the dimension along which the tensor's units are neighbours, where it is not the array's; else 0
  int64_t shape[kCopyDims];
  int64_t stride[kCopyDims];  // of the tensor
};

/// One dimension of a tensor and of the array, in elements.
struct CopyDim {
  int64_t size;
  int64_t in_tensor;
  int64_t in_array;
};

/// Whether the array has no gaps; sorts the dims as it has them, fastest first.
bool has_no_gaps(int count, CopyDim* dims);

/// Fills all but the pointers and the direction, with units of single elements; false if the kernels cannot count in
/// it. The dims, at most kCopyDims and in any order, make up an array without gaps, of at least one element.
bool plan_layout_copy(int count, const CopyDim* dims, int element_bytes, LayoutCopy* copy);

/// Makes units as large as the pointers, which are there now, the strides and the shape allow.
void widen_units(LayoutCopy* copy);

}  // namespace normact
