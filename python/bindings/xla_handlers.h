// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

/// Adds xla_handlers, which gives the functions of the library as handlers of XLA's.
void bind_xla_handlers(nanobind::module_& module);

}  // namespace normact::python
