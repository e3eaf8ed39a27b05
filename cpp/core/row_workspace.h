// SPDX-License-Identifier: Apache-2.0
// What row norms may need in their workspace on a GPU: the most of any alignment of the tensors, as a query does not
// look at pointers.
#pragma once

#include <cstddef>

#include "core/plan.h"

namespace normact {

/// Contiguous rows are known without a plan, which would cost the call a third of its host time.
Status most_workspace(const RowForward& problem, const DeviceInfo& device, normact_row_variant variant, int sm_margin,
                      size_t* bytes);
Status most_workspace(const RowBackward& problem, const DeviceInfo& device, normact_row_variant variant, int sm_margin,
                      size_t* bytes);

}  // namespace normact
