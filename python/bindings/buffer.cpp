// SPDX-License-Identifier: Apache-2.0
#include "bindings/buffer.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <new>
#include <string_view>
#include <vector>

#include "bindings/error.h"

namespace normact::python {
namespace {

namespace nb = nanobind;

// JAX copies host memory that is less aligned than this, and TensorFlow aborts the process on it.
constexpr std::align_val_t kAlignment{64};

const std::map<std::string_view, nb::dlpack::dtype> kDtypes = {
    {"float64", nb::dtype<double>()},
    {"float32", nb::dtype<float>()},
    {"float16", {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}},
    {"bfloat16", {static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1}},
    {"int64", nb::dtype<int64_t>()},
    {"uint8", nb::dtype<uint8_t>()},
};

/// An uninitialised row-major array in host memory, which others take over by DLPack.
nb::ndarray<nb::array_api, nb::device::cpu> empty(nb::handle shape, const char* dtype) {
  const auto entry = kDtypes.find(dtype);
  if (entry == kDtypes.end())
    raise(PyExc_TypeError, "empty: dtype is ", dtype, "; expected a floating-point type, int64 or uint8");
  std::vector<size_t> sizes;
  size_t bytes = entry->second.bits / 8;
  for (nb::handle size : shape) {
    sizes.push_back(nb::cast<size_t>(size));
    if (__builtin_mul_overflow(bytes, sizes.back(), &bytes)) raise(PyExc_MemoryError, "empty: the shape is too large");
  }
  void* data = ::operator new(std::max<size_t>(bytes, 1), kAlignment);
  nb::capsule owner(data, [](void* memory) noexcept { ::operator delete(memory, kAlignment); });
  return {data, sizes.size(), sizes.data(), owner, nullptr, entry->second};
}

}  // namespace

void bind_buffer(nb::module_& module) {
  module.def("empty", &empty, nb::sig("def empty(shape: collections.abc.Iterable[int], dtype: str, /) -> object"));
}

}  // namespace normact::python
