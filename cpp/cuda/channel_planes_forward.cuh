// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward over planes, a launch for each pass (channel_planes.cuh).
#pragma once

#include "cuda/channel_planes.cuh"
#include "cuda/channel_statistics.cuh"

namespace normact::cuda {

/// The moments of parts of sets.
/// Work     a team a part; warps of a block merge theirs through shared memory.
/// Bytes    each element of x is read once.
/// Barriers one, where a team is a block.
template <class T>
__global__ void __launch_bounds__(kChannelThreads, 4)
    plane_moments_kernel(const T* x, const __grid_constant__ PlaneSpace space, MomentsEntry<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  constexpr int kLoads = 4;
  const PlaneTeam team(space, blockIdx.x);
  const PlanePart<T> part(space, team.number);
  start_after_previous();
  const auto load = [&](unsigned pack, Pack<T>(*in)[kLoads]) {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) (*in)[k] = load_pack(x + part.place_or_last(pack + k * team.size).offset);
  };
  Pack<T> in[kLoads];
  load(part.begin + team.thread, &in);
  const A origin[1] = {finite_or_zero(convert<A>(x[part.offset()]))};
  ThreadSums<T, PlaneWalk<T, true>> sums;
  if (part.begin + team.thread < part.end) {
    A first[kPackSize<T>];
    unpack(in[0], first);
    sums.begin(first, kPackSize<T>);
  }
  for_each_pack<kLoads>(part, team, in, load, [&](unsigned pack, const Pack<T>(&packs)[kLoads]) {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (pack + k * team.size >= part.end) break;
      A value[kPackSize<T>];
      unpack(packs[k], value);
      sums.add(value, kPackSize<T>, [](int) { return true; });
    }
  });
  sums.join_all(1, team.lanes());
  sums.finish(origin);
  Moments<A> of{sums.pivot[0], sums.square[0], static_cast<A>(sums.count)};
  if (team.is_block()) of = block_moments(of);
  if (team.thread == 0 && part.exists) {
    hand(entries + part.number, MomentsEntry<A>{of.mean, of.m2, of.count, origin[0]});
  }
}

/// mean and rstd of a part's set, which one thread of its first part leaves: from the entries of all parts, or such as
/// are not x's.
template <class T>
__device__ __forceinline__ NumberPair<Accumulator<T>> plane_statistics(const ForwardProblem<Accumulator<T>>& p,
                                                                       const PlanePart<T>& part, const PlaneTeam& team,
                                                                       MomentsEntry<Accumulator<T>>* entries,
                                                                       unsigned entries_a_set) {
  using A = Accumulator<T>;
  const bool leads = part.part == 0 && team.thread == 0 && part.exists;
  if (p.source != StatisticsSource::batch) {
    const NumberPair<A> of = constant_statistics<T>(p, part.batch, part.group);
    if (leads && p.source == StatisticsSource::running) {
      if (p.mean.data != nullptr) *statistic_at<A>(p.mean, part.batch, part.group) = of.first;
      if (p.rstd.data != nullptr) *statistic_at<A>(p.rstd, part.batch, part.group) = of.second;
    }
    return of;
  }
  const RunningEntry<A> before = leads ? running_of_set(p, part.group) : RunningEntry<A>();
  MomentsEntry<A>* const own = entries + static_cast<int64_t>(part.set) * entries_a_set;
  Moments<A> m = moments_of_sets(team.lanes(), own->mean, [&](auto visit) {
#pragma unroll 4
    for (unsigned i = team.lane(); i < entries_a_set; i += team.lanes()) visit(own[i].moments());
  });
  m.mean += own->origin;
  const A rstd = rstd_of(variance(m), p.eps);
  if (leads) {
    // The block's other warps may still read entries.
    leave_statistics<A>(p, part.batch, part.group, m, rstd, nullptr, before);
    if (part.number == 0) count_batch(p.running);
  }
  return {m.mean, rstd};
}

/// y, from the entries of all parts of a set, or from statistics that are not x's.
/// Work     a team a part; each warp of it merges the entries for itself, while its first packs come in. Parts are gone
///          through from the last on: what has been read last is surest to be in the L2 cache.
/// Bytes    each element of x and addend is read, each of y written once.
/// Barriers one, where a set has several channels.
template <class T, class Act>
__global__ void __launch_bounds__(kChannelThreads, 4)
    plane_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                         const __grid_constant__ PlaneSpace space, MomentsEntry<Accumulator<T>>* entries,
                         unsigned entries_a_set) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>, kLoads = 4;
  const PlaneTeam team(space, gridDim.x - 1 - blockIdx.x);
  const PlanePart<T> part(space, team.number);
  const auto load = [&](unsigned pack, Pack<T>(*in)[kLoads]) {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      (*in)[k] = load_pack_once(static_cast<const T*>(p.x.data) + part.place_or_last(pack + k * team.size).offset);
    }
  };
  Pack<T> in[kLoads];
  load(part.begin + team.thread, &in);
  const PlaneConstants<T> constants(space, part, p.weight, p.bias);
  start_after_previous();
  const NumberPair<A> statistics = plane_statistics(p, part, team, entries, entries_a_set);
  if (!part.exists) return;
  const auto write = [&](auto adds, auto marks) {
    for_each_pack<kLoads>(part, team, in, load, [&](unsigned pack, const Pack<T>(&packs)[kLoads]) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k, pack += team.size) {
        if (pack >= part.end) break;
        const PlanePlace place = part.place(pack);
        const NumberPair<A> own = constants(place.plane);
        const A scale = channel_scale(statistics.second, own.first);
        Pack<T> addend;
        if constexpr (adds) addend = load_pack(static_cast<const T*>(p.addend.data) + place.offset);
        A h[kWidth];
        unpack(packs[k], h);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], statistics.first, scale, own.second);
        if constexpr (adds) {
          A value[kWidth];
          unpack(addend, value);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) h[j] += value[j];
        }
        if constexpr (marks) p.mask[part.element_number(pack) / 8] = static_cast<uint8_t>(relu_bits<T>(h, p));
        apply_activation<T, Act>(h, p);
        store_pack_streaming(static_cast<T*>(p.y.data) + place.offset, to_pack<T>(h));
      }
    });
  };
  const std::true_type yes;
  const std::false_type no;
  const bool adds = p.addend.data != nullptr;
  if constexpr (kWidth == 8 && kRelu<T, Act>) {
    if (p.mask != nullptr) return adds ? write(yes, yes) : write(no, yes);
  }
  adds ? write(yes, no) : write(no, no);
}

}  // namespace normact::cuda
