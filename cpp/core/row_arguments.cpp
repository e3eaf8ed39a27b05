// SPDX-License-Identifier: Apache-2.0
#include "core/row_arguments.h"

#include <algorithm>
#include <string>

#include "core/message.h"
#include "core/overlap.h"

namespace normact {
namespace {

constexpr size_t kMaxArguments = 16;

bool has_rows(Role role) { return role != Role::parameter; }
bool has_cols(Role role) { return role != Role::statistic; }

std::string device_text(Device device) { return device.cuda ? text("CUDA device ", device.id) : "the CPU"; }

Status check_device(const RowArgument& argument, const Array& array, const Array& x) {
  if (array.device == x.device) return {};
  return invalid(argument.name, " is on ", device_text(array.device), "; expected ", device_text(x.device),
                 ", where x is");
}

Status check_dtype(const RowArgument& argument, const Array& array, const Array& x) {
  const DType accumulator = accumulator_of(x.dtype);
  const bool as_x = argument.role != Role::statistic && array.dtype == x.dtype;
  const bool as_accumulator = argument.role != Role::element && array.dtype == accumulator;
  if (as_x || as_accumulator) return {};
  const DType expected = argument.role == Role::statistic ? accumulator : x.dtype;
  const bool either = argument.role == Role::parameter && accumulator != x.dtype;
  return invalid(argument.name, " has dtype ", name_of(array.dtype), "; expected ", name_of(expected),
                 either ? text(" or ", name_of(accumulator)) : "", " as x has dtype ", name_of(x.dtype));
}

// The sizes of x that an argument of this role has, in x's order; returns how many.
int expected_shape(Role role, const Array& x, uint64_t axes, int64_t* shape) {
  int count = 0;
  for (int d = 0; d < x.ndim; ++d) {
    const bool normalised = contains(axes, static_cast<uint64_t>(d));
    if (normalised ? has_cols(role) : has_rows(role)) shape[count++] = x.shape[d];
  }
  return count;
}

Status wrong_shape(const RowArgument& argument, const Array& array, const Array& x, uint64_t axes) {
  int64_t expected[kMaxTensorDims];
  const int ndim = expected_shape(argument.role, x, axes, expected);
  const char* which = argument.role == Role::element     ? "x's shape"
                      : argument.role == Role::parameter ? "x's shape over the normalised axes"
                                                         : "x's shape without the normalised axes";
  return invalid(argument.name, " has shape ", tuple_text(array.ndim, array.shape), "; expected ",
                 tuple_text(ndim, expected), ", ", which);
}

// An argument that is present, with a stride for every dimension of x: 0 where it lacks the dimension.
struct Aligned {
  const RowArgument* argument;
  Array array;
  int64_t stride[kMaxTensorDims];
};

// Fills the strides; false if the shape is not what the role asks for.
bool align(const Array& x, uint64_t axes, Aligned* aligned) {
  const Array& array = aligned->array;
  const bool in_rows = has_rows(aligned->argument->role);
  const bool in_cols = has_cols(aligned->argument->role);
  // The strides of an empty array mean nothing and were not checked.
  const int64_t* given = array.size == 0 ? nullptr : array.strides;
  int own = array.ndim;
  int64_t contiguous = 1;
  for (int d = x.ndim - 1; d >= 0; --d) {
    const bool normalised = contains(axes, static_cast<uint64_t>(d));
    if (!(normalised ? in_cols : in_rows)) {
      aligned->stride[d] = 0;
      continue;
    }
    if (--own < 0 || array.shape[own] != x.shape[d]) return false;
    aligned->stride[d] = given != nullptr ? given[own] : contiguous;
    contiguous *= x.shape[d];
  }
  return own == 0;
}

// One of the two index spaces of the geometry, and where its strides lie in an operand.
struct Space {
  uint64_t dims;  // of x, as a set
  int64_t* size;
  int* ndim;
  int64_t* shape;
  int64_t (Operand::*stride)[kMaxDims];
};

// Merges neighbouring dimensions that lie evenly in all operands. False if more than kMaxDims remain.
bool merge_dims(const Array& x, std::span<const Aligned> all, const Space& space) {
  int count = 0;
  int64_t size = 1;
  for (int d = 0; d < x.ndim; ++d) {
    const int64_t n = x.shape[d];
    if (!contains(space.dims, static_cast<uint64_t>(d)) || n == 1) continue;
    size *= n;
    bool merges = count > 0;
    for (size_t i = 0; merges && i < all.size(); ++i) {
      merges = (all[i].argument->operand->*space.stride)[count - 1] == all[i].stride[d] * n;
    }
    if (merges) {
      space.shape[count - 1] *= n;
    } else {
      if (count == kMaxDims) return false;
      space.shape[count++] = n;
    }
    for (const Aligned& aligned : all) (aligned.argument->operand->*space.stride)[count - 1] = aligned.stride[d];
  }
  *space.size = size;
  *space.ndim = count;
  return true;
}

// An index space of one index or none: one dimension. A single column counts as contiguous; a single row has stride 0,
// which spoils no alignment.
void finish_trivial(std::span<const Aligned> all, RowGeometry* geometry) {
  if (geometry->row_ndim == 0 || geometry->rows == 0) {
    geometry->row_ndim = 1;
    geometry->row_shape[0] = geometry->rows;
    for (const Aligned& aligned : all) aligned.argument->operand->row_stride[0] = 0;
  }
  if (geometry->col_ndim == 0 || geometry->cols == 0) {
    geometry->col_ndim = 1;
    geometry->col_shape[0] = geometry->cols;
    for (const Aligned& aligned : all) aligned.argument->operand->col_stride[0] = has_cols(aligned.argument->role);
  }
}

Status merge_geometry(const Array& x, uint64_t axes, std::span<const Aligned> all, RowProblem* problem) {
  RowGeometry& geometry = problem->geometry;
  const Space rows{~axes, &geometry.rows, &geometry.row_ndim, geometry.row_shape, &Operand::row_stride};
  const Space cols{axes, &geometry.cols, &geometry.col_ndim, geometry.col_shape, &Operand::col_stride};
  const bool rows_fit = merge_dims(x, all, rows);
  if (!rows_fit || !merge_dims(x, all, cols)) {
    return not_supported(
        "x has shape ", tuple_text(x.ndim, x.shape), ", of which more than ", kMaxDims,
        rows_fit ? " normalised" : " other",
        " dimensions remain after merging those that lie evenly in memory; make the tensors contiguous");
  }
  finish_trivial(all, &geometry);
  problem->contiguous = geometry.col_ndim == 1;
  for (const Aligned& aligned : all) {
    if (has_cols(aligned.argument->role)) problem->contiguous &= aligned.argument->operand->col_stride[0] == 1;
  }
  return {};
}

bool same_tensor(const Operand& a, const Operand& b) {
  return a.data == b.data && a.dtype == b.dtype && std::equal(a.row_stride, a.row_stride + kMaxDims, b.row_stride) &&
         std::equal(a.col_stride, a.col_stride + kMaxDims, b.col_stride);
}

Footprint footprint_of(const Aligned& aligned, const RowGeometry& geometry) {
  const RowArgument& argument = *aligned.argument;
  return footprint_of(*argument.operand, geometry, has_rows(argument.role), has_cols(argument.role));
}

// The cheap test that decides nearly always.
bool ranges_are_apart(const Array& a, const Array& b) {
  return a.data + a.highest <= b.data + b.lowest || b.data + b.highest <= a.data + a.lowest;
}

// Every output against itself and all other arguments that have elements.
Status check_overlaps(std::span<const Aligned> all, const RowArgument* table, const RowGeometry& geometry) {
  for (size_t i = 0; i < all.size(); ++i) {
    const RowArgument& output = *all[i].argument;
    if (!output.output || all[i].array.size == 0) continue;
    const Footprint footprint = footprint_of(all[i], geometry);
    if (overlaps_itself(footprint)) [[unlikely]] {
      return invalid(output.name,
                     " overlaps itself: its strides lead to one address from several indices; expected an "
                     "output whose elements are apart");
    }
    for (size_t j = 0; j < all.size(); ++j) {
      const RowArgument& other = *all[j].argument;
      if (i == j || all[j].array.size == 0 || ranges_are_apart(all[i].array, all[j].array)) continue;
      const bool allowed = contains(output.may_be, static_cast<uint64_t>(&other - table));
      if (allowed && same_tensor(*output.operand, *other.operand)) continue;
      if (!overlap(footprint, footprint_of(all[j], geometry))) continue;
      return invalid(output.name, " overlaps ", other.name, allowed ? " without being the same tensor" : "",
                     "; expected separate memory", allowed ? " or the very same data, shape and strides" : "");
    }
  }
  return {};
}

}  // namespace

Status read_axes(const Array& x, int32_t num_axes, const int64_t* axes, uint64_t* set) {
  if (num_axes < 1) return invalid("desc->num_axes is ", num_axes, "; expected at least 1");
  if (axes == nullptr) return invalid("desc->axes is NULL; expected ", num_axes, " axes");
  *set = 0;
  int64_t lowest = x.ndim;
  for (int32_t i = 0; i < num_axes; ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + x.ndim : axes[i];
    if (axis < 0 || axis >= x.ndim) [[unlikely]] {
      return invalid("desc->axes[", i, "] is ", axes[i], "; expected an axis of x, which has ", x.ndim, " dimensions");
    }
    if (contains(*set, static_cast<uint64_t>(axis))) [[unlikely]] {
      return invalid("desc->axes[", i, "] is ", axes[i], ", an axis that is already given; expected distinct axes");
    }
    *set |= bit(static_cast<uint64_t>(axis));
    lowest = std::min(lowest, axis);
  }
  if (num_axes != x.ndim - lowest) [[unlikely]] {
    return not_supported("desc->axes are ", tuple_text(num_axes, axes), " of x with ", x.ndim,
                         " dimensions; this version normalises over trailing axes only");
  }
  return {};
}

Status read_row_arguments(std::span<const RowArgument> arguments, int32_t num_axes, const int64_t* axes,
                          Purpose purpose, RowProblem* problem, Device* device) {
  Aligned storage[kMaxArguments];
  size_t count = 0;
  for (const RowArgument& argument : arguments) {
    if (argument.tensor == nullptr) continue;
    Aligned& aligned = storage[count++];
    aligned.argument = &argument;
    NORMACT_TRY(read_array(*argument.tensor, argument.name, purpose, &aligned.array));
  }
  const std::span<Aligned> all(storage, count);
  const Array& x = storage[0].array;
  uint64_t normalised;
  NORMACT_TRY(read_axes(x, num_axes, axes, &normalised));
  for (Aligned& aligned : all) {
    const RowArgument& argument = *aligned.argument;
    NORMACT_TRY(check_device(argument, aligned.array, x));
    NORMACT_TRY(check_dtype(argument, aligned.array, x));
    if (!align(x, normalised, &aligned)) [[unlikely]]
      return wrong_shape(argument, aligned.array, x, normalised);
    argument.operand->data = aligned.array.data;
    argument.operand->dtype = aligned.array.dtype;
  }
  problem->dtype = x.dtype;
  *device = x.device;
  NORMACT_TRY(merge_geometry(x, normalised, all, problem));
  if (purpose == Purpose::query) return {};
  return check_overlaps(all, arguments.data(), problem->geometry);
}

}  // namespace normact
