// SPDX-License-Identifier: Apache-2.0
// Row norm forward of wide rows that are whole 16-byte packs: variant cluster (sm_90).
//
// Work     persistent clusters of one block a multiprocessor; a cluster owns every row of its own, its warps the same
//          packs of each (cluster_row.cuh). Two warps a block more exchange the sums (cluster_exchange.cuh) and bring
//          in the rows.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once. Parameters stay in
//          registers, packed; those that do not fit (of the widest rows the bias) are read from the cache for each row.
// Pipeline rows come in ahead. A warp takes the sums of row i + 1 and then writes row i, both from shared memory, so
//          that a row's exchange takes place during another row's arithmetic. Where a row and its residual leave no
//          room for another, rows follow each other.
// Barriers none of the block or the cluster in the loop, but mbarriers: a row is there, all have read a row, a row's
//          statistics are there.
// Sums     a thread's about the mean of its first pack, a warp's about its own mean, both in the accumulator type;
//          those of warps and blocks in fp64, each about the mean of their union, by Chan's formula.
#pragma once

#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/cluster_moments.cuh"
#include "cuda/cluster_row.cuh"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

constexpr int kForwardClusterThreads = (kClusterWarps + kClusterServants) * kWarp;

#if __CUDA_ARCH__ >= 900

/// Sum of a warp's packs at `from` in shared memory, and sum of their squares about their mean (rms: about 0). kFull:
/// all packs that a thread may have are there; without branches their loads need not wait for each other.
template <class T, NormKind kKind, int kVectors, bool kFull, class A = Accumulator<T>>
__device__ __forceinline__ SumPair<double> warp_moments(SharedAddress from, const ClusterShare& share, A lane_count,
                                                        A reciprocal_lane_count, A reciprocal_warp_count) {
  constexpr int kSize = kPackSize<T>;
  // About the mean of its first pack: that squared deviations are then larger than about the thread's own mean is the
  // deviation of that pack's mean, which cannot make them more than 1 + kVectors times as large. So little cancels.
  A centre = A(0), sum[2] = {}, squares[2] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!kFull && !share.valid(v)) continue;
    A value[kSize];
    unpack(load_shared_pack<T>(from + v * kClusterStrideBytes), value);
    if constexpr (kKind == NormKind::layer) {
      if (v == 0) centre = total_of(value) * A(1.0 / kSize);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        value[j] -= centre;
        sum[j % 2] += value[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) squares[j % 2] += value[j] * value[j];
  }
  A square = squares[0] + squares[1];
  if constexpr (kKind == NormKind::rms) return {0, static_cast<double>(warp_sum(square))};
  return moments_of_warp(centre, sum[0] + sum[1], square, lane_count, reciprocal_lane_count, reciprocal_warp_count,
                         share.count * kSize);
}

/// x = round(x + residual) in shared memory and in residual_out: the norm is of what the caller gets back.
template <class T, int kVectors>
__device__ __forceinline__ void add_shared_residual(SharedAddress x, SharedAddress residual, T* to,
                                                    const ClusterShare& share) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!share.valid(v)) continue;
    A sum[kSize], addend[kSize];
    unpack(load_shared_pack<T>(x + v * kClusterStrideBytes), sum);
    unpack(load_shared_pack<T>(residual + v * kClusterStrideBytes), addend);
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum[j] += addend[j];
    const Pack<T> pack = to_pack<T>(sum);
    store_shared_pack(x + v * kClusterStrideBytes, pack);
    store_pack(to + v * kClusterStride<T>, pack);
  }
}

/// The serving warp of a block: answers with mean and rstd of each of the cluster's rows.
template <class T, NormKind kKind, class A = Accumulator<T>>
__device__ __forceinline__ void serve_forward(const RowForward& p, const Scalars<A>& scalars, const ClusterShare& share,
                                              WarpExchange<double, A>& exchange) {
  constexpr int kSize = kPackSize<T>;
  const int block_packs = share.room();
  const auto elements = [&](bool exists, int from, int most) {
    return exists ? share.packs_from(from, most) * kSize : 0;
  };
  const ClusterParts parts(
      elements(share.lane < share.warps, share.block_first + share.lane * share.packs_per_warp, share.packs_per_warp),
      share.block_count * kSize, elements(share.lane < share.blocks, share.lane * block_packs, block_packs),
      share.packs * kSize);
  for (int turn = 0; turn < share.turns; ++turn) {
    const SumPair<double> moments = parts.merge<kKind>(turn, {share.warps, share.blocks, share.rank}, exchange);
    if (share.lane != 0) continue;
    const A mean = static_cast<A>(moments.first);
    const A variance = static_cast<A>(moments.second);
    const A rstd = reciprocal_std(variance, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
    exchange.publish(turn, {mean, rstd});
    if (share.rank == 0) {
      store_statistics(p, RowIndex(scalars.rows, share.row(turn)), mean, rstd);
    }
  }
}

/// The barriers and the exchange of a block; in static shared memory.
template <class A>
struct ForwardBlockMemory {
  WarpExchange<double, A> exchange;
  BlockRingBarriers barriers;
};

/// A working warp of a block: a thread's part of every row of its cluster. Template parameters as
/// row_forward_cluster_kernel's.
template <class T, NormKind kKind, bool kActivated, int kVectors, bool kHeld>
struct ForwardWorker {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  static constexpr bool kEarly = kVectors <= 4 && !kActivated;  // a row's packs fit in registers
  using Weights = LaneParameter<T, T, kVectors, kHeld>;
  using Biases = LaneParameter<T, T, kLayer || !kHeld ? kVectors : 1, kHeld && kLayer && kVectors <= 4>;

  const KernelProblem<RowForward, T, kActivated>& p;
  const Scalars<A>& scalars;
  const ClusterShare& share;
  RowRing& ring;
  ForwardBlockMemory<A>& memory;
  Weights& weights;
  Biases& biases;
  bool residual;
  bool full = share.full(kVectors);
  A lane_count = static_cast<A>(share.lane_count() * kSize);
  A reciprocal_lane_count = lane_count > A(0) ? A(1) / lane_count : A(0);
  A reciprocal_warp_count = share.count > 0 ? A(1) / static_cast<A>(share.count* kSize) : A(0);

  /// Waits for a turn's row and gives the warp's part of its sums to the exchange.
  __device__ __forceinline__ void contribute(int turn, const RingPlace& place) {
    SumPair<double> sums{0, 0};
    if (share.count > 0) {
      ring.wait(place);
      const SharedAddress x = ring.own(place.slot, 0);
      if (residual) {
        T* to = share.own(turn_pointer<T>(p.residual_out, scalars.rows, share.row(turn)));
        add_shared_residual<T, kVectors>(x, ring.own(place.slot, 1), to, share);
      }
      const auto moments = [&](auto is_full) {
        return warp_moments<T, kKind, kVectors, decltype(is_full)::value>(x, share, lane_count, reciprocal_lane_count,
                                                                          reciprocal_warp_count);
      };
      sums = full ? moments(std::true_type{}) : moments(std::false_type{});
    }
    memory.exchange.contribute(turn, share.warp, sums);
  }

  /// Writes y of a turn's row with the statistics that the exchange answers.
  __device__ __forceinline__ void finish(int turn, int slot) {
    const SumPair<A> statistics = memory.exchange.answer(turn);
    const A mean = kLayer ? statistics.first : A(0);
    const A rstd = statistics.second;
    const bool bias = kLayer || p.bias.data != nullptr;
    const SharedAddress x = ring.own(slot, 0);
    T* y = share.own(turn_pointer<T>(p.y, scalars.rows, share.row(turn)));
    Pack<T> own[kEarly ? kVectors : 1];
    if constexpr (kEarly) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) own[v] = load_shared_pack_if<T>(share.valid(v), x + v * kClusterStrideBytes);
      release(slot);
    }
    const auto read = [&](int v) {
      if constexpr (kEarly)
        return own[v];
      else
        return load_shared_pack<T>(x + v * kClusterStrideBytes);
    };
    const auto write = [&](int v, auto apply) {
      A value[kSize], weight[kSize], addend[kSize];
      unpack(read(v), value);
      weights.get(v, weight);
#pragma unroll
      for (int j = 0; j < kSize; ++j) addend[j] = A(0);
      if (bias) biases.get(v, addend);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean, rstd), weight[j], addend[j]);
      apply(value);
      store_pack(y + v * kClusterStride<T>, to_pack<T>(value));
    };
    const auto write_all = [&](auto apply) {
      if (full && !kActivated) {  // each kind would have this twice
#pragma unroll
        for (int v = 0; v < kVectors; ++v) write(v, apply);
      } else {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (share.valid(v)) write(v, apply);
        }
      }
    };
    if (!with_inlined_activation<T, kSize>(p, write_all)) {
      write_all([&](A(&h)[kSize]) { call_activation<T>(h, p); });
    }
    if constexpr (!kEarly) release(slot);
  }

  /// This warp has read the slot's row. What it wrote there comes before what the next copy writes.
  __device__ __forceinline__ void release(int slot) {
    if (residual) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (share.lane == 0) memory.barriers.empty[slot].arrive();
  }
};

#endif

/// kHeld: parameters of x's type stay in registers, with more than four packs a thread only the weight. kVectors: packs
/// of a row that a thread owns at most.
template <class T, NormKind kKind, bool kActivated, int kVectors, bool kHeld>
__global__ void __launch_bounds__(kForwardClusterThreads, 1)
    row_forward_cluster_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                               const Scalars<Accumulator<T>> scalars, const ClusterSplit split) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  using Worker = ForwardWorker<T, kKind, kActivated, kVectors, kHeld>;
  extern __shared__ __align__(128) char shared[];
  __shared__ ForwardBlockMemory<A> block_memory;
  ForwardBlockMemory<A>& memory = at_known_address(block_memory);
  const ClusterShare share(p.geometry.rows, static_cast<int>(p.geometry.cols) / kSize, split);
  const bool serving = share.warp == share.warps, fetching = share.warp == share.warps + 1;
  const bool residual = p.residual.data != nullptr;
  RowRing ring(shared, memory.barriers.full, share.room(), share.block_count,
               share.warp * share.packs_per_warp + share.lane, split.stages, residual ? 2 : 1, 0);
  const auto fetch = [&](int turn, int slot) {
    if (share.block_count == 0) return;
    const auto copy = [&](int tensor, const Operand& operand) {
      ring.copy(slot, tensor,
                turn_pointer<const T>(operand, scalars.rows, share.row(turn)) + share.block_first * kSize);
    };
    ring.expect(slot);
    copy(0, p.x);
    if (residual) copy(1, p.residual);
  };
  if (serving) {
    memory.exchange.init(share.warps);
  } else if (fetching && share.lane == 0) {
    memory.barriers.init(share.warps);
    ring.prefetch(turn_pointer<const T>(p.x, scalars.rows, share.row(0)) + share.block_first * kSize);
  }
  prefetch_parameter<T>(p.weight, p.geometry.cols);
  prefetch_parameter<T>(p.bias, p.geometry.cols);
  start_after_previous();
  __syncthreads();
  cluster_arrive(share.blocks);
  if (serving || fetching) {
    if (fetching && share.lane == 0) fetch_rows(memory.barriers, share.turns, split.stages, fetch);
    __syncwarp();
    cluster_wait(share.blocks);
    if (serving) serve_forward<T, kKind>(p, scalars, share, memory.exchange);
    cluster_arrive(share.blocks);
    cluster_wait(share.blocks);
    return;
  }
  typename Worker::Weights weights(p.weight, share, A(1), scalars.weight_offset);
  typename Worker::Biases biases(p.bias, share, A(0), A(0));
  Worker worker{p, scalars, share, ring, memory, weights, biases, residual};
  cluster_wait(share.blocks);

  const bool ahead = split.stages > 1;  // there is room for a row beside the one that is written
  RingPlace place{0, 0};
  worker.contribute(0, place);
  for (int turn = 0; turn < share.turns; ++turn) {
    const RingPlace next = place.next(split.stages);
    const bool more = turn + 1 < share.turns;
    if (more && ahead) worker.contribute(turn + 1, next);
    worker.finish(turn, place.slot);
    if (more && !ahead) worker.contribute(turn + 1, next);
    place = next;
  }
  cluster_arrive(share.blocks);
  cluster_wait(share.blocks);
#endif
}

}  // namespace normact::cuda
