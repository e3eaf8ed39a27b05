// SPDX-License-Identifier: Apache-2.0
// Kernels by planes: any layout, fast where the places of a channel are contiguous.
#pragma once

#include "cpu/channel_pieces.h"
#include "cpu/forward_kernels.h"

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

template <class T>
Moments<double> plane_moments(const ChannelGeometry& geometry, const ChannelView& view, const PlaneBlock& block) {
  using N = Accumulator<T>;
  using V = Vec<T>;
  alignas(64) T buffer[kPiece];
  const Planes<T> x(geometry, view);
  const int64_t piece = x.direct() ? kPlaneChunk : kPiece;
  const int64_t count = block.planes * (block.places.end - block.places.begin);
  const double share = 1 / double(count);
  double total[1] = {};
  for_block(block, piece, [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
    const T* const s = x.read(sample, channel, places, buffer);
    block_sums<T>(places.end - places.begin, total, [&](int64_t j, auto lanes, V* a) { a[0] += load(s + j, lanes); });
  });
  const N shift = N(total[0] * share);
  const V centre = broadcast(shift);
  double totals[2] = {};
  for_block(block, piece, [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
    const T* const s = x.read(sample, channel, places, buffer);
    block_sums<T>(places.end - places.begin, totals, [&](int64_t j, auto lanes, V* a) {
      const V d = keep(load(s + j, lanes) - centre, lanes);
      a[0] += d;
      a[1] = multiply_add(d, d, a[1]);
    });
  });
  return corrected(shift, totals[0], totals[1], count, share);
}

template <class T>
void plane_forward(const ChannelForward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                   Range elements) {
  using N = Accumulator<T>;
  alignas(64) T x_buffer[kPiece], addend_buffer[kPiece], y_buffer[kPiece];
  alignas(64) N h[kPiece];
  const Planes<T> x(p.geometry, p.x), addend(p.geometry, p.addend), y(p.geometry, p.y);
  const bool writes_mask = p.mask && mask_by_planes(p.geometry);
  const bool buffered = is_buffered(p, writes_mask), relu = p.activation.kind == NORMACT_ACTIVATION_RELU;
  const bool whole = !buffered && x.direct() && addend.direct() && y.direct();
  BitWriter bits(writes_mask ? p.mask + elements.begin / 8 : nullptr);
  if (buffered) __builtin_memset(h, 0, sizeof h);  // what is past a piece must be numbers too
  for_elements(p.geometry, elements, whole ? p.geometry.places : kPiece,
               [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
                 const int64_t count = places.end - places.begin;
                 const PlaneFactors<T> f(factors, channel);
                 const T* const from = x.read(sample, channel, places, x_buffer);
                 const T* const with = addend.read(sample, channel, places, addend_buffer);
                 T* const to = y.target(sample, channel, places, y_buffer);
                 if (!buffered) {
                   direct_piece(relu, f, from, with, to, count);
                 } else {
                   affine_piece<T, Fused::none>(f, from, with, h, count);
                   if (writes_mask) bits.append(h, count);
                   activation->value(*activation, h, padded(count));
                   for_vectors<T>(count, [&](int64_t j, auto lanes) { store(to + j, load(h + j, lanes), lanes); });
                 }
                 y.write(sample, channel, places, to);
               });
  if (writes_mask) bits.finish();
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

/// What a backward reads, piece by piece.
template <class T>
class PlaneGradients {
 public:
  using N = Accumulator<T>;

  NORMACT_SIMD PlaneGradients(const ChannelBackward& p, const ArrayActivation* activation)
      : p_(p),
        activation_(activation),
        source_(slope_source(p)),
        dy_(p.geometry, p.dy),
        x_(p.geometry, p.x),
        addend_(p.geometry, p.addend),
        y_(p.geometry, p.y) {
    if (source_ != SlopeSource::one) __builtin_memset(g_, 0, sizeof g_);
  }

  /// Whether dh is dy itself, and pieces may be of any length.
  NORMACT_SIMD bool plain() const { return source_ == SlopeSource::one; }
  NORMACT_SIMD bool direct() const { return dy_.direct() && x_.direct(); }

  /// use(dh, x) with arrays of a piece.
  template <class Use>
  NORMACT_SIMD void visit(const PlaneFactors<T>& f, int64_t sample, int64_t channel, Range places, Use use) {
    const int64_t count = places.end - places.begin;
    const T* const dy = dy_.read(sample, channel, places, dy_buffer_);
    const T* const x = x_.read(sample, channel, places, x_buffer_);
    if (plain()) return use(dy, x);
    fill(f, x, sample, channel, places, count);
    multiply_piece(dy, g_, count);
    use(static_cast<const N*>(g_), x);
  }

 private:
  NORMACT_SIMD void fill(const PlaneFactors<T>& f, const T* x, int64_t sample, int64_t channel, Range places,
                         int64_t count) {
    if (source_ == SlopeSource::bits) return fill_from_bits(sample, channel, places);
    if (source_ == SlopeSource::output) {
      const T* const y = y_.read(sample, channel, places, y_buffer_);
      for_vectors<T>(count, [&](int64_t j, auto lanes) { store(g_ + j, load(y + j, lanes), lanes); });
      return activation_->slope_from_output(*activation_, g_, padded(count));
    }
    const T* const addend = addend_.read(sample, channel, places, y_buffer_);
    affine_piece<T, Fused::none>(f, x, addend, g_, count);
    activation_->slope(*activation_, g_, padded(count));
  }
  NORMACT_SIMD void fill_from_bits(int64_t sample, int64_t channel, Range places) {
    const int64_t after = p_.geometry.places_after;
    for (int64_t begin = places.begin; begin < places.end;) {
      const int64_t to_turn = after - begin % after;
      const int64_t count = to_turn < places.end - begin ? to_turn : places.end - begin;
      expand_bits(p_.mask, mask_bit(p_.geometry, sample, channel, begin), 1, g_ + (begin - places.begin), count);
      begin += count;
    }
  }

  const ChannelBackward& p_;
  const ArrayActivation* activation_;
  SlopeSource source_;
  Planes<T> dy_, x_, addend_, y_;
  alignas(64) T dy_buffer_[kPiece];
  alignas(64) T x_buffer_[kPiece];
  alignas(64) T y_buffer_[kPiece];  // y's or the addend's
  alignas(64) N g_[kPiece];
};

template <class T>
ChannelSums plane_sums(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                       const PlaneBlock& block) {
  PlaneGradients<T> gradients(p, activation);
  const int64_t piece = gradients.plain() && gradients.direct() ? kPlaneChunk : kPiece;
  double totals[2] = {};
  for_block(block, piece, [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
    const PlaneFactors<T> f(factors, channel);
    gradients.visit(f, sample, channel, places, [&](const auto* dh, const T* x) __attribute__((always_inline)) {
      block_sums<T>(places.end - places.begin, totals, [&](int64_t j, auto lanes, Vec<T>* a) {
        const Vec<T> d = load(dh + j, lanes);
        const Vec<T> xhat = normalized(load(x + j, lanes), f.mean(j, lanes), f.rstd(j, lanes));
        a[0] = multiply_add(d, keep(xhat, lanes), a[0]);
        a[1] += d;
      });
    });
  });
  return {totals[0], totals[1]};
}

template <class T>
void plane_backward(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                    Range elements) {
  alignas(64) T dx_buffer[kPiece], daddend_buffer[kPiece];
  PlaneGradients<T> gradients(p, activation);
  const Planes<T> dx(p.geometry, p.dx), daddend(p.geometry, p.daddend);
  const bool whole = gradients.plain() && gradients.direct() && dx.direct() && daddend.direct();
  for_elements(p.geometry, elements, whole ? p.geometry.places : kPiece,
               [&](int64_t sample, int64_t channel, Range places) __attribute__((always_inline)) {
                 const PlaneFactors<T> f(factors, channel);
                 T* const to = dx.target(sample, channel, places, dx_buffer);
                 T* const beside = daddend.target(sample, channel, places, daddend_buffer);
                 gradients.visit(f, sample, channel, places,
                                 [&](const auto* dh, const T* x) __attribute__((always_inline)) {
                                   gradient_piece<T>(p.frozen, f, dh, x, to, beside, places.end - places.begin);
                                 });
                 dx.write(sample, channel, places, to);
                 if (daddend) daddend.write(sample, channel, places, beside);
               });
}

}  // namespace normact::cpu::NORMACT_ISA
