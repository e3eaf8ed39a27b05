// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norms of tensors that the kernels for packs do not serve as they lie: a slice of the
// channels beside a whole y, a crop, a gradient that is expanded or in another memory format. These are carried out on
// copies in the workspace, so that all tensors of x's shape lie alike. What copies cost is known from shapes and
// strides alone, so that a query says how much workspace they take.
#pragma once

#include <cstddef>

#include "core/channel.h"
#include "core/layout_copy.h"

namespace normact {

/// A tensor of x's shape.
struct ChannelOperand {
  ChannelView* view;
  bool output;
};

constexpr int kMaxChannelOperands = 6;

struct ChannelOperands {
  ChannelOperand at[kMaxChannelOperands];
  int count = 0;
};

ChannelOperands operands_of(ChannelForward& problem);
ChannelOperands operands_of(ChannelBackward& problem);  // with ChannelReduce and ChannelInputGradient
ChannelOperands operands_of(ChannelMoments& problem);

/// Where elements lie in tensors without gaps whose places are one dimension.
struct ChannelLayout {
  int64_t sample_stride;
  int64_t channel_stride;
  int64_t place_stride;
};

/// Which tensors are copied so that all lie in a layout.
struct ChannelCopies {
  ChannelLayout layout;
  unsigned copied = 0;  // bit i: operand i
  int count = 0;
  size_t bytes_each = 0;

  bool has(int operand) const { return (copied >> operand & 1) != 0; }
  size_t bytes() const { return bytes_each * static_cast<size_t>(count); }
};

constexpr int kMostLayouts = kMaxChannelOperands + 2;

/// The ways to make all tensors lie alike, those with the least to copy first; returns how many there are.
int ways_to_copy(const ChannelProblem& problem, const ChannelOperands& operands, ChannelCopies (&ways)[kMostLayouts]);

/// Whether some elements of a set are neighbours in memory.
bool have_neighbours(const ChannelGeometry& geometry, const ChannelView& view);

/// Whether all tensors have the same strides, and neighbours in memory belong to one channel or one place.
bool lie_alike(const ChannelGeometry& geometry, const ChannelOperands& operands);

/// The geometry of tensors whose places are one dimension.
ChannelGeometry even_geometry(const ChannelGeometry& geometry);

/// A tensor at `data` that lies so.
ChannelView view_in(const ChannelLayout& layout, void* data, DType dtype);

/// Between a tensor and its copy, without pointers and direction; false if the kernels cannot count in it.
bool plan_channel_copy(const ChannelGeometry& geometry, const ChannelView& tensor, const ChannelLayout& layout,
                       LayoutCopy* copy);

}  // namespace normact
