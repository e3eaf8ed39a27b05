// SPDX-License-Identifier: Apache-2.0
// The activations and gated activations of normact.h on Python arrays. Every output is given and nothing is returned,
// but for an activation that has y alone. `function` is the Python function that messages name.
#include "bindings/activation.h"

#include "bindings/execute.h"
#include "bindings/fast_function.h"
#include "bindings/outputs.h"

namespace normact::python {
namespace {

/// The three numbers of a kind; which of them it uses, the library knows.
struct Numbers {
  Numbers(nb::handle alpha_object, nb::handle beta_object, nb::handle threshold_object, const Call& call)
      : alpha(number(alpha_object, "alpha", call)),
        beta(number(beta_object, "beta", call)),
        threshold(number(threshold_object, "threshold", call)) {}
  double alpha, beta, threshold;
};

normact_activation_desc describe(int kind, nb::handle axis, const Numbers& numbers, const Call& call) {
  return {sizeof(normact_activation_desc),
          kind,
          one_axis(axis, "axis", call),
          numbers.alpha,
          numbers.beta,
          numbers.threshold};
}

/// What a forward is given.
struct Forward {
  const char* function;
  int kind;
  nb::handle x, bias, axis, alpha, beta, threshold, stream;
};

/// Runs a forward. make(): y, which is written as `output` says.
template <class Make>
void run_forward(const Forward& p, nb::handle mask_object, Access output, Make make) {
  Call call{p.function, StreamChoice(p.function, p.stream.ptr())};
  TensorArg x, bias, y, mask;
  x.read(p.x, "x", Access::read, call);
  bias.read_optional(p.bias, "bias", Access::read, call);
  y.read(make(), "y", output, call);
  mask.read_optional_mask(mask_object, "mask", output, call);
  const normact_activation_desc desc = describe(p.kind, p.axis, Numbers(p.alpha, p.beta, p.threshold, call), call);
  const normact_activation_forward_args args{sizeof args, x.get(), bias.get(), y.get(), mask.get()};
  execute(
      call, {x, p.x, false},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_activation_forward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_activation_forward(&desc, &args, exec); });
}

void activation_forward(const char* function, int kind, nb::handle x, nb::handle bias, nb::handle y, nb::handle mask,
                        nb::handle axis, nb::handle alpha, nb::handle beta, nb::handle threshold, nb::handle stream,
                        bool fresh) {
  run_forward({function, kind, x, bias, axis, alpha, beta, threshold, stream}, mask,
              fresh ? Access::fill : Access::write, [&] { return y; });
}

PyObject* activation_alone(PyObject* names, PyObject* const* args, Py_ssize_t count) {
  return returning("activation_alone", count, 10, [&] {
    const char* const function = PyUnicode_AsUTF8AndSize(args[0], nullptr);
    if (function == nullptr) nb::raise_python_error();
    const nb::handle x = args[2], out = args[8];
    const Forward problem{
        function, static_cast<int>(PyLong_AsLong(args[1])), x, args[3], args[4], args[5], args[6], args[7], args[9]};
    nb::object y;
    run_forward(problem, Py_None, out.is_none() ? Access::fill : Access::write, [&] {
      y = output(function, out, nb::borrow<nb::tuple>(names), x);
      return nb::handle(y);
    });
    return finish(y, out, x, function);
  });
}

/// (function, kind, x, bias, axis, alpha, beta, threshold, out, stream) -> y, where out is no tuple.
nb::callable make_activation_alone(const nb::tuple& names) {
  return fast_function<activation_alone>("activation_alone", names);
}

void activation_backward(const char* function, int kind, nb::handle dy_object, nb::handle x_object,
                         nb::handle bias_object, nb::handle y_object, nb::handle mask_object, nb::handle dx_object,
                         nb::handle dbias_object, nb::handle axis, nb::handle alpha, nb::handle beta,
                         nb::handle threshold, nb::handle stream, bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{function, StreamChoice(function, stream.ptr())};
  TensorArg dy, x, bias, y, mask, dx, dbias;
  dy.read(dy_object, "dy", Access::read, call);
  x.read_optional(x_object, "x", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  y.read_optional(y_object, "y", Access::read, call);
  mask.read_optional_mask(mask_object, "mask", Access::read, call);
  dx.read(dx_object, "dx", output, call);
  dbias.read_optional(dbias_object, "dbias", output, call);
  const normact_activation_desc desc = describe(kind, axis, Numbers(alpha, beta, threshold, call), call);
  const normact_activation_backward_args args{sizeof args, dy.get(),   x.get(),  bias.get(),
                                              y.get(),     mask.get(), dx.get(), dbias.get()};
  execute(
      call, {dy, dy_object, dbias.get() != nullptr},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_activation_backward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_activation_backward(&desc, &args, exec); });
}

normact_gated_desc describe(int kind, int layout, nb::handle axis, const Numbers& numbers, nb::handle limit,
                            nb::handle up_offset, const Call& call) {
  return {sizeof(normact_gated_desc),
          kind,
          layout,
          one_axis(axis, "axis", call),
          0,
          numbers.alpha,
          numbers.beta,
          numbers.threshold,
          number(limit, "limit", call),
          number(up_offset, "up_offset", call)};
}

void gated_forward(const char* function, int kind, int layout, nb::handle gate_object, nb::handle up_object,
                   nb::handle gate_bias_object, nb::handle up_bias_object, nb::handle y_object, nb::handle axis,
                   nb::handle alpha, nb::handle beta, nb::handle threshold, nb::handle limit, nb::handle up_offset,
                   nb::handle stream, bool fresh) {
  Call call{function, StreamChoice(function, stream.ptr())};
  TensorArg gate, up, gate_bias, up_bias, y;
  gate.read(gate_object, "gate", Access::read, call);
  up.read_optional(up_object, "up", Access::read, call);
  gate_bias.read_optional(gate_bias_object, "gate_bias", Access::read, call);
  up_bias.read_optional(up_bias_object, "up_bias", Access::read, call);
  y.read(y_object, "y", fresh ? Access::fill : Access::write, call);
  const normact_gated_desc desc =
      describe(kind, layout, axis, Numbers(alpha, beta, threshold, call), limit, up_offset, call);
  const normact_gated_forward_args args{sizeof args, gate.get(), up.get(), gate_bias.get(), up_bias.get(), y.get()};
  execute(
      call, {gate, gate_object, false},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_gated_forward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_gated_forward(&desc, &args, exec); });
}

void gated_backward(const char* function, int kind, int layout, nb::handle dy_object, nb::handle gate_object,
                    nb::handle up_object, nb::handle gate_bias_object, nb::handle up_bias_object,
                    nb::handle dgate_object, nb::handle dup_object, nb::handle dgate_bias_object,
                    nb::handle dup_bias_object, nb::handle axis, nb::handle alpha, nb::handle beta,
                    nb::handle threshold, nb::handle limit, nb::handle up_offset, nb::handle stream, bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{function, StreamChoice(function, stream.ptr())};
  TensorArg dy, gate, up, gate_bias, up_bias, dgate, dup, dgate_bias, dup_bias;
  dy.read(dy_object, "dy", Access::read, call);
  gate.read(gate_object, "gate", Access::read, call);
  up.read_optional(up_object, "up", Access::read, call);
  gate_bias.read_optional(gate_bias_object, "gate_bias", Access::read, call);
  up_bias.read_optional(up_bias_object, "up_bias", Access::read, call);
  dgate.read(dgate_object, "dgate", output, call);
  dup.read_optional(dup_object, "dup", output, call);
  dgate_bias.read_optional(dgate_bias_object, "dgate_bias", output, call);
  dup_bias.read_optional(dup_bias_object, "dup_bias", output, call);
  const normact_gated_desc desc =
      describe(kind, layout, axis, Numbers(alpha, beta, threshold, call), limit, up_offset, call);
  const normact_gated_backward_args args{sizeof args,   dy.get(),    gate.get(), up.get(),         gate_bias.get(),
                                         up_bias.get(), dgate.get(), dup.get(),  dgate_bias.get(), dup_bias.get()};
  const bool sums = dgate_bias.get() != nullptr || dup_bias.get() != nullptr;
  execute(
      call, {dy, dy_object, sums},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_gated_backward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_gated_backward(&desc, &args, exec); });
}

}  // namespace

void bind_activation(nb::module_& module) {
  nb::dict kinds, layouts;
#define NORMACT_ENTRY(symbol, value, name, formula) kinds[name] = value;
  NORMACT_ACTIVATION_LIST(NORMACT_ENTRY)
#undef NORMACT_ENTRY
#define NORMACT_ENTRY(symbol, value, name) layouts[name] = value;
  NORMACT_GATE_LAYOUT_LIST(NORMACT_ENTRY)
#undef NORMACT_ENTRY
  module.attr("ACTIVATIONS") = kinds;
  module.attr("GATE_LAYOUTS") = layouts;
  // Every array and number may be None as far as nanobind is concerned: the messages are made here and in the library.
  const auto arg = [](const char* name) { return nb::arg(name).none(); };
  module.def("activation_forward", &activation_forward, nb::arg("function"), nb::arg("kind"), arg("x"), arg("bias"),
             arg("y"), arg("mask"), arg("axis"), arg("alpha"), arg("beta"), arg("threshold"), arg("stream"),
             nb::arg("fresh"));
  module.def("activation_alone", &make_activation_alone, nb::arg("names"));
  module.def("activation_backward", &activation_backward, nb::arg("function"), nb::arg("kind"), arg("dy"), arg("x"),
             arg("bias"), arg("y"), arg("mask"), arg("dx"), arg("dbias"), arg("axis"), arg("alpha"), arg("beta"),
             arg("threshold"), arg("stream"), nb::arg("fresh"));
  module.def("gated_forward", &gated_forward, nb::arg("function"), nb::arg("kind"), nb::arg("layout"), arg("gate"),
             arg("up"), arg("gate_bias"), arg("up_bias"), arg("y"), arg("axis"), arg("alpha"), arg("beta"),
             arg("threshold"), arg("limit"), arg("up_offset"), arg("stream"), nb::arg("fresh"));
  module.def("gated_backward", &gated_backward, nb::arg("function"), nb::arg("kind"), nb::arg("layout"), arg("dy"),
             arg("gate"), arg("up"), arg("gate_bias"), arg("up_bias"), arg("dgate"), arg("dup"), arg("dgate_bias"),
             arg("dup_bias"), arg("axis"), arg("alpha"), arg("beta"), arg("threshold"), arg("limit"), arg("up_offset"),
             arg("stream"), nb::arg("fresh"));
}

}  // namespace normact::python
