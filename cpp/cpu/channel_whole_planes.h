// SPDX-License-Identifier: Apache-2.0
// Whole planes that are arrays, one after the other: loops in which a plane costs few instructions beside its vectors.
// Of 16 places these are a third to a half of what the general way takes.
#pragma once

#include "cpu/channel_pieces.h"
#include "cpu/simd_sums.h"

namespace normact::cpu::NORMACT_ISA {

/// Vectors of a plane, and the lanes of the last.
template <class T>
struct PlaneVectors {
  int64_t whole;  // elements of whole vectors
  int rest;       // elements past these

  NORMACT_SIMD explicit PlaneVectors(int64_t places)
      : whole(places / kLanes<T> * kLanes<T>), rest(int(places - whole)) {}
};

/// body(sample, channel) for planes counted in the order sample, channel.
template <class Body>
NORMACT_SIMD void for_each_plane(int64_t channels, Range planes, Body body) {
  int64_t sample = planes.begin / channels, channel = planes.begin - sample * channels;
  for (int64_t left = planes.end - planes.begin; left > 0; --left) {
    body(sample, channel);
    if (++channel == channels) ++sample, channel = 0;
  }
}

// ---- Forward and backward of whole planes ---------------------------------------------------------------------------

template <class T, Fused kFused, bool kAddend>
void forward_planes(const ChannelForward& p, const ChannelFactors& factors, Range planes) {
  const Planes<T> x(p.geometry, p.x), addend(p.geometry, p.addend), y(p.geometry, p.y);
  const int64_t places = p.geometry.places;
  for_each_plane(p.geometry.channels, planes, [&](int64_t sample, int64_t channel) __attribute__((always_inline)) {
    const PlaneFactors<T> f(factors, channel);
    const T* const from = x.plane(sample, channel);
    const T* const with = kAddend ? addend.plane(sample, channel) : nullptr;
    T* const to = y.plane(sample, channel);
    if (streams_to(factors, to)) {
      affine_piece<T, kFused, kAddend, Storing::past>(f, from, with, to, places);
    } else {
      affine_piece<T, kFused, kAddend>(f, from, with, to, places);
    }
  });
}

template <class T>
void forward_planes(const ChannelForward& p, const ChannelFactors& factors, Range planes) {
  const bool adds = p.addend.data != nullptr;
  if (p.activation.kind == NORMACT_ACTIVATION_RELU) {
    return adds ? forward_planes<T, Fused::relu, true>(p, factors, planes)
                : forward_planes<T, Fused::relu, false>(p, factors, planes);
  }
  adds ? forward_planes<T, Fused::none, true>(p, factors, planes)
       : forward_planes<T, Fused::none, false>(p, factors, planes);
}

template <class T, bool kFrozen, bool kAddend>
void backward_planes(const ChannelBackward& p, const ChannelFactors& factors, Range planes) {
  const Planes<T> dy(p.geometry, p.dy), x(p.geometry, p.x), dx(p.geometry, p.dx), daddend(p.geometry, p.daddend);
  const int64_t places = p.geometry.places;
  for_each_plane(p.geometry.channels, planes, [&](int64_t sample, int64_t channel) __attribute__((always_inline)) {
    T* const to = dx.plane(sample, channel);
    T* const beside = kAddend ? daddend.plane(sample, channel) : nullptr;
    gradient_piece<T, kFrozen, kAddend>(streams_to(factors, to, beside), PlaneFactors<T>(factors, channel),
                                        dy.plane(sample, channel), x.plane(sample, channel), to, beside, places);
  });
}

/// Where dh is dy.
template <class T>
void backward_planes(const ChannelBackward& p, const ChannelFactors& factors, Range planes) {
  const bool adds = p.daddend.data != nullptr;
  if (p.frozen) {
    return adds ? backward_planes<T, true, true>(p, factors, planes)
                : backward_planes<T, true, false>(p, factors, planes);
  }
  adds ? backward_planes<T, false, true>(p, factors, planes) : backward_planes<T, false, false>(p, factors, planes);
}

// ---- Sums over small planes -----------------------------------------------------------------------------------------

constexpr int64_t kSmallVectors = 16;  // of a small plane, at most: as many numbers are added in fp32

template <class T>
NORMACT_SIMD bool is_small(int64_t places) {
  return places <= kSmallVectors * kLanes<T>;
}

/// total[k] += what term(plane, element, lanes, accumulators) adds to accumulators[k], over planes of so many places.
template <class T, int kSums, class Term>
NORMACT_SIMD void sum_small_planes(int64_t planes, int64_t places, double (&total)[kSums], Term term) {
  const PlaneVectors<T> vectors(places);
  const int64_t at_once = 2 * kSmallVectors / (vectors.whole / kLanes<T> + 1);  // two accumulators each
  for (int64_t begin = 0; begin < planes; begin += at_once) {
    const int64_t end = begin + at_once < planes ? begin + at_once : planes;
    Vec<T> a[4][kSums] = {};
    int64_t i = begin;
    for (; i + 2 <= end; i += 2) {
      for (int64_t j = 0; j < vectors.whole; j += kLanes<T>) {
        term(i, j, All{}, a[0]);
        term(i + 1, j, All{}, a[1]);
      }
      if (vectors.rest > 0) {
        term(i, vectors.whole, First{vectors.rest}, a[2]);
        term(i + 1, vectors.whole, First{vectors.rest}, a[3]);
      }
    }
    if (i < end) {
      for (int64_t j = 0; j < vectors.whole; j += kLanes<T>) term(i, j, All{}, a[0]);
      if (vectors.rest > 0) term(i, vectors.whole, First{vectors.rest}, a[2]);
    }
    for (int k = 0; k < kSums; ++k) total[k] += sum((a[0][k] + a[1][k]) + (a[2][k] + a[3][k]));
  }
}

/// The same of each plane for itself: done(plane, total) with its sums.
template <class T, int kSums, class Term, class Done>
NORMACT_SIMD void sum_each_small_plane(int64_t planes, int64_t places, Term term, Done done) {
  constexpr int kTogether = 4;
  const PlaneVectors<T> vectors(places);
  for (int64_t begin = 0; begin < planes; begin += kTogether) {
    const int64_t count = begin + kTogether < planes ? kTogether : planes - begin;
    Vec<T> all[kTogether * kSums];
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      const int64_t plane = begin + (i < count ? i : 0);  // rather one again than a branch: done() leaves it out
      Vec<T> a[kSums] = {};
      for (int64_t j = 0; j < vectors.whole; j += kLanes<T>) term(plane, j, All{}, a);
      if (vectors.rest > 0) term(plane, vectors.whole, First{vectors.rest}, a);
      for (int k = 0; k < kSums; ++k) all[i * kSums + k] = a[k];
    }
    double total[kTogether * kSums] = {};
    add_sums(total, all);
    for (int64_t i = 0; i < count; ++i) done(begin + i, total + i * kSums);
  }
}

}  // namespace normact::cpu::NORMACT_ISA
