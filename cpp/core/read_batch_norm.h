// SPDX-License-Identifier: Apache-2.0
// From the public structs of batch norm to validated problems.
#pragma once

#include "core/array.h"
#include "core/channel.h"
#include "core/status.h"

namespace normact {

/// The problem may be empty (no samples, channels or places). For a query, data pointers are neither looked at nor
/// meaningful in the result, and overlaps are not checked.
Status read_batch_norm_forward(const normact_batch_norm_desc* desc, const normact_batch_norm_forward_args* args,
                               Purpose purpose, ChannelForward* problem, Device* device);
Status read_batch_norm_backward(const normact_batch_norm_desc* desc, const normact_batch_norm_backward_args* args,
                                Purpose purpose, ChannelBackward* problem, Device* device);

/// Batch norm in parts.
Status read_batch_norm_statistics(const normact_batch_norm_desc* desc, const normact_batch_norm_statistics_args* args,
                                  Purpose purpose, ChannelMoments* problem, Device* device);
Status read_batch_norm_merge(const normact_batch_norm_desc* desc, const normact_batch_norm_merge_args* args,
                             Purpose purpose, ChannelMerge* problem, Device* device);
Status read_batch_norm_apply(const normact_batch_norm_desc* desc, const normact_batch_norm_apply_args* args,
                             Purpose purpose, ChannelForward* problem, Device* device);
Status read_batch_norm_reduce(const normact_batch_norm_desc* desc, const normact_batch_norm_reduce_args* args,
                              Purpose purpose, ChannelReduce* problem, Device* device);
Status read_batch_norm_input_gradient(const normact_batch_norm_desc* desc,
                                      const normact_batch_norm_input_gradient_args* args, Purpose purpose,
                                      ChannelInputGradient* problem, Device* device);

}  // namespace normact
