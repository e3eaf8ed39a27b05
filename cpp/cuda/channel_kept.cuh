// SPDX-License-Identifier: Apache-2.0
// What a thread has in shared memory of the items that its block keeps: the packs that it owns of each tensor, one
// behind the other in the order of its walk. Nobody else reads them, so copies need no barrier.
#pragma once

#include "cuda/channel_space.cuh"

namespace normact::cuda {

extern __shared__ __align__(16) char channel_shared[];  // scratch memory for sums, bits of a mask, packs

/// A thread's packs of an item, from the next one of its walk on.
class KeptPacks {
 public:
  static constexpr int kStep = kChannelThreads * kPackBytes;  // from one access to the next

  KeptPacks() = default;
  __device__ __forceinline__ explicit KeptPacks(const ChannelSpace& s)
      : tensor_bytes_(s.accesses * kStep), at_(shared_address(channel_shared) + s.kept_at + threadIdx.x * kPackBytes) {}

  /// Of the access `ahead` of the next one.
  __device__ __forceinline__ SharedAddress at(int tensor, int ahead) const {
    return at_ + tensor * tensor_bytes_ + ahead * kStep;
  }
  /// Behind those of a walk's spots.
  template <class Spot, int kBlock>
  __device__ __forceinline__ void pass(const Spot (&spot)[kBlock]) {
#pragma unroll
    for (int k = 0; k < kBlock; ++k) at_ += spot[k].valid ? kStep : 0;
  }

 private:
  int tensor_bytes_ = 0;
  SharedAddress at_ = 0;
};

}  // namespace normact::cuda
