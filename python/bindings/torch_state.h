// SPDX-License-Identifier: Apache-2.0
// What is asked of PyTorch at every call, without the interpreter in between.
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

namespace nb = nanobind;

/// Whether operations are being recorded for a backward.
bool torch_records_gradients();

bool torch_requires_grad(PyObject* tensor);

/// Whether it is a view that negates lazily.
bool torch_is_negated(PyObject* tensor);

void bind_torch_state(nb::module_& module);

}  // namespace normact::python
