// SPDX-License-Identifier: Apache-2.0
// Planes and rows of a tensor as arrays, and an activation's bits.
#pragma once

#include "cpu/channel_kernels.h"
#include "cpu/mask_bits.h"
#include "cpu/row_access.h"
#include "cpu/simd_element.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int64_t kPiece = 1024;  // elements of a buffer

/// A tensor of x's shape, plane by plane. Made once a kernel call: the compiler can keep it in registers.
template <class T>
class Planes {
 public:
  NORMACT_SIMD Planes(const ChannelGeometry& geometry, const ChannelView& view)
      : geometry_(&geometry),
        view_(&view),
        data_(static_cast<T*>(view.data)),
        sample_stride_(view.sample_stride),
        channel_stride_(view.channel_stride),
        direct_(geometry.place_ndim == 1 && (view.place_stride[0] == 1 || geometry.places == 1)) {}

  NORMACT_SIMD explicit operator bool() const { return data_ != nullptr; }
  /// Whether planes are arrays in memory. An absent tensor's are.
  NORMACT_SIMD bool direct() const { return direct_ || !data_; }

  /// Where a plane begins.
  NORMACT_SIMD T* plane(int64_t sample, int64_t channel) const {
    return data_ + sample * sample_stride_ + channel * channel_stride_;
  }
  /// From one plane of a block to its next.
  NORMACT_SIMD int64_t step(bool along_samples) const { return along_samples ? sample_stride_ : channel_stride_; }

  /// Some places as an array; `buffer` has room for kPiece, used unless direct.
  NORMACT_SIMD T* read(int64_t sample, int64_t channel, Range places, T* buffer) const {
    if (!data_) return nullptr;
    T* const from = plane(sample, channel);
    if (direct_) return from + places.begin;
    gather<T>(from, geometry_->place_ndim, geometry_->place_shape, view_->place_stride, places, buffer);
    return buffer;
  }
  /// The same for writing; write() then puts them in place.
  NORMACT_SIMD T* target(int64_t sample, int64_t channel, Range places, T* buffer) const {
    return !data_ ? nullptr : direct_ ? plane(sample, channel) + places.begin : buffer;
  }
  NORMACT_SIMD void write(int64_t sample, int64_t channel, Range places, const T* buffer) const {
    if (direct()) return;
    T* const to = plane(sample, channel);
    scatter<T>(buffer, geometry_->place_ndim, geometry_->place_shape, view_->place_stride, places, to);
  }

 private:
  const ChannelGeometry* geometry_;
  const ChannelView* view_;
  T* data_;
  int64_t sample_stride_, channel_stride_;
  bool direct_;
};

/// A tensor of x's shape whose channels are contiguous, row by row.
template <class T>
class ChannelRows {
 public:
  NORMACT_SIMD ChannelRows(const ChannelGeometry& geometry, const ChannelView& view)
      : geometry_(&geometry),
        view_(&view),
        data_(static_cast<T*>(view.data)),
        stride_(view.place_stride[0]),
        even_(geometry.place_ndim == 1 &&
              (geometry.samples == 1 || view.sample_stride == geometry.places * view.place_stride[0])) {}

  NORMACT_SIMD explicit operator bool() const { return data_ != nullptr; }

  /// Null if absent.
  NORMACT_SIMD T* operator[](int64_t row) const {
    if (even_) return data_ ? data_ + row * stride_ : nullptr;
    return uneven(row);
  }

 private:
  NORMACT_SIMD T* uneven(int64_t row) const {
    if (!data_) return nullptr;
    const int64_t sample = row / geometry_->places, place = row - sample * geometry_->places;
    return data_ + sample * view_->sample_stride +
           strided_offset(place, geometry_->place_ndim, geometry_->place_shape, view_->place_stride);
  }

  const ChannelGeometry* geometry_;
  const ChannelView* view_;
  T* data_;
  int64_t stride_;
  bool even_;
};

/// The bit of an element; those of the places in a run of places_after follow each other.
NORMACT_SIMD int64_t mask_bit(const ChannelGeometry& geometry, int64_t sample, int64_t channel, int64_t place) {
  const int64_t after = geometry.places_after, before = geometry.places / after, run = place / after;
  return ((sample * before + run) * geometry.channels + channel) * after + (place - run * after);
}

/// Writes bits one after the other, from the beginning of a byte on.
class BitWriter {
 public:
  NORMACT_SIMD explicit BitWriter(uint8_t* target) : target_(target) {}

  /// Bits i: h[i] > 0.
  template <class N>
  NORMACT_SIMD void append(const N* h, int64_t count) {
    const Vec<N> zero = {};
    for_vectors<N>(count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      const uint32_t bits = bits_of(keep(load(h + j, lanes), lanes) > zero);
      const int64_t rest = count - j;
      push(bits, int(rest < kLanes<N> ? rest : kLanes<N>));
    });
  }
  /// The first `count` bits; the others are 0.
  NORMACT_SIMD void push(uint32_t bits, int count) {
    pending_ |= uint64_t(bits) << unsigned(filled_);
    for (filled_ += count; filled_ >= 8; filled_ -= 8) {
      *target_++ = uint8_t(pending_);
      pending_ >>= 8U;
    }
  }
  /// The bits past the end are 0.
  NORMACT_SIMD void finish() {
    if (filled_ > 0) *target_ = uint8_t(pending_);
  }

 private:
  uint8_t* target_;
  uint64_t pending_ = 0;
  int filled_ = 0;
};

}  // namespace normact::cpu::NORMACT_ISA
