// SPDX-License-Identifier: Apache-2.0
// Passes over rows of packs, each a launch of its own (ChannelOrder::launches): channels-last tensors, or columns. A
// block has one part of a tile, in whose rows its threads go down, each with the channels of a pack. Nobody waits for
// anybody within a launch. Between the two passes one more launch adds up the sums (channel_settle_kernel); the second
// starts while that one runs, and what a thread begins with comes in before it waits for it.
#pragma once

#include "cuda/channel_walk.cuh"

namespace normact::cuda {

/// The part of a tile that a block has.
__device__ __forceinline__ ChannelItem row_part(const ChannelSpace& s, unsigned block) {
  const unsigned slab = s.by_items.quotient(block), item = block - slab * s.items_a_slab;
  return {s, slab, s.by_slabs.quotient(slab), item, s.by_stacks.quotient(item)};
}

/// The same in the second pass, whose blocks come by rows, all tiles of all batches side by side; or from the last ones
/// on, as what has been read last is surest to be in the L2 cache.
__device__ __forceinline__ ChannelItem row_part_again(const ChannelSpace& s, unsigned block, unsigned blocks,
                                                      bool backwards) {
  const unsigned number = backwards ? blocks - 1 - block : block, part = s.by_strips.quotient(number);
  const unsigned strip = number - part * s.by_strips.size, slab = s.by_stacks.quotient(strip);
  const unsigned stack = strip - slab * s.by_stacks.size;
  return {s, slab, s.by_slabs.quotient(slab), part * s.by_stacks.size + stack, part};
}

/// load_pack_once() for the last time: what has been read leaves the L2 cache to what is written, before what is yet to
/// be read.
template <class T>
__device__ __forceinline__ Pack<T> load_pack_last(const T* from) {
#if __CUDA_ARCH__ >= 800
  uint64_t policy;
  uint4 bits;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("ld.global.cg.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from), "l"(policy));
  return to_pack<T>(bits);
#else
  return load_pack_once(from);
#endif
}

/// Whole packs of rows, read for the last time.
template <class T>
class LastRowWalk : public RowWalk<T, kPackSize<T>> {
  using Base = RowWalk<T, kPackSize<T>>;

 public:
  using Base::Base;
  __device__ __forceinline__ Pack<T> load(const ChannelView& view, const typename Base::Spot& spot) const {
    return load_pack_last(static_cast<const T*>(view.data) + this->offset(view, spot));
  }
};

/// The second pass' way down the rows. kCached: ChannelPlan::cached; where not all is, evict_first costs 3 to 6 %.
template <class T, bool kCached>
using SecondRowWalk = std::conditional_t<kCached, LastRowWalk<T>, RowWalk<T, kPackSize<T>>>;

/// Numbers of the channels of a tile, which the rows of a block have in common, in shared memory. If every thread
/// fetched those of its channels for itself, all blocks would ask a few lines of the L2 cache for them, once a row and
/// at the same time: some 9 us a pass (H200, bf16, 64x256x56x56 channels last).
template <class A>
class TileNumbers {
 public:
  __device__ __forceinline__ explicit TileNumbers(const ChannelSpace& s)
      : at_(reinterpret_cast<A*>(channel_shared + s.parameters_at)), tile_(s.tile) {}

  /// numbers_of(column, &numbers) of each channel, by one thread. All threads: a barrier behind it.
  template <int kNumbers, class Of>
  __device__ __forceinline__ void fill(const ChannelTile& tile, Of numbers_of) const {
    static_assert(kNumbers <= kTileNumbers);
    for (int column = threadIdx.x; column < tile.channels; column += kChannelThreads) {
      A number[kNumbers];
      numbers_of(column, number);
#pragma unroll
      for (int n = 0; n < kNumbers; ++n) at_[n * tile_ + column] = number[n];
    }
    __syncthreads();
  }
  /// The n-th of a channel.
  __device__ __forceinline__ A get(int n, int column) const { return at_[n * tile_ + column]; }
  /// The n-th of neighbouring channels, whole packs of them.
  template <int kCount>
  __device__ __forceinline__ void get(int n, int column, A (&value)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; j += kPackSize<A>) {
      const auto& pack = *reinterpret_cast<const Pack<A>*>(at_ + n * tile_ + column + j);
#pragma unroll
      for (int i = 0; i < kPackSize<A>; ++i) value[j + i] = pack.word[i];
    }
  }

 private:
  A* at_;
  int tile_;
};

/// A thread's accesses of a part, kBlock at a time.
template <int kBlock, class Walk>
class RowAccesses {
 public:
  using Spots = typename Walk::Spot[kBlock];

  __device__ __forceinline__ explicit RowAccesses(Walk& walk) : walk_(walk) {
    run_.count = 0;
    if (walk.works()) walk.next(&run_);
  }
  /// The next ones; those beyond the last are not valid.
  __device__ __forceinline__ void look(Spots& spot) const {
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
      spot[k] = walk_.spot(run_, index_ + k);
      spot[k].valid = index_ + k < run_.count;
    }
  }
  /// use(spots, in) of all, of which the first are in `in`; load(spots, &in) brings in the others.
  template <class In, class Load, class Use>
  __device__ __forceinline__ void for_each(In& in, Load load, Use use) {
#pragma unroll 1
    while (index_ < run_.count) {
      Spots spot;
      look(spot);
      use(spot, in);
      index_ += kBlock;
      if (index_ >= run_.count) break;
      look(spot);
      load(spot, &in);
    }
  }

 private:
  const Walk& walk_;
  typename Walk::Run run_;
  int index_ = 0;
};

}  // namespace normact::cuda
