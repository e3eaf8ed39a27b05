// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_row_forward.cuh"
#include "cuda/row_launchers.h"

namespace normact::cuda {

Status launch_row_forward_mixed_f16(const RowForward& problem, const RowPlan& plan, const Launch& launch) {
  return launch_row_forward_mixed<__half>(problem, plan, launch);
}

}  // namespace normact::cuda
