// SPDX-License-Identifier: Apache-2.0
// How the warps of a cluster add up two sums of a row while they work on other rows (sm_90).
//
// Turn     a row of a cluster's; every warp contributes its part of a turn, and some rows later asks for the whole.
//          kExchangeDepth turns, or as many as are wanted, have memory of their own. A warp asks for turn i before it
//          contributes to turn i + depth / 2. So whoever contributes to turn i + depth knows that everybody has long
//          read turn i: nobody ever waits for a slot to be free.
// Barriers mbarriers in shared memory only; what goes to another block counts as bytes of that block's barrier, so that
//          its arrival is the signal. cluster_arrive() / cluster_wait() before the first contribution (every block has
//          initialised its barriers) and after the last turn (nobody's memory goes away while a peer writes to it).
// Order    sums are taken over fixed slots in a fixed order: every run gives the same bits.
#pragma once

#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/tile_ring.cuh"

namespace normact::cuda {

/// Two sums that travel in one access.
template <class N>
struct alignas(2 * sizeof(N)) SumPair {
  N first;
  N second;
};

#if __CUDA_ARCH__ >= 900

/// This thread is ready for the cluster to go on; cluster_wait() waits until all threads of all its blocks are. A
/// single block needs neither: its own barrier is before the first, and nobody else writes to its memory after the
/// last.
__device__ __forceinline__ void cluster_arrive(int blocks) {
  if (blocks > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait(int blocks) {
  if (blocks > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// What a shared address of this block is in another block of the cluster.
__device__ __forceinline__ SharedAddress address_in_block(SharedAddress here, int block) {
  SharedAddress there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
  return there;
}

/// Writes a pair to the slot and counts its bytes at the barrier, both in block `block`.
template <class N>
__device__ __forceinline__ void post(const SumPair<N>* slot, const Mbarrier* barrier, int block,
                                     const SumPair<N>& pair) {
  const SharedAddress to = address_in_block(shared_address(slot), block);
  const SharedAddress signal = address_in_block(shared_address(barrier), block);
  if constexpr (sizeof(N) == 8) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "d"(pair.first), "d"(pair.second), "r"(signal)
                 : "memory");
  } else {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(pair.first), "f"(pair.second), "r"(signal)
                 : "memory");
  }
}

/// The blocks of a cluster, and the warps of each that contribute.
struct ClusterBlocks {
  int warps;
  int blocks;
  int rank;  // of this block
};

/// Where in its memory a turn takes place, and how often that has been used before, modulo 2.
template <int kDepth = kExchangeDepth>
struct ExchangeTurn {
  int slot;
  int parity;

  __device__ __forceinline__ explicit ExchangeTurn(int turn) : slot(turn % kDepth), parity(turn / kDepth & 1) {}
};

/// An exchange that one more warp of each block serves: it merges what the block's warps contribute, sends that to all
/// blocks of the cluster, and merges what they send; or gives it to blocks that are no cluster, whose sums another warp
/// takes (team_exchange.cuh). In static shared memory. Sums travel in N; the answer is of A.
template <class N, class A, int kDepth = kExchangeDepth>
class WarpExchange {
 public:
  /// All lanes of one warp. warps: of this block that contribute; givers: lanes that call given(), where blocks are no
  /// cluster.
  __device__ __forceinline__ void init(int warps, int givers = 1) {
    const int lane = threadIdx.x % kWarp;
    if (lane < kDepth) {
      from_warps_[lane].init(warps);
      from_blocks_[lane].init(givers);
      answered_[lane].init(1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  /// A working warp's part of a turn.
  __device__ __forceinline__ void contribute(int turn, int warp, const SumPair<N>& part) {
    if (threadIdx.x % kWarp != 0) return;
    const int slot = Turn(turn).slot;
    warps_[slot][warp] = part;
    from_warps_[slot].arrive();
  }

  /// Waits for the turn's answer.
  __device__ __forceinline__ SumPair<A> answer(int turn) {
    const Turn now(turn);
    answered_[now.slot].wait(now.parity);
    return answers_[now.slot];
  }

  /// The serving warp: merges the turn's parts. merge_warps and merge_blocks make one pair of a pair a lane, zeros
  /// where there is no such warp or block, and give it to all lanes.
  template <class MergeWarps, class MergeBlocks>
  __device__ __forceinline__ SumPair<N> merge(int turn, int warps, int blocks, int rank, MergeWarps merge_warps,
                                              MergeBlocks merge_blocks) {
    const int lane = threadIdx.x % kWarp;
    const Turn now(turn);
    if (blocks > 1 && lane == 0) {
      from_blocks_[now.slot].arrive_and_expect(blocks * static_cast<int>(sizeof(SumPair<N>)));
    }
    const SumPair<N> pair = merge_warps(of_warps(turn, warps));
    if (blocks == 1) return pair;
    if (lane < blocks) post(&blocks_[now.slot][rank], &from_blocks_[now.slot], lane, pair);
    from_blocks_[now.slot].wait(now.parity);
    return merge_blocks(lane < blocks ? blocks_[now.slot][lane] : SumPair<N>{});
  }

  /// The serving warp: waits for what the warps contribute to a turn, a pair a lane, zeros where there is no such warp.
  __device__ __forceinline__ SumPair<N> of_warps(int turn, int warps) {
    const int lane = threadIdx.x % kWarp;
    const Turn now(turn);
    from_warps_[now.slot].wait(now.parity);
    return lane < warps ? warps_[now.slot][lane] : SumPair<N>{};
  }
  /// Where blocks are no cluster: the serving warp has given the block's sums of a turn to the others, and what it has
  /// seen is seen by the warp that takes theirs, once that has waited.
  __device__ __forceinline__ void given(int turn) { from_blocks_[Turn(turn).slot].arrive(); }
  __device__ __forceinline__ void wait_until_given(int turn) {
    const Turn now(turn);
    from_blocks_[now.slot].wait(now.parity);
  }

  /// One lane of the serving warp.
  __device__ __forceinline__ void publish(int turn, const SumPair<A>& answer) {
    const int slot = Turn(turn).slot;
    answers_[slot] = answer;
    answered_[slot].arrive();
  }

 private:
  using Turn = ExchangeTurn<kDepth>;

  Mbarrier from_warps_[kDepth];
  Mbarrier from_blocks_[kDepth];  // or that the block's sums are given, where blocks are no cluster
  Mbarrier answered_[kDepth];
  SumPair<N> warps_[kDepth][kClusterWarps];
  SumPair<N> blocks_[kDepth][kMaxCluster];
  SumPair<A> answers_[kDepth];
};

/// An exchange without a serving warp, for kernels that have no registers to spare for one: every warp sends its part
/// to all blocks of the cluster, and adds up all parts itself. The barriers are in static shared memory, the parts are
/// not.
template <class A>
class DirectExchange {
 public:
  /// Shared bytes in a block of a cluster whose warps have so many parts.
  static __host__ __device__ constexpr int bytes(int parts) {
    return kExchangeDepth * parts * static_cast<int>(sizeof(SumPair<A>));
  }

  /// All lanes of one warp.
  __device__ __forceinline__ void init() {
    if (threadIdx.x % kWarp < kExchangeDepth) arrived_[threadIdx.x % kWarp].init(1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  /// Part `own` of `parts`, to each of the blocks.
  __device__ __forceinline__ void contribute(int turn, void* shared, int own, int parts, int blocks,
                                             const SumPair<A>& part) {
    const int slot = ExchangeTurn<>(turn).slot;
    if (threadIdx.x == 0) arrived_[slot].arrive_and_expect(parts * static_cast<int>(sizeof(SumPair<A>)));
    const SumPair<A>* to = static_cast<SumPair<A>*>(shared) + slot * parts + own;
    const int lane = threadIdx.x % kWarp;
    if (lane < blocks) post(to, &arrived_[slot], lane, part);
  }

  /// Waits for the turn's sums.
  __device__ __forceinline__ SumPair<A> answer(int turn, const void* shared, int parts) {
    const ExchangeTurn<> now(turn);
    arrived_[now.slot].wait(now.parity);
    const SumPair<A>* from = static_cast<const SumPair<A>*>(shared) + now.slot * parts;
    SumPair<A> sum{};
#pragma unroll 4
    for (int i = threadIdx.x % kWarp; i < parts; i += kWarp) {
      const SumPair<A> part = from[i];
      sum.first += part.first;
      sum.second += part.second;
    }
    return {warp_sum(sum.first), warp_sum(sum.second)};
  }

 private:
  Mbarrier arrived_[kExchangeDepth];
};

#endif

}  // namespace normact::cuda
