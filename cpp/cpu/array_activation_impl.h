// SPDX-License-Identifier: Apache-2.0
// The loops of array_activation.h, a table by kind for each precision.
#pragma once

#include "cpu/array_activation.h"
#include "cpu/simd_math.h"
#include "cpu/simd_pair.h"

namespace normact::cpu::NORMACT_ISA {

/// M: the math policy of a vector. N: its lanes.
template <class M, class N>
NORMACT_SIMD auto pair_scalars(const ArrayActivation& self) {
  const auto broadcast = [](N n) __attribute__((always_inline)) { return broadcast_pair(n); };
  using Number = typename PairMath<M>::Number;
  if constexpr (sizeof(N) == 8) {
    return map_scalars<Number>(self.double_scalars, broadcast);
  } else {
    return map_scalars<Number>(self.float_scalars, broadcast);
  }
}

template <class M, class N, template <class> class Act>
void array_values(const ArrayActivation& self, void* array, int64_t count) {
  static_assert(kActivationStep % kPairLanes<N> == 0);
  const auto scalars = pair_scalars<M, N>(self);
  N* const h = static_cast<N*>(array);
  for (int64_t j = 0; j < count; j += kPairLanes<N>) {
    store_pair(h + j, Act<PairMath<M>>::at(load_pair(h + j), scalars).value);
  }
}

template <class M, class N, template <class> class Act>
void array_slopes(const ArrayActivation& self, void* array, int64_t count) {
  const auto scalars = pair_scalars<M, N>(self);
  N* const h = static_cast<N*>(array);
  for (int64_t j = 0; j < count; j += kPairLanes<N>) {
    store_pair(h + j, Act<PairMath<M>>::at(load_pair(h + j), scalars).slope);
  }
}

template <class M, class N, template <class> class Act>
void array_slopes_from_output(const ArrayActivation& self, void* array, int64_t count) {
  const auto scalars = pair_scalars<M, N>(self);
  N* const y = static_cast<N*>(array);
  for (int64_t j = 0; j < count; j += kPairLanes<N>) {
    store_pair(y + j, Act<PairMath<M>>::slope_from_output(load_pair(y + j), scalars));
  }
}

template <class M, class N, template <class> class Act>
constexpr ArrayActivationRow array_activation_row() {
  ArrayActivationRow row = {array_values<M, N, Act>, array_slopes<M, N, Act>, nullptr};
  if constexpr (Act<PairMath<M>>::kSlopeFromOutput) row.slope_from_output = array_slopes_from_output<M, N, Act>;
  return row;
}

/// By kind, in the order of the list.
template <class M, class N>
inline constexpr ArrayActivationRow kArrayActivations[] = {
#define NORMACT_TABLE_ROW(symbol, value, name, Struct) array_activation_row<M, N, Struct>(),
    NORMACT_ACTIVATION_LIST(NORMACT_TABLE_ROW)
#undef NORMACT_TABLE_ROW
};

}  // namespace normact::cpu::NORMACT_ISA
