// SPDX-License-Identifier: Apache-2.0
// The CUDA back end of a build without CUDA.
#include "cuda/backend.h"

namespace normact::cuda {
namespace {

Status no_cuda() {
  return {NORMACT_NOT_SUPPORTED,
          "x is on a CUDA device; expected the CPU, as this build of normact has no CUDA back end"};
}

}  // namespace

Status row_norm_forward_workspace(const RowForward&, const Launch&, size_t*) { return no_cuda(); }
Status row_norm_backward_workspace(const RowBackward&, const Launch&, size_t*) { return no_cuda(); }
Status row_norm_forward(const RowForward&, const Launch&) { return no_cuda(); }
Status row_norm_backward(const RowBackward&, const Launch&) { return no_cuda(); }

Status pointwise_forward_workspace(const PointwiseForward&, const Launch&, size_t*) { return no_cuda(); }
Status pointwise_backward_workspace(const PointwiseBackward&, const Launch&, size_t*) { return no_cuda(); }
Status pointwise_forward(const PointwiseForward&, const Launch&) { return no_cuda(); }
Status pointwise_backward(const PointwiseBackward&, const Launch&) { return no_cuda(); }

Status channel_forward_workspace(const ChannelForward&, const Launch&, size_t*) { return no_cuda(); }
Status channel_backward_workspace(const ChannelBackward&, const Launch&, size_t*) { return no_cuda(); }
Status channel_moments_workspace(const ChannelMoments&, const Launch&, size_t*) { return no_cuda(); }
Status channel_reduce_workspace(const ChannelReduce&, const Launch&, size_t*) { return no_cuda(); }
Status channel_forward(const ChannelForward&, const Launch&) { return no_cuda(); }
Status channel_backward(const ChannelBackward&, const Launch&) { return no_cuda(); }
Status channel_moments(const ChannelMoments&, const Launch&) { return no_cuda(); }
Status channel_merge(const ChannelMerge&, const Launch&) { return no_cuda(); }
Status channel_reduce(const ChannelReduce&, const Launch&) { return no_cuda(); }
Status channel_input_gradient(const ChannelInputGradient&, const Launch&) { return no_cuda(); }

const char* toolkit_version() { return ""; }
const char* architectures() { return ""; }

}  // namespace normact::cuda
