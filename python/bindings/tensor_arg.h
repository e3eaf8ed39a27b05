// SPDX-License-Identifier: Apache-2.0
// One array argument of a call: any framework's array as a normact_tensor, without a copy.
#pragma once

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "bindings/array_type.h"
#include "bindings/stream.h"
#include "normact/normact.h"

namespace normact::python {

/// update: of a state, as a running statistic. fill: to write to, and made a moment ago by our own code, so that
/// nothing need be asked about it.
enum class Access : uint8_t { read, write, update, fill };

/// What the arguments of one call have in common.
struct Call {
  const char* function;  // as Python knows it, for messages
  StreamChoice stream;
  std::optional<bool> torch_records_gradients = std::nullopt;  // not asked yet
  // PyTorch's tensors that the caller gave to be written to.
  static constexpr int kMostWritten = 8;
  int written_count = 0;
  PyObject* written[kMostWritten] = {};

  /// After the call: autograd must not go back from what they held before. Of states PyTorch does not tell it either.
  void tell_autograd() const;
};

/// normact.outputs.JOINED, in the place of rstd: both statistics are in one array, in the place of mean.
nb::handle joined_mark();

/// Lives on the stack of the call. PyTorch's tensors are read through DLPack's C exchange table (about 100 ns), all
/// others through __dlpack__. The shape is copied, because another thread may resize the array once the GIL is free.
class TensorArg {
 public:
  TensorArg() {}  // leaves the shape buffers as they are: clearing a kilobyte would cost more than the rest
  TensorArg(const TensorArg&) = delete;
  TensorArg& operator=(const TensorArg&) = delete;

  /// Takes a floating-point array.
  void read(nb::handle object, const char* name, Access access, Call& call);

  /// The same, but None means absent.
  void read_optional(nb::handle object, const char* name, Access access, Call& call);

  /// If `rstd` is joined_mark(), takes an array of shape (2, ...) that holds both statistics: this becomes its first
  /// half, `second` the other, which lives in the memory of this. Else it does nothing and says so.
  bool read_joined(nb::handle mean, nb::handle rstd, Access access, Call& call, TensorArg* second);

  /// Takes an array of uint8, or None.
  void read_optional_mask(nb::handle object, const char* name, Access access, Call& call);

  /// Takes an array of int64 to read and write, or None.
  void read_optional_count(nb::handle object, const char* name, Call& call);

  /// Takes an array of any element type to write to; for workspaces.
  void read_bytes(nb::handle object, const char* name, Call& call);

  /// Null if absent.
  const normact_tensor* get() const { return present_ ? &tensor_ : nullptr; }
  bool on_cuda() const;

 private:
  void take(PyObject* object, const char* name, Access access, Call& call);
  void take_by_protocol(PyObject* object, ArrayType& type, const char* name, Access access, Call& call);
  void take_capsule(nb::object capsule, const char* name, Access access, const Call& call);
  void copy(const DLTensor& tensor);
  void check_dtype(const char* name, const Call& call) const;
  void check_integers(DLDataTypeCode code, int bits, const char* name, const Call& call) const;
  void check_memory(const char* name, const Call& call) const;

  static constexpr int kMaxDims = 64;  // no framework makes more
  bool present_ = false;
  normact_tensor tensor_;
  nb::object owner_;  // the capsule that keeps a __dlpack__ view alive
  int64_t shape_[kMaxDims];
  int64_t strides_[kMaxDims];
};

}  // namespace normact::python
