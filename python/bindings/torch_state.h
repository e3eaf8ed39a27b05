// SPDX-License-Identifier: Apache-2.0
// What is asked of PyTorch at every call, without the interpreter in between.
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

namespace nb = nanobind;

/// Whether operations are being recorded for a backward.
bool torch_records_gradients();

bool torch_requires_grad(PyObject* tensor);

/// Whether nothing watches or transforms the operations of PyTorch, so that memory may be worked on directly: no
/// torch.jit.trace, no dispatch mode, no transform of torch.func.
bool torch_is_plain();

/// Whether forward mode is active in the process, so that tensors may have tangents.
bool torch_in_forward_mode();

/// Whether torch.compile or torch.export is at work.
bool torch_is_compiling();

/// Tells autograd that the tensor has been written to.
void torch_increment_version(PyObject* tensor);

/// Whether it is a view that negates lazily.
bool torch_is_negated(PyObject* tensor);

void bind_torch_state(nb::module_& module);

}  // namespace normact::python
