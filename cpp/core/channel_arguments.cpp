// SPDX-License-Identifier: Apache-2.0
#include "core/channel_arguments.h"

#include <algorithm>
#include <utility>

#include "core/merge_dims.h"
#include "core/message.h"

namespace normact {
namespace {

constexpr int kMaskOrders = 2;  // row-major, channels last

const ChannelArgument& argument_of(const Present& present) {
  return *static_cast<const ChannelArgument*>(present.argument);
}

template <class View>
View* target_of(const Present& present) {
  return std::get<View*>(argument_of(present).target);
}

Status check_axes(const Present& x, const ChannelAxes& axes, int* axis) {
  const Array& array = x.array;
  if (array.ndim < 2) {
    return invalid(x.argument->name, " has shape ", tuple_text(array.ndim, array.shape), "; expected at least 2 axes");
  }
  if (!find_axis(axes.axis, array.ndim, axis)) return no_such_axis("desc->channel_axis", axes.axis, x);
  if (axes.set == ChannelSet::channel) return {};
  if (*axis == 0) {
    return invalid("desc->channel_axis is ", axes.axis, ", axis 0 of ", x.argument->name,
                   ", which counts samples; expected another axis");
  }
  const int64_t channels = array.shape[*axis];
  if (axes.groups < 1) return invalid("desc->num_groups is ", axes.groups, "; expected at least 1");
  if (channels % axes.groups == 0) return {};
  return invalid("desc->num_groups is ", axes.groups, "; expected a divisor of ", channels, ", ", x.argument->name,
                 "'s size along axis ", axes.axis);
}

// An entry a channel.
Status place_vector(const Present& present, int64_t channels, ChannelVector* vector) {
  int64_t stride;
  const Array& array = present.array;
  if (!align(array, 1, &channels, kAllDims, &stride)) [[unlikely]]
    return wrong_shape(present, 1, &channels, kAllDims, "an entry a channel");
  if (vector != nullptr) *vector = {array.data, array.dtype, stride};
  return {};
}

bool is_single(const Memory& memory) { return memory.ndim == 0 || (memory.ndim == 1 && memory.shape[0] == 1); }

Status place_count(const Present& present, int64_t channels, ChannelVector* vector) {
  const Array& array = present.array;
  if (is_single(array)) {
    if (vector != nullptr) *vector = {array.data, array.dtype, 0};
    return {};
  }
  if (array.ndim == 1 && array.shape[0] == channels) return place_vector(present, channels, vector);
  return invalid(present.argument->name, " has shape ", tuple_text(array.ndim, array.shape), "; expected (), (1,) or ",
                 tuple_text(1, &channels), ", an entry for all channels or one each");
}

Status place_counter(const Present& present, void** data) {
  const Array& array = present.array;
  if (!is_single(array)) {
    return invalid(present.argument->name, " has shape ", tuple_text(array.ndim, array.shape), "; expected () or (1,)");
  }
  if (data != nullptr) *data = array.data;
  return {};
}

Status place_statistic(const Present& present, const ChannelGeometry& geometry, ChannelSet set,
                       ChannelStatistic* statistic) {
  const Array& array = present.array;
  const bool grouped = set == ChannelSet::group;
  const int64_t shape[2] = {geometry.samples, geometry.groups};
  int64_t stride[2] = {};
  const uint64_t dims = grouped ? kAllDims : bit(1);
  if (!align(array, 2, shape, dims, stride)) [[unlikely]] {
    return wrong_shape(present, 2, shape, dims, grouped ? "an entry a group of each sample" : "an entry a channel");
  }
  if (statistic != nullptr) *statistic = {array.data, stride[0], stride[1]};
  return {};
}

Status place_table(const Present& present, int64_t channels, ChannelTable* table) {
  const int64_t shape[2] = {argument_of(present).rows, channels};
  int64_t stride[2];
  if (!align(present.array, 2, shape, kAllDims, stride)) [[unlikely]]
    return wrong_shape(present, 2, shape, kAllDims, text(shape[0], " rows of an entry a channel"));
  if (table != nullptr) *table = {present.array.data, 0, stride[0], stride[1]};
  return {};
}

// Everything that has not x's shape.
Status place_beside(const Present& present, const Present& x, const ChannelGeometry& geometry, ChannelSet set) {
  switch (present.argument->role) {
    case Role::parameter:
    case Role::running: return place_vector(present, geometry.channels, target_of<ChannelVector>(present));
    case Role::count: return place_count(present, geometry.channels, target_of<ChannelVector>(present));
    case Role::statistic: return place_statistic(present, geometry, set, target_of<ChannelStatistic>(present));
    case Role::table: return place_table(present, geometry.channels, target_of<ChannelTable>(present));
    case Role::counter: return place_counter(present, target_of<void*>(present));
    case Role::bits: {
      NORMACT_TRY(check_bits(present, x, kMaskOrders));
      if (void** data = target_of<void*>(present)) *data = present.array.data;
      return {};
    }
    case Role::element:
    case Role::sum:
    case Role::gradient: break;
  }
  return {NORMACT_INTERNAL, "a tensor of x's shape among the arguments of others"};
}

// The strides of a tensor of x's shape; those of the places are still to be merged.
Status place_element(const Present& x, int axis, Present* present) {
  const Array& array = x.array;
  if (!align(present->array, array.ndim, array.shape, kAllDims, present->stride)) [[unlikely]] {
    return wrong_shape(*present, array.ndim, array.shape, kAllDims, text(x.argument->name, "'s shape"));
  }
  ChannelView* view = target_of<ChannelView>(*present);
  if (view == nullptr) return {};
  *view = {present->array.data, present->array.dtype, axis == 0 ? 0 : present->stride[0], present->stride[axis], {}};
  return {};
}

void read_geometry(const Array& x, int axis, const ChannelAxes& axes, ChannelGeometry* out) {
  out->samples = axis == 0 ? 1 : x.shape[0];
  out->channels = x.shape[axis];
  out->groups = axes.set == ChannelSet::group ? axes.groups : out->channels;
  out->places = out->places_after = 1;
  for (int d = 1; d < x.ndim; ++d) {
    if (d == axis) continue;
    out->places *= x.shape[d];
    if (d > axis) out->places_after *= x.shape[d];
  }
}

// The dimensions of the places in the order of memory; in that of x's axes where the bits of a mask follow it.
Status merge_places(const Present& x, std::span<const Present> all, int axis, ChannelGeometry* out) {
  MergedStrides strides[kMaxArguments];
  size_t views = 0;
  bool in_order = false;
  for (const Present& present : all) {
    in_order = in_order || present.argument->role == Role::bits;
    if (present.argument->role != Role::element) continue;
    ChannelView* view = target_of<ChannelView>(present);
    if (view != nullptr) strides[views++] = {present.stride, view->place_stride};
  }
  int dims[kMaxTensorDims];
  size_t count = 0;
  for (int d = 1; d < x.array.ndim; ++d) {
    if (d != axis && x.array.shape[d] != 1) dims[count++] = d;
  }
  if (!in_order) sort_dims({dims, count}, {strides, views});
  int alone = -1;
  out->place_ndim = 0;
  if (out->places != 0) {
    out->place_ndim = merge_dims({dims, count}, x.array.shape, {strides, views}, &alone, out->place_shape);
    if (out->place_ndim < 0) return too_many_dims(x, " of the places'");
  }
  if (out->place_ndim > 0) return {};
  // One place or none: one dimension, contiguous.
  out->place_ndim = 1;
  out->place_shape[0] = out->places;
  for (size_t i = 0; i < views; ++i) strides[i].merged[0] = 1;
  return {};
}

// To a batch norm samples are one more dimension of the places. So the slowest of two may go with them, and where they
// are neighbours in memory, they are the places.
void turn_samples(std::span<const Present> all, ChannelGeometry* g) {
  ChannelView* views[kMaxArguments];
  size_t count = 0;
  bool slower = g->place_ndim == 2, neighbours = g->place_ndim == 1 && g->samples > 1 && g->places > 1;
  for (const Present& present : all) {
    if (present.argument->role == Role::bits) return;
    if (present.argument->role != Role::element) continue;
    ChannelView* view = target_of<ChannelView>(present);
    if (view == nullptr) continue;
    views[count++] = view;
    slower = slower && (g->samples == 1 || view->sample_stride == view->place_stride[0] * g->place_shape[0]);
    neighbours = neighbours && view->sample_stride == 1 && view->place_stride[0] != 1;
  }
  if (slower) {
    g->samples *= g->place_shape[0];
    g->places = g->places_after = g->place_shape[0] = g->place_shape[1];
    g->place_ndim = 1;
    for (ChannelView* view : std::span(views, count)) {
      view->sample_stride = view->place_stride[0];
      view->place_stride[0] = view->place_stride[1];
    }
  } else if (neighbours) {
    std::swap(g->samples, g->places);
    g->places_after = g->place_shape[0] = g->places;
    for (ChannelView* view : std::span(views, count)) std::swap(view->sample_stride, view->place_stride[0]);
  }
}

}  // namespace

Status read_channel_arguments(std::span<const ChannelArgument> arguments, const ChannelAxes& axes, Purpose purpose,
                              ChannelProblem* problem, Device* device) {
  Present storage[kMaxArguments];
  std::span<Present> all;
  NORMACT_TRY(read_all(arguments, purpose, storage, &all));
  const Present& x = storage[0];
  int axis;
  NORMACT_TRY(check_axes(x, axes, &axis));
  problem->set = axes.set;
  problem->dtype = x.array.dtype;
  *device = x.array.device;
  read_geometry(x.array, axis, axes, &problem->geometry);
  for (Present& present : all) {
    NORMACT_TRY(check_device_and_dtype(present, x));
    if (present.argument->role == Role::element) {
      NORMACT_TRY(place_element(x, axis, &present));
    } else {
      NORMACT_TRY(place_beside(present, x, problem->geometry, axes.set));
      // Channels last; of one channel, both orders are the same.
      const bool last = present.argument->role == Role::bits && present.array.ndim == 2;
      if (last && problem->geometry.channels > 1) problem->geometry.places_after = 1;
    }
  }
  NORMACT_TRY(merge_places(x, all, axis, &problem->geometry));
  if (axes.set == ChannelSet::channel && axis != 0) turn_samples(all, &problem->geometry);
  return purpose == Purpose::query ? Status() : check_overlaps(all);
}

Status read_merge_arguments(std::span<const ChannelArgument> arguments, Purpose purpose, ChannelMerge* problem,
                            Device* device) {
  Present storage[kMaxArguments];
  std::span<Present> all;
  NORMACT_TRY(read_all(arguments, purpose, storage, &all));
  Present& moments = storage[0];
  const Array& array = moments.array;
  const char* name = moments.argument->name;
  if (array.dtype != accumulator_of(array.dtype)) {
    return invalid(name, " has dtype ", name_of(array.dtype), "; expected float32 or float64");
  }
  if (array.ndim != 3 || array.shape[0] < 1 || array.shape[1] != 3) {
    return invalid(name, " has shape ", tuple_text(array.ndim, array.shape),
                   "; expected (parts, 3, channels) with at least one part");
  }
  problem->set = ChannelSet::channel;
  problem->dtype = array.dtype;
  *device = array.device;
  problem->parts = array.shape[0];
  const int64_t channels = array.shape[2];
  problem->geometry = {1, channels, channels, 1, 1, 1, {1}};
  align(array, 3, array.shape, kAllDims, moments.stride);
  problem->moments = {array.data, moments.stride[0], moments.stride[1], moments.stride[2]};
  for (const Present& present : all.subspan(1)) {
    NORMACT_TRY(check_device_and_dtype(present, moments));
    NORMACT_TRY(place_beside(present, moments, problem->geometry, problem->set));
  }
  return purpose == Purpose::query ? Status() : check_overlaps(all);
}

}  // namespace normact
