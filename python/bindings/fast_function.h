// SPDX-License-Identifier: Apache-2.0
// Functions of the interpreter's own kind, which take their arguments as they come. nanobind's cost some 500
// instructions a call from nine arguments on, and a tuple where there may be any number.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "bindings/error.h"
#include "bindings/python_api.h"

namespace normact::python {

/// Of `self`, what the function was made with, and its arguments. It throws nothing.
using FastFunction = PyObject* (*)(PyObject * self, PyObject* const* args, Py_ssize_t count);

/// The result of run() on so many arguments, or null and as a pending exception what it threw.
template <class Run>
PyObject* returning(const char* name, Py_ssize_t given, Py_ssize_t expected, Run run) noexcept {
  try {
    if (given != expected) raise(PyExc_TypeError, name, ": ", given, " arguments; expected ", expected);
    return run().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const ThreadEnd&) {
    wait_for_the_end();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_Format(PyExc_RuntimeError, "%s: an unknown exception", name);
  }
  return nullptr;
}

/// `name` is the same in all calls for this function, and lives for good.
template <FastFunction kFunction>
nb::callable fast_function(const char* name, nb::handle self) {
  static constinit PyMethodDef method{};
  method = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kFunction)), METH_FASTCALL, nullptr};
  return nb::borrow<nb::callable>(checked(PyCFunction_New(&method, self.ptr())));
}

}  // namespace normact::python
