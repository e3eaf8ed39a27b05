// SPDX-License-Identifier: Apache-2.0
// How items get to shared memory.
#pragma once

#include "cuda/channel_walk.cuh"

namespace normact::cuda {

/// Has an item copied to shared memory, in the order of its walk: of each of the `kept` tensors, and those of `other`,
/// where there is one, brought into the cache. Each thread has its own accesses copied, so they may take the places of
/// those of another item that it has just read.
template <class Walk, int kTensors>
class ItemCopy {
 public:
  __device__ __forceinline__ ItemCopy(const ChannelSpace& space, const ChannelItem& item,
                                      const ChannelView* const (&views)[kTensors], const ChannelView* other)
      : s(space), item_(item), other_(other), walk_(space, item.tile(space, 0), *views[0]), kept_(space, 0) {
#pragma unroll
    for (int t = 0; t < kTensors; ++t) views_[t] = views[t];
    run_.count = 0;
  }

  /// The next `count` accesses, or as many as there are.
  __device__ __forceinline__ void advance(int count) {
#pragma unroll 1
    while (count > 0) {
      const int end = min(index_ + count, run_.count);
      count -= max(end - index_, 0);
#pragma unroll 1
      for (; index_ < end; ++index_) {
        const typename Walk::Spot spot[1] = {walk_.spot(run_, index_)};
#pragma unroll
        for (int t = 0; t < kTensors; ++t) walk_.copy(*views_[t], spot[0], kept_.at(t, 0));
        if (other_ != nullptr) walk_.prefetch(*other_, spot[0]);
        kept_.pass(spot);
      }
      if (count > 0 && !enter()) return;
    }
  }
  /// All that are left.
  __device__ __forceinline__ void finish() { advance(s.accesses); }

 private:
  /// Goes to the next run; false at the end.
  __device__ __forceinline__ bool enter() {
    while (!walk_.next(&run_)) {
      if (++tile_ >= item_.tiles) return false;
      walk_.begin(item_.tile(s, tile_));
    }
    index_ = 0;
    return true;
  }

  const ChannelSpace& s;
  const ChannelItem& item_;
  const ChannelView* views_[kTensors];
  const ChannelView* other_;
  Walk walk_;
  KeptPacks kept_;
  typename Walk::Run run_;
  int index_ = 0, tile_ = 0;
};

}  // namespace normact::cuda
