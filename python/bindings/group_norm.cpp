// SPDX-License-Identifier: Apache-2.0
// normact_group_norm_forward and normact_group_norm_backward on Python arrays. Every output is given; nothing is
// returned. `function` is the Python function that messages name.
#include "bindings/group_norm.h"

#include "bindings/execute.h"

namespace normact::python {
namespace {

normact_group_norm_desc describe(nb::handle num_groups, nb::handle channel_axis, double eps, double momentum,
                                 nb::handle activation, const Call& call) {
  const NormActivation act(activation, call);
  return {sizeof(normact_group_norm_desc),
          one_axis(channel_axis, "channel_axis", call),
          act.kind,
          integer(num_groups, "num_groups", "an int", call),
          eps,
          momentum,
          act.alpha,
          act.beta,
          act.threshold};
}

void group_norm_forward(const char* function, nb::handle x_object, nb::handle weight_object, nb::handle bias_object,
                        nb::handle running_mean_object, nb::handle running_var_object, nb::handle y_object,
                        nb::handle mean_object, nb::handle rstd_object, nb::handle num_groups, nb::handle channel_axis,
                        nb::handle eps, nb::handle momentum, nb::handle activation, nb::handle stream, bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{function, StreamChoice(function, stream.ptr())};
  TensorArg x, weight, bias, running_mean, running_var, y, mean, rstd;
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  running_mean.read_optional(running_mean_object, "running_mean", Access::update, call);
  running_var.read_optional(running_var_object, "running_var", Access::update, call);
  y.read(y_object, "y", output, call);
  if (!mean.read_joined(mean_object, rstd_object, output, call, &rstd)) {
    mean.read_optional(mean_object, "mean", output, call);
    rstd.read_optional(rstd_object, "rstd", output, call);
  }
  const normact_group_norm_desc desc = describe(num_groups, channel_axis, number(eps, "eps", call),
                                                number(momentum, "momentum", call), activation, call);
  const normact_group_norm_forward_args args{sizeof args,       x.get(), weight.get(), bias.get(), running_mean.get(),
                                             running_var.get(), y.get(), mean.get(),   rstd.get()};
  execute(
      call, {x, x_object, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_group_norm_forward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_group_norm_forward(&desc, &args, exec); });
}

void group_norm_backward(const char* function, nb::handle dy_object, nb::handle x_object, nb::handle weight_object,
                         nb::handle bias_object, nb::handle mean_object, nb::handle rstd_object, nb::handle dx_object,
                         nb::handle dweight_object, nb::handle dbias_object, nb::handle num_groups,
                         nb::handle channel_axis, nb::handle activation, nb::handle stream, bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{function, StreamChoice(function, stream.ptr())};
  TensorArg dy, x, weight, bias, mean, rstd, dx, dweight, dbias;
  dy.read(dy_object, "dy", Access::read, call);
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  if (!mean.read_joined(mean_object, rstd_object, Access::read, call, &rstd)) {
    mean.read(mean_object, "mean", Access::read, call);
    rstd.read(rstd_object, "rstd", Access::read, call);
  }
  dx.read(dx_object, "dx", output, call);
  dweight.read_optional(dweight_object, "dweight", output, call);
  dbias.read_optional(dbias_object, "dbias", output, call);
  const normact_group_norm_desc desc = describe(num_groups, channel_axis, 0.0, 0.0, activation, call);
  const normact_group_norm_backward_args args{sizeof args, dy.get(),   x.get(),  weight.get(),  bias.get(),
                                              mean.get(),  rstd.get(), dx.get(), dweight.get(), dbias.get()};
  execute(
      call, {x, x_object, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_group_norm_backward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_group_norm_backward(&desc, &args, exec); });
}

}  // namespace

void bind_group_norm(nb::module_& module) {
  // Every array and number may be None as far as nanobind is concerned: the messages are made here and in the library.
  const auto arg = [](const char* name) { return nb::arg(name).none(); };
  module.def("group_norm_forward", &group_norm_forward, nb::arg("function"), arg("x"), arg("weight"), arg("bias"),
             arg("running_mean"), arg("running_var"), arg("y"), arg("mean"), arg("rstd"), arg("num_groups"),
             arg("channel_axis"), arg("eps"), arg("momentum"), arg("activation"), arg("stream"), nb::arg("fresh"));
  module.def("group_norm_backward", &group_norm_backward, nb::arg("function"), arg("dy"), arg("x"), arg("weight"),
             arg("bias"), arg("mean"), arg("rstd"), arg("dx"), arg("dweight"), arg("dbias"), arg("num_groups"),
             arg("channel_axis"), arg("activation"), arg("stream"), nb::arg("fresh"));
}

}  // namespace normact::python
