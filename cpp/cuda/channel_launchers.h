// SPDX-License-Identifier: Apache-2.0
// One launcher per element type, each in its own source file, so that they compile side by side.
#pragma once

#include "core/plan_channel.h"
#include "cuda/backend.h"

namespace normact::cuda {

#define NORMACT_CHANNEL_LAUNCHERS(dtype)                                                                               \
  Status launch_channel_forward_##dtype(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch); \
  Status launch_channel_moments_##dtype(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch); \
  Status launch_channel_backward_##dtype(const ChannelInputGradient& problem, ChannelPasses passes,                    \
                                         const ChannelPlan& plan, const Launch& launch);
NORMACT_CHANNEL_LAUNCHERS(f64)
NORMACT_CHANNEL_LAUNCHERS(f32)
NORMACT_CHANNEL_LAUNCHERS(f16)
NORMACT_CHANNEL_LAUNCHERS(bf16)
#undef NORMACT_CHANNEL_LAUNCHERS

/// For fp32 and fp64.
Status launch_channel_merge_f32(const ChannelMerge& problem, const Launch& launch);
Status launch_channel_merge_f64(const ChannelMerge& problem, const Launch& launch);

}  // namespace normact::cuda
