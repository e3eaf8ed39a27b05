// SPDX-License-Identifier: Apache-2.0
// The parts of a batch norm over several processes, on Python arrays. Every output is given; nothing is returned.
#include "bindings/batch_norm.h"

namespace normact::python {
namespace {

void batch_norm_statistics(nb::handle x_object, nb::handle moments_object, nb::handle channel_axis, nb::handle stream) {
  Call call{"batch_norm_statistics", StreamChoice("batch_norm_statistics", stream.ptr())};
  TensorArg x, moments;
  x.read(x_object, "x", Access::read, call);
  moments.read(moments_object, "moments", Access::write, call);
  const normact_batch_norm_desc desc = describe_batch_norm(channel_axis, nb::none(), {}, call);
  const normact_batch_norm_statistics_args args{sizeof args, x.get(), moments.get()};
  execute(
      call, {x, x_object, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_batch_norm_statistics_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_batch_norm_statistics(&desc, &args, exec); });
}

void batch_norm_merge(nb::handle moments_object, nb::handle running_mean_object, nb::handle running_var_object,
                      nb::handle num_batches_tracked_object, nb::handle mean_object, nb::handle rstd_object,
                      nb::handle eps, nb::handle momentum, nb::handle stream) {
  Call call{"batch_norm_merge", StreamChoice("batch_norm_merge", stream.ptr())};
  TensorArg moments, running_mean, running_var, num_batches_tracked, mean, rstd;
  moments.read(moments_object, "moments", Access::read, call);
  running_mean.read_optional(running_mean_object, "running_mean", Access::update, call);
  running_var.read_optional(running_var_object, "running_var", Access::update, call);
  num_batches_tracked.read_optional_count(num_batches_tracked_object, "num_batches_tracked", call);
  mean.read(mean_object, "mean", Access::write, call);
  rstd.read(rstd_object, "rstd", Access::write, call);
  BatchNormOptions options{1, number(eps, "eps", call)};
  set_momentum(momentum, options, call);
  const normact_batch_norm_desc desc = describe_batch_norm(nb::int_(0), nb::none(), options, call);
  const normact_batch_norm_merge_args args{
      sizeof args, moments.get(), running_mean.get(), running_var.get(), num_batches_tracked.get(),
      mean.get(),  rstd.get()};
  execute(call, [&](const normact_exec* exec) { return normact_batch_norm_merge(&desc, &args, exec); });
}

void batch_norm_apply(nb::handle x_object, nb::handle weight_object, nb::handle bias_object, nb::handle addend_object,
                      nb::handle mean_object, nb::handle rstd_object, nb::handle y_object, nb::handle mask_object,
                      nb::handle channel_axis, nb::handle activation, nb::handle stream) {
  Call call{"batch_norm_apply", StreamChoice("batch_norm_apply", stream.ptr())};
  TensorArg x, weight, bias, addend, mean, rstd, y, mask;
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  addend.read_optional(addend_object, "addend", Access::read, call);
  mean.read(mean_object, "mean", Access::read, call);
  rstd.read(rstd_object, "rstd", Access::read, call);
  y.read(y_object, "y", Access::write, call);
  mask.read_optional_mask(mask_object, "mask", Access::write, call);
  const normact_batch_norm_desc desc = describe_batch_norm(channel_axis, activation, {}, call);
  const normact_batch_norm_apply_args args{sizeof args, x.get(),    weight.get(), bias.get(), addend.get(),
                                           mean.get(),  rstd.get(), y.get(),      mask.get()};
  execute(call, [&](const normact_exec* exec) { return normact_batch_norm_apply(&desc, &args, exec); });
}

void batch_norm_reduce(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias, nb::handle addend,
                       nb::handle mean, nb::handle rstd, nb::handle y, nb::handle mask, nb::handle sums_object,
                       nb::handle channel_axis, nb::handle activation, nb::handle stream) {
  Call call{"batch_norm_reduce", StreamChoice("batch_norm_reduce", stream.ptr())};
  BatchNormBackwardInputs in;
  in.read(dy, x, weight, bias, addend, mean, rstd, y, mask, call);
  TensorArg sums;
  sums.read(sums_object, "sums", Access::write, call);
  const normact_batch_norm_desc desc = describe_batch_norm(channel_axis, activation, {}, call);
  const normact_batch_norm_reduce_args args{sizeof args,   in.dy.get(),     in.x.get(),    in.weight.get(),
                                            in.bias.get(), in.addend.get(), in.mean.get(), in.rstd.get(),
                                            in.y.get(),    in.mask.get(),   sums.get()};
  execute(
      call, {in.x, x, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_batch_norm_reduce_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_batch_norm_reduce(&desc, &args, exec); });
}

void batch_norm_input_gradient(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias, nb::handle addend,
                               nb::handle mean, nb::handle rstd, nb::handle y, nb::handle mask, nb::handle sums_object,
                               nb::handle count_object, nb::handle dx_object, nb::handle daddend_object,
                               nb::handle channel_axis, nb::handle activation, nb::handle stream) {
  Call call{"batch_norm_input_gradient", StreamChoice("batch_norm_input_gradient", stream.ptr())};
  BatchNormBackwardInputs in;
  in.read(dy, x, weight, bias, addend, mean, rstd, y, mask, call);
  TensorArg sums, count, dx, daddend;
  sums.read(sums_object, "sums", Access::read, call);
  count.read(count_object, "count", Access::read, call);
  dx.read(dx_object, "dx", Access::write, call);
  daddend.read_optional(daddend_object, "daddend", Access::write, call);
  const normact_batch_norm_desc desc = describe_batch_norm(channel_axis, activation, {}, call);
  const normact_batch_norm_input_gradient_args args{
      sizeof args,   in.dy.get(), in.x.get(),    in.weight.get(), in.bias.get(), in.addend.get(), in.mean.get(),
      in.rstd.get(), in.y.get(),  in.mask.get(), sums.get(),      count.get(),   dx.get(),        daddend.get()};
  execute(call, [&](const normact_exec* exec) { return normact_batch_norm_input_gradient(&desc, &args, exec); });
}

}  // namespace

void bind_batch_norm_parts(nb::module_& module) {
  const auto arg = [](const char* name) { return nb::arg(name).none(); };
  module.def("batch_norm_statistics", &batch_norm_statistics, arg("x"), arg("moments"), arg("channel_axis"),
             arg("stream"));
  module.def("batch_norm_merge", &batch_norm_merge, arg("moments"), arg("running_mean"), arg("running_var"),
             arg("num_batches_tracked"), arg("mean"), arg("rstd"), arg("eps"), arg("momentum"), arg("stream"));
  module.def("batch_norm_apply", &batch_norm_apply, arg("x"), arg("weight"), arg("bias"), arg("addend"), arg("mean"),
             arg("rstd"), arg("y"), arg("mask"), arg("channel_axis"), arg("activation"), arg("stream"));
  module.def("batch_norm_reduce", &batch_norm_reduce, arg("dy"), arg("x"), arg("weight"), arg("bias"), arg("addend"),
             arg("mean"), arg("rstd"), arg("y"), arg("mask"), arg("sums"), arg("channel_axis"), arg("activation"),
             arg("stream"));
  module.def("batch_norm_input_gradient", &batch_norm_input_gradient, arg("dy"), arg("x"), arg("weight"), arg("bias"),
             arg("addend"), arg("mean"), arg("rstd"), arg("y"), arg("mask"), arg("sums"), arg("count"), arg("dx"),
             arg("daddend"), arg("channel_axis"), arg("activation"), arg("stream"));
}

}  // namespace normact::python
