// SPDX-License-Identifier: Apache-2.0
// From the public structs of the activations to validated problems.
#pragma once

#include "core/array.h"
#include "core/pointwise.h"
#include "core/status.h"

namespace normact {

/// The problem may be empty (size 0). For a query, data pointers are neither looked at nor meaningful in the result,
/// and overlaps are not checked.
Status read_activation_forward(const normact_activation_desc* desc, const normact_activation_forward_args* args,
                               Purpose purpose, PointwiseForward* problem, Device* device);
Status read_activation_backward(const normact_activation_desc* desc, const normact_activation_backward_args* args,
                                Purpose purpose, PointwiseBackward* problem, Device* device);

/// The kind and its numbers, which all descs with an activation have; `field` is the kind's.
Status read_kind(int32_t kind, double alpha, double beta, double threshold, Activation* activation,
                 const char* field = "desc->kind");

/// A mask goes with relu alone. `field` is what the sentence calls the kind.
Status check_mask(const Activation& activation, const normact_tensor* mask, const char* field = "kind");

/// Whether the output tells the slope; `instead` is what else is expected.
Status check_slope_from_output(const Activation& activation, const char* field = "kind", const char* instead = "x");

}  // namespace normact
