// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch_norm.h"

#include <utility>

#include "bindings/array_type.h"
#include "bindings/fast_function.h"
#include "bindings/norm.h"
#include "bindings/python_api.h"
#include "bindings/tensor_arg.h"
#include "bindings/torch_state.h"
#include "normact/normact.h"

namespace normact::python {
namespace {

// The options of normact/torch/row_ops.py.
constexpr Py_ssize_t kAxis = 0, kEps = 1, kWeightOffset = 2, kActivation = 3, kAlpha = 4;

nb::object attribute(nb::handle object, PyObject* name) { return checked(PyObject_GetAttr(object.ptr(), name)); }

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
  Py_ssize_t inputs() const { return residual ? 5 : 4; }

  /// What the caller gets. inputs: x, the residual, weight, bias, and the options.
  NormResults run(PyObject* const* inputs, bool statistics) const {
    PyObject* const* const rest = inputs + (residual ? 2 : 1);
    const nb::handle options = rest[2];
    const nb::object act = activation(options);
    return torch_norm_forward({kind, inputs[0], rest[0], rest[1], residual ? inputs[1] : Py_None, item(options, kAxis),
                               item(options, kEps), item(options, kWeightOffset), act},
                              statistics);
  }
  nb::object returned(const NormResults& results) const {
    return residual ? nb::object(nb::make_tuple(results.y, results.residual)) : results.y;
  }

  /// The forward of the autograd function: what it returns, and what it leaves in ctx as functions.py does.
  nb::object forward(nb::handle ctx, PyObject* const* inputs) const {
    static PyObject* const to_save = PyUnicode_InternFromString("to_save");
    static PyObject* const materialize_grads = PyUnicode_InternFromString("materialize_grads");
    static PyObject* const options = PyUnicode_InternFromString("options");
    static PyObject* const dtype = PyUnicode_InternFromString("dtype");
    const NormResults found = run(inputs, true);
    PyObject* const* const rest = inputs + (residual ? 2 : 1);
    const nb::handle normed = residual ? found.residual.ptr() : inputs[0], weight = rest[0], bias = rest[1];
    set_attribute(ctx, to_save,
                  has_mean() ? nb::make_tuple(normed, weight, bias, found.statistics, nb::none())
                             : nb::make_tuple(normed, weight, bias, found.statistics));
    set_attribute(ctx, materialize_grads, Py_False);
    set_attribute(ctx, options, rest[2]);
    if (residual) set_attribute(ctx, dtype, attribute(inputs[0], dtype));
    return returned(found);
  }

  nb::object gradients(nb::handle grads, nb::handle saved, nb::handle options, nb::handle wanted) const {
    const nb::handle none = Py_None, rstd = item(saved, has_mean() ? 4 : 3);
    return norm_backward(kind, item(grads, 0), item(saved, 0), item(saved, 1), item(saved, 2),
                         has_mean() ? item(saved, 3) : none, rstd.is_none() ? joined_mark() : rstd,
                         residual ? item(grads, 1) : none, item(options, kAxis), item(options, kWeightOffset),
                         activation(options), none, wanted, none);
  }
};

/// Its backward where memory may be worked on directly; else `others` does it.
struct NormBackward {
  Norm norm;
  nb::tuple places;  // of each input that of its gradient among the results, from 1 on; 0: it has none
  nb::callable wanted_of;
  nb::callable others;
  nb::callable resolved;  // of gradients that were refused: what is taken in their place, or None; or it raises
  nb::dict wanted;        // by which inputs need a gradient

  nb::object run(nb::handle ctx, const nb::args& grads) const {
    static PyObject* const needs_input_grad = PyUnicode_InternFromString("needs_input_grad");
    static PyObject* const saved_tensors = PyUnicode_InternFromString("saved_tensors");
    static PyObject* const options_name = PyUnicode_InternFromString("options");
    if (item(grads, 0).is_none() || torch_is_compiling() || torch_records_gradients() || torch_in_forward_mode() ||
        !torch_is_plain()) {
      return others(ctx, *grads);
    }
    const nb::object needs = attribute(ctx, needs_input_grad), options = attribute(ctx, options_name);
    const nb::object saved = attribute(ctx, saved_tensors);  // once: what unpacks them may refuse to do it again
    try {
      return placed(norm.gradients(grads, saved, options, wanted_for(needs)));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError)) throw;
      const nb::object again = resolved(*grads);
      if (again.is_none()) throw;
      return placed(norm.gradients(again, saved, options, wanted_for(needs)));
    }
  }

 private:
  nb::handle wanted_for(nb::handle needs) const {
    PyObject* const known = PyDict_GetItemWithError(wanted.ptr(), needs.ptr());
    if (known != nullptr) return known;
    if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    const nb::object found = wanted_of(needs);
    if (PyDict_SetItem(wanted.ptr(), needs.ptr(), found.ptr()) != 0) nb::raise_python_error();
    return found.ptr();  // which the dictionary keeps
  }
  nb::object placed(nb::handle gradients) const {
    const Py_ssize_t count = PyTuple_Size(places.ptr());
    nb::object all = checked(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const long place = PyLong_AsLong(item(places, i).ptr());
      const nb::handle gradient = place == 0 ? nb::handle(Py_None) : item(gradients, place - 1);
      PyTuple_SetItem(all.ptr(), i, nb::borrow(gradient).release().ptr());
    }
    return all;
  }
};

constexpr const char* kName = "torch_norm";

// `self` is a Norm.

const Norm& norm_of(PyObject* self) { return *static_cast<const Norm*>(PyCapsule_GetPointer(self, nullptr)); }

PyObject* direct(PyObject* self, PyObject* const* inputs, Py_ssize_t count) {
  const Norm& norm = norm_of(self);
  return returning(kName, count, norm.inputs(), [&] { return norm.returned(norm.run(inputs, false)); });
}

PyObject* forward(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const Norm& norm = norm_of(self);
  return returning(kName, count, 1 + norm.inputs(), [&] { return norm.forward(args[0], args + 1); });
}

template <FastFunction kFunction>
nb::callable make(int kind, bool residual) {
  const auto free = [](PyObject* capsule) { delete &norm_of(capsule); };
  const nb::object self = nb::steal(PyCapsule_New(new Norm{kind, residual}, nullptr, free));
  return fast_function<kFunction>(kName, self);
}

nb::callable make_backward(int kind, bool residual, nb::tuple places, nb::callable wanted, nb::callable others,
                           nb::callable resolved) {
  const NormBackward backward{{kind, residual},  std::move(places),   std::move(wanted),
                              std::move(others), std::move(resolved), {}};
  return nb::borrow<nb::callable>(nb::cpp_function(
      [backward](nb::handle ctx, const nb::args& grads) { return backward.run(ctx, grads); }, nb::is_method()));
}

}  // namespace

void bind_torch_norm(nb::module_& module) {
  module.def("torch_norm_direct", &make<direct>, nb::arg("kind"), nb::arg("residual"));
  module.def("torch_norm_forward", &make<forward>, nb::arg("kind"), nb::arg("residual"));
  module.def("torch_norm_backward", &make_backward, nb::arg("kind"), nb::arg("residual"), nb::arg("places"),
             nb::arg("wanted"), nb::arg("others"), nb::arg("resolved"));
}

}  // namespace normact::python
