// SPDX-License-Identifier: Apache-2.0
#include "core/layout_copy.h"

#include <cstdlib>
#include <utility>

#include "core/plan_common.h"

namespace normact {
namespace {

constexpr int64_t kMost = 2147483647;  // strides and places are counted in 32 bits
constexpr int64_t kLeastSide = 8;      // of a dimension for tiles to be worth it

/// The dimension along which the tensor's elements lie closest together, if it is not the array's first and both are
/// long enough for tiles; else 0.
int dimension_across(const LayoutCopy& copy) {
  int closest = 0;
  for (int d = 1; d < copy.ndim; ++d) {
    const int64_t stride = std::abs(copy.stride[d]);
    if (stride != 0 && copy.shape[d] >= kLeastSide && stride < std::abs(copy.stride[closest])) closest = d;
  }
  return copy.shape[0] >= kLeastSide ? closest : 0;
}

/// As the array has them, fastest first.
void sort_as_array(int count, CopyDim* dims) {
  for (int i = 1; i < count; ++i) {
    for (int j = i; j > 0 && dims[j].in_array < dims[j - 1].in_array; --j) std::swap(dims[j], dims[j - 1]);
  }
}

}  // namespace

bool has_no_gaps(int count, CopyDim* dims) {
  sort_as_array(count, dims);
  int64_t stride = 1;
  for (int d = 0; d < count; ++d) {
    if (dims[d].size == 1) continue;
    if (dims[d].in_array != stride) return false;
    stride *= dims[d].size;
  }
  return true;
}

bool plan_layout_copy(int count, const CopyDim* dims, int element_bytes, LayoutCopy* copy) {
  CopyDim sorted[kCopyDims];
  int left = 0;
  for (int d = 0; d < count; ++d) {
    if (dims[d].size > 1) sorted[left++] = dims[d];
  }
  sort_as_array(left, sorted);
  copy->unit_bytes = element_bytes;
  copy->ndim = 1;
  copy->shape[0] = 1;
  copy->stride[0] = 1;
  for (int d = 0; d < left; ++d) {
    int64_t &shape = copy->shape[copy->ndim - 1], stride = copy->stride[copy->ndim - 1];
    if (d == 0) {
      copy->shape[0] = sorted[0].size;
      copy->stride[0] = sorted[0].in_tensor;
    } else if (sorted[d].in_tensor == stride * shape) {
      shape *= sorted[d].size;
    } else {
      copy->shape[copy->ndim] = sorted[d].size;
      copy->stride[copy->ndim++] = sorted[d].in_tensor;
    }
  }
  copy->across = dimension_across(*copy);
  int64_t faster = 1;  // indices of the dimensions before this one
  for (int d = 0; d < copy->ndim; ++d) {
    if (std::abs(copy->stride[d]) > kMost || copy->shape[d] > kMost || faster > kMost) return false;
    faster *= copy->shape[d];
  }
  return copy->across == 0 || faster <= kMost;
}

void widen_units(LayoutCopy* copy) {
  if (copy->stride[0] != 1) return;
  const uintptr_t bytes = copy->unit_bytes,
                  pointers = reinterpret_cast<uintptr_t>(copy->tensor) | reinterpret_cast<uintptr_t>(copy->array);
  uintptr_t all = pointers | (static_cast<uintptr_t>(copy->shape[0]) * bytes) | kPackBytes;
  for (int d = 1; d < copy->ndim; ++d) all |= static_cast<uintptr_t>(copy->stride[d]) * bytes;
  const auto unit = static_cast<int>(all & -all);
  const int elements = unit / copy->unit_bytes;
  copy->unit_bytes = unit;
  copy->shape[0] /= elements;
  for (int d = 1; d < copy->ndim; ++d) copy->stride[d] /= elements;
}

}  // namespace normact
