// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_channel.cuh"

namespace normact::cuda {

Status launch_channel_forward_f64(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_forward<double>(problem, plan, launch);
}

Status launch_channel_moments_f64(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch) {
  return launch_channel_moments<double>(problem, plan, launch);
}

Status launch_channel_backward_f64(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                                   const Launch& launch) {
  return launch_channel_backward<double>(problem, passes, plan, launch);
}

Status launch_channel_merge_f64(const ChannelMerge& problem, const Launch& launch) {
  return launch_channel_merge<double>(problem, launch);
}

}  // namespace normact::cuda
