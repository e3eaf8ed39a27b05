// SPDX-License-Identifier: Apache-2.0
// Whether strided operands share memory. Exact for every layout that occurs in practice: a search that would take
// too long (many dimensions of unrelated strides) answers "yes".
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace normact {

/// The bytes an operand occupies: begin + any sum of count_i * stride_i + any byte of an element, with
/// 0 <= count_i <= last_i. Strides are positive; a negative stride's operand begins at its other end.
struct Footprint {
  static constexpr int kMaxTerms = 2 * kMaxDims;
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
};

/// Over the index spaces that the operand has. Both must be non-empty.
Footprint footprint_of(const Operand& operand, const RowGeometry& geometry, bool has_rows, bool has_cols);

/// Two indices of the operand may name the same byte. Layouts whose strides do not nest count as such.
bool overlaps_itself(const Footprint& footprint);

bool overlap(const Footprint& a, const Footprint& b);

}  // namespace normact
