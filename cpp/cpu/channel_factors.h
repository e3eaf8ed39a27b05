// SPDX-License-Identifier: Apache-2.0
// The factors of channels, as numbers or as arrays.
#pragma once

#include "cpu/channel_kernels.h"
#include "cpu/simd_pair.h"

namespace normact::cpu::NORMACT_ISA {

/// The factors of one channel, in every lane.
template <class T>
struct PlaneFactors {
  using N = Accumulator<T>;
  static constexpr bool kPairs = true;  // lanes may be Two
  NORMACT_SIMD PlaneFactors(const ChannelFactors& f, int64_t channel)
      : mean_(of(f.mean, channel - f.first)),
        rstd_(of(f.rstd, channel - f.first)),
        scale_(of(f.scale, channel - f.first)),
        bias_(of(f.bias, channel - f.first)),
        c1_(of(f.c1, channel - f.first)),
        c2_(of(f.c2, channel - f.first)) {}

  template <class Lanes>
  NORMACT_SIMD auto mean(int64_t, Lanes lanes) const {
    return spread(mean_, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto rstd(int64_t, Lanes lanes) const {
    return spread(rstd_, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto scale(int64_t, Lanes lanes) const {
    return spread(scale_, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto bias(int64_t, Lanes lanes) const {
    return spread(bias_, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto c1(int64_t, Lanes lanes) const {
    return spread(c1_, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto c2(int64_t, Lanes lanes) const {
    return spread(c2_, lanes);
  }

 private:
  static NORMACT_SIMD Vec<T> of(const void* array, int64_t i) {
    return broadcast(array ? static_cast<const N*>(array)[i] : N(0));
  }
  Vec<T> mean_, rstd_, scale_, bias_, c1_, c2_;
};

/// The factors of neighbouring channels.
template <class T>
struct RowFactors {
  using N = Accumulator<T>;
  static constexpr bool kPairs = false;
  NORMACT_SIMD RowFactors(const ChannelFactors& f, int64_t channel)
      : mean_(of(f.mean, channel - f.first)),
        rstd_(of(f.rstd, channel - f.first)),
        scale_(of(f.scale, channel - f.first)),
        bias_(of(f.bias, channel - f.first)),
        c1_(of(f.c1, channel - f.first)),
        c2_(of(f.c2, channel - f.first)) {}

  template <class Lanes>
  NORMACT_SIMD Vec<T> mean(int64_t j, Lanes lanes) const {
    return load(mean_ + j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD Vec<T> rstd(int64_t j, Lanes lanes) const {
    return load(rstd_ + j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD Vec<T> scale(int64_t j, Lanes lanes) const {
    return load(scale_ + j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD Vec<T> bias(int64_t j, Lanes lanes) const {
    return load(bias_ + j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD Vec<T> c1(int64_t j, Lanes lanes) const {
    return load(c1_ + j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD Vec<T> c2(int64_t j, Lanes lanes) const {
    return load(c2_ + j, lanes);
  }

 private:
  static NORMACT_SIMD const N* of(const void* array, int64_t i) {
    return array ? static_cast<const N*>(array) + i : nullptr;
  }
  const N *mean_, *rstd_, *scale_, *bias_, *c1_, *c2_;
};

/// What a forward needs of up to kMost neighbouring channels, as the pairs of elements of type T have it, for many
/// rows.
template <class T>
class PairedFactors {
 public:
  using N = Accumulator<T>;
  static constexpr bool kPairs = true;
  static constexpr int64_t kMost = 1024;

  PairedFactors(const ChannelFactors& f, Range channels)
      : mean_(f, f.mean, channels), scale_(f, f.scale, channels), bias_(f, f.bias, channels) {}

  template <class Lanes>
  NORMACT_SIMD auto mean(int64_t j, Lanes lanes) const {
    return mean_.at(j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto scale(int64_t j, Lanes lanes) const {
    return scale_.at(j, lanes);
  }
  template <class Lanes>
  NORMACT_SIMD auto bias(int64_t j, Lanes lanes) const {
    return bias_.at(j, lanes);
  }

 private:
  /// Whole pairs are arranged; what is past them is as it was.
  class Array {
   public:
    NORMACT_SIMD Array(const ChannelFactors& f, const void* array, Range channels) {
      if (!array) return;
      const N* const from = static_cast<const N*>(array) + (channels.begin - f.first);
      for_pairs<T>(channels.end - channels.begin, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
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
    NORMACT_SIMD auto at(int64_t j, Lanes lanes) const {
      if constexpr (std::is_same_v<Lanes, Two>) {
        return pair(load(data_ + j, All{}), load(data_ + j + kLanes<T>, All{}));
      } else {
        return load(data_ + j, lanes);
      }
    }

   private:
    alignas(64) N data_[kMost];
  };

  Array mean_, scale_, bias_;
};

}  // namespace normact::cpu::NORMACT_ISA
