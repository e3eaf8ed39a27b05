// SPDX-License-Identifier: Apache-2.0
#include "core/pointwise_arguments.h"

#include <algorithm>
#include <string>

#include "core/merge_dims.h"
#include "core/message.h"

namespace normact {
namespace {

constexpr int kMaxViews = 2 * kMaxArguments;
constexpr int kNone = -1;  // in place of an axis

// The index space before merging.
struct Space {
  int ndim;
  int axis;              // that parameters run along, and that packed tensors are packed along; kNone: not needed
  const int64_t* shape;  // of y
  const int64_t* packed_shape;
  normact_gate_layout layout;
  int32_t given_axis;  // for messages
};

// A view that is to be given its strides.
struct Strided {
  View* view;
  int64_t* stride;  // over the index space
  Role role;
};

const PointwiseArgument& argument_of(const Present& present) {
  return *static_cast<const PointwiseArgument*>(present.argument);
}

bool is_packed(const Present& present) { return argument_of(present).second != nullptr; }

// Finds the axis where one is needed, and the shape of y where x is packed: half of x's along the axis.
Status read_space(const Present& x, std::span<const Present> all, normact_gate_layout layout, int32_t axis,
                  int64_t* half_shape, Space* space) {
  const bool needs_axis = is_packed(x) || std::any_of(all.begin(), all.end(), [](const Present& present) {
                            return present.argument->role == Role::parameter;
                          });
  const Array& array = x.array;
  *space = {array.ndim, kNone, array.shape, array.shape, layout, axis};
  if (!needs_axis) return {};
  if (!find_axis(axis, array.ndim, &space->axis)) return no_such_axis("desc->axis", axis, x);
  if (!is_packed(x)) return {};
  const int64_t size = array.shape[space->axis];
  if (size % 2 != 0) {
    return invalid(x.argument->name, " has size ", size, " along axis ", axis, "; expected an even size");
  }
  std::copy(array.shape, array.shape + array.ndim, half_shape);
  half_shape[space->axis] = size / 2;
  space->shape = half_shape;
  return {};
}

// The strides of an argument over the index space, those of a packed one over its halves.
Status place(const Present& x, const Space& space, Purpose purpose, Present* present) {
  const bool packed = is_packed(*present), parameter = present->argument->role == Role::parameter;
  const int64_t* shape = packed ? space.packed_shape : space.shape;
  const uint64_t dims = parameter ? bit(static_cast<uint64_t>(space.axis)) : kAllDims;
  if (!align(present->array, space.ndim, shape, dims, present->stride)) [[unlikely]] {
    const bool halved = space.layout != NORMACT_GATE_SEPARATE && !packed;
    return wrong_shape(*present, space.ndim, shape, dims,
                       parameter ? text(x.argument->name, "'s size along axis ", space.given_axis)
                       : halved  ? text(x.argument->name, "'s shape with half the size along axis ", space.given_axis)
                                 : text(x.argument->name, "'s shape"));
  }
  const PointwiseArgument& argument = argument_of(*present);
  if (argument.view != nullptr) *argument.view = {present->array.data, present->array.dtype, {}};
  if (!packed) return {};
  int64_t& step = present->stride[space.axis];
  const int64_t apart = space.layout == NORMACT_GATE_SPLIT ? space.shape[space.axis] * step : step;
  if (space.layout == NORMACT_GATE_INTERLEAVED) step *= 2;
  // The data of a query or of an empty tensor is no address to count from, but for the next element: whether gates
  // alternate decides what is copied.
  const bool counts = present->array.size > 0 && (purpose == Purpose::run || space.layout == NORMACT_GATE_INTERLEAVED);
  char* second = counts ? present->array.data + apart * present->array.element : present->array.data;
  *argument.second = {second, present->array.dtype, {}};
  return {};
}

// An index space of one index or none. Without elements the biases still have theirs, to be zeroed.
void set_trivial_geometry(const Space& space, std::span<const Strided> views, PointwiseGeometry* out) {
  const bool keeps_biases = out->size == 0 && out->bias_dim != kNone;
  out->ndim = keeps_biases ? 2 : 1;
  out->shape[0] = out->size;
  for (const Strided& view : views) view.view->stride[0] = keeps_biases ? 0 : 1;
  if (out->bias_dim != kNone) out->bias_dim = out->ndim - 1;
  if (!keeps_biases) return;
  out->shape[1] = space.shape[space.axis];
  for (const Strided& view : views) {
    view.view->stride[1] = view.role == Role::parameter ? view.stride[space.axis] : 1;
  }
}

Status set_geometry(const Present& x, const Space& space, bool row_major, std::span<const Strided> views,
                    PointwiseGeometry* out) {
  const bool biased =
      std::any_of(views.begin(), views.end(), [](const Strided& view) { return view.role == Role::parameter; });
  out->bias_dim = biased ? space.axis : kNone;
  int dims[kMaxTensorDims];
  size_t first = 0;  // of those to be sorted
  if (biased && space.shape[space.axis] == 1) {
    // A bias dimension of one index goes first, where it keeps no others apart; its strides are never used.
    dims[first++] = space.axis;
    for (const Strided& view : views) view.stride[space.axis] = view.role == Role::parameter;
  }
  size_t count = first;
  out->size = 1;
  for (int d = 0; d < space.ndim; ++d) {
    out->size *= space.shape[d];
    if (space.shape[d] != 1) dims[count++] = d;
  }
  if (out->size <= 1) {
    set_trivial_geometry(space, views, out);
    return {};
  }
  MergedStrides strides[kMaxViews];
  for (size_t i = 0; i < views.size(); ++i) strides[i] = {views[i].stride, views[i].view->stride};
  if (!row_major) sort_dims({dims + first, count - first}, {strides, views.size()});
  out->ndim = merge_dims({dims, count}, space.shape, {strides, views.size()}, &out->bias_dim, out->shape);
  return out->ndim < 0 ? too_many_dims(x, "") : Status();
}

}  // namespace

Status read_pointwise_arguments(std::span<const PointwiseArgument> arguments, normact_gate_layout layout, int32_t axis,
                                Purpose purpose, PointwiseProblem* problem, Device* device) {
  Present storage[kMaxArguments];
  std::span<Present> all;
  NORMACT_TRY(read_all(arguments, purpose, storage, &all));
  const Present& x = storage[0];
  int64_t half_shape[kMaxTensorDims];
  Space space;
  NORMACT_TRY(read_space(x, all, layout, axis, half_shape, &space));
  Strided views[kMaxViews];
  size_t num_views = 0;
  bool row_major = false;
  for (Present& present : all) {
    const PointwiseArgument& argument = argument_of(present);
    NORMACT_TRY(check_device_and_dtype(present, x));
    if (argument.role == Role::bits) {
      row_major = true;
      NORMACT_TRY(check_bits(present, x, 1));
      *argument.view = {present.array.data, {}, {}};
      continue;
    }
    NORMACT_TRY(place(x, space, purpose, &present));
    for (View* view : {argument.view, argument.second}) {
      if (view != nullptr) views[num_views++] = {view, present.stride, argument.role};
    }
  }
  problem->dtype = x.array.dtype;
  *device = x.array.device;
  NORMACT_TRY(set_geometry(x, space, row_major, {views, num_views}, &problem->geometry));
  return purpose == Purpose::query ? Status() : check_overlaps(all);
}

}  // namespace normact
