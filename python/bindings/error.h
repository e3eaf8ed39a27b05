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

/// The exception for a status that is not OK: the library's sentence, with the Python function's name for the C one's.
[[noreturn, gnu::cold, gnu::noinline]] inline void raise_status(normact_status status, const std::string& function) {
  const std::string sentence = normact_last_error();
  const size_t colon = sentence.find(": ");
  const std::string message = function + (colon == std::string::npos ? ": " + sentence : sentence.substr(colon));
  switch (status) {
    case NORMACT_INVALID_ARGUMENT: raise(PyExc_ValueError, message);
    case NORMACT_NOT_SUPPORTED: raise(PyExc_NotImplementedError, message);
    case NORMACT_OUT_OF_MEMORY: raise(PyExc_MemoryError, message);
    default: raise(PyExc_RuntimeError, message);
  }
}

}  // namespace normact::python
