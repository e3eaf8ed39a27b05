// SPDX-License-Identifier: Apache-2.0
// Row norm backward for rows of any length and alignment that fit on chip: variant tile.
//
// Work     a persistent grid; a block takes tiles of blockDim / lanes consecutive rows in turn. `lanes` threads share a
//          row, thread l owning the columns l, l + lanes ... (kTileElements at most) of every row it sees, so that
//          dweight and dbias add up in its registers.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once, in aligned 16-byte pieces but for the
//          ragged ends of a tile (span.cuh); one row of partial parameter sums a block.
// Pipeline the next tile is on its way while a tile is worked on.
// Plan     columns are contiguous; cols <= lanes * kTileElements.
// Barriers three a tile, and those of the row sums.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_tile_forward.cuh"

namespace normact::cuda {

constexpr int kTileElements = 16;
constexpr int kTileBackwardThreads = 512;

template <class T, NormKind kKind>
__global__ void __launch_bounds__(kTileBackwardThreads, 1)
    row_tile_backward_kernel(const __grid_constant__ RowBackward p, const int lanes, void* workspace) {
  using A = Accumulator<T>;
  extern __shared__ __align__(16) char shared[];
  __shared__ A scratch[2 * kMaxWarps];
  const RowGeometry& g = p.geometry;
  const int rows_per_tile = blockDim.x / lanes;
  const int cols = static_cast<int>(g.cols);
  const int local_row = threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  const bool has_weight = p.weight.data != nullptr;
  const bool has_dresidual = p.dresidual.data != nullptr;
  const int region = rows_per_tile * TileSpan<T>::pitch(cols);
  const int stage_bytes = region * (has_dresidual ? 3 : 2);
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows_per_tile;
  const auto rows_of = [&](int64_t row) {
    const int64_t left = g.rows - row;
    return left < rows_per_tile ? static_cast<int>(left) : rows_per_tile;
  };
  const auto fetch = [&](int64_t row, int stage) {
    char* memory = shared + stage * stage_bytes;
    if (row < g.rows) {
      TileSpan<T>(p.x, g, memory, row, rows_of(row)).copy_in(threadIdx.x, blockDim.x);
      TileSpan<T>(p.dy, g, memory + region, row, rows_of(row)).copy_in(threadIdx.x, blockDim.x);
      if (has_dresidual) {
        TileSpan<T>(p.dresidual, g, memory + 2 * region, row, rows_of(row)).copy_in(threadIdx.x, blockDim.x);
      }
    }
    commit_copies();
  };

  A dweight[kTileElements] = {};
  A dbias[kTileElements] = {};
  const Parameter<T> weight(p.weight);
  const auto weight_at = [&](int column) {
    return has_weight ? effective_weight(weight.at(column), A(p.weight_offset)) : A(1);
  };
  int stage = 0;
  int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_per_tile;
  fetch(first_row, 0);
  for (; first_row < g.rows; first_row += step, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // the tile is there, and the last one has gone out
    fetch(first_row + step, stage ^ 1);
    const int rows = rows_of(first_row);
    char* memory = shared + stage * stage_bytes;
    const bool active = local_row < rows;
    const auto valid = [&](int e) { return active && lane + e * lanes < cols; };
    A mean = A(0), rstd = A(0);
    if (active) {
      if constexpr (kKind == NormKind::layer) mean = *row_pointer<const A>(p.mean, g, first_row + local_row);
      rstd = *row_pointer<const A>(p.rstd, g, first_row + local_row);
    }
    const T* x = TileSpan<T>(p.x, g, memory, first_row, rows).shared_row(local_row);
    const T* dy = TileSpan<T>(p.dy, g, memory + region, first_row, rows).shared_row(local_row);
    A xhat[kTileElements], gradient[kTileElements];
    A sum[2] = {A(0), A(0)};
#pragma unroll
    for (int e = 0; e < kTileElements; ++e) {
      xhat[e] = A(0);
      gradient[e] = A(0);
      if (valid(e)) {
        const int column = lane + e * lanes;
        const A dy_value = convert<A>(dy[column]);
        xhat[e] = normalized(convert<A>(x[column]), mean, rstd);
        gradient[e] = dy_value * weight_at(column);
        dweight[e] += dy_value * xhat[e];
        dbias[e] += dy_value;
        if constexpr (kKind == NormKind::layer) sum[0] += gradient[e];
        sum[1] += gradient[e] * xhat[e];
      }
    }
    tile_sum(sum, scratch, lanes);
    const A c1 = sum[0] / A(cols);
    const A c2 = sum[1] / A(cols);
    __syncthreads();  // x has been read: its memory now holds dx
    const TileSpan<T> dx_tile(p.dx, g, memory, first_row, rows);
    T* dx = dx_tile.shared_row(local_row);
    const T* dresidual =
        has_dresidual ? TileSpan<T>(p.dresidual, g, memory + 2 * region, first_row, rows).shared_row(local_row) : nullptr;
#pragma unroll
    for (int e = 0; e < kTileElements; ++e) {
      if (!valid(e)) continue;
      const int column = lane + e * lanes;
      A value = input_gradient(gradient[e], xhat[e], rstd, c1, c2);
      if (has_dresidual) value += convert<A>(dresidual[column]);
      dx[column] = convert<T>(value);
    }
    __syncthreads();
    dx_tile.copy_out(threadIdx.x, blockDim.x);
  }
  wait_copies<0>();

  const auto store = [&](const A(&sum)[kTileElements]) {
    return [&](A* columns) {
#pragma unroll
      for (int e = 0; e < kTileElements; ++e) {
        if (lane + e * lanes < cols) columns[lane + e * lanes] = sum[e];
      }
    };
  };
  Partials<A> partials(p, workspace, gridDim.x, blockIdx.x);
  partials.write_block(shared, store(dweight), store(dbias), lanes, 0, cols);
}

}  // namespace normact::cuda
