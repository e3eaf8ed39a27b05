// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_pointwise.cuh"
#include "cuda/pointwise_launchers.h"

namespace normact::cuda {

Status launch_pointwise_forward_f64(const PointwiseForward& problem, const Launch& launch) {
  return launch_pointwise_forward<double>(problem, launch);
}

Status launch_pointwise_backward_f64(const PointwiseBackward& problem, const BiasPlan* bias, const Launch& launch) {
  return launch_pointwise_backward<double>(problem, bias, launch);
}

}  // namespace normact::cuda
