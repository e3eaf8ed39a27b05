// SPDX-License-Identifier: Apache-2.0
// Row norm backward of rows that lie side by side in memory: variant tile (row_tile.cuh).
//
// Work     a persistent grid; a block works on one tile of neighbouring rows after the other, and several blocks share
//          a multiprocessor. A thread sees the same columns of every tile.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; a block leaves a row of parameter sums
//          in the workspace, and parameter_sum.cuh adds these up in a fixed order.
// Pipeline as soon as a thread has packs of dx, it starts copying what comes next to the places of their x and dy. The
//          first half of the next tile is waited for before the second (each_column).
// Barriers four a tile. A thread's part of the tile, but see store_unit, and its columns' parameter sums are its own.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_factors.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// Columns that a thread has at a time: what it reads of all of them comes before the first write to shared memory,
/// which no read may overtake. Calls to an activation leave no registers for two.
template <class Problem>
constexpr int kTileAtOnce = std::is_same_v<Problem, RowBackward> ? 2 : 1;

/// run(column, std::integral_constant<int, n>) for n at a time of a thread's columns, then part_done(0 or 1). Either
/// part of the columns comes in as a group of copies of its own, so that the next tile can be summed up while its
/// second part is on its way.
template <int kAtOnce, class Run, class PartDone>
__device__ __forceinline__ void each_column(int cols, const TileThread& thread, Run run, PartDone part_done) {
  int column = thread.group;
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    const int end = part == 0 ? cols / thread.groups / 2 * thread.groups : cols;
    for (; column + (kAtOnce - 1) * thread.groups < end; column += kAtOnce * thread.groups) {
      run(column, std::integral_constant<int, kAtOnce>());
    }
    if constexpr (kAtOnce > 1) {
      for (; column < end; column += thread.groups) run(column, std::integral_constant<int, 1>());
    }
    part_done(part);
  }
}

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
  /// More for some columns, `apart` from each other; all lanes of a warp. valid: those that have them.
  template <int kCount>
  __device__ __forceinline__ void add(int column, int apart, bool valid, ColumnSums<A> (&more)[kCount]) const {
    for (int offset = 1; offset < folded; offset *= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        more[i].dweight += __shfl_xor_sync(kFullWarp, more[i].dweight, offset);
        more[i].dbias += __shfl_xor_sync(kFullWarp, more[i].dbias, offset);
      }
    }
    if (!valid || !leads) return;
    ColumnSums<A>* const of = at + column * lanes + own;
    ColumnSums<A> before[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) before[i] = of[i * apart * lanes];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      of[i * apart * lanes] = {before[i].dweight + more[i].dweight, before[i].dbias + more[i].dbias};
    }
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

/// What a thread has of a column.
template <class T>
struct TileGradient {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  Pack<T> x, dy;
  A weight;

  __device__ __forceinline__ void load(SharedAddress x_slot, SharedAddress dy_slot, A column_weight) {
    x = load_shared_pack<T>(x_slot);
    dy = load_shared_pack<T>(dy_slot);
    weight = column_weight;
  }
  /// x - mean (or x, if not kCentred), and dy as the gradient of the affine norm. After a call to an activation, which
  /// takes the registers, what was read is read again.
  template <bool kCentred, class Problem, class Statistics>
  __device__ __forceinline__ void unpack_into(A (&value)[kSize], A (&gradient)[kSize], const Problem& p,
                                              SharedAddress x_slot, SharedAddress dy_slot, const Statistics& statistics,
                                              A bias) {
    if constexpr (!std::is_same_v<Problem, RowBackward>) {
      A rstd[kSize];
      Values<A, kSize> h;
      unpack(x, h.value);
      statistics.centre(h.value);
      statistics.get_rstd(rstd);
#pragma unroll
      for (int j = 0; j < kSize; ++j) h.value[j] = affine(h.value[j] * rstd[j], weight, bias);
      h = activation_slopes<T>(h, p);
      unpack(load_shared_pack<T>(dy_slot), gradient);
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] *= h.value[j];
      x = load_shared_pack<T>(x_slot);
    } else {
      unpack(dy, gradient);
    }
    unpack(x, value);
    if constexpr (kCentred) statistics.centre(value);
  }
};

/// The first pass over kCount columns, `groups` apart from each other: their parameter sums, and sum: g * xhat and, of
/// a layer norm, g. valid: whether the thread has them.
template <class T, int kCount, class Problem, class Statistics, int kSums, class A = Accumulator<T>>
__device__ __forceinline__ void reduce_columns(int column, bool valid, const Problem& p, const TileThread& thread,
                                               SharedAddress x_tile, SharedAddress dy_tile, const Statistics& rows,
                                               const TileParameters<A>& parameters, const TileSums<A>& parameter_sums,
                                               bool gradients, A (&sum)[kSums][kPackSize<T>]) {
  constexpr int kSize = kPackSize<T>;
  ColumnSums<A> more[kCount] = {};
  if (valid) {
    TileGradient<T> of[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = column + i * thread.groups;
      of[i].load(thread.slot(x_tile, at), thread.slot(dy_tile, at), parameters.weights[at]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = column + i * thread.groups;
      A centred[kSize], gradient[kSize], rstd[kSize];
      of[i].template unpack_into<true>(centred, gradient, p, thread.slot(x_tile, at), thread.slot(dy_tile, at), rows,
                                       parameters.biases[at]);
      rows.get_rstd(rstd);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const A product = gradient[j] * (centred[j] * rstd[j]);
        more[i].dweight += product;
        more[i].dbias += gradient[j];
        sum[0][j] += product * of[i].weight;
        if constexpr (kSums > 1) sum[kSums - 1][j] += gradient[j] * of[i].weight;
      }
    }
  }
  if (gradients) parameter_sums.add(column, thread.groups, valid, more);
}

/// The second pass: dx of the thread's columns. As soon as packs of x and dy have been used, what the next tile has in
/// their place is on its way. sum: as from reduce_columns, of all groups; `sums` is where they can be read again.
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
  RowFactors<T> factors;
  if constexpr (!kActivated) factors.find(rows, scalars.reciprocal_cols, sum);
  with_flat(split, [&](auto flat) {
    TileColumns<flat> columns(split, thread), reads(split, thread);
    TilePath addends(unit.in<const T>(p.dresidual, g), p.dresidual, reads);
    TilePath dx(unit.in<T>(p.dx, g), p.dx, columns);
    TilePath next_x(next.in<const T>(p.x, g), p.x, columns);
    TilePath next_dy(next.in<const T>(p.dy, g), p.dy, columns);
    const auto write = [&](int column, auto count) {
      constexpr int kCount = count;
      TileGradient<T> of[kCount];
      Pack<T> addend[kCount] = {};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int at = column + i * thread.groups;
        of[i].load(thread.slot(x_tile, at), thread.slot(dy_tile, at), parameters.weights[at]);
        if (p.dresidual.data != nullptr) {
          addend[i] = load_unit<T, kStep>(addends.at, unit.rows);
          reads.advance(addends);
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int at = column + i * thread.groups;
        const SharedAddress x_slot = thread.slot(x_tile, at), dy_slot = thread.slot(dy_tile, at);
        A value[kSize], gradient[kSize], more[kSize];
        of[i].template unpack_into<RowFactors<T>::kOfCentred>(value, gradient, p, x_slot, dy_slot, rows,
                                                              parameters.biases[at]);
        if constexpr (kActivated) {  // again: the call takes the registers
          load_shared_values(sums, sum[0]);
          if constexpr (kLayer) load_shared_values(sums + split.lanes * kSize, sum[kLayer]);
          factors.find(rows, scalars.reciprocal_cols, sum);
        }
        unpack(addend[i], more);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          gradient[j] =
              input_gradient(gradient[j] * of[i].weight, value[j], factors.rstd[j], factors.c1[j], factors.c2[j]);
          if (p.dresidual.data != nullptr) gradient[j] += more[j];
        }
        store_unit<T, kStep>(dx.at, to_pack<T>(gradient), unit.rows, thread, x_slot);
        if constexpr (kTileCopies<kStep>) {
          refill_columns<T, kStep>(x_slot, dy_slot, next_x.at, next_dy.at, next.rows);
        }
        columns.advance(dx, next_x, next_dy);
      }
    };
    each_column<kTileAtOnce<Problem>>(static_cast<int>(g.cols), thread, write, [](int) { commit_copies(); });
  });
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
  commit_copies();  // as if in two parts
  int parity = 0;
  for (; first < split.units; first += step, parity ^= 1) {  // the same for all threads
    const TileUnit unit = next;
    next = TileUnit(split, first + step + thread.lane, kSize);
    wait_copies<1>();
    __syncthreads();  // the statistics and parameters are there
    const TileStatistics<T, kKind, !kActivated> rows(statistics + parity * 2 * tile_rows + thread.lane * kSize,
                                                     tile_rows);

    A sum[kLayer ? 2 : 1][kSize] = {};
    const auto reduce = [&](int column, bool valid, auto count) {
      reduce_columns<T, count>(column, valid, p, thread, x_tile, dy_tile, rows, parameters, parameter_sums, gradients,
                               sum);
    };
    const int full = cols / thread.groups * thread.groups;
    each_column<kTileAtOnce<KernelProblem<RowBackward, T, kActivated>>>(
        full, thread, [&](int column, auto count) { reduce(column, true, count); },
        [](int part) {
          if (part == 0) wait_copies<0>();
        });
    const int last = full + thread.group;  // of some groups
    if (full < cols) reduce(last, last < cols, std::integral_constant<int, 1>());
    const A* const sums = tile_sum(sum, thread, memory);
    fetch_statistics(next, parity ^ 1);  // read last before the barriers of this tile's sums
    write_gradients<T, kKind, kStep>(p, scalars, split, unit, next, thread, x_tile, dy_tile, rows, parameters, sum,
                                     sums);
    if constexpr (!kTileCopies<kStep>) {
      fetch_unit<T, kStep>(p.x, g, split, next, thread, x_tile);
      fetch_unit<T, kStep>(p.dy, g, split, next, thread, dy_tile);
    }
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
