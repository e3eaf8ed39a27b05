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

template <class T, NormKind kKind, bool kActivated, int kRuns>
__global__ void __launch_bounds__(kBackwardSliceThreads, 1)
    row_backward_cluster_runs_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                                     const __grid_constant__ BackwardRunTiles of_rows,
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
  const SlicedTiles<T, BackwardRunTiles> tiles(of_rows, slice);
  const int tensors = tiles.residual ? 3 : 2;
  const int tile_bytes = tiles.layout.tile_bytes;
  const int slot_bytes = tensors * tile_bytes + tiles.layout.statistics_bytes;
  char* output = shared + tiles.stages * slot_bytes;
  const int warp = uniform_warp(), lanes = tiles.lanes, warps = lanes / kWarp;
  if (warp == warps) exchange.init(warps);
  start_barriers(barriers, tiles.stages, 1 + kWarp, warps, kBackwardMovers);  // the mover's lanes bring the statistics
  start_after_previous();
  cluster_arrive(slice.blocks);
  const Own own(threadIdx.x, lanes, slice.cols);
  A dweight[kValues] = {}, dbias[kValues] = {};
  const ParameterPlaces<kValues> many(places);
  if (warp > warps) {
    move_backward_tiles<T, kLayer, false>(p, tiles, scalars.rows, shared, output, slot_bytes, barriers);
    cluster_wait(slice.blocks);
  } else if (warp == warps) {
    cluster_wait(slice.blocks);
    const auto merge = [](const SumPair<A>& part) {
      return SumPair<A>{warp_sum(part.first), kLayer ? warp_sum(part.second) : A(0)};
    };
    for (int turn = 0; turn < tiles.turns(); ++turn) {
      const SumPair<A> total = exchange.merge(turn, warps, slice.blocks, slice.rank, merge, merge);
      if (threadIdx.x % kWarp == 0) {
        exchange.publish(turn, {total.first * scalars.reciprocal_cols, total.second * scalars.reciprocal_cols});
      }
    }
    __syncwarp();
  } else {
    const bool bias = kLayer || kActivated || p.dbias.data != nullptr;
    const Shared weights(output + 2 * tile_bytes, threadIdx.x, lanes);
    const Shared biases(output + 2 * tile_bytes + Shared::bytes(lanes), threadIdx.x, lanes);
    weights.fill(slice.of<T>(p.weight), A(1), scalars.weight_offset, own);
    if (kActivated) biases.fill(slice.of<T>(p.bias), A(0), A(0), own);
    cluster_wait(slice.blocks);

    const auto offset_in = [&](const RunTensor& tensor, int turn) {
      return own.offset() + row_offset(tiles, tensor, scalars.rows, slice.row(turn), 0);
    };
    /// xhat and dy (times the activation's slope) of a turn's row; returns its rstd.
    const auto read = [&](int turn, const RunCursor& at, A(&xhat)[kValues], A(&gradient)[kValues]) {
      const char* from = shared + at.slot * slot_bytes;
      const A* statistics = reinterpret_cast<const A*>(from + tensors * tile_bytes);
      const A mean = kLayer ? statistics[0] : A(0), rstd = statistics[1];
      own.load(from + offset_in(tiles.input[0], turn), xhat);
      own.load(from + tile_bytes + offset_in(tiles.input[1], turn), gradient);
      own.clear(xhat);
      own.clear(gradient);
#pragma unroll
      for (int j = 0; j < kValues; ++j) xhat[j] = normalized(xhat[j], mean, rstd);
      if constexpr (kActivated) multiply_run_slopes<T>(gradient, xhat, weights, biases, p);
      return rstd;
    };
    const auto contribute = [&](int turn, const RunCursor& at) {
      A xhat[kValues], gradient[kValues], weight[2], products[2] = {}, totals[2] = {};
      barriers.full[at.slot].wait(at.phase);
      read(turn, at, xhat, gradient);
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
      const A rstd = read(turn, at, xhat, gradient);
      const SumPair<A> means = exchange.answer(turn);
      const A c2 = means.first * rstd, c1 = kLayer ? means.second * rstd : A(0);
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        if (j % 2 == 0) weights.get_pair(j, weight);
        gradient[j] = input_gradient(gradient[j] * weight[j % 2], xhat[j], rstd, c1, c2);
      }
      if (tiles.residual) {
        own.add(shared + at.slot * slot_bytes + 2 * tile_bytes + offset_in(tiles.input[2], turn), gradient);
      }
      barriers.free[at.buffer].wait(at.free_phase);
      own.store(output + at.buffer * tile_bytes + offset_in(tiles.output[0], turn), gradient);
      finish_tile(barriers.finished[at.buffer]);
      many.after(turn, dweight, dbias);
    };
    work_on_turns(tiles.turns(), tiles.stages, contribute, finish);
  }
  write_run_sums<T, 0>(p, Partials<A>(p, workspace, slice.clusters, slice.cluster), slice.first, shared, own, dweight,
                       dbias, many, warp < warps, 0, 1, lanes);
  cluster_arrive(slice.blocks);
  cluster_wait(slice.blocks);
#endif
}

}  // namespace normact::cuda
