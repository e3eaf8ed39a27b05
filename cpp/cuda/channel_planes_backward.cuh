// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward over planes, a launch for each pass (channel_planes.cuh).
#pragma once

#include "cuda/channel_gradients.cuh"
#include "cuda/channel_planes.cuh"
#include "cuda/channel_slopes.cuh"

namespace normact::cuda {

/// What both passes do with a thread's packs of a part: dh and x - mean.
template <class T, class Act>
struct PlaneSlopes {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>, kLoads = 2;
  static constexpr bool kActs = !kIdentity<T, Act>;

  const BackwardProblem<A>& p;
  const PlanePart<T>& part;
  const PlaneTeam& team;

  struct Loaded {
    Pack<T> x[kLoads], dy[kLoads], third[kActs ? kLoads : 1];
    unsigned bits[kMasked<T, Act> ? kLoads : 1];
  };

  __device__ __forceinline__ void load(unsigned pack, Loaded* in) const {
    const ChannelView* const third = kActs ? slope_view(p) : nullptr;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t at = part.place_or_last(pack + k * team.size).offset;
      in->x[k] = load_pack_once(static_cast<const T*>(p.x.data) + at);
      in->dy[k] = load_pack_once(static_cast<const T*>(p.dy.data) + at);
      if constexpr (kActs) {
        if (third != nullptr) in->third[k] = load_pack_once(static_cast<const T*>(third->data) + at);
      }
      if constexpr (kMasked<T, Act>) {
        if (p.mask != nullptr) {
          const int64_t number = part.element_number(min(pack + k * team.size, part.end - 1));
          in->bits[k] = __ldcg(p.mask + number / 8) >> (number % 8);
        }
      }
    }
  }

  __device__ __forceinline__ void differentiate(const Loaded& in, int k, A mean, A scale, A bias, A (&dh)[kWidth],
                                                A (&centred)[kWidth]) const {
    unpack(in.x[k], centred);
    unpack(in.dy[k], dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[j] -= mean;
    if constexpr (kActs) {
      if constexpr (kMasked<T, Act>) {
        if (p.mask != nullptr) {
          multiply_by_bits(in.bits[k], dh);
          return;
        }
      }
      const A scales[1] = {scale}, biases[1] = {bias};
      multiply_by_any_slopes<T, Act, PlaneWalk<T, true>>(p, slope_view(p) != nullptr, dh, centred, scales, biases,
                                                         [&](A(&value)[kWidth]) { unpack(in.third[k], value); });
    }
  }
};

/// sum(dh) and sum(dh * xhat) of the parts of channels.
/// Work     a team a part; warps of a block add up theirs through shared memory.
/// Bytes    each element of dy, x (and y, addend, mask, where the slope needs them) is read once.
/// Barriers one, where a team is a block.
template <class T, class Act>
__global__ void __launch_bounds__(kChannelThreads, 3)
    plane_sums_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                      const __grid_constant__ PlaneSpace space, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  using Slopes = PlaneSlopes<T, Act>;
  const PlaneTeam team(space, blockIdx.x);
  const PlanePart<T> part(space, team.number);
  start_after_previous();
  const Slopes slopes{p, part, team};
  const auto load = [&](unsigned pack, typename Slopes::Loaded* in) { slopes.load(pack, in); };
  typename Slopes::Loaded in;
  load(part.begin + team.thread, &in);
  const A mean = *statistic_at<A>(p.mean, part.batch, part.group),
          rstd = *statistic_at<A>(p.rstd, part.batch, part.group);
  const A bias = entry_or<T>(p.bias, part.channel, A(0));
  const A scale = channel_scale(rstd, entry_or<T>(p.weight, part.channel, A(1)));
  NumberPair<A> sum{A(0), A(0)};
  for_each_pack<Slopes::kLoads>(part, team, in, load, [&](unsigned pack, const auto& packs) {
#pragma unroll
    for (int k = 0; k < Slopes::kLoads; ++k) {
      if (pack + k * team.size >= part.end) break;
      A dh[Slopes::kWidth], centred[Slopes::kWidth];
      slopes.differentiate(packs, k, mean, scale, bias, dh, centred);
#pragma unroll
      for (int j = 0; j < Slopes::kWidth; ++j) {
        sum.first += dh[j];
        sum.second += dh[j] * centred[j];
      }
    }
  });
  sum.second *= rstd;
  join(1, team.lanes(), [&](int offset) {
    sum.first += __shfl_xor_sync(kFullWarp, sum.first, offset);
    sum.second += __shfl_xor_sync(kFullWarp, sum.second, offset);
  });
  if (team.is_block()) sum = block_sums(sum);
  if (team.thread == 0 && part.exists) hand(entries + part.number, sum);
}

/// dx and daddend, from the sums of all parts of a set's channels, or from given ones.
/// Work     a team a part; each warp of it adds up the sums for itself, while its first packs come in. Parts are gone
///          through from the last on: what has been read last is surest to be in the L2 cache. Blocks after those
///          add up dweight and dbias of sets that are not channels.
/// Bytes    each element of dy, x (and y, addend, mask, where the slope needs them) is read once, each of dx and
/// daddend
///          is written once.
/// Barriers one, where a set has several channels.
template <class T, class Act>
__global__ void __launch_bounds__(kChannelThreads, 3)
    plane_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                          const __grid_constant__ PlaneSpace space, const NumberPair<Accumulator<T>>* entries,
                          unsigned entries_a_channel, const __grid_constant__ ChannelGradients<T> gradients) {
  using A = Accumulator<T>;
  using Slopes = PlaneSlopes<T, Act>;
  const unsigned blocks = blocks_of_parts(gradients);
  if (blockIdx.x >= blocks) return add_up_beside_parts(gradients);
  const PlaneTeam team(space, blocks - 1 - blockIdx.x);
  const PlanePart<T> part(space, team.number);
  const Slopes slopes{p, part, team};
  const auto load = [&](unsigned pack, typename Slopes::Loaded* in) { slopes.load(pack, in); };
  typename Slopes::Loaded in;
  load(part.begin + team.thread, &in);
  const A mean = *statistic_at<A>(p.mean, part.batch, part.group),
          rstd = *statistic_at<A>(p.rstd, part.batch, part.group);
  const PlaneConstants<T> constants(space, part, p.weight, p.bias);
  start_after_previous();
  NumberPair<A> c{A(0), A(0)};
  if (p.sums.data != nullptr) {
    c = given_correction(p, part.channel, channel_scale(rstd, constants(0).first));
  } else if (entries != nullptr) {
    const NumberPair<A>* const own = entries + (part.batch * space.all_channels + part.channel) * entries_a_channel;
    const bool several = space.channels > 1;
    NumberPair<A> sum{A(0), A(0)};
#pragma unroll 4
    for (unsigned i = team.lane(); i < space.channels * entries_a_channel; i += team.lanes()) {
      const NumberPair<A> entry = own[i];
      // Of a set of several channels the sums are weighted, as g is.
      const A weight = several ? entry_or<T>(p.weight, part.channel + i / entries_a_channel, A(1)) : A(1);
      sum.first += weight * entry.first;
      sum.second += weight * entry.second;
    }
    join(1, team.lanes(), [&](int offset) {
      sum.first += __shfl_xor_sync(kFullWarp, sum.first, offset);
      sum.second += __shfl_xor_sync(kFullWarp, sum.second, offset);
    });
    if (p.set == ChannelSet::channel && part.part == 0 && team.thread == 0 && part.exists) {
      store_gradients<T>(p, part.channel, sum);
    }
    const A elements = static_cast<A>(space.packs) * static_cast<A>(Slopes::kWidth);
    c = correction_of(p, channel_scale(rstd, several ? A(1) : constants(0).first) / elements, sum);
  }
  if (!part.exists) return;
  const A c1 = c.first, c2 = c.second * rstd;  // of x - mean instead of xhat
  for_each_pack<Slopes::kLoads>(part, team, in, load, [&](unsigned pack, const auto& packs) {
#pragma unroll
    for (int k = 0; k < Slopes::kLoads; ++k, pack += team.size) {
      if (pack >= part.end) break;
      const PlanePlace place = part.place(pack);
      const NumberPair<A> own = constants(place.plane);
      const A scale = channel_scale(rstd, own.first);
      A dh[Slopes::kWidth], centred[Slopes::kWidth];
      slopes.differentiate(packs, k, mean, scale, own.second, dh, centred);
      if (p.daddend.data != nullptr) {
        store_pack_streaming(static_cast<T*>(p.daddend.data) + place.offset, to_pack<T>(dh));
      }
#pragma unroll
      for (int j = 0; j < Slopes::kWidth; ++j) {
        dh[j] = normact::channel_input_gradient(dh[j], centred[j], scale, c1, c2);
      }
      store_pack_streaming(static_cast<T*>(p.dx.data) + place.offset, to_pack<T>(dh));
    }
  });
}

}  // namespace normact::cuda
