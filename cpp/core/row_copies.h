// SPDX-License-Identifier: Apache-2.0
// Row norms over axes that are not the last, of which some inputs lie in single elements while the output is one array:
// every second column, a crop, a gradient in another memory format. These inputs are copied first so that they lie as
// the output: a forward's x into y, where the norm then works in place, a backward's inputs into the workspace.
#pragma once

#include "core/gathered_inputs.h"
#include "core/plan.h"

namespace normact {

/// The variants of row norms are chosen by name for the problem as it is given.
inline bool may_gather(const RowProblem& problem, normact_row_variant variant) {
  return !problem.contiguous && variant == NORMACT_ROW_AUTO;
}

/// Whether and what is copied depends on shapes and strides alone.
GatheredInputs gather_rows(RowForward* problem, const DeviceInfo& device);
GatheredInputs gather_rows(RowBackward* problem, const DeviceInfo& device, void* workspace);

}  // namespace normact
