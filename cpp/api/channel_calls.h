// SPDX-License-Identifier: Apache-2.0
// What the functions of batch norm and of group norm have in common after reading: problems without elements, and the
// way to the back end.
#pragma once

#include "api/call.h"
#include "core/channel.h"
#include "core/workspace.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

namespace normact::api {

inline Status check_channel_variant(const normact_exec& exec) {
  return check_no_variant(exec, ", which names a row kernel, but this is no row norm");
}

inline bool has_no_sets(const ChannelProblem& problem) {
  const ChannelGeometry& geometry = problem.geometry;
  return problem.set == ChannelSet::group ? geometry.samples == 0 : geometry.channels == 0;
}

/// Without elements the gradients of the parameters are still to be set to zero, if these have any.
inline bool has_nothing_to_write(const ChannelBackward& problem) {
  const bool sums = problem.dweight.data != nullptr || problem.dbias.data != nullptr;
  return problem.geometry.channels == 0 || (has_no_elements(problem.geometry) && !sums);
}

/// The statistics of sets without elements: of running ones theirs, else mean 0 and rstd 1 / sqrt(eps).
inline Status finish_empty(const ChannelForward& problem, Device device) {
  const bool statistics = problem.mean.data != nullptr || problem.rstd.data != nullptr;
  if (problem.source == StatisticsSource::given || !statistics || has_no_sets(problem)) return {};
  if (!device.cuda) return cpu::channel_forward(problem);
  return not_supported(problem.rstd.data != nullptr ? "rstd" : "mean",
                       " of an x without elements is not computed on CUDA; expected NULL or at least one element");
}

inline Status channel_forward(const ChannelForward& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_no_elements(problem.geometry)) return finish_empty(problem, device);
  return device.cuda ? cuda::channel_forward(problem, launch_of(exec, device)) : cpu::channel_forward(problem);
}

/// The CPU needs none, here and below.
inline Status channel_forward_workspace(const ChannelForward& problem, Device device, const normact_exec& exec,
                                        size_t* bytes) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_no_elements(problem.geometry) || !device.cuda) return {};
  return cuda::channel_forward_workspace(problem, launch_of(exec, device), bytes);
}

inline Status channel_backward(const ChannelBackward& problem, Device device, const normact_exec& exec) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_nothing_to_write(problem)) return {};
  return device.cuda ? cuda::channel_backward(problem, launch_of(exec, device)) : cpu::channel_backward(problem);
}

inline Status channel_backward_workspace(const ChannelBackward& problem, Device device, const normact_exec& exec,
                                         size_t* bytes) {
  NORMACT_TRY(check_channel_variant(exec));
  if (has_nothing_to_write(problem) || !device.cuda) return {};
  return cuda::channel_backward_workspace(problem, launch_of(exec, device), bytes);
}

}  // namespace normact::api
