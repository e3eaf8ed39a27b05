// SPDX-License-Identifier: Apache-2.0
// A tensor descriptor after every check that can be made on it alone.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/status.h"

namespace normact {

/// One bit an axis in a 64-bit set; far above what frameworks build.
constexpr int kMaxTensorDims = 64;

/// Pinned host memory counts as the CPU's, managed memory as CUDA's. Every CPU device is device 0.
struct Device {
  bool cuda;
  int id;
  bool operator==(const Device&) const = default;
};

/// Whether the tensors' memory matters: a workspace query does not look at data pointers.
enum class Purpose : uint8_t { run, query };

/// The checked memory of a tensor; shape and strides still belong to the caller.
struct Memory {
  char* data;       // first element, byte_offset applied; aligned to the dtype. For a query any non-null pointer.
  int64_t element;  // bytes of one element
  Device device;
  int ndim;
  const int64_t* shape;
  const int64_t* strides;  // in elements; null: row-major contiguous
  int64_t size;            // number of elements; the product of the non-zero sizes fits in int64 too
  int64_t lowest;          // bytes from data to the lowest byte that the array covers, <= 0
  int64_t highest;         // bytes from data to one past the highest byte; 0 for an empty array
};

/// A tensor of numbers.
struct Array : Memory {
  DType dtype;
};

/// Checks `tensor`, called `name` in messages.
Status read_array(const normact_tensor& tensor, const char* name, Purpose purpose, Array* array);

/// The same for a tensor of bits: its dtype is uint8, which no tensor of numbers has.
Status read_bytes(const normact_tensor& tensor, const char* name, Purpose purpose, Memory* memory);

/// The same for a tensor of int64.
Status read_integers(const normact_tensor& tensor, const char* name, Purpose purpose, Memory* memory);

}  // namespace normact
