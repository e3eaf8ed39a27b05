// SPDX-License-Identifier: Apache-2.0
// Merges dimensions of an index space that lie evenly in memory in all of its tensors.
#pragma once

#include <cstdint>
#include <span>

namespace normact {

/// One tensor's strides: of every dimension, and where those of the merged dimensions go (room for kMaxDims).
struct MergedStrides {
  const int64_t* given;
  int64_t* merged;
};

/// Walks `dims` (numbers of dimensions, slowest first; not those of size 1) and merges neighbours. Dimension `alone` is
/// merged with none, and *alone turns into its place among the merged; -1: all may be. Returns how many remain, or -1
/// if these are more than kMaxDims.
int merge_dims(std::span<const int> dims, const int64_t* shape, std::span<const MergedStrides> tensors, int* alone,
               int64_t* merged_shape);

}  // namespace normact
