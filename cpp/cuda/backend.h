// SPDX-License-Identifier: Apache-2.0
// The CUDA back end's entry points, callable without CUDA headers. A build without CUDA links stub.cpp, whose
// functions return NOT_SUPPORTED.
#pragma once

#include <cstddef>

#include "core/channel.h"
#include "core/pointwise.h"
#include "core/problem.h"
#include "core/status.h"
#include "core/workspace.h"

namespace normact::cuda {

/// Where and how to launch.
struct Launch {
  int device;
  void* stream;  // cudaStream_t
  Workspace workspace;
  normact_row_variant variant;
  int sm_margin;
};

Status row_norm_forward_workspace(const RowForward& problem, const Launch& launch, size_t* bytes);
Status row_norm_backward_workspace(const RowBackward& problem, const Launch& launch, size_t* bytes);

/// Asynchronous on the stream; neither allocates nor synchronises. A workspace that is too small is an error, and then
/// nothing is launched.
Status row_norm_forward(const RowForward& problem, const Launch& launch);
Status row_norm_backward(const RowBackward& problem, const Launch& launch);

/// The same for activations and gated activations.
Status pointwise_forward_workspace(const PointwiseForward& problem, const Launch& launch, size_t* bytes);
Status pointwise_backward_workspace(const PointwiseBackward& problem, const Launch& launch, size_t* bytes);
Status pointwise_forward(const PointwiseForward& problem, const Launch& launch);
Status pointwise_backward(const PointwiseBackward& problem, const Launch& launch);

/// Batch, group and instance norm. Problems without elements come here only where something is still to be written:
/// dweight and dbias of a backward, moments, sums. The others need no workspace.
Status channel_forward_workspace(const ChannelForward& problem, const Launch& launch, size_t* bytes);
Status channel_backward_workspace(const ChannelBackward& problem, const Launch& launch, size_t* bytes);
Status channel_moments_workspace(const ChannelMoments& problem, const Launch& launch, size_t* bytes);
Status channel_reduce_workspace(const ChannelReduce& problem, const Launch& launch, size_t* bytes);
Status channel_forward(const ChannelForward& problem, const Launch& launch);
Status channel_backward(const ChannelBackward& problem, const Launch& launch);
Status channel_moments(const ChannelMoments& problem, const Launch& launch);
Status channel_merge(const ChannelMerge& problem, const Launch& launch);
Status channel_reduce(const ChannelReduce& problem, const Launch& launch);
Status channel_input_gradient(const ChannelInputGradient& problem, const Launch& launch);

/// Toolkit version that the back end was built with, e.g. "13.0"; "" without CUDA.
const char* toolkit_version();
/// Architectures in the binary, e.g. "75;80;90"; "" without CUDA.
const char* architectures();

}  // namespace normact::cuda
