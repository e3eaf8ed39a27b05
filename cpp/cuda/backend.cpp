// SPDX-License-Identifier: Apache-2.0
#include "cuda/backend.h"

#include <algorithm>

#include "core/plan.h"
#include "core/plan_pointwise.h"
#include "core/pointwise_copies.h"
#include "core/row_copies.h"
#include "core/row_workspace.h"
#include "cuda/device.h"
#include "cuda/layout_copy.h"
#include "cuda/pointwise_launchers.h"
#include "cuda/row_launchers.h"

namespace normact::cuda {
namespace {

bool wants_bias_gradient(const PointwiseBackward& problem) {
  return problem.dbias.data != nullptr || problem.dup_bias.data != nullptr;
}

Status launch_copies(const GatheredInputs& inputs, const Launch& launch) {
  for (int i = 0; i < inputs.count; ++i) NORMACT_TRY(launch_layout_copy(inputs.copies[i], launch));
  return {};
}

/// inputs: what is to be copied before, to y.
Status plan_and_launch(const RowForward& problem, const GatheredInputs& inputs, const DeviceInfo& device,
                       const Launch& launch) {
  RowPlan plan{};
  NORMACT_TRY(plan_row_forward(request_of(problem, launch.variant, launch.sm_margin), device, &plan));
  NORMACT_TRY(check_workspace(launch.workspace, plan.workspace_bytes));
  NORMACT_TRY(launch_copies(inputs, launch));
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

/// inputs: what is to be copied before.
Status plan_and_launch(const RowBackward& problem, const GatheredInputs& inputs, const DeviceInfo& device,
                       const Launch& given_launch) {
  Launch launch = given_launch;
  RowPlan plan{};
  if (problem.geometry.rows > 0) {
    NORMACT_TRY(plan_row_backward(request_of(problem, launch.variant, launch.sm_margin), device, &plan));
    NORMACT_TRY(check_workspace(launch.workspace, inputs.workspace_bytes + plan.workspace_bytes));
  }
  NORMACT_TRY(launch_copies(inputs, launch));
  launch.workspace = after(launch.workspace, inputs.workspace_bytes);
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

Status launch_forward(const PointwiseForward& problem, const Launch& launch) {
  switch (problem.dtype) {
    case DType::f64: return launch_pointwise_forward_f64(problem, launch);
    case DType::f32: return launch_pointwise_forward_f32(problem, launch);
    case DType::f16: return launch_pointwise_forward_f16(problem, launch);
    case DType::bf16: return launch_pointwise_forward_bf16(problem, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

/// inputs: what is to be copied before.
Status plan_and_launch(const PointwiseBackward& problem, const GatheredInputs& inputs, const DeviceInfo& device,
                       const Launch& given_launch) {
  Launch launch = given_launch;
  BiasPlan plan;
  const BiasPlan* bias = nullptr;
  size_t needed = inputs.workspace_bytes;
  if (wants_bias_gradient(problem)) {
    plan = plan_bias_gradient(problem, device, launch.sm_margin);
    needed += plan.workspace_bytes;
    bias = &plan;
  }
  NORMACT_TRY(check_workspace(launch.workspace, needed));
  NORMACT_TRY(launch_copies(inputs, launch));
  launch.workspace = after(launch.workspace, inputs.workspace_bytes);
  switch (problem.dtype) {
    case DType::f64: return launch_pointwise_backward_f64(problem, bias, launch);
    case DType::f32: return launch_pointwise_backward_f32(problem, bias, launch);
    case DType::f16: return launch_pointwise_backward_f16(problem, bias, launch);
    case DType::bf16: return launch_pointwise_backward_bf16(problem, bias, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

}  // namespace

Status row_norm_forward_workspace(const RowForward& problem, const Launch& launch, size_t* bytes) {
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  return most_workspace(problem, *device, launch.variant, launch.sm_margin, bytes);
}

Status row_norm_backward_workspace(const RowBackward& problem, const Launch& launch, size_t* bytes) {
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  return most_workspace(problem, *device, launch.variant, launch.sm_margin, bytes);
}

Status row_norm_forward(const RowForward& given, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  if (!may_gather(given, launch.variant)) return plan_and_launch(given, {}, *device, launch);
  RowForward problem = given;
  const GatheredInputs inputs = gather_rows(&problem, *device);
  return plan_and_launch(problem, inputs, *device, launch);
}

Status row_norm_backward(const RowBackward& given, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  if (!may_gather(given, launch.variant)) return plan_and_launch(given, {}, *device, launch);
  RowBackward problem = given;
  const GatheredInputs inputs = gather_rows(&problem, *device, launch.workspace.data);
  return plan_and_launch(problem, inputs, *device, launch);
}

Status pointwise_forward_workspace(const PointwiseForward& given, const Launch&, size_t* bytes) {
  PointwiseForward problem = given;
  *bytes = gather_inputs(&problem, query_address()).workspace_bytes;
  return {};
}

Status pointwise_forward(const PointwiseForward& given, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  if (!may_gather(given)) return launch_forward(given, launch);
  PointwiseForward problem = given;
  const GatheredInputs inputs = gather_inputs(&problem, launch.workspace.data);
  NORMACT_TRY(check_workspace(launch.workspace, inputs.workspace_bytes));
  NORMACT_TRY(launch_copies(inputs, launch));
  return launch_forward(problem, launch);
}

Status pointwise_backward_workspace(const PointwiseBackward& given, const Launch& launch, size_t* bytes) {
  *bytes = 0;
  if (given.geometry.size == 0) return {};
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  PointwiseBackward problem = given;
  *bytes = gather_inputs(&problem, *device, launch.sm_margin, query_address()).workspace_bytes;
  if (wants_bias_gradient(problem)) {
    *bytes += plan_bias_gradient(problem, *device, launch.sm_margin).workspace_bytes;
  }
  return {};
}

Status pointwise_backward(const PointwiseBackward& given, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  if (!may_gather(given)) return plan_and_launch(given, {}, *device, launch);
  PointwiseBackward problem = given;
  const GatheredInputs inputs = gather_inputs(&problem, *device, launch.sm_margin, launch.workspace.data);
  return plan_and_launch(problem, inputs, *device, launch);
}

}  // namespace normact::cuda
