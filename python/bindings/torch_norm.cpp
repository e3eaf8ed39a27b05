// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch_norm.h"

#include "bindings/array_type.h"
#include "bindings/norm.h"
#include "bindings/tensor_arg.h"
#include "bindings/torch_state.h"
#include "normact/normact.h"

namespace normact::python {
namespace {

// The options of normact/torch/row_ops.py.
constexpr Py_ssize_t kAxis = 0, kEps = 1, kWeightOffset = 2, kActivation = 3, kAlpha = 4;

nb::handle item(nb::handle tuple, Py_ssize_t place) {
  PyObject* const found = PyTuple_GetItem(tuple.ptr(), place);
  if (found == nullptr) nb::raise_python_error();
  return found;
}

nb::object attribute(nb::handle object, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(object.ptr(), name);
  if (found == nullptr) nb::raise_python_error();
  return nb::steal(found);
}

void set_attribute(nb::handle object, PyObject* name, nb::handle value) {
  if (PyObject_SetAttr(object.ptr(), name, value.ptr()) != 0) nb::raise_python_error();
}

/// One norm of row_ops.py: of x, or of the sum of x and a residual, which it returns too.
struct Norm {
  int kind;
  bool residual;

  nb::object activation(nb::handle options) const {
    static PyObject* const numbers = attribute_of("normact.norm_calls", "activation_argument");
    const nb::handle name = item(options, kActivation);
    if (name.is_none()) return nb::none();
    return nb::handle(numbers)(norm_name(kind), name, item(options, kAlpha));
  }
  bool has_mean() const { return kind == NORMACT_NORM_LAYER; }

  /// The forward of the autograd function: what it returns, and what it leaves in ctx as functions.py does.
  ///   inputs: x, the residual, weight, bias, and the options.
  nb::object forward(nb::handle ctx, nb::handle inputs) const {
    static PyObject* const to_save = PyUnicode_InternFromString("to_save");
    static PyObject* const materialize_grads = PyUnicode_InternFromString("materialize_grads");
    static PyObject* const options_name = PyUnicode_InternFromString("options");
    static PyObject* const dtype = PyUnicode_InternFromString("dtype");
    const Py_ssize_t last = PyTuple_Size(inputs.ptr()) - 1;
    const nb::handle x = item(inputs, 0), weight = item(inputs, last - 2), bias = item(inputs, last - 1);
    const nb::handle options = item(inputs, last), none = Py_None;
    const nb::object act = activation(options);
    const NormResults found =
        torch_norm_forward({kind, x, weight, bias, residual ? item(inputs, 1) : none, item(options, kAxis),
                            item(options, kEps), item(options, kWeightOffset), act});
    const nb::handle normed = residual ? nb::handle(found.residual) : x;
    set_attribute(ctx, to_save,
                  has_mean() ? nb::make_tuple(normed, weight, bias, found.mean, none)
                             : nb::make_tuple(normed, weight, bias, found.rstd));
    set_attribute(ctx, materialize_grads, Py_False);
    set_attribute(ctx, options_name, options);
    if (!residual) return found.y;
    set_attribute(ctx, dtype, attribute(x, dtype));
    return nb::make_tuple(found.y, found.residual);
  }

  nb::object gradients(nb::handle ctx, nb::handle grads, nb::handle wanted) const {
    static PyObject* const saved_tensors = PyUnicode_InternFromString("saved_tensors");
    static PyObject* const options_name = PyUnicode_InternFromString("options");
    const nb::object saved = attribute(ctx, saved_tensors), options = attribute(ctx, options_name);
    const nb::handle none = Py_None, rstd = item(saved, has_mean() ? 4 : 3);
    return norm_backward(kind, item(grads, 0), item(saved, 0), item(saved, 1), item(saved, 2),
                         has_mean() ? item(saved, 3) : none, rstd.is_none() ? joined_mark() : rstd,
                         residual ? item(grads, 1) : none, item(options, kAxis), item(options, kWeightOffset),
                         activation(options), none, wanted, none);
  }
};

/// Its backward where memory may be worked on directly; else, and where that fails, `others` does it, or says why not.
struct NormBackward {
  Norm norm;
  nb::tuple places;  // of each input that of its gradient among the results, from 1 on; 0: it has none
  nb::callable wanted_of;
  nb::callable others;
  nb::dict wanted;  // by which inputs need a gradient

  nb::object run(nb::handle ctx, nb::handle grads) const {
    static PyObject* const needs_input_grad = PyUnicode_InternFromString("needs_input_grad");
    if (item(grads, 0).is_none() || torch_is_compiling() || torch_records_gradients() || !torch_is_plain()) {
      return others(ctx, *nb::borrow<nb::args>(grads));
    }
    const nb::object needs = attribute(ctx, needs_input_grad);
    PyObject* known = PyDict_GetItemWithError(wanted.ptr(), needs.ptr());
    if (known == nullptr) {
      if (PyErr_Occurred() != nullptr) nb::raise_python_error();
      const nb::object wants = wanted_of(needs);
      if (PyDict_SetItem(wanted.ptr(), needs.ptr(), wants.ptr()) != 0) nb::raise_python_error();
      known = wants.ptr();  // which the dictionary keeps
    }
    nb::object found;
    try {
      found = norm.gradients(ctx, grads, known);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      return others(ctx, *nb::borrow<nb::args>(grads));
    }
    const Py_ssize_t count = PyTuple_Size(places.ptr());
    const nb::tuple placed = nb::steal<nb::tuple>(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const long place = PyLong_AsLong(item(places, i).ptr());
      const nb::handle gradient = place == 0 ? nb::handle(Py_None) : item(found, place - 1);
      PyTuple_SetItem(placed.ptr(), i, nb::borrow(gradient).release().ptr());
    }
    return placed;
  }
};

nb::object make_forward(int kind, bool residual) {
  const Norm norm{kind, residual};
  return nb::cpp_function([norm](nb::handle ctx, const nb::args& inputs) { return norm.forward(ctx, inputs); });
}

nb::object make_backward(int kind, bool residual, nb::tuple places, nb::callable wanted, nb::callable others) {
  NormBackward backward{{kind, residual}, places, wanted, others, {}};
  return nb::cpp_function([backward](nb::handle ctx, const nb::args& grads) { return backward.run(ctx, grads); },
                          nb::is_method());
}

}  // namespace

void bind_torch_norm(nb::module_& module) {
  module.def("torch_norm_forward", &make_forward, nb::arg("kind"), nb::arg("residual"));
  module.def("torch_norm_backward", &make_backward, nb::arg("kind"), nb::arg("residual"), nb::arg("places"),
             nb::arg("wanted"), nb::arg("others"));
}

}  // namespace normact::python
