// SPDX-License-Identifier: Apache-2.0
// Norms over planes of whole packs whose sets (a channel of all samples, or a group of one) go one after the other
// through the shared memory of a cluster (ChannelOrder::rings, sm_90): who has what of a set, and how it comes in.
//
// Work     the blocks of a cluster share the packs of each of its sets. The working threads of a block have the packs
//          of its part in turn, the same of every set, in chunks of some rounds.
// Bytes    one more warp brings in chunk after chunk by bulk copies, one for each plane and tensor, as soon as all
//          warps have done with what was there. Another exchanges the sums (cluster_exchange.cuh). Weight and bias of
//          the channels of a set that has several come in with its first chunk.
// Turns    a warp takes the sums of a chunk of set i + 1, then writes that chunk of set i, and so on: of each set a
//          chunk or more is always on its way, and its sums are exchanged during the next one's arithmetic. Where two
//          do not fit, it takes the sums of all chunks of a set, then writes them.
#pragma once

#include "cuda/channel_planes.cuh"
#include "cuda/channel_statistics.cuh"
#include "cuda/cluster_exchange.cuh"

namespace normact::cuda {

constexpr int kChannelRingThreads = (kClusterWarps + kClusterServants) * kWarp;

#if __CUDA_ARCH__ >= 900

/// The barriers of a block's ring, for each chunk of each slot; in static shared memory.
struct ChannelRingBarriers {
  Mbarrier full[kRingChunks];   // its packs have come, and what whoever arrives has written
  Mbarrier empty[kRingChunks];  // every working warp has done with the chunk

  /// One thread. first: lanes that arrive for the first of so many chunks of a set.
  __device__ __forceinline__ void init(int warps, int first, int chunks) {
    for (int i = 0; i < kRingChunks; ++i) full[i].init(i % chunks == 0 ? first : 1);
    for (Mbarrier& barrier : empty) barrier.init(warps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
};

/// A set's place in the ring of a block: its slot, and how often that has been used before, modulo 2.
struct RingSlot {
  int slot;
  int parity;

  __device__ __forceinline__ RingSlot next(int stages) const {
    return slot + 1 == stages ? RingSlot{0, parity ^ 1} : RingSlot{slot + 1, parity};
  }
};

/// What a thread of a cluster works on. kTensors: that may come in. kSeveral: sets have several channels.
template <class T, int kTensors, bool kSeveral>
struct RingShare : ClusterBlocks {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>;

  const PlaneSpace& s;
  const RingDivision& d;
  ChannelRingBarriers& barriers;
  int warp, lane;
  int tensors;              // that come in
  int cluster;              // of the grid
  int turns;                // sets of the cluster
  int first;                // pack of the block
  int count;                // packs of the block
  int packs;                // of a working thread
  int first_plane, planes;  // of the set, that the block has packs of
  SharedAddress ring;       // in which the thread's packs lie

  __device__ __forceinline__ RingShare(const PlaneSpace& space, const RingDivision& division, ChannelRingBarriers& of,
                                       int tensors_)
      : ClusterBlocks{division.warps, static_cast<int>(cg::this_cluster().num_blocks()),
                      static_cast<int>(cg::this_cluster().block_rank())},
        s(space),
        d(division),
        barriers(of),
        warp(threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp),
        tensors(tensors_),
        cluster(blockIdx.x / blocks),
        first(rank * d.packs_a_block),
        count(packs_of(rank)),
        packs(warp < warps ? ceil_of(count - static_cast<int>(threadIdx.x)) : 0),
        first_plane(static_cast<int>(s.by_run.quotient(static_cast<unsigned>(first)))),
        planes(static_cast<int>(s.by_run.quotient(static_cast<unsigned>(first + count - 1))) + 1 - first_plane),
        ring(shared_address(channel_shared)) {
    turns = (static_cast<int>(s.numbers) - cluster + clusters() - 1) / clusters();
  }

  __device__ __forceinline__ void init_barriers() const { barriers.init(warps, kSeveral ? kWarp : 1, d.chunks); }
  __device__ __forceinline__ int clusters() const { return gridDim.x / blocks; }
  __device__ __forceinline__ bool serves() const { return warp == warps; }
  __device__ __forceinline__ bool fetches() const { return warp == warps + 1; }
  __device__ __forceinline__ PlanePart<T> set(int turn) const {
    return {s, static_cast<unsigned>(cluster + turn * clusters())};
  }
  /// Packs that a block of the cluster has of a set.
  __device__ __forceinline__ int packs_of(int block) const {
    return max(0, min(static_cast<int>(s.packs) - block * d.packs_a_block, d.packs_a_block));
  }
  /// Those that a warp of this block has.
  __device__ __forceinline__ int packs_of_warp(int of) const {
    const int whole = count / d.threads, rest = count - whole * d.threads;
    return whole * kWarp + max(0, min(rest - of * kWarp, kWarp));
  }
  /// The number in its set of the thread's pack k.
  __device__ __forceinline__ unsigned number(int k) const {
    return static_cast<unsigned>(first + k * d.threads) + threadIdx.x;
  }
  /// The thread's pack k of a tensor in a slot.
  __device__ __forceinline__ SharedAddress at(int slot, int tensor, int k) const {
    return ring + (((slot * tensors + tensor) * d.rounds + k) * d.threads + static_cast<int>(threadIdx.x)) * kPackBytes;
  }

  /// Behind the ring, of sets of several channels: weight and bias of the block's channels. A set has its own until all
  /// warps have gone on to the next one, while the one after those in the ring comes in.
  __device__ __forceinline__ NumberPair<A>* parameters(int turn) const {
    return tables() + turn % (d.stages + 1) * d.channels;
  }
  /// Behind these, of a backward: the sums of what a warp has of a channel in one round. A warp begins with those of
  /// the third set from here on when it has the answer for the next one, before which all of this have been left.
  __device__ __forceinline__ SumPair<A>* round_sums(int turn) const {
    return reinterpret_cast<SumPair<A>*>(tables() + (d.stages + 1) * d.channels) +
           turn % kRingSums * d.rounds * d.warps;
  }

  /// use(k, n) of n neighbours from k on, of the thread's packs of a chunk: kBatch, a constant, or fewer of the last.
  template <int kBatch, class Use>
  __device__ __forceinline__ void for_each_of_chunk(int chunk, Use use) const {
    int k = chunk * d.rounds_a_chunk;
    const int end = min(packs, k + d.rounds_a_chunk);
#pragma unroll 1
    for (; k + kBatch <= end; k += kBatch) use(k, std::integral_constant<int, kBatch>());
    use_rest<kBatch / 2>(k, end, use);
  }

  __device__ __forceinline__ void wait(const RingSlot& of, int chunk) const {
    barriers.full[of.slot * d.chunks + chunk].wait(of.parity);
  }
  /// This warp has done with a chunk. wrote: what it left there comes before what the next copy writes.
  __device__ __forceinline__ void release(const RingSlot& of, int chunk, bool wrote) const {
    if (wrote) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) barriers.empty[of.slot * d.chunks + chunk].arrive();
  }

  /// The fetching warp keeps the ring filled.
  __device__ __forceinline__ void fetch_all(const T* const (&from)[kTensors], const ChannelVector& weight,
                                            const ChannelVector& bias) const {
    RingSlot slot{0, 0};
    NumberPair<A> next[kSeveral ? kRingChannels / kWarp : 1];
    if constexpr (kSeveral) load_parameters(0, weight, bias, next);
    for (int turn = 0; turn < turns; ++turn) {
      const PlanePart<T> of = set(turn);
      for (int chunk = 0; chunk < d.chunks; ++chunk) {
        const int barrier = slot.slot * d.chunks + chunk;
        Mbarrier& full = barriers.full[barrier];
        if (turn >= d.stages) barriers.empty[barrier].wait(slot.parity ^ 1);
        const bool more = kSeveral && chunk == 0;  // than packs
        fetch(of, slot.slot, chunk, full, !more, from);
        if constexpr (kSeveral) {
          if (!more) continue;
          store_parameters(turn, next);
          full.arrive();
          if (turn + 1 < turns) load_parameters(turn + 1, weight, bias, next);
        }
      }
      slot = slot.next(d.stages);
    }
  }

 private:
  template <int kBatch, class Use>
  __device__ __forceinline__ void use_rest(int k, int end, Use use) const {
    if constexpr (kBatch > 0) {
      const bool several = k + kBatch <= end;
      if (several) use(k, std::integral_constant<int, kBatch>());
      use_rest<kBatch / 2>(several ? k + kBatch : k, end, use);
    }
  }

  __device__ __forceinline__ NumberPair<A>* tables() const {
    return reinterpret_cast<NumberPair<A>*>(channel_shared + d.stages * tensors * d.packs_a_block * kPackBytes);
  }

  /// A lane's share of a set's parameters.
  template <int kCount>
  __device__ __forceinline__ void load_parameters(int turn, const ChannelVector& weight, const ChannelVector& bias,
                                                  NumberPair<A> (&to)[kCount]) const {
    const int64_t channel = set(turn).channel + first_plane + lane;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i * kWarp + lane >= planes) break;
      to[i] = {entry_or<T>(weight, channel + i * kWarp, A(1)), entry_or<T>(bias, channel + i * kWarp, A(0))};
    }
  }
  template <int kCount>
  __device__ __forceinline__ void store_parameters(int turn, const NumberPair<A> (&from)[kCount]) const {
    NumberPair<A>* const to = parameters(turn) + lane;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i * kWarp + lane < planes) to[i * kWarp] = from[i];
    }
  }

  __device__ __forceinline__ int ceil_of(int left) const { return left > 0 ? (left + d.threads - 1) / d.threads : 0; }

  /// alone: nothing else belongs to the chunk, for which all lanes would arrive.
  __device__ __forceinline__ void fetch(const PlanePart<T>& of, int slot, int chunk, Mbarrier& full, bool alone,
                                        const T* const (&from)[kTensors]) const {
    const int run = static_cast<int>(s.by_run.size), packs_a_chunk = d.rounds_a_chunk * d.threads;
    const int begin = first + min(count, chunk * packs_a_chunk);
    const int end = first + min(count, (chunk + 1) * packs_a_chunk);
    const int bytes = (end - begin) * kPackBytes * tensors;
    if (lane == 0) alone ? full.arrive_and_expect(bytes) : full.expect(bytes);
    __syncwarp();
    if (begin == end) return;
    const int last = static_cast<int>(s.by_run.quotient(static_cast<unsigned>(end - 1)));
    for (int plane = static_cast<int>(s.by_run.quotient(static_cast<unsigned>(begin))) + lane; plane <= last;
         plane += kWarp) {
      const int piece = max(begin, plane * run), stop = min(end, (plane + 1) * run);
      const int64_t offset = of.offset() + plane * s.run_stride + (piece - plane * run) * kWidth;
      const SharedAddress to = ring + (slot * tensors * d.packs_a_block + piece - first) * kPackBytes;
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        if (t >= tensors) break;
        full.copy(to + t * d.packs_a_block * kPackBytes, from[t] + offset, (stop - piece) * kPackBytes);
      }
    }
  }
};

/// All turns of a worker: begin(turn); sum() of a set's chunks, contribute(); receive(), write() of its chunks.
template <class Worker, class Share>
__device__ __forceinline__ void run_ring(Worker& worker, const Share& share) {
  const bool ahead = share.d.stages > 1;  // another set fits beside the one that is written
  RingSlot slot{0, 0}, before{0, 0};
  for (int turn = 0; turn < share.turns + (ahead ? 1 : 0); ++turn) {
    const bool more = turn < share.turns;
    worker.begin(turn);
    for (int chunk = 0; chunk < share.d.chunks; ++chunk) {
      if (more) {
        share.wait(slot, chunk);
        worker.sum(slot, chunk);
      }
      if (!ahead || turn == 0) continue;
      if (chunk == 0) worker.receive(turn - 1);
      worker.write(before, chunk);
    }
    if (more) worker.contribute(turn);
    if (!ahead) {
      worker.receive(turn);
      for (int chunk = 0; chunk < share.d.chunks; ++chunk) worker.write(slot, chunk);
    }
    before = slot;
    slot = slot.next(share.d.stages);
  }
}

#endif

}  // namespace normact::cuda
