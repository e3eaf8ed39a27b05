// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_channel.cuh"

namespace normact::cuda {

Status launch_channel_forward_f16(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_forward<__half>(problem, plan, launch);
}

Status launch_channel_moments_f16(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_moments<__half>(problem, plan, launch);
}

Status launch_channel_backward_f16(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                                   const Launch& launch) {
  return launch_channel_backward<__half>(problem, passes, plan, launch);
}

}  // namespace normact::cuda
