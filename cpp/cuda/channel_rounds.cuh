// SPDX-License-Identifier: Apache-2.0
// What a block does with items that it keeps (channel_queue.cuh, ChannelOrder::kept), round by round: it reduces one,
// waits for the sums of the others of its slab, and applies it, while the next one takes its place in shared memory.
#pragma once

#include "cuda/channel_copy.cuh"
#include "cuda/channel_queue.cuh"
#include "cuda/channel_sums.cuh"

namespace normact::cuda {

/// One of the items that a block goes through.
struct KeptItem {
  ChannelItem item;
  unsigned slab, share;  // the item's number in the slab
  bool exists;

  KeptItem() = default;
  __device__ __forceinline__ KeptItem(const ChannelSpace& s, unsigned number)
      : slab(s.by_items.quotient(number)),
        share(number - slab * s.items_a_slab),
        exists(number < s.slabs * s.items_a_slab) {
    if (exists) {
      item = {s, slab, s.by_slabs.quotient(slab), share, s.by_stacks.quotient(share)};
    } else {
      item.batch = item.first = item.channels = item.tiles = item.begin = item.end = 0;
    }
  }
};

/// Has what apply needs of this item's slab made. Where the sums are few, each block adds up those of its slab for
/// itself, else it does its share, and apply waits for the others'. All threads.
template <class Pass>
__device__ __forceinline__ void settle_kept(const ChannelSpace& s, const KeptItem& kept, const Pass& pass) {
  __syncthreads();  // apply has read of the last settling what is now overwritten
  const unsigned begin = s.settles_apart ? kept.share : 0, end = s.settles_apart ? s.settles_a_slab : 1;
#pragma unroll 1
  for (unsigned i = begin; i < end; i += s.items_a_slab) {
    const auto batch = static_cast<unsigned>(kept.item.batch);
    pass.settle(ChannelSettle(s, kept.slab, batch, i), s.settles_apart || kept.share == 0);
  }
  __syncthreads();
  if (!s.settles_apart) return;
  collect_finals(s, kept.item, pass.finals);
  __syncthreads();
}

/// What reduce does beside its own work: meets the other threads.
struct KeptSteps {
  __device__ __forceinline__ void meet() const { __syncthreads(); }
};

/// Waits for so many nanoseconds.
__device__ __forceinline__ void pause(unsigned nanoseconds) {
  const auto now = [] {
    uint64_t time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
  };
  for (const uint64_t begin = now(); now() - begin < nanoseconds;) __nanosleep(100);
}

/// What belongs to the channels of an item, a thread for each: fetch() it early, keep() it where all can read it. Items
/// of columns begin at a channel's first and have all of each.
template <class Pass>
class ItemParameters {
 public:
  __device__ __forceinline__ ItemParameters(const ChannelSpace& s, const ChannelItem& item)
      : s(s), mine_(s.parameters_at > 0 && static_cast<int>(threadIdx.x) < s.parameter_of(item.channels)) {}
  __device__ __forceinline__ void fetch(const Pass& pass, const ChannelItem& item) {
    if (!mine_) return;
    const int ahead = static_cast<int>(threadIdx.x * s.by_parameter.size);
    parameters_ = pass.parameters_of(item.batch, item.first + ahead);
  }
  __device__ __forceinline__ void keep(int turn) const {
    if (mine_) parameters_at<typename Pass::Parameters>(s, turn)[threadIdx.x] = parameters_;
  }

 private:
  const ChannelSpace& s;
  bool mine_;
  typename Pass::Parameters parameters_{};
};

/// The same where items are kept. Pass also has copy(item), which has the item copied to shared memory.
template <class Pass>
__device__ __forceinline__ void run_kept_items(const ChannelSpace& s, void* counters, const Pass& pass) {
  __shared__ KeptItem items[2];  // this one and the next; one thread finds out which, while the others work
  unsigned number = blockIdx.x;
  if (threadIdx.x == 0) items[0] = KeptItem(s, number);
  AbsentSums sums(s.items_a_slab > 1, pass.entries, counters);
  __syncthreads();
  if (2 * (blockIdx.x / s.items_a_slab) >= gridDim.x / s.items_a_slab) pause(s.delay);
  {
    const ChannelItem& first = items[0].item;
    ItemParameters<Pass> parameters(s, first);
    parameters.fetch(pass, first);  // before the copies, which would hold it up
    pass.copy(first).finish();
    parameters.keep(0);
  }
  sums.wait();
#pragma unroll 1
  for (int turn = 0;; turn ^= 1) {
    const KeptItem& kept = items[turn];
    const KeptItem& coming = items[turn ^ 1];
    if (!kept.exists) return;
    __syncthreads();  // the parameters are there
    wait_all_copies();
    KeptSteps steps;
    pass.reduce(kept.item, steps, KeptPacks(s, turn));
    number += gridDim.x;
    if (threadIdx.x == kChannelThreads - 1) items[turn ^ 1] = KeptItem(s, number);  // the first warp is to settle
    settle_kept(s, kept, pass);
    ItemParameters<Pass> parameters(s, coming.item);
    parameters.fetch(pass, coming.item);
    auto copy = pass.copy(coming.item);
    pass.apply(kept.item, KeptPacks(s, turn), copy);
    copy.finish();
    parameters.keep(turn ^ 1);
  }
}

template <bool kKept, class Pass>
__device__ __forceinline__ void run_items(const ChannelSpace& s, void* counters, const Pass& pass) {
  if constexpr (kKept) {
    run_kept_items(s, counters, pass);
  } else {
    run_drawn_items(s, counters, pass);
  }
}

}  // namespace normact::cuda
