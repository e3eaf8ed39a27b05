// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm: from a problem to its plan and its launcher.
#include "core/channel_copies.h"
#include "core/message.h"
#include "core/plan_channel.h"
#include "cuda/backend.h"
#include "cuda/channel_launchers.h"
#include "cuda/device.h"
#include "cuda/layout_copy.h"

namespace normact::cuda {
namespace {

constexpr ChannelTuning kTuning{};
constexpr int64_t kMaxChannels = 2147483647;  // kernels count them in 32 bits

Status check_channels(const ChannelGeometry& geometry) {
  if (geometry.channels <= kMaxChannels) return {};
  return {NORMACT_NOT_SUPPORTED,
          text("x has ", geometry.channels, " channels; expected at most ", kMaxChannels, " on CUDA")};
}

/// Bytes of a tensor whose copies save more than they cost: where single elements take items of blocks, and where small
/// sets go through registers as packs, or also as others after that.
constexpr int64_t kLeastCopied = 32 << 10, kLeastPacks = 1 << 20, kLeastOthers = 4 << 20;

/// Sets of no more go through registers as they lie; these, if all tensors lie alike.
constexpr int64_t kFewElements = 64, kFewAlike = 4095;

/// The planner's view of the problems that there are; sums of a backward are reduced by the launcher's passes.
ChannelRequest request_for(const ChannelForward& p, ChannelPasses, int sm_margin) { return request_of(p, sm_margin); }
ChannelRequest request_for(const ChannelMoments& p, ChannelPasses, int sm_margin) { return request_of(p, sm_margin); }
ChannelRequest request_for(const ChannelBackward& p, ChannelPasses passes, int sm_margin) {
  return request_of(p, passes, sm_margin);
}

/// Which tensors a problem is carried out on copies of. This depends on shapes and strides alone: a query, which has no
/// pointers, finds the same.
template <class Problem>
ChannelCopies copies_of(const Problem& given, ChannelPasses passes, int sm_margin, const DeviceInfo& device) {
  const ChannelGeometry& g = given.geometry;
  const int64_t bytes = g.samples * g.channels * g.places * size_of(given.dtype);
  if (given.dtype == DType::f64 || bytes < kLeastCopied) return {};
  Problem problem = given;
  ChannelOperands operands = operands_of(problem);
  for (int i = 0; i < operands.count; ++i) operands.at[i].view->data = query_address();
  const ChannelRequest request = request_for(problem, passes, sm_margin);
  if (request.access != ChannelAccess::elements) return {};
  const bool registers = plan_channel(request, device, kTuning).order == ChannelOrder::registers;
  const int64_t most = lie_alike(g, operands) ? kFewAlike : kFewElements;
  if (registers && (bytes < kLeastPacks || g.channels / g.groups * g.places <= most)) return {};
  ChannelCopies ways[kMostLayouts];
  const int count = ways_to_copy(problem, operands, ways);
  problem.geometry = even_geometry(problem.geometry);
  for (int i = 0; i < count; ++i) {
    const ChannelView even = view_in(ways[i].layout, query_address(), problem.dtype);
    // Where all lie alike already, only what lies apart in memory, or not evenly, gains.
    if (ways[i].count == 0 && have_neighbours(problem.geometry, even)) return {};
    for (int j = 0; j < operands.count; ++j) *operands.at[j].view = even;
    const ChannelRequest copied = request_for(problem, passes, sm_margin);
    if (copied.access == ChannelAccess::elements) continue;
    const bool packs = copied.aligned || copied.access == ChannelAccess::rows;
    if (!registers || bytes >= (packs ? kLeastPacks : kLeastOthers)) return ways[i];
  }
  return {};
}

/// A problem as it is carried out: perhaps on copies, which the beginning of the workspace has.
template <class Problem>
struct Prepared {
  const Problem& given;
  Problem problem;
  ChannelCopies copies;
  ChannelPlan plan;
  Launch launch;

  explicit Prepared(const Problem& problem_given) : given(problem_given), problem(problem_given) {}
  Status prepare(ChannelPasses passes, const Launch& given_launch, bool may_copy);
  Status copy(bool outputs);
};

/// Needs a current device, and a workspace that is large enough.
template <class Problem>
Status Prepared<Problem>::prepare(ChannelPasses passes, const Launch& given_launch, bool may_copy) {
  launch = given_launch;
  NORMACT_TRY(check_channels(problem.geometry));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  ChannelRequest request = request_for(problem, passes, launch.sm_margin);
  if (may_copy && request.access == ChannelAccess::elements && !has_no_elements(problem.geometry)) {
    copies = copies_of(problem, passes, launch.sm_margin, *device);
  }
  if (copies.count > 0) {
    void* next = launch.workspace.data;
    const ChannelOperands operands = operands_of(problem);
    for (int i = 0; i < operands.count; ++i) {
      ChannelView* view = operands.at[i].view;
      void* data = view->data;
      if (copies.has(i)) {
        data = next;
        next = behind(next, copies.bytes_each);
      }
      *view = view_in(copies.layout, data, problem.dtype);
    }
    problem.geometry = even_geometry(problem.geometry);
    request = request_for(problem, passes, launch.sm_margin);
  }
  plan = plan_channel(request, *device, kTuning);
  NORMACT_TRY(check_workspace(launch.workspace, copies.bytes() + plan.workspace_bytes));
  launch.workspace = after(launch.workspace, copies.bytes());
  return {};
}

/// Fills the copies of inputs, or the outputs that have copies.
template <class Problem>
Status Prepared<Problem>::copy(bool outputs) {
  if (copies.count == 0) return {};
  Problem original = given;
  const ChannelOperands from = operands_of(original), to = operands_of(problem);
  for (int i = 0; i < from.count; ++i) {
    if (!copies.has(i) || from.at[i].output != outputs) continue;
    LayoutCopy moves;
    plan_channel_copy(given.geometry, *from.at[i].view, copies.layout, &moves);
    moves.tensor = from.at[i].view->data;
    moves.array = to.at[i].view->data;
    moves.gathers = !outputs;
    NORMACT_TRY(launch_layout_copy(moves, launch));
  }
  return {};
}

template <class Problem>
Status query(const Problem& problem, ChannelPasses passes, const Launch& launch, size_t* bytes) {
  *bytes = 0;
  NORMACT_TRY(check_channels(problem.geometry));
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  const ChannelRequest request = request_for(problem, passes, launch.sm_margin);
  *bytes = largest_channel_workspace(request, *device, kTuning);
  if (!has_no_elements(problem.geometry)) {
    *bytes += copies_of(problem, passes, launch.sm_margin, *device).bytes();
  }
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

Status launch_backward(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                       const Launch& launch) {
  switch (problem.dtype) {
    case DType::f64: return launch_channel_backward_f64(problem, passes, plan, launch);
    case DType::f32: return launch_channel_backward_f32(problem, passes, plan, launch);
    case DType::f16: return launch_channel_backward_f16(problem, passes, plan, launch);
    case DType::bf16: return launch_channel_backward_bf16(problem, passes, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status run_backward(const ChannelInputGradient& problem, ChannelPasses passes, const Launch& launch, bool may_copy) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  Prepared<ChannelInputGradient> call(problem);
  NORMACT_TRY(call.prepare(passes, launch, may_copy));
  NORMACT_TRY(call.copy(false));
  NORMACT_TRY(launch_backward(call.problem, passes, call.plan, call.launch));
  return call.copy(true);
}

/// Without given sums.
ChannelInputGradient whole_backward(const ChannelBackward& problem) {
  ChannelInputGradient whole{};
  static_cast<ChannelBackward&>(whole) = problem;
  return whole;
}

Status launch_forward(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch) {
  switch (problem.dtype) {
    case DType::f64: return launch_channel_forward_f64(problem, plan, launch);
    case DType::f32: return launch_channel_forward_f32(problem, plan, launch);
    case DType::f16: return launch_channel_forward_f16(problem, plan, launch);
    case DType::bf16: return launch_channel_forward_bf16(problem, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

Status launch_moments(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch) {
  switch (problem.dtype) {
    case DType::f64: return launch_channel_moments_f64(problem, plan, launch);
    case DType::f32: return launch_channel_moments_f32(problem, plan, launch);
    case DType::f16: return launch_channel_moments_f16(problem, plan, launch);
    case DType::bf16: return launch_channel_moments_bf16(problem, plan, launch);
  }
  return {NORMACT_INTERNAL, "unknown dtype"};
}

}  // namespace

Status channel_forward_workspace(const ChannelForward& problem, const Launch& launch, size_t* bytes) {
  return query(problem, ChannelPasses::both, launch, bytes);
}

Status channel_backward_workspace(const ChannelBackward& problem, const Launch& launch, size_t* bytes) {
  return query(problem, passes_of(problem), launch, bytes);
}

Status channel_moments_workspace(const ChannelMoments& problem, const Launch& launch, size_t* bytes) {
  return query(problem, ChannelPasses::reduce, launch, bytes);
}

Status channel_reduce_workspace(const ChannelReduce& problem, const Launch& launch, size_t* bytes) {
  return query(static_cast<const ChannelBackward&>(problem), ChannelPasses::reduce, launch, bytes);
}

Status channel_forward(const ChannelForward& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  Prepared<ChannelForward> call(problem);
  // Of the parts of a batch norm, those without a query have no workspace.
  NORMACT_TRY(call.prepare(ChannelPasses::both, launch, problem.source != StatisticsSource::given));
  NORMACT_TRY(check_mask_in_place(call.problem, call.plan));
  NORMACT_TRY(call.copy(false));
  NORMACT_TRY(launch_forward(call.problem, call.plan, call.launch));
  return call.copy(true);
}

Status channel_moments(const ChannelMoments& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  Prepared<ChannelMoments> call(problem);
  NORMACT_TRY(call.prepare(ChannelPasses::reduce, launch, true));
  NORMACT_TRY(call.copy(false));
  return launch_moments(call.problem, call.plan, call.launch);
}

Status channel_merge(const ChannelMerge& problem, const Launch& launch) {
  DeviceGuard guard;
  NORMACT_TRY(guard.enter(launch.device));
  return problem.dtype == DType::f64 ? launch_channel_merge_f64(problem, launch)
                                     : launch_channel_merge_f32(problem, launch);
}

Status channel_backward(const ChannelBackward& problem, const Launch& launch) {
  return run_backward(whole_backward(problem), passes_of(problem), launch, true);
}

Status channel_reduce(const ChannelReduce& problem, const Launch& launch) {
  ChannelInputGradient whole = whole_backward(problem);
  whole.sums = problem.sums;
  return run_backward(whole, ChannelPasses::reduce, launch, true);
}

Status channel_input_gradient(const ChannelInputGradient& problem, const Launch& launch) {
  return run_backward(problem, ChannelPasses::apply, launch, false);  // has no workspace
}

}  // namespace normact::cuda
