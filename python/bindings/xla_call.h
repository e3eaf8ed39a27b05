// SPDX-License-Identifier: Apache-2.0
// One call of a handler by XLA: what it says about tensors and options in the words of normact.h, and errors back.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "bindings/xla_ffi.h"
#include "normact/normact.h"

namespace normact::python::xla {

enum class Platform : uint8_t { cpu, cuda };

/// No argument struct of the C API has more tensors.
constexpr size_t kMaxTensors = 16;

/// Thrown inside of a handler, and turned into an error of XLA's at its end.
struct Failure {
  int32_t code;
  std::string sentence;
  Error* given = nullptr;  // the runtime's own error, to be handed on as it is
};

/// The named options of a call.
class Options {
 public:
  explicit Options(const Attributes& attributes) : attributes_(attributes) {}

  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  std::string text(std::string_view name) const;

  /// int64 values that live as long as the call.
  const Array& integers(std::string_view name) const;

 private:
  const void* find(std::string_view name, AttributeType type) const;

  const Attributes& attributes_;
};

/// The operands and results of a call, by their places in the argument struct. The option "fields" has the place of
/// each: first the operands, then the results. A tensor that is updated in place is an operand and a result that share
/// a place and, as they are declared to be aliases, their memory.
class Tensors {
 public:
  Tensors(const Frame& frame, const Options& options, size_t count, int32_t device_type, int32_t device_id);

  /// One for each place, null where nothing is.
  const normact_tensor* const* pointers() const { return pointers_.data(); }

 private:
  void place(const Values& values, const int64_t* fields, size_t count);

  int32_t device_type_, device_id_;
  std::array<normact_tensor, kMaxTensors> tensors_;
  std::array<const normact_tensor*, kMaxTensors> pointers_{};
};

/// Scratch memory for the time of a call: on a GPU from XLA's allocator, whose reuse is ordered by the stream, so that
/// it may go back as soon as the work is enqueued.
class Scratch {
 public:
  Scratch(const Frame& frame, Platform platform, size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  const Frame& frame_;
  Platform platform_;
  size_t bytes_;
  void* block_ = nullptr;  // what XLA gave
  void* data_ = nullptr;   // where it is aligned
};

/// Fills in what the runtime asks for when it only wants to know whom it calls; whether it does.
bool answer_metadata(const Frame& frame);

/// The stream and the device that a call runs on.
void* stream_of(const Frame& frame);
int32_t device_of(const Frame& frame);

/// Throws what a status says, in the words of Python; `options` has the function's name.
void check_status(normact_status status, const Options& options);

Error* make_error(const Frame& frame, const Failure& failure);

}  // namespace normact::python::xla
