// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward over rows, a launch for each pass (channel_rows.cuh).
#pragma once

#include "cuda/channel_forward.cuh"
#include "cuda/channel_rows.cuh"

namespace normact::cuda {

template <class T, class Act, class Walk>
using RowForwardPass = ForwardPass<T, Act, Walk, false>;

/// The moments of parts of tiles.
/// Work     a block a part; its rows merge their moments through shared memory.
/// Bytes    each element of x is read once.
/// Barriers two.
template <class T>
__global__ void __launch_bounds__(kChannelThreads, 3)
    channel_row_moments_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                               const __grid_constant__ ChannelSpace s, MomentsEntry<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  using Walk = RowWalk<T, kPackSize<T>>;
  using Pass = RowForwardPass<T, Identity<Math<T>>, Walk>;
  constexpr int kLoads = 8, kWidth = Walk::kWidth;
  const Pass pass{p, s, entries, nullptr, nullptr};
  const ChannelItem item = row_part(s, blockIdx.x);
  const ChannelTile tile = item.tile(s, 0);
  Walk walk(s, tile, p.x);
  RowAccesses<kLoads, Walk> accesses(walk);
  start_after_previous();
  const auto load = [&](const auto& spot, Pack<T>(*in)[kLoads]) { fetch<false>(walk, p.x, spot, KeptPacks(), 0, *in); };
  Pack<T> in[kLoads];
  typename Walk::Spot first[kLoads];
  accesses.look(first);
  load(first, &in);
  const TileNumbers<A> numbers(s);
  numbers.template fill<1>(tile, [&](int column, A(&number)[1]) {
    number[0] = pass.parameters_of(tile.batch, tile.first + column).origin();
  });
  ThreadSums<T, Walk> sums;
  if (first[0].valid) {
    A value[kWidth];
    unpack(in[0], value);
    sums.begin(value, 1);
  }
  accesses.for_each(in, load, [&](const auto& spot, const Pack<T>(&packs)[kLoads]) {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (!spot[k].valid) break;
      A value[kWidth];
      unpack(packs[k], value);
      sums.add(value, 1, [](int) { return true; });
    }
  });
  A origin[kWidth] = {};
  if (walk.works()) numbers.get(0, walk.column(), origin);
  sums.join_all(s.join_from, s.join_to);
  sums.finish(origin);
  const ChannelScratch<A> scratch(s);
  leave_moments(s, walk, 0, sums.pivot, sums.square, static_cast<A>(sums.count), scratch);
  store_moments(s, item, scratch, entries, [&](int column) { return numbers.get(0, column); }, [] { __syncthreads(); });
}

/// y, from statistics that are x's, which the launch before has left, or from others.
/// Work     a block a part; from the last rows on, but where x is cached: there what is written drives out what was
///          read first.
/// Bytes    each element of x and addend is read, each of y written once.
/// Barriers one.
template <class T, class Act, bool kCached>
__global__ void __launch_bounds__(kChannelThreads, 3)
    channel_row_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                               const __grid_constant__ ChannelSpace s, NumberPair<Accumulator<T>>* finals) {
  using A = Accumulator<T>;
  using Walk = SecondRowWalk<T, kCached>;
  using Pass = RowForwardPass<T, Act, Walk>;
  constexpr int kLoads = 4, kWidth = Walk::kWidth;
  const Pass pass{p, s, nullptr, finals, nullptr};
  const ChannelItem item = row_part_again(s, blockIdx.x, gridDim.x, !kCached);
  const ChannelTile tile = item.tile(s, 0);
  Walk walk(s, tile, p.x);
  RowAccesses<kLoads, Walk> accesses(walk);
  const auto load = [&](const auto& spot, Pack<T>(*in)[kLoads]) { fetch<false>(walk, p.x, spot, KeptPacks(), 0, *in); };
  Pack<T> in[kLoads];
  typename Walk::Spot first[kLoads];
  accesses.look(first);
  load(first, &in);
  start_after_previous();
  const TileNumbers<A> numbers(s);
  numbers.template fill<3>(tile, [&](int column, A(&number)[3]) {
    const typename Pass::Constants of = pass.constants_of(tile, KeptPacks(), column, item.part == 0);
    number[0] = of.mean;
    number[1] = of.scale;
    number[2] = of.bias;
  });
  if (!walk.works()) return;
  A mean[kWidth], scale[kWidth], bias[kWidth];
  numbers.get(0, walk.column(), mean);
  numbers.get(1, walk.column(), scale);
  numbers.get(2, walk.column(), bias);
  const auto write = [&](auto adds, auto marks) {
    accesses.for_each(in, load, [&](const auto& spot, const Pack<T>(&packs)[kLoads]) {
      Pack<T> addend[2];  // under way together: more take registers that are not there
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        if (!spot[k].valid) break;
        if (adds && k % 2 == 0) {
          addend[0] = walk.load(p.addend, spot[k]);
          if (spot[k + 1].valid) addend[1] = walk.load(p.addend, spot[k + 1]);
        }
        A h[kWidth];
        unpack(packs[k], h);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], mean[j], scale[j], bias[j]);
        if constexpr (adds) {
          A value[kWidth];
          unpack(addend[k % 2], value);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) h[j] += value[j];
        }
        if constexpr (marks) store_bits<kWidth>(p.mask, walk.first_number(spot[k]), relu_bits<T>(h, p));
        apply_activation<T, Act>(h, p);
        walk.store(p.y, spot[k], h);
      }
    });
  };
  const std::true_type yes;
  const std::false_type no;
  const bool adds = p.addend.data != nullptr;
  if constexpr (Pass::kMarks) {
    if (s.mask_with_y) return adds ? write(yes, yes) : write(no, yes);
  }
  adds ? write(yes, no) : write(no, no);
}

}  // namespace normact::cuda
