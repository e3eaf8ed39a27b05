// SPDX-License-Identifier: Apache-2.0
// The sums of the lanes of several vectors at a time: their halves are put together before they are added, so that four
// vectors take 13 operations instead of 32. The additions are those of sum(), in the same order.
#pragma once

#include <utility>

#include "cpu/simd.h"

namespace normact::cpu::NORMACT_ISA {

template <class V>
constexpr int kLanesOf = int(sizeof(V) / sizeof(V{}[0]));

/// a and b are of kSegments segments each. The upper half of each is added to its lower: a's segments, then b's.
template <int kSegments, class V, int... kLane>
NORMACT_SIMD V add_halves(V a, V b, std::integer_sequence<int, kLane...>) {
  constexpr int kSegment = kLanesOf<V> / kSegments, kHalf = kSegment / 2;
  return __builtin_shufflevector(a, b, (kLane / kHalf * kSegment + kLane % kHalf)...) +
         __builtin_shufflevector(a, b, (kLane / kHalf * kSegment + kHalf + kLane % kHalf)...);
}

/// Lane i of the result is sum(v[i]); kCount is a power of two, and at most the lanes. kSegments is for the recursion.
template <int kCount, int kSegments = 1, class V>
NORMACT_SIMD V sums_of(const V (&v)[kCount]) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanesOf<V>>{};
  if constexpr (kSegments == kLanesOf<V>) {
    return v[0];
  } else if constexpr (kCount == 1) {
    const V next[1] = {add_halves<kSegments>(v[0], v[0], kAll)};
    return sums_of<1, 2 * kSegments>(next);
  } else {
    V next[kCount / 2];
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) next[i] = add_halves<kSegments>(v[2 * i], v[2 * i + 1], kAll);
    return sums_of<kCount / 2, 2 * kSegments>(next);
  }
}

/// total[i] += sum(v[i]), for any kCount that is a power of two.
template <int kCount, class V>
NORMACT_SIMD void add_sums(double (&total)[kCount], const V (&v)[kCount]) {
  constexpr int kEach = kCount < kLanesOf<V> ? kCount : kLanesOf<V>;
#pragma GCC unroll 8
  for (int i = 0; i < kCount; i += kEach) {
    V part[kEach];
#pragma GCC unroll 16
    for (int k = 0; k < kEach; ++k) part[k] = v[i + k];
    const V sums = sums_of(part);
#pragma GCC unroll 16
    for (int k = 0; k < kEach; ++k) total[i + k] += double(sums[k]);
  }
}

}  // namespace normact::cpu::NORMACT_ISA
