// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward over rows, a launch for each pass (channel_rows.cuh).
#pragma once

#include "cuda/channel_backward.cuh"
#include "cuda/channel_rows.cuh"

namespace normact::cuda {

template <class T, class Act, class Walk>
using RowBackwardPass = BackwardPass<T, Act, Walk, false>;

/// What both passes do with a thread's accesses of a part: dh and x - mean.
template <class T, class Act, class Walk, SlopeFrom kFrom>
class RowSlopes {
 public:
  using A = Accumulator<T>;
  using Pass = RowBackwardPass<T, Act, Walk>;
  using Constants = typename Pass::Constants;
  static constexpr int kWidth = Walk::kWidth;
  static constexpr int kLoads = kFrom == SlopeFrom::third ? 2 : 4;  // accesses of each tensor that come in together
  // Numbers of a channel (TileNumbers), of which both passes have the first four.
  static constexpr int kMean = 0, kRstd = 1, kScale = 2, kBias = 3, kFirst = 4, kSecond = 5;

  __device__ __forceinline__ RowSlopes(const Pass& pass, Walk& walk) : pass_(pass), walk_(walk), accesses_(walk) {}

  /// Has the first accesses on their way.
  __device__ __forceinline__ void begin() {
    typename Walk::Spot spot[kLoads];
    accesses_.look(spot);
    load(spot, &in_);
  }
  /// The first four numbers of a channel.
  template <int kNumbers>
  __device__ __forceinline__ void constants_of(const ChannelTile& tile, int column, A (&number)[kNumbers]) const {
    const typename Pass::Parameters own = pass_.parameters_of(tile.batch, tile.first + column);
    number[kMean] = own.mean;
    number[kRstd] = own.rstd;
    number[kScale] = channel_scale(own.rstd, own.weight);
    number[kBias] = own.bias;
  }
  /// Those of this thread's channels.
  __device__ __forceinline__ Constants constants(const TileNumbers<A>& numbers) const {
    Constants of;
    numbers.get(kMean, walk_.column(), of.mean);
    numbers.get(kRstd, walk_.column(), of.rstd);
    numbers.get(kScale, walk_.column(), of.scale);
    if constexpr (Pass::kActs) numbers.get(kBias, walk_.column(), of.bias);
    return of;
  }
  /// use(spot, dh, centred) of all accesses, after begin().
  template <class Use>
  __device__ __forceinline__ void for_each(const Constants& of, Use use) {
    const auto read = [&](const auto& spot, In* to) { load(spot, to); };
    accesses_.for_each(in_, read, [&](const auto& spot, const In& in) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        if (!spot[k].valid) break;
        A dh[kWidth], centred[kWidth];
        pass_.template differentiate<kFrom>(walk_, spot[k], in, k, of, dh, centred);
        use(spot[k], dh, centred);
      }
    });
  }

 private:
  using In = typename Pass::template Accesses<kFrom>::template Loaded<kLoads>;

  __device__ __forceinline__ void load(const typename Walk::Spot (&spot)[kLoads], In* to) const {
    pass_.template load<kFrom>(walk_, spot, KeptPacks(), to);
  }

  const Pass& pass_;
  Walk& walk_;
  RowAccesses<kLoads, Walk> accesses_;
  In in_;
};

/// A thread's sums of dh and dh * xhat. All threads.
template <SlopeFrom kFrom, class T, class Act, class Walk, class A = Accumulator<T>>
__device__ __forceinline__ void row_sums(const RowBackwardPass<T, Act, Walk>& pass, const ChannelTile& tile, Walk& walk,
                                         NumberPair<A> (&sums)[kPackSize<T>]) {
  using Slopes = RowSlopes<T, Act, Walk, kFrom>;
  constexpr int kWidth = Slopes::kWidth;
  Slopes slopes(pass, walk);
  slopes.begin();
  const TileNumbers<A> numbers(pass.s);
  numbers.template fill<4>(tile, [&](int column, A(&number)[4]) { slopes.constants_of(tile, column, number); });
  if (!walk.works()) return;
  const typename Slopes::Constants of = slopes.constants(numbers);
  slopes.for_each(of, [&](const auto&, const auto& dh, const auto& centred) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sums[j].first += dh[j];
      sums[j].second += dh[j] * centred[j];
    }
  });
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sums[j].second *= of.rstd[j];
}

/// The sums of dh and dh * xhat of parts of tiles.
/// Work     a block a part; its rows add up their sums through shared memory.
/// Bytes    each element of x and dy (and y, addend, mask, where the slope needs them) is read once.
/// Barriers two, or three for groups of several channels.
template <class T, class Act>
__global__ void __launch_bounds__(kChannelThreads, 2)
    channel_row_sums_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                            const __grid_constant__ ChannelSpace s, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  using Walk = RowWalk<T, kPackSize<T>>;
  const RowBackwardPass<T, Act, Walk> pass{p, s, entries, nullptr, nullptr};
  const ChannelItem item = row_part(s, blockIdx.x);
  const ChannelTile tile = item.tile(s, 0);
  Walk walk(s, tile, p.x);
  start_after_previous();
  NumberPair<A> sums[kPackSize<T>] = {};
  with_slope<T, Act, kMasked<T, Act>>(
      p, [&](auto from) { row_sums<decltype(from)::value, T, Act, Walk>(pass, tile, walk, sums); });
  const ChannelScratch<A> scratch(s);
  leave_sums(s, walk, 0, sums, scratch);
  __syncthreads();
  pass.store(item, scratch, KeptPacks());
}

/// dx and daddend of a part. All threads.
template <SlopeFrom kFrom, class T, class Act, class Walk, class A = Accumulator<T>>
__device__ __forceinline__ void row_gradient(const RowBackwardPass<T, Act, Walk>& pass, const ChannelTile& tile,
                                             Walk& walk) {
  using Slopes = RowSlopes<T, Act, Walk, kFrom>;
  constexpr int kWidth = Slopes::kWidth;
  Slopes slopes(pass, walk);
  slopes.begin();
  start_after_previous();
  const TileNumbers<A> numbers(pass.s);
  numbers.template fill<6>(tile, [&](int column, A(&number)[6]) {
    slopes.constants_of(tile, column, number);
    const NumberPair<A> c = pass.correction(tile.batch, tile.first + column, tile.first_group, number[Slopes::kScale]);
    number[Slopes::kFirst] = c.first;
    number[Slopes::kSecond] = c.second * number[Slopes::kRstd];  // of x - mean instead of xhat
  });
  if (!walk.works()) return;
  const typename Slopes::Constants of = slopes.constants(numbers);
  A c1[kWidth], c2[kWidth];
  numbers.get(Slopes::kFirst, walk.column(), c1);
  numbers.get(Slopes::kSecond, walk.column(), c2);
  slopes.for_each(of, [&](const auto& spot, auto& dh, const auto& centred) {
    if (pass.p.daddend.data != nullptr) walk.store(pass.p.daddend, spot, dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dh[j] = normact::channel_input_gradient(dh[j], centred[j], of.scale[j], c1[j], c2[j]);
    }
    walk.store(pass.p.dx, spot, dh);
  });
}

/// dx and daddend, from sums that the launch before has left, or from given ones, or with constant statistics.
/// Work     a block a part, from the last rows on. Blocks after those add up dweight and dbias of sets that are not
///          channels.
/// Bytes    each element of x and dy (and y, addend, mask, where the slope needs them) is read, each of dx and daddend
///          written once.
/// Barriers one.
template <class T, class Act, bool kCached>
__global__ void __launch_bounds__(kChannelThreads, 2)
    channel_row_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                                const __grid_constant__ ChannelSpace s, NumberPair<Accumulator<T>>* finals,
                                const __grid_constant__ ChannelGradients<T> gradients) {
  const unsigned blocks = blocks_of_parts(gradients);
  if (blockIdx.x >= blocks) return add_up_beside_parts(gradients);
  using Walk = SecondRowWalk<T, kCached>;
  const RowBackwardPass<T, Act, Walk> pass{p, s, nullptr, finals, nullptr};
  const ChannelItem item = row_part_again(s, blockIdx.x, blocks, true);
  const ChannelTile tile = item.tile(s, 0);
  Walk walk(s, tile, p.x);
  with_slope<T, Act, kMasked<T, Act>>(
      p, [&](auto from) { row_gradient<decltype(from)::value, T, Act, Walk>(pass, tile, walk); });
}

}  // namespace normact::cuda
