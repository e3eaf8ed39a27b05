// SPDX-License-Identifier: Apache-2.0
// Turns the tensors of a row norm's call into operands: all checks that involve more than one tensor, and the merging
// of dimensions. A reader declares its arguments in a table; everything else is common.
#pragma once

#include <cstdint>
#include <span>

#include "core/array.h"
#include "core/problem.h"

namespace normact {

/// Sets of small numbers: axes, arguments.
constexpr uint64_t bit(uint64_t member) { return uint64_t{1} << member; }
constexpr bool contains(uint64_t set, uint64_t member) { return (set & bit(member)) != 0; }

/// Decides shape and dtype.
enum class Role : uint8_t {
  element,    // x's shape and dtype
  parameter,  // x's shape over the normalised axes; x's dtype or the accumulator's
  statistic,  // x's shape without the normalised axes; the accumulator's dtype
};

/// One row of a reader's table.
struct RowArgument {
  const char* name;
  const normact_tensor* tensor;  // null: absent
  Role role;
  bool output;
  uint64_t may_be;   // for outputs: the set of arguments that it may be the very same tensor as
  Operand* operand;  // filled; data stays null when absent
};

/// The normalised axes of x as a set, from the caller's list: each in range, none twice, together trailing.
Status read_axes(const Array& x, int32_t num_axes, const int64_t* axes, uint64_t* set);

/// Fills the problem's geometry, dtype, contiguous and all operands, and tells the device. The first argument is x and
/// is present. The problem may turn out empty (rows or cols 0).
Status read_row_arguments(std::span<const RowArgument> arguments, int32_t num_axes, const int64_t* axes,
                          Purpose purpose, RowProblem* problem, Device* device);

}  // namespace normact
