// SPDX-License-Identifier: Apache-2.0
// Row norm backward of wide rows at any element alignment (row_cluster_runs.cuh): variant cluster (sm_90).
//
// Work     as there, so that dweight and dbias add up in a thread's registers. Its weights, and of an activation its
//          biases, are in shared memory.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one row a cluster
//          to the workspace, which parameter_sum.cuh adds up in a fixed order.
// Barriers none of the block or the cluster in the loop, but mbarriers: a row is there, its sums are, a buffer is full
//          or free.
#pragma once

#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_backward_runs.cuh"
#include "cuda/row_cluster_runs.cuh"
#include "math/normalize.h"

namespace normact::cuda {

constexpr int kBackwardSliceThreads = (kBackwardSliceWarps + kSliceServants + kBackwardMovers) * kWarp;

#if __CUDA_ARCH__ >= 900

/// The last warp of the block: brings x, dy, dresidual and the statistics, and sends dx.
template <class T, bool kLayer>
__device__ __forceinline__ void move_backward_slices(const RowBackward& p, const BackwardRunTiles& tiles,
                                                     const RowDivisor& divisor, const RowSlice& slice, int turns,
                                                     char* ring, char* output, int slot_bytes, RunBarriers& barriers) {
  using A = Accumulator<T>;
  const BackwardBringer<T> bringer(tiles, slice.first);
  const PieceSender<T, 3, 1> sender(tiles, slice.first);
  const int lane = threadIdx.x % kWarp;
  const int bytes = slice.cols * static_cast<int>(sizeof(T)), tile_bytes = tiles.layout.tile_bytes;
  const auto bring = [&](int turn, int slot) {
    if (turn >= turns) return;
    const RowIndex row(divisor, slice.row(turn));
    bringer.bring(bringer.tensor().row(row), bytes, ring, slot_bytes, slot, barriers);
    A* statistics = reinterpret_cast<A*>(ring + slot * slot_bytes + tiles.inputs() * tile_bytes);
    if (kLayer && lane == 0) copy_value_async(statistics, row_pointer<const A>(p.mean, row));
    if (lane == 0) copy_value_async(statistics + 1, row_pointer<const A>(p.rstd, row));
    if (lane == 0) barriers.full[slot].arrive_after_copies();
  };
#pragma unroll 1
  for (int s = 0; s < tiles.stages; ++s) bring(s, s);
  int slot = 0;
  OutputTurn to_send;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn, to_send.next()) {
    const uintptr_t first = sender.tensor().row(RowIndex(divisor, slice.row(turn)));
    finished_tile(barriers.finished[to_send.buffer], to_send.phase);
    sender.send(first, bytes, output + to_send.buffer * tile_bytes);
    bring(turn + tiles.stages, slot);
    wait_bulk_read<0>();
    __syncwarp();
    if (lane == 0) barriers.free[to_send.buffer].arrive();
    if (++slot == tiles.stages) slot = 0;
  }
}

#endif

template <class T, NormKind kKind, bool kActivated, int kRuns>
__global__ void __launch_bounds__(kBackwardSliceThreads, 1)
    row_backward_cluster_runs_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                     const __grid_constant__ BackwardRunTiles tiles,
                                     const Scalars<Accumulator<T>> scalars, void* workspace, double* places) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  using Own = OwnRuns<T, kRuns, kBackwardRun<T>, 0>;
  constexpr int kValues = Own::kValues;
  using Shared = SharedRunParameter<T, Own>;
  extern __shared__ __align__(128) char shared[];
  __shared__ SliceMemory<A, A> block_memory;
  SliceMemory<A, A>& memory = at_known_address(block_memory);
  WarpExchange<A, A>& exchange = memory.exchange;
  RunBarriers& barriers = memory.barriers;

  const RowSlice slice(static_cast<int>(p.geometry.cols));
  const int turns = slice.turns(p.geometry.rows);
  const int tensors = tiles.inputs();
  const int tile_bytes = tiles.layout.tile_bytes;
  const int slot_bytes = tensors * tile_bytes + tiles.layout.statistics_bytes;
  char* output = shared + tiles.stages * slot_bytes;
  const int warp = uniform_warp(), lanes = tiles.lanes, warps = lanes / kWarp;
  if (warp == warps) exchange.init(warps);
  start_barriers(barriers, tiles.stages, BackwardBringer<T>::kTensors + 1, warps, kBackwardMovers);
  start_after_previous();
  cluster_arrive(slice.blocks);
  const Own own(threadIdx.x, lanes, slice.cols);
  A dweight[kValues] = {}, dbias[kValues] = {};
  const ParameterPlaces<kValues> many(places);
  if (warp > warps) {
    move_backward_slices<T, kLayer>(p, tiles, scalars.rows, slice, turns, shared, output, slot_bytes, barriers);
    __syncwarp();
    cluster_wait(slice.blocks);
  } else if (warp == warps) {
    cluster_wait(slice.blocks);
    const auto merge = [](const SumPair<A>& part) {
      return SumPair<A>{warp_sum(part.first), kLayer ? warp_sum(part.second) : A(0)};
    };
    for (int turn = 0; turn < turns; ++turn) {
      const SumPair<A> total = exchange.merge(turn, warps, slice.blocks, slice.rank, merge, merge);
      if (threadIdx.x % kWarp == 0) {
        exchange.publish(turn, {total.first * scalars.reciprocal_cols, total.second * scalars.reciprocal_cols});
      }
    }
    __syncwarp();
  } else {
    const bool bias = kLayer || kActivated || p.dbias.data != nullptr;
    const Shared weights(output + 2 * tile_bytes, threadIdx.x);
    const Shared biases(output + 2 * tile_bytes + Shared::bytes(lanes), threadIdx.x);
    weights.fill(slice.of<T>(p.weight), A(1), scalars.weight_offset, own);
    if (kActivated) biases.fill(slice.of<T>(p.bias), A(0), A(0), own);
    cluster_wait(slice.blocks);

    /// xhat and dy (times the activation's slope) of the row at the cursor; returns its rstd.
    const auto read = [&](const RunCursor& at, PiecePhases phases, A(&xhat)[kValues], A(&gradient)[kValues]) {
      const char* from = shared + at.slot * slot_bytes;
      const A* statistics = reinterpret_cast<const A*>(from + tensors * tile_bytes);
      const A mean = kLayer ? statistics[0] : A(0), rstd = statistics[1];
      own.load(from + own.offset() + phases[0], xhat);
      own.load(from + tile_bytes + own.offset() + phases[1], gradient);
      own.clear(gradient);
#pragma unroll
      for (int j = 0; j < kValues; ++j) xhat[j] = normalized(xhat[j], mean, rstd);
      own.clear(xhat);
      if constexpr (kActivated) multiply_run_slopes<T>(gradient, xhat, weights, biases, p);
      return rstd;
    };
    const auto contribute = [&](int turn, const RunCursor& at) {
      A xhat[kValues], gradient[kValues], weight[2], products[2] = {}, totals[2] = {};
      barriers.full[at.slot].wait(at.phase);
      read(at, barriers.phases[at.slot], xhat, gradient);
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        if (j % 2 == 0) weights.get_pair(j, weight);
        dweight[j] += gradient[j] * xhat[j];
        if (bias) dbias[j] += gradient[j];
        gradient[j] *= weight[j % 2];
        products[j % 2] += gradient[j] * xhat[j];
        if (kLayer) totals[j % 2] += gradient[j];
      }
      A sum[kLayer ? 2 : 1] = {products[0] + products[1]};
      if constexpr (kLayer) sum[1] = totals[0] + totals[1];
      lane_sums<kWarp>(sum);
      exchange.contribute(turn, warp, {sum[0], kLayer ? sum[kLayer] : A(0)});
    };
    const auto finish = [&](int turn, const RunCursor& at) {
      A xhat[kValues], gradient[kValues], weight[2];
      const PiecePhases phases = barriers.phases[at.slot];
      const A rstd = read(at, phases, xhat, gradient);
      const SumPair<A> means = exchange.answer(turn);
      const A c2 = means.first * rstd, c1 = kLayer ? means.second * rstd : A(0);
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        if (j % 2 == 0) weights.get_pair(j, weight);
        gradient[j] = input_gradient(gradient[j] * weight[j % 2], xhat[j], rstd, c1, c2);
      }
      if (tiles.residual) {
        own.add(shared + at.slot * slot_bytes + 2 * tile_bytes + own.offset() + phases[2], gradient);
      }
      barriers.free[at.buffer].wait(at.free_phase);
      own.store(output + at.buffer * tile_bytes + own.offset() + phases[3], gradient);
      finish_tile(barriers.finished[at.buffer]);
      many.after(turn, dweight, dbias);
    };
    work_on_turns(turns, tiles.stages, contribute, finish);
  }
  write_run_sums<T, 0>(p, Partials<A>(p, workspace, slice.clusters, slice.cluster), slice.first, shared, own, dweight,
                       dbias, many, warp < warps, 0, 1, lanes);
  cluster_arrive(slice.blocks);
  cluster_wait(slice.blocks);
#endif
}

}  // namespace normact::cuda
