// SPDX-License-Identifier: Apache-2.0
// From a row's statistics to its output, and the same with an activation: the affine norm of some hundred columns goes
// to a buffer of accumulators, where an activation's loop runs over it, and is rounded from there.
#pragma once

#include "cpu/array_activation.h"
#include "cpu/row_views.h"
#include "cpu/simd_element.h"
#include "cpu/simd_stream.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int64_t kActivated = 1024;  // columns that an activation takes at a time

/// Out: T, or its accumulator for values that are not rounded.
template <class T, Storing kStoring, bool kWeight, bool kBias, class Out>
NORMACT_SIMD void normalize(const T* s, Out* y, const Accumulator<T>* weight, const Accumulator<T>* bias, int64_t cols,
                            Statistics statistics) {
  using V = Vec<T>;
  const V mean = broadcast(Accumulator<T>(statistics.mean));
  const V rstd = broadcast(Accumulator<T>(statistics.rstd));
  for_vectors<T>(cols, [&](int64_t j, auto lanes) {
    V value = normalized(load(s + j, lanes), mean, rstd);
    if constexpr (kWeight && kBias) {
      value = affine(value, load(weight + j, lanes), load(bias + j, lanes), kFused);
    } else if constexpr (kWeight) {
      value = value * load(weight + j, lanes);
    } else if constexpr (kBias) {
      value = value + load(bias + j, lanes);
    }
    store<kStoring>(y + j, value, lanes);
  });
}

/// weight, bias: null where there is none.
template <class T, Storing kStoring = Storing::usual, class Out>
NORMACT_SIMD void normalize(const T* s, Out* y, const Accumulator<T>* weight, const Accumulator<T>* bias, int64_t cols,
                            Statistics statistics) {
  if (weight && bias) return normalize<T, kStoring, true, true>(s, y, weight, bias, cols, statistics);
  if (weight) return normalize<T, kStoring, true, false>(s, y, weight, bias, cols, statistics);
  if (bias) return normalize<T, kStoring, false, true>(s, y, weight, bias, cols, statistics);
  normalize<T, kStoring, false, false>(s, y, weight, bias, cols, statistics);
}

/// A row whose y goes past the caches.
template <class T, class X>
__attribute__((noinline)) void normalize_streamed(const Forward<T, X>& f, const T* s, X* y, Statistics statistics) {
  if (elements_to_vector(y) == 0) return normalize<T, Storing::past>(s, y, f.weight, f.bias, f.cols, statistics);
  stream_pieces(y, f.cols, [&](X* piece, int64_t begin, int64_t count) {
    normalize<T>(s + begin, piece, f.weight ? f.weight + begin : nullptr, f.bias ? f.bias + begin : nullptr, count,
                 statistics);
  });
}

/// y = act(affine(normalized(s))), rounded once.
template <class T, class X>
__attribute__((noinline)) void normalize_activated(const Forward<T, X>& f, const T* s, X* y, Statistics statistics) {
  using N = Accumulator<T>;
  alignas(64) N h[kActivated];
  for (int64_t begin = 0; begin < f.cols; begin += kActivated) {
    const int64_t count = f.cols - begin < kActivated ? f.cols - begin : kActivated;
    clear_last_step(h, count);
    normalize<T>(s + begin, h, f.weight ? f.weight + begin : nullptr, f.bias ? f.bias + begin : nullptr, count,
                 statistics);
    f.activation->value(*f.activation, h, activation_count(count));
    const auto round = [&](X* to, int64_t first, int64_t number) {
      for_vectors<T>(number, [&](int64_t j, auto lanes) { store(to + j, load(h + first + j, lanes), lanes); });
    };
    if (f.streams) {
      stream_pieces(y + begin, count, round);
    } else {
      round(y + begin, 0, count);
    }
  }
}

/// g = dy * act'(h) for `count` columns from `begin`, h as in the forward. `g` has room for kActivated.
template <class T, class X>
__attribute__((noinline)) void activated_gradients(const Backward<T, X>& b, const GradientRow<T, X>& row, int64_t begin,
                                                   int64_t count, Accumulator<T>* g) {
  normalize<T>(row.x + begin, g, b.weight + begin, b.bias ? b.bias + begin : nullptr, count, {row.mean, row.rstd});
  b.activation->slope(*b.activation, g, activation_count(count));
  for_vectors<T>(
      count, [&](int64_t j, auto lanes) { store(g + j, load(g + j, lanes) * load(row.dy + begin + j, lanes), lanes); });
}

}  // namespace normact::cpu::NORMACT_ISA
