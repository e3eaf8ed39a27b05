// SPDX-License-Identifier: Apache-2.0
#include "bindings/stream.h"

#include "bindings/error.h"

namespace normact::python {
namespace {

constexpr uintptr_t kLegacyAlias = 1;  // cudaStreamLegacy, another name of handle 0

}  // namespace

StreamChoice::StreamChoice(const char* function, PyObject* requested) {
  if (requested == Py_None) return;
  void* handle = PyLong_Check(requested) ? PyLong_AsVoidPtr(requested) : nullptr;
  if (!PyLong_Check(requested) || PyErr_Occurred()) {
    raise(PyExc_TypeError, function, ": stream is of type ", type_name(requested),
          "; expected a stream handle or a stream object");
  }
  handle_ = reinterpret_cast<uintptr_t>(handle);
  if (handle_ == kLegacyAlias) handle_ = 0;
  decided_ = true;
}

bool StreamChoice::current_of(const ArrayType& type, DLDevice device, uintptr_t* handle) {
  if (type.exchange != nullptr) {
    void* stream = nullptr;
    if (type.exchange->current_work_stream(kDLCUDA, device.device_id, &stream) != 0) nb::raise_python_error();
    *handle = reinterpret_cast<uintptr_t>(stream);
  } else if (type.framework == Framework::cupy) {
    nb::object stream = nb::module_::import_("cupy.cuda").attr("get_current_stream")(device.device_id);
    *handle = nb::cast<uintptr_t>(stream.attr("ptr"));
  } else {
    return false;
  }
  if (*handle == kLegacyAlias) *handle = 0;
  return true;
}

bool StreamChoice::accept(const ArrayType& type, DLDevice device) {
  const void* framework = type.exchange != nullptr ? static_cast<const void*>(type.exchange) : type.type;
  if (ordered_ == framework && device_id_ == device.device_id) return true;
  uintptr_t current = 0;
  const bool known = current_of(type, device, &current);
  if (!decided_) {
    handle_ = current;
    decided_ = true;
  }
  if (device_id_ < 0) device_id_ = device.device_id;
  if (!known || current != handle_) {
    strangers_ = true;
    return false;
  }
  ordered_ = framework;
  return true;
}

int64_t StreamChoice::dlpack_number() const { return static_cast<int64_t>(handle_ == 0 ? kLegacyAlias : handle_); }

void StreamChoice::wait_for_strangers() const {
  if (!strangers_) return;
  nb::module_::import_("normact._driver").attr("synchronize")(device_id_, handle_);
}

}  // namespace normact::python
