// SPDX-License-Identifier: Apache-2.0
// The Python module normact._core: the C API on Python arrays. normact/*.py is its only user.
#include <nanobind/nanobind.h>

#include <limits>

#include "bindings/activation.h"
#include "bindings/array_type.h"
#include "bindings/batch_norm.h"
#include "bindings/buffer.h"
#include "bindings/error.h"
#include "bindings/execute.h"
#include "bindings/group_norm.h"
#include "bindings/norm.h"
#include "bindings/outputs.h"
#include "bindings/tensor_arg.h"
#include "bindings/torch_norm.h"
#include "bindings/torch_state.h"
#include "bindings/xla_handlers.h"
#include "normact/normact.h"

namespace nb = nanobind;

namespace {

const char* framework_of(nb::handle object, const char* function, const char* name) {
  const normact::python::ArrayType& type = normact::python::array_type_of(object.ptr());
  normact::python::check_type(object.ptr(), type, name, function);
  return normact::python::name_of(type.framework);
}

// (address, device type, device id, dtype code, bits, shape, strides): what the library is told of an array.
nb::tuple describe(nb::handle object) {
  using namespace normact::python;
  Call call{"describe", StreamChoice("describe", Py_None)};
  TensorArg argument;
  argument.read(object, "x", Access::read, call);
  const normact_tensor& tensor = *argument.get();
  nb::list shape, strides;
  for (int d = 0; d < tensor.ndim; ++d) {
    shape.append(tensor.shape[d]);
    if (tensor.strides != nullptr) strides.append(tensor.strides[d]);
  }
  return nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset, tensor.device_type,
                        tensor.device_id, tensor.dtype_code, tensor.dtype_bits, nb::tuple(shape),
                        tensor.strides == nullptr ? nb::object(nb::none()) : nb::object(nb::tuple(strides)));
}

const char* build_info(const char* name) { return normact_build_info(name); }

/// The argument `count` of a function.
int count_of(nb::handle object, const char* function) {
  const normact::python::Call call{function, normact::python::StreamChoice(function, Py_None)};
  const int64_t count = normact::python::integer(object, "count", "an int", call);
  if (count < std::numeric_limits<int>::min() || count > std::numeric_limits<int>::max()) {
    normact::python::raise(PyExc_ValueError, function, ": count is ", count, "; expected one of 32 bits");
  }
  return static_cast<int>(count);
}

void set_num_threads(nb::handle object) {
  const normact_status status = normact_set_num_threads(count_of(object, "set_num_threads"));
  if (status != NORMACT_OK) normact::python::raise_status(status, "set_num_threads");
}

void set_sm_margin(nb::handle object) {
  const int count = count_of(object, "set_sm_margin");
  if (count < 0) normact::python::raise(PyExc_ValueError, "set_sm_margin: count is ", count, "; expected at least 0");
  normact::python::sm_margin() = count;
}

int get_sm_margin() { return normact::python::sm_margin(); }

}  // namespace

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // array types and interned names are kept until the process ends
  normact::python::bind_norm(module);
  normact::python::bind_activation(module);
  normact::python::bind_batch_norm(module);
  normact::python::bind_group_norm(module);
  normact::python::bind_buffer(module);
  normact::python::bind_outputs(module);
  normact::python::bind_torch_norm(module);
  normact::python::bind_torch_state(module);
  normact::python::bind_xla_handlers(module);
  module.def("framework_of", &framework_of, nb::arg("x").none(), nb::arg("function"), nb::arg("name"),
             nb::sig("def framework_of(x: object, function: str, name: str) -> str"),
             "The framework of an array: numpy, torch, jax, tensorflow, cupy or other. TypeError if x is no array.");
  module.def("describe", &describe,
             nb::sig("def describe(x: object, /) -> tuple[int, int, int, int, int, tuple[int, ...], tuple[int, ...] | "
                     "None]"),
             "What the library is told of an array: address, device type and id, dtype code and bits, shape, strides.");
  module.def("build_info", &build_info, nb::sig("def build_info(name: str, /) -> str | None"));
  module.def("set_num_threads", &set_num_threads, nb::arg().none(),
             nb::sig("def set_num_threads(count: int, /) -> None"));
  module.def("get_num_threads", &normact_get_num_threads, nb::sig("def get_num_threads() -> int"));
  module.def("set_sm_margin", &set_sm_margin, nb::arg().none(), nb::sig("def set_sm_margin(count: int, /) -> None"));
  module.def("get_sm_margin", &get_sm_margin, nb::sig("def get_sm_margin() -> int"));
}
