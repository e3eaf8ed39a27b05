// SPDX-License-Identifier: Apache-2.0
// One launcher an element type, or 16-bit type beside fp32 (mixed), and direction, each in a source file of its own so
// that they compile side by side.
#pragma once

#include "core/plan.h"
#include "cuda/backend.h"

namespace normact::cuda {

Status launch_row_forward_f64(const RowForward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_forward_f32(const RowForward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_forward_f16(const RowForward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_forward_bf16(const RowForward& problem, const RowPlan& plan, const Launch& launch);

Status launch_row_forward_mixed_f16(const RowForward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_forward_mixed_bf16(const RowForward& problem, const RowPlan& plan, const Launch& launch);

Status launch_row_backward_f64(const RowBackward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_backward_f32(const RowBackward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_backward_f16(const RowBackward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_backward_bf16(const RowBackward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_backward_mixed_f16(const RowBackward& problem, const RowPlan& plan, const Launch& launch);
Status launch_row_backward_mixed_bf16(const RowBackward& problem, const RowPlan& plan, const Launch& launch);

}  // namespace normact::cuda
