// SPDX-License-Identifier: Apache-2.0
#include "core/array.h"

#include <cstdint>
#include <limits>

#include "core/message.h"

namespace normact {
namespace {

constexpr uintptr_t kQueryAddress = 4096;  // stands for the data of a query: not null, aligned to everything

Status read_dtype(const normact_tensor& tensor, const char* name, DType* dtype) {
  if (tensor.dtype_lanes != 1) [[unlikely]] {
    return invalid(name, " has dtype lanes ", tensor.dtype_lanes, "; expected 1");
  }
  const int bits = tensor.dtype_bits;
  if (tensor.dtype_code == NORMACT_DTYPE_FLOAT && (bits == 16 || bits == 32 || bits == 64)) {
    *dtype = bits == 32 ? DType::f32 : bits == 16 ? DType::f16 : DType::f64;
  } else if (tensor.dtype_code == NORMACT_DTYPE_BFLOAT && bits == 16) {
    *dtype = DType::bf16;
  } else {
    return invalid(name, " has dtype code ", int{tensor.dtype_code}, " with ", bits,
                   " bits; expected float64, float32, float16 or bfloat16");
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

Status read_shape(const normact_tensor& tensor, const char* name, Array* array) {
  if (tensor.ndim < 0) [[unlikely]]
    return invalid(name, " has ndim ", tensor.ndim, "; expected at least 0");
  if (tensor.ndim > kMaxTensorDims) [[unlikely]] {
    return not_supported(name, " has ndim ", tensor.ndim, "; at most ", kMaxTensorDims, " are supported");
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) [[unlikely]] {
    return invalid(name, " has a NULL shape; expected ", tensor.ndim, " sizes");
  }
  int64_t product = size_of(array->dtype);  // in bytes
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
  array->ndim = tensor.ndim;
  array->shape = tensor.shape;
  array->strides = tensor.strides;
  array->size = empty ? 0 : product / size_of(array->dtype);
  return {};
}

// lowest and highest, from the strides.
Status read_extent(const char* name, Array* array) {
  const int64_t element = size_of(array->dtype);
  array->lowest = 0;
  array->highest = array->size * element;
  if (array->size == 0 || array->strides == nullptr) return {};
  array->highest = element;
  for (int d = 0; d < array->ndim; ++d) {
    if (array->shape[d] == 1) continue;
    int64_t reach;
    int64_t& end = array->strides[d] < 0 ? array->lowest : array->highest;
    if (__builtin_mul_overflow(array->strides[d], element, &reach) ||
        __builtin_mul_overflow(reach, array->shape[d] - 1, &reach) || __builtin_add_overflow(end, reach, &end))
        [[unlikely]] {
      return invalid(name, " has strides ", tuple_text(array->ndim, array->strides), " for shape ",
                     tuple_text(array->ndim, array->shape), ", which reach beyond 2^63 bytes");
    }
  }
  return {};
}

Status read_data(const normact_tensor& tensor, const char* name, Array* array) {
  const auto start = reinterpret_cast<uintptr_t>(tensor.data);
  uintptr_t first;
  array->data = static_cast<char*>(tensor.data);
  if (array->size == 0) return {};
  if (tensor.data == nullptr) [[unlikely]] {
    return invalid(name, " has NULL data; expected a pointer to its ", array->size, " elements");
  }
  uintptr_t end;
  if (__builtin_add_overflow(start, tensor.byte_offset, &first) ||
      __builtin_add_overflow(first, static_cast<uintptr_t>(array->highest), &end) ||
      first < uintptr_t{0} - static_cast<uintptr_t>(array->lowest)) [[unlikely]] {
    return invalid(name, " has byte_offset ", tensor.byte_offset, " and strides that leave the address space");
  }
  if (first % static_cast<uintptr_t>(size_of(array->dtype)) != 0) [[unlikely]] {
    return invalid(name, " has data at an address that is not a multiple of ", size_of(array->dtype),
                   " bytes; expected alignment to its dtype ", name_of(array->dtype));
  }
  array->data = reinterpret_cast<char*>(first);
  return {};
}

}  // namespace

Status read_array(const normact_tensor& tensor, const char* name, Purpose purpose, Array* array) {
  NORMACT_TRY(read_dtype(tensor, name, &array->dtype));
  NORMACT_TRY(read_device(tensor, name, &array->device));
  NORMACT_TRY(read_shape(tensor, name, array));
  NORMACT_TRY(read_extent(name, array));
  if (purpose == Purpose::run) return read_data(tensor, name, array);
  array->data = reinterpret_cast<char*>(kQueryAddress);
  return {};
}

}  // namespace normact
