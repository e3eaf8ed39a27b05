// SPDX-License-Identifier: Apache-2.0
// normact_batch_norm_forward and normact_batch_norm_backward on Python arrays. Every output is given; nothing is
// returned.
#include "bindings/batch_norm.h"

namespace normact::python {
namespace {

void batch_norm_forward(const char* function, nb::handle x_object, nb::handle weight_object, nb::handle bias_object,
                        nb::handle addend_object, nb::handle running_mean_object, nb::handle running_var_object,
                        nb::handle num_batches_tracked_object, nb::handle y_object, nb::handle mean_object,
                        nb::handle rstd_object, nb::handle mask_object, bool training, nb::handle channel_axis,
                        nb::handle eps, nb::handle momentum, nb::handle activation, nb::handle stream, bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{function, StreamChoice(function, stream.ptr())};
  TensorArg x, weight, bias, addend, running_mean, running_var, num_batches_tracked, y, mean, rstd, mask;
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  addend.read_optional(addend_object, "addend", Access::read, call);
  const Access kept = training ? Access::update : Access::read;
  running_mean.read_optional(running_mean_object, "running_mean", kept, call);
  running_var.read_optional(running_var_object, "running_var", kept, call);
  num_batches_tracked.read_optional_count(num_batches_tracked_object, "num_batches_tracked", call);
  y.read(y_object, "y", output, call);
  if (!mean.read_joined(mean_object, rstd_object, output, call, &rstd)) {
    mean.read_optional(mean_object, "mean", output, call);
    rstd.read_optional(rstd_object, "rstd", output, call);
  }
  mask.read_optional_mask(mask_object, "mask", output, call);
  BatchNormOptions options{training, number(eps, "eps", call)};
  if (training) set_momentum(momentum, options, call);
  if (options.cumulative && !running_mean_object.is_none() && num_batches_tracked_object.is_none()) {
    raise(PyExc_ValueError, function,
          ": num_batches_tracked is None; expected the number of batches so far, as momentum is None");
  }
  const normact_batch_norm_desc desc = describe_batch_norm(channel_axis, activation, options, call);
  const normact_batch_norm_forward_args args{sizeof args,       x.get(),
                                             weight.get(),      bias.get(),
                                             addend.get(),      running_mean.get(),
                                             running_var.get(), num_batches_tracked.get(),
                                             y.get(),           mean.get(),
                                             rstd.get(),        mask.get()};
  execute(
      call, {x, x_object, training},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_batch_norm_forward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_batch_norm_forward(&desc, &args, exec); });
}

void batch_norm_backward(const char* function, nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias,
                         nb::handle addend, nb::handle mean, nb::handle rstd, nb::handle y, nb::handle mask,
                         nb::handle dx_object, nb::handle dweight_object, nb::handle dbias_object,
                         nb::handle daddend_object, bool training, nb::handle channel_axis, nb::handle activation,
                         nb::handle stream, bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{function, StreamChoice(function, stream.ptr())};
  BatchNormBackwardInputs in;
  in.read(dy, x, weight, bias, addend, mean, rstd, y, mask, call);
  TensorArg dx, dweight, dbias, daddend;
  dx.read(dx_object, "dx", output, call);
  dweight.read_optional(dweight_object, "dweight", output, call);
  dbias.read_optional(dbias_object, "dbias", output, call);
  daddend.read_optional(daddend_object, "daddend", output, call);
  const normact_batch_norm_desc desc = describe_batch_norm(channel_axis, activation, {training}, call);
  const normact_batch_norm_backward_args args{
      sizeof args,   in.dy.get(), in.x.get(),    in.weight.get(), in.bias.get(), in.addend.get(), in.mean.get(),
      in.rstd.get(), in.y.get(),  in.mask.get(), dx.get(),        dweight.get(), dbias.get(),     daddend.get()};
  execute(
      call, {in.x, x, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_batch_norm_backward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_batch_norm_backward(&desc, &args, exec); });
}

}  // namespace

void set_momentum(nb::handle momentum, BatchNormOptions& options, const Call& call) {
  options.cumulative = momentum.is_none();
  if (!momentum.is_none()) options.momentum = number(momentum, "momentum", call);
}

normact_batch_norm_desc describe_batch_norm(nb::handle channel_axis, nb::handle activation,
                                            const BatchNormOptions& options, const Call& call) {
  const NormActivation act(activation, call);
  return {sizeof(normact_batch_norm_desc),
          one_axis(channel_axis, "channel_axis", call),
          options.training,
          options.eps,
          options.momentum,
          options.cumulative,
          act.kind,
          act.alpha,
          act.beta,
          act.threshold};
}

void BatchNormBackwardInputs::read(nb::handle dy_object, nb::handle x_object, nb::handle weight_object,
                                   nb::handle bias_object, nb::handle addend_object, nb::handle mean_object,
                                   nb::handle rstd_object, nb::handle y_object, nb::handle mask_object, Call& call) {
  dy.read(dy_object, "dy", Access::read, call);
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  addend.read_optional(addend_object, "addend", Access::read, call);
  if (!mean.read_joined(mean_object, rstd_object, Access::read, call, &rstd)) {
    mean.read(mean_object, "mean", Access::read, call);
    rstd.read(rstd_object, "rstd", Access::read, call);
  }
  y.read_optional(y_object, "y", Access::read, call);
  mask.read_optional_mask(mask_object, "mask", Access::read, call);
}

void bind_batch_norm(nb::module_& module) {
  // Every array and number may be None as far as nanobind is concerned: the messages are made here and in the library.
  const auto arg = [](const char* name) { return nb::arg(name).none(); };
  module.def("batch_norm_forward", &batch_norm_forward, nb::arg("function"), arg("x"), arg("weight"), arg("bias"),
             arg("addend"), arg("running_mean"), arg("running_var"), arg("num_batches_tracked"), arg("y"), arg("mean"),
             arg("rstd"), arg("mask"), nb::arg("training"), arg("channel_axis"), arg("eps"), arg("momentum"),
             arg("activation"), arg("stream"), nb::arg("fresh"));
  module.def("batch_norm_backward", &batch_norm_backward, nb::arg("function"), arg("dy"), arg("x"), arg("weight"),
             arg("bias"), arg("addend"), arg("mean"), arg("rstd"), arg("y"), arg("mask"), arg("dx"), arg("dweight"),
             arg("dbias"), arg("daddend"), nb::arg("training"), arg("channel_axis"), arg("activation"), arg("stream"),
             nb::arg("fresh"));
  bind_batch_norm_parts(module);
}

}  // namespace normact::python
