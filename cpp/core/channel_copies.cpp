// SPDX-License-Identifier: Apache-2.0
#include "core/channel_copies.h"

#include <algorithm>

#include "core/plan_common.h"
#include "core/workspace.h"

namespace normact {
namespace {

ChannelOperands present(std::initializer_list<ChannelOperand> all) {
  ChannelOperands operands;
  for (const ChannelOperand& operand : all) {
    if (operand.view->data != nullptr) operands.at[operands.count++] = operand;
  }
  return operands;
}

/// The layout of a tensor whose places have one stride, in order; false if they do not, or there are gaps in it.
bool layout_of(const ChannelGeometry& g, const ChannelView& view, ChannelLayout* layout) {
  const int last = g.place_ndim - 1;
  for (int d = 0; d < last; ++d) {
    if (view.place_stride[d] != view.place_stride[d + 1] * g.place_shape[d + 1]) return false;
  }
  *layout = {view.sample_stride, view.channel_stride, view.place_stride[last]};
  CopyDim dims[] = {{g.samples, 0, layout->sample_stride},
                    {g.channels, 0, layout->channel_stride},
                    {g.places, 0, layout->place_stride}};
  return has_no_gaps(3, dims);
}

bool lies_in(const ChannelGeometry& g, const ChannelView& view, const ChannelLayout& layout) {
  if (g.samples > 1 && view.sample_stride != layout.sample_stride) return false;
  if (g.channels > 1 && view.channel_stride != layout.channel_stride) return false;
  int64_t stride = layout.place_stride;
  for (int d = g.place_ndim - 1; d >= 0; --d) {
    if (g.place_shape[d] > 1 && view.place_stride[d] != stride) return false;
    stride *= g.place_shape[d];
  }
  return true;
}

/// The layouts that some operand has, in their order, and that of NCHW and of channels last.
int layouts_of(const ChannelGeometry& g, const ChannelOperands& operands, ChannelLayout (&layouts)[kMostLayouts]) {
  int count = 0;
  for (int i = 0; i < operands.count; ++i) count += layout_of(g, *operands.at[i].view, &layouts[count]) ? 1 : 0;
  layouts[count++] = {g.channels * g.places, g.places, 1};
  layouts[count++] = {g.channels * g.places, 1, g.channels};
  return count;
}

}  // namespace

ChannelOperands operands_of(ChannelForward& p) { return present({{&p.y, true}, {&p.x, false}, {&p.addend, false}}); }

ChannelOperands operands_of(ChannelBackward& p) {
  return present({{&p.dx, true}, {&p.x, false}, {&p.dy, false}, {&p.addend, false}, {&p.y, false}, {&p.daddend, true}});
}

ChannelOperands operands_of(ChannelMoments& p) { return present({{&p.x, false}}); }

int ways_to_copy(const ChannelProblem& problem, const ChannelOperands& operands, ChannelCopies (&ways)[kMostLayouts]) {
  constexpr int kCopyCost = 2, kTurnCost = 1;  // a copy that changes which elements are neighbours takes longer
  const ChannelGeometry& g = problem.geometry;
  const int64_t bytes = g.samples * g.channels * g.places * size_of(problem.dtype);
  ChannelLayout layouts[kMostLayouts];
  int costs[kMostLayouts], count = 0;
  const int found = layouts_of(g, operands, layouts);
  for (int i = 0; i < found; ++i) {
    ChannelCopies way{layouts[i], 0, 0, static_cast<size_t>(round_up(bytes, kWorkspaceAlignment))};
    int cost = 0;
    bool serves = true;
    for (int j = 0; j < operands.count; ++j) {
      const ChannelView& view = *operands.at[j].view;
      if (lies_in(g, view, way.layout)) continue;
      LayoutCopy copy{};
      serves = serves && plan_channel_copy(g, view, way.layout, &copy);
      cost += kCopyCost + (copy.across != 0 ? kTurnCost : 0);
      way.copied |= 1u << j;
      ++way.count;
    }
    if (!serves) continue;
    // Behind those that cost as much.
    int at = count++;
    for (; at > 0 && costs[at - 1] > cost; --at) {
      costs[at] = costs[at - 1];
      ways[at] = ways[at - 1];
    }
    costs[at] = cost;
    ways[at] = way;
  }
  return count;
}

bool have_neighbours(const ChannelGeometry& g, const ChannelView& view) {
  return (g.places > 1 && view.place_stride[g.place_ndim - 1] == 1) || (g.channels > 1 && view.channel_stride == 1);
}

bool lie_alike(const ChannelGeometry& g, const ChannelOperands& operands) {
  const ChannelView& first = *operands.at[0].view;
  for (int i = 1; i < operands.count; ++i) {
    if (!have_equal_strides(g, first, *operands.at[i].view)) return false;
  }
  return have_neighbours(g, first);
}

ChannelGeometry even_geometry(const ChannelGeometry& geometry) {
  ChannelGeometry even = geometry;
  even.place_ndim = 1;
  even.place_shape[0] = geometry.places;
  return even;
}

ChannelView view_in(const ChannelLayout& layout, void* data, DType dtype) {
  return {data, dtype, layout.sample_stride, layout.channel_stride, {layout.place_stride}};
}

bool plan_channel_copy(const ChannelGeometry& g, const ChannelView& tensor, const ChannelLayout& layout,
                       LayoutCopy* copy) {
  CopyDim dims[kCopyDims] = {{g.samples, tensor.sample_stride, layout.sample_stride},
                             {g.channels, tensor.channel_stride, layout.channel_stride}};
  int64_t stride = layout.place_stride;
  for (int d = g.place_ndim - 1; d >= 0; --d) {
    dims[2 + d] = {g.place_shape[d], tensor.place_stride[d], stride};
    stride *= g.place_shape[d];
  }
  return plan_layout_copy(2 + g.place_ndim, dims, size_of(tensor.dtype), copy);
}

}  // namespace normact
