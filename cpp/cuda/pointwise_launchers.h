// SPDX-License-Identifier: Apache-2.0
// One launcher an element type and direction, each type in a source file of its own so that they compile side by side.
#pragma once

#include "core/plan_pointwise.h"
#include "cuda/backend.h"

namespace normact::cuda {

Status launch_pointwise_forward_f64(const PointwiseForward& problem, const Launch& launch);
Status launch_pointwise_forward_f32(const PointwiseForward& problem, const Launch& launch);
Status launch_pointwise_forward_f16(const PointwiseForward& problem, const Launch& launch);
Status launch_pointwise_forward_bf16(const PointwiseForward& problem, const Launch& launch);

/// bias: the plan of the bias gradients; null: none are wanted.
Status launch_pointwise_backward_f64(const PointwiseBackward& problem, const BiasPlan* bias, const Launch& launch);
Status launch_pointwise_backward_f32(const PointwiseBackward& problem, const BiasPlan* bias, const Launch& launch);
Status launch_pointwise_backward_f16(const PointwiseBackward& problem, const BiasPlan* bias, const Launch& launch);
Status launch_pointwise_backward_bf16(const PointwiseBackward& problem, const BiasPlan* bias, const Launch& launch);

}  // namespace normact::cuda
