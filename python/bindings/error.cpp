// SPDX-License-Identifier: Apache-2.0
#include "bindings/error.h"

#include <string_view>
#include <utility>

namespace normact::python {
namespace {

// How C names what Python names otherwise, the longer ones first.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"desc->axes are ", "axis is "}, {"desc->axes", "axis"}, {"desc->", ""}, {"exec->", ""}, {"NULL", "None"},
};

}  // namespace

void raise_message(PyObject* type, const std::string& message) {
  if (PyErr_Occurred() != nullptr) {
    let_exits_pass();
    nanobind::chain_error(type, "%s", message.c_str());
    nanobind::raise_python_error();
  }
  // What came from outside, such as an environment variable, may be no UTF-8.
  PyObject* const text = PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace");
  if (text != nullptr) PyErr_SetObject(type, text);
  Py_XDECREF(text);
  nanobind::raise_python_error();
}

std::string last_sentence(const char* function) {
  std::string sentence = normact_last_error();
  const size_t colon = sentence.find(": ");
  sentence.replace(0, colon == std::string::npos ? 0 : colon + 2, std::string(function) + ": ");
  for (const auto& [c_word, python_word] : kWords) {
    for (size_t at = sentence.find(c_word); at != std::string::npos; at = sentence.find(c_word, at)) {
      sentence.replace(at, c_word.size(), python_word);
    }
  }
  return sentence;
}

void raise_status(normact_status status, const char* function) {
  const std::string sentence = last_sentence(function);
  switch (status) {
    case NORMACT_INVALID_ARGUMENT: raise(PyExc_ValueError, sentence);
    case NORMACT_NOT_SUPPORTED: raise(PyExc_NotImplementedError, sentence);
    case NORMACT_OUT_OF_MEMORY: raise(PyExc_MemoryError, sentence);
    default: raise(PyExc_RuntimeError, sentence);
  }
}

}  // namespace normact::python
