// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward. dh = dy * act'(h), daddend = dh; with statistics of x
// dx = rstd * (g - E[g] - xhat * E[g * xhat]), g = dh * weight; with constant ones dx = rstd * g.
#pragma once

#include "cuda/channel_mask.cuh"
#include "cuda/channel_rounds.cuh"
#include "cuda/channel_slopes.cuh"

namespace normact::cuda {

/// kKept: items are in shared memory (ChannelOrder::kept).
template <class T, class Act, class Walk, bool kKept>
struct BackwardPass {
  using Type = T;
  using A = Accumulator<T>;
  using Spot = typename Walk::Spot;
  using Access = typename Walk::Access;
  static constexpr int kWidth = Walk::kWidth, kOwned = Walk::kOwned;
  static constexpr Arrival kArrival = kKept ? Arrival::awaited : Arrival::there;
  static constexpr bool kActs = !kIdentity<T, Act>;
  static constexpr int kLoads = !Walk::kSingles ? 2 : kActs ? 4 : 8;  // of each tensor under way together
  /// Where there are registers for the next ones, too.
  static constexpr bool kAhead = !Walk::kPlanes && !Walk::kSingles && !kActs;

  static constexpr bool kKeepsBits = kKept && !Walk::kPlanes;  // of a mask, in shared memory
  /// Whether dh takes dy's place between the passes: where its rounding to T changes nothing.
  static constexpr bool kKeepsSlopes = kKept && kActs && (std::is_same_v<T, A> || kRelu<T, Act>);

  const BackwardProblem<A>& p;
  const ChannelSpace& s;
  NumberPair<A>* entries;
  NumberPair<A>* finals;
  NumberPair<A>* settled;  // in shared memory: of the groups of a slab that are settled in every block

  /// What belongs to the channels of a thread.
  struct Constants {
    A mean[kOwned], rstd[kOwned], scale[kOwned], bias[kActs ? kOwned : 1];
  };

  struct alignas(4 * sizeof(A)) Parameters {
    A mean, rstd, weight, bias;
  };
  __device__ __forceinline__ Parameters parameters_of(int64_t batch, int64_t channel) const {
    const int64_t group = s.group_of(channel), index = s.parameter_of(channel);
    return {*statistic_at<A>(p.mean, batch, group), *statistic_at<A>(p.rstd, batch, group),
            entry_or<T>(p.weight, index, A(1)), entry_or<T>(p.bias, index, A(0))};
  }

  __device__ __forceinline__ Constants constants_of(const ChannelTile& tile, const KeptPacks& kept,
                                                    const Walk& walk) const {
    Constants of;
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Parameters own = kept_parameters<kKept>(*this, tile, kept, walk.column() + o);
      of.mean[o] = own.mean;
      of.rstd[o] = own.rstd;
      of.scale[o] = channel_scale(own.rstd, own.weight);
      if constexpr (kActs) of.bias[o] = own.bias;
    }
    return of;
  }

  template <SlopeFrom kFrom>
  struct Accesses {
    template <int kBlock>
    struct Loaded {
      Access dy[kBlock], x[kBlock], third[kFrom == SlopeFrom::third ? kBlock : 1];
      unsigned bits[kFrom == SlopeFrom::mask ? kBlock : 1];  // those of a pack together
      SharedAddress kept_dy;
    };
  };

  /// What the activation's slope needs beside x: y, or addend where h is computed again; or nothing.
  __device__ __forceinline__ const ChannelView* third_view() const { return kActs ? slope_view(p) : nullptr; }

  __device__ __forceinline__ ItemCopy<Walk, 2> copy(const ChannelItem& item) const {
    const ChannelView* const views[] = {&p.x, &p.dy};
    return ItemCopy<Walk, 2>(s, item, views, third_view());
  }

  template <SlopeFrom kFrom, int kBlock, class In>
  __device__ __forceinline__ void load(const Walk& walk, const Spot (&spot)[kBlock], const KeptPacks& packs,
                                       In* in) const {
    fetch<kKept>(walk, p.x, spot, packs, 0, in->x);
    fetch<kKept>(walk, p.dy, spot, packs, 1, in->dy);
    in->kept_dy = packs.at(1, 0);
    if constexpr (kFrom == SlopeFrom::third) fetch<false>(walk, *third_view(), spot, packs, 2, in->third);
    if constexpr (kFrom == SlopeFrom::mask && kWidth > 1) {
      if (s.mask == ChannelMask::apart) return;
#pragma unroll
      for (int k = 0; k < kBlock; ++k) {
        if constexpr (kKeepsBits) {
          in->bits[k] = kept_bits(s, packs.at(0, k));
        } else if (spot[k].valid) {
          in->bits[k] = load_bits(p.mask, walk.first_number(spot[k]));
        }
      }
    }
  }
  /// load(), then use(), of all accesses.
  template <SlopeFrom kFrom, class Use>
  __device__ __forceinline__ void for_each(Walk& walk, KeptPacks& kept, Use use) const {
    const auto read = [&](const auto& spot, const KeptPacks& packs, auto* in) { load<kFrom>(walk, spot, packs, in); };
    using In = Accesses<kFrom>;
    if constexpr (kKept) {
      for_each_kept<kLoads, In::template Loaded>(walk, kept, read, use);
    } else {
      for_each_block<kLoads, kAhead, In::template Loaded>(walk, kept, read, use);
    }
  }

  /// dh and x - mean of access k.
  template <SlopeFrom kFrom, class In>
  __device__ __forceinline__ void differentiate(const Walk& walk, const Spot& spot, const In& in, int k,
                                                const Constants& of, A (&dh)[kWidth], A (&centred)[kWidth]) const {
    walk.get(in.x[k], centred);
    walk.get(in.dy[k], dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[j] -= of.mean[Walk::owner(j)];
    if constexpr (kFrom == SlopeFrom::mask) {
      apply_bits(s, p.mask, walk, spot, in.bits[k], dh);
    } else if constexpr (kFrom != SlopeFrom::nothing) {
      constexpr bool kThird = kFrom == SlopeFrom::third;
      multiply_by_slopes<kThird, T, Act, Walk>(p, dh, centred, of.scale, of.bias,
                                               [&](A(&value)[kWidth]) { walk.get(in.third[kThird ? k : 0], value); });
    }
  }

  template <class Steps>
  __device__ __forceinline__ void reduce(const ChannelItem& item, Steps& steps, KeptPacks kept) const {
    const ChannelScratch<A> scratch(s);
#pragma unroll 1
    for (int index = 0; index < item.tiles; ++index) {
      const ChannelTile tile = item.tile(s, index);
      Walk walk(s, tile, p.x);
      NumberPair<A> sums[kOwned] = {};
      if (walk.works()) reduce_tile(tile, walk, kept, sums);
      leave_sums(s, walk, index, sums, scratch);
    }
    steps.meet();
    store(item, scratch, kept);
  }

  /// Writes the entries of an item from what all threads have left. All threads, behind a barrier.
  __device__ __forceinline__ void store(const ChannelItem& item, const ChannelScratch<A>& scratch,
                                        KeptPacks kept) const {
    if (s.has_columns()) {
      store_group_sums(s, item, scratch, s.scratch_lines, entries, [](int) { return A(1); });
      return;
    }
    store_sums(s, item, scratch, entries);
    if (s.groups_an_item == 0) return;
    __syncthreads();
    store_group_sums(s, item, scratch, 1, entries + s.group_entries_at,
                     [&](int channel) { return kept_parameters<kKept>(*this, item.tile(s, 0), kept, channel).weight; });
  }

  __device__ __forceinline__ void reduce_tile(const ChannelTile& tile, Walk& walk, KeptPacks& kept,
                                              NumberPair<A> (&sums)[kOwned]) const {
    with_slope<T, Act, kMasked<T, Act>>(p,
                                        [&](auto from) { reduce_from<decltype(from)::value>(tile, walk, kept, sums); });
  }

  template <SlopeFrom kFrom>
  __device__ __forceinline__ void reduce_from(const ChannelTile& tile, Walk& walk, KeptPacks& kept,
                                              NumberPair<A> (&sums)[kOwned]) const {
    if constexpr (kFrom == SlopeFrom::mask && kKeepsBits) keep_bits(s, p.mask, walk, kept);
    const Constants of = constants_of(tile, kept, walk);
    const auto use = [&](const auto& spot, const auto& in) {
#pragma unroll
      for (int k = 0; k < size_of_array(spot); ++k) {
        if (!spot[k].valid) continue;
        A dh[kWidth], centred[kWidth];
        differentiate<kFrom>(walk, spot[k], in, k, of, dh, centred);
        if constexpr (kKeepsSlopes) store_shared_pack(in.kept_dy + k * KeptPacks::kStep, to_pack<T>(dh));
        if (!walk.whole(spot[k])) {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            dh[j] = walk.inside(spot[k], j) ? dh[j] : A(0);
            centred[j] = walk.inside(spot[k], j) ? centred[j] : A(0);
          }
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          sums[Walk::owner(j)].first += dh[j];
          sums[Walk::owner(j)].second += dh[j] * centred[j];
        }
      }
    };
    for_each<kFrom>(walk, kept, use);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) sums[o].second *= of.rstd[o];
  }

  /// Adds up the sums of a group, to lane 0 of `lanes`.
  template <unsigned kTogether>
  __device__ __forceinline__ NumberPair<A> sums_of(const GroupEntries& own, bool valid, int lane, int lanes) const {
    NumberPair<A> sum{A(0), A(0)};
    const NumberPair<A>* from = s.groups_an_item > 0 ? entries + s.group_entries_at : entries;
    for_each_handed<kArrival, kTogether>(from, valid ? own.count() : 0, lane, lanes, own,
                                         [&](const NumberPair<A>& entry) {
                                           sum.first += entry.first;
                                           sum.second += entry.second;
                                         });
    for (int offset = lanes / 2; offset > 0; offset >>= 1) {
      sum.first += __shfl_xor_sync(kFullWarp, sum.first, offset);
      sum.second += __shfl_xor_sync(kFullWarp, sum.second, offset);
    }
    return sum;
  }

  /// first: whether the results are this block's to write.
  template <unsigned kTogether = kFewTogether>
  __device__ __forceinline__ void settle(const ChannelSettle& settle, bool first) const {
    for_each_group(s, settle, [&](int64_t group, int lane, int lanes, bool valid) {
      const GroupEntries own(s, settle, valid ? group : settle.first);
      const NumberPair<A> sum = sums_of<kTogether>(own, valid, lane, lanes);
      if (!valid || lane != 0) return;
      A scale = *statistic_at<A>(p.rstd, settle.batch, group);
      if (first && p.set == ChannelSet::channel) store_gradients<T>(p, group, sum);
      if (s.groups_an_item == 0 || s.has_columns()) {
        scale = channel_scale(scale, entry_or<T>(p.weight, group, A(1)));
      }
      const NumberPair<A> final = correction_of(p, scale / static_cast<A>(s.per_channel * s.group_channels), sum);
      if (kKept && !s.settles_apart) {
        settled[group - settle.first_of_slab] = final;
      } else {
        hand(finals + settle.batch * s.groups + group, final);
      }
    });
  }

  /// c1 and c2 of a channel. first_group: of those that are settled together.
  __device__ __forceinline__ NumberPair<A> correction(int64_t batch, int64_t channel, int first_group, A scale) const {
    if constexpr (kKept) return settled_at<A>(s, settled, s.group_of(channel) - first_group);
    const int64_t group = s.group_of(channel);
    if (p.sums.data != nullptr) return given_correction(p, group, scale);
    if (!s.has_sums) return {A(0), A(0)};  // frozen, no parameter gradients
    return handed<Arrival::there>(finals + batch * s.groups + group);
  }

  /// coming: the block's next item, which takes this one's place, if items are kept.
  template <class Copy>
  __device__ __forceinline__ void apply(const ChannelItem& item, KeptPacks kept, Copy& coming) const {
#pragma unroll 1
    for (int index = 0; index < item.tiles; ++index) {
      const ChannelTile tile = item.tile(s, kKept ? index : item.tiles - 1 - index);
      apply_tile(tile, kept, coming);
    }
  }

  template <class Copy>
  __device__ __forceinline__ void apply_tile(const ChannelTile& tile, KeptPacks& kept, Copy& coming) const {
    Walk walk(s, tile, p.x);
    if (!walk.works()) return;
    if constexpr (kKeepsSlopes) {
      apply_from<SlopeFrom::nothing>(tile, walk, kept, coming);
    } else {
      with_slope<T, Act, kMasked<T, Act>>(
          p, [&](auto from) { apply_from<decltype(from)::value>(tile, walk, kept, coming); });
    }
  }

  template <SlopeFrom kFrom, class Copy>
  __device__ __forceinline__ void apply_from(const ChannelTile& tile, Walk& walk, KeptPacks& kept, Copy& coming) const {
    const Constants of = constants_of(tile, kept, walk);
    A c1[kOwned], c2[kOwned];  // c2 of x - mean instead of xhat
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const int64_t channel = tile.first + walk.column() + o;
      const NumberPair<A> c = correction(tile.batch, channel, tile.first_group, of.scale[o]);
      c1[o] = c.first;
      c2[o] = c.second * of.rstd[o];
    }
    const auto use = [&](const auto& spot, const auto& in) {
#pragma unroll
      for (int k = 0; k < size_of_array(spot); ++k) {
        if (!spot[k].valid) continue;
        A dh[kWidth], centred[kWidth];
        differentiate<kFrom>(walk, spot[k], in, k, of, dh, centred);
        if (p.daddend.data != nullptr) walk.store(p.daddend, spot[k], dh);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          constexpr auto owner = Walk::owner;
          dh[j] = normact::channel_input_gradient(dh[j], centred[j], of.scale[owner(j)], c1[owner(j)], c2[owner(j)]);
        }
        walk.store(p.dx, spot[k], dh);
      }
      coming.advance(size_of_array(spot));
    };
    for_each<kFrom>(walk, kept, use);
  }
};

/// Work     channel_queue.cuh, channel_walk.cuh.
/// Bytes    each element of dy, x (and y, addend, mask, where the slope needs them) is read once where items are kept,
///          else twice, the second time out of the L2 cache where a wave fits it; each of dx and daddend is written
///          once. Of 16 bits, slopes of activations other than ReLU are computed in both passes.
/// Barriers four to six an item that is kept, else two, one more where the lines of a block add up their sums.
template <class T, class Act, class Walk, bool kKept>
__global__ void __launch_bounds__(kChannelThreads, Walk::kSingles ? 3 : 2)
    channel_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                            const __grid_constant__ ChannelSpace space, void* entries, void* finals, void* counters) {
  using A = Accumulator<T>;
  __shared__ NumberPair<A> settled[kKept ? kChannelThreads : 1];
  const BackwardPass<T, Act, Walk, kKept> pass{p, space, static_cast<NumberPair<A>*>(entries),
                                               static_cast<NumberPair<A>*>(finals), settled};
  run_items<kKept>(space, counters, pass);
}

}  // namespace normact::cuda
