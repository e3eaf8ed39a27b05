// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_channel.cuh"

namespace normact::cuda {

Status launch_channel_forward_f32(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_forward<float>(problem, plan, launch);
}

Status launch_channel_moments_f32(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_moments<float>(problem, plan, launch);
}

Status launch_channel_backward_f32(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                                   const Launch& launch) {
  return launch_channel_backward<float>(problem, passes, plan, launch);
}

Status launch_channel_merge_f32(const ChannelMerge& problem, const Launch& launch) {
  return launch_channel_merge<float>(problem, launch);
}

}  // namespace normact::cuda
