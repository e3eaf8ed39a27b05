// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm: from a problem to its plan and its launcher.
#include "core/message.h"
#include "core/plan_channel.h"
#include "cuda/backend.h"
#include "cuda/channel_launchers.h"
#include "cuda/device.h"

namespace normact::cuda {
namespace {

constexpr ChannelTuning kTuning{};
constexpr int64_t kMaxChannels = 2147483647;  // kernels count them in 32 bits

Status check_channels(const ChannelGeometry& geometry) {
  if (geometry.channels <= kMaxChannels) return {};
  return {NORMACT_NOT_SUPPORTED,
          text("x has ", geometry.channels, " channels; expected at most ", kMaxChannels, " on CUDA")};
}

/// What a plan and a launch have in common: a current device and a workspace that is large enough.
Status prepare_plan(const ChannelRequest& request, const Launch& launch, ChannelPlan* plan) {
  NORMACT_TRY(check_channels(request.geometry));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  *plan = plan_channel(request, *device, kTuning);
  return check_workspace(launch.workspace, plan->workspace_bytes);
}

Status query(const ChannelRequest& request, const Launch& launch, size_t* bytes) {
  *bytes = 0;
  NORMACT_TRY(check_channels(request.geometry));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  *bytes = largest_channel_workspace(request, *device, kTuning);
  return {};
}

/// A mask that is not written with y is made of x and addend after it: they must still be there.
Status check_mask_in_place(const ChannelForward& p, const ChannelPlan& plan) {
  if (p.mask == nullptr || plan.mask_with_y) return {};
  const bool is_x = p.y.data == p.x.data;
  if (!is_x && p.y.data != p.addend.data) return {};
  return not_supported("y is ", is_x ? "x" : "addend", ", and the mask of these dtypes and strides is made of ",
                       is_x ? "x" : "addend", " after y on CUDA; expected another y");
}

/// Constant statistics need no first pass, unless it has gradients of parameters to sum.
ChannelPasses passes_of(const ChannelBackward& p) {
  const bool gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  return p.frozen && !gradients ? ChannelPasses::apply : ChannelPasses::both;
}

Status run_backward(const ChannelInputGradient& problem, ChannelPasses passes, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  ChannelPlan plan;
  NORMACT_TRY(prepare_plan(request_of(problem, passes, launch.sm_margin), launch, &plan));
  switch (problem.dtype) {
    case DType::f64: return launch_channel_backward_f64(problem, passes, plan, launch);
    case DType::f32: return launch_channel_backward_f32(problem, passes, plan, launch);
    case DType::f16: return launch_channel_backward_f16(problem, passes, plan, launch);
    case DType::bf16: return launch_channel_backward_bf16(problem, passes, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

/// Without given sums.
ChannelInputGradient whole_backward(const ChannelBackward& problem) {
  ChannelInputGradient whole{};
  static_cast<ChannelBackward&>(whole) = problem;
  return whole;
}

}  // namespace

Status channel_forward_workspace(const ChannelForward& problem, const Launch& launch, size_t* bytes) {
  return query(request_of(problem, launch.sm_margin), launch, bytes);
}

Status channel_backward_workspace(const ChannelBackward& problem, const Launch& launch, size_t* bytes) {
  return query(request_of(problem, passes_of(problem), launch.sm_margin), launch, bytes);
}

Status channel_moments_workspace(const ChannelMoments& problem, const Launch& launch, size_t* bytes) {
  return query(request_of(problem, launch.sm_margin), launch, bytes);
}

Status channel_reduce_workspace(const ChannelReduce& problem, const Launch& launch, size_t* bytes) {
  return query(request_of(problem, ChannelPasses::reduce, launch.sm_margin), launch, bytes);
}

Status channel_forward(const ChannelForward& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  ChannelPlan plan;
  NORMACT_TRY(prepare_plan(request_of(problem, launch.sm_margin), launch, &plan));
  NORMACT_TRY(check_mask_in_place(problem, plan));
  switch (problem.dtype) {
    case DType::f64: return launch_channel_forward_f64(problem, plan, launch);
    case DType::f32: return launch_channel_forward_f32(problem, plan, launch);
    case DType::f16: return launch_channel_forward_f16(problem, plan, launch);
    case DType::bf16: return launch_channel_forward_bf16(problem, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status channel_moments(const ChannelMoments& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  ChannelPlan plan;
  NORMACT_TRY(prepare_plan(request_of(problem, launch.sm_margin), launch, &plan));
  switch (problem.dtype) {
    case DType::f64: return launch_channel_moments_f64(problem, plan, launch);
    case DType::f32: return launch_channel_moments_f32(problem, plan, launch);
    case DType::f16: return launch_channel_moments_f16(problem, plan, launch);
    case DType::bf16: return launch_channel_moments_bf16(problem, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status channel_merge(const ChannelMerge& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  return problem.dtype == DType::f64 ? launch_channel_merge_f64(problem, launch)
                                     : launch_channel_merge_f32(problem, launch);
}

Status channel_backward(const ChannelBackward& problem, const Launch& launch) {
  return run_backward(whole_backward(problem), passes_of(problem), launch);
}

Status channel_reduce(const ChannelReduce& problem, const Launch& launch) {
  ChannelInputGradient whole = whole_backward(problem);
  whole.sums = problem.sums;
  return run_backward(whole, ChannelPasses::reduce, launch);
}

Status channel_input_gradient(const ChannelInputGradient& problem, const Launch& launch) {
  return run_backward(problem, ChannelPasses::apply, launch);
}

}  // namespace normact::cuda
