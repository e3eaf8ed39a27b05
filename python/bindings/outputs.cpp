// SPDX-License-Identifier: Apache-2.0
#include "bindings/outputs.h"

#include <string>

#include "bindings/array_type.h"
#include "bindings/error.h"
#include "bindings/python_api.h"

namespace normact::python {
namespace {

constexpr Py_ssize_t kMostSizes = 64;  // no framework makes arrays of more dimensions
constexpr size_t kRoomBefore = PY_VECTORCALL_ARGUMENTS_OFFSET;

const char* text(nb::handle string) { return nb::cast<const char*>(string); }

/// like.new_empty(*shape, dtype=dtype); PyTorch reads single sizes in half of the time that a tuple takes.
nb::object torch_new_empty(PyObject* like, nb::handle shape, PyObject* dtype) {
  static PyObject* const method = PyUnicode_InternFromString("new_empty");
  static PyObject* const names = nb::make_tuple("dtype").release().ptr();
  const Py_ssize_t sizes = PyTuple_Size(shape.ptr());
  PyObject* args[kMostSizes + 4] = {nullptr, like};
  PyObject** next = args + 2;
  if (sizes == 0 || sizes > kMostSizes) *next++ = shape.ptr();
  for (Py_ssize_t i = 0; i < sizes && sizes <= kMostSizes; ++i) *next++ = PyTuple_GetItem(shape.ptr(), i);
  const auto count = static_cast<size_t>(next - args - 1);
  *next = dtype;
  return checked(PyObject_VectorcallMethod(method, args + 1, count | kRoomBefore, names));
}

PyObject* statistic_dtype(PyObject* like) {
  static PyObject* const name = PyUnicode_InternFromString("dtype");
  static PyObject* const float32 = attribute_of("torch", "float32");
  static PyObject* const float64 = attribute_of("torch", "float64");
  return checked(PyObject_GetAttr(like, name)).ptr() == float64 ? float64 : float32;
}

/// The array that a new one is like, and what messages call it: read only where it is needed.
struct Like {
  nb::handle array;
  const char* function;
  nb::handle names;  // of an output and of this array

  const char* name() const { return text(item(names, 1)); }
  bool of_torch() const {
    const ArrayType& type = array_type_of(array.ptr());
    if (type.framework == Framework::torch && type.plain) return true;
    check_type(array.ptr(), type, name(), function);
    return false;
  }
};

nb::object make_like(const Like& like) {
  static PyObject* const others = attribute_of("normact.arrays", "make_like");
  if (like.of_torch()) return torch_empty_like(like.array);
  return nb::handle(others)(like.array, like.function, like.name());
}

/// Whether the shape of a statistic is its sizes in memory, and where its axes are among them.
bool is_ordered(nb::handle shape) {
  return PyTuple_Size(shape.ptr()) == 2 && PyTuple_CheckExact(item(shape, 0).ptr()) != 0;
}

/// Such a statistic of its sizes in memory, with its axes in their order: by a method that makes a view.
nb::object with_axes(nb::object statistic, nb::handle shape, const char* method) {
  return nb::handle(statistic).attr(method)(item(shape, 1));
}

/// Its sizes in the order of its axes: for the arrays of libraries that make none that lie otherwise.
nb::tuple row_major(nb::handle shape) {
  const nb::object sizes = nb::borrow(item(shape, 0)), places = nb::borrow(item(shape, 1));
  nb::list of_axes;
  for (Py_ssize_t i = 0; i < PyTuple_Size(places.ptr()); ++i) {
    of_axes.append(item(sizes, PyLong_AsLong(item(places, i).ptr())));
  }
  return nb::tuple(of_axes);
}

/// A statistic of x. `before` is one of the same shape, if there is one: it is copied in less time.
nb::object make_statistic(const Like& x, nb::handle shape, nb::handle before) {
  static PyObject* const others = attribute_of("normact.arrays", "make_statistic");
  if (!x.of_torch()) {
    const Framework framework = array_type_of(x.array.ptr()).framework;
    const bool ordered = is_ordered(shape), views = framework == Framework::numpy || framework == Framework::cupy;
    const nb::object sizes = !ordered ? nb::borrow(shape) : views ? nb::borrow(item(shape, 0)) : row_major(shape);
    const nb::object made = nb::handle(others)(x.array, sizes, x.function, x.name());
    return ordered && views ? with_axes(made, shape, "transpose") : made;
  }
  return before.is_valid() ? torch_empty_like(before) : torch_statistic(x.array, shape);
}

/// The entries of out=, which names the first output or, as a tuple, several.
class Given {
 public:
  Given(const char* function, nb::handle out, nb::handle names) : out_(out), tuple_(PyTuple_Check(out.ptr())) {
    const Py_ssize_t most = PyTuple_Size(names.ptr());
    count_ = tuple_ ? PyTuple_Size(out.ptr()) : out.is_none() ? 0 : 1;
    if (count_ <= most) return;
    std::string all;
    for (nb::handle both : nb::borrow<nb::tuple>(names))
      all += (all.empty() ? "" : ", ") + std::string(text(item(both, 0)));
    raise(PyExc_ValueError, function, ": out has ", count_, " entries; expected at most ", most, ": ", all);
  }
  /// Invalid if it is None or not there.
  nb::handle operator[](Py_ssize_t place) const {
    if (place >= count_) return {};
    const nb::handle entry = tuple_ ? item(out_, place) : out_;
    return entry.is_none() ? nb::handle() : entry;
  }
  nb::tuple all(Py_ssize_t count) const {
    nb::list entries;
    for (Py_ssize_t i = 0; i < count; ++i) entries.append((*this)[i].is_valid() ? (*this)[i] : nb::none());
    return nb::tuple(entries);
  }

 private:
  nb::handle out_;
  bool tuple_;
  Py_ssize_t count_;
};

// Whether the output is to be made if it is not given. The operators of PyTorch give a list.
bool wants(nb::handle wanted, Py_ssize_t place) {
  if (place == 0 || wanted.is_none()) return true;
  return (PyList_Check(wanted.ptr()) ? PyList_GetItem(wanted.ptr(), place) : item(wanted, place).ptr()) == Py_True;
}

// An array like `like`; or, if that is a shape or a number, a statistic of x of that shape or so many bytes beside x. A
// number in the place of x is no array either, and make_like() says so.
nb::object make(nb::handle x, nb::handle like, nb::handle statistic, const char* function, nb::handle names) {
  if (PyTuple_CheckExact(like.ptr())) return make_statistic({x, function, names}, like, statistic);
  if (PyLong_CheckExact(like.ptr()) && !like.is(x)) return make_bytes(x, nb::cast<size_t>(like));
  return make_like({like, function, names});
}

nb::tuple unpack(const char* function, nb::handle out, nb::tuple names) {
  const Given given(function, out, names);
  return given.all(PyTuple_Size(names.ptr()));
}

PyObject* hand_over() {
  static PyObject* const function = attribute_of("normact.arrays", "handed_over");
  return function;
}

bool any_lent(nb::handle done) {
  const Py_ssize_t count = PyTuple_Size(done.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const array = item(done, i).ptr();
    if (array != Py_None && array_type_of(array).framework == Framework::other) return true;
  }
  return false;
}

}  // namespace

nb::object torch_empty_like(nb::handle like) {
  static PyObject* const empty_like = attribute_of("torch", "empty_like");
  PyObject* args[] = {nullptr, like.ptr()};
  return checked(PyObject_Vectorcall(empty_like, args + 1, 1 | kRoomBefore, nullptr));
}

nb::object torch_statistic(nb::handle x, nb::handle shape) {
  if (is_ordered(shape)) return with_axes(torch_statistic(x, item(shape, 0)), shape, "permute");
  return torch_new_empty(x.ptr(), shape, statistic_dtype(x.ptr()));
}

nb::tuple outputs(const char* function, nb::handle out, nb::tuple names, nb::tuple likes, nb::handle wanted) {
  const Given given(function, out, names);
  const Py_ssize_t count = PyTuple_Size(likes.ptr());
  const nb::tuple done = nb::steal<nb::tuple>(PyTuple_New(count));
  nb::handle statistic;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const nb::handle like = item(likes, i), theirs = given[i];
    const bool produced = i == 0 || !like.is_none();  // of a missing x the sentence follows below
    if (!produced && theirs.is_valid()) {
      raise(PyExc_ValueError, function, ": out.", text(item(item(names, i), 0)),
            " is given, but this call does not produce it; expected None");
    }
    nb::object entry = theirs.is_valid() ? nb::borrow(theirs) : nb::none();
    const bool made = produced && !theirs.is_valid() && wants(wanted, i);
    if (made) entry = make(item(likes, 0), like, statistic, function, item(names, i));
    if (made && PyTuple_CheckExact(like.ptr())) statistic = entry;
    PyTuple_SetItem(done.ptr(), i, entry.release().ptr());
  }
  return done;
}

nb::any finish(nb::handle type, nb::tuple done, nb::handle out, nb::tuple names, nb::tuple likes,
               const char* function) {
  static const auto make = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new));
  nb::object all = done;
  if (any_lent(done)) {
    nb::list arrays;
    for (nb::handle like : likes)
      arrays.append(PyTuple_CheckExact(like.ptr()) || PyLong_CheckExact(like.ptr()) ? item(likes, 0) : like);
    all = nb::handle(hand_over())(done, unpack(function, out, names), nb::tuple(arrays), function);
  }
  const nb::object arguments = checked(PyTuple_Pack(1, all.ptr()));
  return as_any(checked(make(reinterpret_cast<PyTypeObject*>(type.ptr()), arguments.ptr(), nullptr)));
}

nb::object output(const char* function, nb::handle out, nb::tuple names, nb::handle like) {
  return out.is_none() ? make_like({like, function, item(names, 0)}) : nb::borrow(out);
}

nb::object finish(nb::object done, nb::handle out, nb::handle like, const char* function) {
  if (!out.is_none() || array_type_of(done.ptr()).framework != Framework::other) return done;
  return nb::handle(hand_over())(nb::make_tuple(done), nb::make_tuple(nb::none()), nb::make_tuple(like), function)[0];
}

nb::object make_bytes(nb::handle like, size_t count) {
  static PyObject* const others = attribute_of("normact.arrays", "make_bytes");
  if (array_type_of(like.ptr()).framework != Framework::torch) return nb::handle(others)(like, count);
  static PyObject* const uint8 = attribute_of("torch", "uint8");
  return torch_new_empty(like.ptr(), nb::make_tuple(count), uint8);
}

void bind_outputs(nb::module_& module) {
  module.def("outputs", &outputs, nb::arg("function"), nb::arg("out").none(), nb::arg("names"), nb::arg("likes"),
             nb::arg("wanted").none());
  module.def("unpack", &unpack, nb::arg("function"), nb::arg("out").none(), nb::arg("names"));
  module.def("finish", nb::overload_cast<nb::handle, nb::tuple, nb::handle, nb::tuple, nb::tuple, const char*>(&finish),
             nb::arg("type"), nb::arg("done"), nb::arg("out").none(), nb::arg("names"), nb::arg("likes"),
             nb::arg("function"));
}

}  // namespace normact::python
