// SPDX-License-Identifier: Apache-2.0
// The CPU back end's entry points.
#pragma once

#include <cstddef>

#include "core/channel.h"
#include "core/pointwise.h"
#include "core/problem.h"
#include "core/status.h"

namespace normact::cpu {

/// Bytes of scratch (64-byte aligned use) that row_norm_backward wants; a function of the problem alone, never of the
/// thread count.
size_t row_norm_backward_workspace(const RowBackward& problem);

/// Done when it returns. The forward needs no workspace.
Status row_norm_forward(const RowForward& problem);
Status row_norm_backward(const RowBackward& problem, void* workspace);

/// The same for activations and gated activations.
size_t pointwise_backward_workspace(const PointwiseBackward& problem);
Status pointwise_forward(const PointwiseForward& problem);
Status pointwise_backward(const PointwiseBackward& problem, void* workspace);

/// Batch, group and instance norm; no workspace. Problems may be without elements: then mean and rstd of a forward,
/// dweight and dbias, moments and sums are still written, and no running statistics.
Status channel_forward(const ChannelForward& problem);
Status channel_backward(const ChannelBackward& problem);
Status channel_moments(const ChannelMoments& problem);
Status channel_merge(const ChannelMerge& problem);
Status channel_reduce(const ChannelReduce& problem);
Status channel_input_gradient(const ChannelInputGradient& problem);

/// "baseline", "avx2", "avx512" or "neon": chosen once, at the first use; NORMACT_CPU_ISA may lower it.
const char* isa_name();

void set_num_threads(int count);
int num_threads();

}  // namespace normact::cpu
