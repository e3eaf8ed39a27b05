// SPDX-License-Identifier: Apache-2.0
// Activations of rows with gaps between them, forward: the lines of x and y stay where they are. Gathered into an array
// they would be moved once more, and read there in other pieces than they were written.
#pragma once

#include "cpu/pointwise_blocks.h"
#include "cpu/pointwise_pieces.h"

namespace normact::cpu::NORMACT_ISA {

/// Lines some way apart.
template <class T>
struct Lines {
  int64_t count;   // of lines
  int64_t length;  // a vector and more
  const T* x;
  int64_t x_step;
  T* out;  // may be x
  int64_t out_step;
};

template <class T>
using LinesKernel = void (*)(const Lines<T>&, const BlockScalars<T>&);

template <class T>
NORMACT_SIMD Group<T> load_two(const T* first, const T* second) {
  return pair(load(first, All{}), load(second, All{}));
}
template <class T>
NORMACT_SIMD void store_two(T* first, T* second, Group<T> v) {
  store(first, v.a, All{});
  store(second, v.b, All{});
}

// The last vectors of a line overlap those before them, and are read before these are written. `end`: the last one's
// place.

template <class T, class Act>
NORMACT_SIMD void forward_line(const T* x, T* out, int64_t end, Act act) {
  const int64_t before = end - kLanes<T>;
  if (before < 0) return store_two(out, out + end, act(load_two(x, x + end)));
  const Group<T> last = load_pair(x + before);
  for (int64_t j = 0; j < before; j += kGroup<T>) store_pair(out + j, act(load_pair(x + j)));
  store_pair(out + before, act(last));
}

/// A vector of each line in a group, so that an odd number of them costs no more than these.
template <class T, class Act>
NORMACT_SIMD void forward_two_lines(const T* x, T* out, const T* next_x, T* next_out, int64_t end, Act act) {
  const Group<T> last = load_two(x + end, next_x + end);
  for (int64_t j = 0; j < end; j += kLanes<T>) store_two(out + j, next_out + j, act(load_two(x + j, next_x + j)));
  store_two(out + end, next_out + end, act(last));
}

/// What is short waits for memory, and goes through it line by line; what computes takes two lines at a time.
template <class T, template <class> class Act>
void forward_lines(const Lines<T>& lines, const BlockScalars<T>& scalars) {
  const auto s = group_scalars<T>(scalars);
  const Lines<T> l = lines;
  const int64_t end = l.length - kLanes<T>;
  const auto act = [&](Group<T> x) __attribute__((always_inline)) { return Act<GroupMath<T>>::at(x, s).value; };
  for (int64_t i = 0; i < l.count; i += kShort<Act> ? 1 : 2) {
    const T* const x = l.x + i * l.x_step;
    T* const out = l.out + i * l.out_step;
    if constexpr (kShort<Act>) {
      forward_line(x, out, end, act);
    } else {
      const bool two = i + 1 < l.count;  // else the last one is taken as both
      forward_two_lines(x, out, two ? x + l.x_step : x, two ? out + l.out_step : out, end, act);
    }
  }
}

/// By kind.
template <class T>
inline constexpr LinesKernel<T> kLines[] = {
#define NORMACT_TABLE_ROW(symbol, value, name, Struct) forward_lines<T, Struct>,
    NORMACT_ACTIVATION_LIST(NORMACT_TABLE_ROW)
#undef NORMACT_TABLE_ROW
};

/// Whether loops are short, by kind.
inline constexpr bool kIsShort[] = {
#define NORMACT_TABLE_ROW(symbol, value, name, Struct) kShort<Struct>,
    NORMACT_ACTIVATION_LIST(NORMACT_TABLE_ROW)
#undef NORMACT_TABLE_ROW
};

// Elements. Longer lines go two at a time no faster than each by itself: from memory they are slower.
template <class T>
constexpr int64_t kMaxPairedLine = 1200 / int64_t{sizeof(Accumulator<T>)};

/// Lanes without an element cost nothing where loops wait for memory. Where they compute, as over 16 bits for the
/// conversions, there may be so many eighths of a line's length. See CPU.md for what was measured.
template <class T>
bool takes_lines(int kind, int64_t length) {
  constexpr bool kConverts = sizeof(T) == 2, kSmallVectors = kVectorBytes == 16;
  const bool is_short = kIsShort[kind];
  if (length < kLanes<T> || length > (is_short ? kLinesPiece : kMaxPairedLine<T>)) return false;
  if (is_short && !kConverts) return true;
  if (!is_short && kConverts && kVectorBytes < 64) return false;
  const int64_t step = is_short ? kGroup<T> : kLanes<T>, idle = (step - length % step) % step;
  const int64_t eighths = is_short ? (kSmallVectors ? 1 : 6) : (kConverts || kSmallVectors ? 1 : 3);
  return 8 * idle <= eighths * length;
}

template <class T>
NORMACT_SIMD void forward_by_lines(const PointwiseForward& p, const PieceRule& rule, Range elements) {
  const int last = p.geometry.ndim - 1;
  const int64_t length = p.geometry.shape[last], x_step = p.x.stride[last - 1], y_step = p.y.stride[last - 1];
  const LinesKernel<T> kernel = kLines<T>[p.activation.kind];
  const BlockScalars<T> scalars = scalars_of<T>(p);
  for_pieces(p.geometry, rule, elements, [&](const Position& at, int64_t, int64_t count) {
    const T* const x = static_cast<const T*>(p.x.data) + at.offset(p.x.stride);
    kernel({count / length, length, x, x_step, static_cast<T*>(p.y.data) + at.offset(p.y.stride), y_step}, scalars);
  });
}

}  // namespace normact::cpu::NORMACT_ISA
