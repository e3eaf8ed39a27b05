// SPDX-License-Identifier: Apache-2.0
// From the public structs of the row norms to validated problems.
#pragma once

#include "core/array.h"
#include "core/problem.h"
#include "core/status.h"

namespace normact {

/// The problem may be empty (rows or cols 0). For a query, data pointers are neither looked at nor meaningful in the
/// result, and overlaps are not checked.
Status read_norm_forward(const normact_norm_desc* desc, const normact_norm_forward_args* args, Purpose purpose,
                         RowForward* problem, Device* device);
Status read_norm_backward(const normact_norm_desc* desc, const normact_norm_backward_args* args, Purpose purpose,
                          RowBackward* problem, Device* device);

}  // namespace normact
