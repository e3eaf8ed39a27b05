// SPDX-License-Identifier: Apache-2.0
// What a thread has in shared memory of the items that its block keeps: the packs that it owns of each tensor, one
// behind the other in the order of its walk. Nobody else reads them, so copies need no barrier.
#pragma once

#include "cuda/channel_space.cuh"

namespace normact::cuda {

extern __shared__ __align__(16) char channel_shared[];  // scratch memory for sums, parameters, bits of a mask, packs

/// A thread's packs of an item, from the next one of its walk on.
class KeptPacks {
 public:
  static constexpr int kStep = kChannelThreads * kPackBytes;  // from one access to the next

  KeptPacks() = default;
  /// turn: of two items, one after the other, which this one is. They have the same place for packs.
  __device__ __forceinline__ KeptPacks(const ChannelSpace& s, int turn)
      : tensor_bytes_(s.accesses * kStep),
        at_(shared_address(channel_shared) + s.kept_at + threadIdx.x * kPackBytes),
        turn_(turn) {}

  __device__ __forceinline__ int turn() const { return turn_; }

  /// Of the access `ahead` of the next one.
  __device__ __forceinline__ SharedAddress at(int tensor, int ahead) const {
    return at_ + tensor * tensor_bytes_ + ahead * kStep;
  }
  /// Packs that begin `accesses` behind these.
  __device__ __forceinline__ KeptPacks ahead(int accesses) const {
    KeptPacks packs = *this;
    packs.at_ += accesses * kStep;
    return packs;
  }
  /// Behind those of a walk's spots.
  template <class Spot, int kBlock>
  __device__ __forceinline__ void pass(const Spot (&spot)[kBlock]) {
#pragma unroll
    for (int k = 0; k < kBlock; ++k) at_ += spot[k].valid ? kStep : 0;
  }

 private:
  int tensor_bytes_ = 0, turn_ = 0;
  SharedAddress at_ = 0;
};

/// What belongs to the channels of an item (Pass::Parameters), which one thread for each fetches: where it is kept.
template <class Parameters>
__device__ __forceinline__ Parameters* parameters_at(const ChannelSpace& s, int turn) {
  return reinterpret_cast<Parameters*>(channel_shared + s.parameters_at) + turn * s.parameters_an_item();
}

/// That of the channel at `column` of a tile.
template <bool kKept, class Pass>
__device__ __forceinline__ typename Pass::Parameters kept_parameters(const Pass& pass, const ChannelTile& tile,
                                                                     const KeptPacks& kept, int column) {
  using Parameters = typename Pass::Parameters;
  if (kKept && pass.s.parameters_at > 0) {
    return parameters_at<Parameters>(pass.s, kept.turn())[pass.s.parameter_of(tile.in_item + column)];
  }
  return pass.parameters_of(tile.batch, tile.first + column);
}

}  // namespace normact::cuda
