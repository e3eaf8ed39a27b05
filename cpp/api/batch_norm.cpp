// SPDX-License-Identifier: Apache-2.0
// Batch norm, whole and in parts: read, hand over to the back end.
#include "api/channel_calls.h"
#include "core/read_batch_norm.h"

namespace normact::api {
namespace {

// Without elements the moments and sums are 0.
Status statistics(const ChannelMoments& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_channel_variant(exec));
  if (problem.geometry.channels == 0) return {};
  return device.cuda ? cuda::channel_moments(problem, launch_of(exec, device)) : cpu::channel_moments(problem);
}

Status statistics_workspace(const ChannelMoments& problem, Device device, const normact_exec& exec, size_t* bytes) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_no_elements(problem.geometry) || !device.cuda) return {};
  return cuda::channel_moments_workspace(problem, launch_of(exec, device), bytes);
}

Status merge(const ChannelMerge& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_channel_variant(exec));
  if (problem.geometry.channels == 0) return {};
  return device.cuda ? cuda::channel_merge(problem, launch_of(exec, device)) : cpu::channel_merge(problem);
}

Status reduce(const ChannelReduce& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_channel_variant(exec));
  if (problem.geometry.channels == 0) return {};
  return device.cuda ? cuda::channel_reduce(problem, launch_of(exec, device)) : cpu::channel_reduce(problem);
}

Status reduce_workspace(const ChannelReduce& problem, Device device, const normact_exec& exec, size_t* bytes) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_no_elements(problem.geometry) || !device.cuda) return {};
  return cuda::channel_reduce_workspace(problem, launch_of(exec, device), bytes);
}

Status input_gradient(const ChannelInputGradient& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_no_elements(problem.geometry)) return {};
  return device.cuda ? cuda::channel_input_gradient(problem, launch_of(exec, device))
                     : cpu::channel_input_gradient(problem);
}

}  // namespace
}  // namespace normact::api

using namespace normact;
using namespace normact::api;

normact_status normact_batch_norm_forward(const normact_batch_norm_desc* desc,
                                          const normact_batch_norm_forward_args* args, const normact_exec* exec) {
  return run_call<ChannelForward>(__func__, read_batch_norm_forward, desc, args, exec, channel_forward);
}

normact_status normact_batch_norm_forward_workspace(const normact_batch_norm_desc* desc,
                                                    const normact_batch_norm_forward_args* args,
                                                    const normact_exec* exec, size_t* bytes) {
  return query_call<ChannelForward>(__func__, read_batch_norm_forward, desc, args, exec, bytes,
                                    channel_forward_workspace);
}

normact_status normact_batch_norm_backward(const normact_batch_norm_desc* desc,
                                           const normact_batch_norm_backward_args* args, const normact_exec* exec) {
  return run_call<ChannelBackward>(__func__, read_batch_norm_backward, desc, args, exec, channel_backward);
}

normact_status normact_batch_norm_backward_workspace(const normact_batch_norm_desc* desc,
                                                     const normact_batch_norm_backward_args* args,
                                                     const normact_exec* exec, size_t* bytes) {
  return query_call<ChannelBackward>(__func__, read_batch_norm_backward, desc, args, exec, bytes,
                                     channel_backward_workspace);
}

normact_status normact_batch_norm_statistics(const normact_batch_norm_desc* desc,
                                             const normact_batch_norm_statistics_args* args, const normact_exec* exec) {
  return run_call<ChannelMoments>(__func__, read_batch_norm_statistics, desc, args, exec, statistics);
}

normact_status normact_batch_norm_statistics_workspace(const normact_batch_norm_desc* desc,
                                                       const normact_batch_norm_statistics_args* args,
                                                       const normact_exec* exec, size_t* bytes) {
  return query_call<ChannelMoments>(__func__, read_batch_norm_statistics, desc, args, exec, bytes,
                                    statistics_workspace);
}

normact_status normact_batch_norm_merge(const normact_batch_norm_desc* desc, const normact_batch_norm_merge_args* args,
                                        const normact_exec* exec) {
  return run_call<ChannelMerge>(__func__, read_batch_norm_merge, desc, args, exec, normact::api::merge);
}

normact_status normact_batch_norm_apply(const normact_batch_norm_desc* desc, const normact_batch_norm_apply_args* args,
                                        const normact_exec* exec) {
  return run_call<ChannelForward>(__func__, read_batch_norm_apply, desc, args, exec, channel_forward);
}

normact_status normact_batch_norm_reduce(const normact_batch_norm_desc* desc,
                                         const normact_batch_norm_reduce_args* args, const normact_exec* exec) {
  return run_call<ChannelReduce>(__func__, read_batch_norm_reduce, desc, args, exec, reduce);
}

normact_status normact_batch_norm_reduce_workspace(const normact_batch_norm_desc* desc,
                                                   const normact_batch_norm_reduce_args* args, const normact_exec* exec,
                                                   size_t* bytes) {
  return query_call<ChannelReduce>(__func__, read_batch_norm_reduce, desc, args, exec, bytes, reduce_workspace);
}

normact_status normact_batch_norm_input_gradient(const normact_batch_norm_desc* desc,
                                                 const normact_batch_norm_input_gradient_args* args,
                                                 const normact_exec* exec) {
  return run_call<ChannelInputGradient>(__func__, read_batch_norm_input_gradient, desc, args, exec,
                                        normact::api::input_gradient);
}
