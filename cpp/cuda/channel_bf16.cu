// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_channel.cuh"

namespace normact::cuda {

Status launch_channel_forward_bf16(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_forward<__nv_bfloat16>(problem, plan, launch);
}

Status launch_channel_moments_bf16(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_moments<__nv_bfloat16>(problem, plan, launch);
}

Status launch_channel_backward_bf16(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                                    const Launch& launch) {
  return launch_channel_backward<__nv_bfloat16>(problem, passes, plan, launch);
}

}  // namespace normact::cuda
