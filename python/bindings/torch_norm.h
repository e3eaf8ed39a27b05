// SPDX-License-Identifier: Apache-2.0
// Layer and RMS norm as an autograd function of PyTorch, without the interpreter in between, which takes as long for it
// as all the rest of a call does.
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

void bind_torch_norm(nanobind::module_& module);

}  // namespace normact::python
