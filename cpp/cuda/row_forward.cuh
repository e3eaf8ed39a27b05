// SPDX-License-Identifier: Apache-2.0
// Row norm forward with the row in registers: variants warp, block and cluster.
//
// Work     warp: `lanes` lanes own a row each time; block: a block owns a row; cluster: the blocks of a cluster own one
//          contiguous slice each of a row. A thread holds kVectors packs (of 16 bytes) of its row.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Clusters the grid is persistent: a block keeps its slice of the columns, so that the parameters stay in its cache, and
//          has the next row's packs on their way while it works on a row.
// Staged   rows that are not whole packs at multiples of 16 bytes pass through shared memory both ways (StagedRow).
// Barriers block: one a sum (layer: two, rms: one). cluster: the same, and one exchange of moments between the blocks.
// Sums     two-pass from registers. A warp or block centres on the row's own mean; the blocks of a cluster each centre
//          on their own, and merge by Chan's formula in fp64.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
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

/// Mean and sum of centred squares of one row. count_of(v) elements of pack v belong to the row; the others are zero.
template <class T, NormKind kKind, Scope kScope, bool kStaged, int kVectors, class CountOf, class A = Accumulator<T>>
__device__ __forceinline__ Moments<A> row_moments(const Pack<T> (&x)[kVectors], CountOf count_of, int lanes, A count,
                                                  A row_count, int parity) {
  constexpr int kSize = kPackSize<T>;
  __shared__ A scratch[kScope == Scope::warp ? 1 : 3 * kMaxWarps];
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
    row_sum<kScope>(mean, lanes, scratch);
    mean[0] = count > A(0) ? mean[0] / count : A(0);
  }
  // About a rounded mean the deviations do not quite cancel; a cluster needs what is left to merge its blocks exactly.
  constexpr bool kExact = kScope == Scope::cluster && kKind == NormKind::layer;
  A sum[kExact ? 2 : 1] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    A value[kSize], part = A(0), left = A(0);
    unpack(x[v], value);
    const int elements = count_of(v);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const A centred = !kStaged || j < elements ? value[j] - mean[0] : A(0);
      part += centred * centred;
      left += centred;
    }
    sum[0] += elements > 0 ? part : A(0);
    if constexpr (kExact) sum[1] += elements > 0 ? left : A(0);
  }
  row_sum<kScope>(sum, lanes, scratch + kMaxWarps);
  Moments<A> moments{mean[0], sum[0], row_count};
  if constexpr (kScope == Scope::cluster) {
#if __CUDA_ARCH__ >= 900
    // Two sets in turn: a set is written again two rows later, one cluster barrier after its last reader.
    __shared__ Moments<double> both_slices[2][kMaxCluster];
    Moments<double>* slices = both_slices[parity];
    Moments<double> mine{mean[0], sum[0], count};
    if constexpr (kExact) {
      if (count > A(0)) mine.mean += static_cast<double>(sum[1]) / count;
    }
    cg::cluster_group cluster = cg::this_cluster();
    cluster_publish(mine, slices, cluster.num_blocks());
    cluster.sync();
    mine = slices[0];
    for (int b = 1; b < cluster.num_blocks(); ++b) mine = merge(mine, slices[b]);
    moments.mean = static_cast<A>(mine.mean);
    moments.m2 = static_cast<A>(mine.m2);
#endif
  }
  return moments;
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
  constexpr int kSize = kPackSize<T>;
  const RowGeometry& g = p.geometry;
  extern __shared__ __align__(16) char shared[];
  int64_t row = blockIdx.x;
  int64_t step = 1;  // to this block's next row (clusters)
  int lane = threadIdx.x;
  int first = 0;
  int end = split.packs;  // of this block's slice
  bool leader = true;     // this block writes the statistics
  if constexpr (kScope == Scope::warp) {
    row = row * (kWarpScopeThreads / split.lanes) + threadIdx.x / split.lanes;
    lane = threadIdx.x % split.lanes;
  }
  if constexpr (kScope == Scope::cluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();  // every block has started before one writes to another's shared memory
    row = blockIdx.x / cluster.num_blocks();
    step = gridDim.x / cluster.num_blocks();
    first = cluster.block_rank() * split.packs_per_block;
    end = max(first, min(end, first + split.packs_per_block));
    leader = cluster.block_rank() == 0;
#endif
  }
  const bool active = row < g.rows;
  if (!active) end = first;  // threads without a row own no pack
  const int slice_cols = max(0, (kStaged ? min(static_cast<int>(g.cols), end * kSize) : end * kSize) - first * kSize);
  const auto pack_index = [&](int v) { return lane + v * split.lanes; };  // in the slice
  const auto valid = [&](int v) { return first + pack_index(v) < end; };
  const auto count_of = [&](int v) {
    if constexpr (!kStaged) return valid(v) ? kSize : 0;
    return valid(v) ? min(kSize, slice_cols - pack_index(v) * kSize) : 0;
  };
  const auto column = [&](int v) { return first * kSize + pack_index(v) * kSize; };
  const auto barrier = [] {  // among the threads that share a row
    if constexpr (kScope == Scope::warp) __syncwarp(); else __syncthreads();
  };
  // Brings a row's packs in and out: directly, or through this group's part of the shared memory.
  char* staging = shared + (kScope == Scope::warp ? threadIdx.x / split.lanes : 0) *
                               StagedRow<T>::bytes(static_cast<int64_t>(split.packs_per_block) * kSize);
  const auto load = [&](const Operand& operand, const RowIndex& index, Pack<T>(&pack)[kVectors]) {
    const T* from = row_pointer<const T>(operand, g, index) + first * kSize;
    if constexpr (kStaged) {
      const StagedRow<T> staged(staging, from, slice_cols);
      staged.copy_in(from, lane, split.lanes);
      commit_copies();
      wait_copies<0>();
      barrier();
#pragma unroll
      for (int v = 0; v < kVectors; ++v) pack[v] = valid(v) ? staged.read(pack_index(v)) : Pack<T>{};
      barrier();  // the memory is free again
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        pack[v] = Pack<T>{};
        if (valid(v)) pack[v] = load_streaming(from + pack_index(v) * kSize);
      }
    }
  };

  constexpr bool kAhead = kScope == Scope::cluster && !kStaged;
  Pack<T> x[kVectors], next[kAhead ? kVectors : 1];
  load(p.x, RowIndex(g, active ? row : 0), x);
  for (int parity = 0;; parity ^= 1) {
  const RowIndex index(g, active ? row : 0);
  if constexpr (kAhead) {
    if (row + step < g.rows) load(p.x, RowIndex(g, row + step), next);
  }
  if (p.residual.data != nullptr) {
    Pack<T> residual[kVectors];
    load(p.residual, index, residual);
    T* to = row_pointer<T>(p.residual_out, g, index) + first * kSize;
    const StagedRow<T> staged(staging, to, slice_cols);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      A sum[kSize], addend[kSize];
      unpack(x[v], sum);
      unpack(residual[v], addend);
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum[j] += addend[j];
      x[v] = to_pack<T>(sum);  // rounded: the norm is of what the caller gets back
      if (!valid(v)) continue;
      if constexpr (kStaged) staged.write(pack_index(v), x[v]); else store_streaming(to + pack_index(v) * kSize, x[v]);
    }
    if constexpr (kStaged) {
      barrier();
      staged.copy_out(to, lane, split.lanes);
      barrier();
    }
  }

  A count = scalars.cols;
  if constexpr (kScope == Scope::cluster) count = A(slice_cols);
  const Moments<A> moments = row_moments<T, kKind, kScope, kStaged>(x, count_of, split.lanes, count, scalars.cols, parity);
  const A mean = moments.mean;
  const A rstd = reciprocal_std(moments.m2, scalars.cols, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
  if (leader && lane == 0 && active) {
    if (p.mean.data != nullptr) *row_pointer<A>(p.mean, g, index) = mean;
    if (p.rstd.data != nullptr) *row_pointer<A>(p.rstd, g, index) = rstd;
  }

  T* to = row_pointer<T>(p.y, g, index) + first * kSize;
  const StagedRow<T> staged(staging, to, slice_cols);
  const auto aligned = [](const Operand& operand) {
    return !kStaged || reinterpret_cast<uintptr_t>(operand.data) % kPackBytes == 0;
  };
  // Packs whose parameters are loaded together, before the first one is used.
  constexpr int kMost = kWide ? 1 : 2;
  constexpr int kChunk = kVectors % kMost == 0 ? kMost : kVectors % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int chunk = 0; chunk < kVectors; chunk += kChunk) {
    ParameterPack<T, kWide> weight[kChunk], bias[kChunk];
#pragma unroll
    for (int u = 0; u < kChunk; ++u) weight[u].fill(A(1)), bias[u].fill(A(0));
    const auto load_parameter = [&](const Operand& operand, ParameterPack<T, kWide>(&parameter)[kChunk]) {
#pragma unroll
      for (int u = 0; u < kChunk; ++u) {  // packs that do not exist read the first one's
        const int v = chunk + u;
        const bool there = valid(v);
        parameter[u].load(operand.data, there ? column(v) : 0, kStaged ? count_of(v) : kSize, aligned(operand));
      }
    };
    if (p.weight.data != nullptr) load_parameter(p.weight, weight);
    if (p.bias.data != nullptr) load_parameter(p.bias, bias);
#pragma unroll
    for (int u = 0; u < kChunk; ++u) {
      const int v = chunk + u;
      A w[kSize], b[kSize], value[kSize];
      weight[u].get(w);
      bias[u].get(b);
      if (scalars.weight_offset != A(0)) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) w[j] = effective_weight(w[j], scalars.weight_offset);
      }
      unpack(x[v], value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean, rstd), w[j], b[j]);
      if (!valid(v)) continue;
      if constexpr (kStaged) {
        staged.write(pack_index(v), to_pack<T>(value));
      } else {
        store_streaming(to + pack_index(v) * kSize, to_pack<T>(value));
      }
    }
  }
  if constexpr (kStaged) {
    barrier();
    staged.copy_out(to, lane, split.lanes);
  }
  if constexpr (kScope != Scope::cluster) return;
  row += step;
  if (row >= g.rows) return;
  if constexpr (kAhead) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) x[v] = next[v];
  } else {
    barrier();  // the staging memory is free again
    load(p.x, RowIndex(g, row), x);
  }
  }
}

}  // namespace normact::cuda
