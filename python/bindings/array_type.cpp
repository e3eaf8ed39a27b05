// SPDX-License-Identifier: Apache-2.0
#include "bindings/array_type.h"

#include <nanobind/stl/string.h>

#include <array>
#include <string_view>

#include "bindings/error.h"

namespace normact::python {
namespace {

std::string text_attribute(nb::handle object, const char* attribute) {
  nb::object value = nb::getattr(object, attribute, nb::none());
  return nb::isinstance<nb::str>(value) ? nb::cast<std::string>(value) : std::string();
}

// The frameworks are told by names, so that none has to be imported.
Framework framework_of_class(std::string_view module, std::string_view name) {
  const std::string_view root = module.substr(0, module.find('.'));
  if (root == "torch" && name == "Tensor") return Framework::torch;
  if (root == "numpy" && name == "ndarray") return Framework::numpy;
  if (root == "cupy" && name == "ndarray") return Framework::cupy;
  if ((root == "jax" || root == "jaxlib") && (name == "ArrayImpl" || name == "Tracer")) return Framework::jax;
  if (root == "tensorflow" && (name == "Tensor" || name == "Variable")) return Framework::tensorflow;
  return Framework::other;
}

bool is_plain(Framework framework, std::string_view name) {
  switch (framework) {
    case Framework::torch: return name == "Tensor" || name == "Parameter";
    case Framework::numpy: return name == "ndarray" || name == "memmap";
    case Framework::cupy: return name == "ndarray";
    case Framework::jax: return name == "ArrayImpl";
    case Framework::tensorflow: return name == "EagerTensor";
    case Framework::other: break;
  }
  return true;
}

// A subclass outside the framework may bear the name of the framework's own class; the module tells them apart.
bool is_own_class(Framework framework, std::string_view module) {
  const std::string_view root = module.substr(0, module.find('.'));
  return framework == Framework::other || root == name_of(framework) ||
         (framework == Framework::jax && root == "jaxlib");
}

const DLPackExchangeAPI* exchange_of(nb::handle type) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* header = static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  if (header == nullptr || header->version.minor < 3) return nullptr;  // the table was settled in 1.3
  auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return api->dltensor_from_py_object_no_sync != nullptr && api->current_work_stream != nullptr ? api : nullptr;
}

ArrayType describe(PyObject* python_type) {
  ArrayType result;
  result.type = python_type;
  const nb::handle type(python_type);
  for (nb::handle base : nb::borrow<nb::tuple>(type.attr("__mro__"))) {
    result.framework = framework_of_class(text_attribute(base, "__module__"), text_attribute(base, "__qualname__"));
    if (result.framework != Framework::other) break;
  }
  result.plain = is_plain(result.framework, text_attribute(type, "__qualname__")) &&
                 is_own_class(result.framework, text_attribute(type, "__module__"));
  result.has_dlpack = nb::hasattr(type, "__dlpack__");
  result.exchange = exchange_of(type);
  return result;
}

}  // namespace

const char* name_of(Framework framework) {
  switch (framework) {
    case Framework::numpy: return "numpy";
    case Framework::torch: return "torch";
    case Framework::jax: return "jax";
    case Framework::tensorflow: return "tensorflow";
    case Framework::cupy: return "cupy";
    case Framework::other: break;
  }
  return "other";
}

void check_type(PyObject* object, const ArrayType& type, const char* name, const char* function) {
  if (type.plain && type.has_dlpack) return;
  const char* expected = "an array (an object with __dlpack__)";
  switch (type.framework) {
    case Framework::torch:
      expected = "a torch.Tensor or Parameter; .as_subclass(torch.Tensor) drops what the subclass adds to its memory";
      break;
    case Framework::numpy: expected = "a numpy.ndarray; numpy.asarray() drops what the subclass adds"; break;
    case Framework::cupy: expected = "a cupy.ndarray"; break;
    case Framework::jax:
      expected = "a jax.Array with a value; inside of jit, grad and vmap the function of the same name in normact.jax";
      break;
    case Framework::tensorflow:
      expected = "an eager tensor; a variable has one in .value(), and normact.tensorflow works inside tf.function";
      break;
    case Framework::other: break;
  }
  raise(PyExc_TypeError, function, ": ", name, " is of type ", type_name(object), "; expected ", expected);
}

ArrayType& array_type_of(PyObject* object) {
  // A program uses a handful of array types. One that makes types without end does not make us keep them all alive.
  static std::array<ArrayType, 32> known;
  static size_t count = 0;
  thread_local ArrayType unknown;
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  for (size_t i = 0; i < count; ++i) {
    if (known[i].type == type) return known[i];
  }
  const ArrayType description = describe(type);
  if (count == known.size()) return unknown = description;
  Py_INCREF(type);
  return known[count++] = description;
}

std::string type_name(PyObject* object) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  const std::string module = text_attribute(type, "__module__");
  const std::string name = text_attribute(type, "__qualname__");
  return module.empty() || module == "builtins" ? name : module + "." + name;
}

PyObject* attribute_of(const char* module, const char* name) {
  return nb::object(nb::module_::import_(module).attr(name)).release().ptr();
}

}  // namespace normact::python
