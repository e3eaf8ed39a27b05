// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward of sets of planes that go through the shared memory of clusters
// (channel_ring.cuh).
#pragma once

#include "cuda/channel_ring.cuh"
#include "cuda/channel_statistics.cuh"
#include "cuda/cluster_moments.cuh"
#include "cuda/values.cuh"

namespace normact::cuda {

#if __CUDA_ARCH__ >= 900

/// A working thread: its packs of every set of its cluster. kSeveral: sets have several channels. kAdds, kMarks:
/// whether there are an addend and a mask.
template <class T, class Act, bool kSeveral, bool kAdds, bool kMarks>
struct RingForwardWorker {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>, kBatch = 4;

  const ForwardProblem<A>& p;
  const RingShare<T, 2, kSeveral>& share;
  WarpExchange<double, A>& exchange;

  A count = static_cast<A>(share.packs * kWidth);
  A reciprocal_count = share.packs > 0 ? A(1) / count : A(0);
  int warp_count = share.packs_of_warp(share.warp) * kWidth;
  A reciprocal_warp_count = warp_count > 0 ? A(1) / static_cast<A>(warp_count) : A(0);
  A centre = A(0), total[2] = {}, squares[2] = {};  // of the set whose sums are taken
  NumberPair<A> next{A(1), A(0)};                   // weight and bias of its only channel
  NumberPair<A> own{A(1), A(0)};                    // of the set that is written
  A mean = A(0), scale = A(0);                      // of the same; of several channels without their weights
  const NumberPair<A>* table = nullptr;             // of several: weights and biases by planes
  int written = 0;                                  // the turn of the same

  __device__ __forceinline__ void begin(int turn) {
    own = next;
    if (turn == share.turns) return;
    if constexpr (!kSeveral) {
      const int64_t channel = share.set(turn).channel;
      next = {entry_or<T>(p.weight, channel, A(1)), entry_or<T>(p.bias, channel, A(0))};
    }
    total[0] = total[1] = squares[0] = squares[1] = A(0);
  }

  /// About the mean of the thread's first pack.
  __device__ __forceinline__ void sum(const RingSlot& of, int chunk) {
    if (chunk == 0) {
      A value[kWidth];
      unpack(load_shared_pack<T>(share.at(of.slot, 0, 0)), value);
      centre = share.packs > 0 ? finite_or_zero(total_of(value) * A(1.0 / kWidth)) : A(0);
    }
    share.template for_each_of_chunk<kBatch>(chunk, [&](int k, auto n) {
      constexpr int kCount = decltype(n)::value;
      Pack<T> pack[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) pack[i] = load_shared_pack<T>(share.at(of.slot, 0, k + i));
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
    if (share.d.stages == 1) own = next;
  }

  __device__ __forceinline__ void receive(int turn) {
    const SumPair<A> statistics = exchange.answer(turn);
    mean = statistics.first;
    scale = channel_scale(statistics.second, own.first);
    if constexpr (kSeveral) table = share.parameters(turn) - share.first_plane;
    written = turn;
  }

  /// y of a chunk.
  __device__ __forceinline__ void write(const RingSlot& of, int chunk) {
    const PlanePart<T> set = share.set(written);
    share.template for_each_of_chunk<kBatch>(chunk, [&](int k, auto n) {
      constexpr int kCount = decltype(n)::value;
      Pack<T> pack[kCount];
      [[maybe_unused]] Pack<T> addend[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        pack[i] = load_shared_pack<T>(share.at(of.slot, 0, k + i));
        if constexpr (kAdds) addend[i] = load_shared_pack<T>(share.at(of.slot, 1, k + i));
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const unsigned number = share.number(k + i);
        const PlanePlace place = set.place(number);
        const NumberPair<A> of_plane = kSeveral ? table[place.plane] : NumberPair<A>{A(1), own.second};
        const A factor = kSeveral ? channel_scale(scale, of_plane.first) : scale;
        A h[kWidth];
        unpack(pack[i], h);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], mean, factor, of_plane.second);
        if constexpr (kAdds) {
          A value[kWidth];
          unpack(addend[i], value);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) h[j] += value[j];
        }
        if constexpr (kMarks) p.mask[set.element_number(number) / 8] = static_cast<uint8_t>(relu_bits<T>(h, p));
        apply_activation<T, Act>(h, p);
        store_pack_streaming(static_cast<T*>(p.y.data) + place.offset, to_pack<T>(h));
      }
    });
    share.release(of, chunk, false);
  }
};

/// The serving warp of a block: answers with mean and rstd of each of the cluster's sets.
template <class T, class Share, class A = Accumulator<T>>
__device__ __forceinline__ void serve_ring_forward(const ForwardProblem<A>& p, const Share& share,
                                                   WarpExchange<double, A>& exchange, MomentsEntry<A>* entries) {
  constexpr int kWidth = kPackSize<T>;
  const auto elements = static_cast<int>(share.s.packs) * kWidth;
  const ClusterParts parts(share.lane < share.warps ? share.packs_of_warp(share.lane) * kWidth : 0,
                           share.count * kWidth, share.lane < share.blocks ? share.packs_of(share.lane) * kWidth : 0,
                           elements);
  if (share.cluster == 0 && share.rank == 0 && share.lane == 0) count_batch(p.running);
  for (int turn = 0; turn < share.turns; ++turn) {
    const SumPair<double> moments = parts.merge<NormKind::layer>(turn, share, exchange);
    if (share.lane != 0) continue;
    const A mean = static_cast<A>(moments.first), variance = static_cast<A>(moments.second);
    const A rstd = rstd_of(variance, p.eps);
    exchange.publish(turn, {mean, rstd});
    if (share.rank != 0) continue;
    const PlanePart<T> set = share.set(turn);
    leave_statistics(p, set.batch, set.group, Moments<A>{mean, variance * elements, static_cast<A>(elements)}, rstd,
                     entries + set.number);
  }
}

#endif

/// Work     persistent clusters of one block a multiprocessor.
/// Bytes    each element of x (and addend) is read once, each of y written once.
/// Barriers none of the block or the cluster in the loop, but mbarriers: a chunk is there, all have done with a chunk,
///          a set's statistics are there.
template <class T, class Act, bool kSeveral>
__global__ void __launch_bounds__(kChannelRingThreads, 1)
    ring_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                        const __grid_constant__ PlaneSpace space, const __grid_constant__ RingDivision division,
                        MomentsEntry<Accumulator<T>>* entries) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  struct BlockMemory {
    WarpExchange<double, A> exchange;
    ChannelRingBarriers barriers;
  };
  __shared__ BlockMemory block_memory;
  auto& [exchange, barriers] = at_known_address(block_memory);
  const bool adds = p.addend.data != nullptr;
  const RingShare<T, 2, kSeveral> share(space, division, barriers, adds ? 2 : 1);
  if (share.serves()) exchange.init(share.warps);
  if (share.fetches() && share.lane == 0) share.init_barriers();
  start_after_previous();
  __syncthreads();
  cluster_arrive(share.blocks);
  if (share.fetches()) {
    share.fetch_all({static_cast<const T*>(p.x.data), static_cast<const T*>(p.addend.data)}, p.weight, p.bias);
  }
  __syncwarp();
  cluster_wait(share.blocks);
  if (share.serves()) {
    serve_ring_forward<T>(p, share, exchange, entries);
  } else if (!share.fetches()) {
    const auto run = [&, &of = exchange](auto add, auto mark) {
      RingForwardWorker<T, Act, kSeveral, decltype(add)::value, decltype(mark)::value> worker{p, share, of};
      run_ring(worker, share);
    };
    const std::true_type yes;
    const std::false_type no;
    bool marks = false;
    if constexpr (!kSeveral && kPackSize<T> == 8 && std::is_same_v<Act, Relu<Math<T>>>) {
      marks = p.mask != nullptr;
      if (marks) adds ? run(yes, yes) : run(no, yes);
    }
    if constexpr (kSeveral) {
      run(no, no);
    } else if (!marks) {
      adds ? run(yes, no) : run(no, no);
    }
  }
  __syncwarp();
  cluster_arrive(share.blocks);
  cluster_wait(share.blocks);
#endif
}

}  // namespace normact::cuda
