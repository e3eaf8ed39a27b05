// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

/// Adds group_norm_forward and group_norm_backward, which serve instance norm too.
void bind_group_norm(nanobind::module_& module);

}  // namespace normact::python
