// SPDX-License-Identifier: Apache-2.0
// Items of rows that are not kept, on their way through shared memory: a ring of accesses that are copied there ahead
// of the arithmetic, each thread its own, so that no barrier is in the way. What is under way takes no registers.
#pragma once

#include "cuda/channel_walk.cuh"

namespace normact::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kRingAccesses = kSmallRingAccesses;
#else
constexpr int kRingAccesses = kLargeRingAccesses;
#endif

/// Whether a walk's items come through a ring.
template <class Walk>
constexpr bool kStreams = !Walk::kPlanes && (Walk::kWidth > 1);

/// Numbers of the channels of a tile, which the lines of a block have in common, in shared memory. If every thread
/// fetched those of its channels for itself, all blocks would ask a few lines of the L2 cache for them, once a line and
/// at the same time: some 9 us a pass (H200, bf16, 64x256x56x56 channels last).
template <class A>
class TileNumbers {
 public:
  __device__ __forceinline__ explicit TileNumbers(const ChannelSpace& s)
      : at_(reinterpret_cast<A*>(channel_shared + s.parameters_at)), tile_(s.tile) {}

  /// numbers_of(column, &numbers) of each channel, by one thread. All threads: a barrier behind it; there must have
  /// been one since they were read.
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

/// Accesses of each of some tensors that go together.
constexpr int ring_block(int tensors) {
  const int block = kRingAccesses / (4 * tensors);
  return block > 0 ? block : 1;
}

/// How the accesses of some tensors go through the ring.
template <int kTensors>
struct Ring {
  static constexpr int kBlock = ring_block(kTensors);  // accesses of each that go together
  static constexpr int kTurns = kRingAccesses / (kBlock * kTensors), kAhead = (kTurns - 1) * kBlock;
};

/// The copying end of a ring.
template <int kTensors, bool kBackwards, class Walk>
class RingCopy {
 public:
  __device__ __forceinline__ RingCopy(const ChannelSpace& s, const Walk& walk, const typename Walk::Run& run,
                                      const ChannelView* const (&views)[kTensors])
      : count_(run.count), step_((kBackwards ? -1 : 1) * walk.step_bytes()), ring_(KeptPacks::of_ring(s, kBlock)) {
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
      from_[t] = static_cast<const char*>(walk.address(*views[t], walk.spot(run, kBackwards ? run.count - 1 : 0)));
    }
  }
  /// The packs of a turn.
  __device__ __forceinline__ KeptPacks packs(int turn) const { return ring_.ahead(turn * kBlock * kTensors); }

  /// Starts copying the next ones, as far as there are some.
  __device__ __forceinline__ void start(int turn) {
    const KeptPacks to = packs(turn);
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
#pragma unroll
      for (int t = 0; t < kTensors; ++t) copy_async_if(at_ + k < count_, to.at(t, k), from_[t] + k * step_);
    }
    skip(1);
    commit_copies();
  }
  /// Goes on without copying.
  __device__ __forceinline__ void skip(int turns) {
    at_ += turns * kBlock;
#pragma unroll
    for (int t = 0; t < kTensors; ++t) from_[t] += turns * kBlock * step_;
  }
  __device__ __forceinline__ bool done() const { return at_ >= count_; }

 private:
  static constexpr int kBlock = Ring<kTensors>::kBlock;

  int count_, at_ = 0;
  int64_t step_;
  KeptPacks ring_;
  const char* from_[kTensors];
};

/// Starts copying what for_each_streamed begins with.
template <int kTensors, bool kBackwards, class Walk>
__device__ __forceinline__ void begin_stream(const ChannelSpace& s, Walk& walk,
                                             const ChannelView* const (&views)[kTensors]) {
  typename Walk::Run run;
  if (!walk.next(&run)) return;
  RingCopy<kTensors, kBackwards, Walk> copy(s, walk, run, views);
#pragma unroll
  for (int turn = 0; turn + 1 < Ring<kTensors>::kTurns; ++turn) copy.start(turn);
}

/// load(spots, packs, &in), then use(spots, in), of all accesses of a walk of rows, a few at a time, from the first to
/// the last or the other way round, after begin_stream(). packs: where those of the tensors are. near_end() is called
/// when the last copies have been started.
template <int kTensors, bool kBackwards, template <int> class In, class Walk, class Load, class Use, class End>
__device__ __forceinline__ void for_each_streamed(const ChannelSpace& s, Walk& walk,
                                                  const ChannelView* const (&views)[kTensors], Load load, Use use,
                                                  End near_end) {
  constexpr int kBlock = Ring<kTensors>::kBlock, kTurns = Ring<kTensors>::kTurns;
  typename Walk::Run run;
  if (!walk.next(&run)) return;
  RingCopy<kTensors, kBackwards, Walk> copy(s, walk, run, views);
  copy.skip(kTurns - 1);
  bool ends = false;
  int turn = 0, before = kTurns - 1;
#pragma unroll 1
  for (int index = 0; index < run.count; index += kBlock) {
    copy.start(before);
    if (!ends && copy.done()) {
      ends = true;
      near_end();
    }
    wait_copies<kTurns - 1>();
    typename Walk::Spot spot[kBlock];
    In<kBlock> in;
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
      spot[k] = walk.spot(run, kBackwards ? run.count - 1 - index - k : index + k);
      spot[k].valid = index + k < run.count;
    }
    load(spot, copy.packs(turn), &in);
    use(spot, in);
    before = turn;
    turn = turn + 1 == kTurns ? 0 : turn + 1;
  }
}

}  // namespace normact::cuda
