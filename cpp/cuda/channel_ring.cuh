// SPDX-License-Identifier: Apache-2.0
// Norms over planes of whole packs whose sets (a channel of all samples, or a group of one) go one after the other
// through the shared memory of a team of blocks (ChannelOrder::rings, sm_90): who has what of a set, and how it comes
// in.
//
// Work     the blocks of a team share the packs of each of its sets. The working threads of a block have the packs of
//          its part in turn, the same of every set, in chunks of some rounds.
// Bytes    one more warp brings in chunk after chunk by bulk copies, one for each plane and tensor, as soon as all
//          warps have done with what was there and few enough are on their way. Another exchanges the sums with the
//          blocks of a cluster (cluster_exchange.cuh), or two do with those of a team that is too large for one
//          (team_exchange.cuh). What belongs to a set and its channels comes in with its first chunk.
// Turns    a warp writes a chunk of set i, then takes the sums of one of set i + 1, and so on: what is not yet written
//          of a set and what has come of the next ones make up the ring. Before it asks for the sums of set i it takes
//          those of some chunks of the next sets (RingDivision::lead), if the ring has room for so much more than a
//          set: this is the time in which sums are exchanged. If it has less, the sums of set i + 1 are taken some
//          chunks later: this is the time in which copies come in.
#pragma once

#include "cuda/channel_planes.cuh"
#include "cuda/channel_statistics.cuh"
#include "cuda/device.h"
#include "cuda/team_exchange.cuh"

namespace normact::cuda {

constexpr int kTeamServants = kClusterServants + 1;  // warps beside those that work: of a team that is no cluster
constexpr int kChannelRingThreads = (kClusterWarps + kTeamServants) * kWarp;

#if __CUDA_ARCH__ >= 900

/// The barriers of a block's ring, for each slot; in static shared memory.
struct ChannelRingBarriers {
  Mbarrier full[kRingChunks];   // its packs have come, and what whoever arrives has written
  Mbarrier empty[kRingChunks];  // every working warp has done with the chunk

  /// One thread. lanes: that arrive when a chunk is fetched; warps: that work.
  __device__ __forceinline__ void init(int lanes, int warps) {
    for (Mbarrier& barrier : full) barrier.init(lanes);
    for (Mbarrier& barrier : empty) barrier.init(warps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
};

/// A chunk's place in the ring of a block: its slot, how often that has been used before, modulo 2, and the first of
/// the rounds that it takes up.
struct RingSlot {
  int slot = 0, parity = 0;
  int chunk = 0;  // of its set
  int round = 0, rounds = 0;

  __device__ __forceinline__ explicit RingSlot(const RingDivision& d) : rounds(d.rounds_of(0)) {}

  __device__ __forceinline__ void advance(const RingDivision& d) {
    round += rounds;
    if (++slot == d.slots) {
      slot = round = 0;
      parity ^= 1;
    }
    if (++chunk == d.chunks) chunk = 0;
    rounds = d.rounds_of(chunk);
  }
};

/// What a thread of a team works on. kTensors: that may come in. kSeveral: sets have several channels.
template <class T, int kTensors, bool kSeveral>
struct RingShare : ClusterBlocks {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>;

  const PlaneSpace& s;
  const RingDivision& d;
  ChannelRingBarriers& barriers;
  int warp, lane;
  int tensors;              // that come in
  int team, teams;          // of the grid
  int turns;                // sets of the team
  int first;                // pack of the block
  int count;                // packs of the block
  int packs;                // of a working thread
  int first_plane, planes;  // of the set, that the block has packs of
  int pitch;                // bytes of a round
  SharedAddress ring;       // the first of the thread's packs

  /// whole: all lanes of a warp have as many packs, so that the compiler sees loops that none of them leaves early.
  __device__ __forceinline__ RingShare(const PlaneSpace& space, const RingDivision& division, ChannelRingBarriers& of,
                                       int tensors_, bool whole)
      : ClusterBlocks{division.warps, division.blocks, static_cast<int>(blockIdx.x % division.blocks)},
        s(space),
        d(division),
        barriers(of),
        warp(uniform_warp()),
        lane(threadIdx.x % kWarp),
        tensors(tensors_),
        team(blockIdx.x / blocks),
        teams(gridDim.x / blocks),
        first(rank * d.packs_a_block),
        count(packs_of(rank)),
        packs(warp < warps ? ceil_of(count - (whole ? warp * kWarp : static_cast<int>(threadIdx.x))) : 0),
        first_plane(static_cast<int>(s.by_run.quotient(static_cast<unsigned>(first)))),
        planes(static_cast<int>(s.by_run.quotient(static_cast<unsigned>(first + count - 1))) + 1 - first_plane),
        pitch(d.threads * kPackBytes),
        ring(shared_address(channel_shared) + static_cast<int>(threadIdx.x) * kPackBytes) {
    turns = (static_cast<int>(s.numbers) - team + teams - 1) / teams;
  }

  __device__ __forceinline__ void init_barriers() const { barriers.init(kSeveral ? kWarp : 1, warps); }
  /// Blocks of its cluster.
  __device__ __forceinline__ int neighbours() const { return d.clusters ? blocks : 1; }
  /// What a warp does that does not work: exchanges sums, or gives those of the block to a team that is no cluster;
  /// fetches; takes those of such a team.
  __device__ __forceinline__ bool serves() const { return warp == warps; }
  __device__ __forceinline__ bool fetches() const { return warp == warps + 1; }
  __device__ __forceinline__ bool takes() const { return warp == warps + 2; }
  __device__ __forceinline__ int givers() const { return d.clusters ? 1 : kWarp; }
  __device__ __forceinline__ PlanePart<T> set(int turn) const {
    return {s, static_cast<unsigned>(team + turn * teams)};
  }
  /// Packs that a block of the team has of a set.
  __device__ __forceinline__ int packs_of(int block) const {
    return max(0, min(static_cast<int>(s.packs) - block * d.packs_a_block, d.packs_a_block));
  }
  /// Those that a warp of this block has.
  __device__ __forceinline__ int packs_of_warp(int of) const {
    const int whole = count / d.threads, rest = count - whole * d.threads;
    return whole * kWarp + max(0, min(rest - of * kWarp, kWarp));
  }
  /// The number in its set of the thread's pack k of a chunk's.
  __device__ __forceinline__ unsigned number(int chunk, int k) const {
    return static_cast<unsigned>(first + (chunk * d.rounds_a_chunk + k) * d.threads) + threadIdx.x;
  }
  /// The thread's pack k of a chunk's, of a tensor.
  __device__ __forceinline__ SharedAddress at(const RingSlot& of, int tensor, int k) const {
    return ring + (of.round * tensors + tensor * of.rounds + k) * pitch;
  }

  /// Behind the ring: mean and rstd of a set, if they come in. A set has its own until all warps have gone on to the
  /// next one, while the one after those in the ring comes in.
  __device__ __forceinline__ NumberPair<A>* statistics(int turn) const {
    return tables() + (turn & (d.tables - 1)) * (d.channels + 1);
  }
  /// Behind these: weight and bias of the block's channels.
  __device__ __forceinline__ NumberPair<A>* parameters(int turn) const { return statistics(turn) + 1; }
  /// The same by planes.
  __device__ __forceinline__ const NumberPair<A>* parameters_of_planes(int turn) const {
    return parameters(turn) - (kSeveral ? first_plane : 0);
  }
  /// Behind these, of a backward of several channels: the sums of what a warp has of a channel in one round. A warp
  /// begins with those of set i + kRingSums when it has the answer for set i + 1, before which all of set i have been
  /// left.
  __device__ __forceinline__ SumPair<A>* round_sums(int turn) const {
    return reinterpret_cast<SumPair<A>*>(tables() + d.tables * (d.channels + 1)) +
           turn % kRingSums * d.rounds * d.warps;
  }

  /// use(k, n) of n neighbours from k on, of the thread's packs of a chunk: kBatch, a constant, or fewer of the last.
  template <int kBatch, class Use>
  __device__ __forceinline__ void for_each_of_chunk(int chunk, Use use) const {
    const std::integral_constant<int, kBatch> batch;
    const int end = min(packs - chunk * d.rounds_a_chunk, d.rounds_a_chunk);
    if constexpr (kBatch == kRingRounds) {
      if (end == kBatch) {
        use(0, batch);
      } else {
        use_rest<kBatch / 2>(0, end, use);
      }
    } else {
      int k = 0;
#pragma unroll 1
      for (; k + kBatch <= end; k += kBatch) use(k, batch);
      if (k < end) use_rest<kBatch / 2>(k, end, use);
    }
  }

  __device__ __forceinline__ void wait(const RingSlot& of) const { barriers.full[of.slot].wait(of.parity); }
  /// This warp has done with a chunk. wrote: what it left there comes before what the next copy writes.
  __device__ __forceinline__ void release(const RingSlot& of, bool wrote) const {
    if (wrote) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) barriers.empty[of.slot].arrive();
  }

  /// Has a chunk of a set come in; whatever else comes with it, lanes arrive afterwards. All of the fetching warp.
  __device__ __forceinline__ void fetch(const PlanePart<T>& of, const RingSlot& slot,
                                        const T* const (&from)[kTensors]) const {
    Mbarrier& full = barriers.full[slot.slot];
    const int run = static_cast<int>(s.by_run.size), packs_a_chunk = d.rounds_a_chunk * d.threads;
    const int begin = first + min(count, slot.chunk * packs_a_chunk);
    const int end = first + min(count, (slot.chunk + 1) * packs_a_chunk);
    const int bytes = (end - begin) * kPackBytes * tensors;
    if (lane == 0) full.expect(bytes);
    __syncwarp();
    if (begin == end) return;
    const int last = static_cast<int>(s.by_run.quotient(static_cast<unsigned>(end - 1)));
    for (int plane = static_cast<int>(s.by_run.quotient(static_cast<unsigned>(begin))) + lane; plane <= last;
         plane += kWarp) {
      const int piece = max(begin, plane * run), stop = min(end, (plane + 1) * run);
      const int64_t offset = of.offset() + plane * s.run_stride + (piece - plane * run) * kWidth;
      const SharedAddress to =
          shared_address(channel_shared) + (slot.round * tensors * d.threads + piece - begin) * kPackBytes;
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        if (t >= tensors) break;
        full.copy(to + t * slot.rounds * d.threads * kPackBytes, from[t] + offset, (stop - piece) * kPackBytes);
      }
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
    return reinterpret_cast<NumberPair<A>*>(channel_shared + d.ring_rounds * tensors * d.threads * kPackBytes);
  }

  __device__ __forceinline__ int ceil_of(int left) const { return left > 0 ? (left + d.threads - 1) / d.threads : 0; }
};

/// What comes in: packs of tensors, and with each set its channels' weights and biases, in a backward its mean and
/// rstd.
template <class T, int kTensors>
struct RingSource {
  const T* from[kTensors];
  const ChannelVector &weight, &bias;
  const ChannelStatistic *mean, *rstd;
};

/// The fetching warp of a block: keeps the ring filled with the chunks of the team's sets.
template <class T, int kTensors, bool kSeveral>
class RingFetcher {
 public:
  using A = Accumulator<T>;
  using Share = RingShare<T, kTensors, kSeveral>;

  __device__ __forceinline__ RingFetcher(const Share& share, const RingSource<T, kTensors>& source)
      : share(share), source_(source), set_(share.set(0)), slot_(share.d), landing_(share.d) {
    if (share.fetches()) load_parameters(0);
  }

  /// What is on its way at once, each chunk with what belongs to its set: all copies before that were slower (18.9 and
  /// 20.2 us for the forward of 32x512x28x28).
  __device__ __forceinline__ void fill() { fetch_until(min(share.d.slots, share.d.flight)); }
  /// The rest, each chunk as soon as all working warps have done with what is in its slot, and the one that was as many
  /// before it as may be on their way has come.
  __device__ __forceinline__ void go_on() { fetch_until(share.turns * share.d.chunks); }

 private:
  static constexpr int kParameters = kSeveral ? kRingChannels / kWarp : 1;

  __device__ __forceinline__ void fetch_until(int end) {
    for (; turn_ < share.turns && fetched_ < end; ++fetched_) {
      if (fetched_ >= share.d.slots) share.barriers.empty[slot_.slot].wait(slot_.parity ^ 1);
      if (fetched_ >= share.d.flight) {
        share.wait(landing_);
        landing_.advance(share.d);
      }
      share.fetch(set_, slot_, source_.from);
      const bool begins = slot_.chunk == 0;
      if (begins) store_parameters();
      if (kSeveral || share.lane == 0) share.barriers.full[slot_.slot].arrive();
      if (begins && turn_ + 1 < share.turns) load_parameters(turn_ + 1);
      slot_.advance(share.d);
      if (slot_.chunk == 0) set_ = share.set(++turn_);
    }
  }
  __device__ __forceinline__ int planes() const { return kSeveral ? share.planes : 1; }

  /// An entry of a vector as it is in memory, of either type in a register of its own: to convert it, or to load over
  /// the other, is to wait for it.
  struct Entry {
    uint32_t wide = 0;
    uint16_t narrow = 0;

    __device__ __forceinline__ void load(const ChannelVector& vector, int64_t channel) {
      if (vector.data == nullptr) return;
      const int64_t index = channel * vector.stride;
      if (Parameter<T>(vector).wide) {
        wide = static_cast<const uint32_t*>(vector.data)[index];
      } else {
        narrow = static_cast<const uint16_t*>(vector.data)[index];
      }
    }
    __device__ __forceinline__ A value(const ChannelVector& vector, A otherwise) const {
      if (vector.data == nullptr) return otherwise;
      if (sizeof(T) == sizeof(A) || Parameter<T>(vector).wide) return __uint_as_float(wide);
      T entry;
      memcpy(&entry, &narrow, sizeof(narrow));
      return convert<A>(entry);
    }
  };

  /// A lane's share of what belongs to a set.
  __device__ __forceinline__ void load_parameters(int turn) {
    const PlanePart<T> set = share.set(turn);
    const int64_t channel = set.channel + (kSeveral ? share.first_plane : 0) + share.lane;
#pragma unroll
    for (int i = 0; i < kParameters; ++i) {
      if (i * kWarp + share.lane >= planes()) break;
      next_weight_[i].load(source_.weight, channel + i * kWarp);
      next_bias_[i].load(source_.bias, channel + i * kWarp);
    }
    if (share.lane > 0 || source_.mean == nullptr) return;
    next_statistics_ = {*statistic_at<A>(*source_.mean, set.batch, set.group),
                        *statistic_at<A>(*source_.rstd, set.batch, set.group)};
  }
  __device__ __forceinline__ void store_parameters() const {
    if (share.lane == 0) *share.statistics(turn_) = next_statistics_;
    NumberPair<A>* const to = share.parameters(turn_) + share.lane;
#pragma unroll
    for (int i = 0; i < kParameters; ++i) {
      if (i * kWarp + share.lane >= planes()) break;
      to[i * kWarp] = {next_weight_[i].value(source_.weight, A(1)), next_bias_[i].value(source_.bias, A(0))};
    }
  }

  const Share& share;
  const RingSource<T, kTensors>& source_;
  Entry next_weight_[kParameters], next_bias_[kParameters];  // of the next set
  NumberPair<A> next_statistics_{A(0), A(0)};
  PlanePart<T> set_;
  RingSlot slot_;
  RingSlot landing_;  // the first chunk that is on its way
  int turn_ = 0;
  int fetched_ = 0;  // chunks
};

/// What is in front of a block's work: the first chunks are on their way, and all blocks that it exchanges sums with
/// are ready. Threads that fetch go on with the rest. places: of teams that are no clusters; end: behind these.
template <class Share, class Fetcher>
__device__ __forceinline__ void begin_ring(const Share& share, Fetcher& fetcher, void* places, void* end) {
  AbsentSums sums(!share.d.clusters, places, end);
  __syncthreads();
  cluster_arrive(share.neighbours());
  if (share.fetches()) fetcher.fill();
  __syncwarp();
  cluster_wait(share.neighbours());
  sums.wait();
  if (share.fetches()) fetcher.go_on();
}

/// Blocks of a cluster end together.
template <class Share>
__device__ __forceinline__ void end_ring(const Share& share) {
  __syncwarp();
  cluster_arrive(share.neighbours());
  cluster_wait(share.neighbours());
}

/// All turns of a worker: begin(), sum() of a set's chunks, contribute(); receive(), write() of its chunks.
template <class Worker, class Share>
__device__ __forceinline__ void run_ring(Worker& worker, const Share& share) {
  const RingDivision& d = share.d;
  RingSlot summed(d), written(d);
  int sums = 0, sums_turn = 0;
  for (int turn = 0, writes = 0; turn < share.turns; ++turn) {
    const int end = (turn + 1) * d.chunks;
    for (; writes < end; ++writes) {
      const int due = min(share.turns * d.chunks, max(end, writes + d.chunks + d.lead));
      for (; sums < due; ++sums) {
        share.wait(summed);
        if (summed.chunk == 0) worker.begin(sums_turn);
        worker.sum(summed);
        summed.advance(d);
        if (summed.chunk == 0) worker.contribute(sums_turn++);
      }
      if (written.chunk == 0) worker.receive(turn);
      worker.write(written);
      written.advance(d);
    }
  }
}

#endif

}  // namespace normact::cuda
