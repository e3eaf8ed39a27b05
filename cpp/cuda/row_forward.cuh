// SPDX-License-Identifier: Apache-2.0
// Row norm forward with the row in registers: variants warp, block and cluster.
//
// Work     warp: `lanes` lanes own kRows rows at a time; block: a block owns a row; cluster: the blocks of a cluster
//          own one contiguous slice each of a row. A thread holds kVectors packs of each of its rows.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Plan     every pointer and row stride is a multiple of 16 bytes, columns are contiguous, packs cover the row exactly.
// Barriers block: one per row sum (layer: two sums, rms: one). cluster: the same, and one exchange of moments.
// Sums     two-pass: mean first, then centred squares, both from registers; slices merge by Chan's formula.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "math/normalize.h"

namespace normact::cuda {

enum class Scope { warp, block, cluster };

constexpr int kWarpScopeThreads = 128;
constexpr int kMaxRowThreads = 512;

/// How a row is divided; see RowPlan.
struct RowSplit {
  int lanes;            // threads that share a row in this block
  int packs;            // in a row
  int packs_per_block;  // in this block's slice of a row
};

/// Statistics of kRows rows at once from packs in registers. `valid(v)` tells whether pack v belongs to the row.
template <class T, NormKind kKind, Scope kScope, int kRows, int kVectors, class Valid>
__device__ __forceinline__ void row_statistics(const Pack<T> (&x)[kRows][kVectors], Valid valid, int64_t cols,
                                               const RowSplit& split, Accumulator<T> (&mean)[kRows],
                                               Accumulator<T> (&squares)[kRows]) {
  using A = Accumulator<T>;
  __shared__ A scratch[kScope == Scope::warp ? 1 : 2 * kMaxWarps];
  const auto sum_over_group = [&](A(&value)[kRows], A* slots) {
    if constexpr (kScope == Scope::warp) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) value[i] = lane_sum(value[i], split.lanes);
    } else {
      group_sum(value, slots, threadIdx.x / kWarp, blockDim.x / kWarp, 0);
    }
  };
  A count = A(cols);
  if constexpr (kScope == Scope::cluster) {
#if __CUDA_ARCH__ >= 900
    const int64_t first = static_cast<int64_t>(cg::this_cluster().block_rank()) * split.packs_per_block;
    const int64_t left = split.packs - first;
    count = A(kPackSize<T> * (left < 0 ? 0 : left < split.packs_per_block ? left : split.packs_per_block));
#endif
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) mean[i] = A(0);
  if constexpr (kKind == NormKind::layer) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {  // packs outside the row are zero
        A value[kPackSize<T>];
        unpack(x[i][v], value);
        A sum = value[0];
#pragma unroll
        for (int j = 1; j < kPackSize<T>; ++j) sum += value[j];
        mean[i] += sum;
      }
    }
    sum_over_group(mean, scratch);
#pragma unroll
    for (int i = 0; i < kRows; ++i) mean[i] = count > A(0) ? mean[i] / count : A(0);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    squares[i] = A(0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      A value[kPackSize<T>];
      unpack(x[i][v], value);
      A sum = A(0);
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) {
        const A centred = value[j] - mean[i];
        sum += centred * centred;
      }
      squares[i] += valid(v) ? sum : A(0);
    }
  }
  sum_over_group(squares, scratch + (kScope == Scope::warp ? 0 : kMaxWarps));
  if constexpr (kScope == Scope::cluster) {
#if __CUDA_ARCH__ >= 900
    __shared__ Moments<A> slices[kMaxCluster];
    cg::cluster_group cluster = cg::this_cluster();
    const int blocks = cluster.num_blocks();
    cluster.barrier_wait();  // every block has started (the kernel arrived at its head)
    cluster_publish(Moments<A>{mean[0], squares[0], count}, slices, blocks);
    cluster.sync();
    Moments<A> total = slices[0];
    for (int b = 1; b < blocks; ++b) {
      if constexpr (kKind == NormKind::layer) {
        total = merge(total, slices[b]);
      } else {
        total.m2 += slices[b].m2;
      }
    }
    mean[0] = total.mean;
    squares[0] = total.m2;
#endif
  }
}

template <class T, NormKind kKind, Scope kScope, int kRows, int kVectors>
__global__ void __launch_bounds__(kScope == Scope::warp ? kWarpScopeThreads : kMaxRowThreads)
    row_forward_kernel(const __grid_constant__ RowForward p, const RowSplit split) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  int64_t row = blockIdx.x;
  int64_t row_step = 1;  // between the rows of this thread
  int lane = threadIdx.x;
  int first = 0;
  int packs = split.packs;  // this block's end of the row
  bool leader = true;       // this block writes the statistics
  if constexpr (kScope == Scope::warp) {
    row_step = kWarpScopeThreads / split.lanes;
    row = row * row_step * kRows + threadIdx.x / split.lanes;
    lane = threadIdx.x % split.lanes;
  }
  if constexpr (kScope == Scope::cluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.barrier_arrive();
    row = blockIdx.x / cluster.num_blocks();
    first = cluster.block_rank() * split.packs_per_block;
    packs = min(packs, first + split.packs_per_block);
    leader = cluster.block_rank() == 0;
#endif
  }
  const auto pack_index = [&](int v) { return first + lane + v * split.lanes; };
  const auto valid = [&](int v) { return pack_index(v) < packs; };
  const auto active = [&](int i) { return row + i * row_step < p.geometry.rows; };

  Pack<T> x[kRows][kVectors];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const T* from = row_pointer<const T>(p.x, p.geometry, row + i * row_step);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      x[i][v] = {};
      if (active(i) && valid(v)) x[i][v] = load_streaming(from + static_cast<int64_t>(pack_index(v)) * kSize);
    }
  }
  if (p.residual.data != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T* from = row_pointer<const T>(p.residual, p.geometry, row + i * row_step);
      T* to = row_pointer<T>(p.residual_out, p.geometry, row + i * row_step);
      Pack<T> residual[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        residual[v] = {};
        if (active(i) && valid(v)) residual[v] = load_streaming(from + static_cast<int64_t>(pack_index(v)) * kSize);
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        A a[kSize], b[kSize];
        unpack(x[i][v], a);
        unpack(residual[v], b);
#pragma unroll
        for (int j = 0; j < kSize; ++j) a[j] += b[j];
        x[i][v] = to_pack<T>(a);  // rounded: the norm is of what the caller gets back
        if (active(i) && valid(v)) store_streaming(to + static_cast<int64_t>(pack_index(v)) * kSize, x[i][v]);
      }
    }
  }

  A mean[kRows], rstd[kRows];
  row_statistics<T, kKind, kScope, kRows, kVectors>(x, valid, p.geometry.cols, split, mean, rstd);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rstd[i] = reciprocal_std(rstd[i], A(p.geometry.cols), A(p.eps), [](A value) { return reciprocal_sqrt(value); });
    if (leader && lane == 0 && active(i)) {
      if (p.mean.data != nullptr) *row_pointer<A>(p.mean, p.geometry, row + i * row_step) = mean[i];
      if (p.rstd.data != nullptr) *row_pointer<A>(p.rstd, p.geometry, row + i * row_step) = rstd[i];
    }
  }

  const Parameter<T> weight(p.weight), bias(p.bias);
  const A offset = A(p.weight_offset);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!valid(v)) continue;
    const int64_t column = static_cast<int64_t>(pack_index(v)) * kSize;
    A w[kSize], b[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) w[j] = A(1), b[j] = A(0);
    if (weight.data != nullptr) {
      weight.load(column, w);
#pragma unroll
      for (int j = 0; j < kSize; ++j) w[j] = effective_weight(w[j], offset);
    }
    if (bias.data != nullptr) bias.load(column, b);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      A value[kSize];
      unpack(x[i][v], value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean[i], rstd[i]), w[j], b[j]);
      if (active(i)) store_streaming(row_pointer<T>(p.y, p.geometry, row + i * row_step) + column, to_pack<T>(value));
    }
  }
}

}  // namespace normact::cuda
