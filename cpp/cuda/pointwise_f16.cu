// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_pointwise.cuh"
#include "cuda/pointwise_launchers.h"

namespace normact::cuda {

Status launch_pointwise_forward_f16(const PointwiseForward& problem, const Launch& launch) {
  return launch_pointwise_forward<__half>(problem, launch);
}

Status launch_pointwise_backward_f16(const PointwiseBackward& problem, const BiasPlan* bias, const Launch& launch) {
  return launch_pointwise_backward<__half>(problem, bias, launch);
}

}  // namespace normact::cuda
