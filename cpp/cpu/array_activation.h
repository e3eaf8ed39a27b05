// SPDX-License-Identifier: Apache-2.0
// An activation of plain arrays, for kernels that apply one between their own arithmetic and its rounding.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "math/activation_types.h"
#include "math/hd.h"

namespace normact::cpu {

constexpr int64_t kActivationStep = 64;  // counts are multiples of this

/// The count for so many elements: what is past them in the last step must be numbers too.
NORMACT_HD int64_t activation_count(int64_t elements) {
  return (elements + kActivationStep - 1) / kActivationStep * kActivationStep;
}

/// Zeros in the last step of so many elements, before these are written.
template <class N>
NORMACT_HD void clear_last_step(N* h, int64_t elements) {
  for (int64_t i = elements / kActivationStep * kActivationStep; i < activation_count(elements); ++i) h[i] = 0;
}

/// Arrays are of accumulators. How precise the results are follows the element type that they will be rounded to.
struct ArrayActivation {
  /// h[i] = act(h[i]).
  void (*value)(const ArrayActivation& self, void* h, int64_t count);
  /// h[i] = act'(h[i]).
  void (*slope)(const ArrayActivation& self, void* h, int64_t count);
  /// y[i] = act'(h) where y[i] = act(h); null for kinds whose output does not tell.
  void (*slope_from_output)(const ArrayActivation& self, void* y, int64_t count);
  ActivationScalars<float> float_scalars;
  ActivationScalars<double> double_scalars;
};

/// The functions of one kind.
struct ArrayActivationRow {
  decltype(ArrayActivation::value) value;
  decltype(ArrayActivation::slope) slope;
  decltype(ArrayActivation::slope_from_output) slope_from_output;
};

inline ArrayActivation array_activation(const ArrayActivationRow* by_kind, const Activation& activation) {
  const ArrayActivationRow& row = by_kind[activation.kind];
  return {row.value, row.slope, row.slope_from_output,
          activation_scalars<float>(activation.alpha, activation.beta, activation.threshold),
          activation_scalars<double>(activation.alpha, activation.beta, activation.threshold)};
}

}  // namespace normact::cpu
