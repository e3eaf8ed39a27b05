// SPDX-License-Identifier: Apache-2.0
// Masks whose bytes are not single accesses, by way of shared memory: their bits follow each other along the places of
// a channel, and then the next one's. For kernels that go by rows of channels the bits of an item are turned; for
// planes that are not whole packs, the bytes that two planes share are put together.
#pragma once

#include "cuda/channel_walk.cuh"

namespace normact::cuda {

/// Bit 8 * i + j goes to 8 * j + i (Warren, Hacker's Delight, section 7-3).
__device__ __forceinline__ uint64_t turned(uint64_t bits) {
  const auto swap = [&](int distance, uint64_t which) {
    const uint64_t differs = (bits ^ (bits >> distance)) & which;
    bits ^= differs ^ (differs << distance);
  };
  swap(7, 0x00AA00AA00AA00AAull);
  swap(14, 0x0000CCCC0000CCCCull);
  swap(28, 0x00000000F0F0F0F0ull);
  return bits;
}

/// A byte for each access of the item, those of a column of packs side by side: its channels' bits.
template <int kWidth>
class TurnedMask {
 public:
  __device__ __forceinline__ TurnedMask(const ChannelSpace& space, const ChannelTile& tile)
      : s(space), tile_(tile), bytes_(reinterpret_cast<uint8_t*>(channel_shared) + space.bits_at) {}

  /// Of the access that begins at channel `column` of the tile.
  __device__ __forceinline__ uint8_t& byte(int column, int unit) const {
    return bytes_[column / kWidth * s.bits_stride + unit - static_cast<int>(tile_.begin)];
  }

  /// From shared memory, where all accesses have left their bytes, to the mask. All threads.
  __device__ __forceinline__ void write(uint8_t* mask) const {
    __syncthreads();
    if (s.places % 8 != 0) {
      write_samples(mask);
      return;
    }
    for_each_square([&](uint64_t* shared, int64_t at, int64_t step) {
      const uint64_t of_channels = turned(*shared);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) mask[at + c * step] = static_cast<uint8_t>(of_channels >> 8 * c);
    });
  }

  /// The other way round. All threads.
  __device__ __forceinline__ void read(const uint8_t* mask) const {
    for_each_square([&](uint64_t* shared, int64_t at, int64_t step) {
      uint64_t of_channels = 0;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) of_channels |= static_cast<uint64_t>(mask[at + c * step]) << 8 * c;
      *shared = turned(of_channels);
    });
    __syncthreads();
  }

 private:
  /// Of whole samples with any number of places: those of eight channels are whole bytes.
  __device__ __forceinline__ void write_samples(uint8_t* mask) const {
    const int places = static_cast<int>(s.places), units = static_cast<int>(tile_.end - tile_.begin);
    const int first = static_cast<int>(s.by_places.quotient(static_cast<unsigned>(tile_.begin)));
    for (int column = threadIdx.x / kWarp * kWidth; column < tile_.channels;
         column += kChannelThreads / kWarp * kWidth) {
      const uint8_t* of_column = &byte(column, static_cast<int>(tile_.begin));
#pragma unroll 1
      for (int i = threadIdx.x % kWarp; i < units; i += kWarp) {
        const int sample = static_cast<int>(s.by_places.quotient(static_cast<unsigned>(i)));
        const int at = i - sample * places;  // the byte of the eight channels
        int channel = static_cast<int>(s.by_places.quotient(8 * static_cast<unsigned>(at)));
        int place = 8 * at - channel * places;
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          bits |= (of_column[sample * places + place] >> channel & 1u) << j;
          const bool next = ++place == places;
          channel += next ? 1 : 0;
          place = next ? 0 : place;
        }
        const int64_t number = s.number_of<true>(tile_.batch + first + sample, tile_.first + column, 0);
        mask[number / 8 + at] = static_cast<uint8_t>(bits);
      }
    }
  }

  /// visit(bytes of eight units, the mask's byte of the first channel's, how far the next channel's are from it): a
  /// warp goes along the units of a column, so that neighbours have neighbouring bytes.
  template <class Visit>
  __device__ __forceinline__ void for_each_square(Visit visit) const {
    const int begin = static_cast<int>(tile_.begin), squares = (static_cast<int>(tile_.end) - begin) / 8;
    for (int column = threadIdx.x / kWarp * kWidth; column < tile_.channels;
         column += kChannelThreads / kWarp * kWidth) {
#pragma unroll 1
      for (int square = threadIdx.x % kWarp; square < squares; square += kWarp) {
        const int unit = begin + 8 * square;
        const int sample = static_cast<int>(s.by_places.quotient(static_cast<unsigned>(unit)));
        const int64_t number = s.number_of<true>(tile_.batch + sample, tile_.first + column,
                                                 unit - sample * static_cast<int64_t>(s.places));
        visit(reinterpret_cast<uint64_t*>(&byte(column, unit)), number / 8, s.places_after / 8);
      }
    }
  }

  const ChannelSpace& s;
  const ChannelTile& tile_;
  uint8_t* bytes_;
};

/// The bits of an item's planes that share a byte with a neighbour: a byte for the beginning and one for the end of
/// each.
class EdgedMask {
 public:
  __device__ __forceinline__ EdgedMask(const ChannelSpace& space, int64_t begin)
      : s(space), begin_(static_cast<int>(begin)), bytes_(reinterpret_cast<uint8_t*>(channel_shared) + space.bits_at) {}

  /// Of a sample and a channel of the item.
  __device__ __forceinline__ uint8_t& edge(int sample, int channel, bool end) const {
    return bytes_[2 * ((sample - begin_) * s.tile * s.tiles_an_item + channel) + (end ? 1 : 0)];
  }
  /// Puts them together. All threads, behind their edges.
  __device__ __forceinline__ void write(uint8_t* mask, const ChannelItem& item) const {
    __syncthreads();
    const int row = s.tile * s.tiles_an_item, size = static_cast<int>(item.end - item.begin) * row;
    for (int i = threadIdx.x; i < size; i += kChannelThreads) {
      const int sample = begin_ + static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(row));
      const int channel = i % row;
      const int64_t number = s.number_of<true>(sample, item.first + channel, 0);
      if (channel >= item.channels || number % 8 == 0) continue;
      mask[number / 8] = static_cast<uint8_t>(edge(sample, channel, false) | edge(sample, channel - 1, true));
    }
  }

 private:
  const ChannelSpace& s;
  int begin_;
  uint8_t* bytes_;
};

}  // namespace normact::cuda
