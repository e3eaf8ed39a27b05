// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/layout_copy.h"
#include "cuda/backend.h"

namespace normact::cuda {

/// Moves a tensor into its array or back, asynchronously on the launch's stream.
Status launch_layout_copy(const LayoutCopy& copy, const Launch& launch);

}  // namespace normact::cuda
