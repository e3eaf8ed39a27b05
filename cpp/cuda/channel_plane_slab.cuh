// SPDX-License-Identifier: Apache-2.0
// Norms whose sets of planes fit the shared memory of a block, or of a cluster of them (ChannelOrder::slabs, planes):
// how a set is divided. A set is a group of a sample, or a channel of all samples: the packs of its planes, one plane
// after the other. Planes are whole packs; or cut, so that a pack may hold the end of one and the beginning of the
// next: groups without gaps, which are whole packs, and whose blocks have whole planes.
//
// Work     a cluster has one set, each of its blocks some of the packs, each warp of it some of these, 32 at a time. A
//          thread alone copies its packs to shared memory and reads them there.
// Barriers of the block one around each sum of all threads, and two of the cluster, where it has several blocks.
#pragma once

#include "cuda/channel_slab.cuh"

namespace normact::cuda {

/// What kernels are told beside the problem.
struct PlaneSlabSpace {
  Divisor by_sets;  // of a batch
  Divisor by_run;   // packs of a plane; elements, where planes are cut
  Divisor by_warp;  // packs of a warp, at most
  int channels;     // of a set
  int lanes;        // threads that add up a cut plane: a power of two
  int packs, packs_a_block;
  int accesses;                // of a thread, at most
  int blocks;                  // of a cluster
  int kept_stride;             // from a kept tensor to the next, bytes
  int parameters_at, sums_at;  // in shared memory
  int64_t batch_stride, channel_stride;
  int64_t gap;  // elements between the end of a plane and the next

  PlaneSlabSpace(const ChannelProblem& p, const ChannelView& x, const ChannelPlan& plan)
      : by_sets(static_cast<unsigned>(plan.groups)),
        by_run(
            static_cast<unsigned>(plan.whole ? p.geometry.places * size_of(p.dtype) / kPackBytes : p.geometry.places)),
        by_warp(static_cast<unsigned>(plan.accesses) * kWarp),
        channels(static_cast<int>(p.geometry.channels / p.geometry.groups)),
        lanes(plan.lanes),
        packs(static_cast<int>(plan.units)),
        packs_a_block(static_cast<int>(plan.units_a_part)),
        accesses(plan.accesses),
        blocks(plan.cluster),
        kept_stride(plan.accesses * plan.threads * kPackBytes),
        parameters_at(plan.kept_bytes),
        sums_at(plan.kept_bytes + plan.parameter_bytes),
        batch_stride(p.set == ChannelSet::channel ? 0 : x.sample_stride),
        channel_stride(x.channel_stride),
        gap((p.set == ChannelSet::channel ? x.sample_stride : x.channel_stride) - p.geometry.places) {}
};

/// This block's part of its set, and this thread's of it. kCut: planes need not be whole packs.
template <class T, bool kCut = false>
struct PlaneSlabShare {
  static constexpr int kWidth = kPackSize<T>;
  static constexpr int kRunUnits = kCut ? kWidth : 1;  // of by_run, in a pack
  static constexpr int kStep = kWarp * kPackBytes;     // from a thread's pack to its next
  static constexpr bool kBeside = false;               // nothing but x and dy is read

  const PlaneSlabSpace& s;
  int set, batch, group;
  int64_t channel;     // the set's first
  int64_t base;        // its first element
  int rank;            // of the block in its cluster
  int first;           // the thread's first pack, of the set's
  int count;           // its packs
  SharedAddress kept;  // where the first is in shared memory

  __device__ __forceinline__ explicit PlaneSlabShare(const PlaneSlabSpace& space) : s(space) {
    const unsigned number = s.blocks == 1 ? blockIdx.x : blockIdx.x / static_cast<unsigned>(s.blocks);
    rank = static_cast<int>(blockIdx.x - number * s.blocks);
    set = static_cast<int>(number);
    batch = static_cast<int>(s.by_sets.quotient(number));
    group = set - batch * static_cast<int>(s.by_sets.size);
    channel = static_cast<int64_t>(group) * s.channels;
    base = batch * s.batch_stride + channel * s.channel_stride;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int local = warp() * static_cast<int>(s.by_warp.size) + lane;
    first = begin() + local;
    count = min((end() - first + kWarp - 1) / kWarp, s.accesses);
    kept = shared_address(channel_shared) + local * kPackBytes;
  }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  /// Packs of the block.
  __device__ __forceinline__ int begin() const { return rank * s.packs_a_block; }
  __device__ __forceinline__ int end() const { return min(begin() + s.packs_a_block, s.packs); }
  __device__ __forceinline__ bool several() const { return s.channels > 1; }
  /// The plane in which pack `pack` of the set begins.
  __device__ __forceinline__ int plane_of(int pack) const {
    return static_cast<int>(s.by_run.quotient(pack * kRunUnits));
  }
  /// That of the thread's pack k.
  __device__ __forceinline__ int plane(int k) const { return plane_of(first + k * kWarp); }
  /// Of the elements of pack k, how many lie in that plane; more than all if more follow.
  __device__ __forceinline__ int elements_before_cut(int k, int plane) const {
    return (plane + 1) * static_cast<int>(s.by_run.size) - (first + k * kWarp) * kWidth;
  }
  /// Planes before the block's, and those that it has some of.
  __device__ __forceinline__ int first_plane() const { return plane_of(begin()); }
  __device__ __forceinline__ int planes() const {
    return static_cast<int>(s.by_run.quotient(end() * kRunUnits - 1)) + 1 - first_plane();
  }
  /// Its first element.
  __device__ __forceinline__ int64_t element(int k, int plane) const {
    return base + (first + k * kWarp) * kWidth + plane * s.gap;
  }
  /// Where it is in shared memory.
  __device__ __forceinline__ SharedAddress at(int tensor, int k) const {
    return kept + tensor * s.kept_stride + k * kStep;
  }
  /// Starts copying the thread's packs of a tensor.
  __device__ __forceinline__ void copy(const ChannelView& view, int tensor) const {
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      copy_async(at(tensor, k), static_cast<const T*>(view.data) + element(k, plane(k)));
    }
  }
};

/// A block's shared memory behind the packs that it keeps: weight and bias of its channels, sums of pieces of planes
/// or of warps.
template <class A>
struct PlaneSlabMemory {
  NumberPair<A>* parameters;
  NumberPair<A>* sums;

  __device__ __forceinline__ explicit PlaneSlabMemory(const PlaneSlabSpace& s)
      : parameters(reinterpret_cast<NumberPair<A>*>(channel_shared + s.parameters_at)),
        sums(reinterpret_cast<NumberPair<A>*>(channel_shared + s.sums_at)) {}
};

/// What the blocks of a cluster have, each one of these.
template <class Entry>
__device__ __forceinline__ Entry* cluster_entries() {
  __shared__ Entry of[kMostSlabBlocks];
  return of;
}

/// Hands them to each other. Before, all threads of a block have its own.
template <class Entry>
__device__ __forceinline__ void exchange_entry(const PlaneSlabSpace& s, int rank, const Entry& own) {
#if __CUDA_ARCH__ >= 900
  cluster_wait(s.blocks);
  const int block = static_cast<int>(threadIdx.x);
  if (block < s.blocks) *cg::this_cluster().map_shared_rank(cluster_entries<Entry>() + rank, block) = own;
  cluster_arrive(s.blocks);
  cluster_wait(s.blocks);
#endif
}

/// The sum over the blocks of a cluster of what each has, of which all of its threads know.
template <class A>
__device__ __forceinline__ NumberPair<A> sum_of_cluster(const PlaneSlabSpace& s, int rank, const NumberPair<A>& own) {
  exchange_entry(s, rank, own);
  NumberPair<A> total{A(0), A(0)};
  for (int block = 0; block < s.blocks; ++block) {
    const NumberPair<A> of = cluster_entries<NumberPair<A>>()[block];
    total.first += of.first;
    total.second += of.second;
  }
  return total;
}

/// Weight and bias of the set's only channel; or of the block's channels to shared memory, to be read by plane behind a
/// barrier.
template <class T, bool kCut, class A = Accumulator<T>>
__device__ __forceinline__ NumberPair<A> keep_parameters(const PlaneSlabShare<T, kCut>& share,
                                                         const PlaneSlabMemory<A>& memory, const ChannelVector& weight,
                                                         const ChannelVector& bias) {
  const auto fetch = [&](int64_t channel) {
    return NumberPair<A>{entry_or<T>(weight, channel, A(1)), entry_or<T>(bias, channel, A(0))};
  };
  if (!share.several()) return fetch(share.channel);
  const int first = share.first_plane();
  for (int plane = threadIdx.x; plane < share.planes(); plane += static_cast<int>(blockDim.x)) {
    memory.parameters[plane] = fetch(share.channel + first + plane);
  }
  return {A(1), A(0)};
}

/// scale and bias of the elements of a pack that lies in two planes, whose parameters are side by side in shared
/// memory. before: elements_before_cut().
template <class A, int kWidth>
__device__ __forceinline__ void cut_parameters(const NumberPair<A>* own, int before, A rstd, A (&scale)[kWidth],
                                               A (&bias)[kWidth]) {
  const NumberPair<A> low = own[0], high = own[before < kWidth ? 1 : 0];
  const A low_scale = channel_scale(rstd, low.first), high_scale = channel_scale(rstd, high.first);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    scale[j] = j < before ? low_scale : high_scale;
    bias[j] = j < before ? low.second : high.second;
  }
}

/// The sum over all warps of the block of what each has, to all threads. A barrier.
template <class A>
__device__ __forceinline__ NumberPair<A> sum_of_warps(const PlaneSlabMemory<A>& memory, NumberPair<A> sum) {
  sum = {warp_sum(sum.first), warp_sum(sum.second)};
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) memory.sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (warps == 1) return sum;
  constexpr int kMost = kMostPlaneSlabThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kMost;
  sum = warp < warps ? memory.sums[warp] : NumberPair<A>{A(0), A(0)};
  return {sum_of_helpers(sum.first, kMost), sum_of_helpers(sum.second, kMost)};
}

}  // namespace normact::cuda
