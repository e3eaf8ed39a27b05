// SPDX-License-Identifier: Apache-2.0
// Norms whose slabs (whole groups of a batch, channels side by side) fit the shared memory of a block, or of some
// (ChannelOrder::slabs): how a slab is divided, and how its threads add up their sums.
//
// Work     some blocks have one slab, each of them some of the rows, and do everything with it: one, a cluster, or a
//          team, whose blocks hand each other their sums through the workspace. A thread owns the pack of `column` of
//          every `lines`-th row, which it alone copies to shared memory and reads there.
// Barriers of the block around each sum of all threads; two of a cluster; one of the grid where there are teams, which
//          all threads have reached long before they wait there.
#pragma once

#include "cuda/channel_mask.cuh"
#include "cuda/channel_statistics.cuh"
#include "cuda/cluster_exchange.cuh"

namespace normact::cuda {

/// What kernels are told beside the problem.
struct SlabSpace {
  Divisor by_slabs;  // of a batch
  Divisor by_lanes;  // threads on a row
  Divisor by_group;  // channels of a group
  Divisor by_share;  // numbers that a row of threads leaves of a group
  int lines;         // rows that a block works on at the same time
  int channels;      // of a slab
  int groups;        // of a slab
  int blocks;        // of a slab
  int rows, rows_a_block;
  int accesses;                            // of a thread, at most
  int sum_lines;                           // rows of threads that leave sums
  int pitch, pitches;                      // slab_sum_pitch(), and as far from one number of threads to the next
  int parameters_at, entries_at, bits_at;  // in shared memory
  bool folds;                              // all channels of a pack are of one group: a thread leaves their sum
  int64_t row_stride, batch_stride;
  int64_t row_channels;  // of all slabs
  bool has_columns;      // channels are columns, which have the parameters of their group

  SlabSpace(const ChannelProblem& p, const ChannelView& x, const ChannelPlan& plan)
      : by_slabs(static_cast<unsigned>(plan.slabs / plan.batches)),
        by_lanes(static_cast<unsigned>(plan.lanes)),
        by_group(static_cast<unsigned>(p.geometry.channels / p.geometry.groups)),
        by_share(folds_of(p) ? by_group.size * size_of(p.dtype) / kPackBytes : by_group.size),
        lines(plan.lines),
        channels(plan.tile),
        groups(plan.tile / static_cast<int>(by_group.size)),
        blocks(plan.cluster),
        rows(static_cast<int>(plan.units)),
        rows_a_block(static_cast<int>(plan.units_a_part)),
        accesses(plan.accesses),
        sum_lines(plan.team ? static_cast<int>(team_sum_lines(plan.lanes, plan.lines)) : plan.lines),
        pitch(static_cast<int>(slab_sum_pitch(plan.tile))),
        pitches(sum_lines * pitch),
        parameters_at(plan.kept_bytes),
        entries_at(plan.kept_bytes + plan.parameter_bytes),
        bits_at(plan.kept_bytes + plan.parameter_bytes + plan.scratch_bytes),
        folds(folds_of(p)),
        row_stride(x.place_stride[0]),
        batch_stride(p.set == ChannelSet::channel ? 0 : x.sample_stride),
        row_channels(p.geometry.channels),
        has_columns(plan.access == ChannelAccess::columns) {}

 private:
  static bool folds_of(const ChannelProblem& p) {
    return p.geometry.channels / p.geometry.groups % (kPackBytes / size_of(p.dtype)) == 0;
  }
};

/// What lies in the middle of two pairs of numbers, from the lower and the higher ones, so that one of the four may be
/// anything.
template <class A>
__device__ __forceinline__ A middle_of_pairs(A low, A other_low, A high, A other_high) {
  return A(0.5) * max(low, other_low) + A(0.5) * min(high, other_high);
}

/// What adding up a pack takes.
enum class SlabWork : uint8_t { little, much };

/// This block's part of its slab, and this thread's of it.
template <class T>
struct SlabShare {
  static constexpr int kWidth = kPackSize<T>;
  static constexpr int kStep = kChannelThreads * kPackBytes;  // from a thread's pack to its next
  static constexpr bool kBeside = true;                       // addends, y and masks may be read

  const SlabSpace& s;
  int64_t slab;
  int64_t batch, first;  // channel
  int64_t first_group;
  int rank;            // of the block, of its slab's
  int line, column;    // of the thread: its first row of the block's, its first channel of the slab's
  int count;           // packs of the thread
  int64_t offset;      // of the first, in elements
  SharedAddress kept;  // where it is in shared memory

  __device__ __forceinline__ explicit SlabShare(const SlabSpace& space) : s(space) {
    const unsigned number = blockIdx.x / static_cast<unsigned>(s.blocks);
    slab = number;
    rank = static_cast<int>(blockIdx.x - number * s.blocks);
    batch = s.by_slabs.quotient(number);
    first = (number - batch * s.by_slabs.size) * static_cast<int64_t>(s.channels);
    first_group = s.by_group.quotient(static_cast<unsigned>(first));
    line = static_cast<int>(s.by_lanes.quotient(threadIdx.x));
    column = (static_cast<int>(threadIdx.x) - line * static_cast<int>(s.by_lanes.size)) * kWidth;
    const int begin = rank * s.rows_a_block;
    const int left = min(s.rows - begin, s.rows_a_block) - line;
    count = line < s.lines && left > 0 ? (left + s.lines - 1) / s.lines : 0;
    offset = batch * s.batch_stride + first + column + (begin + line) * s.row_stride;
    kept = shared_address(channel_shared) + threadIdx.x * kPackBytes;
  }
  /// Rows of the slab that one of its blocks has.
  __device__ __forceinline__ int rows_of(int block) const {
    return max(0, min(s.rows - block * s.rows_a_block, s.rows_a_block));
  }
  /// From a thread's pack to its next, in elements.
  __device__ __forceinline__ int64_t step() const { return s.lines * s.row_stride; }
  /// Its packs of a kept tensor.
  __device__ __forceinline__ SharedAddress at(int tensor, int index) const {
    return kept + (tensor * s.accesses + index) * kStep;
  }
  /// A number near the mean of a group, whose first channel of the slab's is given, the same in all blocks: what lies
  /// in the middle of four elements.
  __device__ __forceinline__ Accumulator<T> middle(const ChannelView& x, int channel) const {
    using A = Accumulator<T>;
    const T* const from = static_cast<const T*>(x.data) + batch * s.batch_stride + first + channel;
    A of[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = finite_or_zero(convert<A>(from[s.rows / 4 * i * s.row_stride]));
    return middle_of_pairs(min(of[0], of[1]), min(of[2], of[3]), max(of[0], of[1]), max(of[2], of[3]));
  }
  /// The number of the first element of the thread's pack k in a mask.
  __device__ __forceinline__ int64_t number(int k) const {
    return (rank * s.rows_a_block + line + k * s.lines) * s.row_channels + first + column;
  }
  /// Where the bits of that pack are, in shared memory.
  __device__ __forceinline__ uint8_t& bits(int k) const {
    return reinterpret_cast<uint8_t*>(channel_shared)[s.bits_at + k * kChannelThreads + static_cast<int>(threadIdx.x)];
  }
  /// Has the bits of all its packs there. begin() starts the copies of those, which hold up what is asked for behind
  /// them: so the bits are on their way before.
  template <class Begin>
  __device__ __forceinline__ void keep_bits(const uint8_t* mask, Begin begin) const {
    unsigned of[kMostSlabAccesses];
#pragma unroll
    for (int k = 0; k < kMostSlabAccesses; ++k) {
      if (k < count) of[k] = load_bits(mask, number(k));
    }
    begin();
#pragma unroll
    for (int k = 0; k < kMostSlabAccesses; ++k) {
      if (k < count) bits(k) = static_cast<uint8_t>(of[k]);
    }
  }
  /// Of the slab's channel.
  __device__ __forceinline__ int group_of(int channel) const {
    return static_cast<int>(s.by_group.quotient(static_cast<unsigned>(channel)));
  }
  /// The index of its parameters.
  __device__ __forceinline__ int64_t parameter_of(int channel) const {
    return s.has_columns ? first_group + group_of(channel) : first + channel;
  }
  /// The first element of the thread's pack k.
  __device__ __forceinline__ int64_t element(int k) const { return offset + k * step(); }
  /// Has the thread's packs of a tensor on their way to the L2 cache, if it is there.
  __device__ __forceinline__ void prefetch(const ChannelView* view) const {
    if (view == nullptr || view->data == nullptr) return;
    const T* from = static_cast<const T*>(view->data) + offset;
#pragma unroll 4
    for (int k = 0; k < count; ++k) prefetch_sector(from + k * step());
  }
  /// Packs that are added up while the thread's others are on their way: none of a few, whose loops would be short.
  template <SlabWork kWork = SlabWork::little>
  __device__ __forceinline__ int half() const {
    constexpr int kMany = kWork == SlabWork::much ? 4 : 12;
    return count < kMany ? 0 : count / 2;
  }
  /// Starts copying the thread's packs of a tensor, or some of them.
  __device__ __forceinline__ void copy(const ChannelView& view, int tensor) const { copy(view, tensor, 0, count); }
  __device__ __forceinline__ void copy(const ChannelView& view, int tensor, int begin, int end) const {
    const T* from = static_cast<const T*>(view.data) + offset;
#pragma unroll 4
    for (int k = begin; k < end; ++k) copy_async(at(tensor, k), from + k * step());
  }
};

/// add(begin, end) for both halves of a thread's packs, whose copies, of two groups, are followed by so many others.
template <int kOthers, SlabWork kWork = SlabWork::little, class Share, class Add>
__device__ __forceinline__ void add_up_halves(const Share& share, Add add) {
  const int half = share.template half<kWork>();
  wait_copies<kOthers + 1>();
  add(0, half);
  wait_copies<kOthers>();
  add(half, share.count);
}

/// A block's shared memory behind the packs that it keeps. kTeam: a slab's blocks are no cluster.
template <class T, class Parameters, bool kTeam>
struct SlabMemory {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>;
  Parameters* parameters;  // of channels
  NumberPair<A>* results;  // of groups
  NumberPair<A>* own;      // of groups: this block's entries
  NumberPair<A>* entries;  // those of all of the slab's blocks; of a team, in the place of sums
  NumberPair<A>* totals;   // of channels, where groups have several
  A* sums;                 // of threads

  __device__ __forceinline__ SlabMemory(const SlabSpace& s, int rank)
      : parameters(reinterpret_cast<Parameters*>(channel_shared + s.parameters_at)),
        results(reinterpret_cast<NumberPair<A>*>(channel_shared + s.entries_at)),
        own(results + s.groups + (kTeam ? 0 : rank * s.groups)),
        totals(results + slab_entries(kTeam ? 1 : s.blocks, s.groups)),
        sums(reinterpret_cast<A*>(totals + (s.groups == s.channels ? 0 : s.channels))) {
    entries = kTeam ? reinterpret_cast<NumberPair<A>*>(sums) : results + s.groups;
  }

  /// Leaves number `which` of each of a thread's channels, or their sum, where they are folded. Whole warps.
  __device__ __forceinline__ void leave(const SlabSpace& s, int line, int column, int which, bool folds,
                                        const A (&value)[kWidth]) const {
    A* const to = sums + which * s.pitches;
    const int lanes = static_cast<int>(s.by_lanes.size), lane = static_cast<int>(threadIdx.x) % kWarp;
    const bool joins = kTeam && s.sum_lines != s.lines;
    const int sum_line = joins ? static_cast<int>(threadIdx.x) / kWarp : line;
    if (folds) {
      A sum = A(0);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += value[j];
      for (int apart = lanes; joins && apart < kWarp; apart *= 2) sum += __shfl_xor_sync(kFullWarp, sum, apart);
      if (joins ? lane < lanes : line < s.lines) to[sum_line * lanes + column / kWidth] = sum;
      return;
    }
    A* const own = to + sum_line * s.pitch + column;
    if (joins) {
      leave_joined<kWidth>(own, lanes, value);
    } else if (line < s.lines) {
#pragma unroll
      for (int j = 0; j < kWidth; j += kPackSize<A>) {
        Pack<A> pack;
#pragma unroll
        for (int i = 0; i < kPackSize<A>; ++i) pack.word[i] = value[j + i];
        store_shared_pack(shared_address(own + j), pack);
      }
    }
  }

  /// visit(range, lane, lanes, sums) for each of `ranges` of neighbours in what all threads have left, behind a
  /// barrier: the sums of each of kNumbers, to all `lanes` threads of a warp that share it. by_length: a range's in a
  /// row of threads; folded: as they have left it.
  template <int kNumbers, class Visit>
  __device__ __forceinline__ void for_each_range(const SlabSpace& s, int ranges, const Divisor& by_length, bool folded,
                                                 Visit visit) const {
    const int lanes = lanes_for(ranges), lane = threadIdx.x & (lanes - 1);
    const int of_warp = (threadIdx.x & ~(kWarp - 1)) / lanes;
    const int length = static_cast<int>(by_length.size), row = folded ? ranges * length : s.pitch;
    for (int first = 0; first + of_warp < ranges; first += kChannelThreads / lanes) {
      const int range = first + static_cast<int>(threadIdx.x) / lanes;
      A sum[kNumbers] = {};
#pragma unroll 4
      for (int i = lane; i < s.sum_lines * length && range < ranges; i += lanes) {
        const int line = static_cast<int>(by_length.quotient(static_cast<unsigned>(i)));
        const A* const from = sums + line * row + range * length + i - line * length;
#pragma unroll
        for (int n = 0; n < kNumbers; ++n) sum[n] += from[n * s.pitches];
      }
#pragma unroll
      for (int n = 0; n < kNumbers; ++n) sum[n] = sum_of_helpers(sum[n], lanes);  // all lanes of a warp take part
      if (range < ranges) visit(range, lane, lanes, sum);
    }
  }

  /// Leaves the sums of kCount numbers over the lanes that are `apart` and more apart: a lane and that so far from it
  /// share them, until each has one.
  template <int kCount>
  static __device__ __forceinline__ void leave_joined(A* to, int apart, const A (&value)[kCount]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (kCount == 1) {
      A sum = value[0];
      for (int other = apart; other < kWarp; other *= 2) sum += __shfl_xor_sync(kFullWarp, sum, other);
      if (lane < apart) *to = sum;
    } else {
      if (apart == kWarp) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) to[j] = value[j];
        return;
      }
      constexpr int kHalf = kCount / 2;
      const bool upper = (lane & apart) != 0;
      A half[kHalf];
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        const A own = upper ? value[kHalf + j] : value[j], other = upper ? value[j] : value[kHalf + j];
        half[j] = own + __shfl_xor_sync(kFullWarp, other, apart);
      }
      leave_joined<kHalf>(to + (upper ? kHalf : 0), 2 * apart, half);
    }
  }

  /// Threads of a warp that share one of some sums: as many as there are, a power of two.
  static __device__ __forceinline__ int lanes_for(int ranges) {
    int lanes = kWarp;
    while (lanes > 1 && lanes * ranges > kChannelThreads) lanes /= 2;
    return lanes;
  }

  /// This block's entries, to the other blocks of the cluster.
  __device__ __forceinline__ void send_all(const SlabSpace& s, int rank) const {
#if __CUDA_ARCH__ >= 900
    for (int block = 0; block < s.blocks; ++block) {
      if (block == rank) continue;
      NumberPair<A>* const to = cg::this_cluster().map_shared_rank(own, block);
      for (int i = threadIdx.x; i < s.groups; i += kChannelThreads) to[i] = own[i];
    }
#endif
  }

  /// The entries of all blocks of a team, by way of `places`, which are the slab's.
  __device__ __forceinline__ void hand_all(const SlabSpace& s, int rank, NumberPair<A>* places) const {
    constexpr int kTogether = 4;
    const int count = s.blocks * s.groups;
    for (int i = threadIdx.x; i < s.groups; i += kChannelThreads) hand(places + rank * s.groups + i, own[i]);
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += kTogether * kChannelThreads) {
      typename HandedAs<NumberPair<A>>::Type bits[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (first + t * kChannelThreads < count) bits[t].load(places + first + t * kChannelThreads);
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int i = first + t * kChannelThreads;
        if (i >= count) break;
        bits[t].wait(places + i);
        memcpy(entries + i, &bits[t], sizeof(entries[i]));
      }
    }
  }
};

/// First of all: this block is there, so that others may write to its memory.
__device__ __forceinline__ void begin_cluster(int blocks) {
#if __CUDA_ARCH__ >= 900
  cluster_arrive(blocks);
#endif
}

/// In the place of AbsentSums.
struct NothingAbsent {
  __device__ __forceinline__ NothingAbsent(bool, void*, void*) {}
};

/// How the blocks of a slab come by each other's entries: of a cluster in its memory, of a team through the workspace,
/// at places of which all teams have theirs behind each other.
template <class A, bool kTeam>
class SlabExchange {
 public:
  /// All threads of a launch, after what used the workspace before it.
  __device__ __forceinline__ SlabExchange(const SlabSpace& s, NumberPair<A>* places)
      : places_(places), absent_(kTeam, places, places + gridDim.x * static_cast<int64_t>(s.groups)) {}

  /// Behind a barrier of the block, after begin_cluster().
  template <class T, class Memory>
  __device__ __forceinline__ void run(const SlabShare<T>& share, const Memory& memory) {
    const SlabSpace& s = share.s;
    if (s.blocks == 1) return;
    if constexpr (kTeam) {
      absent_.wait();
      memory.hand_all(s, share.rank, places_ + share.slab * s.blocks * s.groups);
      __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
      cluster_wait(s.blocks);
      memory.send_all(s, share.rank);
      cluster_arrive(s.blocks);
      cluster_wait(s.blocks);
#endif
    }
  }

 private:
  NumberPair<A>* places_;
  std::conditional_t<kTeam, AbsentSums, NothingAbsent> absent_;
};

}  // namespace normact::cuda
