// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

/// Adds norm_forward, norm_backward and what belongs to them.
void bind_norm(nanobind::module_& module);

}  // namespace normact::python
