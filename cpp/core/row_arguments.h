// SPDX-License-Identifier: Apache-2.0
// Turns the tensors of a row norm's call into operands: all checks that involve more than one tensor, and the merging
// of dimensions. A reader declares its arguments in a table; everything else is common.
#pragma once

#include <cstdint>
#include <span>

#include "core/problem.h"
#include "core/tensor_argument.h"

namespace normact {

/// One row of a reader's table.
struct RowArgument : TensorArgument {
  Operand* operand;    // filled; data stays null when absent. Null, last in the table: checked, but not read
  uint64_t like_of{};  // the place of the argument, which is present, whose dtype decides this one's; 0 is x
};

/// The normalised axes of x as a set, from the caller's list: in any order, each in range, none twice.
Status read_axes(const Present& x, int32_t num_axes, const int64_t* axes, uint64_t* set);

/// Fills the problem's geometry, contiguous, adjacent and all operands, and tells the device. The first argument is x
/// and is present. The problem may turn out empty (rows or cols 0).
Status read_row_arguments(std::span<const RowArgument> arguments, int32_t num_axes, const int64_t* axes,
                          Purpose purpose, RowProblem* problem, Device* device);

}  // namespace normact
