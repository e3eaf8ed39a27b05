// SPDX-License-Identifier: Apache-2.0
// Python exceptions from C++ code and from the library's statuses.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <sstream>
#include <string>

#include "normact/normact.h"

namespace normact::python {

// CPython before 3.14 ends a daemon thread that comes back to an interpreter which has gone by unwinding it: which from
// a destructor, or into what catches everything, would end the process. Such a thread waits for that instead.
#ifdef __GLIBCXX__
using ThreadEnd = abi::__forced_unwind;
#else
struct ThreadEnd {};
#endif
[[noreturn]] inline void wait_for_the_end() {
  for (;;) pause();
}

/// Raises the pending exception if it is none that a message may take the place of, such as KeyboardInterrupt.
inline void let_exits_pass() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) nanobind::raise_python_error();
}

/// Raises `type` with a message; a pending exception becomes the cause.
[[noreturn]] void raise_message(PyObject* type, const std::string& message);

/// The same with the parts as its message.
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void raise(PyObject* type, const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  raise_message(type, stream.str());
}

/// The library's last sentence in the words of Python; `function` is the name of the Python function.
std::string last_sentence(const char* function);

/// The exception for a status that is not OK: the library's sentence in the words of Python.
[[noreturn]] void raise_status(normact_status status, const char* function);

}  // namespace normact::python
