// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

/// Adds empty(): memory to write a result into before an immutable framework takes it over.
void bind_buffer(nanobind::module_& module);

}  // namespace normact::python
