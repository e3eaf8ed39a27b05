// SPDX-License-Identifier: Apache-2.0
// Layer and RMS norm of PyTorch's tensors, direct and as an autograd function, without the interpreter in between.
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

void bind_torch_norm(nanobind::module_& module);

}  // namespace normact::python
