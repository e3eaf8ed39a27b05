// SPDX-License-Identifier: Apache-2.0
#include "cuda/backend.h"

#include <algorithm>

#include "core/plan.h"
#include "core/plan_pointwise.h"
#include "cuda/device.h"
#include "cuda/pointwise_launchers.h"
#include "cuda/row_launchers.h"

namespace normact::cuda {
namespace {

/// The most that any alignment of the tensors may need: a query does not look at pointers.
Status largest_workspace(const RowBackward& problem, const Launch& launch, size_t* bytes) {
  *bytes = 0;
  if (problem.geometry.rows == 0) return {};
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  RowRequest request = request_of(problem, launch.variant, launch.sm_margin);
  Status status;
  bool legal = false;  // a forced variant may be legal for some layouts only; the call itself decides
  const bool mixed = is_mixed(problem);
  const bool whole_packs = problem.geometry.cols * size_of(problem.io_dtype) % 16 == 0;
  const auto plan_access = [&](RowAccess access, bool images) {
    RowPlan plan;
    request.access = access;
    request.images = images;
    status = plan_row_backward(request, *device, &plan);
    if (!status.ok()) return;
    legal = true;
    *bytes = std::max(*bytes, plan.workspace_bytes);
  };
  // All lines are planned alike, but for images.
  for (const RowAccess access :
       {RowAccess::packs, RowAccess::runs, RowAccess::lines, RowAccess::packed_pieces, RowAccess::strided}) {
    if (access == RowAccess::packs && !whole_packs) continue;
    if (access == RowAccess::packed_pieces && !may_be_pieces(problem)) continue;
    const bool in_order = access == RowAccess::packs || access == RowAccess::runs;
    const bool in_lines = access == RowAccess::lines;
    if (mixed && (access == RowAccess::runs || in_lines)) continue;
    if (in_order ? !problem.contiguous : !mixed && problem.adjacent != in_lines) continue;
    plan_access(access, false);
    if (in_lines && may_be_images(problem)) plan_access(access, true);
  }
  return legal ? Status() : status;
}

bool wants_bias_gradient(const PointwiseBackward& problem) {
  return problem.dbias.data != nullptr || problem.dup_bias.data != nullptr;
}

}  // namespace

Status row_norm_forward_workspace(const RowForward&, const Launch&, size_t* bytes) {
  *bytes = 0;  // no forward needs any; asking the planner would cost the call a third of its host time
  return {};
}

Status row_norm_backward_workspace(const RowBackward& problem, const Launch& launch, size_t* bytes) {
  return largest_workspace(problem, launch, bytes);
}

Status row_norm_forward(const RowForward& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  RowPlan plan;
  NORMACT_TRY(plan_row_forward(request_of(problem, launch.variant, launch.sm_margin), *device, &plan));
  if (is_mixed(problem)) {
    return problem.io_dtype == DType::f16 ? launch_row_forward_mixed_f16(problem, plan, launch)
                                          : launch_row_forward_mixed_bf16(problem, plan, launch);
  }
  switch (problem.dtype) {
    case DType::f64: return launch_row_forward_f64(problem, plan, launch);
    case DType::f32: return launch_row_forward_f32(problem, plan, launch);
    case DType::f16: return launch_row_forward_f16(problem, plan, launch);
    case DType::bf16: return launch_row_forward_bf16(problem, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status row_norm_backward(const RowBackward& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  RowPlan plan{};
  if (problem.geometry.rows > 0) {
    NORMACT_TRY(plan_row_backward(request_of(problem, launch.variant, launch.sm_margin), *device, &plan));
    NORMACT_TRY(check_workspace(launch.workspace, plan.workspace_bytes));
  }
  if (is_mixed(problem)) {
    return problem.io_dtype == DType::f16 ? launch_row_backward_mixed_f16(problem, plan, launch)
                                          : launch_row_backward_mixed_bf16(problem, plan, launch);
  }
  switch (problem.dtype) {
    case DType::f64: return launch_row_backward_f64(problem, plan, launch);
    case DType::f32: return launch_row_backward_f32(problem, plan, launch);
    case DType::f16: return launch_row_backward_f16(problem, plan, launch);
    case DType::bf16: return launch_row_backward_bf16(problem, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status pointwise_forward(const PointwiseForward& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  switch (problem.dtype) {
    case DType::f64: return launch_pointwise_forward_f64(problem, launch);
    case DType::f32: return launch_pointwise_forward_f32(problem, launch);
    case DType::f16: return launch_pointwise_forward_f16(problem, launch);
    case DType::bf16: return launch_pointwise_forward_bf16(problem, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status pointwise_backward_workspace(const PointwiseBackward& problem, const Launch& launch, size_t* bytes) {
  *bytes = 0;
  if (problem.geometry.size == 0 || !wants_bias_gradient(problem)) return {};
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  *bytes = plan_bias_gradient(problem, *device, launch.sm_margin).workspace_bytes;
  return {};
}

Status pointwise_backward(const PointwiseBackward& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  BiasPlan plan;
  const BiasPlan* bias = nullptr;
  if (wants_bias_gradient(problem)) {
    const DeviceInfo* device = nullptr;
    NORMACT_TRY(device_info(launch.device, &device));
    plan = plan_bias_gradient(problem, *device, launch.sm_margin);
    NORMACT_TRY(check_workspace(launch.workspace, plan.workspace_bytes));
    bias = &plan;
  }
  switch (problem.dtype) {
    case DType::f64: return launch_pointwise_backward_f64(problem, bias, launch);
    case DType::f32: return launch_pointwise_backward_f32(problem, bias, launch);
    case DType::f16: return launch_pointwise_backward_f16(problem, bias, launch);
    case DType::bf16: return launch_pointwise_backward_bf16(problem, bias, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

}  // namespace normact::cuda
