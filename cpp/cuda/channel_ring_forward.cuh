// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward of sets of planes that go through the shared memory of teams of blocks
// (channel_ring.cuh).
#pragma once

#include "cuda/channel_ring.cuh"
#include "cuda/channel_statistics.cuh"
#include "cuda/cluster_moments.cuh"
#include "cuda/values.cuh"

namespace normact::cuda {

#if __CUDA_ARCH__ >= 900

/// Sums of warps and blocks in fp64, answers mean and rstd.
template <class A>
using ForwardRingExchange = WarpExchange<double, A, kRingDepth>;

/// A working thread: its packs of every set of its team. kSeveral: sets have several channels. kAdds, kMarks:
/// whether there are an addend and a mask.
template <class T, class Act, bool kSeveral, bool kAdds, bool kMarks>
struct RingForwardWorker {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>, kBatch = kRingRounds;

  const ForwardProblem<A>& p;
  const RingShare<T, 2, kSeveral>& share;
  ForwardRingExchange<A>& exchange;

  A count = static_cast<A>(share.packs * kWidth);
  A reciprocal_count = share.packs > 0 ? A(1) / count : A(0);
  int warp_count = share.packs_of_warp(share.warp) * kWidth;
  A reciprocal_warp_count = warp_count > 0 ? A(1) / static_cast<A>(warp_count) : A(0);
  A centre = A(0), total[2] = {}, squares[2] = {};  // of the set whose sums are taken
  A mean = A(0), scale = A(0), bias = A(0);         // of the set that is written; of several channels without theirs
  const NumberPair<A>* table = nullptr;             // of several: weights and biases by planes
  PlanePart<T> set = share.set(0);                  // the same

  __device__ __forceinline__ void begin(int) { total[0] = total[1] = squares[0] = squares[1] = A(0); }

  /// About the mean of the thread's first pack.
  __device__ __forceinline__ void sum(const RingSlot& of) {
    if (of.chunk == 0) {
      A value[kWidth];
      unpack(load_shared_pack<T>(share.at(of, 0, 0)), value);
      centre = share.packs > 0 ? finite_or_zero(total_of(value) * A(1.0 / kWidth)) : A(0);
    }
    share.template for_each_of_chunk<kBatch>(of.chunk, [&](int k, auto n) {
      constexpr int kCount = decltype(n)::value;
      Pack<T> pack[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) pack[i] = load_shared_pack<T>(share.at(of, 0, k + i));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        A value[kWidth];
        unpack(pack[i], value);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          value[j] -= centre;
          total[j % 2] += value[j];
          squares[j % 2] += value[j] * value[j];
        }
      }
    });
  }

  __device__ __forceinline__ void contribute(int turn) {
    const SumPair<double> moments = moments_of_warp(centre, total[0] + total[1], squares[0] + squares[1], count,
                                                    reciprocal_count, reciprocal_warp_count, warp_count);
    exchange.contribute(turn, share.warp, moments);
  }

  __device__ __forceinline__ void receive(int turn) {
    const SumPair<A> statistics = exchange.answer(turn);
    mean = statistics.first;
    scale = statistics.second;
    table = share.parameters_of_planes(turn);
    set = share.set(turn);
    if constexpr (kSeveral) return;
    scale = channel_scale(scale, table->first);
    bias = table->second;
  }

  /// y of a pack.
  __device__ __forceinline__ void put(T* y, unsigned number, const Pack<T>& x, [[maybe_unused]] const Pack<T>& addend) {
    const unsigned plane = share.s.by_run.quotient(number);
    const NumberPair<A> of_plane = kSeveral ? table[plane] : NumberPair<A>{A(1), bias};
    const A factor = kSeveral ? channel_scale(scale, of_plane.first) : scale;
    A h[kWidth];
    unpack(x, h);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], mean, factor, of_plane.second);
    if constexpr (kAdds) {
      A value[kWidth];
      unpack(addend, value);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) h[j] += value[j];
    }
    if constexpr (kMarks) p.mask[set.element_number(number) / 8] = static_cast<uint8_t>(relu_bits<T>(h, p));
    apply_activation<T, Act>(h, p);
    store_pack_streaming(set.in(y, number, plane), to_pack<T>(h));
  }
  /// y of a chunk.
  __device__ __forceinline__ void write(const RingSlot& of) {
    T* const y = static_cast<T*>(p.y.data) + set.offset();
    share.template for_each_of_chunk<kBatch>(of.chunk, [&](int k, auto n) {
      constexpr int kCount = decltype(n)::value;
      Pack<T> pack[kCount], addend[kCount] = {};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        pack[i] = load_shared_pack<T>(share.at(of, 0, k + i));
        if constexpr (kAdds) addend[i] = load_shared_pack<T>(share.at(of, 1, k + i));
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) put(y, share.number(of.chunk, k + i), pack[i], addend[i]);
    });
    share.release(of, false);
  }
};

/// The warps of a block that exchange sums: answer with mean and rstd of each of the team's sets.
template <class T, class Share, class A = Accumulator<T>>
__device__ __forceinline__ void serve_ring_forward(const ForwardProblem<A>& p, const Share& share,
                                                   ForwardRingExchange<A>& exchange, MomentsEntry<A>* entries,
                                                   void* places) {
  constexpr int kWidth = kPackSize<T>;
  const int64_t elements = static_cast<int64_t>(share.s.packs) * kWidth;
  const double reciprocal = 1.0 / static_cast<double>(elements);
  if (blockIdx.x == 0 && share.serves() && share.lane == 0) count_batch(p.running);
  const auto use = [&](int turn, const SumPair<double>& moments) {
    if (share.lane != 0) return;
    const A mean = static_cast<A>(moments.first * reciprocal), variance = static_cast<A>(moments.second * reciprocal);
    const A rstd = rstd_of(variance, p.eps);
    exchange.publish(turn, {mean, rstd});
    if (share.rank != turn % share.blocks) return;
    const PlanePart<T> set = share.set(turn);
    leave_statistics(p, set.batch, set.group, Moments<A>{mean, variance * elements, static_cast<A>(elements)}, rstd,
                     entries + set.number, running_of_set(p, set.group));
  };
  const RowParts warps(share.lane < share.warps ? share.packs_of_warp(share.lane) * kWidth : 0, share.count * kWidth);
  const auto merge_warps = [&](const SumPair<double>& part) { return warps.merge<NormKind::layer>(part); };
  if (share.d.clusters) {
    const RowParts blocks(share.lane < share.blocks ? share.packs_of(share.lane) * kWidth : 0, elements);
    const auto merge_blocks = [&](const SumPair<double>& part) { return blocks.merge<NormKind::layer>(part); };
    for (int turn = 0; turn < share.turns; ++turn) {
      use(turn, exchange.merge(turn, share.warps, share.blocks, share.rank, merge_warps, merge_blocks));
    }
    return;
  }
  const TeamPlaces<double> team{static_cast<SumPair<double>*>(places), share.blocks, share.rank};
  if (share.serves()) {
    for (int turn = 0; turn < share.turns; ++turn) {
      team.give(share.set(turn).number, merge_warps(exchange.of_warps(turn, share.warps)));
      exchange.given(turn);
    }
    return;
  }
  // Blocks have as much of a set, but for the last.
  const double count = share.packs_of(0) * kWidth, last_count = share.packs_of(share.blocks - 1) * kWidth;
  const double reciprocal_count = 1.0 / count, reciprocal_last_count = 1.0 / last_count;
  const auto of_part = [&](int i, double of_any, double of_last) {
    const int beyond = share.lane + i * kWarp - (share.blocks - 1);
    return beyond < 0 ? of_any : beyond == 0 ? of_last : 0.0;
  };
  for (int turn = 0; turn < share.turns; ++turn) {
    SumPair<double> parts[TeamPlaces<double>::kParts];
    exchange.wait_until_given(turn);
    team.take(share.set(turn).number, parts);
    use(turn, merge_parts<NormKind::layer>(
                  parts, [&](int i) { return of_part(i, count, last_count); },
                  [&](int i) { return of_part(i, reciprocal_count, reciprocal_last_count); }, reciprocal));
  }
}

#endif

/// Work     persistent teams of blocks, one block a multiprocessor.
/// Bytes    each element of x (and addend) is read once, each of y written once.
/// Barriers of the block, and of the cluster or the grid, before the loop; in it none but mbarriers: a chunk is there,
///          all have done with a chunk, a set's statistics are there.
/// Memory   places to end: where the blocks of a team that is no cluster hand each other their sums.
template <class T, class Act, bool kSeveral>
__global__ void __launch_bounds__(kChannelRingThreads, 1)
    ring_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                        const __grid_constant__ PlaneSpace space, const __grid_constant__ RingDivision division,
                        MomentsEntry<Accumulator<T>>* entries, void* places, void* end) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  struct BlockMemory {
    ForwardRingExchange<A> exchange;
    ChannelRingBarriers barriers;
  };
  static_assert(sizeof(BlockMemory) <= kStaticSharedReserve);
  __shared__ BlockMemory block_memory;
  auto& [exchange, barriers] = at_known_address(block_memory);
  const bool adds = p.addend.data != nullptr;
  const RingShare<T, 2, kSeveral> share(space, division, barriers, adds ? 2 : 1, false);
  if (share.serves()) exchange.init(share.warps, share.givers());
  if (share.fetches() && share.lane == 0) share.init_barriers();
  start_after_previous();
  const RingSource<T, 2> source{
      {static_cast<const T*>(p.x.data), static_cast<const T*>(p.addend.data)}, p.weight, p.bias, nullptr, nullptr};
  RingFetcher<T, 2, kSeveral> fetcher(share, source);
  begin_ring(share, fetcher, places, end);
  if (share.serves() || share.takes()) {
    serve_ring_forward<T>(p, share, exchange, entries, places);
  } else if (!share.fetches()) {
    const auto run = [&, &of = exchange](auto add, auto mark) {
      RingForwardWorker<T, Act, kSeveral, decltype(add)::value, decltype(mark)::value> worker{p, share, of};
      run_ring(worker, share);
    };
    const std::true_type yes;
    const std::false_type no;
    if constexpr (kSeveral) {  // never beside a mask or an addend
      run(no, no);
    } else {
      constexpr bool kMarks = kPackSize<T> == 8 && kRelu<T, Act>;
      const bool marks = kMarks && p.mask != nullptr;
      if constexpr (kMarks) {
        if (marks) adds ? run(yes, yes) : run(no, yes);
      }
      if (!marks) adds ? run(yes, no) : run(no, no);
    }
  }
  end_ring(share);
#endif
}

}  // namespace normact::cuda
