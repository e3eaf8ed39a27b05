// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward: y = act((x - mean) * rstd * weight + bias + addend).
#pragma once

#include "cuda/channel_mask.cuh"
#include "cuda/channel_moments.cuh"
#include "cuda/channel_rounds.cuh"
#include "cuda/channel_statistics.cuh"

namespace normact::cuda {

/// kKept: items are in shared memory (ChannelOrder::kept).
template <class T, class Act, class Walk, bool kKept>
struct ForwardPass {
  using Type = T;
  using A = Accumulator<T>;
  using Spot = typename Walk::Spot;
  static constexpr int kWidth = Walk::kWidth, kOwned = Walk::kOwned;
  static constexpr int kReduceLoads = Walk::kSingles ? 8 : 4;  // under way together
  static constexpr int kApplyLoads = Walk::kSingles ? 8 : 2;
  static constexpr int kAddendLoads = 4;  // of an addend beside packs in shared memory
  static constexpr bool kAhead = !Walk::kPlanes && !Walk::kSingles;
  static constexpr Arrival kArrival = kKept ? Arrival::awaited : Arrival::there;
  static constexpr bool kMarks = kWidth > 1 && kRelu<T, Act>;  // may write a mask

  const ForwardProblem<A>& p;
  const ChannelSpace& s;
  MomentsEntry<A>* entries;
  NumberPair<A>* finals;
  NumberPair<A>* settled;  // in shared memory: of the groups of a slab that are settled in every block

  template <int kBlock>
  struct Loaded {
    typename Walk::Access x[kBlock];
  };
  template <int kBlock>
  struct LoadedWithAddend {
    typename Walk::Access x[kBlock], addend[kBlock];
  };

  using Sums = ThreadSums<T, Walk>;

  /// What belongs to a channel beside its statistics.
  struct Parameters {
    A weight, bias;
    T first;  // element of the set; as it is in memory, so that nobody waits for it before it is kept

    /// What the means of a set's parts are told from: its first element, if that is finite. So they keep their digits
    /// however large the mean is beside what they differ by.
    __device__ __forceinline__ A origin() const { return finite_or_zero(convert<A>(first)); }
  };
  __device__ __forceinline__ Parameters parameters_of(int64_t batch, int64_t channel) const {
    const int64_t index = s.parameter_of(channel);
    return {entry_or<T>(p.weight, index, A(1)), entry_or<T>(p.bias, index, A(0)),
            first_element<T>(p.x, batch, s.group_of(channel) * s.group_channels)};
  }

  __device__ __forceinline__ ItemCopy<Walk, 1> copy(const ChannelItem& item) const {
    const ChannelView* const views[] = {&p.x};
    return ItemCopy<Walk, 1>(s, item, views, p.addend.data != nullptr ? &p.addend : nullptr);
  }

  template <class Steps>
  __device__ __forceinline__ void reduce(const ChannelItem& item, Steps& steps, KeptPacks kept) const {
    const ChannelScratch<A> scratch(s);
    Sums sums;
#pragma unroll 1
    for (int index = 0; index < item.tiles; ++index) {
      const ChannelTile tile = item.tile(s, index);
      Walk walk(s, tile, p.x);
      // Neighbouring tiles of a group have their sums in common.
      const int of_group = s.tiles_a_sum == 1 ? 0 : (tile.first >> s.tile_bits) % s.tiles_a_sum;
      const bool begins = index == 0 || of_group == 0;
      const bool ends = index + 1 == item.tiles || of_group + 1 == s.tiles_a_sum;
      A origin[kOwned] = {};
      if (walk.works()) {
#pragma unroll
        for (int o = 0; o < kOwned; ++o) {
          origin[o] = kept_parameters<kKept>(*this, tile, kept, walk.column() + o).origin();
        }
      }
      if (!kKept || begins) sums = Sums();
      reduce_tile(walk, kept, sums);
      if (kKept && !ends) {
        leave_moments(s, walk, index, {}, {}, A(0), scratch);
        continue;
      }
      sums.join_all(s.join_from, s.join_to);
      sums.finish(origin);
      leave_moments(s, walk, index, sums.pivot, sums.square, static_cast<A>(sums.count), scratch);
    }
    const auto origin = [&](int column) {
      return kept_parameters<kKept>(*this, item.tile(s, 0), kept, column).origin();
    };
    store_moments(s, item, scratch, entries, origin, [&] { steps.meet(); });
  }

  __device__ __forceinline__ void reduce_tile(Walk& walk, KeptPacks& kept, Sums& sums) const {
    const auto load = [&](const auto& spot, const KeptPacks& packs, auto* in) {
      fetch<kKept>(walk, p.x, spot, packs, 0, in->x);
    };
    const auto use = [&](const auto& spot, const auto& in) {
#pragma unroll
      for (int k = 0; k < size_of_array(spot); ++k) {
        if (!spot[k].valid) continue;
        const int elements = walk.count(spot[k]);
        A value[kWidth];
        walk.get(in.x[k], value);
        if (k == 0 && sums.count == 0) {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) value[j] = walk.inside(spot[k], j) ? value[j] : A(0);
          sums.begin(value, elements);
        }
        sums.add(value, elements, [&](int j) { return walk.inside(spot[k], j); });
      }
    };
    if constexpr (kKept) {
      for_each_kept<kReduceLoads, Loaded>(walk, kept, load, use);
    } else {
      for_each_block<kReduceLoads, kAhead, Loaded>(walk, kept, load, use);
    }
  }

  /// first: whether the results are this block's to write.
  template <unsigned kTogether = kFewTogether>
  __device__ __forceinline__ void settle(const ChannelSettle& settle, bool first) const {
    if (settle.begins && first && threadIdx.x == 0) count_batch(p.running);
    for_each_group(s, settle, [&](int64_t group, int lane, int lanes, bool valid) {
      const GroupEntries own(s, settle, valid ? group : settle.first);
      const Moments<A> m = merge_entries<kArrival, kTogether>(entries, valid ? own.count() : 0, lane, lanes, own);
      if (!valid || lane != 0) return;
      const A mean = m.mean, rstd = rstd_of(variance(m), p.eps);
      const NumberPair<A> of{mean, rstd};
      if (kKept && !s.settles_apart) settled[group - settle.first_of_slab] = of;
      if (!first) return;
      hand(finals + settle.batch * s.groups + group, of);
      leave_statistics(p, settle.batch, group, m, rstd, entries + own(0), running_of_set(p, group));
    });
  }

  /// mean and rstd of a channel. first_group: of those that are settled together.
  __device__ __forceinline__ NumberPair<A> statistics(int64_t batch, int64_t channel, int first_group) const {
    const int64_t group = s.group_of(channel);
    if constexpr (kKept) return settled_at<A>(s, settled, group - first_group);
    if (p.source == StatisticsSource::batch) return handed<Arrival::there>(finals + batch * s.groups + group);
    return constant_statistics<T>(p, batch, group);
  }

  /// coming: the block's next item, which takes this one's place, if items are kept.
  template <class Copy>
  __device__ __forceinline__ void apply(const ChannelItem& item, KeptPacks kept, Copy& coming) const {
#pragma unroll 1
    for (int index = 0; index < item.tiles; ++index) {
      const ChannelTile tile = item.tile(s, kKept ? index : item.tiles - 1 - index);
      apply_tile(tile, item.part == 0, kept, coming);
    }
    if constexpr (kMarks && Walk::kEdges) {
      if (s.mask_with_y && s.mask == ChannelMask::edged) EdgedMask(s, item.begin).write(p.mask, item);
    }
  }

  struct Constants {
    A mean, scale, bias;
  };
  /// leads: whether this thread writes statistics of the channel that are not x's.
  __device__ __forceinline__ Constants constants_of(const ChannelTile& tile, const KeptPacks& kept, int column,
                                                    bool leads) const {
    const int64_t channel = tile.first + column, group = s.group_of(channel);
    const NumberPair<A> of = statistics(tile.batch, channel, tile.first_group);
    if (leads && p.source == StatisticsSource::running && group * s.group_channels == channel) {
      if (p.mean.data != nullptr) *statistic_at<A>(p.mean, 0, group) = of.first;
      if (p.rstd.data != nullptr) *statistic_at<A>(p.rstd, 0, group) = of.second;
    }
    const Parameters own = kept_parameters<kKept>(*this, tile, kept, column);
    return {of.first, channel_scale(of.second, own.weight), own.bias};
  }

  /// first: whether this is the tile's first part.
  template <class Copy>
  __device__ __forceinline__ void apply_tile(const ChannelTile& tile, bool first, KeptPacks& kept, Copy& coming) const {
    Walk walk(s, tile, p.x);
    A mean[kOwned], scale[kOwned], bias[kOwned];
    if (!walk.works()) return;
    const bool leads = first && walk.line() == 0 && walk.lane() == 0;
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Constants of = constants_of(tile, kept, walk.column() + o, leads);
      mean[o] = of.mean;
      scale[o] = of.scale;
      bias[o] = of.bias;
    }
    const auto with = [&](auto adds, auto marks) {
      write_tile<decltype(adds)::value, decltype(marks)::value>(tile, walk, mean, scale, bias, kept, coming);
    };
    const bool adds = p.addend.data != nullptr;
    if constexpr (kMarks) {
      if (s.mask_with_y) {
        adds ? with(std::true_type{}, std::true_type{}) : with(std::false_type{}, std::true_type{});
        return;
      }
    }
    adds ? with(std::true_type{}, std::false_type{}) : with(std::false_type{}, std::false_type{});
  }

  /// One loop for each of the cases: what an access costs beside its bytes decides the speed.
  template <bool kAdds, bool kWithMask, class Copy>
  __device__ __forceinline__ void write_tile(const ChannelTile& tile, Walk& walk, const A (&mean)[kOwned],
                                             const A (&scale)[kOwned], const A (&bias)[kOwned], KeptPacks& kept,
                                             Copy& coming) const {
    const auto load = [&](const auto& spot, const KeptPacks& packs, auto* in) {
      fetch<kKept>(walk, p.x, spot, packs, 0, in->x);
      if constexpr (kAdds) fetch<false>(walk, p.addend, spot, packs, 1, in->addend);
    };
    const auto use = [&](const auto& spot, const auto& in) {
#pragma unroll
      for (int k = 0; k < size_of_array(spot); ++k) {
        if (!spot[k].valid) continue;
        A h[kWidth];
        walk.get(in.x[k], h);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          constexpr auto owner = Walk::owner;
          h[j] = channel_affine(h[j], mean[owner(j)], scale[owner(j)], bias[owner(j)]);
        }
        if constexpr (kAdds) {
          A other[kWidth];
          walk.get(in.addend[k], other);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) h[j] += other[j];
        }
        if constexpr (kWithMask) mark(tile, walk, spot[k], h);
        apply_activation<T, Act>(h, p);
        walk.store(p.y, spot[k], h);
      }
      coming.advance(size_of_array(spot));
    };
    if constexpr (kKept) {
      for_each_kept<kAdds ? kAddendLoads : kApplyLoads, LoadedWithAddend>(walk, kept, load, use);
    } else {
      for_each_block<kApplyLoads, kAhead, LoadedWithAddend>(walk, kept, load, use);
    }
  }

  /// The byte of the mask that this access is; its bits at an edge of a plane go by way of shared memory.
  __device__ __forceinline__ void mark(const ChannelTile& tile, const Walk& walk, const Spot& spot,
                                       const A (&h)[kWidth]) const {
    const unsigned bits = relu_bits<T>(h, p);
    if constexpr (Walk::kEdges) {
      if (s.mask == ChannelMask::edged && !walk.whole(spot)) {
        unsigned own = 0;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) own |= walk.inside(spot, j) ? bits & 1u << j : 0u;
        const EdgedMask edges(s, tile.begin);
        edges.edge(spot.sample, tile.in_item + walk.column(), spot.place >= 0) = static_cast<uint8_t>(own);
        return;
      }
    }
    store_bits<kWidth>(p.mask, walk.first_number(spot), bits);
  }
};

/// Blocks that must fit a multiprocessor. Where items are kept the planner counts on two. Else, with four of planes,
/// some bytes spill, and it is faster than with three all the same (H200, bf16 64x256x56x56: 105 and 111 us).
template <class T, class Walk, bool kKept>
constexpr int kForwardBlocks = Walk::kPlanes && sizeof(T) < 8 && !kKept ? 4
                               : Walk::kSingles                         ? 3
                                                                        : 2;

/// Work     channel_queue.cuh, channel_walk.cuh.
/// Bytes    each element of x is read once where items are kept, else twice, the second time out of the L2 cache where
///          a wave fits it; each of addend is read, each of y written once.
/// Barriers four to six an item that is kept, else two, one more where the lines of a block add up their sums.
template <class T, class Act, class Walk, bool kKept>
__global__ void __launch_bounds__(kChannelThreads, kForwardBlocks<T, Walk, kKept>)
    channel_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                           const __grid_constant__ ChannelSpace space, void* entries, void* finals, void* counters) {
  using A = Accumulator<T>;
  __shared__ NumberPair<A> settled[kKept ? kChannelThreads : 1];
  const ForwardPass<T, Act, Walk, kKept> pass{p, space, static_cast<MomentsEntry<A>*>(entries),
                                              static_cast<NumberPair<A>*>(finals), settled};
  run_items<kKept>(space, counters, pass);
}

}  // namespace normact::cuda
