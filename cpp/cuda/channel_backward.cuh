// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward. dh = dy * act'(h), daddend = dh; with statistics of x
// dx = rstd * (g - E[g] - xhat * E[g * xhat]), g = dh * weight; with constant ones dx = rstd * g.
#pragma once

#include "cuda/channel_forward.cuh"

namespace normact::cuda {

/// Where sums.data is there, they are sums over all processes, or what the launch is to compute.
template <class A>
using BackwardProblem = ActivatedProblem<ChannelInputGradient, A>;

template <class A>
__device__ __forceinline__ A* table_at(const ChannelTable& table, int64_t row, int64_t channel) {
  return static_cast<A*>(table.data) + row * table.row_stride + channel * table.channel_stride;
}

template <class T, class Act, class Walk>
struct BackwardPass {
  using A = Accumulator<T>;
  using Spot = typename Walk::Spot;
  using Access = typename Walk::Access;
  static constexpr int kWidth = Walk::kWidth, kOwned = Walk::kOwned;
  static constexpr bool kActs = !kIdentity<T, Act>;
  static constexpr bool kFromOutput = slope_follows_from_output<Act>();
  static constexpr bool kMasked = kAny<Act> || std::is_same_v<Act, Relu<Math<T>>>;
  static constexpr int kLoads = 2;                          // of each tensor under way together
  static constexpr bool kAhead = !Walk::kPlanes && !kActs;  // where there are registers for the next ones, too

  const BackwardProblem<A>& p;
  const ChannelSpace& s;
  NumberPair<A>* entries;
  NumberPair<A>* finals;

  /// What belongs to the channels of a thread.
  struct Constants {
    A mean[kOwned], scale[kOwned], bias[kActs ? kOwned : 1];
  };

  __device__ __forceinline__ A rstd_at(int64_t batch, int64_t channel) const {
    return *statistic_at<A>(p.rstd, batch, s.group_of(channel));
  }

  __device__ __forceinline__ Constants constants_of(const ChannelTile& tile, const Walk& walk) const {
    Constants of;
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const int64_t channel = tile.first + walk.column() + o;
      of.mean[o] = *statistic_at<A>(p.mean, tile.batch, s.group_of(channel));
      of.scale[o] = channel_scale(rstd_at(tile.batch, channel), entry_or<T>(p.weight, channel, A(1)));
      if constexpr (kActs) of.bias[o] = entry_or<T>(p.bias, channel, A(0));
    }
    return of;
  }

  struct Loaded {
    Access dy[kLoads], x[kLoads], third[kActs ? kLoads : 1];  // third: y, or addend where h is computed again
  };

  __device__ __forceinline__ void load(const Walk& walk, const Spot (&spot)[kLoads], Loaded* in) const {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (!spot[k].valid) continue;
      in->x[k] = walk.load(p.x, spot[k]);
      in->dy[k] = walk.load(p.dy, spot[k]);
    }
    if constexpr (kActs) {
      if (p.mask != nullptr || (p.y.data == nullptr && p.addend.data == nullptr)) return;
      const ChannelView& third = p.y.data != nullptr ? p.y : p.addend;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        if (spot[k].valid) in->third[k] = walk.load(third, spot[k]);
      }
    }
  }

  /// dh and x - mean of access k.
  __device__ __forceinline__ void differentiate(const Walk& walk, const Spot& spot, const Loaded& in, int k,
                                                const Constants& of, A (&dh)[kWidth], A (&centred)[kWidth]) const {
    walk.get(in.x[k], centred);
    walk.get(in.dy[k], dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[j] -= of.mean[Walk::owner(j)];
    if constexpr (kActs) {
      if (kMasked && p.mask != nullptr) {
        apply_bits(walk, spot, dh);
      } else if (kFromOutput && p.y.data != nullptr) {
        A y[kWidth];
        walk.get(in.third[k], y);
        apply_slopes_of_output<T, Act>(dh, y, p);
      } else {
        A h[kWidth] = {};
        if (p.addend.data != nullptr) walk.get(in.third[k], h);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          h[j] += affine(centred[j], of.scale[Walk::owner(j)], of.bias[Walk::owner(j)]);
        }
        apply_slopes<T, Act>(dh, h, p);
      }
    }
  }

  /// dh = dh * the mask's bits.
  __device__ __forceinline__ void apply_bits(const Walk& walk, const Spot& spot, A (&dh)[kWidth]) const {
    unsigned bits = 0;
    if (s.mask_together) {
      const int64_t number = walk.number(spot, 0);
      bits = p.mask[number / 8] >> (number % 8);
    } else {
#pragma unroll 1
      for (int j = 0; j < kWidth; ++j) {
        if (!walk.inside(spot, j)) continue;
        const int64_t number = walk.number(spot, j);
        bits |= (p.mask[number / 8] >> (number % 8) & 1u) << j;
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) dh[j] *= (bits >> j & 1) != 0 ? A(1) : A(0);
  }

  template <class Draw>
  __device__ __forceinline__ void reduce(const ChannelItem& item, Draw draw) const {
    __shared__ ChannelScratch<A, kOwned, 2> scratch;
#pragma unroll 1
    for (int index = 0; index < item.tiles; ++index) {
      const ChannelTile tile = item.tile(s, index);
      Walk walk(s, tile, p.x);
      NumberPair<A> sums[kOwned] = {};
      if (walk.works()) reduce_tile(tile, walk, sums);
      leave_sums(s, walk, index, sums, scratch);
    }
    draw();
    store_sums(s, item, scratch, entries);
  }

  __device__ __forceinline__ void reduce_tile(const ChannelTile& tile, Walk& walk,
                                              NumberPair<A> (&sums)[kOwned]) const {
    const Constants of = constants_of(tile, walk);
    const auto fetch = [&](const Spot(&spot)[kLoads], Loaded* in) { load(walk, spot, in); };
    for_each_block<kLoads, kAhead, Loaded>(walk, fetch, [&](const Spot(&spot)[kLoads], const Loaded& in) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        if (!spot[k].valid) continue;
        A dh[kWidth], centred[kWidth];
        differentiate(walk, spot[k], in, k, of, dh, centred);
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
    });
#pragma unroll
    for (int o = 0; o < kOwned; ++o) sums[o].second *= rstd_at(tile.batch, tile.first + walk.column() + o);
  }

  /// Adds up the sums of a group: weighted, as g is, where it has several channels.
  __device__ __forceinline__ NumberPair<A> sums_of(int64_t first, int64_t group, unsigned count, int lane,
                                                   int lanes) const {
    NumberPair<A> sum{A(0), A(0)};
#pragma unroll 2
    for (unsigned i = lane; i < count; i += lanes) {
      const NumberPair<A> entry = NumberPair<A>::load(entries + first + i);
      const A weight = p.set == ChannelSet::channel
                           ? A(1)
                           : entry_or<T>(p.weight, group * s.group_channels + s.by_parts.quotient(i), A(1));
      sum.first += weight * entry.first;
      sum.second += weight * entry.second;
    }
    for (int offset = lanes / 2; offset > 0; offset >>= 1) {
      sum.first += __shfl_xor_sync(kFullWarp, sum.first, offset);
      sum.second += __shfl_xor_sync(kFullWarp, sum.second, offset);
    }
    return sum;
  }

  __device__ __forceinline__ void settle(const ChannelSettle& settle) const {
    for_each_group(s, settle, [&](int64_t group, int lane, int lanes, bool valid) {
      const int64_t first = valid ? entry_of(s, settle.batch, group * s.group_channels) : 0;
      const NumberPair<A> sum =
          sums_of(first, group, valid ? static_cast<unsigned>(s.group_channels * s.parts) : 0, lane, lanes);
      if (!valid || lane != 0) return;
      A scale = *statistic_at<A>(p.rstd, settle.batch, group);
      if (p.set == ChannelSet::channel) {
        if (p.dbias.data != nullptr) store_parameter<T>(p.dbias, group * p.dbias.stride, sum.first);
        if (p.dweight.data != nullptr) store_parameter<T>(p.dweight, group * p.dweight.stride, sum.second);
        scale = channel_scale(scale, entry_or<T>(p.weight, group, A(1)));
      }
      const A share = p.frozen ? A(0) : scale / static_cast<A>(s.per_channel * s.group_channels);
      finals[settle.batch * s.groups + group] = {share * sum.first, share * sum.second};
    });
  }

  /// c1 and c2 of a channel.
  __device__ __forceinline__ NumberPair<A> correction(int64_t batch, int64_t channel, A scale) const {
    if (p.sums.data != nullptr) {
      const A share = scale / static_cast<const A*>(p.count)[channel * p.count_stride];
      return {*table_at<A>(p.sums, 1, channel) * share, *table_at<A>(p.sums, 0, channel) * share};
    }
    if (!s.reduces) return {A(0), A(0)};  // frozen, no parameter gradients
    return NumberPair<A>::load(finals + batch * s.groups + s.group_of(channel));
  }

  __device__ __forceinline__ void apply(const ChannelItem& item) const {
#pragma unroll 1
    for (int index = item.tiles; index-- > 0;) apply_tile(item.tile(s, index));
  }

  __device__ __forceinline__ void apply_tile(const ChannelTile& tile) const {
    Walk walk(s, tile, p.x);
    if (!walk.works()) return;
    const Constants of = constants_of(tile, walk);
    A c1[kOwned], c2[kOwned];
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const int64_t channel = tile.first + walk.column() + o;
      const NumberPair<A> c = correction(tile.batch, channel, of.scale[o]);
      c1[o] = c.first;
      c2[o] = c.second * rstd_at(tile.batch, channel);  // of x - mean instead of xhat
    }
    const auto fetch = [&](const Spot(&spot)[kLoads], Loaded* in) { load(walk, spot, in); };
    for_each_block<kLoads, kAhead, Loaded>(walk, fetch, [&](const Spot(&spot)[kLoads], const Loaded& in) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        if (!spot[k].valid) continue;
        A dh[kWidth], centred[kWidth];
        differentiate(walk, spot[k], in, k, of, dh, centred);
        if (p.daddend.data != nullptr) walk.store(p.daddend, spot[k], dh);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          constexpr auto owner = Walk::owner;
          dh[j] = channel_input_gradient(dh[j], centred[j], of.scale[owner(j)], c1[owner(j)], c2[owner(j)]);
        }
        walk.store(p.dx, spot[k], dh);
      }
    });
  }
};

/// Work     channel_space.cuh, channel_walk.cuh.
/// Bytes    each element of dy, x (and y, addend, mask, where the slope needs them) is read twice, the second time out
///          of the L2 cache where a wave fits it; each of dx and daddend is written once.
/// Barriers two an item, one more where the lines of a block add up their sums.
template <class T, class Act, class Walk>
__global__ void __launch_bounds__(kChannelThreads, 2)
    channel_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                            const __grid_constant__ ChannelSpace space, void* entries, void* finals, void* counters) {
  using A = Accumulator<T>;
  const BackwardPass<T, Act, Walk> pass{p, space, static_cast<NumberPair<A>*>(entries),
                                        static_cast<NumberPair<A>*>(finals)};
  run_channel_items(space, counters, pass);
}

}  // namespace normact::cuda
