// SPDX-License-Identifier: Apache-2.0
// Row norm backward of wide rows that are whole 16-byte packs: variant cluster (sm_90).
//
// Work     persistent clusters of one block a multiprocessor; a cluster owns every row of its own, its warps the same
//          packs of each (cluster_row.cuh), so that dweight and dbias add up in registers. Two warps a block more
//          exchange the sums (cluster_exchange.cuh) and bring in the rows; with more packs a thread there are no
//          registers for them.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one row a cluster
//          to the workspace, which wide_parameter_sum_kernel (parameter_sum.cuh) adds up in a fixed order.
// Pipeline rows come in ahead. A warp takes the sums of row i + 1 and then writes dx of row i, both from shared memory,
//          so that a row's exchange takes place during another row's arithmetic.
// Barriers none of the block or the cluster in the loop, but mbarriers: a row is there, all have read a row, a row's
//          sums are there.
#pragma once

#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/cluster_row.cuh"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "math/normalize.h"

namespace normact::cuda {

template <bool kServed>
constexpr int kBackwardClusterThreads = (kClusterWarps + (kServed ? kClusterServants : 0)) * kWarp;

#if __CUDA_ARCH__ >= 900

/// Mean (layer) and rstd of a row.
template <class A>
struct alignas(2 * sizeof(A)) RowStatistics {
  A mean;
  A rstd;
};

/// Those of a turn's row, if there is one.
template <NormKind kKind, class A>
__device__ __forceinline__ RowStatistics<A> load_statistics(const RowBackward& p, const RowDivisor& divisor,
                                                            const ClusterShare& share, int turn) {
  RowStatistics<A> statistics{A(0), A(0)};
  if (turn < share.turns) {
    const unsigned row = share.row(turn);
    if constexpr (kKind == NormKind::layer) statistics.mean = *turn_pointer<const A>(p.mean, divisor, row);
    statistics.rstd = *turn_pointer<const A>(p.rstd, divisor, row);
  }
  return statistics;
}

/// The serving warp of a block: answers with c1 and c2 of each of the cluster's rows. It also brings in the rows'
/// statistics, those of turns 0 and 1 before the block's first barrier, others with the answer two turns before: the
/// workers have no registers to load them ahead.
template <NormKind kKind, class A>
class BackwardServer {
 public:
  __device__ __forceinline__ BackwardServer(const RowBackward& p, const Scalars<A>& scalars, const ClusterShare& share,
                                            RowStatistics<A>* shared)
      : p_(p), scalars_(scalars), share_(share), shared_(shared) {}

  /// Before the block's first barrier.
  __device__ __forceinline__ void start() {
    next_ = batch_ = load(share_.lane);
    if (share_.lane < 2) shared_[share_.lane] = batch_;
  }

  __device__ __forceinline__ void run(WarpExchange<A, A>& exchange) {
    const auto merge = [](const SumPair<A>& part) {
      return SumPair<A>{warp_sum(part.first), kKind == NormKind::layer ? warp_sum(part.second) : A(0)};
    };
    A rstd = __shfl_sync(kFullWarp, batch_.rstd, 0), next_rstd = __shfl_sync(kFullWarp, batch_.rstd, 1);
    for (int turn = 0; turn < share_.turns; ++turn) {
      // Lane l has the statistics of turn l of 32; the next 32 are on their way by half of these.
      const int later = turn + 2;
      if (later % kWarp == kWarp / 2) next_ = load(later + kWarp / 2 + share_.lane);
      if (later % kWarp == 0) batch_ = next_;
      const RowStatistics<A> statistics{__shfl_sync(kFullWarp, batch_.mean, later % kWarp),
                                        __shfl_sync(kFullWarp, batch_.rstd, later % kWarp)};
      const SumPair<A> total = exchange.merge(turn, share_.warps, share_.blocks, share_.rank, merge, merge);
      if (share_.lane == 0) {
        shared_[later % kExchangeDepth] = statistics;
        exchange.publish(
            turn, {total.second * scalars_.reciprocal_cols * rstd, total.first * scalars_.reciprocal_cols * rstd});
      }
      rstd = next_rstd;
      next_rstd = statistics.rstd;
    }
  }

 private:
  __device__ __forceinline__ RowStatistics<A> load(int turn) const {
    return load_statistics<kKind, A>(p_, scalars_.rows, share_, turn);
  }

  const RowBackward& p_;
  const Scalars<A>& scalars_;
  const ClusterShare& share_;
  RowStatistics<A>* shared_;
  RowStatistics<A> batch_;
  RowStatistics<A> next_;
};

/// A working warp of a block: a thread's part of every row of its cluster, and its sums of dweight and dbias.
/// Template parameters as row_backward_cluster_kernel's.
template <class T, NormKind kKind, bool kActivated, class Stored, int kVectors, bool kHeld, bool kServed>
struct BackwardWorker {
  using A = Accumulator<T>;
  using Exchange = std::conditional_t<kServed, WarpExchange<A, A>, DirectExchange<A>>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  static constexpr bool kBranchless = kHeld && kServed;  // where there are registers for several packs at once
  /// Slopes are computed once: dy times the slope takes the place of dy in the ring, and with a type of 16 bits also
  /// that of a tensor behind the others, for which the planner leaves room.
  static constexpr bool kKeeps = kActivated && kServed;
  static constexpr int kParts = sizeof(A) / sizeof(T);

  const KernelProblem<RowBackward, T, kActivated>& p;
  const Scalars<A>& scalars;
  const ClusterShare& share;
  RowRing& ring;
  Exchange& exchange;
  LaneParameter<T, Stored, kVectors, kHeld>& weights;
  LaneParameter<T, T, kVectors, false>& biases;  // the forward's, for an activation
  A (&dweight)[kVectors][kSize];
  A (&dbias)[kVectors][kSize];
  char* parts;  // of a direct exchange
  bool residual;
  bool bias;

  /// xhat, g = dy * weight and dy (times the activation's slope) of pack v; for a pack that is not there dy and g are 0
  /// and add nothing to any sum. kept: they have been read before.
  template <bool kKept>
  __device__ __forceinline__ void read(int slot, int v, const RowStatistics<A>& of, A (&xhat)[kSize],
                                       A (&gradient)[kSize], A (&value)[kSize]) {
    A weight[kSize];
    const bool there = !kBranchless || share.valid(v);
    unpack(load_shared_pack_if<T>(there, ring.own(slot, 0) + v * kClusterStrideBytes), xhat);
    if constexpr (kKept) {
#pragma unroll
      for (int h = 0; h < kParts; ++h) {
        unpack(load_shared_pack_if<A>(there, kept(slot, h) + v * kClusterStrideBytes), value + h * kPackSize<A>);
      }
    } else {
      unpack(load_shared_pack_if<T>(there, ring.own(slot, 1) + v * kClusterStrideBytes), value);
    }
    weights.get(v, weight);
#pragma unroll
    for (int j = 0; j < kSize; ++j) xhat[j] = normalized(xhat[j], of.mean, of.rstd);
    if constexpr (kActivated && !kKept) {
      A h[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) h[j] = A(0);
      if (share.valid(v)) biases.get(v, h);
#pragma unroll
      for (int j = 0; j < kSize; ++j) h[j] = affine(xhat[j], weight[j], h[j]);
      multiply_slopes<T>(value, h, p);
      weights.get(v, weight);  // again: the call takes the registers
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) gradient[j] = value[j] * weight[j];
  }

  /// Where the parts of dy times the slope are kept.
  __device__ __forceinline__ SharedAddress kept(int slot, int part) const {
    return ring.own(slot, part == 0 ? 1 : residual ? 3 : 2);
  }
  __device__ __forceinline__ void keep(int slot, int v, const A (&value)[kSize]) {
    if (!share.valid(v)) return;
#pragma unroll
    for (int h = 0; h < kParts; ++h) {
      Pack<A> pack;
#pragma unroll
      for (int j = 0; j < kPackSize<A>; ++j) pack.word[j] = value[h * kPackSize<A> + j];
      store_shared_pack(kept(slot, h) + v * kClusterStrideBytes, pack);
    }
  }

  /// Waits for a turn's row, adds to the parameters' sums and gives the warp's part of the row's sums to the exchange.
  __device__ __forceinline__ void contribute(int turn, const RingPlace& place, const RowStatistics<A>& of) {
    A product = A(0), sum = A(0);
    if (share.count > 0) {
      ring.wait(place);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!kBranchless && !share.valid(v)) continue;
        A xhat[kSize], gradient[kSize], value[kSize];
        read<false>(place.slot, v, of, xhat, gradient, value);
        if constexpr (kKeeps) keep(place.slot, v, value);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          product += gradient[j] * xhat[j];
          if constexpr (kLayer) sum += gradient[j];
          dweight[v][j] += value[j] * xhat[j];
        }
        if (bias) {
#pragma unroll
          for (int j = 0; j < kSize; ++j) dbias[v][j] += value[j];
        }
      }
    }
    SumPair<A> pair{warp_sum(product), A(0)};
    if constexpr (kLayer) pair.second = warp_sum(sum);
    if constexpr (kServed) {
      exchange.contribute(turn, share.warp, pair);
    } else {
      exchange.contribute(turn, parts, share.part(), share.parts(), share.blocks, pair);
    }
  }

  /// Writes dx of a turn's row with the sums that the exchange answers; the slot may be filled again then.
  __device__ __forceinline__ void finish(int turn, int slot, const RowStatistics<A>& of) {
    A c1, c2;
    if constexpr (kServed) {
      const SumPair<A> answer = exchange.answer(turn);
      c1 = kLayer ? answer.first : A(0);
      c2 = answer.second;
    } else {
      const SumPair<A> total = exchange.answer(turn, parts, share.parts());
      c1 = kLayer ? total.second * scalars.reciprocal_cols * of.rstd : A(0);
      c2 = total.first * scalars.reciprocal_cols * of.rstd;
    }
    T* dx = share.own(turn_pointer<T>(p.dx, scalars.rows, share.row(turn)));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!kBranchless && !share.valid(v)) continue;
      A xhat[kSize], gradient[kSize], value[kSize];
      read<kKeeps>(slot, v, of, xhat, gradient, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] = input_gradient(gradient[j], xhat[j], of.rstd, c1, c2);
      if (residual) {
        unpack(load_shared_pack_if<T>(!kBranchless || share.valid(v), ring.own(slot, 2) + v * kClusterStrideBytes),
               value);
#pragma unroll
        for (int j = 0; j < kSize; ++j) gradient[j] += value[j];
      }
      if (share.valid(v)) store_pack(dx + v * kClusterStride<T>, to_pack<T>(gradient));
    }
    // What was written to the slot comes before what the next copy writes there.
    if constexpr (kKeeps) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
  }
};

/// Writes a thread's sums of one parameter to its cluster's row of partials.
template <class T, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ void store_partials(A* row, const A (&sum)[kVectors][kPackSize<T>],
                                               const ClusterShare& share) {
  if (row == nullptr) return;
  row += (share.first + share.lane) * kPackSize<T>;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!share.valid(v)) continue;
#pragma unroll
    for (int j = 0; j < kPackSize<T>; j += kPackSize<A>) {
      Pack<A> pack;
#pragma unroll
      for (int i = 0; i < kPackSize<A>; ++i) pack.word[i] = sum[v][j + i];
      store_pack(row + v * kClusterStride<T> + j, pack);
    }
  }
}

#endif

/// Stored: the type of a weight that stays in registers (kHeld). kVectors: packs of a row that a thread owns at most.
template <class T, NormKind kKind, bool kActivated, class Stored, int kVectors, bool kHeld, bool kServed>
__global__ void __launch_bounds__(kBackwardClusterThreads<kServed>, 1)
    row_backward_cluster_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                const Scalars<Accumulator<T>> scalars, const ClusterSplit split, void* workspace) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  using Statistics = RowStatistics<A>;
  using Worker = BackwardWorker<T, kKind, kActivated, Stored, kVectors, kHeld, kServed>;
  constexpr int kSize = kPackSize<T>;
  extern __shared__ __align__(128) char shared[];
  struct BlockMemory {
    typename Worker::Exchange exchange;
    std::conditional_t<kServed, BlockRingBarriers, Mbarrier[kClusterWarps][kClusterStages]> barriers;
    Statistics served[kExchangeDepth];  // of the rows worked on
  };
  __shared__ BlockMemory block_memory;
  auto& [exchange, barriers, served] = at_known_address(block_memory);  // lambdas capture them by name in C++17

  const ClusterShare share(p.geometry.rows, static_cast<int>(p.geometry.cols) / kSize, split);
  const bool serving = kServed && share.warp == share.warps;
  const bool fetching = kServed && share.warp == share.warps + 1;
  const bool residual = p.dresidual.data != nullptr;
  char* parts = shared;  // of a direct exchange; then the rings
  const int tensors = residual ? 3 : 2;
  RowRing ring = [&, &barriers = barriers] {
    if constexpr (kServed) {
      return RowRing(shared, barriers.full, share.warps * share.packs_per_warp, share.block_count,
                     share.warp * share.packs_per_warp + share.lane, split.stages, tensors,
                     Worker::kKeeps ? Worker::kParts - 1 : 0);
    } else {
      const int before = share.warp * split.stages * tensors * share.packs_per_warp;
      char* const own = shared + DirectExchange<A>::bytes(share.parts()) + before * kPackBytes;
      return RowRing(own, barriers[share.warp], share.packs_per_warp, share.count, share.lane, split.stages, tensors,
                     0);
    }
  }();
  const auto fetch = [&](int turn, int slot) {
    if (turn >= share.turns || (kServed ? share.block_count : share.count) == 0) return;
    const auto copy = [&](int tensor, const Operand& operand) {
      ring.copy(slot, tensor,
                turn_pointer<const T>(operand, scalars.rows, share.row(turn)) +
                    (kServed ? share.block_first : share.first) * kSize);
    };
    ring.expect(slot);
    copy(0, p.x);
    copy(1, p.dy);
    if (residual) copy(2, p.dresidual);
  };
  if constexpr (kServed) {
    if (serving) exchange.init(share.warps);
    if (fetching && share.lane == 0) barriers.init(share.warps);
  } else {
    if (share.warp == 0) exchange.init();
    if (share.lane == 0) ring.init();
  }
  prefetch_parameter<T>(p.weight, p.geometry.cols);
  wait_for_previous_kernel();
  if (!kServed && share.lane == 0) fetch(0, 0);
  BackwardServer<kKind, A> server(p, scalars, share, served);
  if (serving) server.start();
  __syncthreads();
  cluster_arrive(share.blocks);
  if constexpr (kServed) {
    if (serving || fetching) {
      if (fetching && share.lane == 0) fetch_rows(barriers, share.turns, split.stages, fetch);
      __syncwarp();
      cluster_wait(share.blocks);
      if (serving) server.run(exchange);
      allow_next_kernel();
      cluster_arrive(share.blocks);
      cluster_wait(share.blocks);
      return;
    }
  }
  if (!kServed && share.lane == 0) {
#pragma unroll 1
    for (int s = 1; s < split.stages; ++s) fetch(s, s);
  }
  LaneParameter<T, Stored, kVectors, kHeld> weights(p.weight, share, A(1), scalars.weight_offset);
  LaneParameter<T, T, kVectors, false> biases(p.bias, share, A(0), A(0));
  const bool bias = kKind == NormKind::layer || kActivated || p.dbias.data != nullptr;
  A dweight[kVectors][kSize] = {}, dbias[kVectors][kSize] = {};
  Worker worker{p, scalars, share, ring, exchange, weights, biases, dweight, dbias, parts, residual, bias};
  cluster_wait(share.blocks);

  const auto statistics = [&, &served = served](int turn) {
    if constexpr (kServed)
      return served[turn % kExchangeDepth];
    else
      return load_statistics<kKind, A>(p, scalars.rows, share, turn);
  };
  RingPlace place{0, 0};
  Statistics current = statistics(0), next = statistics(1);
  worker.contribute(0, place, current);
  for (int turn = 0; turn < share.turns; ++turn) {
    const RingPlace next_place = place.next(split.stages);
    if constexpr (kServed) {
      if (turn + 1 < share.turns) worker.contribute(turn + 1, next_place, statistics(turn + 1));
      worker.finish(turn, place.slot, statistics(turn));
      if (share.lane == 0) barriers.empty[place.slot].arrive();
    } else {
      const Statistics after = statistics(turn + 2);
      if (turn + 1 < share.turns) worker.contribute(turn + 1, next_place, next);
      worker.finish(turn, place.slot, current);
      current = next;
      next = after;
      if (share.lane == 0) fetch(turn + split.stages, place.slot);
    }
    place = next_place;
  }
  allow_next_kernel();  // not before: the summing kernel fits beside this one, and waiting there it costs 2 to 3 %
                        // (fp32)
  const Partials<A> partials(p, workspace, share.clusters, share.cluster);
  store_partials<T>(partials.dweight, dweight, share);
  store_partials<T>(partials.dbias, dbias, share);
  cluster_arrive(share.blocks);
  cluster_wait(share.blocks);
#endif
}

}  // namespace normact::cuda
