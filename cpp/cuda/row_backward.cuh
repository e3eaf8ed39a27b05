// SPDX-License-Identifier: Apache-2.0
// Row norm backward, one read of everything: variants warp, block and cluster.
//
// Work     a persistent grid of one block (or one cluster) a multiprocessor. A block holds `groups` groups of `lanes`
//          threads; a group owns every (blocks * groups)-th row, and in a cluster one contiguous slice of it. A thread
//          owns the same kVectors packs of every row it sees, so dweight and dbias add up in its registers.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one fp32 row a
//          block to the workspace, which parameter_sum.cuh adds up in a fixed order.
// Pipeline every thread copies its own packs `stages` rows ahead into its own slots of a shared-memory ring. Nobody
//          else reads them, so the ring needs no barrier.
// Plan     as for the forward: all pointers and row strides multiples of 16 bytes, contiguous columns, whole packs.
// Barriers lanes <= 32: none. Otherwise one named barrier a row for the two sums; clusters: one cluster barrier more.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "math/normalize.h"

namespace normact::cuda {

constexpr int kBackwardThreads = 512;
constexpr int kMaxStages = 4;

/// How rows and columns are divided; see RowPlan.
struct BackwardSplit {
  int lanes;            // threads of a group
  int packs;            // in a row
  int packs_per_block;  // in this block's slice of a row
  int stages;
  int64_t workers;      // groups in the grid, counting those of a cluster that share rows once
};

/// The two row sums of the gradient, over the group and, in a cluster, over its blocks.
template <bool kCluster, class A>
__device__ __forceinline__ void gradient_sums(A (&sum)[2], A* scratch, A* slices, int lanes, int parity) {
  if (!kCluster && lanes <= kWarp) {
    sum[0] = lane_sum(sum[0], lanes);
    sum[1] = lane_sum(sum[1], lanes);
    return;
  }
  const int group = threadIdx.x / lanes;
  const int warps = lanes / kWarp;
  // Two sets of slots in turn: a slot is written again two rows later, one barrier after its last reader.
  A* slots = scratch + (parity * blockDim.x / kWarp + group * warps) * 2;
  group_sum(sum, slots, threadIdx.x % lanes / kWarp, warps, 1 + group);
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    const int blocks = cluster.num_blocks();
    A* mine = slices + parity * 2 * kMaxCluster;
    if (static_cast<int>(threadIdx.x) < blocks) {
      A* peer = cluster.map_shared_rank(mine, threadIdx.x) + 2 * cluster.block_rank();
      peer[0] = sum[0];
      peer[1] = sum[1];
    }
    cluster.sync();
    sum[0] = A(0);
    sum[1] = A(0);
    for (int b = 0; b < blocks; ++b) {
      sum[0] += mine[2 * b];
      sum[1] += mine[2 * b + 1];
    }
#endif
  }
}

template <class T, NormKind kKind, int kVectors, bool kCluster>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    row_backward_kernel(const __grid_constant__ RowBackward p, const BackwardSplit split, void* workspace) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  const RowGeometry& g = p.geometry;
  extern __shared__ __align__(16) char shared[];
  __shared__ A scratch[2 * 2 * kMaxWarps];
  __shared__ A slices[kCluster ? 2 * 2 * kMaxCluster : 1];

  const int lane = threadIdx.x % split.lanes;
  int64_t worker = static_cast<int64_t>(blockIdx.x) * (blockDim.x / split.lanes) + threadIdx.x / split.lanes;
  int first = 0;
  int slice_packs = split.packs;
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();  // every block has started before one writes to another's shared memory
    worker = blockIdx.x / cluster.num_blocks();
    first = cluster.block_rank() * split.packs_per_block;
    slice_packs = min(split.packs_per_block, split.packs - first);
#endif
  }
  const int64_t first_column = static_cast<int64_t>(first) * kSize;
  const auto pack_index = [&](int v) { return lane + v * split.lanes; };
  const auto valid = [&](int v) { return pack_index(v) < slice_packs; };

  // Shared memory: the effective weight of the slice, then the ring. The weights of one pack of x fill one or two packs
  // of the accumulator type; each has an array of its own, so that neighbours read neighbouring banks.
  constexpr int kHalves = kSize / kPackSize<A>;
  Pack<A>* weights[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) weights[h] = reinterpret_cast<Pack<A>*>(shared) + h * split.packs_per_block;
  const bool has_weight = p.weight.data != nullptr;
  if (has_weight) {
    const Parameter<T> weight(p.weight);
    for (int pack = threadIdx.x; pack < slice_packs; pack += blockDim.x) {
      A value[kSize];
      weight.load(first_column + pack * kSize, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        weights[j / kPackSize<A>][pack].element[j % kPackSize<A>] = effective_weight(value[j], A(p.weight_offset));
      }
    }
    __syncthreads();
  }
  char* ring = shared + (has_weight ? split.packs_per_block * kSize * static_cast<int>(sizeof(A)) : 0);
  const bool has_dresidual = p.dresidual.data != nullptr;
  const int tensors = has_dresidual ? 3 : 2;
  const auto slot = [&](int stage, int tensor, int v) {
    return ring + (((stage * tensors + tensor) * kVectors + v) * blockDim.x + threadIdx.x) * kPackBytes;
  };
  const auto fetch = [&](int64_t row, int stage) {
    if (row < g.rows) {
      const T* x = row_pointer<const T>(p.x, g, row) + first_column;
      const T* dy = row_pointer<const T>(p.dy, g, row) + first_column;
      const T* dresidual = has_dresidual ? row_pointer<const T>(p.dresidual, g, row) + first_column : nullptr;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (valid(v)) {
          copy_async(slot(stage, 0, v), x + pack_index(v) * kSize);
          copy_async(slot(stage, 1, v), dy + pack_index(v) * kSize);
          if (has_dresidual) copy_async(slot(stage, 2, v), dresidual + pack_index(v) * kSize);
        }
      }
    }
    commit_copies();
  };

  const auto load_weights = [&](int v, A(&w)[kSize]) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) w[j] = A(1);
    if (has_weight && valid(v)) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const Pack<A> half = weights[h][pack_index(v)];
#pragma unroll
        for (int j = 0; j < kPackSize<A>; ++j) w[h * kPackSize<A> + j] = half.element[j];
      }
    }
  };

  A dweight[kVectors][kSize] = {};
  A dbias[kVectors][kSize] = {};
  const auto statistic = [&](const Operand& operand, int64_t row) {
    return row < g.rows ? *row_pointer<const A>(operand, g, row) : A(0);
  };
  const int64_t step = split.workers;
  // Rows are counted alike by all threads of a block, so that barriers match; past the end a group idles.
  const int64_t block_first = kCluster ? worker : static_cast<int64_t>(blockIdx.x) * (blockDim.x / split.lanes);
  int stage = 0;
  for (int s = 0; s < split.stages - 1; ++s) fetch(worker + s * step, s);
  A next_mean = kKind == NormKind::layer ? statistic(p.mean, worker) : A(0);
  A next_rstd = statistic(p.rstd, worker);
  int parity = 0;
  for (int64_t base = block_first, row = worker; base < g.rows; base += step, row += step) {
    const int ahead = stage == 0 ? split.stages - 1 : stage - 1;
    fetch(row + (split.stages - 1) * step, ahead);
    const A mean = next_mean;
    const A rstd = next_rstd;
    if constexpr (kKind == NormKind::layer) next_mean = statistic(p.mean, row + step);
    next_rstd = statistic(p.rstd, row + step);
    switch (split.stages) {  // all but the newest stages - 1 groups have landed
      case 1: wait_copies<0>(); break;
      case 2: wait_copies<1>(); break;
      case 3: wait_copies<2>(); break;
      default: wait_copies<kMaxStages - 1>(); break;
    }
    const bool active = row < g.rows;
    const auto held = [&](int tensor, int v) { return *reinterpret_cast<const Pack<T>*>(slot(stage, tensor, v)); };
    Pack<T> x[kVectors], dy[kVectors];
    A sum[2] = {A(0), A(0)};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      x[v] = {};
      dy[v] = {};
      if (active && valid(v)) {
        x[v] = held(0, v);
        dy[v] = held(1, v);
      }
      A x_value[kSize], dy_value[kSize], w[kSize];
      unpack(x[v], x_value);
      unpack(dy[v], dy_value);
      load_weights(v, w);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {  // outside the row dy is 0 and adds nothing
        const A xhat = normalized(x_value[j], mean, rstd);
        const A gradient = dy_value[j] * w[j];
        if constexpr (kKind == NormKind::layer) sum[0] += gradient;
        sum[1] += gradient * xhat;
        dweight[v][j] += dy_value[j] * xhat;
        dbias[v][j] += dy_value[j];
      }
    }
    gradient_sums<kCluster>(sum, scratch, slices, split.lanes, parity);
    parity ^= 1;
    const A c1 = sum[0] / A(g.cols);
    const A c2 = sum[1] / A(g.cols);
    T* dx = row_pointer<T>(p.dx, g, row) + first_column;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!active || !valid(v)) continue;
      if constexpr (kVectors * kSize > 24) {  // reading them again takes no registers over the sums
        x[v] = held(0, v);
        dy[v] = held(1, v);
      }
      A x_value[kSize], value[kSize], w[kSize];
      unpack(x[v], x_value);
      unpack(dy[v], value);
      load_weights(v, w);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        value[j] = input_gradient(value[j] * w[j], normalized(x_value[j], mean, rstd), rstd, c1, c2);
      }
      if (has_dresidual) {
        A addend[kSize];
        unpack(held(2, v), addend);
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += addend[j];
      }
      store_streaming(dx + pack_index(v) * kSize, to_pack<T>(value));
    }
    stage = stage + 1 == split.stages ? 0 : stage + 1;
  }
  wait_copies<0>();

  // One row of partials a block, or a cluster.
  const auto store = [&](const A(&sum)[kVectors][kSize]) {
    return [&](A* columns) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!valid(v)) continue;
#pragma unroll
        for (int j = 0; j < kSize; ++j) columns[pack_index(v) * kSize + j] = sum[v][j];
      }
    };
  };
  Partials<A> partials(p, workspace, kCluster ? split.workers : gridDim.x, kCluster ? worker : blockIdx.x);
  partials.write_block(shared, store(dweight), store(dbias), split.lanes, first_column, slice_packs * kSize);
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();  // nobody's shared memory goes away while a peer writes to it
#endif
  }
}

}  // namespace normact::cuda
