// SPDX-License-Identifier: Apache-2.0
// What is known about a Python array type, found out once per type.
#pragma once

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace normact::python {

namespace nb = nanobind;

enum class Framework : uint8_t { numpy, torch, jax, tensorflow, cupy, other };

/// "numpy", "torch", ...
const char* name_of(Framework framework);

struct ArrayType {
  PyObject* type = nullptr;
  Framework framework = Framework::other;
  /// Whether an object of this type is its memory and nothing more. A subclass of a framework's array may carry a mask,
  /// a unit, a placement or no memory at all, and a tracer stands for a value that does not exist yet.
  bool plain = true;
  bool has_dlpack = false;
  /// Its __dlpack__ does not know max_version (found out by trying).
  bool old_protocol = false;
  /// DLPack's C exchange table; null if the type has none that we understand.
  const DLPackExchangeAPI* exchange = nullptr;
};

/// The record of the object's type. The GIL must be held; the reference is good until the next call in this thread.
ArrayType& array_type_of(PyObject* object);

/// Raises TypeError unless an object of this type can be an array argument.
void check_type(PyObject* object, const ArrayType& type, const char* name, const char* function);

/// "torch.nn.parameter.Parameter": the object's type, for messages.
std::string type_name(PyObject* object);

/// An attribute of a module, for good.
PyObject* attribute_of(const char* module, const char* name);

}  // namespace normact::python
