// SPDX-License-Identifier: Apache-2.0
// How a pointwise problem will be run on a GPU: how its tensors are accessed, and how a bias gradient is divided. Pure
// functions of the problem and the device. Which kernel runs changes no bit of y and dx; the partition of a bias
// gradient depends on shapes, strides and the device, not on the alignment of pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/plan.h"
#include "core/pointwise.h"

namespace normact {

/// How tensors of x's shape are accessed; cuda/pointwise_space.cuh has a space for each.
enum class PointwiseAccess : uint8_t {
  flat,    // packs: each tensor is one array in the order of the index space, at a multiple of 16 bytes; no bias
  biased,  // packs: the same with a bias, found for each pack
  tile,    // packs: rows of whole packs, at multiples of 16 bytes, in up to two dimensions; perhaps a bias along them
  interleaved,  // as tile, but gate and up (and their gradients) alternate in one tensor
  rows,         // single elements at any strides, of rows (the last dimension) that leave few threads idle
  elements      // single elements at any strides, each found by itself
};

/// How the biases of a pack are found (biased).
enum class BiasAccess : uint8_t {
  rows,       // one bias for the pack
  straddled,  // two biases: the pack may begin in one row and end in the next
  columns     // a bias for each element
};

struct PointwisePlan {
  PointwiseAccess access;
  BiasAccess bias;
  int lanes;         // tile, rows: threads side by side
  bool down;         // rows: a thread's elements are below each other, not in one row
  int64_t channels;  // entries of a bias
  int64_t inner;     // elements from one entry's to the next one's in the order of the index space
};

constexpr int kPointwiseThreads = 256;  // of a block
/// Elements of a thread (rows).
constexpr int elements_a_thread(int element_bytes) { return element_bytes == 8 ? 4 : 8; }

PointwisePlan plan_pointwise(const PointwiseForward& problem);
PointwisePlan plan_pointwise(const PointwiseBackward& problem);

/// How a bias gradient is summed.
enum class BiasSum : uint8_t {
  columns,  // a thread owns columns, which the bias's dimension and those within it make up, and walks down the rows
  channels  // a block owns an entry of the bias, or a part of it
};

struct BiasPlan {
  BiasSum sum;
  int width;         // elements of one access: a pack or 1
  bool dense;        // each tensor of x's shape is one array in the order of the index space
  int lanes;         // columns: threads side by side, each with `width` columns
  int64_t channels;  // entries of the bias
  int64_t outer;     // repetitions of the bias
  int64_t inner;     // elements of an entry in one repetition
  int fold;          // columns: rows that a thread sees as one, so that it is whole packs; else 1
  int64_t parts;     // into which the sum of an entry, or a column, is divided
  int64_t partials;  // sums of a part, of each of the rows seen as one: entries, or columns
  size_t workspace_bytes;

  /// Whether the sums of the only part are the result.
  bool single() const { return parts == 1 && fold == 1 && partials == channels; }
};

/// The partition of dbias (and dup_bias).
BiasPlan plan_bias_gradient(const PointwiseBackward& problem, const DeviceInfo& device, int sm_margin);

}  // namespace normact
