// SPDX-License-Identifier: Apache-2.0
// Row norm backward, one read of everything: variants warp, block and cluster.
//
// Work     a persistent grid of one block (or one cluster) a multiprocessor. A block holds groups of `lanes` threads; a
//          group (in a cluster: all its blocks together) is a worker and owns every `workers`-th row. A thread owns the
//          same kVectors packs (of 16 bytes) of every row it sees, so dweight and dbias add up in its registers.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one row a block to
//          the workspace, which parameter_sum.cuh adds up in a fixed order.
// Pipeline rows come in `stages` ahead through a ring of shared memory. Every thread copies its own packs into its own
//          slots; nobody else reads them, so the ring needs no barrier.
// Staged   rows that are not whole packs at multiples of 16 bytes: a group's ring holds whole rows (StagedRow), which
//          dx leaves by, too; two barriers of the group more.
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
  int packs;            // in a row; staged: the last may be incomplete
  int packs_per_block;  // in this block's slice of a row
  int stages;           // rows in flight, the one worked on included
  int64_t workers;
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
  A* slots = scratch + (parity * kMaxWarps + group * warps) * 2;
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

/// A ring of `stages` rows of x, dy (and dresidual), each of `tensor_bytes` a tensor, in one thread's or group's memory.
class Ring {
 public:
  __device__ Ring(char* memory, int stages, int tensors, int tensor_bytes)
      : begin_(memory), stage_bytes_(tensors * tensor_bytes), tensor_bytes_(tensor_bytes),
        end_(memory + stages * stage_bytes_), newest_(memory), oldest_(memory) {}

  __device__ __forceinline__ char* newest(int tensor) const { return newest_ + tensor * tensor_bytes_; }
  __device__ __forceinline__ char* oldest(int tensor) const { return oldest_ + tensor * tensor_bytes_; }
  __device__ __forceinline__ void push() { newest_ = next(newest_); }
  __device__ __forceinline__ void pop() { oldest_ = next(oldest_); }

 private:
  __device__ __forceinline__ char* next(char* stage) const {
    return stage + stage_bytes_ == end_ ? begin_ : stage + stage_bytes_;
  }
  char* begin_;
  int stage_bytes_;
  int tensor_bytes_;
  char* end_;
  char* newest_;
  char* oldest_;
};

/// Waits until at most `pending` of this thread's groups of copies are under way; pending < kMaxStages.
__device__ __forceinline__ void wait_for_copies(int pending) {
  switch (pending) {
    case 0: wait_copies<0>(); break;
    case 1: wait_copies<1>(); break;
    case 2: wait_copies<2>(); break;
    default: wait_copies<kMaxStages - 1>(); break;
  }
}

template <class T, NormKind kKind, int kVectors, bool kCluster, bool kStaged>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    row_backward_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                        const BackwardSplit split, void* workspace) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  // xhat and g stay in registers over the sums if they are few; else x and dy are read from the ring again.
  constexpr bool kKeep = kVectors * kSize <= 16;
  static_assert(kKeep || !kStaged, "dx overwrites x in a staged ring");
  const RowGeometry& g = p.geometry;
  extern __shared__ __align__(16) char shared[];
  __shared__ A scratch[2 * 2 * kMaxWarps];
  __shared__ A slices[kCluster ? 2 * 2 * kMaxCluster : 1];

  const int lane = threadIdx.x % split.lanes;
  const int group = threadIdx.x / split.lanes;
  int64_t first_worker = static_cast<int64_t>(blockIdx.x) * (blockDim.x / split.lanes);
  int first = 0;  // pack of this block's slice
  int packs = split.packs;
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();  // every block has started before one writes to another's shared memory
    first_worker = blockIdx.x / cluster.num_blocks();
    first = cluster.block_rank() * split.packs_per_block;
    packs = max(0, min(split.packs_per_block, split.packs - first));
#endif
  }
  const int64_t worker = first_worker + group;
  const int first_column = first * kSize;
  const int slice_cols =
      kStaged ? max(0, min(static_cast<int>(g.cols) - first_column, packs * kSize)) : packs * kSize;
  const auto pack_index = [&](int v) { return lane + v * split.lanes; };  // in the slice
  const auto valid = [&](int v) { return pack_index(v) < packs; };
  const auto group_sync = [&] {
    if (split.lanes <= kWarp) __syncwarp(); else group_barrier(1 + group, split.lanes);
  };

  // Shared memory: the effective weight of the slice, then the ring.
  const bool has_weight = p.weight.data != nullptr;
  const bool has_dresidual = p.dresidual.data != nullptr;
  const StagedParameter<T> weights(shared, split.packs_per_block);
  if (has_weight) {
    StagedParameter<T>(weights).fill(Parameter<T>(p.weight), first_column, slice_cols, scalars.weight_offset);
  }
  __syncthreads();
  char* ring_memory = shared + split.packs_per_block * kSize * static_cast<int>(sizeof(A));
  const int tensors = has_dresidual ? 3 : 2;
  const int slot_bytes = blockDim.x * kPackBytes;  // one pack of every thread
  const int row_bytes = StagedRow<T>::bytes(split.packs_per_block * kSize);
  Ring ring = kStaged ? Ring(ring_memory + group * split.stages * tensors * row_bytes, split.stages, tensors, row_bytes)
                      : Ring(ring_memory + threadIdx.x * kPackBytes, split.stages, tensors, slot_bytes * kVectors);
  const auto slice = [&](const Operand& operand, const RowIndex& index) {
    return row_pointer<T>(operand, g, index) + first_column;
  };
  const auto fetch = [&](int64_t row) {
    if (row < g.rows) {
      const RowIndex index(g, row);
      const auto fetch_one = [&](const Operand& operand, int tensor) {
        const T* from = slice(operand, index);
        if constexpr (kStaged) {
          StagedRow<T>(ring.newest(tensor), from, slice_cols).copy_in(from, lane, split.lanes);
        } else {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            if (valid(v)) copy_async(ring.newest(tensor) + v * slot_bytes, from + pack_index(v) * kSize);
          }
        }
      };
      fetch_one(p.x, 0);
      fetch_one(p.dy, 1);
      if (has_dresidual) fetch_one(p.dresidual, 2);
    }
    commit_copies();
    ring.push();
  };
  const auto statistic = [&](const Operand& operand, int64_t row) {
    return row < g.rows ? *row_pointer<const A>(operand, g, RowIndex(g, row)) : A(0);
  };

  A dweight[kVectors][kSize] = {};
  A dbias[kVectors][kSize] = {};
  const int64_t step = split.workers;
  for (int s = 0; s < split.stages - 1; ++s) fetch(worker + s * step);
  A next_mean = kKind == NormKind::layer ? statistic(p.mean, worker) : A(0);
  A next_rstd = statistic(p.rstd, worker);
  int parity = 0;
  // All groups of a block make the same number of turns; a group without a row left computes on zeros.
  for (int64_t base = first_worker, row = worker; base < g.rows; base += step, row += step) {
    if constexpr (kStaged) {  // the slot that is filled next is the one that dx has just left by
      wait_for_copies(split.stages - 2);
      group_sync();
      fetch(row + (split.stages - 1) * step);
    } else {
      fetch(row + (split.stages - 1) * step);
      wait_for_copies(split.stages - 1);
    }
    const A mean = next_mean;
    const A rstd = next_rstd;
    if constexpr (kKind == NormKind::layer) next_mean = statistic(p.mean, row + step);
    next_rstd = statistic(p.rstd, row + step);
    const bool active = row < g.rows;
    const RowIndex index(g, active ? row : 0);
    const auto held = [&](const Operand& operand, int tensor, int v) {
      if constexpr (kStaged) {
        return StagedRow<T>(ring.oldest(tensor), slice(operand, index), slice_cols).read(pack_index(v));
      } else {
        return *reinterpret_cast<const Pack<T>*>(ring.oldest(tensor) + v * slot_bytes);
      }
    };
    A xhat[kVectors][kSize], gradient[kVectors][kSize];
    const auto read = [&](int v, A(&dy)[kSize]) {  // xhat, g and dy of pack v; dy and g are 0 outside the row
      Pack<T> x_pack = {}, dy_pack = {};
      A w[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) w[j] = A(1);
      if (active && valid(v)) {
        x_pack = held(p.x, 0, v);
        dy_pack = held(p.dy, 1, v);
        if (has_weight) weights.get(pack_index(v), w);
      }
      unpack(x_pack, xhat[v]);
      unpack(dy_pack, dy);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        xhat[v][j] = normalized(xhat[v][j], mean, rstd);
        gradient[v][j] = kStaged && dy[j] == A(0) ? A(0) : dy[j] * w[j];  // past the end the weight is not defined
      }
    };
    A sum[2] = {A(0), A(0)};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      A dy[kSize];
      read(v, dy);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if constexpr (kKind == NormKind::layer) sum[0] += gradient[v][j];
        sum[1] += gradient[v][j] * xhat[v][j];
        dweight[v][j] += dy[j] * xhat[v][j];
        dbias[v][j] += dy[j];
      }
    }
    gradient_sums<kCluster>(sum, scratch, slices, split.lanes, parity);
    parity ^= 1;
    if constexpr (kStaged) group_sync();  // x has been read: dx takes its place
    const A c1 = sum[0] / scalars.cols;
    const A c2 = sum[1] / scalars.cols;
    T* dx = slice(p.dx, index);
    const StagedRow<T> staged_dx(ring.oldest(0), dx, slice_cols);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (!kKeep) {
        A dy[kSize];
        read(v, dy);
      }
      A value[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = input_gradient(gradient[v][j], xhat[v][j], rstd, c1, c2);
      if (!active || !valid(v)) continue;
      if (has_dresidual) {
        A addend[kSize];
        unpack(held(p.dresidual, 2, v), addend);
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += addend[j];
      }
      if constexpr (kStaged) {
        staged_dx.write(pack_index(v), to_pack<T>(value));
      } else {
        store_streaming(dx + pack_index(v) * kSize, to_pack<T>(value));
      }
    }
    if constexpr (kStaged) {
      group_sync();
      if (active) staged_dx.copy_out(dx, lane, split.lanes);
    }
    ring.pop();
  }
  wait_copies<0>();
  allow_next_kernel();

  // One row of partials a block, or a cluster.
  const auto store = [&](const A(&sum)[kVectors][kSize]) {
    return [&](A* columns) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          if (pack_index(v) * kSize + j < slice_cols) columns[pack_index(v) * kSize + j] = sum[v][j];
        }
      }
    };
  };
  Partials<A> partials(p, workspace, kCluster ? split.workers : gridDim.x, kCluster ? worker : blockIdx.x);
  partials.write_block(shared, store(dweight), store(dbias), split.lanes, first_column, slice_cols);
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();  // nobody's shared memory goes away while a peer writes to it
#endif
  }
}

}  // namespace normact::cuda
