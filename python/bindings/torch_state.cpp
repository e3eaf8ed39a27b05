// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch_state.h"

#include "bindings/array_type.h"

namespace normact::python {
namespace {

constexpr size_t kOneArgument = size_t{1} | PY_VECTORCALL_ARGUMENTS_OFFSET;  // self, with room before it

PyObject* tensor_attribute(const char* name) {
  return nb::object(nb::module_::import_("torch").attr("Tensor").attr(name)).release().ptr();
}

bool is(PyObject* value, PyObject* expected) {
  if (value == nullptr) nb::raise_python_error();
  Py_DECREF(value);  // of None or a bool, which stay
  return value == expected;
}

/// A property of torch.Tensor, through the class: so it need not be looked up in the object's.
class Property {
 public:
  explicit Property(const char* name)
      : property_(tensor_attribute(name)),
        get_(reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(property_), Py_tp_descr_get))) {}
  bool is_true(PyObject* tensor) const {
    return is(get_(property_, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor))), Py_True);
  }

 private:
  PyObject* property_;
  descrgetfunc get_;
};

}  // namespace

bool torch_in_forward_mode() {
  static PyObject* const module = nb::module_::import_("torch.autograd.forward_ad").release().ptr();
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  const nb::object level = nb::steal(PyObject_GetAttr(module, name));
  if (!level.is_valid()) nb::raise_python_error();
  return PyLong_AsLong(level.ptr()) >= 0;
}

namespace {

/// How an operation on these tensors may be run; the values are those that `normact.torch.call` names.
enum Way : int { kDirect, kRecorded, kWatched };

int torch_way(nb::tuple tensors) {
  static PyObject* const tensor_type = attribute_of("torch", "Tensor");
  static PyObject* const parameter_type = attribute_of("torch.nn", "Parameter");
  static const Property is_meta("is_meta");
  const Py_ssize_t count = PyTuple_Size(tensors.ptr());
  bool gradient = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const tensor = PyTuple_GetItem(tensors.ptr(), i);
    if (tensor == Py_None) continue;
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
    if (type != tensor_type && type != parameter_type) return kWatched;
    gradient = gradient || torch_requires_grad(tensor);
  }
  if (!torch_is_plain() || is_meta.is_true(PyTuple_GetItem(tensors.ptr(), 0))) return kWatched;
  return (gradient && torch_records_gradients()) || torch_in_forward_mode() ? kRecorded : kDirect;
}

}  // namespace

bool torch_is_plain() {
  static PyObject* const tracing = attribute_of("torch._C", "_get_tracing_state");
  static PyObject* const modes = attribute_of("torch._C", "_len_torch_dispatch_stack");
  static PyObject* const transforms = attribute_of("torch._C._functorch", "peek_interpreter_stack");
  if (!is(PyObject_CallNoArgs(tracing), Py_None)) return false;
  const nb::object count = nb::steal(PyObject_CallNoArgs(modes));
  if (!count.is_valid()) nb::raise_python_error();
  return PyLong_AsLong(count.ptr()) == 0 && is(PyObject_CallNoArgs(transforms), Py_None);
}

bool torch_is_compiling() {
  static PyObject* const is_compiling = attribute_of("torch.compiler", "is_compiling");
  return is(PyObject_CallNoArgs(is_compiling), Py_True);
}

bool torch_records_gradients() {
  static PyObject* const is_grad_enabled = attribute_of("torch", "is_grad_enabled");
  return is(PyObject_CallNoArgs(is_grad_enabled), Py_True);
}

bool torch_requires_grad(PyObject* tensor) {
  static const Property requires_grad("requires_grad");
  return requires_grad.is_true(tensor);
}

void torch_increment_version(PyObject* tensor) {
  static PyObject* const increment = attribute_of("torch.autograd.graph", "increment_version");
  PyObject* args[] = {nullptr, tensor};
  is(PyObject_Vectorcall(increment, args + 1, kOneArgument, nullptr), Py_None);
}

bool torch_is_negated(PyObject* tensor) {
  static PyObject* const is_neg = tensor_attribute("is_neg");
  PyObject* args[] = {nullptr, tensor};
  return is(PyObject_Vectorcall(is_neg, args + 1, kOneArgument, nullptr), Py_True);
}

void bind_torch_state(nb::module_& module) {
  module.def("torch_way", &torch_way, nb::arg("tensors"));
  module.def("torch_is_plain", &torch_is_plain);
  module.def("torch_in_forward_mode", &torch_in_forward_mode);
  module.attr("DIRECT") = static_cast<int>(kDirect);
  module.attr("RECORDED") = static_cast<int>(kRecorded);
  module.attr("WATCHED") = static_cast<int>(kWatched);
}

}  // namespace normact::python
