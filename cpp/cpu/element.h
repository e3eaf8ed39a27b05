// SPDX-License-Identifier: Apache-2.0
// The element types as C++ types, and the number type that each is computed in.
#pragma once

#include <cstdint>

namespace normact::cpu {

struct Half {
  uint16_t bits;
};

struct BFloat {
  uint16_t bits;
};

template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};

/// float; double for double.
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

}  // namespace normact::cpu
