// SPDX-License-Identifier: Apache-2.0
// Whether strided tensors share memory. Exact for every layout that occurs in practice: a search that would take
// too long (many dimensions of unrelated strides) answers "yes".
#pragma once

#include <cstdint>

#include "core/array.h"

namespace normact {

/// The bytes that a tensor with elements occupies: begin + any sum of count_i * stride_i + any byte of an element, with
/// 0 <= count_i <= last_i. Strides are positive (a negative stride's tensor begins at its other end) and rise; terms
/// that lie evenly are one.
struct Footprint {
  static constexpr int kMaxTerms = kMaxTensorDims;
  struct Term {
    uint64_t stride;  // bytes
    uint64_t last;
  };
  uint64_t begin;
  uint64_t end;  // one past the highest byte
  uint64_t element;
  int count;
  bool repeats;  // some dimension of more than one index has stride 0
  Term terms[kMaxTerms];

  /// Strides are in elements; null: row-major contiguous. No size is 0.
  Footprint(const void* data, int64_t element_size, int ndim, const int64_t* shape, const int64_t* strides);
  explicit Footprint(const Memory& memory)
      : Footprint(memory.data, memory.element, memory.ndim, memory.shape, memory.strides) {}
};

/// Two indices of the tensor may name the same byte. Layouts whose strides do not nest count as such.
bool overlaps_itself(const Footprint& footprint);

bool overlap(const Footprint& a, const Footprint& b);

}  // namespace normact
