// SPDX-License-Identifier: Apache-2.0
// Kernels by planes: any layout, fast where the places of a channel are contiguous.
#pragma once

#include "cpu/channel_plane_gradients.h"
#include "cpu/channel_whole_planes.h"
#include "cpu/row_views.h"

namespace normact::cpu::NORMACT_ISA {

/// body(sample, channel, piece of the places) for the parts of a block.
template <class Body>
NORMACT_SIMD void for_block(const PlaneBlock& block, int64_t piece, Body body) {
  for (int64_t i = 0; i < block.planes; ++i) {
    const int64_t sample = block.sample + (block.along_samples ? i : 0);
    const int64_t channel = block.channel + (block.along_samples ? 0 : i);
    for (int64_t begin = block.places.begin; begin < block.places.end; begin += piece) {
      body(sample, channel, Range{begin, begin + piece < block.places.end ? begin + piece : block.places.end});
    }
  }
}

/// The same for a range of elements in the order sample, channel, place.
template <class Body>
NORMACT_SIMD void for_elements(const ChannelGeometry& geometry, Range elements, int64_t piece, Body body) {
  int64_t plane = elements.begin / geometry.places, begin = elements.begin - plane * geometry.places;
  int64_t sample = plane / geometry.channels, channel = plane - sample * geometry.channels;
  for (int64_t left = elements.end - elements.begin; left > 0;) {
    const int64_t end = begin + left < geometry.places ? begin + left : geometry.places;
    left -= end - begin;
    for (; begin < end; begin += piece) body(sample, channel, Range{begin, begin + piece < end ? begin + piece : end});
    begin = 0;
    if (++channel == geometry.channels) ++sample, channel = 0;
  }
}

/// A range of elements: the planes that are whole in it, and the elements before and after these. whole: whether planes
/// go together; else all elements are before them.
struct WholePlanes {
  Range before;
  Range planes;
  Range after;

  NORMACT_SIMD WholePlanes(int64_t places, Range elements, bool whole) : before(elements), planes{}, after{} {
    const int64_t first = (elements.begin + places - 1) / places, end = elements.end / places;
    if (!whole || first >= end) return;
    before.end = first * places;
    planes = {first, end};
    after = {end * places, elements.end};
  }
};

/// The next block of a series.
NORMACT_SIMD void advance(PlaneBlock& block) { block.channel += block.along_samples ? 1 : block.planes; }

/// Sums over pieces of any length. Few enough numbers are added in fp32; their sums are added in double.
template <class T, int kSums>
class PieceSums {
 public:
  /// Adds what term(element, lanes, accumulators) adds to accumulators[k], over all elements of a piece. kPairs:
  /// whether all that it reads is of type T, and lanes may be Two.
  template <bool kPairs, class Term>
  NORMACT_SIMD void add(int64_t count, Term term) {
    constexpr int64_t kStep = kLanes<T>;
    constexpr int64_t kFlushed = 16 * 4 * kStep;  // elements between two flushes
    for (int64_t begin = 0; begin < count; begin += kFlushed) {
      const int64_t end = begin + kFlushed < count ? begin + kFlushed : count;
      if (pending_ + (end - begin) > kFlushed) flush();
      pending_ += end - begin;
      int64_t j = begin;
      for (; j + 4 * kStep <= end; j += 4 * kStep) {
        add_two<kPairs>(j, term, a_[0], a_[1]);
        add_two<kPairs>(j + 2 * kStep, term, a_[2], a_[3]);
      }
      if (j + 2 * kStep <= end) {
        add_two<kPairs>(j, term, a_[0], a_[1]);
        j += 2 * kStep;
      }
      if (j + kStep <= end) {
        term(j, All{}, a_[2]);
        j += kStep;
      }
      if (j < end) term(j, First{int(end - j)}, a_[3]);
    }
  }
  /// The sum of everything added.
  NORMACT_SIMD double total(int k) {
    if (pending_ > 0) flush();
    return totals_[k];
  }

 private:
  template <bool kPairs, class Term>
  static NORMACT_SIMD void add_two(int64_t j, Term term, Vec<T>* a, Vec<T>* b) {
    if constexpr (kPairs && kEvenAndOdd<T>) {
      Pair<Vec<T>> both[kSums];
      for (int k = 0; k < kSums; ++k) both[k] = pair(a[k], b[k]);
      term(j, Two{}, both);
      for (int k = 0; k < kSums; ++k) a[k] = both[k].a, b[k] = both[k].b;
    } else {
      term(j, All{}, a);
      term(j + kLanes<T>, All{}, b);
    }
  }
  NORMACT_SIMD void flush() {
    for (int k = 0; k < kSums; ++k) {
      totals_[k] += sum((a_[0][k] + a_[1][k]) + (a_[2][k] + a_[3][k]));
      for (int i = 0; i < 4; ++i) a_[i][k] = Vec<T>{};
    }
    pending_ = 0;
  }

  Vec<T> a_[4][kSums] = {};
  double totals_[kSums] = {};
  int64_t pending_ = 0;
};

/// total[k] += what term(array, element, lanes, accumulators) adds to accumulators[k], over the elements of a block.
template <class T, int kSums, class Term>
NORMACT_SIMD void sum_block(const Planes<T>& x, const PlaneBlock& block, T* buffer, double (&total)[kSums], Term term) {
  const int64_t places = block.places.end - block.places.begin;
  if (x.direct() && block.planes > 1 && is_small<T>(places)) {
    const T* const first = x.plane(block.sample, block.channel) + block.places.begin;
    const int64_t step = x.step(block.along_samples);
    return sum_small_planes<T>(block.planes, places, total,
                               [&](int64_t i, int64_t j, auto lanes, Vec<T>* a)
                                   __attribute__((always_inline)) { term(first + i * step, j, lanes, a); });
  }
  PieceSums<T, kSums> sums;
  for_block(block, x.direct() ? places : kPiece,
            [&](int64_t sample, int64_t channel, Range part) __attribute__((always_inline)) {
              const T* const s = x.read(sample, channel, part, buffer);
              sums.template add<true>(part.end - part.begin,
                                      [&](int64_t j, auto lanes, auto* a) { term(s, j, lanes, a); });
            });
  for (int k = 0; k < kSums; ++k) total[k] += sums.total(k);
}

template <class T>
NORMACT_SIMD Moments<double> moments_of_block(const Planes<T>& x, const PlaneBlock& block, T* buffer) {
  using N = Accumulator<T>;
  using V = Vec<T>;
  const int64_t count = block.planes * (block.places.end - block.places.begin);
  const double share = 1 / double(count);
  double value[1] = {}, squares[kExactSums<T> ? 1 : 2] = {};
  sum_block(x, block, buffer, value, [](const T* s, int64_t j, auto lanes, auto* a) __attribute__((always_inline)) {
    a[0] += load(s + j, lanes);
  });
  const V centre = on_grid<T>(broadcast(N(value[0] * share)));
  sum_block(x, block, buffer, squares, [&](const T* s, int64_t j, auto lanes, auto* a) __attribute__((always_inline)) {
    const auto d = keep(load(s + j, lanes) - spread(centre, lanes), lanes);
    a[0] = multiply_add(d, d, a[0]);
    if constexpr (!kExactSums<T>) a[1] += d;
  });
  const double shift = centre[0];
  double deviations = value[0] - double(count) * shift;
  if constexpr (!kExactSums<T>) deviations = squares[1];
  return corrected(shift, deviations, squares[0], count, share);
}

template <class T>
void plane_moments(const ChannelGeometry& geometry, const ChannelView& view, const PlaneBlock& first, int64_t count,
                   Moments<double>* moments) {
  alignas(64) T buffer[kPiece];
  const Planes<T> x(geometry, view);
  PlaneBlock block = first;
  // Planes of neighbouring channels that follow each other are one.
  const bool follow = !first.along_samples && x.direct() && view.channel_stride == geometry.places;
  for (int64_t i = 0; i < count; ++i, advance(block)) {
    const PlaneBlock one = {block.sample, block.channel, false, 1, {0, block.planes * geometry.places}};
    moments[i] = moments_of_block(x, follow && block.planes > 1 ? one : block, buffer);
  }
}

template <class T>
void plane_forward(const ChannelForward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                   Range elements) {
  using N = Accumulator<T>;
  alignas(64) T x_buffer[kPiece], addend_buffer[kPiece], y_buffer[kPiece];
  alignas(64) N h[kPadded];
  const Planes<T> x(p.geometry, p.x), addend(p.geometry, p.addend), y(p.geometry, p.y);
  const bool writes_mask = p.mask && mask_by_planes(p.geometry);
  const bool buffered = is_buffered(p);
  const bool whole = !buffered && !writes_mask && x.direct() && addend.direct() && y.direct();
  const WholePlanes of(p.geometry.places, elements, whole);
  forward_planes<T>(p, factors, of.planes);
  BitWriter bits(writes_mask ? p.mask + elements.begin / 8 : nullptr);
  const Direct direct = {p.activation.kind == NORMACT_ACTIVATION_RELU, writes_mask ? &bits : nullptr};
  const auto piece = [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
    const int64_t count = places.end - places.begin;
    const PlaneFactors<T> f(factors, channel);
    const T* const from = x.read(sample, channel, places, x_buffer);
    const T* const with = addend.read(sample, channel, places, addend_buffer);
    T* const to = y.target(sample, channel, places, y_buffer);
    const bool streams = streams_to(factors, to);
    if (!buffered) {
      direct_piece(streams, direct, f, from, with, to, count);
    } else {
      affine_piece<T, Fused::none>(f, from, with, h, count);
      clear_past(h, count);
      activation->value(*activation, h, activation_count(count));
      round_piece(streams, h, to, count);
    }
    y.write(sample, channel, places, to);
  };
  for (const Range part : {of.before, of.after}) for_elements(p.geometry, part, kPiece, piece);
  if (writes_mask) bits.finish();
  if (factors.streams) stream_fence();
}

/// Bits are counted in the order sample, before, channel, after.
template <class T>
void write_mask(const ChannelForward& p, const ChannelFactors& factors, Range range) {
  using N = Accumulator<T>;
  alignas(64) T x_buffer[kPiece], addend_buffer[kPiece];
  alignas(64) N h[kPiece];
  const Planes<T> x(p.geometry, p.x), addend(p.geometry, p.addend);
  const int64_t after = p.geometry.places_after, before = p.geometry.places / after;
  BitWriter bits(p.mask + range.begin / 8);
  for (int64_t bit = range.begin; bit < range.end;) {
    const int64_t run = bit / after, place = bit - run * after;
    const int64_t channel = run % p.geometry.channels, outer = run / p.geometry.channels;
    const int64_t sample = outer / before, first = (outer - sample * before) * after + place;
    int64_t count = after - place < kPiece ? after - place : kPiece;
    if (count > range.end - bit) count = range.end - bit;
    const Range places = {first, first + count};
    affine_piece<T, Fused::none>(PlaneFactors<T>(factors, channel), x.read(sample, channel, places, x_buffer),
                                 addend.read(sample, channel, places, addend_buffer), h, count);
    bits.append(h, count);
    bit += count;
  }
  bits.finish();
}

/// The sums of small planes that are arrays, whose dh is dy: blocks of several planes of a channel, or of one each.
template <class T>
NORMACT_SIMD void sums_of_small_planes(const ChannelBackward& p, const ChannelFactors& factors, const PlaneBlock& first,
                                       int64_t count, ChannelSums* sums) {
  const Planes<T> dy(p.geometry, p.dy), x(p.geometry, p.x);
  const int64_t places = p.geometry.places;
  const T *dys = dy.plane(first.sample, first.channel), *xs = x.plane(first.sample, first.channel);
  const int64_t dy_next = dy.step(false), x_next = x.step(false);
  if (first.planes == 1) {
    sum_each_small_plane<T, 2>(
        count, places,
        [&](int64_t i, int64_t j, auto lanes, Vec<T>* a) __attribute__((always_inline)) {
          add_gradients(PlaneFactors<T>(factors, first.channel + i), dys + i * dy_next, xs + i * x_next, j, lanes, a);
        },
        [&](int64_t i, const double* total) { sums[i] = {total[0], total[1]}; });
    return;
  }
  const int64_t dy_step = dy.step(true), x_step = x.step(true);
  for (int64_t i = 0; i < count; ++i, dys += dy_next, xs += x_next) {
    const PlaneFactors<T> f(factors, first.channel + i);
    double total[2] = {};
    sum_small_planes<T>(first.planes, places, total,
                        [&](int64_t k, int64_t j, auto lanes, Vec<T>* a) __attribute__((always_inline)) {
                          add_gradients(f, dys + k * dy_step, xs + k * x_step, j, lanes, a);
                        });
    sums[i] = {total[0], total[1]};
  }
}

template <class T>
void plane_sums(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                const PlaneBlock& first, int64_t count, ChannelSums* sums) {
  PlaneGradients<T> gradients(p, activation, factors, Pass::sums);
  const bool direct = gradients.plain() && gradients.direct();
  if (direct && first.along_samples && is_small<T>(p.geometry.places)) {
    return sums_of_small_planes<T>(p, factors, first, count, sums);
  }
  PlaneBlock block = first;
  for (int64_t i = 0; i < count; ++i, advance(block)) {
    PieceSums<T, 2> totals;
    for_block(
        block, direct ? kPlaneChunk : kPiece,
        [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
          const PlaneFactors<T> f(factors, channel);
          gradients.visit(f, sample, channel, places, [&](const auto* dh, const T* x) __attribute__((always_inline)) {
            constexpr bool kPairs = std::is_same_v<decltype(dh), const T*>;
            totals.template add<kPairs>(places.end - places.begin,
                                        [&](int64_t j, auto lanes, auto* a) { add_gradients(f, dh, x, j, lanes, a); });
          });
        });
    sums[i] = {totals.total(0), totals.total(1)};
  }
}

template <class T>
void plane_backward(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                    Range elements) {
  alignas(64) T dx_buffer[kPiece], daddend_buffer[kPiece];
  PlaneGradients<T> gradients(p, activation, factors, Pass::gradients);
  const Planes<T> dx(p.geometry, p.dx), daddend(p.geometry, p.daddend);
  const bool whole = gradients.plain() && gradients.direct() && dx.direct() && daddend.direct();
  const WholePlanes of(p.geometry.places, elements, whole);
  backward_planes<T>(p, factors, of.planes);
  const auto piece = [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
    const PlaneFactors<T> f(factors, channel);
    T* const to = dx.target(sample, channel, places, dx_buffer);
    T* const beside = daddend.target(sample, channel, places, daddend_buffer);
    gradients.visit(f, sample, channel, places, [&](const auto* dh, const T* x) __attribute__((always_inline)) {
      gradient_piece<T>(streams_to(factors, to, beside), p.frozen, f, dh, x, to, beside, places.end - places.begin);
    });
    dx.write(sample, channel, places, to);
    if (daddend) daddend.write(sample, channel, places, beside);
  };
  for (const Range part : {of.before, of.after}) for_elements(p.geometry, part, kPiece, piece);
  if (factors.streams) stream_fence();
}

}  // namespace normact::cpu::NORMACT_ISA
