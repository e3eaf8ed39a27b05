// SPDX-License-Identifier: Apache-2.0
// Row norm forward of rows that lie side by side in memory: variant tile (row_tile.cuh).
//
// Work     a block owns a tile of neighbouring rows with all their columns. Several small blocks share a
//          multiprocessor: while one computes, others have their tiles on the way.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers two a sum (layer: four, rms: two); a thread's part of the tile is its own, but see store_unit.
// Sums     two-pass, about the row's own mean; their order depends on the columns alone.
#pragma once

#include "cuda/row_tile.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// sum += s over the thread's columns, where s = x, or round(x + residual), which also goes to residual_out and
/// replaces x in shared memory.
template <class T, int kStep, class A = Accumulator<T>>
__device__ __forceinline__ void sum_columns(const RowForward& p, const TileSplit& split, const TileUnit& unit,
                                            const TileThread& thread, SharedAddress tile, A (&sum)[kPackSize<T>]) {
  constexpr int kSize = kPackSize<T>;
  constexpr int kAtOnce = 2;
  const RowGeometry& g = p.geometry;
  const int cols = static_cast<int>(g.cols);
  const bool residual = p.residual.data != nullptr;
  TileColumns<false> reads(split, thread), writes(split, thread);
  TilePath from(unit.in<const T>(p.residual, g), p.residual, reads);
  TilePath to(unit.in<T>(p.residual_out, g), p.residual_out, writes);
  for (int first = thread.group; first < cols; first += kAtOnce * thread.groups) {
    Pack<T> addend[kAtOnce];
    if (residual) {  // all reads before the first write, which the compiler may not overtake
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (first + u * thread.groups < cols) addend[u] = load_unit<T, kStep>(from.at, unit.rows);
        reads.advance(from);
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int column = first + u * thread.groups;
      if (column >= cols) continue;
      A value[kSize];
      unpack(load_shared_pack<T>(thread.slot(tile, column)), value);
      if (residual) {
        A more[kSize];
        unpack(addend[u], more);
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += more[j];
        const Pack<T> rounded = to_pack<T>(value);
        if constexpr (kStep != sizeof(T)) store_shared_pack(thread.slot(tile, column), rounded);
        store_unit<T, kStep>(to.at, rounded, unit.rows, thread, thread.slot(tile, column));
        writes.advance(to);
        unpack(rounded, value);
      }
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum[j] += value[j];
    }
  }
}

template <class T, NormKind kKind, bool kActivated, int kStep>
__global__ void __launch_bounds__(kTileForwardThreads, 2)
    row_forward_tile_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                            const Scalars<Accumulator<T>> scalars, const __grid_constant__ TileSplit split) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr int kUnroll = kActivated || kStep < kPackBytes ? 1 : 2;
  constexpr bool kLayer = kKind == NormKind::layer;
  extern __shared__ __align__(128) char shared[];
  const RowGeometry& g = p.geometry;
  const int cols = static_cast<int>(g.cols);
  const TileThread thread(split.lanes);
  const TileUnit unit(split, blockIdx.x * split.lanes + thread.lane, kSize);
  const SharedAddress tile = shared_address(shared);
  A* const memory = reinterpret_cast<A*>(shared + static_cast<size_t>(cols) * split.lanes * kPackBytes);
  const TileParameters<A> parameters(memory + (blockDim.x / kWarp + 1) * split.lanes * kSize, cols);
  start_after_previous();

  fetch_unit<T, kStep>(p.x, g, split, unit, thread, tile);
  commit_copies();
  parameters.template fill<T>(p, scalars, split);  // there behind the barriers of the first sum
  wait_copies<0>();
  A mean[1][kSize] = {}, square[1][kSize] = {};
  if (kLayer || p.residual.data != nullptr) sum_columns<T, kStep>(p, split, unit, thread, tile, mean[0]);
  if constexpr (kLayer) tile_sum(mean, thread, memory);
#pragma unroll
  for (int j = 0; j < kSize; ++j) mean[0][j] = kLayer ? mean[0][j] * scalars.reciprocal_cols : A(0);
#pragma unroll 2
  for (int column = thread.group; column < cols; column += thread.groups) {
    A value[kSize];
    unpack(load_shared_pack<T>(thread.slot(tile, column)), value);
    if constexpr (kLayer) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] -= mean[0][j];
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) square[0][j] += value[j] * value[j];
  }
  tile_sum(square, thread, memory);
  A rstd[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    rstd[j] =
        reciprocal_std(square[0][j] * scalars.reciprocal_cols, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
  }
  if (thread.group == 0) {
    if (p.mean.data != nullptr) unit.store_statistic(p.mean, g, mean[0]);
    if (p.rstd.data != nullptr) unit.store_statistic(p.rstd, g, rstd);
  }

  with_flat(split, [&](auto flat) {
    TileColumns<flat> columns(split, thread);
    TilePath y(unit.in<T>(p.y, g), p.y, columns);
#pragma unroll kUnroll
    for (int column = thread.group; column < cols; column += thread.groups) {
      const A weight = parameters.weights[column], bias = parameters.biases[column];
      A value[kSize];
      unpack(load_shared_pack<T>(thread.slot(tile, column)), value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean[0][j], rstd[j]), weight, bias);
      activate<T>(value, p);
      store_unit<T, kStep>(y.at, to_pack<T>(value), unit.rows, thread, thread.slot(tile, column));
      columns.advance(y);
    }
  });
}

}  // namespace normact::cuda
