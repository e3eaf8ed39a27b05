// SPDX-License-Identifier: Apache-2.0
// The factors of channels: where each comes from, as numbers or as arrays.
#pragma once

#include "cpu/channel_kernels.h"
#include "cpu/simd_pair.h"

namespace normact::cpu::NORMACT_ISA {

/// A factor of one channel, in every lane; 0 where there is no array.
template <class T>
class OneFactor {
 public:
  using N = Accumulator<T>;
  static constexpr bool kPairs = true;  // lanes may be Two
  NORMACT_SIMD OneFactor(const void* array, int64_t i)
      : value_(broadcast(array ? static_cast<const N*>(array)[i] : N(0))) {}
  template <class Lanes>
  NORMACT_SIMD auto operator()(int64_t, Lanes lanes) const {
    return spread(value_, lanes);
  }

 private:
  Vec<T> value_;
};

/// A factor of neighbouring channels, as it lies in memory.
template <class T>
class FactorArray {
 public:
  using N = Accumulator<T>;
  static constexpr bool kPairs = false;
  NORMACT_SIMD FactorArray(const void* array, int64_t i) : data_(array ? static_cast<const N*>(array) + i : nullptr) {}
  template <class Lanes>
  NORMACT_SIMD Vec<T> operator()(int64_t j, Lanes lanes) const {
    return load(data_ + j, lanes);
  }

 private:
  const N* data_;
};

/// A factor of up to kMost neighbouring channels, arranged as the pairs of elements of type T have it, for many rows.
template <class T>
class PairedFactor {
 public:
  using N = Accumulator<T>;
  static constexpr bool kPairs = true;
  static constexpr int64_t kMost = 1024;
  /// `count` channels. Whole pairs are arranged; what is past them is as it was.
  NORMACT_SIMD PairedFactor(const void* array, int64_t i, int64_t count) {
    if (!array) return;
    const N* const from = static_cast<const N*>(array) + i;
    for_pairs<T>(count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      if constexpr (std::is_same_v<decltype(lanes), Two>) {
        const Pair<Vec<T>> pair = load_beside<T>(from + j);
        store(data_ + j, pair.a, All{});
        store(data_ + j + kLanes<T>, pair.b, All{});
      } else {
        store(data_ + j, load(from + j, lanes), lanes);
      }
    });
  }
  template <class Lanes>
  NORMACT_SIMD auto operator()(int64_t j, Lanes lanes) const {
    if constexpr (std::is_same_v<Lanes, Two>) {
      return pair(load(data_ + j, All{}), load(data_ + j + kLanes<T>, All{}));
    } else {
      return load(data_ + j, lanes);
    }
  }

 private:
  alignas(64) N data_[kMost];
};

/// What a forward needs of the channels from `channel` on; size: what the source wants to know beside that.
template <class Source>
struct ForwardFactors {
  static constexpr bool kPairs = Source::kPairs;
  template <class... Size>
  NORMACT_SIMD ForwardFactors(const ChannelFactors& f, int64_t channel, Size... size)
      : mean(f.mean, channel - f.first, size...),
        scale(f.scale, channel - f.first, size...),
        bias(f.bias, channel - f.first, size...) {}

  Source mean, scale, bias;
};

/// What a backward needs, too.
template <class Source>
struct AllFactors : ForwardFactors<Source> {
  NORMACT_SIMD AllFactors(const ChannelFactors& f, int64_t channel)
      : ForwardFactors<Source>(f, channel),
        rstd(f.rstd, channel - f.first),
        c1(f.c1, channel - f.first),
        c2(f.c2, channel - f.first) {}

  Source rstd, c1, c2;
};

template <class T>
using PlaneFactors = AllFactors<OneFactor<T>>;
template <class T>
using RowFactors = AllFactors<FactorArray<T>>;
template <class T>
using PairedFactors = ForwardFactors<PairedFactor<T>>;

}  // namespace normact::cpu::NORMACT_ISA
