// SPDX-License-Identifier: Apache-2.0
#include "bindings/tensor_arg.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "bindings/error.h"
#include "bindings/torch_state.h"
#include "normact/dlpack.h"

namespace normact::python {
namespace {

constexpr size_t kOneArgument = size_t{1} | PY_VECTORCALL_ARGUMENTS_OFFSET;  // self, with room before it

bool is_cuda(DLDevice device) { return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged; }

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// ---- What may not be passed --------------------------------------------------------------------------------------

// Asked once a call, and before the tensors are: a backward has nine, and no gradient of its own to record.
bool records_gradients(Call& call) {
  if (!call.torch_records_gradients) call.torch_records_gradients = torch_records_gradients();
  return *call.torch_records_gradients;
}

// DLPack knows nothing of autograd and of torch's lazy negation: the memory alone would give silently wrong results.
void check_torch(PyObject* object, const char* name, Call& call) {
  if (records_gradients(call) && torch_requires_grad(object)) {
    raise(PyExc_ValueError, call.function, ": ", name,
          " requires grad, and this function records no gradient; expected a call under torch.no_grad(), a tensor "
          "after .detach(), or the differentiable function of normact.torch");
  }
  if (torch_is_negated(object)) {
    raise(PyExc_ValueError, call.function, ": ", name,
          " has its negative bit set (a view that negates lazily); expected a tensor after .resolve_neg()");
  }
}

std::string dtype_text(const normact_tensor& tensor) {
  const char* kind = "unknown type of";
  switch (tensor.dtype_code) {
    case kDLInt: kind = "int"; break;
    case kDLUInt: kind = "uint"; break;
    case kDLFloat: kind = "float"; break;
    case kDLBfloat: kind = "bfloat"; break;
    case kDLComplex: kind = "complex"; break;
    case kDLBool: return "bool";
    default: break;
  }
  std::string text = kind + std::to_string(tensor.dtype_bits);
  if (tensor.dtype_code > kDLBool)
    text = std::to_string(tensor.dtype_bits) + "-bit DLPack type code " + std::to_string(tensor.dtype_code);
  return tensor.dtype_lanes == 1 ? text : text + "x" + std::to_string(tensor.dtype_lanes);
}

// ---- __dlpack__ --------------------------------------------------------------------------------------------------

// object.__dlpack__(stream=, max_version=), each argument only if wanted. Null with the exception pending on failure.
PyObject* call_dlpack(PyObject* object, PyObject* stream, bool versioned) {
  static PyObject* const method = interned("__dlpack__");
  static PyObject* const max_version = nb::make_tuple(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION).release().ptr();
  static PyObject* const names_stream = nb::make_tuple("stream").release().ptr();
  static PyObject* const names_version = nb::make_tuple("max_version").release().ptr();
  static PyObject* const names_both = nb::make_tuple("stream", "max_version").release().ptr();
  PyObject* buffer[4] = {nullptr, object, nullptr, nullptr};
  PyObject** next = buffer + 2;
  if (stream != nullptr) *next++ = stream;
  if (versioned) *next++ = max_version;
  PyObject* names = versioned           ? (stream != nullptr ? names_both : names_version)
                    : stream != nullptr ? names_stream
                                        : nullptr;
  return PyObject_VectorcallMethod(method, buffer + 1, kOneArgument, names);
}

// The same, for producers of before DLPack 1.0 too. Null with the exception pending on failure.
nb::object dlpack_of(PyObject* object, ArrayType& type, PyObject* stream) {
  if (!type.old_protocol) {
    PyObject* capsule = call_dlpack(object, stream, true);
    if (capsule != nullptr || !PyErr_ExceptionMatches(PyExc_TypeError)) return nb::steal(capsule);
    PyErr_Clear();
  }
  PyObject* capsule = call_dlpack(object, stream, false);
  type.old_protocol |= capsule != nullptr;
  return nb::steal(capsule);
}

[[noreturn, gnu::cold]] void refuse_export(PyObject* object, const char* name, const Call& call) {
  raise(PyExc_TypeError, call.function, ": ", name, " is a ", type_name(object),
        " that its __dlpack__ does not hand out; expected a dense array of a native floating-point type on one device");
}

DLDevice device_of(PyObject* object, const char* name, const Call& call) try {
  const auto pair = nb::cast<nb::tuple>(nb::handle(object).attr("__dlpack_device__")());
  return {static_cast<DLDeviceType>(nb::cast<int>(nb::int_(pair[0]))), nb::cast<int>(nb::int_(pair[1]))};
} catch (nb::python_error& error) {
  error.restore();
  refuse_export(object, name, call);
} catch (const std::bad_cast&) {
  raise(PyExc_TypeError, call.function, ": ", name, " is a ", type_name(object),
        " whose __dlpack_device__() gives something else; expected a tuple of two ints");
}

// TensorFlow ends the process when it is asked for the memory of strings and handles.
void check_tensorflow(nb::handle object, const char* name, const Call& call) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  if (dtype.is_none()) return;  // what only looks like one
  for (const char* kind : {"is_floating", "is_integer", "is_bool", "is_complex"}) {
    if (nb::cast<bool>(dtype.attr(kind))) return;
  }
  raise(PyExc_TypeError, call.function, ": ", name, " has dtype ", nb::cast<std::string>(dtype.attr("name")),
        "; expected float64, float32, float16 or bfloat16");
}

// NumPy and CuPy know bfloat16 only as ml_dtypes' extension type, which their __dlpack__ refuses.
bool is_extension_bfloat16(nb::handle object, const ArrayType& type) {
  if (type.framework != Framework::numpy && type.framework != Framework::cupy) return false;
  return nb::cast<std::string>(object.attr("dtype").attr("name")) == "bfloat16";
}

}  // namespace

void Call::tell_autograd() const {
  for (int i = 0; i < written_count; ++i) torch_increment_version(written[i]);
}

void TensorArg::read(nb::handle object, const char* name, Access access, Call& call) {
  take(object.ptr(), name, access, call);
  check_dtype(name, call);
  check_memory(name, call);
}

void TensorArg::read_optional(nb::handle object, const char* name, Access access, Call& call) {
  if (!object.is_none()) read(object, name, access, call);
}

void TensorArg::read_optional_mask(nb::handle object, const char* name, Access access, Call& call) {
  if (object.is_none()) return;
  take(object.ptr(), name, access, call);
  check_integers(kDLUInt, 8, name, call);
  check_memory(name, call);
}

void TensorArg::read_optional_count(nb::handle object, const char* name, Call& call) {
  if (object.is_none()) return;
  take(object.ptr(), name, Access::update, call);
  check_integers(kDLInt, 64, name, call);
  check_memory(name, call);
}

void TensorArg::read_bytes(nb::handle object, const char* name, Call& call) {
  take(object.ptr(), name, Access::fill, call);
}

nb::handle joined_mark() {
  static PyObject* const mark = attribute_of("normact.outputs", "JOINED");
  return mark;
}

bool TensorArg::read_joined(nb::handle mean, nb::handle rstd, Access access, Call& call, TensorArg* second) {
  if (!rstd.is(joined_mark())) return false;
  read(mean, "mean", access, call);
  if (tensor_.ndim < 1 || tensor_.ndim > kMaxDims || tensor_.shape[0] != 2 || tensor_.strides == nullptr) {
    raise(PyExc_ValueError, call.function, ": mean is to hold mean and rstd; expected a tensor of shape (2, ...)");
  }
  const int64_t step = tensor_.strides[0] * (tensor_.dtype_bits / 8);
  ++tensor_.shape;
  ++tensor_.strides;
  --tensor_.ndim;
  second->tensor_ = tensor_;
  second->tensor_.byte_offset += static_cast<uint64_t>(step);
  second->present_ = true;
  return true;
}

bool TensorArg::on_cuda() const {
  return tensor_.device_type == NORMACT_DEVICE_CUDA || tensor_.device_type == NORMACT_DEVICE_CUDA_MANAGED;
}

void TensorArg::take(PyObject* object, const char* name, Access access, Call& call) {
  ArrayType type = array_type_of(object);  // a copy: another of its kind may be asked for while Python code runs
  check_type(object, type, name, call.function);
  if (type.framework == Framework::torch && access != Access::fill) check_torch(object, name, call);
  if (type.framework == Framework::torch && access == Access::write && call.written_count < Call::kMostWritten) {
    call.written[call.written_count++] = object;
  }
  if (access != Access::read && (type.framework == Framework::jax || type.framework == Framework::tensorflow)) {
    raise(PyExc_TypeError, call.function, ": ", name, " is of type ", type_name(object),
          ", which is immutable; expected no array here, so that the function makes one");
  }
  if (type.exchange == nullptr) return take_by_protocol(object, type, name, access, call);
  DLTensor tensor;
  if (type.exchange->dltensor_from_py_object_no_sync(object, &tensor) != 0) {
    raise(PyExc_TypeError, call.function, ": ", name, " is a ", type_name(object), " that DLPack cannot describe; ",
          "expected a dense array with memory of its own");
  }
  if (is_cuda(tensor.device) && !call.stream.accept(type, tensor.device)) {
    return take_by_protocol(object, type, name, access, call);
  }
  copy(tensor);
  present_ = true;
}

void TensorArg::take_by_protocol(PyObject* object, ArrayType& type, const char* name, Access access, Call& call) {
  nb::object detached;  // PyTorch's protocol refuses what requires a gradient also where none is recorded
  if (type.framework == Framework::torch && torch_requires_grad(object)) {
    detached = nb::handle(object).attr("detach")();
    object = detached.ptr();
  }
  nb::object stream;  // stays null on the CPU
  if (type.framework != Framework::numpy) {
    const DLDevice device = device_of(object, name, call);
    if (is_cuda(device)) {
      const bool ordered = type.exchange == nullptr && call.stream.accept(type, device);
      // TensorFlow takes no stream: it waits for all its work instead.
      if (type.framework != Framework::tensorflow) stream = nb::int_(ordered ? -1 : call.stream.dlpack_number());
    }
  }
  if (type.framework == Framework::tensorflow) check_tensorflow(object, name, call);
  nb::object capsule = dlpack_of(object, type, stream.ptr());
  const bool bfloat16 = !capsule.is_valid() && PyErr_ExceptionMatches(PyExc_BufferError) != 0 && [&] {
    nb::error_scope pending;
    return is_extension_bfloat16(object, type);
  }();
  if (bfloat16) {
    PyErr_Clear();
    const nb::object bits = nb::handle(object).attr("view")("uint16");
    capsule = dlpack_of(bits.ptr(), type, stream.ptr());
  }
  if (!capsule.is_valid()) refuse_export(object, name, call);
  if (type.old_protocol) array_type_of(object).old_protocol = true;
  take_capsule(std::move(capsule), name, access, call);
  if (bfloat16) tensor_.dtype_code = NORMACT_DTYPE_BFLOAT;
}

// The capsule is kept as it is: its own destructor gives the array back when the call ends.
void TensorArg::take_capsule(nb::object capsule, const char* name, Access access, const Call& call) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
      raise(PyExc_TypeError, call.function, ": ", name, " speaks DLPack ", managed->version.major, "; expected ",
            DLPACK_MAJOR_VERSION, " or older");
    }
    if (access != Access::read && (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {
      raise(PyExc_ValueError, call.function, ": ", name, " is read-only; expected a writable array");
    }
    copy(managed->dl_tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    copy(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->dl_tensor);
  } else {
    raise(PyExc_TypeError, call.function, ": ", name, " has a __dlpack__ that returns no DLPack capsule");
  }
  owner_ = std::move(capsule);
  present_ = true;
}

void TensorArg::copy(const DLTensor& tensor) {
  tensor_ = *normact_from_dlpack(&tensor);
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) return;  // the library's sentence says it
  if (tensor.shape != nullptr) tensor_.shape = std::copy_n(tensor.shape, tensor.ndim, shape_) - tensor.ndim;
  if (tensor.strides != nullptr) tensor_.strides = std::copy_n(tensor.strides, tensor.ndim, strides_) - tensor.ndim;
}

void TensorArg::check_dtype(const char* name, const Call& call) const {
  const bool floating = (tensor_.dtype_code == NORMACT_DTYPE_FLOAT &&
                         (tensor_.dtype_bits == 16 || tensor_.dtype_bits == 32 || tensor_.dtype_bits == 64)) ||
                        (tensor_.dtype_code == NORMACT_DTYPE_BFLOAT && tensor_.dtype_bits == 16);
  if (!floating || tensor_.dtype_lanes != 1) {
    raise(PyExc_TypeError, call.function, ": ", name, " has dtype ", dtype_text(tensor_),
          "; expected float64, float32, float16 or bfloat16");
  }
}

void TensorArg::check_integers(DLDataTypeCode code, int bits, const char* name, const Call& call) const {
  if (tensor_.dtype_code == code && tensor_.dtype_bits == bits && tensor_.dtype_lanes == 1) return;
  raise(PyExc_TypeError, call.function, ": ", name, " has dtype ", dtype_text(tensor_), "; expected ",
        code == kDLInt ? "int" : "uint", bits);
}

void TensorArg::check_memory(const char* name, const Call& call) const {
  const int64_t* begin = tensor_.shape;
  const int64_t* end = begin + std::max(tensor_.ndim, 0);
  if (tensor_.data == nullptr && std::find(begin, end, 0) == end) {
    raise(PyExc_TypeError, call.function, ": ", name,
          " has no memory (a fake, meta or wrapper tensor?); expected an array with data");
  }
}

}  // namespace normact::python
