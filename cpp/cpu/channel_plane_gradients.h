// SPDX-License-Identifier: Apache-2.0
// What the backward by planes reads: dh, the gradient before the activation, and x.
#pragma once

#include "cpu/channel_pieces.h"

namespace normact::cpu::NORMACT_ISA {

/// What a backward reads, piece by piece.
template <class T>
class PlaneGradients {
 public:
  using N = Accumulator<T>;

  NORMACT_SIMD PlaneGradients(const ChannelBackward& p, const ArrayActivation* activation,
                              const ChannelFactors& factors, Pass pass)
      : p_(p),
        activation_(activation),
        source_(slope_source(p)),
        kept_(static_cast<N*>(factors.kept.dh)),
        first_(factors.first),
        finds_(kept_ && pass == Pass::gradients),
        leaves_(factors.leaves && pass == Pass::sums),
        dy_(p.geometry, p.dy),
        x_(p.geometry, p.x),
        addend_(p.geometry, p.addend),
        y_(p.geometry, p.y),
        daddend_(p.geometry, p.daddend) {}

  /// Whether dh is dy itself, and pieces may be of any length.
  NORMACT_SIMD bool plain() const { return source_ == SlopeSource::one; }
  NORMACT_SIMD bool direct() const { return dy_.direct() && x_.direct(); }

  /// use(dh, x) with arrays of a piece.
  template <class Use>
  NORMACT_SIMD void visit(const PlaneFactors<T>& f, int64_t sample, int64_t channel, Range places, Use use) {
    const T* const x = x_.read(sample, channel, places, x_buffer_);
    if (plain()) return use(dy_.read(sample, channel, places, dy_buffer_), x);
    if (chooses()) {
      T* const dh = leaves_ ? daddend_.target(sample, channel, places, dh_buffer_) : dh_buffer_;
      choose(f, x, sample, channel, places, dh);
      use(static_cast<const T*>(dh), x);
      if (leaves_) daddend_.write(sample, channel, places, dh);
      return;
    }
    N* const dh = place_of_dh(sample, channel, places);
    if (!finds_) make(f, x, sample, channel, places, dh);
    use(static_cast<const N*>(dh), x);
    if (leaves_ && dh == g_) leave(sample, channel, places, dh);
  }

 private:
  /// Whether dh is dy or 0, and so of type T.
  NORMACT_SIMD bool chooses() const { return source_ == SlopeSource::bits || source_ == SlopeSource::relu_again; }
  NORMACT_SIMD void choose(const PlaneFactors<T>& f, const T* x, int64_t sample, int64_t channel, Range places, T* dh) {
    const T* const dy = dy_.read(sample, channel, places, dy_buffer_);
    if (source_ == SlopeSource::bits) return choose_by_bits(sample, channel, places, dy, dh);
    relu_piece(f, x, addend_.read(sample, channel, places, y_buffer_), dy, dh, places.end - places.begin);
  }
  NORMACT_SIMD void choose_by_bits(int64_t sample, int64_t channel, Range places, const T* dy, T* dh) {
    const int64_t after = p_.geometry.places_after;
    for (int64_t begin = places.begin; begin < places.end;) {
      const int64_t to_turn = after - begin % after, done = begin - places.begin;
      const int64_t count = to_turn < places.end - begin ? to_turn : places.end - begin;
      bits_piece(p_.mask, mask_bit(p_.geometry, sample, channel, begin), dy + done, dh + done, count);
      begin += count;
    }
  }
  NORMACT_SIMD N* place_of_dh(int64_t sample, int64_t channel, Range places) {
    if (kept_) return kept_ + (channel - first_) * p_.geometry.places + places.begin;
    if constexpr (std::is_same_v<T, N>) {
      if (leaves_ && daddend_.direct()) return daddend_.target(sample, channel, places, nullptr);
    }
    return g_;
  }
  NORMACT_SIMD void leave(int64_t sample, int64_t channel, Range places, const N* dh) {
    T* const to = daddend_.target(sample, channel, places, dy_buffer_);
    round_piece(false, dh, to, places.end - places.begin);
    daddend_.write(sample, channel, places, to);
  }
  NORMACT_SIMD void make(const PlaneFactors<T>& f, const T* x, int64_t sample, int64_t channel, Range places, N* dh) {
    const int64_t count = places.end - places.begin;
    const T* const dy = dy_.read(sample, channel, places, dy_buffer_);
    if (source_ == SlopeSource::output) {
      const T* const y = y_.read(sample, channel, places, y_buffer_);
      for_vectors<T>(count, [&](int64_t j, auto lanes) { store(g_ + j, load(y + j, lanes), lanes); });
      clear_past(g_, count);
      activation_->slope_from_output(*activation_, g_, activation_count(count));
    } else {
      const T* const addend = addend_.read(sample, channel, places, y_buffer_);
      affine_piece<T, Fused::none>(f, x, addend, g_, count);
      clear_past(g_, count);
      activation_->slope(*activation_, g_, activation_count(count));
    }
    multiply_piece(dy, g_, dh, count);
  }

  const ChannelBackward& p_;
  const ArrayActivation* activation_;
  SlopeSource source_;
  N* kept_;        // KeptSlopes::dh
  int64_t first_;  // channel
  bool finds_;     // dh there
  bool leaves_;    // ChannelFactors::leaves
  Planes<T> dy_, x_, addend_, y_, daddend_;
  alignas(64) T dy_buffer_[kPiece];
  alignas(64) T x_buffer_[kPiece];
  alignas(64) T dh_buffer_[kPiece];
  alignas(64) T y_buffer_[kPiece];  // y's or the addend's
  alignas(64) N g_[kPadded];
};

/// Adds to accumulators[0] and [1] what a channel's dweight and dbias get of some elements.
template <class T, class D, class Lanes, class V>
NORMACT_SIMD void add_gradients(const PlaneFactors<T>& f, const D* dh, const T* x, int64_t j, Lanes lanes, V* a) {
  const auto d = load(dh + j, lanes);
  const auto xhat = normalized(load(x + j, lanes), f.mean(j, lanes), f.rstd(j, lanes));
  a[0] = multiply_add(d, keep(xhat, lanes), a[0]);
  a[1] += d;
}

}  // namespace normact::cpu::NORMACT_ISA
