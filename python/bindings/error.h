// SPDX-License-Identifier: Apache-2.0
// Python exceptions from C++ code and from the library's statuses.
#pragma once

#include <nanobind/nanobind.h>

#include <sstream>
#include <string>

#include "normact/normact.h"

namespace normact::python {

/// Raises `type` with the parts as its message. If an exception is pending, it becomes the cause.
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void raise(PyObject* type, const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  if (PyErr_Occurred()) {
    nanobind::chain_error(type, "%s", stream.str().c_str());
  } else {
    PyErr_SetString(type, stream.str().c_str());
  }
  nanobind::raise_python_error();
}

/// The library's last sentence in the words of Python; `function` is the name of the Python function.
std::string last_sentence(const char* function);

/// The exception for a status that is not OK: the library's sentence in the words of Python.
[[noreturn]] void raise_status(normact_status status, const char* function);

}  // namespace normact::python
