// SPDX-License-Identifier: Apache-2.0
#include "core/pointwise_copies.h"

#include <algorithm>
#include <utility>

namespace normact {
namespace {

constexpr int64_t kLeastBytes = 128 << 10;  // of a tensor: less does not pay for a launch more;
constexpr int64_t kLongRow = 64;            // of single elements;
constexpr int64_t kLeastRows = 2 << 20;     // of single elements in rows, which are faster

using Views = PresentTensors<View, 4>;

struct Operands {
  Views inputs, outputs, biases;
};

Operands operands_of(PointwiseForward* p) {
  Operands o;
  for (View* view : {&p->x, &p->up}) o.inputs.add(view);
  o.outputs.add(&p->y);
  for (View* view : {&p->bias, &p->up_bias}) o.biases.add(view);
  return o;
}

Operands operands_of(PointwiseBackward* p) {
  Operands o;
  for (View* view : {&p->x, &p->dy, &p->up, &p->y}) o.inputs.add(view);
  for (View* view : {&p->dx, &p->dup}) o.outputs.add(view);
  for (View* view : {&p->bias, &p->up_bias, &p->dbias, &p->dup_bias}) o.biases.add(view);
  return o;
}

/// The index space in as few dimensions as arrays need.
PointwiseGeometry array_geometry(const PointwiseGeometry& g) {
  PointwiseGeometry arrays{g.size, 0, -1, {}};
  const auto add = [&arrays](int64_t size) { arrays.shape[arrays.ndim++] = size; };
  if (g.bias_dim < 0) {
    add(g.size);
    return arrays;
  }
  const BiasDims dims = bias_dims(g);
  if (dims.outer > 1) add(dims.outer);
  arrays.bias_dim = arrays.ndim;
  add(dims.channels);
  if (dims.inner > 1) add(dims.inner);
  return arrays;
}

/// All tensors of x's shape become arrays, wherever they are.
void become_arrays(PointwiseProblem* problem, const Operands& operands) {
  const PointwiseGeometry before = problem->geometry, after = array_geometry(before);
  problem->geometry = after;
  for (const Views& views : {operands.inputs, operands.outputs}) {
    for (View* view : views) {
      int64_t stride = 1;
      for (int d = after.ndim - 1; d >= 0; --d) {
        view->stride[d] = stride;
        stride *= after.shape[d];
      }
    }
  }
  for (View* bias : operands.biases) {
    const int64_t stride = bias->stride[before.bias_dim];
    std::fill(bias->stride, bias->stride + after.ndim, 0);
    bias->stride[after.bias_dim] = stride;
  }
}

bool plan_gather_copy(const PointwiseGeometry& g, const View& view, LayoutCopy* copy) {
  CopyDim dims[kMaxDims];
  int64_t stride = 1;
  for (int d = g.ndim - 1; d >= 0; --d) {
    dims[d] = {g.shape[d], view.stride[d], stride};
    stride *= g.shape[d];
  }
  copy->gathers = true;
  return plan_layout_copy(g.ndim, dims, size_of(view.dtype), copy);
}

/// Whether gates alternate with what they gate. A query knows it only of those in one tensor; of two it asks for room
/// that a call may not need.
bool may_alternate(const PointwiseProblem& p, const View& gate, const View& up) {
  const int last = p.geometry.ndim - 1;
  const char* second = static_cast<const char*>(gate.data) + size_of(p.dtype);
  return p.gated && up.data == second && gate.stride[last] == 2 && up.stride[last] == 2;
}

/// The inputs that are no arrays; count 0 if there are none, or copies of them are of no use.
template <class Problem, class Serves>
Views odd_inputs(const Problem& given, const Operands& operands, Serves serves) {
  const PointwiseGeometry& g = given.geometry;
  Views odd;
  for (View* input : operands.inputs) {
    if (!is_dense(*input, g)) odd.add(input);
  }
  if (odd.count == 0) return odd;
  if (given.dtype == DType::f64 || g.size * size_of(given.dtype) < kLeastBytes) return {};
  if (g.bias_dim >= 0 && g.shape[g.bias_dim] == 1) return {};
  for (const View* output : operands.outputs) {
    if (!is_dense(*output, g)) return {};
  }
  Problem problem = given;
  const Operands trial = operands_of(&problem);
  for (const Views& views : {trial.inputs, trial.outputs, trial.biases}) {
    for (View* view : views) view->data = query_address();
  }
  if (may_alternate(given, given.x, given.up))
    problem.up.data = behind(problem.x.data, static_cast<size_t>(size_of(given.dtype)));
  if (serves(problem)) return {};
  become_arrays(&problem, trial);
  problem.up.data = given.up.data == nullptr ? nullptr : query_address();
  if (!serves(problem)) return {};
  for (const View* input : odd) {
    LayoutCopy copy;
    if (!plan_gather_copy(g, *input, &copy)) return {};
  }
  return odd;
}

/// Copies the inputs to arrays, which stand for them from now on: the first to `place`, if there is one, the others to
/// the workspace.
GatheredInputs gather(PointwiseProblem* problem, const Views& inputs, void* place, void* workspace) {
  GatheredInputs gathered;
  const PointwiseGeometry& g = problem->geometry;
  for (View* input : inputs) {
    LayoutCopy& copy = gathered.copies[gathered.count++];
    plan_gather_copy(g, *input, &copy);
    void* array = std::exchange(place, nullptr);
    if (array == nullptr) array = gathered.next_array(workspace, g.size * size_of(problem->dtype));
    copy.tensor = input->data;
    copy.array = input->data = array;
  }
  return gathered;
}

bool in_packs(PointwiseAccess access) { return access != PointwiseAccess::rows && access != PointwiseAccess::elements; }

/// Single elements of 32 bits in rows, or few, or of one tensor in long rows, are not slower than a copy and packs.
bool serve(const PointwiseProblem& p, const PointwisePlan& plan, bool forward) {
  if (plan.access != PointwiseAccess::rows) return in_packs(plan.access);
  const bool alone = forward && !p.gated && p.geometry.bias_dim < 0;
  if (alone && p.geometry.shape[p.geometry.ndim - 1] >= kLongRow) return true;
  return size_of(p.dtype) == 4 || p.geometry.size * size_of(p.dtype) < kLeastRows;
}

}  // namespace

GatheredInputs gather_inputs(PointwiseForward* problem, void* workspace) {
  const Operands operands = operands_of(problem);
  const Views odd =
      odd_inputs(*problem, operands, [](const PointwiseForward& p) { return serve(p, plan_pointwise(p), true); });
  if (odd.count == 0) return {};
  // y may be the other of gate and up; of what is no array, it is none.
  const bool is_input = problem->gated && (problem->x.data == problem->y.data || problem->up.data == problem->y.data);
  const GatheredInputs gathered = gather(problem, odd, is_input ? nullptr : problem->y.data, workspace);
  become_arrays(problem, operands);
  return gathered;
}

GatheredInputs gather_inputs(PointwiseBackward* problem, const DeviceInfo& device, int sm_margin, void* workspace) {
  const Operands operands = operands_of(problem);
  const Views odd = odd_inputs(*problem, operands, [&](const PointwiseBackward& p) {
    const bool gradient = p.dbias.data != nullptr || p.dup_bias.data != nullptr;
    return gradient ? plan_bias_gradient(p, device, sm_margin).width > 1 : serve(p, plan_pointwise(p), false);
  });
  if (odd.count == 0) return {};
  const GatheredInputs gathered = gather(problem, odd, nullptr, workspace);
  become_arrays(problem, operands);
  return gathered;
}

}  // namespace normact
