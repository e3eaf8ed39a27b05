// SPDX-License-Identifier: Apache-2.0
// normact_norm_forward and normact_norm_backward on Python arrays. Every output is given; nothing is returned.
#include "bindings/norm.h"

#include "bindings/execute.h"

namespace normact::python {
namespace {

const char* forward_name(int kind) { return kind == NORMACT_NORM_LAYER ? "layer_norm" : "rms_norm"; }
const char* backward_name(int kind) { return kind == NORMACT_NORM_LAYER ? "layer_norm_backward" : "rms_norm_backward"; }

/// The axis argument: an int or a sequence of ints.
class Axes {
 public:
  Axes(nb::handle object, const Call& call) {
    if (!PyTuple_Check(object.ptr()) && !PyList_Check(object.ptr())) {
      append(object, call);
      return;
    }
    for (nb::handle item : object) append(item, call);
  }
  int count() const { return count_; }
  const int64_t* data() const { return axes_; }

 private:
  void append(nb::handle object, const Call& call) {
    const int64_t axis = integer(object, "axis", "an int or a tuple of ints", call);
    if (count_ == kMaxAxes) raise(PyExc_ValueError, call.function, ": axis has more than ", kMaxAxes, " entries");
    axes_[count_++] = axis;
  }

  static constexpr int kMaxAxes = 64;
  int count_ = 0;
  int64_t axes_[kMaxAxes];
};

void norm_forward(int kind, nb::handle x_object, nb::handle weight_object, nb::handle bias_object,
                  nb::handle residual_object, nb::handle y_object, nb::handle residual_out_object,
                  nb::handle mean_object, nb::handle rstd_object, nb::handle axis, nb::handle eps,
                  nb::handle weight_offset, nb::handle activation, nb::handle stream, nb::handle allocator,
                  bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{forward_name(kind), StreamChoice(forward_name(kind), stream.ptr())};
  TensorArg x, weight, bias, residual, y, residual_out, mean, rstd;
  x.read(x_object, "x", Access::read, call);
  residual.read_optional(residual_object, "residual", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  y.read(y_object, "y", output, call);
  residual_out.read_optional(residual_out_object, "residual_out", output, call);
  mean.read_optional(mean_object, "mean", output, call);
  rstd.read_optional(rstd_object, "rstd", output, call);
  const Axes axes(axis, call);
  const NormActivation act(activation, call);
  const normact_norm_desc desc{sizeof desc,
                               kind,
                               axes.count(),
                               axes.data(),
                               number(eps, "eps", call),
                               number(weight_offset, "weight_offset", call),
                               act.kind,
                               0,
                               act.alpha,
                               act.beta,
                               act.threshold};
  const normact_norm_forward_args args{sizeof args,        x.get(),    residual.get(),
                                       weight.get(),       bias.get(), y.get(),
                                       residual_out.get(), mean.get(), rstd.get()};
  execute(
      call, {x, x_object, allocator, false},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_norm_forward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_norm_forward(&desc, &args, exec); });
}

void norm_backward(int kind, nb::handle dy_object, nb::handle x_object, nb::handle weight_object,
                   nb::handle bias_object, nb::handle mean_object, nb::handle rstd_object, nb::handle dresidual_object,
                   nb::handle dx_object, nb::handle dweight_object, nb::handle dbias_object, nb::handle axis,
                   nb::handle weight_offset, nb::handle activation, nb::handle stream, nb::handle allocator,
                   bool fresh) {
  const Access output = fresh ? Access::fill : Access::write;
  Call call{backward_name(kind), StreamChoice(backward_name(kind), stream.ptr())};
  TensorArg dy, x, weight, bias, mean, rstd, dresidual, dx, dweight, dbias;
  dy.read(dy_object, "dy", Access::read, call);
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  mean.read_optional(mean_object, "mean", Access::read, call);
  rstd.read(rstd_object, "rstd", Access::read, call);
  dresidual.read_optional(dresidual_object, "dresidual", Access::read, call);
  dx.read(dx_object, "dx", output, call);
  dweight.read_optional(dweight_object, "dweight", output, call);
  dbias.read_optional(dbias_object, "dbias", output, call);
  const Axes axes(axis, call);
  const NormActivation act(activation, call);
  const normact_norm_desc desc{
      sizeof desc, kind, axes.count(), axes.data(), 0.0,          number(weight_offset, "weight_offset", call),
      act.kind,    0,    act.alpha,    act.beta,    act.threshold};
  const normact_norm_backward_args args{sizeof args,     dy.get(), x.get(),       weight.get(), mean.get(), rstd.get(),
                                        dresidual.get(), dx.get(), dweight.get(), dbias.get(),  bias.get()};
  execute(
      call, {x, x_object, allocator, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_norm_backward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_norm_backward(&desc, &args, exec); });
}

/// Forces a row kernel in this thread and returns what was forced before.
int set_row_variant(int variant) {
  const int previous = row_variant();
  row_variant() = variant;
  return previous;
}

}  // namespace

void bind_norm(nb::module_& module) {
#define NORMACT_CONSTANT(symbol, value, name) module.attr(#symbol) = value;
  NORMACT_NORM_LIST(NORMACT_CONSTANT)
#undef NORMACT_CONSTANT
  nb::dict variants;
#define NORMACT_ENTRY(symbol, value, name) variants[name] = value;
  NORMACT_ROW_VARIANT_LIST(NORMACT_ENTRY)
#undef NORMACT_ENTRY
  module.attr("ROW_VARIANTS") = variants;
  module.def("set_row_variant", &set_row_variant, nb::sig("def set_row_variant(variant: int, /) -> int"));
  // fresh: every output was made by the caller for this call.
  // Every argument may be None as far as nanobind is concerned: the messages are made here and in the library.
  const auto arg = [](const char* name) { return nb::arg(name).none(); };
  module.def("norm_forward", &norm_forward, nb::arg("kind"), arg("x"), arg("weight"), arg("bias"), arg("residual"),
             arg("y"), arg("residual_out"), arg("mean"), arg("rstd"), arg("axis"), arg("eps"), arg("weight_offset"),
             arg("activation"), arg("stream"), arg("allocator"), nb::arg("fresh"));
  module.def("norm_backward", &norm_backward, nb::arg("kind"), arg("dy"), arg("x"), arg("weight"), arg("bias"),
             arg("mean"), arg("rstd"), arg("dresidual"), arg("dx"), arg("dweight"), arg("dbias"), arg("axis"),
             arg("weight_offset"), arg("activation"), arg("stream"), arg("allocator"), nb::arg("fresh"));
}

}  // namespace normact::python
