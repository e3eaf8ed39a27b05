// SPDX-License-Identifier: Apache-2.0
#include "core/merge_dims.h"

#include "core/problem.h"

namespace normact {

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
