// SPDX-License-Identifier: Apache-2.0
// How a pointwise problem will be run on a GPU: how its tensors are accessed, and how a bias gradient is divided. Pure
// functions of the problem and the device. Which kernel runs changes no bit of dx and y; the partition of a bias
// gradient depends on shapes and the device only, not on alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/plan.h"
#include "core/pointwise.h"

namespace normact {

/// How tensors of x's shape can be accessed.
enum class PointwiseAccess : uint8_t {
  dense,     // 16 bytes at a time: each is one array in the order of the index space, at a multiple of 16 bytes
  rows,      // 16 bytes at a time: the last dimension is whole packs, at multiples of 16 bytes, in up to two others
  elements,  // one element at a time, at any strides
};

/// How the biases of a pack are found.
enum class BiasAccess : uint8_t {
  none,
  packs,     // the bias runs along the last dimension, which is whole packs: 16-byte loads
  columns,   // the bias runs along the last dimension, with at least as many entries as a pack
  rows,      // one bias for the pack
  straddled  // two biases: the pack may begin in one row and end in the next
};

struct PointwisePlan {
  PointwiseAccess access;
  BiasAccess bias;
  int64_t channels;  // entries of a bias
  int64_t inner;     // elements from one entry's to the next one's in the order of the index space
};

PointwisePlan plan_pointwise(const PointwiseForward& problem);
PointwisePlan plan_pointwise(const PointwiseBackward& problem);

/// How a bias gradient is summed.
enum class BiasSum : uint8_t {
  columns,   // along the last dimension: a thread owns columns and walks down rows
  channels,  // along another: a block owns a channel, or a part of it
};

struct BiasPlan {
  BiasSum sum;
  int width;         // elements of one access: a pack or 1
  bool dense;        // each tensor of x's shape is one array in the order of the index space
  int lanes;         // columns: threads side by side, each with `width` columns
  int64_t channels;  // entries of the bias
  int64_t outer;     // columns: rows. channels: repetitions of a channel
  int64_t inner;     // channels: elements of a channel in one repetition
  int64_t parts;     // into which the sum of an entry is divided, each with a row of partial sums in the workspace
  size_t workspace_bytes;
};

/// The partition of dbias (and dup_bias); the workspace is the same for every alignment.
BiasPlan plan_bias_gradient(const PointwiseBackward& problem, const DeviceInfo& device, int sm_margin);

}  // namespace normact
