// SPDX-License-Identifier: Apache-2.0
#include "core/array.h"

#include <cstdint>
#include <limits>

#include "core/message.h"
#include "core/workspace.h"

namespace normact {
namespace {

Status check_lanes(const normact_tensor& tensor, const char* name) {
  if (tensor.dtype_lanes == 1) return {};
  return invalid(name, " has dtype lanes ", tensor.dtype_lanes, "; expected 1");
}

Status wrong_dtype(const normact_tensor& tensor, const char* name, const char* expected) {
  return invalid(name, " has dtype code ", int{tensor.dtype_code}, " with ", int{tensor.dtype_bits}, " bits; expected ",
                 expected);
}

Status read_dtype(const normact_tensor& tensor, const char* name, DType* dtype) {
  NORMACT_TRY(check_lanes(tensor, name));
  const int bits = tensor.dtype_bits;
  if (tensor.dtype_code == NORMACT_DTYPE_FLOAT && (bits == 16 || bits == 32 || bits == 64)) {
    *dtype = bits == 32 ? DType::f32 : bits == 16 ? DType::f16 : DType::f64;
  } else if (tensor.dtype_code == NORMACT_DTYPE_BFLOAT && bits == 16) {
    *dtype = DType::bf16;
  } else {
    return wrong_dtype(tensor, name, "float64, float32, float16 or bfloat16");
  }
  return {};
}

Status read_device(const normact_tensor& tensor, const char* name, Device* device) {
  if (tensor.device_id < 0) [[unlikely]] {
    return invalid(name, " has device_id ", tensor.device_id, "; expected at least 0");
  }
  switch (tensor.device_type) {
    case NORMACT_DEVICE_CPU:
    case NORMACT_DEVICE_CUDA_HOST: *device = {false, 0}; return {};
    case NORMACT_DEVICE_CUDA:
    case NORMACT_DEVICE_CUDA_MANAGED: *device = {true, tensor.device_id}; return {};
    default: break;
  }
  return invalid(name, " has device_type ", tensor.device_type,
                 "; expected a CPU (1), CUDA (2), pinned (3) or managed (13) device");
}

Status read_shape(const normact_tensor& tensor, const char* name, Memory* memory) {
  if (tensor.ndim < 0) [[unlikely]]
    return invalid(name, " has ndim ", tensor.ndim, "; expected at least 0");
  if (tensor.ndim > kMaxTensorDims) [[unlikely]] {
    return not_supported(name, " has ndim ", tensor.ndim, "; at most ", kMaxTensorDims, " are supported");
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) [[unlikely]] {
    return invalid(name, " has a NULL shape; expected ", tensor.ndim, " sizes");
  }
  int64_t product = memory->element;  // in bytes
  bool empty = false;
  for (int d = 0; d < tensor.ndim; ++d) {
    const int64_t n = tensor.shape[d];
    if (n < 0) [[unlikely]] {
      return invalid(name, " has size ", n, " in dimension ", d, "; expected at least 0");
    }
    empty |= n == 0;
    if (n != 0 && __builtin_mul_overflow(product, n, &product)) [[unlikely]] {
      return invalid(name, " has shape ", tuple_text(tensor.ndim, tensor.shape), ", whose size in bytes exceeds 2^63");
    }
  }
  memory->ndim = tensor.ndim;
  memory->shape = tensor.shape;
  memory->strides = tensor.strides;
  memory->size = empty ? 0 : product / memory->element;
  return {};
}

// lowest and highest, from the strides.
Status read_extent(const char* name, Memory* memory) {
  const int64_t element = memory->element;
  memory->lowest = 0;
  memory->highest = memory->size * element;
  if (memory->size == 0 || memory->strides == nullptr) return {};
  memory->highest = element;
  for (int d = 0; d < memory->ndim; ++d) {
    if (memory->shape[d] == 1) continue;
    int64_t reach;
    int64_t& end = memory->strides[d] < 0 ? memory->lowest : memory->highest;
    if (__builtin_mul_overflow(memory->strides[d], element, &reach) ||
        __builtin_mul_overflow(reach, memory->shape[d] - 1, &reach) || __builtin_add_overflow(end, reach, &end))
        [[unlikely]] {
      return invalid(name, " has strides ", tuple_text(memory->ndim, memory->strides), " for shape ",
                     tuple_text(memory->ndim, memory->shape), ", which reach beyond 2^63 bytes");
    }
  }
  return {};
}

Status read_data(const normact_tensor& tensor, const char* name, Memory* memory) {
  const auto start = reinterpret_cast<uintptr_t>(tensor.data);
  uintptr_t first;
  memory->data = static_cast<char*>(tensor.data);
  if (memory->size == 0) return {};
  if (tensor.data == nullptr) [[unlikely]] {
    return invalid(name, " has NULL data; expected a pointer to its ", memory->size, " elements");
  }
  uintptr_t end;
  if (__builtin_add_overflow(start, tensor.byte_offset, &first) ||
      __builtin_add_overflow(first, static_cast<uintptr_t>(memory->highest), &end) ||
      first < uintptr_t{0} - static_cast<uintptr_t>(memory->lowest)) [[unlikely]] {
    return invalid(name, " has byte_offset ", tensor.byte_offset, " and strides that leave the address space");
  }
  if (first % static_cast<uintptr_t>(memory->element) != 0) [[unlikely]] {
    return invalid(name, " has data at an address that is not a multiple of ", memory->element,
                   " bytes; expected alignment to its dtype");
  }
  memory->data = reinterpret_cast<char*>(first);
  return {};
}

// Everything but the dtype, whose size is in memory->element.
Status read_memory(const normact_tensor& tensor, const char* name, Purpose purpose, Memory* memory) {
  NORMACT_TRY(read_device(tensor, name, &memory->device));
  NORMACT_TRY(read_shape(tensor, name, memory));
  NORMACT_TRY(read_extent(name, memory));
  if (purpose == Purpose::run) return read_data(tensor, name, memory);
  memory->data = static_cast<char*>(query_address());
  return {};
}

}  // namespace

Status read_array(const normact_tensor& tensor, const char* name, Purpose purpose, Array* array) {
  NORMACT_TRY(read_dtype(tensor, name, &array->dtype));
  array->element = size_of(array->dtype);
  return read_memory(tensor, name, purpose, array);
}

Status read_bytes(const normact_tensor& tensor, const char* name, Purpose purpose, Memory* memory) {
  NORMACT_TRY(check_lanes(tensor, name));
  if (tensor.dtype_code != NORMACT_DTYPE_UINT || tensor.dtype_bits != 8) return wrong_dtype(tensor, name, "uint8");
  memory->element = 1;
  return read_memory(tensor, name, purpose, memory);
}

Status read_integers(const normact_tensor& tensor, const char* name, Purpose purpose, Memory* memory) {
  NORMACT_TRY(check_lanes(tensor, name));
  if (tensor.dtype_code != NORMACT_DTYPE_INT || tensor.dtype_bits != 64) return wrong_dtype(tensor, name, "int64");
  memory->element = 8;
  return read_memory(tensor, name, purpose, memory);
}

}  // namespace normact
