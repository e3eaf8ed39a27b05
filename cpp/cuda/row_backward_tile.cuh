// SPDX-License-Identifier: Apache-2.0
// Row norm backward of rows that lie side by side in memory: variant tile (row_tile.cuh).
//
// Work     a persistent grid; a block works on one tile of neighbouring rows after the other, and several blocks share
//          a multiprocessor. A thread sees the same columns of every tile.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; a block leaves a row of parameter sums
//          in the workspace, and parameter_sum.cuh adds these up in a fixed order.
// Pipeline as soon as a thread has a pack of dx, it starts copying what comes next to the place of that pack's x and
// dy. Barriers four a tile. A thread's part of the tile, and its columns' parameter sums, are its own.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// Sums over the lanes of a tile: every lane gets them.
template <class A>
__device__ __forceinline__ A sum_over_lanes(A value, int lanes) {
  for (int offset = 1; offset < lanes; offset *= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// The statistics of a thread's rows. kHeld: in registers; but for a call to an activation, which leaves few, they are
/// read from shared memory wherever they are needed, and so is the mean in the second pass, which needs most.
template <class T, bool kHeld>
struct TileStatistics {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  const A* from;  // means (zeros for rms), then as many rstd
  int rows;       // of a tile
  A mean[kHeld ? kSize : 1];
  A rstd[kHeld ? kSize : 1];

  __device__ __forceinline__ TileStatistics(const A* statistics, int tile_rows) : from(statistics), rows(tile_rows) {
    if constexpr (kHeld) {
      load_shared_values(from, mean);
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

  /// x to xhat.
  template <bool kFirstPass>
  __device__ __forceinline__ void normalize(A (&value)[kSize]) const {
    A means[kSize], rstds[kSize];
    get_rstd(rstds);
    if constexpr (kHeld && kFirstPass) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) means[j] = mean[j];
    } else {
      load_shared_values(from, means);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = normalized(value[j], means[j], rstds[j]);
  }
};

/// A thread's pack of x as xhat, and of dy as the gradient of the affine norm.
template <class T, bool kFirstPass, class Problem, class Statistics, class A = Accumulator<T>>
__device__ __forceinline__ void load_gradients(const Problem& p, const TileUnit& unit, SharedAddress x_slot,
                                               SharedAddress dy_slot, const TileColumn& column,
                                               const Statistics& statistics, A weight, A (&xhat)[kPackSize<T>],
                                               A (&gradient)[kPackSize<T>]) {
  constexpr int kSize = kPackSize<T>;
  if constexpr (std::is_same_v<Problem, RowBackward>) {
    unpack(own_pack<T>(unit, dy_slot), gradient);
  } else {
    const A bias = column_parameter<T>(p.bias, column, A(0), A(0));
    Values<A, kSize> h;
    unpack(own_pack<T>(unit, x_slot), h.value);
    statistics.template normalize<kFirstPass>(h.value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) h.value[j] = affine(h.value[j], weight, bias);
    h = activation_slopes<T>(h, p);  // takes the registers: what was read is read again
    unpack(own_pack<T>(unit, dy_slot), gradient);
#pragma unroll
    for (int j = 0; j < kSize; ++j) gradient[j] *= h.value[j];
  }
  unpack(own_pack<T>(unit, x_slot), xhat);
  statistics.template normalize<kFirstPass>(xhat);
}

/// The second pass: dx of the thread's columns. As soon as a pack of x and dy has been used, what the next tile has
/// in its place is on its way. sum: g * xhat and, of a layer norm, g; `sums` is where they can be read again.
template <class T, NormKind kKind, bool kPacks, class Problem, class Statistics, int kSums, class A = Accumulator<T>>
__device__ __forceinline__ void write_gradients(const Problem& p, const Scalars<A>& scalars, const TileSplit& split,
                                                const TileUnit& unit, const TileUnit& next, const TileThread& thread,
                                                SharedAddress x_tile, SharedAddress dy_tile, const Statistics& rows,
                                                A (&sum)[kSums][kPackSize<T>], const A* sums) {
  constexpr int kSize = kPackSize<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr bool kActivated = !std::is_same_v<Problem, RowBackward>;
  const RowGeometry& g = p.geometry;
  A rstd[kSize], c1[kSize], c2[kSize];
  const auto find_factors = [&] {
    rows.get_rstd(rstd);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      c2[j] = sum[0][j] * scalars.reciprocal_cols * rstd[j];
      c1[j] = kLayer ? sum[kLayer][j] * scalars.reciprocal_cols * rstd[j] : A(0);
    }
  };
  if constexpr (!kActivated) find_factors();
  const T* const addends = unit.in<const T>(p.dresidual, g);
  T* const dx = unit.in<T>(p.dx, g);
  const T* const next_x = next.in<const T>(p.x, g);
  const T* const next_dy = next.in<const T>(p.dy, g);
#pragma unroll 1
  for (int column = thread.group; column < static_cast<int>(g.cols); column += thread.groups) {
    const TileColumn at(split, column);
    Pack<T> addend{};
    if (!kActivated && p.dresidual.data != nullptr)
      addend = load_unit<T, kPacks>(addends + at.in(p.dresidual), unit.rows);
    const A weight = column_parameter<T>(p.weight, at, A(1), scalars.weight_offset);
    const SharedAddress x_slot = thread.slot(x_tile, column), dy_slot = thread.slot(dy_tile, column);
    A xhat[kSize], gradient[kSize];
    load_gradients<T, false>(p, unit, x_slot, dy_slot, at, rows, weight, xhat, gradient);
    if constexpr (kActivated) {  // again: the call takes the registers
      load_shared_values(sums, sum[0]);
      if constexpr (kLayer) load_shared_values(sums + split.lanes * kSize, sum[kLayer]);
      find_factors();
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      gradient[j] = input_gradient(gradient[j] * weight, xhat[j], rstd[j], c1[j], c2[j]);
    }
    const TileColumn again(split, column);
    if (p.dresidual.data != nullptr) {
      if (kActivated) addend = load_unit<T, kPacks>(addends + again.in(p.dresidual), unit.rows);
      A value[kSize];
      unpack(addend, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] += value[j];
    }
    store_unit<T, kPacks>(dx + again.in(p.dx), to_pack<T>(gradient), unit.rows);
    if constexpr (kPacks) {
      if (next.rows > 0) {
        copy_async(x_slot, next_x + again.in(p.x));
        copy_async(dy_slot, next_dy + again.in(p.dy));
      }
    }
  }
}

template <class T, NormKind kKind, bool kActivated, bool kPacks>
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
  // Parameter sums, at the end, where nothing needs alignment any more. Lane 0 of a group has those of its columns.
  A* const dweight = statistics + 4 * tile_rows;
  A* const dbias = dweight + cols;
  if (thread.lane == 0) {
    for (int column = thread.group; column < cols; column += thread.groups) dweight[column] = dbias[column] = A(0);
  }
  // The first group brings in the statistics for all.
  const auto fetch_statistics = [&](const TileUnit& unit, int parity) {
    if (thread.group != 0) return;
    A* const to = statistics + parity * 2 * tile_rows + thread.lane * kSize;
    unit.fetch_statistic<kSize>(p.mean, g, to);  // none for rms: zeros
    unit.fetch_statistic<kSize>(p.rstd, g, to + tile_rows);
  };
  start_after_previous();

  unsigned first = blockIdx.x * split.lanes;  // unit of the tile
  TileUnit next(split, first + thread.lane, kSize);
  fetch_statistics(next, 0);
  fetch_unit<T, kPacks>(p.x, g, split, next, thread, x_tile);
  fetch_unit<T, kPacks>(p.dy, g, split, next, thread, dy_tile);
  commit_copies();
  int parity = 0;
  for (; first < split.units; first += step, parity ^= 1) {  // the same for all threads
    const TileUnit unit = next;
    next = TileUnit(split, first + step + thread.lane, kSize);
    wait_copies<0>();
    __syncthreads();  // the statistics are there
    const TileStatistics<T, !kActivated> rows(statistics + parity * 2 * tile_rows + thread.lane * kSize, tile_rows);

    A sum[kLayer ? 2 : 1][kSize] = {};
    // A warp's shuffles need all of its lanes, also those of a group that has a column less.
    const int rounds = (cols + thread.groups - 1) / thread.groups;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const int column = thread.group + round * thread.groups;
      const bool valid = column < cols;
      A dw = A(0), db = A(0);
      if (valid) {
        const TileColumn at(split, column);
        const A weight = column_parameter<T>(p.weight, at, A(1), scalars.weight_offset);
        A xhat[kSize], gradient[kSize];
        load_gradients<T, true>(p, unit, thread.slot(x_tile, column), thread.slot(dy_tile, column), at, rows, weight,
                                xhat, gradient);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const A product = gradient[j] * xhat[j];
          dw += product;
          db += gradient[j];
          sum[0][j] += product * weight;
          if constexpr (kLayer) sum[kLayer][j] += gradient[j] * weight;
        }
      }
      if (gradients) {
        dw = sum_over_lanes(dw, thread.lanes);
        db = sum_over_lanes(db, thread.lanes);
        if (valid && thread.lane == 0) {
          dweight[column] += dw;
          dbias[column] += db;
        }
      }
    }
    const A* const sums = tile_sum(sum, thread, memory);
    fetch_statistics(next, parity ^ 1);  // read last before the barriers of this tile's sums
    write_gradients<T, kKind, kPacks>(p, scalars, split, unit, next, thread, x_tile, dy_tile, rows, sum, sums);
    if constexpr (!kPacks) {
      fetch_unit<T, false>(p.x, g, split, next, thread, x_tile);
      fetch_unit<T, false>(p.dy, g, split, next, thread, dy_tile);
    }
    commit_copies();
  }
  if (thread.lane != 0) return;
  const Partials<A> partials(p, workspace, gridDim.x, blockIdx.x);
  for (int column = thread.group; column < cols; column += thread.groups) {
    if (partials.dweight != nullptr) partials.dweight[column] = dweight[column];
    if (partials.dbias != nullptr) partials.dbias[column] = dbias[column];
  }
}

}  // namespace normact::cuda
