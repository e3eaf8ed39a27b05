// SPDX-License-Identifier: Apache-2.0
// Row norm forward of wide rows at any element alignment (row_cluster_runs.cuh): variant cluster (sm_90).
//
// Work     as there. A thread keeps the weights and biases of its runs in registers.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers none of the block or the cluster in the loop, but mbarriers: a row is there, its sums are, a buffer is full
//          or free.
// Sums     a thread's about the mean of its first run, a warp's about its own mean, both in the accumulator type; those
//          of warps and blocks in fp64, each about the mean of their union, by Chan's formula.
#pragma once

#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/cluster_moments.cuh"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_cluster_runs.cuh"
#include "cuda/row_forward_runs.cuh"
#include "math/normalize.h"

namespace normact::cuda {

constexpr int kForwardSliceThreads = (kForwardSliceWarps + kSliceServants + kForwardMovers) * kWarp;

#if __CUDA_ARCH__ >= 900

/// Sums of a warp's part of a row, for all its rows: of the elements, and of their squares about their mean (rms: about
/// 0).
template <NormKind kKind, class Own>
class RunMoments {
 public:
  using A = typename Own::A;

  __device__ __forceinline__ RunMoments(const Own& own, int elements) : elements_(elements) {
    int count = 0;
#pragma unroll
    for (int j = 0; j < Own::kValues; ++j) count += own.valid(j);
    lane_count_ = static_cast<A>(count);
    reciprocal_lane_count_ = A(1) / lane_count_;
    reciprocal_warp_count_ = A(1) / static_cast<A>(elements);
  }

  /// value: zeros where there is none. Only a lane's last run may be cut.
  __device__ __forceinline__ SumPair<double> of(const Own& own, A (&value)[Own::kValues]) const {
    // About the mean of its first run: as in warp_moments() of row_forward_cluster.cuh, little cancels.
    A centre = A(0), total = A(0);
    if constexpr (kKind == NormKind::layer) {
      centre = sum_of<Own::kRunSize, A>([&](int j) { return value[j]; }) * A(1.0 / Own::kRunSize);
#pragma unroll
      for (int j = 0; j < Own::kValues; ++j) value[j] -= centre;
      own.clear(value);
      total = sum_of<Own::kValues, A>([&](int j) { return value[j]; });
    }
    const A square = sum_of<Own::kValues, A>([&](int j) { return value[j] * value[j]; });
    if constexpr (kKind == NormKind::rms) return {0, static_cast<double>(warp_sum(square))};
    return moments_of_warp(centre, total, square, lane_count_, reciprocal_lane_count_, reciprocal_warp_count_,
                           elements_);
  }

 private:
  int elements_;
  A lane_count_, reciprocal_lane_count_, reciprocal_warp_count_;
};

/// The serving warp of a block: answers with mean and rstd of each of the cluster's rows. elements: of this lane's
/// warp, 0 if there is none.
template <NormKind kKind, class A>
__device__ __forceinline__ void serve_slices(const RowForward& p, const Scalars<A>& scalars, const RowSlice& slice,
                                             int turns, int warps, int elements, WarpExchange<double, A>& exchange) {
  const int lane = threadIdx.x % kWarp;
  const int cols = static_cast<int>(p.geometry.cols);
  const ClusterParts parts(elements, slice.cols, lane < slice.blocks ? min(slice.width, cols - lane * slice.width) : 0,
                           cols);
  for (int turn = 0; turn < turns; ++turn) {
    const SumPair<double> moments = parts.merge<kKind>(turn, {warps, slice.blocks, slice.rank}, exchange);
    if (lane != 0) continue;
    const A mean = static_cast<A>(moments.first);
    const A rstd = reciprocal_std(static_cast<A>(moments.second), scalars.eps, [](A a) { return reciprocal_sqrt(a); });
    exchange.publish(turn, {mean, rstd});
    if (slice.rank == 0) store_statistics(p, RowIndex(scalars.rows, slice.row(turn)), mean, rstd);
  }
}

/// The last warp of the block.
template <class T>
__device__ __forceinline__ void bring_forward_slices(const ForwardRunTiles& tiles, const RowDivisor& divisor,
                                                     const RowSlice& slice, int turns, char* ring, int slot_bytes,
                                                     RunBarriers& barriers) {
  const ForwardBringer<T> bringer(tiles, slice.first);
  const int bytes = slice.cols * static_cast<int>(sizeof(T));
  const auto bring = [&](int turn, int slot) {
    if (turn >= turns) return;
    const uintptr_t first = bringer.tensor().row(RowIndex(divisor, slice.row(turn)));
    bringer.bring(first, bytes, ring, slot_bytes, slot, barriers);
  };
#pragma unroll 1
  for (int s = 0; s < tiles.stages; ++s) bring(s, s);
  int slot = 0;
  OutputTurn output;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn, output.next()) {
    finished_tile(barriers.finished[output.buffer], output.phase);
    if (threadIdx.x % kWarp == 0) barriers.free[output.buffer].arrive();
    bring(turn + tiles.stages, slot);
    if (++slot == tiles.stages) slot = 0;
  }
}

/// The last warp but one.
template <class T>
__device__ __forceinline__ void send_forward_slices(const ForwardRunTiles& tiles, const RowDivisor& divisor,
                                                    const RowSlice& slice, int turns, char* buffers, int output_bytes,
                                                    RunBarriers& barriers) {
  const PieceSender<T, 2, 2> sender(tiles, slice.first);
  const int bytes = slice.cols * static_cast<int>(sizeof(T));
  OutputTurn output;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn, output.next()) {
    const uintptr_t first = sender.tensor().row(RowIndex(divisor, slice.row(turn)));
    finished_tile(barriers.finished[output.buffer], output.phase);
    sender.send(first, bytes, buffers + output.buffer * output_bytes);
    wait_bulk_read<0>();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barriers.free[output.buffer].arrive();
  }
}

#endif

template <class T, NormKind kKind, bool kActivated, int kRuns>
__global__ void __launch_bounds__(kForwardSliceThreads, 1)
    row_forward_cluster_runs_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                                    const __grid_constant__ ForwardRunTiles tiles,
                                    const Scalars<Accumulator<T>> scalars) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  using Own = OwnRuns<T, kRuns, kForwardRun<T>, 0>;
  constexpr int kValues = Own::kValues;
  extern __shared__ __align__(128) char shared[];
  __shared__ SliceMemory<double, A> block_memory;
  SliceMemory<double, A>& memory = at_known_address(block_memory);
  WarpExchange<double, A>& exchange = memory.exchange;
  RunBarriers& barriers = memory.barriers;

  const RowSlice slice(static_cast<int>(p.geometry.cols));
  const int turns = slice.turns(p.geometry.rows);
  const int tile_bytes = tiles.layout.tile_bytes, slot_bytes = tiles.inputs() * tile_bytes;
  const int output_bytes = slot_bytes + tiles.layout.statistics_bytes;
  char* output = shared + tiles.stages * slot_bytes;
  const int warp = uniform_warp(), lane = threadIdx.x % kWarp, lanes = tiles.lanes, warps = lanes / kWarp;
  if (warp == warps) exchange.init(warps);
  start_barriers(barriers, tiles.stages, ForwardBringer<T>::kTensors, warps, kForwardMovers);
  start_after_previous();
  cluster_arrive(slice.blocks);
  const Own own(threadIdx.x, lanes, slice.cols);
  if (warp >= warps) {
    if (warp == warps + 1) {
      send_forward_slices<T>(tiles, scalars.rows, slice, turns, output, output_bytes, barriers);
    } else if (warp == warps + 2) {
      bring_forward_slices<T>(tiles, scalars.rows, slice, turns, shared, slot_bytes, barriers);
    }
    __syncwarp();
    cluster_wait(slice.blocks);
    if (warp == warps) {
      const int elements = lane < warps ? Own::count_of_warp(lane, lanes, slice.cols) : 0;
      serve_slices<kKind>(p, scalars, slice, turns, warps, elements, exchange);
    }
    __syncwarp();
    cluster_arrive(slice.blocks);
    cluster_wait(slice.blocks);
    return;
  }

  A weight[kValues], bias[kValues];
  load_run_parameters<T>(slice.of<T>(p.weight), slice.of<T>(p.bias), own, scalars.weight_offset, weight, bias);
  const RunMoments<kKind, Own> moments(own, Own::count_of_warp(warp, lanes, slice.cols));
  cluster_wait(slice.blocks);

  const auto read = [&](const RunCursor& at, PiecePhases phases, A(&value)[kValues]) {
    const char* from = shared + at.slot * slot_bytes + own.offset();
    own.load(from + phases[0], value);
    if (tiles.residual) {  // x = round(x + residual): the norm is of what the caller gets back
      own.add(from + tile_bytes + phases[1], value);
      round_to<T>(value);
    }
  };
  const auto contribute = [&](int turn, const RunCursor& at) {
    A value[kValues];
    barriers.full[at.slot].wait(at.phase);
    read(at, barriers.phases[at.slot], value);
    own.clear(value);
    exchange.contribute(turn, warp, moments.of(own, value));
  };
  const auto finish = [&](int turn, const RunCursor& at) {
    A value[kValues];
    const PiecePhases phases = barriers.phases[at.slot];
    read(at, phases, value);
    char* to = output + at.buffer * output_bytes + own.offset();
    const SumPair<A> statistics = exchange.answer(turn);
    barriers.free[at.buffer].wait(at.free_phase);
    if (tiles.residual) own.store(to + tile_bytes + phases[3], value);
    const A mean = kLayer ? statistics.first : A(0), rstd = statistics.second;
#pragma unroll
    for (int j = 0; j < kValues; ++j) value[j] = affine(normalized(value[j], mean, rstd), weight[j], bias[j]);
    activate<T>(value, p);
    own.store(to + phases[2], value);
    finish_tile(barriers.finished[at.buffer]);
  };
  work_on_turns(turns, tiles.stages, contribute, finish);
  cluster_arrive(slice.blocks);
  cluster_wait(slice.blocks);
#endif
}

}  // namespace normact::cuda
