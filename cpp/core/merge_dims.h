// SPDX-License-Identifier: Apache-2.0
// Sorts the dimensions of an index space as they lie in memory, and merges those that lie evenly in all of its tensors.
#pragma once

#include <cstdint>
#include <span>

namespace normact {

/// One tensor's strides: of every dimension, and where those of the merged dimensions go (room for kMaxDims).
struct MergedStrides {
  const int64_t* given;
  int64_t* merged;
};

/// Of a stride, whichever way it goes.
inline uint64_t magnitude(int64_t stride) {
  return stride < 0 ? uint64_t{0} - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
}

/// Puts `dims` (numbers of dimensions) in the order of memory, slowest first, as far as it is the same in all tensors;
/// else the first tensor that tells two apart decides.
void sort_dims(std::span<int> dims, std::span<const MergedStrides> tensors);

/// Walks `dims` (numbers of dimensions, slowest first; not those of size 1) and merges neighbours. Dimension `alone` is
/// merged with none, and *alone turns into its place among the merged; -1: all may be. Returns how many remain, or -1
/// if these are more than kMaxDims.
int merge_dims(std::span<const int> dims, const int64_t* shape, std::span<const MergedStrides> tensors, int* alone,
               int64_t* merged_shape);

}  // namespace normact
