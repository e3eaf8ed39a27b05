// SPDX-License-Identifier: Apache-2.0
// From the public structs of the gated activations to validated problems.
#pragma once

#include "core/array.h"
#include "core/pointwise.h"
#include "core/status.h"

namespace normact {

/// As in core/read_activation.h.
Status read_gated_forward(const normact_gated_desc* desc, const normact_gated_forward_args* args, Purpose purpose,
                          PointwiseForward* problem, Device* device);
Status read_gated_backward(const normact_gated_desc* desc, const normact_gated_backward_args* args, Purpose purpose,
                           PointwiseBackward* problem, Device* device);

}  // namespace normact
