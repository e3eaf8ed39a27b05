// SPDX-License-Identifier: Apache-2.0
// Batch norms of small planes that are not whole packs, in the shared memory of a block or of a cluster of them
// (ChannelOrder::slabs, ChannelPlan::bands): how a thread's sums become those of channels. A band is the least channels
// side by side whose planes are whole packs together: two of 14x14 in 16 bits, eight of 7x7. A pack has elements of two
// of them at most.
//
// Work     a slab (channel_slab.cuh) of one band. All packs of a thread have the same columns of samples, so it adds up
//          each of these, and in the end what it has of either channel.
// Barriers of the block behind what threads leave, and behind what warps make of it, which is the cluster's where it
//          has several blocks.
#pragma once

#include "cuda/channel_slab.cuh"

namespace normact::cuda {

/// Something of the first and of the last channel that a thread's packs have elements of.
template <class Value>
struct OfBoth {
  Value low, high;
};

/// What kernels are told beside the problem.
struct BandSpace : SlabSpace {
  int across_log;  // lanes of a warp side by side on the packs of a channel: 1 << across_log

  BandSpace(const ChannelProblem& p, const ChannelView& x, const ChannelPlan& plan) : SlabSpace(p, x, plan) {
    const int64_t width = kPackBytes / size_of(p.dtype),
                  packs = (p.geometry.channels / p.geometry.groups - 1) / width + 2;
    across_log = 0;
    while (across_log < kWarpLog && 1 << across_log < packs) ++across_log;
  }

  static constexpr int kWarpLog = 5;
};

/// This block's part of its band, and this thread's of it.
template <class T>
struct BandShare : SlabShare<T> {
  static constexpr int kWidth = kPackSize<T>;

  OfBoth<int> channel;  // of the band's
  int split;            // elements of the first one

  __device__ __forceinline__ explicit BandShare(const BandSpace& space) : SlabShare<T>(space) {
    const int size = places();
    channel.low = min(this->group_of(this->column), space.groups - 1);  // threads without packs have some, too
    channel.high = min(this->group_of(this->column + kWidth - 1), space.groups - 1);
    split = min((channel.low + 1) * size - this->column, kWidth);
  }
  /// Of a channel.
  __device__ __forceinline__ int places() const { return static_cast<int>(this->s.by_group.size); }
  /// Whether this thread is the one that leaves what all have found of channel.low.
  __device__ __forceinline__ bool leads() const {
    return this->rank == 0 && this->line == 0 && this->column - channel.low * places() < kWidth;
  }
  /// visit(channel) for both.
  template <class Visit>
  __device__ __forceinline__ auto of_both(Visit visit) const -> OfBoth<decltype(visit(0))> {
    return {visit(channel.low), visit(channel.high)};
  }
  /// Of element j of a pack.
  template <class Value>
  __device__ __forceinline__ Value of(int j, const OfBoth<Value>& value) const {
    return j < split ? value.low : value.high;
  }
  /// Sums of elements to those of channels.
  template <class A>
  __device__ __forceinline__ OfBoth<A> fold(const A (&value)[kWidth]) const {
    OfBoth<A> sum{A(0), A(0)};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum.low += j < split ? value[j] : A(0);
      sum.high += j < split ? A(0) : value[j];
    }
    return sum;
  }
};

/// Two numbers of each channel, from all threads of a cluster. They may be added up twice.
template <class T>
struct BandSums {
  using A = Accumulator<T>;
  using Entries = NumberPair<A>[kMostSlabBlocks][kPackSize<T>];  // of a block, and a channel

  const BandSpace& s;
  const BandShare<T>& share;
  NumberPair<A>* sums;  // of threads, those of `high` behind all of `low`
  int turn = 0;

  __device__ __forceinline__ BandSums(const BandSpace& space, const BandShare<T>& of)
      : s(space), share(of), sums(reinterpret_cast<NumberPair<A>*>(channel_shared + space.entries_at)) {}

  /// first and second: of the elements of this thread's packs. All threads of the cluster.
  __device__ __forceinline__ OfBoth<NumberPair<A>> total(const A (&first)[kPackSize<T>],
                                                         const A (&second)[kPackSize<T>]) {
    const OfBoth<A> one = share.fold(first), other = share.fold(second);
    sums[threadIdx.x] = {one.low, other.low};
    sums[kChannelThreads + threadIdx.x] = {one.high, other.high};
    __syncthreads();
    if (turn == 0) meet_cluster(false);  // all blocks are there
    Entries& entries = entries_of(turn++);
    for (int c = uniform_warp(); c < s.groups; c += kChannelThreads / kWarp) {
      hand_out(entries, c, sum_of_channel(c));
    }
    if (s.blocks == 1) __syncthreads();
    meet_cluster(true);
    return share.of_both([&](int channel) {
      NumberPair<A> sum = entries[0][channel];
      for (int block = 1; block < s.blocks; ++block) {
        sum.first += entries[block][channel].first;
        sum.second += entries[block][channel].second;
      }
      return sum;
    });
  }

 private:
  /// Waits for all threads of a cluster of several blocks; arrives, or has done so before (begin_cluster()).
  __device__ __forceinline__ void meet_cluster(bool arrives) const {
#if __CUDA_ARCH__ >= 900
    if (arrives) cluster_arrive(s.blocks);
    cluster_wait(s.blocks);
#endif
  }
  static __device__ __forceinline__ Entries& entries_of(int turn) {
    static_assert(sizeof(Entries[2]) <= kBandStaticBytes);
    __shared__ Entries entries[2];
    return entries[turn];
  }
  /// Of what the block's threads have left, to all lanes of a warp.
  __device__ __forceinline__ NumberPair<A> sum_of_channel(int c) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, across = 1 << s.across_log;
    const int begin = c * share.places(), end = begin + share.places(), run = static_cast<int>(s.by_lanes.size);
    NumberPair<A> sum{A(0), A(0)};
    for (int line = lane >> s.across_log; line < s.lines; line += kWarp >> s.across_log) {
      for (int pack = begin / kPackSize<T> + (lane & (across - 1)); pack * kPackSize<T> < end; pack += across) {
        const bool high = pack * kPackSize<T> < begin;
        const NumberPair<A> own = sums[(high ? kChannelThreads : 0) + line * run + pack];
        sum.first += own.first;
        sum.second += own.second;
      }
    }
    return {warp_sum(sum.first), warp_sum(sum.second)};
  }
  /// To every block of the cluster.
  __device__ __forceinline__ void hand_out(Entries& entries, int c, const NumberPair<A>& sum) const {
    const int block = static_cast<int>(threadIdx.x) % kWarp;
    if (block >= s.blocks) return;
    NumberPair<A>* to = &entries[share.rank][c];
#if __CUDA_ARCH__ >= 900
    if (s.blocks > 1) to = cg::this_cluster().map_shared_rank(to, block);
#endif
    *to = sum;
  }
};

}  // namespace normact::cuda
