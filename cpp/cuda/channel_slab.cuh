// SPDX-License-Identifier: Apache-2.0
// Norms whose slabs (whole groups of a batch, channels side by side) fit the shared memory of a block, or of a cluster
// of them (ChannelOrder::slabs): how a slab is divided, and how its threads add up their sums.
//
// Work     a cluster has one slab, each of its blocks some of the rows, and does everything with it. A thread owns the
//          pack of `column` of every `lines`-th row, which it alone copies to shared memory and reads there.
// Barriers of the block around each sum of all threads, and two of the cluster, where it has several blocks.
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
  int blocks;        // of a cluster
  int rows, rows_a_block;
  int accesses;                            // of a thread, at most
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
        pitch(static_cast<int>(slab_sum_pitch(plan.tile))),
        pitches(plan.lines * pitch),
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

/// This block's part of its slab, and this thread's of it.
template <class T>
struct SlabShare {
  static constexpr int kWidth = kPackSize<T>;
  static constexpr int kStep = kChannelThreads * kPackBytes;  // from a thread's pack to its next
  static constexpr bool kBeside = true;                       // addends, y and masks may be read

  const SlabSpace& s;
  int64_t batch, first;  // channel
  int64_t first_group;
  int rank;            // of the block in its cluster
  int line, column;    // of the thread: its first row of the block's, its first channel of the slab's
  int count;           // packs of the thread
  int64_t offset;      // of the first, in elements
  SharedAddress kept;  // where it is in shared memory

  __device__ __forceinline__ explicit SlabShare(const SlabSpace& space) : s(space) {
    const unsigned slab = blockIdx.x / static_cast<unsigned>(s.blocks);
    rank = static_cast<int>(blockIdx.x - slab * s.blocks);
    batch = s.by_slabs.quotient(slab);
    first = (slab - batch * s.by_slabs.size) * static_cast<int64_t>(s.channels);
    first_group = s.by_group.quotient(static_cast<unsigned>(first));
    line = static_cast<int>(s.by_lanes.quotient(threadIdx.x));
    column = (static_cast<int>(threadIdx.x) - line * static_cast<int>(s.by_lanes.size)) * kWidth;
    const int begin = rank * s.rows_a_block;
    const int left = min(s.rows - begin, s.rows_a_block) - line;
    count = line < s.lines && left > 0 ? (left + s.lines - 1) / s.lines : 0;
    offset = batch * s.batch_stride + first + column + (begin + line) * s.row_stride;
    kept = shared_address(channel_shared) + threadIdx.x * kPackBytes;
  }
  /// Rows of the slab that a block of the cluster has.
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
  /// Has the thread's packs of a tensor on their way to the L2 cache, if it is there.
  __device__ __forceinline__ void prefetch(const ChannelView* view) const {
    if (view == nullptr || view->data == nullptr) return;
    const T* from = static_cast<const T*>(view->data) + offset;
#pragma unroll 4
    for (int k = 0; k < count; ++k) prefetch_sector(from + k * step());
  }
  /// Starts copying the thread's packs of a tensor.
  __device__ __forceinline__ void copy(const ChannelView& view, int tensor) const {
    const T* from = static_cast<const T*>(view.data) + offset;
#pragma unroll 4
    for (int k = 0; k < count; ++k) copy_async(at(tensor, k), from + k * step());
  }
};

/// A block's shared memory behind the packs that it keeps.
template <class T, class Parameters>
struct SlabMemory {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>;
  Parameters* parameters;  // of channels
  NumberPair<A>* entries;  // of groups or channels, from each block of the cluster
  NumberPair<A>* results;  // of groups
  A* sums;                 // of threads

  __device__ __forceinline__ explicit SlabMemory(const SlabSpace& s)
      : parameters(reinterpret_cast<Parameters*>(channel_shared + s.parameters_at)),
        entries(reinterpret_cast<NumberPair<A>*>(channel_shared + s.entries_at)),
        results(entries + s.blocks * s.channels),
        sums(reinterpret_cast<A*>(results + s.channels)) {}

  /// Leaves number `which` of each of a thread's channels, or their sum, where they are folded.
  __device__ __forceinline__ void leave(const SlabSpace& s, int line, int column, int which, bool folds,
                                        const A (&value)[kWidth]) const {
    if (line >= s.lines) return;
    A* const to = sums + which * s.pitches;
    if (folds) {
      A sum = A(0);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += value[j];
      to[line * static_cast<int>(s.by_lanes.size) + column / kWidth] = sum;
      return;
    }
#pragma unroll
    for (int j = 0; j < kWidth; j += kPackSize<A>) {
      Pack<A> pack;
#pragma unroll
      for (int i = 0; i < kPackSize<A>; ++i) pack.word[i] = value[j + i];
      store_shared_pack(shared_address(to + line * s.pitch + column + j), pack);
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
      for (int i = lane; i < s.lines * length && range < ranges; i += lanes) {
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

  /// Threads of a warp that share one of some sums: as many as there are, a power of two.
  static __device__ __forceinline__ int lanes_for(int ranges) {
    int lanes = kWarp;
    while (lanes > 1 && lanes * ranges > kChannelThreads) lanes /= 2;
    return lanes;
  }

  /// This block's entries, to the other blocks of the cluster.
  __device__ __forceinline__ void send_all(const SlabSpace& s, int rank, int count) const {
#if __CUDA_ARCH__ >= 900
    const NumberPair<A>* const own = entries + rank * s.channels;
    for (int block = 0; block < s.blocks; ++block) {
      if (block == rank) continue;
      NumberPair<A>* const to = cg::this_cluster().map_shared_rank(entries + rank * s.channels, block);
      for (int i = threadIdx.x; i < count; i += kChannelThreads) to[i] = own[i];
    }
#endif
  }
};

/// First of all: this block is there, so that others may write to its memory.
__device__ __forceinline__ void begin_cluster(int blocks) {
#if __CUDA_ARCH__ >= 900
  cluster_arrive(blocks);
#endif
}

/// Hands the blocks of a cluster each other's entries, behind a barrier of the block, after begin_cluster().
template <class Memory>
__device__ __forceinline__ void exchange_entries(const SlabSpace& s, const Memory& memory, int rank, int count) {
#if __CUDA_ARCH__ >= 900
  if (s.blocks == 1) return;
  cluster_wait(s.blocks);
  memory.send_all(s, rank, count);
  cluster_arrive(s.blocks);
  cluster_wait(s.blocks);
#endif
}

}  // namespace normact::cuda
