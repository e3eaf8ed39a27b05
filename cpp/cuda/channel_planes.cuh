// SPDX-License-Identifier: Apache-2.0
// Passes over planes of whole packs, each a launch of its own (ChannelOrder::launches): what a team of threads goes
// through. A set is what is normalised together, or a channel of a sample whose sums are made; it consists of runs of
// neighbouring packs, its planes, and is cut into parts wherever that is even. Nobody waits for anybody within a
// launch; the second starts while the first ends, and what a thread begins with comes in before it waits for the first.
#pragma once

#include "cuda/channel_moments.cuh"
#include "cuda/channel_statistics.cuh"

namespace normact::cuda {

/// How a pass goes through the planes.
struct PlaneSpace {
  Divisor by_parts;    // of a set
  Divisor by_sets;     // of a batch
  Divisor by_run;      // packs of a plane
  unsigned team_bits;  // the logarithm of the threads of a team
  unsigned numbers;    // parts of all sets
  unsigned packs;      // of a set
  unsigned packs_a_part;
  Divisor by_group;  // channels of what is normalised together
  int channels;      // of a set
  int all_channels;
  int64_t batch_stride, channel_stride, run_stride;  // in elements
  int64_t run_gap;                                   // from the end of a plane to the next one

  PlaneSpace(const ChannelProblem& p, const ChannelView& x, const PlaneDivision& division)
      : by_parts(static_cast<unsigned>(division.parts)),
        by_sets(static_cast<unsigned>(division.sets_a_batch)),
        by_run(static_cast<unsigned>(p.geometry.places * size_of(p.dtype) / kPackBytes)),
        team_bits(0),
        numbers(static_cast<unsigned>(division.numbers())),
        packs(static_cast<unsigned>(division.packs)),
        packs_a_part(static_cast<unsigned>(division.packs_a_part)),
        by_group(static_cast<unsigned>(p.geometry.channels / p.geometry.groups)),
        channels(static_cast<int>(p.geometry.channels / division.sets_a_batch)),
        all_channels(static_cast<int>(p.geometry.channels)),
        batch_stride(p.set == ChannelSet::channel ? 0 : x.sample_stride),
        channel_stride(x.channel_stride),
        run_stride(p.set == ChannelSet::channel ? x.sample_stride : x.channel_stride),
        run_gap(run_stride - p.geometry.places) {
    while (1 << team_bits < division.team) ++team_bits;
  }
};

/// Which threads of a block go through a part together.
struct PlaneTeam {
  unsigned size, thread;  // the number of this one
  unsigned number;        // of the team's part

  /// block: its number, of those in whose order parts are gone through.
  __device__ __forceinline__ PlaneTeam(const PlaneSpace& s, unsigned block)
      : size(1u << s.team_bits),
        thread(threadIdx.x & (size - 1)),
        number(block * (kChannelThreads >> s.team_bits) + (threadIdx.x >> s.team_bits)) {}
  __device__ __forceinline__ bool is_block() const { return size == kChannelThreads; }
  /// Lanes of a warp that are in it, and the number of this one.
  __device__ __forceinline__ int lanes() const { return min(static_cast<int>(size), kWarp); }
  __device__ __forceinline__ int lane() const { return static_cast<int>(thread) & (lanes() - 1); }
};

/// Where a pack is: its first element, and the number of its plane in the set.
struct PlanePlace {
  int64_t offset;
  unsigned plane;
};

/// A part of a set.
template <class T>
class PlanePart {
 public:
  static constexpr int kWidth = kPackSize<T>;

  bool exists;  // else it is the last one once more, of which nothing is to be left
  unsigned number, set, part;
  int64_t batch, channel, group;  // the set's first
  unsigned begin, end;            // of its packs

  __device__ __forceinline__ PlanePart(const PlaneSpace& space, unsigned of)
      : exists(of < space.numbers),
        number(min(of, space.numbers - 1)),
        set(space.by_parts.quotient(number)),
        part(number - set * space.by_parts.size),
        s(&space) {
    batch = s->by_sets.quotient(set);
    channel = (set - batch * s->by_sets.size) * s->channels;
    group = s->by_group.quotient(static_cast<unsigned>(channel));
    begin = part * s->packs_a_part;
    end = min(begin + s->packs_a_part, s->packs);
    base_ = batch * s->batch_stride + channel * s->channel_stride;
  }
  /// The set's first element.
  __device__ __forceinline__ int64_t offset() const { return base_; }
  __device__ __forceinline__ PlanePlace place(unsigned pack) const {
    const unsigned plane = s->by_run.quotient(pack);
    return {base_ + pack * int64_t{kWidth} + plane * s->run_gap, plane};
  }
  /// A pack of a plane, in a set that begins here.
  __device__ __forceinline__ T* in(T* first, unsigned pack, unsigned plane) const {
    return first + pack * int64_t{kWidth} + plane * s->run_gap;
  }
  /// The same of the part's last pack, for those beyond.
  __device__ __forceinline__ PlanePlace place_or_last(unsigned pack) const { return place(min(pack, end - 1)); }
  /// The number of a pack's first element in row-major order of x's axes, where the set is a channel of all samples.
  __device__ __forceinline__ int64_t element_number(unsigned pack) const {
    const unsigned plane = s->by_run.quotient(pack);
    return ((static_cast<int64_t>(plane) * s->all_channels + channel) * s->by_run.size + pack -
            plane * s->by_run.size) *
           kWidth;
  }

 private:
  const PlaneSpace* s;
  int64_t base_;
};

/// use(pack, in) of a thread's packs of a part, kBlock at a time, a team's size apart; load(pack, &in) brings in
/// further ones than the first, which are in `in`. Packs beyond the end are the part's last: they are to be left out.
template <int kBlock, class Part, class In, class Load, class Use>
__device__ __forceinline__ void for_each_pack(const Part& part, const PlaneTeam& team, In& in, Load load, Use use) {
#pragma unroll 1
  for (unsigned pack = part.begin + team.thread; pack < part.end;) {
    use(pack, in);
    pack += kBlock * team.size;
    if (pack < part.end) load(pack, &in);
  }
}

/// What belongs to the channels of a block's part, or of the only channel of a team's set.
template <class T>
class PlaneConstants {
 public:
  using A = Accumulator<T>;

  /// All threads: a barrier where sets have several channels.
  __device__ __forceinline__ PlaneConstants(const PlaneSpace& s, const PlanePart<T>& part, const ChannelVector& weight,
                                            const ChannelVector& bias)
      : several_(s.channels > 1), begin_(several_ ? s.by_run.quotient(part.begin) : 0) {
    const unsigned mine = begin_ + (several_ ? threadIdx.x : 0);
    if (several_ && mine > s.by_run.quotient(part.end - 1)) {
      one_ = {A(1), A(0)};
    } else {
      one_ = {entry_or<T>(weight, part.channel + mine, A(1)), entry_or<T>(bias, part.channel + mine, A(0))};
    }
    if (several_) {
      table()[threadIdx.x] = one_;
      __syncthreads();
    }
  }
  /// Weight and bias of a plane's channel.
  __device__ __forceinline__ NumberPair<A> operator()(unsigned plane) const {
    return several_ ? table()[plane - begin_] : one_;
  }

 private:
  static __device__ __forceinline__ NumberPair<A>* table() {
    __shared__ NumberPair<A> of[kChannelThreads];
    return of;
  }
  bool several_;
  unsigned begin_;
  NumberPair<A> one_;
};

/// Of the warps of a block, to all threads of the first warp.
template <class A>
__device__ __forceinline__ Moments<A> block_moments(const Moments<A>& of_warp) {
  constexpr int kWarps = kChannelThreads / kWarp;
  __shared__ Moments<A> shared[kWarps];
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const Moments<A> mine = shared[lane % kWarps];
  return moments_of_sets(kWarps, shared[0].mean, [&](auto visit) { visit(mine); });
}

/// The same for sums.
template <class A>
__device__ __forceinline__ NumberPair<A> block_sums(const NumberPair<A>& of_warp) {
  constexpr int kWarps = kChannelThreads / kWarp;
  __shared__ NumberPair<A> shared[kWarps];
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  NumberPair<A> sum = shared[lane % kWarps];
#pragma unroll
  for (int offset = kWarps / 2; offset > 0; offset >>= 1) {
    sum.first += __shfl_xor_sync(kFullWarp, sum.first, offset);
    sum.second += __shfl_xor_sync(kFullWarp, sum.second, offset);
  }
  return sum;
}

}  // namespace normact::cuda
