// SPDX-License-Identifier: Apache-2.0
#include "core/merge_dims.h"

#include <cstddef>
#include <utility>

#include "core/problem.h"

namespace normact {
namespace {

// > 0: dimension a is slower than b, < 0: faster. The first tensor that tells them apart decides; one that is expanded
// along either does not.
int compare(int a, int b, std::span<const MergedStrides> tensors) {
  for (const MergedStrides& tensor : tensors) {
    const uint64_t in_a = magnitude(tensor.given[a]), in_b = magnitude(tensor.given[b]);
    if (in_a != 0 && in_b != 0 && in_a != in_b) return in_a > in_b ? 1 : -1;
  }
  return 0;
}

}  // namespace

// An insertion sort that steps over dimensions that cannot be compared, as these are not ordered.
void sort_dims(std::span<int> dims, std::span<const MergedStrides> tensors) {
  for (size_t i = 1; i < dims.size(); ++i) {
    size_t moving = i;
    for (size_t j = i; j-- > 0;) {
      const int order = compare(dims[j], dims[moving], tensors);
      if (order > 0) break;
      if (order == 0) continue;
      std::swap(dims[j], dims[moving]);
      moving = j;
    }
  }
}

int merge_dims(std::span<const int> dims, const int64_t* shape, std::span<const MergedStrides> tensors, int* alone,
               int64_t* merged_shape) {
  int count = 0;
  int place = -1;  // of the dimension that stays alone
  for (const int d : dims) {
    const int64_t n = shape[d];
    bool merges = count > 0 && d != *alone && place != count - 1;
    for (size_t i = 0; merges && i < tensors.size(); ++i) {
      merges = tensors[i].merged[count - 1] == tensors[i].given[d] * n;
    }
    if (merges) {
      merged_shape[count - 1] *= n;
    } else {
      if (count == kMaxDims) return -1;
      merged_shape[count++] = n;
    }
    if (d == *alone) place = count - 1;
    for (const MergedStrides& tensor : tensors) tensor.merged[count - 1] = tensor.given[d];
  }
  *alone = place;
  return count;
}

}  // namespace normact
