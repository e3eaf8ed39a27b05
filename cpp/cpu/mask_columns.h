// SPDX-License-Identifier: Apache-2.0
// A mask whose bits follow each other along the places of a channel, for kernels that go by rows of channels: the bits
// of some rows are turned by way of a word for each channel.
#pragma once

#include <type_traits>

#include "cpu/channel_access.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int64_t kMaskRows = 32;

/// Rows whose bits follow each other in every channel.
struct MaskRun {
  Range rows;
  int64_t first;  // the bit of the first row in the first channel
  int64_t step;   // from one channel's to the next one's

  NORMACT_SIMD bool has(int64_t row) const { return row >= rows.begin && row < rows.end; }
};

/// From `row` on, up to `end`; at most kMaskRows.
NORMACT_SIMD MaskRun mask_run(const ChannelGeometry& geometry, int64_t row, int64_t end, int64_t channel) {
  const int64_t sample = row / geometry.places, place = row - sample * geometry.places;
  const int64_t in_run = geometry.places_after - place % geometry.places_after;
  const int64_t left = in_run < end - row ? in_run : end - row;
  const int64_t count = left < kMaskRows ? left : kMaskRows;
  return {{row, row + count}, mask_bit(geometry, sample, channel, place), geometry.places_after};
}

/// The words of some channels, as wide as the numbers of type N. Bit i is the run's row i.
template <class N>
class MaskColumns {
 public:
  NORMACT_SIMD void read(const uint8_t* mask, const MaskRun& run, int64_t channels) {
    const int rows = int(run.rows.end - run.rows.begin);
    for (int64_t c = 0; c < channels; ++c) words_[c] = Word(read_word(mask, run.first + c * run.step, rows));
  }
  /// g[c] = 1 where the row's bit is set, else 0.
  NORMACT_SIMD void expand(int64_t row, N* g, int64_t channels) const {
    const Vec<N> one = broadcast(N(1));
    for_vectors<N>(channels, [&](int64_t c, auto lanes) {
      const Bits words = load_raw<Bits>(words_ + c, lanes);
      store(g + c, (Vec<N>)((Bits)one & ((words & bit(row)) != 0)), lanes);
    });
  }

  NORMACT_SIMD void clear(int64_t channels) { __builtin_memset(words_, 0, size_t(channels) * sizeof(Word)); }
  /// The row's bits: h[c] > 0.
  NORMACT_SIMD void collect(int64_t row, const N* h, int64_t channels) {
    const Vec<N> zero = {};
    for_vectors<N>(channels, [&](int64_t c, auto lanes) {
      const Bits bits = (load(h + c, lanes) > zero) & bit(row);
      store_raw(words_ + c, load_raw<Bits>(words_ + c, lanes) | bits, lanes);
    });
  }
  /// Into a mask that was zero there. Other threads may write to the first and the last byte of a channel.
  NORMACT_SIMD void write(uint8_t* mask, const MaskRun& run, int64_t channels) const {
    const int rows = int(run.rows.end - run.rows.begin);
    for (int64_t c = 0; c < channels; ++c) write_word(mask, run.first + c * run.step, rows, uint32_t(words_[c]));
  }

 private:
  using Bits = decltype(Vec<N>{} > Vec<N>{});
  using Word = std::conditional_t<sizeof(N) == 8, int64_t, int32_t>;

  NORMACT_SIMD static Bits bit(int64_t row) { return Bits{} + Word(uint64_t(1) << row); }
  NORMACT_SIMD static uint32_t read_word(const uint8_t* mask, int64_t first, int count) {
    if (count <= 16) return read_bits(mask, first, count);
    return (read_bits(mask, first, 16) & 0xFFFFU) | read_bits(mask, first + 16, count - 16) << 16U;
  }
  NORMACT_SIMD static void write_word(uint8_t* mask, int64_t first, int count, uint32_t word) {
    uint8_t* target = mask + first / 8;
    const int shift = int(first % 8);
    uint64_t bits = uint64_t(word) << unsigned(shift);
    int begin = shift;  // of this byte's bits that are ours
    for (int left = count; left > 0; ++target, bits >>= 8U, begin = 0) {
      const int here = left < 8 - begin ? left : 8 - begin;
      if (here == 8) {
        *target = uint8_t(bits);
      } else {
        __atomic_fetch_or(target, uint8_t(bits), __ATOMIC_RELAXED);
      }
      left -= here;
    }
  }

  alignas(64) Word words_[kPiece];
};

}  // namespace normact::cpu::NORMACT_ISA
