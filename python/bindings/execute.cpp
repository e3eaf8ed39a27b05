// SPDX-License-Identifier: Apache-2.0
#include "bindings/execute.h"

#include <limits>

#include "bindings/outputs.h"

namespace normact::python {

double number(nb::handle object, const char* name, const Call& call) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    const bool is_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    let_exits_pass();
    PyErr_Clear();
    if (is_large)
      raise(PyExc_ValueError, call.function, ": ", name, " is an int that no float holds; expected a number");
    raise(PyExc_TypeError, call.function, ": ", name, " is of type ", type_name(object.ptr()), "; expected a number");
  }
  return value;
}

int64_t integer(nb::handle object, const char* name, const char* expected, const Call& call) {
  const Py_ssize_t value = PyNumber_AsSsize_t(object.ptr(), PyExc_ValueError);
  if (value == -1 && PyErr_Occurred()) {
    const bool is_large = PyErr_ExceptionMatches(PyExc_ValueError) != 0;
    let_exits_pass();
    PyErr_Clear();
    if (is_large) {
      raise(PyExc_ValueError, call.function, ": ", name, " is ", nb::repr(object).c_str(), "; expected one of 64 bits");
    }
    raise(PyExc_TypeError, call.function, ": ", name, " is of type ", type_name(object.ptr()), "; expected ", expected);
  }
  return value;
}

int32_t one_axis(nb::handle object, const char* name, const Call& call) {
  const int64_t axis = integer(object, name, "an int", call);
  if (axis < std::numeric_limits<int32_t>::min() || axis > std::numeric_limits<int32_t>::max()) {
    raise(PyExc_ValueError, call.function, ": ", name, " is ", axis, "; expected an axis of the array");
  }
  return static_cast<int32_t>(axis);
}

NormActivation::NormActivation(nb::handle object, const Call& call) {
  if (object.is_none()) return;
  kind = static_cast<int32_t>(integer(object[0], "activation", "an activation's number", call));
  alpha = number(object[1], "alpha", call);
  beta = number(object[2], "beta", call);
  threshold = number(object[3], "threshold", call);
}

int32_t& row_variant() {
  thread_local int32_t variant = NORMACT_ROW_AUTO;
  return variant;
}

std::atomic<int32_t>& sm_margin() {
  static std::atomic<int32_t> margin{0};
  return margin;
}

namespace {

constexpr size_t kMaxRoom = size_t{1} << 20;  // more than this is not kept

/// Host memory of a thread, which grows to what its calls need.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { ::operator delete(data_, kAlignment); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void grow(size_t bytes) {
    void* const larger = ::operator new(bytes, kAlignment);
    ::operator delete(data_, kAlignment);
    data_ = larger;
    bytes_ = bytes;
  }

 private:
  static constexpr std::align_val_t kAlignment{kWorkspaceAlignment};
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

Room& room() {
  thread_local Room of_thread;
  return of_thread;
}

}  // namespace

Workspace::~Workspace() { ::operator delete(host_, std::align_val_t{kWorkspaceAlignment}); }

void Workspace::take_room(const TensorArg& like) {
  if (like.on_cuda()) return;
  data_ = room().data();
  bytes_ = room().bytes();
}

void Workspace::allocate(size_t bytes, const TensorArg& like, nb::handle like_object, Call& call) {
  bytes_ = bytes;
  if (bytes == 0) return;
  if (!like.on_cuda()) {
    if (bytes <= kMaxRoom) room().grow(bytes);
    data_ = bytes <= kMaxRoom ? room().data() : host_ = ::operator new(bytes, std::align_val_t{kWorkspaceAlignment});
    return;
  }
  array_ = make_bytes(like_object, bytes);
  view_.read_bytes(array_, "workspace", call);
  data_ = static_cast<char*>(view_.get()->data) + view_.get()->byte_offset;
}

void Workspace::describe(normact_exec* exec) const {
  exec->workspace = data_;
  exec->workspace_bytes = bytes_;
}

}  // namespace normact::python
