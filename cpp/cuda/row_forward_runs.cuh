// SPDX-License-Identifier: Apache-2.0
// Row norm forward of rows of any length at any element alignment (row_runs.cuh), sm_90: variants warp and block.
//
// Work     a persistent grid. A block works on a tile at a time, one row for each of its groups: kLanes lanes (warp) or
//          whole warps (block, kLanes 0). A thread owns kRuns runs of its row, and their weights and biases, which it
//          keeps in registers.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers warp: none. block: one named barrier a sum (layer: two, of a row of equal elements four; rms: one). And the
//          mover's.
// Sums     two-pass from registers, about the row's own mean.
// Activated rows have the same plan; of a kind that is called, weights and biases are spilled around the call.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_runs.cuh"
#include "cuda/run_access.cuh"
#include "math/normalize.h"

namespace normact::cuda {

using ForwardRunTiles = RunTiles<2, 2>;  // x, residual; y, residual_out

template <class T>
constexpr int kForwardRun = forward_run(sizeof(T));

#if __CUDA_ARCH__ >= 900
// The last two warps of the block move data: one brings tiles and writes statistics, one sends finished tiles. Shared
// memory: the ring's slots, then two output buffers of the tiles and their means and rstds.

template <class T>
using ForwardBringer = PieceBringer<T, 2, 2>;

/// Writes the means and rstds of a finished tile, from behind its output buffer.
template <class A>
__device__ __forceinline__ void write_statistics(const RowForward& p, const ForwardRunTiles& tiles,
                                                 const RowDivisor& divisor, int tile, const char* buffer,
                                                 int slot_bytes) {
  const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
  const int here = tiles.rows_of(tile);
  const A* statistics = reinterpret_cast<const A*>(buffer + slot_bytes);
  if (p.mean.data != nullptr) {
    for_each_statistic<A>(p.mean, divisor, first, here, [&](A* to, int i) { *to = statistics[i]; });
  }
  if (p.rstd.data != nullptr) {
    for_each_statistic<A>(p.rstd, divisor, first, here, [&](A* to, int i) { *to = statistics[tiles.rows + i]; });
  }
}

template <class T>
__device__ __forceinline__ void bring_forward_tiles(const RowForward& p, const ForwardRunTiles& tiles,
                                                    const RowDivisor& divisor, char* ring, const char* output,
                                                    int slot_bytes, int output_bytes, RunBarriers& barriers) {
  const ForwardBringer<T> bringer(tiles, 0);
  const int lane = threadIdx.x % kWarp;
  const auto fetch = [&](int tile, int slot) {
    if (tile >= tiles.count) return;
    const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
    const int here = tiles.rows_of(tile);
    if (tiles.dense) {
      const int row_bytes = tiles.layout.row_bytes;
      bringer.bring(bringer.tensor().data + first * row_bytes, here * row_bytes, ring, slot_bytes, slot, barriers);
      return;
    }
    char* to = ring + slot * slot_bytes;
    int bytes = fetch_rows<T>(tiles, tiles.input[0], divisor, first, here, to, barriers.full[slot]);
    if (tiles.residual) {
      to += tiles.layout.tile_bytes;
      bytes += fetch_rows<T>(tiles, tiles.input[1], divisor, first, here, to, barriers.full[slot]);
    }
    bytes = __reduce_add_sync(kFullWarp, bytes);
    __syncwarp();  // all lanes have written what they bring themselves
    if (lane < ForwardBringer<T>::kTensors) barriers.full[slot].arrive_and_expect(lane == 0 ? bytes : 0);
  };
#pragma unroll 1
  for (int s = 0; s < tiles.stages; ++s) fetch(blockIdx.x + s * gridDim.x, s);
  int slot = 0;
  OutputTurn turn;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, turn.next()) {
    finished_tile(barriers.finished[turn.buffer], turn.phase);
    fetch(tile + tiles.stages * gridDim.x, slot);
    write_statistics<Accumulator<T>>(p, tiles, divisor, tile, output + turn.buffer * output_bytes, slot_bytes);
    __syncwarp();
    if (lane == 0) barriers.free[turn.buffer].arrive();
    if (++slot == tiles.stages) slot = 0;
  }
}

template <class T>
__device__ __forceinline__ void send_forward_tiles(const ForwardRunTiles& tiles, const RowDivisor& divisor,
                                                   char* output, int output_bytes, RunBarriers& barriers) {
  const PieceSender<T, 2, 2> sender(tiles, 0);
  OutputTurn turn;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, turn.next()) {
    const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
    const int here = tiles.rows_of(tile);
    char* from = output + turn.buffer * output_bytes;
    char* sums = from + tiles.layout.tile_bytes;  // x + residual
    finished_tile(barriers.finished[turn.buffer], turn.phase);
    if (tiles.dense) {
      const int row_bytes = tiles.layout.row_bytes;
      sender.send(sender.tensor().data + first * row_bytes, here * row_bytes, from);
    } else {
      send_rows(tiles, tiles.output[0], divisor, first, here, from);
      if (tiles.residual) send_rows(tiles, tiles.output[1], divisor, first, here, sums);
      commit_bulk();
      send_ends<T>(tiles, tiles.output[0], divisor, first, here, from);
      if (tiles.residual) send_ends<T>(tiles, tiles.output[1], divisor, first, here, sums);
    }
    wait_bulk_read<0>();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barriers.free[turn.buffer].arrive();
  }
}
#endif

/// The effective weights and the biases of what a thread owns; ones and zeros where there are none.
template <class T, class Own, class A>
__device__ __forceinline__ void load_run_parameters(const Operand& of_weights, const Operand& of_biases, const Own& own,
                                                    A weight_offset, A (&weight)[Own::kValues],
                                                    A (&bias)[Own::kValues]) {
  const Parameter<T> weights(of_weights), biases(of_biases);
#pragma unroll
  for (int j = 0; j < Own::kValues; ++j) {
    weight[j] = A(1);
    bias[j] = A(0);
    if (own.valid(j) && weights.data != nullptr) {
      weight[j] = effective_weight(weights.at(own.column(j)), weight_offset);
    }
    if (own.valid(j) && biases.data != nullptr) bias[j] = biases.at(own.column(j));
  }
}

template <class A>
struct RunStatistics {
  A mean, rstd;
};

#if __CUDA_ARCH__ >= 900
/// Rows that pass by shared memory (kMayBeDirect). normalize(value, which) makes y of x and returns mean and rstd.
template <class T, class Own, class Normalize>
__device__ __forceinline__ void norm_direct_rows(const RowForward& p, const ForwardRunTiles& tiles,
                                                 const RowDivisor& divisor, const Own& own, int lane, int at,
                                                 Normalize normalize) {
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const bool live = at < tiles.rows_of(tile);
    const RowIndex row(divisor, static_cast<int64_t>(tile) * tiles.rows + (live ? at : 0));
    typename Own::A value[Own::kValues];
    own.load_elements(row_pointer<const T>(p.x, row), live, value);
    if (tiles.residual) {
      own.add_elements(row_pointer<const T>(p.residual, row), value);
      round_to<T>(value);
      if (live) own.store_elements(row_pointer<T>(p.residual_out, row), value);
    }
    const auto [mean, rstd] = normalize(value, 0);
    if (!live) continue;
    if (lane == 0) store_statistics(p, row, mean, rstd);
    own.store_elements(row_pointer<T>(p.y, row), value);
  }
}
#endif

template <class T, NormKind kKind, bool kActivated, int kLanes, int kRuns>
__global__ void __launch_bounds__(kForwardRunThreads, 1)
    row_forward_runs_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                            const __grid_constant__ ForwardRunTiles tiles, const Scalars<Accumulator<T>> scalars) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  using Own = OwnRuns<T, kRuns, kForwardRun<T>, kLanes>;
  constexpr int kValues = Own::kValues;
  extern __shared__ __align__(128) char shared[];
  __shared__ RunBarriers barriers;
  using Sum = RowSum<kLanes, A, 1, 2>;
  __shared__ typename Sum::Scratch scratch;

  const int threads = blockDim.x - kForwardMovers * kWarp;  // that work on rows
  const int tensors = tiles.residual ? 2 : 1;
  const int tile_bytes = tiles.layout.tile_bytes, slot_bytes = tensors * tile_bytes;
  const int output_bytes = slot_bytes + tiles.layout.statistics_bytes;
  char* output = shared + tiles.stages * slot_bytes;
  start_barriers(barriers, tiles.stages, ForwardBringer<T>::kTensors, threads / kWarp, kForwardMovers);
  start_after_previous();
  const bool direct = kMayBeDirect<kLanes> && tiles.direct;
  if (static_cast<int>(threadIdx.x) >= threads + kWarp) {
    if (direct) return;
    bring_forward_tiles<T>(p, tiles, scalars.rows, shared, output, slot_bytes, output_bytes, barriers);
    return;
  }
  if (static_cast<int>(threadIdx.x) >= threads) {
    if (direct) return;
    send_forward_tiles<T>(tiles, scalars.rows, output, output_bytes, barriers);
    return;
  }

  const int lanes = kLanes != 0 ? kLanes : tiles.lanes;
  const int lane = kLanes != 0 ? threadIdx.x % kLanes : threadIdx.x % lanes;
  const int at = row_of_tile<T, kLanes>(lanes, threads);
  const Own own(lane, lanes, static_cast<int>(p.geometry.cols));
  A weight[kValues], bias[kValues];
  load_run_parameters<T>(p.weight, p.bias, own, scalars.weight_offset, weight, bias);
  const Sum row_sum(scratch, at, lane / kWarp, lanes / kWarp, 1 + at);
  const auto sum = [&](A part, int which) {
    A value[1] = {part};
    row_sum.run(value, which);
    return value[0];
  };

  const auto normalize = [&](A(&value)[kValues], int which) {
    own.clear(value);
    A mean = A(0);
    if constexpr (kLayer) {
      mean = sum(sum_of<kValues, A>([&](int j) { return value[j]; }), 0) * scalars.reciprocal_cols;
#pragma unroll
      for (int j = 0; j < kValues; ++j) value[j] -= mean;
      own.clear(value);
    }
    const auto mean_square = [&](int turn) {
      return sum(sum_of<kValues, A>([&](int j) { return value[j] * value[j]; }), turn) * scalars.reciprocal_cols;
    };
    A variance = mean_square(kLayer ? 1 : which);
    if constexpr (kLayer) {
      // Of a row of equal elements, or nearly so, nothing is left but what the mean was rounded by. Where a warp has
      // several rows, all its lanes add up, as shuffles want, and the other rows stay as they are.
      const bool equal = variance < A(0x1p-40) * mean * mean;
      if (kLanes > 0 && kLanes < kWarp ? __any_sync(kFullWarp, equal) : equal) {
        const A left = sum(sum_of<kValues, A>([&](int j) { return value[j]; }), 0) * scalars.reciprocal_cols;
        if (equal) {
          mean += left;
#pragma unroll
          for (int j = 0; j < kValues; ++j) value[j] -= left;
          own.clear(value);
        }
        const A again = mean_square(1);
        if (equal) variance = again;
      }
    }
    const A rstd = reciprocal_std(variance, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
#pragma unroll
    for (int j = 0; j < kValues; ++j) value[j] = affine(value[j] * rstd, weight[j], bias[j]);
    activate<T>(value, p);
    return RunStatistics<A>{mean, rstd};
  };
  if (direct) {
    norm_direct_rows<T>(p, tiles, scalars.rows, own, lane, at, normalize);
    return;
  }

  RunCursor now;
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, now.next(tiles.stages)) {
    const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
    const bool live = at < tiles.rows_of(tile);
    const int row = live ? at : 0;  // others go along with the first row
    barriers.full[now.slot].wait(now.phase);
    const PiecePhases phases = barriers.phases[now.slot];
    const auto offset_in = [&](int tensor) { return row_offset(tiles, phases, tensor, scalars.rows, first, row); };
    char* from = shared + now.slot * slot_bytes + own.offset();
    char* to = output + now.buffer * output_bytes + own.offset();
    A value[kValues];
    own.load(from + offset_in(0), value);
    if (tiles.residual) {  // x = round(x + residual): the norm is of what the caller gets back
      own.add(from + tile_bytes + offset_in(1), value);
      round_to<T>(value);
      barriers.free[now.buffer].wait(now.free_phase);
      if (live) own.store(to + tile_bytes + offset_in(3), value);
    }
    const auto [mean, rstd] = normalize(value, now.buffer);
    barriers.free[now.buffer].wait(now.free_phase);
    if (live) {
      if (lane == 0) {
        A* statistics = reinterpret_cast<A*>(output + now.buffer * output_bytes + slot_bytes);
        statistics[at] = mean;
        statistics[tiles.rows + at] = rstd;
      }
      own.store(to + offset_in(2), value);
    }
    finish_tile(barriers.finished[now.buffer]);
  }
#endif
}

}  // namespace normact::cuda
