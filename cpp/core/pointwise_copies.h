// SPDX-License-Identifier: Apache-2.0
// Pointwise problems whose outputs are arrays in the order of the index space, while inputs lie so that only single
// elements could be accessed: a crop, every second column, a gradient that is expanded or in another memory format.
// These inputs are copied to such arrays first: a forward's one, or the first of a gated one's, into y, where the
// activation then works in place, all others into the workspace.
#pragma once

#include <cstddef>

#include "core/layout_copy.h"
#include "core/plan_pointwise.h"

namespace normact {

constexpr int kMaxGathered = 4;

/// What is to be copied before the problem, which has changed accordingly, is carried out.
struct GatheredInputs {
  LayoutCopy copies[kMaxGathered];
  int count = 0;
  size_t workspace_bytes = 0;  // at its beginning
};

/// Whether and what is copied depends on shapes and strides alone.
GatheredInputs gather_inputs(PointwiseForward* problem, void* workspace);
GatheredInputs gather_inputs(PointwiseBackward* problem, const DeviceInfo& device, int sm_margin, void* workspace);

}  // namespace normact
