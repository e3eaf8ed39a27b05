// SPDX-License-Identifier: Apache-2.0
// A mask whose bits follow each other along the places of a channel, for kernels that go by rows of channels: the bits
// of an item are turned, eight places of eight channels at a time, by way of shared memory.
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

}  // namespace normact::cuda
