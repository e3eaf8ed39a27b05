// SPDX-License-Identifier: Apache-2.0
// From the public structs of group and instance norm to validated problems.
#pragma once

#include "core/array.h"
#include "core/channel.h"
#include "core/status.h"

namespace normact {

/// As in core/read_batch_norm.h.
Status read_group_norm_forward(const normact_group_norm_desc* desc, const normact_group_norm_forward_args* args,
                               Purpose purpose, ChannelForward* problem, Device* device);
Status read_group_norm_backward(const normact_group_norm_desc* desc, const normact_group_norm_backward_args* args,
                                Purpose purpose, ChannelBackward* problem, Device* device);

}  // namespace normact
