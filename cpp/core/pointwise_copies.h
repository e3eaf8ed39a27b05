// SPDX-License-Identifier: Apache-2.0
// Pointwise problems whose outputs are arrays in the order of the index space, while inputs lie so that only single
// elements could be accessed: a crop, every second column, a gradient that is expanded or in another memory format.
// These inputs are copied to such arrays first: a forward's one, or the first of a gated one's, into y, where the
// activation then works in place, all others into the workspace.
#pragma once

#include "core/gathered_inputs.h"
#include "core/plan_pointwise.h"

namespace normact {

/// Whether some input is no array: else there is nothing to copy.
inline bool may_gather(const PointwiseForward& p) {
  const auto apart = [&p](const View& view) { return view.data != nullptr && !is_dense(view, p.geometry); };
  return apart(p.x) || apart(p.up);
}
inline bool may_gather(const PointwiseBackward& p) {
  const auto apart = [&p](const View& view) { return view.data != nullptr && !is_dense(view, p.geometry); };
  return apart(p.dy) || apart(p.x) || apart(p.up) || apart(p.y);
}

/// Whether and what is copied depends on shapes and strides alone.
GatheredInputs gather_inputs(PointwiseForward* problem, void* workspace);
GatheredInputs gather_inputs(PointwiseBackward* problem, const DeviceInfo& device, int sm_margin, void* workspace);

}  // namespace normact
