// SPDX-License-Identifier: Apache-2.0
// The bits of a mask.
#pragma once

#include "cuda/channel_slopes.cuh"
#include "cuda/channel_walk.cuh"

namespace normact::cuda {

/// The bits of an access that lie in one byte (ChannelMask::together), from the lowest on, from the L2 cache as packs
/// are (load_pack_once). number: of its first element.
__device__ __forceinline__ unsigned load_bits(const uint8_t* mask, int64_t number) {
  return static_cast<unsigned>(__ldcg(mask + number / 8)) >> (number % 8);
}

/// Stores them. Of four they are half a byte: the neighbouring thread has the other half.
template <int kWidth>
__device__ __forceinline__ void store_bits(uint8_t* mask, int64_t number, unsigned bits) {
  if constexpr (kWidth == 4) {
    const unsigned lane = threadIdx.x % kWarp;
    bits |= __shfl_xor_sync(3u << (lane & ~1u), bits, 1) << 4;
    if (lane % 2 != 0) return;
  }
  mask[number / 8] = static_cast<uint8_t>(bits);
}

/// The byte, in shared memory, for a kept pack that has its bits.
__device__ __forceinline__ uint8_t& kept_bits(const ChannelSpace& s, SharedAddress pack) {
  const SharedAddress first = shared_address(channel_shared) + s.kept_at;
  return reinterpret_cast<uint8_t*>(channel_shared)[s.bits_at + (pack - first) / kPackBytes];
}

/// Has the bits of a tile's kept packs there, each thread its own.
template <class Walk>
__device__ __forceinline__ void keep_bits(const ChannelSpace& s, const uint8_t* mask, Walk walk, KeptPacks packs) {
  if (s.mask == ChannelMask::apart) return;
  typename Walk::Run run;
  while (walk.next(&run)) {
#pragma unroll 8
    for (int k = 0; k < run.count; ++k) {
      kept_bits(s, packs.at(0, k)) = static_cast<uint8_t>(load_bits(mask, walk.first_number(walk.spot(run, k))));
    }
    packs = packs.ahead(run.count);
  }
}

/// dh = dh * the bits of an access, which are `together`, or are looked for.
template <class Walk, class A, int kWidth>
__device__ __forceinline__ void apply_bits(const ChannelSpace& s, const uint8_t* mask, const Walk& walk,
                                           const typename Walk::Spot& spot, unsigned together, A (&dh)[kWidth]) {
  if (kWidth > 1 && s.mask != ChannelMask::apart) {
    multiply_by_bits(together, dh);
    return;
  }
  const auto set = [&](int64_t number) { return mask[number / 8] >> (number % 8) & 1u; };
  unsigned bits = 0;
  if (walk.numbers_evenly()) {
    const int64_t first = walk.first_number(spot);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bits |= walk.inside(spot, j) ? set(first + j) << j : 0u;
  } else {
#pragma unroll 1
    for (int j = 0; j < kWidth; ++j) bits |= walk.inside(spot, j) ? set(walk.number(spot, j)) << j : 0u;
  }
  multiply_by_bits(bits, dh);
}

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
