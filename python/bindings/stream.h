// SPDX-License-Identifier: Apache-2.0
// The CUDA stream that a call works on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/array_type.h"

namespace normact::python {

/// The stream of one call: the one that was asked for, else the current stream of the framework of the first CUDA
/// array, else the legacy default stream. It is decided when the first CUDA array is met; CPU calls never ask.
class StreamChoice {
 public:
  /// `requested` is None or a stream handle as an int; 0 and 1 both mean the legacy default stream.
  StreamChoice(const char* function, PyObject* requested);

  /// To be called for every CUDA array before its memory is used. True if the array's framework has put its work on
  /// the chosen stream, so that nothing has to wait.
  bool accept(const ArrayType& type, DLDevice device);

  /// What __dlpack__(stream=) wants to hear for an array that was not on the stream.
  int64_t dlpack_number() const;

  void* handle() const { return reinterpret_cast<void*>(handle_); }

  /// Arrays of frameworks that are not ordered by the stream may be freed or read by them as soon as the call returns;
  /// this waits for the work if there was one.
  void wait_for_strangers() const;

 private:
  static bool current_of(const ArrayType& type, DLDevice device, uintptr_t* handle);

  uintptr_t handle_ = 0;
  bool decided_ = false;
  bool strangers_ = false;
  int device_id_ = -1;             // of the first CUDA array
  const void* ordered_ = nullptr;  // accept() said yes to this framework on that device
};

}  // namespace normact::python
