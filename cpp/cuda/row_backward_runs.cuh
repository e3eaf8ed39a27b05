// SPDX-License-Identifier: Apache-2.0
// Row norm backward of rows of any length at any element alignment (row_runs.cuh), sm_90: variants warp and block.
//
// Work     a persistent grid. A block works on a tile at a time, one row for each of its groups: kLanes lanes (warp) or
//          whole warps (block, kLanes 0). A thread owns the same kRuns runs of every row it sees, so dweight and dbias
//          add up in its registers, beside xhat and g of its row. Their weights are in registers, too, or in shared
//          memory where that lets more rows be worked on at once (kShareWeights). With an activation they always are
//          there, and so are the biases.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one row a block to
//          the workspace, which parameter_sum.cuh adds up in a fixed order.
// Barriers warp: none. block: one named barrier a row. And the mover's.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_runs.cuh"
#include "cuda/run_access.cuh"
#include "math/normalize.h"

namespace normact::cuda {

using BackwardRunTiles = RunTiles<3, 1>;  // x, dy, dresidual; dx

template <class T>
constexpr int kBackwardRun = backward_run(sizeof(T));

constexpr int kWorkersBarrier = 15;  // of all warps that work on rows; groups of warps have 1 and up

#if __CUDA_ARCH__ >= 900
template <class A>
__device__ __forceinline__ void copy_value_async(A* shared, const A* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global), "n"(sizeof(A))
               : "memory");
}

template <class T>
using BackwardBringer = PieceBringer<T, 3, 1>;

/// Starts bringing the statistics of a tile's rows into a slot; every lane arrives at its barrier.
template <class T, bool kLayer>
__device__ __forceinline__ void bring_statistics(const RowBackward& p, const BackwardRunTiles& tiles,
                                                 const RowDivisor& divisor, int64_t first, int here, char* slot,
                                                 Mbarrier& full) {
  using A = Accumulator<T>;
  A* statistics = reinterpret_cast<A*>(slot + tiles.inputs() * tiles.layout.tile_bytes);
  if (kLayer) {
    for_each_statistic<A>(p.mean, divisor, first, here,
                          [&](const A* from, int i) { copy_value_async(statistics + i, from); });
  }
  for_each_statistic<A>(p.rstd, divisor, first, here,
                        [&](const A* from, int i) { copy_value_async(statistics + tiles.rows + i, from); });
  full.arrive_after_copies();
}

template <class T, bool kLayer>
__device__ __forceinline__ void move_backward_tiles(const RowBackward& p, const BackwardRunTiles& tiles,
                                                    const RowDivisor& divisor, char* ring, char* output, int slot_bytes,
                                                    RunBarriers& barriers) {
  const int lane = threadIdx.x % kWarp;
  const int tile_bytes = tiles.layout.tile_bytes;
  const auto fetch = [&](int tile, int slot) {
    if (tile >= tiles.count) return;
    const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
    const int here = tiles.rows_of(tile);
    char* to = ring + slot * slot_bytes;
    int bytes = fetch_rows<T>(tiles, tiles.input[0], divisor, first, here, to, barriers.full[slot]);
    bytes += fetch_rows<T>(tiles, tiles.input[1], divisor, first, here, to + tile_bytes, barriers.full[slot]);
    if (tiles.residual) {
      bytes += fetch_rows<T>(tiles, tiles.input[2], divisor, first, here, to + 2 * tile_bytes, barriers.full[slot]);
    }
    bring_statistics<T, kLayer>(p, tiles, divisor, first, here, to, barriers.full[slot]);
    bytes = __reduce_add_sync(kFullWarp, bytes);
    __syncwarp();  // all lanes have written what they bring themselves
    if (lane < BackwardBringer<T>::kTensors) barriers.full[slot].arrive_and_expect(lane == 0 ? bytes : 0);
  };
#pragma unroll 1
  for (int s = 0; s < tiles.stages; ++s) fetch(blockIdx.x + s * gridDim.x, s);
  int slot = 0;
  OutputTurn turn;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, turn.next()) {
    const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
    const int here = tiles.rows_of(tile);
    char* from = output + turn.buffer * tile_bytes;
    finished_tile(barriers.finished[turn.buffer], turn.phase);
    send_rows(tiles, tiles.output[0], divisor, first, here, from);
    commit_bulk();
    fetch(tile + tiles.stages * gridDim.x, slot);
    send_ends<T>(tiles, tiles.output[0], divisor, first, here, from);
    wait_bulk_read<0>();
    __syncwarp();
    if (lane == 0) barriers.free[turn.buffer].arrive();
    if (++slot == tiles.stages) slot = 0;
  }
}

/// The same of tiles that are a piece of each tensor.
template <class T, bool kLayer>
__device__ __forceinline__ void move_backward_pieces(const RowBackward& p, const BackwardRunTiles& tiles,
                                                     const RowDivisor& divisor, char* ring, char* output,
                                                     int slot_bytes, RunBarriers& barriers) {
  const BackwardBringer<T> bringer(tiles, 0);
  const PieceSender<T, 3, 1> sender(tiles, 0);
  const int row_bytes = tiles.layout.row_bytes, tile_bytes = tiles.layout.tile_bytes;
  const int64_t apart = int64_t{tiles.rows} * row_bytes;  // of tiles
  const auto bring = [&](int tile, int slot) {
    if (tile >= tiles.count) return;
    const int here = tiles.rows_of(tile);
    bringer.bring(bringer.tensor().data + tile * apart, here * row_bytes, ring, slot_bytes, slot, barriers);
    bring_statistics<T, kLayer>(p, tiles, divisor, static_cast<int64_t>(tile) * tiles.rows, here,
                                ring + slot * slot_bytes, barriers.full[slot]);
  };
#pragma unroll 1
  for (int s = 0; s < tiles.stages; ++s) bring(blockIdx.x + s * gridDim.x, s);
  int slot = 0;
  OutputTurn turn;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, turn.next()) {
    const uintptr_t first = sender.tensor().data + tile * apart;
    finished_tile(barriers.finished[turn.buffer], turn.phase);
    sender.send(first, tiles.rows_of(tile) * row_bytes, output + turn.buffer * tile_bytes);
    bring(tile + tiles.stages * gridDim.x, slot);
    wait_bulk_read<0>();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barriers.free[turn.buffer].arrive();
    if (++slot == tiles.stages) slot = 0;
  }
}

/// The last warp of the block. Shared memory: the ring's slots, of the tiles and their means and rstds, then two output
/// buffers.
template <class T, bool kLayer>
__device__ __forceinline__ void move_backward(const RowBackward& p, const BackwardRunTiles& tiles,
                                              const RowDivisor& divisor, char* ring, char* output, int slot_bytes,
                                              RunBarriers& barriers) {
  if (tiles.dense) {
    move_backward_pieces<T, kLayer>(p, tiles, divisor, ring, output, slot_bytes, barriers);
  } else {
    move_backward_tiles<T, kLayer>(p, tiles, divisor, ring, output, slot_bytes, barriers);
  }
}
#endif

/// visit(j, value) for the effective parameters of what a thread owns; `otherwise` where there is none.
template <class T, class Own, class A, class Visit>
__device__ __forceinline__ void for_each_run_parameter(const Operand& operand, A otherwise, A offset, const Own& own,
                                                       Visit visit) {
  const Parameter<T> parameters(operand);
#pragma unroll
  for (int j = 0; j < Own::kValues; ++j) {
    A value = otherwise;
    if (own.valid(j) && parameters.data != nullptr) value = effective_weight(parameters.at(own.column(j)), offset);
    visit(j, value);
  }
}

/// A parameter of a row's columns in shared memory, once for all rows of the block: for a warp after the other (or all
/// lanes of a shorter row), of each lane a pair, then of each the next.
template <class T, class Own>
struct SharedRunParameter {
  using A = Accumulator<T>;
  struct alignas(2 * sizeof(A)) Pair {
    A value[2];
  };
  static_assert(Own::kValues % 2 == 0);
  static constexpr int kApart = Own::kLanesOfWarp;  // a lane's pairs
  Pair* own;                                        // this lane's first

  __device__ __forceinline__ SharedRunParameter(char* memory, int lane)
      : own(reinterpret_cast<Pair*>(memory) + lane / kApart * (kApart * Own::kValues / 2) + lane % kApart) {}
  static __device__ __forceinline__ int bytes(int lanes) { return Own::kValues * lanes * static_cast<int>(sizeof(A)); }

  __device__ __forceinline__ void fill(const Operand& operand, A otherwise, A offset, const Own& of) const {
    for_each_run_parameter<T>(operand, otherwise, offset, of,
                              [&](int j, A value) { own[j / 2 * kApart].value[j % 2] = value; });
  }
  /// Those of elements j and j + 1 of the thread's.
  __device__ __forceinline__ void get_pair(int j, A* to) const {
    const Pair pair = own[j / 2 * kApart];
    to[0] = pair.value[0];
    to[1] = pair.value[1];
  }
};

/// dy = dy * act'(affine(xhat)).
template <class T, class Problem, class Parameter, class A, int kCount>
__device__ __forceinline__ void multiply_run_slopes(A (&dy)[kCount], const A (&xhat)[kCount], const Parameter& weights,
                                                    const Parameter& biases, const Problem& p) {
  const auto h_of = [&](int j, A* h) {
    A weight[2], bias[2];
    weights.get_pair(j, weight);
    biases.get_pair(j, bias);
#pragma unroll
    for (int i = 0; i < 2; ++i) h[i] = affine(xhat[j + i], weight[i], bias[i]);
  };
  multiply_slopes_of<T, 2>(dy, h_of, p);
}

/// Writes a block's part of a row of partials, its columns from `first` on. Groups of one warp add theirs up; what is
/// left is a part a warp, or a group of warps. The whole block calls it; worker: whether this thread has worked on
/// rows; group: which of the `groups` groups of lanes it belongs to.
template <class T, int kLanes, class Own, class A>
__device__ __forceinline__ void write_run_sums(const RowBackward& p, Partials<A> partials, int64_t first, void* shared,
                                               const Own& own, A (&dweight)[Own::kValues], A (&dbias)[Own::kValues],
                                               const ParameterPlaces<Own::kValues>& many, bool worker, int group,
                                               int groups, int threads) {
  many.give(dweight, dbias);
  const auto store = [&](A(&sum)[Own::kValues], A* columns) {
#pragma unroll
    for (int j = 0; j < Own::kValues; ++j) {
      if constexpr (!kSeveralWarps<kLanes>) sum[j] = sum_over_groups<kLanes>(sum[j]);
      if (worker && (kSeveralWarps<kLanes> || threadIdx.x % kWarp < kLanes) && own.valid(j))
        columns[own.column(j)] = sum[j];
    }
  };
  const int part = kSeveralWarps<kLanes> ? group : threadIdx.x / kWarp;
  const int parts = kSeveralWarps<kLanes> ? groups : threads / kWarp;
  partials.template write_block<T>(
      p, shared, [&](A* columns) { store(dweight, columns); }, [&](A* columns) { store(dbias, columns); }, part, parts,
      first, own.cols());
}

template <class A, int kCount>
__device__ __forceinline__ void clear_unless(bool condition, A (&value)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) value[j] = condition ? value[j] : A(0);
}

#if __CUDA_ARCH__ >= 900
/// Rows that pass by shared memory (kMayBeDirect). differentiate(xhat, gradient, mean, rstd, which) makes dx, without
/// dresidual, of x and dy, in `gradient`.
template <class T, bool kLayer, class Own, class Places, class A, class Differentiate>
__device__ __forceinline__ void differentiate_direct_rows(const RowBackward& p, const BackwardRunTiles& tiles,
                                                          const RowDivisor& divisor, const Own& own, int at,
                                                          const Places& many, A (&dweight)[Own::kValues],
                                                          A (&dbias)[Own::kValues], Differentiate differentiate) {
  for (int tile = blockIdx.x, number = 0; tile < tiles.count; tile += gridDim.x, many.after(number++, dweight, dbias)) {
    const bool live = at < tiles.rows_of(tile);
    const RowIndex row(divisor, static_cast<int64_t>(tile) * tiles.rows + (live ? at : 0));
    const A mean = kLayer && live ? *row_pointer<const A>(p.mean, row) : A(0);
    const A rstd = *row_pointer<const A>(p.rstd, row);
    A xhat[Own::kValues], gradient[Own::kValues];
    own.load_elements(row_pointer<const T>(p.x, row), live, xhat);
    own.load_elements(row_pointer<const T>(p.dy, row), live, gradient);
    differentiate(xhat, gradient, mean, rstd, 0);
    if (tiles.residual) own.add_elements(row_pointer<const T>(p.dresidual, row), gradient);
    if (live) own.store_elements(row_pointer<T>(p.dx, row), gradient);
  }
}
#endif

/// kShareWeights: of activated rows, always.
template <class T, NormKind kKind, bool kActivated, int kLanes, int kRuns, bool kShareWeights>
__global__ void __launch_bounds__(kShareWeights && !kActivated ? kBackwardSharedRunThreads : kBackwardRunThreads, 1)
    row_backward_runs_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                             const __grid_constant__ BackwardRunTiles tiles, const Scalars<Accumulator<T>> scalars,
                             void* workspace, double* places) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  using Own = OwnRuns<T, kRuns, kBackwardRun<T>, kLanes>;
  constexpr int kValues = Own::kValues;
  extern __shared__ __align__(128) char shared[];
  __shared__ RunBarriers barriers;
  constexpr int kSums = kLayer ? 2 : 1;
  using Sum = RowSum<kLanes, A, kSums, 2>;
  __shared__ typename Sum::Scratch scratch;

  const int threads = blockDim.x - kWarp;  // that work on rows
  const int tensors = tiles.residual ? 3 : 2;
  const int tile_bytes = tiles.layout.tile_bytes;
  const int slot_bytes = tensors * tile_bytes + tiles.layout.statistics_bytes;
  char* output = shared + tiles.stages * slot_bytes;
  // The mover's lanes bring the statistics.
  start_barriers(barriers, tiles.stages, BackwardBringer<T>::kTensors + kWarp, threads / kWarp, kBackwardMovers);
  start_after_previous();

  const int lanes = kLanes != 0 ? kLanes : tiles.lanes;
  const int lane = kLanes != 0 ? threadIdx.x % kLanes : threadIdx.x % lanes;
  const int at = row_of_tile<T, kLanes>(lanes, threads);
  const Own own(lane, lanes, static_cast<int>(p.geometry.cols));
  const bool mover = uniform_warp() >= threads / kWarp;
  A dweight[kValues] = {}, dbias[kValues] = {};
  const ParameterPlaces<kValues> many(places);
  const bool direct = kMayBeDirect<kLanes> && tiles.direct;
  if (mover) {
    if (!direct) move_backward<T, kLayer>(p, tiles, scalars.rows, shared, output, slot_bytes, barriers);
    __syncwarp();
  } else {
    using Shared = SharedRunParameter<T, Own>;
    const bool bias = kLayer || kActivated || p.dbias.data != nullptr;
    A weight[kShareWeights ? 2 : kValues];
    const Shared weights(output + 2 * tile_bytes, lane);
    const Shared biases(output + 2 * tile_bytes + Shared::bytes(lanes), lane);
    if constexpr (kShareWeights) {
      if (at == 0) weights.fill(p.weight, A(1), scalars.weight_offset, own);
      if (kActivated && at == 0) biases.fill(p.bias, A(0), A(0), own);
      group_barrier(kWorkersBarrier, threads);
    } else {
      for_each_run_parameter<T>(p.weight, A(1), scalars.weight_offset, own, [&](int j, A value) { weight[j] = value; });
    }

    const Sum row_sum(scratch, at, lane / kWarp, lanes / kWarp, 1 + at);
    const auto differentiate = [&](A(&xhat)[kValues], A(&gradient)[kValues], A mean, A rstd, int which) {
      A products[2] = {}, totals[2] = {}, sum[kSums];
#pragma unroll
      for (int j = 0; j < kValues; ++j) xhat[j] = normalized(xhat[j], mean, rstd);
      own.clear(xhat);
      if constexpr (kActivated) multiply_run_slopes<T>(gradient, xhat, weights, biases, p);
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        if (kShareWeights && j % 2 == 0) weights.get_pair(j, weight);
        dweight[j] += gradient[j] * xhat[j];
        if (bias) dbias[j] += gradient[j];
        gradient[j] *= weight[kShareWeights ? j % 2 : j];
        products[j % 2] += gradient[j] * xhat[j];
        if (kLayer) totals[j % 2] += gradient[j];
      }
      sum[0] = products[0] + products[1];
      if constexpr (kLayer) sum[1] = totals[0] + totals[1];
      row_sum.run(sum, which);
      const A c2 = sum[0] * scalars.reciprocal_cols * rstd;
      const A c1 = kLayer ? sum[kLayer] * scalars.reciprocal_cols * rstd : A(0);
#pragma unroll
      for (int j = 0; j < kValues; ++j) gradient[j] = input_gradient(gradient[j], xhat[j], rstd, c1, c2);
    };
    if (direct) {
      differentiate_direct_rows<T, kLayer>(p, tiles, scalars.rows, own, at, many, dweight, dbias, differentiate);
    } else {
      RunCursor now;
      for (int tile = blockIdx.x, number = 0; tile < tiles.count;
           tile += gridDim.x, now.next(tiles.stages), many.after(number++, dweight, dbias)) {
        const int64_t first = static_cast<int64_t>(tile) * tiles.rows;
        const bool live = at < tiles.rows_of(tile);
        const int row = live ? at : 0;  // others go along with the first row, and add nothing to dweight and dbias
        barriers.full[now.slot].wait(now.phase);
        const PiecePhases phases = barriers.phases[now.slot];
        const auto offset_in = [&](int tensor) { return row_offset(tiles, phases, tensor, scalars.rows, first, row); };
        char* from = shared + now.slot * slot_bytes + own.offset();
        const A* statistics = reinterpret_cast<const A*>(shared + now.slot * slot_bytes + tensors * tile_bytes);
        A xhat[kValues], gradient[kValues];
        own.load(from + offset_in(0), xhat);
        own.load(from + tile_bytes + offset_in(1), gradient);
        own.clear(gradient);
        if (tile == tiles.count - 1) clear_unless(live, gradient);
        differentiate(xhat, gradient, kLayer ? statistics[row] : A(0), statistics[tiles.rows + row], now.buffer);
        if (tiles.residual) own.add(from + 2 * tile_bytes + offset_in(2), gradient);
        barriers.free[now.buffer].wait(now.free_phase);
        if (live) own.store(output + now.buffer * tile_bytes + own.offset() + offset_in(3), gradient);
        finish_tile(barriers.finished[now.buffer]);
      }
    }
  }

  write_run_sums<T, kLanes>(p, Partials<A>(p, workspace, gridDim.x, blockIdx.x), 0, shared, own, dweight, dbias, many,
                            !mover, at, tiles.rows, threads);
#endif
}

}  // namespace normact::cuda
