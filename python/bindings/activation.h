// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

/// Adds activation_forward, activation_backward, gated_forward, gated_backward and the lists that they take kinds from.
void bind_activation(nanobind::module_& module);

}  // namespace normact::python
