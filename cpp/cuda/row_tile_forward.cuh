// SPDX-License-Identifier: Apache-2.0
// Row norm forward for rows of any length and alignment that fit on chip: variant tile.
//
// Work     a block owns blockDim / lanes consecutive rows; `lanes` threads share a row, thread l owning the columns
//          l, l + lanes, l + 2 * lanes ... (kElements of them at most), held in registers.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once, all in aligned
//          16-byte pieces but for the ragged ends of the tile (span.cuh).
// Plan     columns are contiguous; cols <= lanes * kElements.
// Barriers after the tile has come in, after it has been read, before it goes out; and those of the row sums.
#pragma once

#include "core/plan.h"
#include "cuda/reduce.cuh"
#include "cuda/span.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// Sum of each value over the `lanes` threads of a row: part of a warp, or whole warps of one group.
template <int kCount, class A>
__device__ __forceinline__ void tile_sum(A (&value)[kCount], A* scratch, int lanes) {
  if (lanes <= kWarp) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = lane_sum(value[i], lanes);
  } else {
    const int group = threadIdx.x / lanes;
    const int warps = lanes / kWarp;
    group_sum(value, scratch + group * kCount * warps, threadIdx.x % lanes / kWarp, warps, 1 + group);
  }
}

template <class T, NormKind kKind, int kElements>
__global__ void __launch_bounds__(1024) row_tile_forward_kernel(const __grid_constant__ RowForward p, const int lanes) {
  using A = Accumulator<T>;
  extern __shared__ __align__(16) char shared[];
  __shared__ A scratch[2 * kMaxWarps];
  const int rows_per_block = blockDim.x / lanes;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t rows_left = p.geometry.rows - first_row;
  const int rows = rows_left < rows_per_block ? static_cast<int>(rows_left) : rows_per_block;
  const int cols = static_cast<int>(p.geometry.cols);
  const int local_row = threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  const bool active = local_row < rows;
  const bool has_residual = p.residual.data != nullptr;
  char* second = shared + rows_per_block * TileSpan<T>::pitch(cols);

  const TileSpan<T> x_tile(p.x, p.geometry, shared, first_row, rows);
  const TileSpan<T> residual_tile(p.residual, p.geometry, second, first_row, rows);
  x_tile.copy_in(threadIdx.x, blockDim.x);
  if (has_residual) residual_tile.copy_in(threadIdx.x, blockDim.x);
  commit_copies();
  wait_copies<0>();
  __syncthreads();

  const auto valid = [&](int e) { return active && lane + e * lanes < cols; };
  A x[kElements];
  {
    const T* from = x_tile.shared_row(local_row);
    const T* residual = has_residual ? residual_tile.shared_row(local_row) : nullptr;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      x[e] = A(0);
      if (valid(e)) {
        x[e] = convert<A>(from[lane + e * lanes]);
        if (has_residual) x[e] = convert<A>(convert<T>(x[e] + convert<A>(residual[lane + e * lanes])));
      }
    }
  }
  __syncthreads();  // the tile has been read: its memory now holds the outputs

  A mean[1] = {A(0)};
  if constexpr (kKind == NormKind::layer) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) mean[0] += x[e];
    tile_sum(mean, scratch, lanes);
    mean[0] /= A(cols);
  }
  A squares[1] = {A(0)};
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const A centred = valid(e) ? x[e] - mean[0] : A(0);
    squares[0] += centred * centred;
  }
  tile_sum(squares, scratch + kMaxWarps, lanes);
  const A rstd = reciprocal_std(squares[0], A(cols), A(p.eps), [](A value) { return reciprocal_sqrt(value); });
  if (active && lane == 0) {
    if (p.mean.data != nullptr) *row_pointer<A>(p.mean, p.geometry, first_row + local_row) = mean[0];
    if (p.rstd.data != nullptr) *row_pointer<A>(p.rstd, p.geometry, first_row + local_row) = rstd;
  }

  const TileSpan<T> y_tile(p.y, p.geometry, shared, first_row, rows);
  const TileSpan<T> sum_tile(p.residual_out, p.geometry, second, first_row, rows);
  const Parameter<T> weight(p.weight), bias(p.bias);
  T* to = y_tile.shared_row(local_row);
  T* sum = has_residual ? sum_tile.shared_row(local_row) : nullptr;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int column = lane + e * lanes;
    if (!valid(e)) continue;
    const A w = weight.data != nullptr ? effective_weight(weight.at(column), A(p.weight_offset)) : A(1);
    const A b = bias.data != nullptr ? bias.at(column) : A(0);
    to[column] = convert<T>(affine(normalized(x[e], mean[0], rstd), w, b));
    if (has_residual) sum[column] = convert<T>(x[e]);
  }
  __syncthreads();
  y_tile.copy_out(threadIdx.x, blockDim.x);
  if (has_residual) sum_tile.copy_out(threadIdx.x, blockDim.x);
}

}  // namespace normact::cuda
