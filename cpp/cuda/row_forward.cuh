// SPDX-License-Identifier: Apache-2.0
// Row norm forward with the row in registers: variants warp, block and cluster.
//
// Work     warp: `lanes` lanes own a row each time; block: a block owns a row; cluster: the blocks of a cluster own one
//          contiguous slice each of a row. A thread holds kVectors packs (of 16 bytes) of its row.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Clusters the grid is persistent: a block keeps its slice of the columns, so that the parameters stay in its
//          cache, and has the next row's packs on their way while it works on a row.
// Staged   rows that are not whole packs at multiples of 16 bytes pass through shared memory both ways (StagedRow).
// Barriers block: one a sum (layer: two, rms: one). cluster: the same, and one exchange of moments between the blocks.
// Sums     two-pass from registers. A warp or block centres on the row's own mean; the blocks of a cluster each centre
//          on their own, and merge by Chan's formula in fp64.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_share.cuh"
#include "math/normalize.h"

namespace normact::cuda {

enum class Scope { warp, block, cluster };

constexpr int kWarpScopeThreads = 128;
constexpr int kMaxRowThreads = 512;  // of a block that works on one row

/// How a row is divided; see RowPlan.
struct RowSplit {
  int lanes;            // threads that share a row in this block
  int packs;            // in a row; staged: the last may be incomplete
  int packs_per_block;  // in this block's slice of a row
};

/// Sum over the threads that hold a row, or a cluster block's slice of it.
template <Scope kScope, int kCount, class A>
__device__ __forceinline__ void row_sum(A (&value)[kCount], int lanes, A* scratch) {
  if constexpr (kScope == Scope::warp) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = lane_sum(value[i], lanes);
  } else {
    group_sum(value, scratch, threadIdx.x / kWarp, blockDim.x / kWarp, 0);
  }
}

/// Moments of a row whose slices the blocks of a cluster hold; each block passes those of its slice about a rounded
/// mean, and what the deviations from that mean leave when they are added up.
template <class A>
__device__ __forceinline__ Moments<A> merge_over_cluster(const Moments<A>& slice, A left, A row_count, int parity) {
  Moments<A> total = slice;
#if __CUDA_ARCH__ >= 900
  // Two sets in turn: a set is written again two rows later, one cluster barrier after its last reader.
  __shared__ Moments<double> both_slices[2][kMaxCluster];
  Moments<double>* slices = both_slices[parity];
  Moments<double> mine{slice.mean, slice.m2, slice.count};
  if (slice.count > A(0)) mine.mean += static_cast<double>(left) / slice.count;
  cg::cluster_group cluster = cg::this_cluster();
  cluster_publish(mine, slices, cluster.num_blocks());
  cluster.sync();
  mine = merge_all(slices, cluster.num_blocks(), row_count);
  total = {static_cast<A>(mine.mean), static_cast<A>(mine.m2), row_count};
#endif
  return total;
}

/// Mean and sum of centred squares of one row, of which this thread holds the packs x.
template <class T, NormKind kKind, Scope kScope, bool kStaged, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ Moments<A> row_moments(const Pack<T> (&x)[kVectors], const RowShare<T, kStaged>& share,
                                                  A row_count, int parity) {
  constexpr int kSize = kPackSize<T>;
  __shared__ A scratch[kScope == Scope::warp ? 1 : 3 * kMaxWarps];
  const A count = kScope == Scope::cluster ? A(share.cols) : row_count;
  A mean[1] = {A(0)};
  if constexpr (kKind == NormKind::layer) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      A value[kSize];
      unpack(x[v], value);
#pragma unroll
      for (int j = 1; j < kSize; ++j) value[0] += value[j];
      mean[0] += value[0];
    }
    row_sum<kScope>(mean, share.lanes, scratch);
    mean[0] = count > A(0) ? mean[0] / count : A(0);
  }
  // About a rounded mean the deviations do not quite cancel; a cluster needs what is left to merge its blocks exactly.
  constexpr bool kExact = kScope == Scope::cluster && kKind == NormKind::layer;
  A sum[kExact ? 2 : 1] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    A value[kSize], part = A(0), left = A(0);
    unpack(x[v], value);
    const int elements = share.count(v);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const A centred = !kStaged || j < elements ? value[j] - mean[0] : A(0);
      part += centred * centred;
      left += centred;
    }
    sum[0] += elements > 0 ? part : A(0);
    if constexpr (kExact) sum[1] += elements > 0 ? left : A(0);
  }
  row_sum<kScope>(sum, share.lanes, scratch + kMaxWarps);
  const Moments<A> moments{mean[0], sum[0], count};
  if constexpr (kScope == Scope::cluster) {
    return merge_over_cluster(moments, kExact ? sum[kExact] : A(0), row_count, parity);
  }
  return moments;
}

/// x = round(x + residual), which also goes to residual_out: the norm is of what the caller gets back.
template <class T, bool kStaged, int kVectors>
__device__ __forceinline__ void add_residual(const RowForward& p, const RowIndex& index,
                                             const RowShare<T, kStaged>& share, char* staging, int barrier,
                                             Pack<T> (&x)[kVectors]) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  Pack<T> residual[kVectors];
  share.load(row_pointer<const T>(p.residual, p.geometry, index) + share.first_column(), staging, barrier, residual);
  T* to = row_pointer<T>(p.residual_out, p.geometry, index) + share.first_column();
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    A sum[kSize], addend[kSize];
    unpack(x[v], sum);
    unpack(residual[v], addend);
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum[j] += addend[j];
    x[v] = to_pack<T>(sum);
    share.store(to, staging, v, x[v]);
  }
  share.flush(to, staging, barrier);
  if constexpr (kStaged) share.sync(barrier);
}

/// y = xhat * (weight + offset) + bias. Parameters are loaded for some packs together, before the first one is used.
template <class T, bool kWide, bool kStaged, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ void write_output(const RowForward& p, T* to, const RowShare<T, kStaged>& share,
                                             char* staging, const Pack<T> (&x)[kVectors], A mean, A rstd, A offset) {
  constexpr int kSize = kPackSize<T>;
  constexpr int kMost = kWide ? 1 : 2;
  constexpr int kChunk = kVectors % kMost == 0 ? kMost : 1;
#pragma unroll
  for (int chunk = 0; chunk < kVectors; chunk += kChunk) {
    ParameterPack<T, kWide> weight[kChunk], bias[kChunk];
    const auto load = [&](const Operand& operand, ParameterPack<T, kWide>(&parameter)[kChunk]) {
      const bool aligned = !kStaged || reinterpret_cast<uintptr_t>(operand.data) % kPackBytes == 0;
#pragma unroll
      for (int u = 0; u < kChunk; ++u) {  // packs that do not exist read the row's first
        const int v = chunk + u;
        parameter[u].load(operand.data, share.valid(v) ? share.column(v) : 0, kStaged ? share.count(v) : kSize,
                          aligned);
      }
    };
#pragma unroll
    for (int u = 0; u < kChunk; ++u) weight[u].fill(A(1)), bias[u].fill(A(0));
    if (p.weight.data != nullptr) load(p.weight, weight);
    if (p.bias.data != nullptr) load(p.bias, bias);
#pragma unroll
    for (int u = 0; u < kChunk; ++u) {
      A w[kSize], b[kSize], value[kSize];
      weight[u].get(w);
      bias[u].get(b);
      if (offset != A(0)) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) w[j] = effective_weight(w[j], offset);
      }
      unpack(x[chunk + u], value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean, rstd), w[j], b[j]);
      share.store(to, staging, chunk + u, to_pack<T>(value));
    }
  }
}

/// Blocks that must fit a multiprocessor at once: as many as leave registers for a thread's packs without spills.
template <class T>
constexpr int blocks_at_once(Scope scope, int threads, int packs, bool staged) {
  if (sizeof(T) == 8) return 1;
  if (scope == Scope::warp) return packs <= 4 ? 6 : staged ? 4 : 5;
  if (scope == Scope::cluster) return staged ? 1 : 512 / threads;
  return threads > 256 ? 1 : staged ? 2 : 3;
}

template <class T, NormKind kKind, Scope kScope, int kThreads, int kVectors, bool kStaged, bool kWide>
__global__ void __launch_bounds__(kThreads, blocks_at_once<T>(kScope, kThreads, kVectors, kStaged))
    row_forward_kernel(const __grid_constant__ RowForward p, const Scalars<Accumulator<T>> scalars,
                       const RowSplit split) {
  using A = Accumulator<T>;
  const RowGeometry& g = p.geometry;
  extern __shared__ __align__(16) char shared[];
  int64_t row = blockIdx.x;
  int64_t step = 1;  // to this block's next row (clusters)
  int group = 0;
  int lane = threadIdx.x;
  int first = 0;
  bool leader = true;  // this block writes the statistics
  if constexpr (kScope == Scope::warp) {
    group = threadIdx.x / split.lanes;
    lane = threadIdx.x % split.lanes;
    row = row * (kWarpScopeThreads / split.lanes) + group;
  }
  if constexpr (kScope == Scope::cluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();  // every block has started before one writes to another's shared memory
    row = blockIdx.x / cluster.num_blocks();
    step = gridDim.x / cluster.num_blocks();
    first = cluster.block_rank() * split.packs_per_block;
    leader = cluster.block_rank() == 0;
#endif
  }
  bool active = row < g.rows;  // a thread without a row owns no pack, but takes part in the warp's sums
  const RowShare<T, kStaged> share(lane, split.lanes, first,
                                   active ? min(split.packs - first, split.packs_per_block) : 0, g.cols);
  char* staging = shared + group * StagedRow<T>::bytes(split.packs_per_block * kPackSize<T>);
  const auto load_x = [&](const RowIndex& index, Pack<T>(&x)[kVectors]) {
    share.load(row_pointer<const T>(p.x, g, index) + share.first_column(), staging, 0, x);
  };

  constexpr bool kAhead = kScope == Scope::cluster && !kStaged;
  Pack<T> x[kVectors], next[kVectors];
  load_x(RowIndex(g, active ? row : 0), x);
  for (int parity = 0;; parity ^= 1) {
    const RowIndex index(g, active ? row : 0);
    if (kAhead && row + step < g.rows) load_x(RowIndex(g, row + step), next);
    if (p.residual.data != nullptr) add_residual(p, index, share, staging, 0, x);
    const Moments<A> moments = row_moments<T, kKind, kScope>(x, share, scalars.cols, parity);
    const A rstd = reciprocal_std(moments.m2, scalars.cols, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
    if (leader && lane == 0 && active) {
      if (p.mean.data != nullptr) *row_pointer<A>(p.mean, g, index) = moments.mean;
      if (p.rstd.data != nullptr) *row_pointer<A>(p.rstd, g, index) = rstd;
    }
    T* y = row_pointer<T>(p.y, g, index) + share.first_column();
    write_output<T, kWide>(p, y, share, staging, x, moments.mean, rstd, scalars.weight_offset);
    share.flush(y, staging, 0);
    row += step;
    if (kScope != Scope::cluster || row >= g.rows) return;
    if constexpr (kAhead) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) x[v] = next[v];
    } else {
      share.sync(0);  // the staging memory is free again
      load_x(RowIndex(g, row), x);
    }
  }
}

}  // namespace normact::cuda
