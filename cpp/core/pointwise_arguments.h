// SPDX-License-Identifier: Apache-2.0
// Turns the tensors of a pointwise call into views: all checks that involve more than one tensor, the halves of packed
// tensors, the order and merging of dimensions. A reader declares its arguments in a table.
#pragma once

#include <cstdint>
#include <span>

#include "core/pointwise.h"
#include "core/tensor_argument.h"

namespace normact {

/// One row of a reader's table.
struct PointwiseArgument : TensorArgument {
  View* view;    // filled; data stays null when absent. Null: the tensor is checked, and then plays no part
  View* second;  // of a packed tensor the ups, where view has the gates; else null
};

/// Fills the problem's geometry and dtype and all views, and tells the device. The first argument that is present sets
/// the shape, device, dtype and order of dimensions; its name is in the messages. Parameters have the shape (size along
/// desc->axis,). `layout` is that of the arguments with a second view; the first is one of these unless it is SEPARATE.
/// The problem may turn out empty (size 0).
Status read_pointwise_arguments(std::span<const PointwiseArgument> arguments, normact_gate_layout layout, int32_t axis,
                                Purpose purpose, PointwiseProblem* problem, Device* device);

}  // namespace normact
