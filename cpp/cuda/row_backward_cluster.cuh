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
//          so that a row's exchange takes place during another row's arithmetic. The widest rows of fp32, of which two
//          do not fit, come in halves, to whose slots others come from the L2 cache as soon as dx has been written.
//          Where three halves fit, the first of row i + 1 is summed up during the exchange of row i.
// Barriers none of the block or the cluster in the loop, but mbarriers: a row is there, all have read a row, a row's
//          sums are there.
#pragma once

#include <type_traits>

#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/cluster_row.cuh"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_backward_worker.cuh"

namespace normact::cuda {

template <bool kServed>
constexpr int kBackwardClusterThreads = (kClusterWarps + (kServed ? kClusterServants : 0)) * kWarp;

#if __CUDA_ARCH__ >= 900

/// All rows of a working warp, in halves. statistics(turn): those of a turn's row.
template <int kVectors, class Worker, class Fetch, class Load>
__device__ __forceinline__ void work_by_halves(Worker& worker, const Fetch& fetch, const ClusterShare& share,
                                               int stages, Load statistics) {
  using A = typename Worker::A;
  constexpr int kHalf = kVectors / 2;  // packs of a lane's first half
  RingPlace place{0, 0};
  const bool early = stages > 2;  // the first half of the next row is there during an exchange
  int written = 0;                // the slot of the half that is written next
  SumPair<A> sums{A(0), A(0)};
  RowStatistics<A> current = statistics(0);
  const auto add = [&](auto first, auto end, const RowStatistics<A>& of) {
    worker.template add<first(), end()>(place, of, sums);
    place = place.next(stages);
  };
  const auto write = [&](int turn, auto first, auto end, const SumPair<A>& c) {
    worker.template write<first(), end()>(turn, written, current, c);
    if (share.lane == 0) fetch.half(2 * turn + (first() > 0) + stages, written, kHalf);
    written = written + 1 == stages ? 0 : written + 1;
  };
  constexpr std::integral_constant<int, 0> kBegin;
  constexpr std::integral_constant<int, kHalf> kMiddle;
  constexpr std::integral_constant<int, kVectors> kEnd;
  for (int turn = 0; turn < share.turns; ++turn) {
    const RowStatistics<A> next = statistics(turn + 1);
    if (turn == 0 || !early) add(kBegin, kMiddle, current);
    add(kMiddle, kEnd, current);
    worker.give(turn, sums);
    sums = {A(0), A(0)};
    if (early && turn + 1 < share.turns) add(kBegin, kMiddle, next);
    const SumPair<A> c = worker.answer(turn, current);
    write(turn, kBegin, kMiddle, c);
    write(turn, kMiddle, kEnd, c);
    current = next;
    worker.many.after(turn, worker.dweight, worker.dbias);
  }
}

#endif

/// Stored: the type of a weight that stays in registers (kHeld). kVectors: packs of a row that a thread owns at most.
template <class T, NormKind kKind, bool kActivated, class Stored, int kVectors, bool kHeld, bool kServed>
__global__ void __launch_bounds__(kBackwardClusterThreads<kServed>, 1)
    row_backward_cluster_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                const Scalars<Accumulator<T>> scalars, const ClusterSplit split, void* workspace,
                                double* places) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  using Statistics = RowStatistics<A>;
  using Worker = BackwardWorker<T, kKind, kActivated, Stored, kVectors, kHeld, kServed>;
  constexpr bool kByHalves = Worker::kByHalves;
  constexpr int kHalf = kVectors / 2;  // packs of a lane's first half
  extern __shared__ __align__(128) char shared[];
  struct BlockMemory {
    typename Worker::Exchange exchange;
    std::conditional_t<kServed, BlockRingBarriers, Mbarrier[kClusterWarps][kClusterStages]> barriers;
    Statistics served[kExchangeDepth];  // of the rows worked on
  };
  __shared__ BlockMemory block_memory;
  auto& [exchange, barriers, served] = at_known_address(block_memory);  // lambdas capture them by name in C++17

  const ClusterShare share(p.geometry.rows, static_cast<int>(p.geometry.cols) / kPackSize<T>, split);
  const bool serving = kServed && share.warp == share.warps;
  const bool fetching = kServed && share.warp == share.warps + 1;
  const bool residual = p.dresidual.data != nullptr;
  char* parts = shared;  // of a direct exchange, or biases; then the rings
  const int tensors = residual ? 3 : 2;
  RowRing ring = [&, &barriers = barriers] {
    if constexpr (kServed) {
      return RowRing(shared + Worker::bias_bytes(share), barriers.full, share.room(), share.block_count,
                     share.warp * share.packs_per_warp + share.lane, split.stages, tensors,
                     Worker::kKeeps ? Worker::kParts - 1 : 0);
    } else {
      const int room = kByHalves ? kHalf * kWarp : share.packs_per_warp;
      const int before = share.warp * split.stages * tensors * room;
      char* const own = shared + DirectExchange<A>::bytes(share.parts()) + before * kPackBytes;
      return RowRing(own, barriers[share.warp], room, share.count, share.lane, split.stages, tensors, 0);
    }
  }();
  const BackwardFetch<T, kServed> fetch{p, scalars.rows, share, ring, residual, split.stages};
  if constexpr (kServed) {
    if (serving) exchange.init(share.warps);
    if (fetching && share.lane == 0) barriers.init(share.warps);
  } else {
    if (share.warp == 0) exchange.init();
    if (share.lane == 0) ring.init();
  }
  prefetch_parameter<T>(p.weight, p.geometry.cols);
  wait_for_previous_kernel();
  const auto begin = [&](int number) {  // into the slot of this number
    if constexpr (kByHalves) {
      fetch.half(number, number, kHalf);
    } else {
      fetch(number, number);
    }
  };
  if (!kServed && share.lane == 0) begin(0);
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
    for (int s = 1; s < split.stages; ++s) begin(s);
  }
  LaneParameter<T, Stored, kVectors, kHeld> weights(p.weight, share, A(1), scalars.weight_offset);
  typename Worker::Biases biases = Worker::biases_of(p, share, shared);
  const bool bias = kKind == NormKind::layer || kActivated || p.dbias.data != nullptr;
  A dweight[kVectors][kPackSize<T>] = {}, dbias[kVectors][kPackSize<T>] = {};
  Worker worker{p, scalars, share, ring, exchange, weights, biases, dweight, dbias, places, parts, residual, bias};
  cluster_wait(share.blocks);

  const auto statistics = [&, &served = served](int turn) {
    if constexpr (kServed)
      return served[turn % kExchangeDepth];
    else
      return load_statistics<kKind, A>(p, scalars.rows, share, turn);
  };
  if constexpr (kByHalves) {
    work_by_halves<kVectors>(worker, fetch, share, split.stages, statistics);
  } else {
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
      worker.many.after(turn, dweight, dbias);
    }
  }
  allow_next_kernel();  // not before: the summing kernel fits beside this one, and waiting there it costs 2 to 3 %
                        // (fp32)
  worker.write_sums(workspace);
  cluster_arrive(share.blocks);
  cluster_wait(share.blocks);
#endif
}

}  // namespace normact::cuda
