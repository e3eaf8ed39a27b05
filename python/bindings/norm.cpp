// SPDX-License-Identifier: Apache-2.0
// normact_norm_forward and normact_norm_backward on Python arrays.
#include "bindings/norm.h"

#include <algorithm>

#include "bindings/execute.h"
#include "bindings/fast_function.h"
#include "bindings/outputs.h"
#include "bindings/python_api.h"

namespace normact::python {
namespace {

const char* backward_name(int kind) { return kind == NORMACT_NORM_LAYER ? "layer_norm_backward" : "rms_norm_backward"; }

/// The axis argument: an int or a sequence of ints.
class Axes {
 public:
  Axes(nb::handle object, const Call& call) {
    if (!PyTuple_Check(object.ptr()) && !PyList_Check(object.ptr())) {
      append(object, call);
      return;
    }
    if (PyList_Check(object.ptr())) {
      for (nb::handle item : object) append(item, call);
    } else {  // without an iterator: the operations of PyTorch give a tuple
      for (Py_ssize_t i = 0; i < PyTuple_Size(object.ptr()); ++i) append(PyTuple_GetItem(object.ptr(), i), call);
    }
    if (count_ == 0) raise(PyExc_ValueError, call.function, ": axis has no entries; expected at least one axis");
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

PyObject* of_python(const char* name) {
  return nb::object(nb::module_::import_("normact.norm_calls").attr(name)).release().ptr();
}

/// The axes of x that are not normalised. Wrong axes are left for the library to refuse.
class KeptAxes {
 public:
  KeptAxes(const normact_tensor& x, const Axes& axes) : x_(x) {
    const int64_t* const end = axes.data() + axes.count();
    for (int d = 0; d < x.ndim && d < kMost; ++d) {
      const auto is_d = [&](int64_t axis) { return axis == d || axis + x.ndim == d; };
      if (std::none_of(axes.data(), end, is_d)) axes_[count_++] = d;
    }
  }

  /// The shape of a statistic, of a pair after a 2. If the axes lie in another order in memory, its sizes in that and
  /// where among them each axis is: statistics that lie as x does are found as x is (see outputs.h).
  nb::tuple shape_of_statistics(bool joined) const {
    int order[kMost];
    const bool as_they_are = order_in_memory(order);
    nb::tuple sizes = tuple_of(joined, [&](int i) { return x_.shape[order[i]]; }, 2);
    if (as_they_are) return sizes;
    const auto place = [&](int i) { return std::find(order, order + count_, axes_[i]) - order + (joined ? 1 : 0); };
    return nb::make_tuple(sizes, tuple_of(joined, place, 0));
  }

 private:
  static constexpr int kMost = 64;

  /// Axes by their strides, those that tell nothing where they are; false if that is not the order of the axes.
  bool order_in_memory(int (&order)[kMost]) const {
    int places[kMost], telling[kMost], count = 0;
    for (int i = 0; i < count_; ++i) {
      order[i] = axes_[i];
      if (x_.shape[axes_[i]] < 2) continue;
      places[count] = i;
      telling[count++] = axes_[i];
    }
    const auto outer = [&](int a, int b) { return x_.strides[a] > x_.strides[b]; };
    const auto broadcast = [&](int d) { return x_.strides[d] <= 0; };
    if (x_.strides == nullptr || std::any_of(telling, telling + count, broadcast)) return true;
    if (std::is_sorted(telling, telling + count, outer)) return true;
    std::stable_sort(telling, telling + count, outer);
    for (int i = 0; i < count; ++i) order[places[i]] = telling[i];
    return false;
  }
  /// Of number(i) for each axis, behind `first` if that is wanted.
  template <class Number>
  nb::tuple tuple_of(bool with_first, Number number, int64_t first) const {
    nb::tuple all = nb::borrow<nb::tuple>(checked(PyTuple_New(count_ + (with_first ? 1 : 0))));
    Py_ssize_t place = 0;
    const auto append = [&](int64_t value) {
      PyTuple_SetItem(all.ptr(), place++, checked(PyLong_FromLongLong(value)).release().ptr());
    };
    if (with_first) append(first);
    for (int i = 0; i < count_; ++i) append(number(i));
    return all;
  }

  const normact_tensor& x_;
  int axes_[kMost];
  int count_ = 0;
};

bool is_true(nb::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth > 0;
}

/// Whether a tensor of 16 bits goes with sums of float32.
bool is_mixed(const TensorArg& narrow, const TensorArg& wide) {
  return wide.get() != nullptr && narrow.get()->dtype_bits == 16 && wide.get()->dtype_bits == 32;
}

/// What the outputs of a forward are like. `keep` says whether the statistics are among them.
struct Kept {
  Kept(nb::handle keep, int kind) : rstd(is_true(keep)), mean(rstd && kind == NORMACT_NORM_LAYER) {}
  /// sum: what the sum is like, None without a residual.
  nb::tuple likes(nb::handle x_object, nb::handle sum, const normact_tensor& x, const Axes& axes) const {
    const nb::object shape = rstd ? nb::object(KeptAxes(x, axes).shape_of_statistics(false)) : nb::none();
    return nb::make_tuple(x_object, sum, mean ? nb::handle(shape) : nb::handle(Py_None), shape);
  }
  bool rstd, mean;
};

/// The arrays that a forward writes; None where there is none. joined: mean holds both statistics.
struct NormOutputs {
  nb::handle y, residual, mean, rstd;
  bool joined = false;
};

/// Runs a forward. make(x, axes, mixed): its NormOutputs, which are written as `output` says.
template <class Make>
void run_forward(const NormForward& p, Call call, Access output, Make make) {
  TensorArg x, weight, bias, residual, y, residual_out, mean, rstd;
  x.read(p.x, "x", Access::read, call);
  residual.read_optional(p.residual, "residual", Access::read, call);
  weight.read_optional(p.weight, "weight", Access::read, call);
  bias.read_optional(p.bias, "bias", Access::read, call);
  const Axes axes(p.axis, call);
  const NormActivation act(p.activation, call);
  const normact_norm_desc desc{sizeof desc,
                               p.kind,
                               axes.count(),
                               axes.data(),
                               number(p.eps, "eps", call),
                               number(p.weight_offset, "weight_offset", call),
                               act.kind,
                               0,
                               act.alpha,
                               act.beta,
                               act.threshold};
  const NormOutputs outputs = make(*x.get(), axes, is_mixed(x, residual));
  residual_out.read_optional(outputs.residual, "residual_out", output, call);
  if (outputs.joined) {
    mean.read_joined(outputs.mean, joined_mark(), output, call, &rstd);
  } else {
    mean.read_optional(outputs.mean, "mean", output, call);
    rstd.read_optional(outputs.rstd, "rstd", output, call);
  }
  y.read(outputs.y, "y", output, call);
  const normact_norm_forward_args args{sizeof args,        x.get(),    residual.get(),
                                       weight.get(),       bias.get(), y.get(),
                                       residual_out.get(), mean.get(), rstd.get()};
  execute(
      call, {x, p.x, false},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_norm_forward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_norm_forward(&desc, &args, exec); });
}

nb::any norm_forward(int kind, nb::handle x_object, nb::handle weight_object, nb::handle bias_object,
                     nb::handle residual_object, nb::handle axis, nb::handle eps, nb::handle weight_offset,
                     nb::handle activation, nb::handle out, nb::handle keep, nb::handle stream) {
  static PyObject* const type = of_python("NormOutput");
  static const nb::tuple names = nb::borrow<nb::tuple>(of_python("OUTPUTS"));
  const char* const function = norm_name(kind);
  const NormForward problem{kind, x_object, weight_object, bias_object, residual_object,
                            axis, eps,      weight_offset, activation};
  const Kept kept(keep, kind);
  const bool alone = !kept.rstd && residual_object.is_none() && !PyTuple_Check(out.ptr());
  nb::object y;
  nb::tuple likes, done;
  run_forward(problem, {function, StreamChoice(function, stream.ptr())}, out.is_none() ? Access::fill : Access::write,
              [&](const normact_tensor& x, const Axes& axes, bool mixed) -> NormOutputs {
                if (alone) {
                  y = output(function, out, names, x_object);
                  return {y, Py_None, Py_None, Py_None};
                }
                const bool like_x = !residual_object.is_none() && !mixed;
                likes = kept.likes(x_object, like_x ? x_object : residual_object, x, axes);
                done = outputs(function, out, names, likes, Py_None);
                return {item(done, 0), item(done, 1), item(done, 2), item(done, 3)};
              });
  if (alone) return as_any(finish(y, out, x_object, function));
  nb::any all = finish(type, done, out, names, likes, function);
  return kept.rstd || !residual_object.is_none() ? all : as_any(all[0]);
}

PyObject* forward_of(PyObject* kind, PyObject* const* args, Py_ssize_t count) {
  return returning("norm_forward", count, 11, [&] {
    return norm_forward(static_cast<int>(PyLong_AsLong(kind)), args[0], args[1], args[2], args[3], args[4], args[5],
                        args[6], args[7], args[8], args[9], args[10]);
  });
}

/// (x, weight, bias, residual, axis, eps, weight_offset, activation, out, keep, stream) -> what the caller gets.
nb::callable make_forward(const nb::int_& kind) { return fast_function<forward_of>("norm_forward", kind); }

}  // namespace

const char* norm_name(int kind) { return kind == NORMACT_NORM_LAYER ? "layer_norm" : "rms_norm"; }

NormResults torch_norm_forward(const NormForward& problem, bool statistics) {
  NormResults made;
  const char* const function = norm_name(problem.kind);
  const bool records_gradients = false;
  run_forward(problem, {function, StreamChoice(function, Py_None), records_gradients}, Access::fill,
              [&](const normact_tensor& x, const Axes& axes, bool mixed) -> NormOutputs {
                NormOutputs written{{}, Py_None, Py_None, Py_None};
                written.y = made.y = torch_empty_like(problem.x);
                if (!problem.residual.is_none()) {
                  written.residual = made.residual = torch_empty_like(mixed ? problem.residual : problem.x);
                }
                if (!statistics) return written;
                written.joined = problem.kind == NORMACT_NORM_LAYER;
                made.statistics = torch_statistic(problem.x, KeptAxes(x, axes).shape_of_statistics(written.joined));
                (written.joined ? written.mean : written.rstd) = made.statistics;
                return written;
              });
  return made;
}

nb::any norm_backward(int kind, nb::handle dy_object, nb::handle x_object, nb::handle weight_object,
                      nb::handle bias_object, nb::handle mean_object, nb::handle rstd_object,
                      nb::handle dresidual_object, nb::handle axis, nb::handle weight_offset, nb::handle activation,
                      nb::handle out, nb::handle wanted, nb::handle stream) {
  static PyObject* const type = of_python("NormGrads");
  static const nb::tuple names = nb::borrow<nb::tuple>(of_python("GRADIENTS"));
  Call call{backward_name(kind), StreamChoice(backward_name(kind), stream.ptr())};
  TensorArg dy, x, weight, bias, mean, rstd, dresidual, dx, dweight, dbias, daddend;
  dy.read(dy_object, "dy", Access::read, call);
  x.read(x_object, "x", Access::read, call);
  weight.read_optional(weight_object, "weight", Access::read, call);
  const NormActivation act(activation, call);
  bias.read_optional(bias_object, "bias", Access::read, call);
  if (!mean.read_joined(mean_object, rstd_object, Access::read, call, &rstd)) {
    mean.read_optional(mean_object, "mean", Access::read, call);
    rstd.read(rstd_object, "rstd", Access::read, call);
  }
  dresidual.read_optional(dresidual_object, "dresidual", Access::read, call);
  const Axes axes(axis, call);
  const normact_norm_desc desc{
      sizeof desc, kind, axes.count(), axes.data(), 0.0,          number(weight_offset, "weight_offset", call),
      act.kind,    0,    act.alpha,    act.beta,    act.threshold};
  const bool mixed = is_mixed(dy, x);
  const nb::tuple likes =
      nb::make_tuple(mixed ? dy_object : x_object, weight_object, bias_object, mixed ? x_object : nb::handle(Py_None));
  const nb::tuple done = outputs(call.function, out, names, likes, wanted);
  const Access output = out.is_none() ? Access::fill : Access::write;
  dx.read(item(done, 0), "dx", output, call);
  dweight.read_optional(item(done, 1), "dweight", output, call);
  dbias.read_optional(item(done, 2), "dbias", output, call);
  daddend.read_optional(item(done, 3), "daddend", output, call);
  const normact_norm_backward_args args{sizeof args,   dy.get(),    x.get(),         weight.get(),
                                        mean.get(),    rstd.get(),  dresidual.get(), dx.get(),
                                        dweight.get(), dbias.get(), bias.get(),      daddend.get()};
  execute(
      call, {x, x_object, true},
      [&](const normact_exec* exec, size_t* bytes) {
        return normact_norm_backward_workspace(&desc, &args, exec, bytes);
      },
      [&](const normact_exec* exec) { return normact_norm_backward(&desc, &args, exec); });
  return finish(type, done, out, names, likes, call.function);
}

namespace {

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
  // Every argument may be None as far as nanobind is concerned: the messages are made here and in the library.
  const auto arg = [](const char* name) { return nb::arg(name).none(); };
  module.def("norm_forward", &make_forward, nb::arg("kind"));
  module.def("norm_backward", &norm_backward, nb::arg("kind"), arg("dy"), arg("x"), arg("weight"), arg("bias"),
             arg("mean"), arg("rstd"), arg("dresidual"), arg("axis"), arg("weight_offset"), arg("activation"),
             arg("out"), arg("wanted"), arg("stream"));
}

}  // namespace normact::python
