// SPDX-License-Identifier: Apache-2.0
// Results of the interpreter's C API, of which null is an exception.
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

namespace nb = nanobind;

inline nb::object checked(PyObject* made) {
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

inline nb::handle item(nb::handle tuple, Py_ssize_t place) {
  PyObject* const found = PyTuple_GetItem(tuple.ptr(), place);
  if (found == nullptr) nb::raise_python_error();
  return found;
}

}  // namespace normact::python
