// SPDX-License-Identifier: Apache-2.0
// What pointwise_copies.h and row_copies.h have in common.
#pragma once

#include <cstddef>

#include "core/layout_copy.h"
#include "core/plan_common.h"
#include "core/workspace.h"

namespace normact {

constexpr int kMaxGathered = 4;

/// What is to be copied before the problem, which has changed accordingly, is carried out.
struct GatheredInputs {
  LayoutCopy copies[kMaxGathered];
  int count = 0;
  size_t workspace_bytes = 0;  // at its beginning

  /// Place for a tensor of so many bytes in the workspace, behind the others.
  void* next_array(void* workspace, int64_t bytes) {
    void* array = behind(workspace, workspace_bytes);
    workspace_bytes += static_cast<size_t>(round_up(bytes, kWorkspaceAlignment));
    return array;
  }
};

/// Those of some tensors that are there.
template <class Tensor, int kMost>
struct PresentTensors {
  Tensor* at[kMost];
  int count = 0;

  void add(Tensor* tensor) {
    if (tensor->data != nullptr) at[count++] = tensor;
  }
  Tensor* const* begin() const { return at; }
  Tensor* const* end() const { return at + count; }
};

}  // namespace normact
