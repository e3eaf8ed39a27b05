// SPDX-License-Identifier: Apache-2.0
// How the blocks of a team that is no cluster add up two sums of a set, through the workspace, while they work on other
// sets (sm_90).
//
// Work     one warp of each block merges what its warps contribute, and leaves it where it has a place of its own, of
//          this block and set. Another looks for that of all blocks until it is there (channel_handed.cuh), so that
//          what is given of a set does not wait for what is taken of the one before. No place is used twice in a
//          launch, so nobody waits for one to be free; all blocks of the launch are there together.
// Order    every block takes the sums in the order of the blocks: all get the same bits, in every run.
#pragma once

#include "core/plan_channel.h"
#include "cuda/channel_handed.cuh"
#include "cuda/cluster_exchange.cuh"

namespace normact::cuda {

template <>
struct HandedAs<SumPair<float>> {
  using Type = Handed<float, 2>;
};
/// Sums that began as floats: none has all its bits set, so each of the two is present or absent by itself.
template <>
struct HandedAs<SumPair<double>> {
  using Type = Handed<float, 4>;
};

#if __CUDA_ARCH__ >= 900

/// The places of a launch's sums. All lanes of one warp call its methods.
template <class N>
struct TeamPlaces {
  static constexpr int kParts = kRingTeam / kWarp;  // blocks whose sums a lane takes
  static_assert(kRingTeam % kWarp == 0);

  SumPair<N>* places;
  int blocks, rank;  // of the team, of this one

  __device__ __forceinline__ void give(int64_t set, const SumPair<N>& own) const {
    if (threadIdx.x % kWarp == 0) hand(places + set * blocks + rank, own);
  }
  /// Waits for the parts of all blocks: of the blocks lane, lane + 32, ...; zeros beyond the last.
  __device__ __forceinline__ void take(int64_t set, SumPair<N> (&parts)[kParts]) const {
    while (!look(places + set * blocks, parts)) __nanosleep(20);
  }

 private:
  __device__ __forceinline__ bool look(const SumPair<N>* of_set, SumPair<N> (&parts)[kParts]) const {
    typename HandedAs<SumPair<N>>::Type bits[kParts];
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int block = lane + i * kWarp;
      bits[i] = {};
      if (block < blocks) bits[i].load(of_set + block);
    }
    bool there = true;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      there &= bits[i].there();
      memcpy(&parts[i], &bits[i], sizeof(parts[i]));
    }
    return __all_sync(kFullWarp, there);
  }
};

#endif

}  // namespace normact::cuda
