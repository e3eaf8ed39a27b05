// SPDX-License-Identifier: Apache-2.0
#include "core/row_copies.h"

#include <algorithm>
#include <span>

#include "core/merge_dims.h"

namespace normact {
namespace {

constexpr int64_t kShortLine = 16;  // neighbours: such lines are slow

using Operands = PresentTensors<Operand, 4>;

/// Of a problem: what is copied, what it lies like then, and the rest.
struct Roles {
  Operands inputs, outputs, parameters, statistics;  // the first output says how all of x's shape lie
};

Roles roles_of(RowForward* p) {
  Roles roles;
  roles.inputs.add(&p->x);
  roles.outputs.add(&p->y);
  for (Operand* operand : {&p->weight, &p->bias}) roles.parameters.add(operand);
  for (Operand* operand : {&p->mean, &p->rstd}) roles.statistics.add(operand);
  return roles;
}

Roles roles_of(RowBackward* p) {
  Roles roles;
  for (Operand* operand : {&p->x, &p->dy, &p->dresidual}) roles.inputs.add(operand);
  roles.outputs.add(&p->dx);
  for (Operand* operand : {&p->weight, &p->bias, &p->dweight, &p->dbias}) roles.parameters.add(operand);
  for (Operand* operand : {&p->mean, &p->rstd}) roles.statistics.add(operand);
  return roles;
}

/// All dimensions of a tensor, in elements, as the array has them. Returns how many.
int dims_between(const RowGeometry& g, const Operand& tensor, const Operand& array, CopyDim (&dims)[2 * kMaxDims]) {
  int count = 0;
  for (int d = 0; d < g.row_ndim; ++d) dims[count++] = {g.row_shape[d], tensor.row_stride[d], array.row_stride[d]};
  for (int d = 0; d < g.col_ndim; ++d) dims[count++] = {g.col_shape[d], tensor.col_stride[d], array.col_stride[d]};
  return count;
}

bool is_array(const RowGeometry& g, const Operand& operand) {
  CopyDim dims[2 * kMaxDims];
  const int count = dims_between(g, operand, operand, dims);
  return has_no_gaps(count, dims);
}

bool lie_alike(const RowGeometry& g, const Operand& a, const Operand& b) {
  CopyDim dims[2 * kMaxDims];
  const int count = dims_between(g, a, b, dims);
  return std::all_of(dims, dims + count, [](const CopyDim& d) { return d.size == 1 || d.in_tensor == d.in_array; });
}

/// Orders and merges the dimensions of one side anew.
void merge_side(const Roles& roles, int* ndim, int64_t* shape, int64_t (Operand::*strides)[kMaxDims]) {
  int64_t given[12][kMaxDims];
  MergedStrides all[12];
  size_t count = 0;
  for (const Operands& operands : {roles.outputs, roles.inputs, roles.parameters, roles.statistics}) {
    for (Operand* operand : operands) {
      std::copy_n(operand->*strides, kMaxDims, given[count]);
      all[count] = {given[count], operand->*strides};
      ++count;
    }
  }
  int64_t sizes[kMaxDims];
  int dims[kMaxDims], alone = -1;
  std::copy_n(shape, kMaxDims, sizes);
  for (int d = 0; d < *ndim; ++d) dims[d] = d;
  const std::span order(dims, static_cast<size_t>(*ndim));
  sort_dims(order, {all, count});
  *ndim = merge_dims(order, sizes, {all, count}, &alone, shape);
}

/// All tensors of x's shape lie as the output, wherever they are.
void become_alike(RowProblem* problem, const Roles& roles) {
  RowGeometry& g = problem->geometry;
  for (Operand* input : roles.inputs) {
    std::copy_n(roles.outputs.at[0]->row_stride, kMaxDims, input->row_stride);
    std::copy_n(roles.outputs.at[0]->col_stride, kMaxDims, input->col_stride);
  }
  merge_side(roles, &g.row_ndim, g.row_shape, &Operand::row_stride);
  merge_side(roles, &g.col_ndim, g.col_shape, &Operand::col_stride);
  const Operand& output = *roles.outputs.at[0];
  problem->contiguous = g.col_ndim == 1 && output.col_stride[0] == 1;
  for (const Operand* parameter : roles.parameters) problem->contiguous &= parameter->col_stride[0] == 1;
  problem->adjacent = !problem->contiguous && output.row_stride[g.row_ndim - 1] == 1;
}

bool in_packs(RowAccess access) { return access != RowAccess::lines && access != RowAccess::strided; }

Status plan_row(const RowForward&, const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  return plan_row_forward(request, device, plan);
}
Status plan_row(const RowBackward&, const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  return plan_row_backward(request, device, plan);
}

/// From an index to the nearest in memory.
uint64_t nearest(int ndim, const int64_t* shape, const int64_t* stride) {
  uint64_t least = UINT64_MAX;
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] > 1) least = std::min(least, magnitude(stride[d]));
  }
  return least;
}

/// Whether columns are nearer to each other than rows, in all tensors of x's shape.
bool columns_are_near(const RowGeometry& g, const Roles& roles) {
  for (const Operands& operands : {roles.inputs, roles.outputs}) {
    for (const Operand* operand : operands) {
      if (nearest(g.col_ndim, g.col_shape, operand->col_stride) > nearest(g.row_ndim, g.row_shape, operand->row_stride))
        return false;
    }
  }
  return true;
}

/// Whether rows that lie `from` are gone through faster as copies that lie `to`.
template <class Problem>
bool gains(Problem& from, const Problem& to, const DeviceInfo& device) {
  const RowRequest before = request_of(from, NORMACT_ROW_AUTO, 0), after = request_of(to, NORMACT_ROW_AUTO, 0);
  if (in_packs(before.access)) return false;
  if (before.access == RowAccess::strided) {
    // Rows whose columns are near each other are on chip element by element, as long as they fit. What does not fit
    // either way is streamed, by more blocks a row as elements than as packs.
    RowPlan here, there;
    if (!plan_row(from, before, device, &here).ok() || !plan_row(to, after, device, &there).ok()) return false;
    const bool fits = here.variant != NORMACT_ROW_STREAM, near = columns_are_near(from.geometry, roles_of(&from));
    return after.access != RowAccess::strided && (near ? !fits && there.variant != NORMACT_ROW_STREAM : true);
  }
  // Of lines, not of all rows: their number decides nothing.
  const RowGeometry& g = from.geometry;
  const bool is_short = g.row_ndim > 1 && g.row_shape[g.row_ndim - 1] < kShortLine;
  if (after.access == RowAccess::lines)
    return is_short && to.geometry.row_shape[to.geometry.row_ndim - 1] >= kShortLine;
  return in_packs(after.access) && (is_short || size_of(from.dtype) == 2);
}

/// The inputs that do not lie as the output; none if copies are of no use. However few rows there are: the bits of a
/// row do not depend on that.
template <class Problem>
Operands odd_inputs(const Problem& given, const Roles& roles, const DeviceInfo& device) {
  const RowGeometry& g = given.geometry;
  Operands odd;
  if (is_mixed(given) || given.dtype == DType::f64 || g.row_ndim + g.col_ndim > kCopyDims) return odd;
  if (!is_array(g, *roles.outputs.at[0])) return odd;
  for (Operand* input : roles.inputs) {
    if (!lie_alike(g, *input, *roles.outputs.at[0])) odd.add(input);
  }
  if (odd.count == 0) return odd;
  Problem from = given;
  const Roles trial = roles_of(&from);
  for (const Operands& operands : {trial.inputs, trial.outputs, trial.parameters}) {
    for (Operand* operand : operands) operand->data = query_address();
  }
  Problem to = from;
  become_alike(&to, roles_of(&to));
  if (!gains(from, to, device)) return {};
  for (const Operand* input : odd) {
    LayoutCopy copy;
    CopyDim dims[2 * kMaxDims];
    const int count = dims_between(g, *input, *roles.outputs.at[0], dims);
    if (!plan_layout_copy(count, dims, size_of(given.dtype), &copy)) return {};
  }
  return odd;
}

/// Copies the input to `array`, which stands for it from now on.
void gather(const RowGeometry& g, const Operand& output, Operand* input, void* array, GatheredInputs* gathered) {
  LayoutCopy& copy = gathered->copies[gathered->count++];
  CopyDim dims[2 * kMaxDims];
  const int count = dims_between(g, *input, output, dims);
  plan_layout_copy(count, dims, size_of(input->dtype), &copy);
  copy.gathers = true;
  copy.tensor = input->data;
  copy.array = input->data = array;
}

}  // namespace

GatheredInputs gather_rows(RowForward* problem, const DeviceInfo& device) {
  GatheredInputs gathered;
  if (problem->contiguous || problem->residual.data != nullptr) return gathered;
  const Roles roles = roles_of(problem);
  for (Operand* input : odd_inputs(*problem, roles, device)) {
    gather(problem->geometry, problem->y, input, problem->y.data, &gathered);
  }
  if (gathered.count > 0) become_alike(problem, roles);
  return gathered;
}

GatheredInputs gather_rows(RowBackward* problem, const DeviceInfo& device, void* workspace) {
  GatheredInputs gathered;
  if (problem->contiguous || problem->geometry.rows == 0) return gathered;
  const Roles roles = roles_of(problem);
  const int64_t bytes = problem->geometry.rows * problem->geometry.cols * size_of(problem->dtype);
  for (Operand* input : odd_inputs(*problem, roles, device)) {
    gather(problem->geometry, problem->dx, input, gathered.next_array(workspace, bytes), &gathered);
  }
  if (gathered.count > 0) become_alike(problem, roles);
  return gathered;
}

}  // namespace normact
