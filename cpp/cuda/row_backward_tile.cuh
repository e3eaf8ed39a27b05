// SPDX-License-Identifier: Apache-2.0
// Row norm backward of rows that lie side by side in memory: variant tile (row_tile.cuh).
//
// Work     a persistent grid; a block works on one tile of neighbouring rows after the other, and several blocks share
//          a multiprocessor. A thread sees the same columns of every tile.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; a block leaves a row of parameter sums
//          in the workspace, and parameter_sum.cuh adds these up in a fixed order.
// Pipeline as soon as a thread has a pack of dx, it starts copying what comes next to the place of that pack's x and
//          dy.
// Barriers four a tile. A thread's part of the tile, but see store_unit, and its columns' parameter sums are its own.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// Columns that a thread has at a time; calls to an activation leave no registers for two.
template <bool kActivated>
constexpr int kTileUnroll = kActivated ? 1 : 2;

/// What some lanes add to the gradients of a column's parameters.
template <class A>
struct alignas(2 * sizeof(A)) ColumnSums {
  A dweight, dbias;
};

/// Where they are: one for each lane, as long as there is room, so that no lane has to ask others.
template <class A>
struct TileSums {
  ColumnSums<A>* at;
  int lanes, folded;  // of a column; neighbouring lanes that share one
  int own;            // this thread's
  bool leads;         // of those that share it

  __device__ __forceinline__ TileSums(A* memory, const TileSplit& split, const TileThread& thread)
      : at(reinterpret_cast<ColumnSums<A>*>(memory)),
        lanes(split.lanes / split.lanes_a_sum),
        folded(split.lanes_a_sum),
        own(thread.lane / split.lanes_a_sum),
        leads(thread.lane % split.lanes_a_sum == 0) {}

  __device__ __forceinline__ A* end(int cols) const { return reinterpret_cast<A*>(at + cols * lanes); }

  /// All threads; a barrier is to follow.
  __device__ __forceinline__ void clear(int cols) const {
    for (int i = threadIdx.x; i < cols * lanes; i += blockDim.x) at[i] = {A(0), A(0)};
  }
  /// All lanes of a warp; valid: those that have the column.
  __device__ __forceinline__ void add(int column, bool valid, A dweight, A dbias) const {
    for (int offset = 1; offset < folded; offset *= 2) {
      dweight += __shfl_xor_sync(kFullWarp, dweight, offset);
      dbias += __shfl_xor_sync(kFullWarp, dbias, offset);
    }
    if (!valid || !leads) return;
    ColumnSums<A>& of = at[column * lanes + own];
    const ColumnSums<A> before = of;
    of = {before.dweight + dweight, before.dbias + dbias};
  }
  /// All of a column, behind a barrier.
  __device__ __forceinline__ ColumnSums<A> total(int column) const {
    ColumnSums<A> sum = at[column * lanes];
    for (int lane = 1; lane < lanes; ++lane) {
      const ColumnSums<A> of = at[column * lanes + lane];
      sum = {sum.dweight + of.dweight, sum.dbias + of.dbias};
    }
    return sum;
  }
};

/// The statistics of a thread's rows. kHeld: in registers; but for a call to an activation, which leaves few, they are
/// read from shared memory wherever they are needed.
template <class T, NormKind kKind, bool kHeld>
struct TileStatistics {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  const A* from;  // means (zeros for rms), then as many rstd
  int rows;       // of a tile
  A mean[kHeld && kLayer ? kSize : 1];
  A rstd[kHeld ? kSize : 1];

  __device__ __forceinline__ TileStatistics(const A* statistics, int tile_rows) : from(statistics), rows(tile_rows) {
    if constexpr (kHeld) {
      if constexpr (kLayer) load_shared_values(from, mean);
      load_shared_values(from + rows, rstd);
    }
  }

  __device__ __forceinline__ void get_rstd(A (&value)[kSize]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = rstd[j];
    } else {
      load_shared_values(from + rows, value);
    }
  }
  /// x to x - mean.
  __device__ __forceinline__ void centre(A (&value)[kSize]) const {
    if constexpr (kLayer) {
      A means[kSize];
      if constexpr (kHeld) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) means[j] = mean[j];
      } else {
        load_shared_values(from, means);
      }
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] -= means[j];
    }
  }
};

/// A thread's pack of x as x - mean, and of dy as the gradient of the affine norm.
template <class T, class Problem, class Statistics, class A = Accumulator<T>>
__device__ __forceinline__ void load_gradients(const Problem& p, const TileUnit& unit, SharedAddress x_slot,
                                               SharedAddress dy_slot, const Statistics& statistics, A weight, A bias,
                                               A (&centred)[kPackSize<T>], A (&gradient)[kPackSize<T>]) {
  constexpr int kSize = kPackSize<T>;
  if constexpr (std::is_same_v<Problem, RowBackward>) {
    unpack(load_shared_pack<T>(dy_slot), gradient);
  } else {
    A rstd[kSize];
    Values<A, kSize> h;
    unpack(load_shared_pack<T>(x_slot), h.value);
    statistics.centre(h.value);
    statistics.get_rstd(rstd);
#pragma unroll
    for (int j = 0; j < kSize; ++j) h.value[j] = affine(h.value[j] * rstd[j], weight, bias);
    h = activation_slopes<T>(h, p);  // takes the registers: what was read is read again
    unpack(load_shared_pack<T>(dy_slot), gradient);
#pragma unroll
    for (int j = 0; j < kSize; ++j) gradient[j] *= h.value[j];
  }
  unpack(load_shared_pack<T>(x_slot), centred);
  statistics.centre(centred);
}

/// The second pass: dx of the thread's columns. As soon as a pack of x and dy has been used, what the next tile has
/// in its place is on its way. sum: g * xhat and, of a layer norm, g; `sums` is where they can be read again.
template <class T, NormKind kKind, int kStep, class Problem, class Statistics, int kSums, class A = Accumulator<T>>
__device__ __forceinline__ void write_gradients(const Problem& p, const Scalars<A>& scalars, const TileSplit& split,
                                                const TileUnit& unit, const TileUnit& next, const TileThread& thread,
                                                SharedAddress x_tile, SharedAddress dy_tile, const Statistics& rows,
                                                const TileParameters<A>& parameters, A (&sum)[kSums][kPackSize<T>],
                                                const A* sums) {
  constexpr int kSize = kPackSize<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr bool kActivated = !std::is_same_v<Problem, RowBackward>;
  const RowGeometry& g = p.geometry;
  A rstd[kSize], c1[kSize], c2[kSize];  // c2 of x - mean instead of xhat
  const auto find_factors = [&] {
    rows.get_rstd(rstd);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      c2[j] = sum[0][j] * scalars.reciprocal_cols * rstd[j] * rstd[j];
      c1[j] = kLayer ? sum[kLayer][j] * scalars.reciprocal_cols * rstd[j] : A(0);
    }
  };
  if constexpr (!kActivated) find_factors();
  const T* const addends = unit.in<const T>(p.dresidual, g);
  T* const dx = unit.in<T>(p.dx, g);
  const T* const next_x = next.in<const T>(p.x, g);
  const T* const next_dy = next.in<const T>(p.dy, g);
#pragma unroll kTileUnroll < kActivated>
  for (int column = thread.group; column < static_cast<int>(g.cols); column += thread.groups) {
    const TileColumn at(split, column);
    Pack<T> addend{};
    if (!kActivated && p.dresidual.data != nullptr)
      addend = load_unit<T, kStep>(addends + at.in(p.dresidual), unit.rows);
    const A weight = parameters.weights[column];
    const SharedAddress x_slot = thread.slot(x_tile, column), dy_slot = thread.slot(dy_tile, column);
    A centred[kSize], gradient[kSize];
    load_gradients<T>(p, unit, x_slot, dy_slot, rows, weight, parameters.biases[column], centred, gradient);
    if constexpr (kActivated) {  // again: the call takes the registers
      load_shared_values(sums, sum[0]);
      if constexpr (kLayer) load_shared_values(sums + split.lanes * kSize, sum[kLayer]);
      find_factors();
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      gradient[j] = input_gradient(gradient[j] * weight, centred[j], rstd[j], c1[j], c2[j]);
    }
    const TileColumn again(split, column);  // a call takes the registers
    if (p.dresidual.data != nullptr) {
      if (kActivated) addend = load_unit<T, kStep>(addends + again.in(p.dresidual), unit.rows);
      A value[kSize];
      unpack(addend, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] += value[j];
    }
    store_unit<T, kStep>(dx + again.in(p.dx), to_pack<T>(gradient), unit.rows, thread, x_slot);
    if constexpr (kTileCopies<kStep>) {
      refill_column<T, kStep>(x_slot, next_x + again.in(p.x), next.rows);
      refill_column<T, kStep>(dy_slot, next_dy + again.in(p.dy), next.rows);
    }
  }
}

template <class T, NormKind kKind, bool kActivated, int kStep>
__global__ void __launch_bounds__(kTileBackwardThreads, kActivated ? 1 : 2)
    row_backward_tile_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                             const Scalars<Accumulator<T>> scalars, const __grid_constant__ TileSplit split,
                             void* workspace) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  extern __shared__ __align__(128) char shared[];
  const RowGeometry& g = p.geometry;
  const int cols = static_cast<int>(g.cols);
  const TileThread thread(split.lanes);
  const bool gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const unsigned step = gridDim.x * split.lanes;  // units from one of the block's tiles to the next
  const SharedAddress x_tile = shared_address(shared);
  const SharedAddress dy_tile = x_tile + static_cast<unsigned>(cols * split.lanes) * kPackBytes;
  const int tile_rows = split.lanes * kSize;
  A* const memory = reinterpret_cast<A*>(shared + 2 * static_cast<size_t>(cols) * split.lanes * kPackBytes);
  A* const statistics = memory + (blockDim.x / kWarp + 1) * 2 * tile_rows;  // of this tile and of the next
  const TileSums<A> parameter_sums(statistics + 4 * tile_rows, split, thread);
  const TileParameters<A> parameters(parameter_sums.end(cols), cols);
  parameter_sums.clear(cols);
  // The first group brings in the statistics for all.
  const auto fetch_statistics = [&](const TileUnit& unit, int parity) {
    if (thread.group != 0) return;
    A* const to = statistics + parity * 2 * tile_rows + thread.lane * kSize;
    unit.fetch_statistic<kSize>(p.mean, g, to);  // none for rms: zeros
    unit.fetch_statistic<kSize>(p.rstd, g, to + tile_rows);
  };
  start_after_previous();
  parameters.template fill<T>(p, scalars, split);

  unsigned first = blockIdx.x * split.lanes;  // unit of the tile
  TileUnit next(split, first + thread.lane, kSize);
  fetch_statistics(next, 0);
  fetch_unit<T, kStep>(p.x, g, split, next, thread, x_tile);
  fetch_unit<T, kStep>(p.dy, g, split, next, thread, dy_tile);
  commit_copies();
  int parity = 0;
  for (; first < split.units; first += step, parity ^= 1) {  // the same for all threads
    const TileUnit unit = next;
    next = TileUnit(split, first + step + thread.lane, kSize);
    wait_copies<0>();
    __syncthreads();  // the statistics and parameters are there
    const TileStatistics<T, kKind, !kActivated> rows(statistics + parity * 2 * tile_rows + thread.lane * kSize,
                                                     tile_rows);

    A sum[kLayer ? 2 : 1][kSize] = {};
    const auto reduce = [&](int column, auto valid) {
      A dw = A(0), db = A(0);
      if (valid) {
        const A weight = parameters.weights[column];
        A centred[kSize], gradient[kSize], rstd[kSize];
        load_gradients<T>(p, unit, thread.slot(x_tile, column), thread.slot(dy_tile, column), rows, weight,
                          parameters.biases[column], centred, gradient);
        rows.get_rstd(rstd);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const A product = gradient[j] * (centred[j] * rstd[j]);
          dw += product;
          db += gradient[j];
          sum[0][j] += product * weight;
          if constexpr (kLayer) sum[kLayer][j] += gradient[j] * weight;
        }
      }
      if (gradients) parameter_sums.add(column, valid, dw, db);
    };
    const int rounds = cols / thread.groups;
#pragma unroll kTileUnroll < kActivated>
    for (int round = 0; round < rounds; ++round) reduce(thread.group + round * thread.groups, std::true_type());
    const int last = thread.group + rounds * thread.groups;  // of some groups
    if (rounds * thread.groups < cols) reduce(last, last < cols);
    const A* const sums = tile_sum(sum, thread, memory);
    fetch_statistics(next, parity ^ 1);  // read last before the barriers of this tile's sums
    write_gradients<T, kKind, kStep>(p, scalars, split, unit, next, thread, x_tile, dy_tile, rows, parameters, sum,
                                     sums);
    if constexpr (!kTileCopies<kStep>) {
      fetch_unit<T, kStep>(p.x, g, split, next, thread, x_tile);
      fetch_unit<T, kStep>(p.dy, g, split, next, thread, dy_tile);
    }
    commit_copies();
  }
  wait_copies<0>();  // of no bytes
  __syncthreads();
  const Partials<A> partials(p, workspace, gridDim.x, blockIdx.x);
  for (int column = threadIdx.x; column < cols; column += blockDim.x) {
    const ColumnSums<A> total = parameter_sums.total(column);
    if (partials.dweight != nullptr) partials.dweight[column] = total.dweight;
    if (partials.dbias != nullptr) partials.dbias[column] = total.dbias;
  }
}

}  // namespace normact::cuda
