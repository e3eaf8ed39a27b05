// SPDX-License-Identifier: Apache-2.0
// Row norms over axes that are not the last, of which some inputs lie in single elements while the output is one array:
// every second column, a crop, a gradient in another memory format. These inputs are copied first so that they lie as
// the output: a forward's x into y, where the norm then works in place, a backward's inputs into the workspace.
#pragma once

#include <cstddef>

#include "core/layout_copy.h"
#include "core/plan.h"

namespace normact {

constexpr int kMaxGatheredRows = 3;

/// What is to be copied before the problem, which has changed accordingly, is carried out.
struct GatheredRows {
  LayoutCopy copies[kMaxGatheredRows];
  int count = 0;
  size_t workspace_bytes = 0;  // at its beginning
};

/// Whether and what is copied depends on shapes and strides alone.
GatheredRows gather_rows(RowForward* problem, const DeviceInfo& device);
GatheredRows gather_rows(RowBackward* problem, const DeviceInfo& device, void* workspace);

}  // namespace normact
