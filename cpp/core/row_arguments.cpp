// SPDX-License-Identifier: Apache-2.0
#include "core/row_arguments.h"

#include "core/merge_dims.h"
#include "core/message.h"

namespace normact {
namespace {

bool is_like_x(Role role) { return role == Role::element || role == Role::sum || role == Role::gradient; }

// Which dimensions of x an argument of this role has.
uint64_t dims_of(Role role, uint64_t axes) {
  return is_like_x(role) ? kAllDims : role == Role::parameter ? axes : ~axes;
}

bool has_cols(const Present& present) { return present.argument->role != Role::statistic; }

bool is_read(const Present& present) { return static_cast<const RowArgument*>(present.argument)->operand != nullptr; }

Operand& operand_of(const Present& present) { return *static_cast<const RowArgument*>(present.argument)->operand; }

const char* shape_text(Role role) {
  return is_like_x(role)           ? "x's shape"
         : role == Role::parameter ? "x's shape over the normalised axes"
                                   : "x's shape without the normalised axes";
}

// The argument whose dtype decides that of another; x stands for one that should be there and is not.
const Present& like_of(const Present& present, std::span<const Present> all) {
  const uint64_t place = static_cast<const RowArgument*>(present.argument)->like_of;
  for (const Present& other : all) {
    if (other.place == place) return other;
  }
  return all[0];
}

// One of the two index spaces of the geometry, and where its strides lie in an operand.
struct Space {
  uint64_t dims;  // of x, as a set
  int64_t* size;
  int* ndim;
  int64_t* shape;
  int64_t (Operand::*stride)[kMaxDims];
};

// False if more than kMaxDims dimensions remain after merging.
bool merge_space(const Array& x, std::span<const Present> all, const Space& space) {
  int dims[kMaxTensorDims];
  size_t count = 0;
  int64_t size = 1;
  for (int d = 0; d < x.ndim; ++d) {
    if (!contains(space.dims, static_cast<uint64_t>(d)) || x.shape[d] == 1) continue;
    size *= x.shape[d];
    dims[count++] = d;
  }
  MergedStrides strides[kMaxArguments];
  for (size_t i = 0; i < all.size(); ++i) strides[i] = {all[i].stride, operand_of(all[i]).*space.stride};
  sort_dims({dims, count}, {strides, all.size()});
  int alone = -1;
  *space.size = size;
  *space.ndim = merge_dims({dims, count}, x.shape, {strides, all.size()}, &alone, space.shape);
  return *space.ndim >= 0;
}

// An index space of one index or none: one dimension. A single column counts as contiguous; a single row has stride 0,
// which spoils no alignment.
void finish_trivial(std::span<const Present> all, RowGeometry* geometry) {
  if (geometry->row_ndim == 0 || geometry->rows == 0) {
    geometry->row_ndim = 1;
    geometry->row_shape[0] = geometry->rows;
    for (const Present& present : all) operand_of(present).row_stride[0] = 0;
  }
  if (geometry->col_ndim == 0 || geometry->cols == 0) {
    geometry->col_ndim = 1;
    geometry->col_shape[0] = geometry->cols;
    for (const Present& present : all) operand_of(present).col_stride[0] = has_cols(present);
  }
}

// Checks the inputs, or the outputs, and fills their operands but for strides.
Status fill_operands(std::span<Present> all, uint64_t normalised, bool outputs) {
  const Array& x = all[0].array;
  for (Present& present : all) {
    if (present.argument->output != outputs) continue;
    const Role role = present.argument->role;
    const uint64_t dims = dims_of(role, normalised);
    NORMACT_TRY(check_device(present, all[0]));
    NORMACT_TRY(check_dtype(present, like_of(present, all)));
    if (!align(present.array, x.ndim, x.shape, dims, present.stride)) [[unlikely]]
      return wrong_shape(present, x.ndim, x.shape, dims, shape_text(role));
    if (!is_read(present)) continue;
    operand_of(present).data = present.array.data;
    operand_of(present).dtype = present.array.dtype;
  }
  return {};
}

Status merge_geometry(uint64_t axes, std::span<const Present> all, RowProblem* problem) {
  const Present& x = all[0];
  RowGeometry& geometry = problem->geometry;
  const Space rows{~axes, &geometry.rows, &geometry.row_ndim, geometry.row_shape, &Operand::row_stride};
  const Space cols{axes, &geometry.cols, &geometry.col_ndim, geometry.col_shape, &Operand::col_stride};
  if (!merge_space(x.array, all, rows)) return too_many_dims(x, " other");
  if (!merge_space(x.array, all, cols)) return too_many_dims(x, " normalised");
  finish_trivial(all, &geometry);
  problem->contiguous = geometry.col_ndim == 1;
  problem->adjacent = true;
  for (const Present& present : all) {
    const Operand& operand = operand_of(present);
    if (has_cols(present)) problem->contiguous &= operand.col_stride[0] == 1;
    if (is_like_x(present.argument->role)) problem->adjacent &= operand.row_stride[geometry.row_ndim - 1] == 1;
  }
  problem->adjacent &= !problem->contiguous;
  return {};
}

}  // namespace

Status read_axes(const Present& x, int32_t num_axes, const int64_t* axes, uint64_t* set) {
  if (num_axes < 1) return invalid("desc->num_axes is ", num_axes, "; expected at least 1");
  if (axes == nullptr) return invalid("desc->axes is NULL; expected ", num_axes, " axes");
  *set = 0;
  for (int32_t i = 0; i < num_axes; ++i) {
    int axis;
    if (!find_axis(axes[i], x.array.ndim, &axis)) [[unlikely]]
      return no_such_axis(text("desc->axes[", i, "]"), axes[i], x);
    if (contains(*set, static_cast<uint64_t>(axis))) [[unlikely]] {
      return invalid("desc->axes[", i, "] is ", axes[i], ", an axis that is already given; expected distinct axes");
    }
    *set |= bit(static_cast<uint64_t>(axis));
  }
  return {};
}

Status read_row_arguments(std::span<const RowArgument> arguments, int32_t num_axes, const int64_t* axes,
                          Purpose purpose, RowProblem* problem, Device* device) {
  Present storage[kMaxArguments];
  std::span<Present> all;
  NORMACT_TRY(read_all(arguments, purpose, storage, &all));
  const Present& x = storage[0];
  uint64_t normalised;
  NORMACT_TRY(read_axes(x, num_axes, axes, &normalised));
  // Inputs first: what was made like a wrong one is wrong, too.
  NORMACT_TRY(fill_operands(all, normalised, false));
  NORMACT_TRY(fill_operands(all, normalised, true));
  *device = x.array.device;
  size_t read = all.size();
  while (!is_read(all[read - 1])) --read;
  NORMACT_TRY(merge_geometry(normalised, all.first(read), problem));
  return purpose == Purpose::query ? Status() : check_overlaps(all);
}

}  // namespace normact
