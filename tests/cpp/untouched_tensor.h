// SPDX-License-Identifier: Apache-2.0
// A tensor of a GPU for what only reads shapes, strides and addresses: its memory is never touched.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "normact/normact.h"

namespace normact {

using Ints = std::vector<int64_t>;

inline Ints dense_strides(const Ints& shape) {
  Ints strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

/// At an address of its own for each slot, `phase` bytes behind a multiple of 256.
class UntouchedTensor {
 public:
  UntouchedTensor() = default;
  UntouchedTensor(uintptr_t slot, Ints shape, Ints strides, int bits, int64_t phase = 0, bool of_mask = false)
      : shape_(std::move(shape)), strides_(std::move(strides)) {
    raw_.data = reinterpret_cast<void*>((slot << 40) + static_cast<uintptr_t>(phase));
    raw_.device_type = NORMACT_DEVICE_CUDA;
    raw_.ndim = static_cast<int32_t>(shape_.size());
    raw_.dtype_code = of_mask ? NORMACT_DTYPE_UINT : NORMACT_DTYPE_FLOAT;
    raw_.dtype_bits = static_cast<uint8_t>(bits);
    raw_.dtype_lanes = 1;
  }

  /// Null for none.
  const normact_tensor* get() {
    if (shape_.empty()) return nullptr;
    raw_.shape = shape_.data();
    raw_.strides = strides_.data();
    return &raw_;
  }

 private:
  Ints shape_, strides_;
  normact_tensor raw_{};
};

}  // namespace normact
