// SPDX-License-Identifier: Apache-2.0
// Activations and gated activations: read, hand over to the back end.
#include "api/call.h"
#include "core/read_activation.h"
#include "core/read_gated.h"
#include "core/workspace.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

namespace normact::api {
namespace {

Status check_variant(const normact_exec& exec) {
  return check_no_variant(exec, ", which names a row kernel, but activations have none");
}

// Without elements the gradients of the biases are still to be set to zero, if these have any.
bool is_empty(const PointwiseBackward& problem) {
  const PointwiseGeometry& geometry = problem.geometry;
  const bool sums = problem.dbias.data != nullptr || problem.dup_bias.data != nullptr;
  return geometry.size == 0 && (!sums || geometry.shape[geometry.bias_dim] == 0);
}

Status forward(const PointwiseForward& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_variant(exec));
  if (problem.geometry.size == 0) return {};
  return device.cuda ? cuda::pointwise_forward(problem, launch_of(exec, device)) : cpu::pointwise_forward(problem);
}

Status forward_workspace(const PointwiseForward& problem, Device device, const normact_exec& exec, size_t* bytes) {
  NORMACT_TRY(check_variant(exec));
  if (!device.cuda || problem.geometry.size == 0) return {};
  return cuda::pointwise_forward_workspace(problem, launch_of(exec, device), bytes);
}

Status backward(const PointwiseBackward& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_variant(exec));
  if (is_empty(problem)) return {};
  if (device.cuda) return cuda::pointwise_backward(problem, launch_of(exec, device));
  NORMACT_TRY(check_workspace(workspace_of(exec), cpu::pointwise_backward_workspace(problem)));
  return cpu::pointwise_backward(problem, exec.workspace);
}

Status backward_workspace(const PointwiseBackward& problem, Device device, const normact_exec& exec, size_t* bytes) {
  NORMACT_TRY(check_variant(exec));
  if (is_empty(problem)) return {};
  if (device.cuda) return cuda::pointwise_backward_workspace(problem, launch_of(exec, device), bytes);
  *bytes = cpu::pointwise_backward_workspace(problem);
  return {};
}

}  // namespace
}  // namespace normact::api

using namespace normact;
using namespace normact::api;

normact_status normact_activation_forward(const normact_activation_desc* desc,
                                          const normact_activation_forward_args* args, const normact_exec* exec) {
  return run_call<PointwiseForward>(__func__, read_activation_forward, desc, args, exec, forward);
}

normact_status normact_activation_forward_workspace(const normact_activation_desc* desc,
                                                    const normact_activation_forward_args* args,
                                                    const normact_exec* exec, size_t* bytes) {
  return query_call<PointwiseForward>(__func__, read_activation_forward, desc, args, exec, bytes, forward_workspace);
}

normact_status normact_activation_backward(const normact_activation_desc* desc,
                                           const normact_activation_backward_args* args, const normact_exec* exec) {
  return run_call<PointwiseBackward>(__func__, read_activation_backward, desc, args, exec, backward);
}

normact_status normact_activation_backward_workspace(const normact_activation_desc* desc,
                                                     const normact_activation_backward_args* args,
                                                     const normact_exec* exec, size_t* bytes) {
  return query_call<PointwiseBackward>(__func__, read_activation_backward, desc, args, exec, bytes, backward_workspace);
}

normact_status normact_gated_forward(const normact_gated_desc* desc, const normact_gated_forward_args* args,
                                     const normact_exec* exec) {
  return run_call<PointwiseForward>(__func__, read_gated_forward, desc, args, exec, forward);
}

normact_status normact_gated_forward_workspace(const normact_gated_desc* desc, const normact_gated_forward_args* args,
                                               const normact_exec* exec, size_t* bytes) {
  return query_call<PointwiseForward>(__func__, read_gated_forward, desc, args, exec, bytes, forward_workspace);
}

normact_status normact_gated_backward(const normact_gated_desc* desc, const normact_gated_backward_args* args,
                                      const normact_exec* exec) {
  return run_call<PointwiseBackward>(__func__, read_gated_backward, desc, args, exec, backward);
}

normact_status normact_gated_backward_workspace(const normact_gated_desc* desc, const normact_gated_backward_args* args,
                                                const normact_exec* exec, size_t* bytes) {
  return query_call<PointwiseBackward>(__func__, read_gated_backward, desc, args, exec, bytes, backward_workspace);
}
