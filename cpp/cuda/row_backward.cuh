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
#include "cuda/row_share.cuh"
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

/// A ring of `stages` rows of x, dy (and dresidual), each of `tensor_bytes` a tensor, in one thread's or group's
/// memory.
class Ring {
 public:
  __device__ Ring(char* memory, int stages, int tensors, int tensor_bytes)
      : begin_(memory),
        stage_bytes_(tensors * tensor_bytes),
        tensor_bytes_(tensor_bytes),
        end_(memory + stages * stage_bytes_),
        newest_(memory),
        oldest_(memory) {}

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

/// A thread's or group's ring and how a row's packs get into it and out of it.
template <class T, int kVectors, bool kStaged>
struct RowPipeline {
  static constexpr int kSize = kPackSize<T>;
  RowShare<T, kStaged> share;
  Ring ring;
  int slot_bytes;  // one pack of every thread
  int tensors;     // x, dy, and dresidual if there is one

  /// Shared bytes of a group's ring if it is staged.
  static __device__ int row_bytes(const BackwardSplit& split) {
    return StagedRow<T>::bytes(split.packs_per_block * kSize);
  }

  __device__ RowPipeline(const RowShare<T, kStaged>& owned, const BackwardSplit& split, int group, int count,
                         char* memory)
      : share(owned),
        ring(kStaged
                 ? Ring(memory + group * split.stages * count * row_bytes(split), split.stages, count, row_bytes(split))
                 : Ring(memory + threadIdx.x * kPackBytes, split.stages, count,
                        static_cast<int>(blockDim.x) * kPackBytes * kVectors)),
        slot_bytes(blockDim.x * kPackBytes),
        tensors(count) {
    if constexpr (!kStaged) {  // packs that this thread does not have are zero in its slots, and stay so
      for (int i = 0; i < split.stages * tensors * kVectors; ++i) {
        *reinterpret_cast<uint4*>(memory + (i * static_cast<int>(blockDim.x) + threadIdx.x) * kPackBytes) = uint4{};
      }
    }
  }

  /// Starts bringing in one tensor of the next row; `from` is the slice's first element.
  __device__ __forceinline__ void fetch(const T* from, int tensor) {
    if constexpr (kStaged) {
      StagedRow<T>(ring.newest(tensor), from, share.cols).copy_in(from, share.lane, share.lanes);
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (share.valid(v)) copy_async(ring.newest(tensor) + v * slot_bytes, from + share.pack(v) * kSize);
      }
    }
  }

  /// Pack v of the oldest row; zeros outside the row.
  __device__ __forceinline__ Pack<T> read(const T* from, int tensor, int v) const {
    if constexpr (kStaged) {
      return share.valid(v) ? StagedRow<T>(ring.oldest(tensor), from, share.cols).read(share.pack(v)) : Pack<T>{};
    } else {
      return *reinterpret_cast<const Pack<T>*>(ring.oldest(tensor) + v * slot_bytes);
    }
  }
};

/// What a thread knows of the rows it works on, and its sums of dweight and dbias.
template <class T, NormKind kKind, int kVectors, bool kCluster, bool kStaged>
struct RowGradient {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  // xhat and g stay in registers over the sums if they are few; else x and dy are read from the ring again.
  static constexpr bool kKeep = kVectors * kSize <= 16;
  static_assert(kKeep || !kStaged, "dx overwrites x in a staged ring");

  const RowBackward& p;
  RowPipeline<T, kVectors, kStaged>& pipeline;
  const StagedParameter<T>& weights;
  A dweight[kVectors][kSize] = {};
  A dbias[kVectors][kSize] = {};

  __device__ RowGradient(const RowBackward& problem, RowPipeline<T, kVectors, kStaged>& rows,
                         const StagedParameter<T>& effective_weights)
      : p(problem), pipeline(rows), weights(effective_weights) {}

  __device__ __forceinline__ T* slice(const Operand& operand, const RowIndex& index) const {
    return row_pointer<T>(operand, p.geometry, index) + pipeline.share.first_column();
  }

  /// Starts bringing in a row, if there is one.
  __device__ __forceinline__ void fetch(int64_t row) {
    if (row < p.geometry.rows) {
      const RowIndex index(p.geometry, row);
      pipeline.fetch(slice(p.x, index), 0);
      pipeline.fetch(slice(p.dy, index), 1);
      if (p.dresidual.data != nullptr) pipeline.fetch(slice(p.dresidual, index), 2);
    }
    commit_copies();
    pipeline.ring.push();
  }

  __device__ __forceinline__ A statistic(const Operand& operand, int64_t row) const {
    return row < p.geometry.rows ? *row_pointer<const A>(operand, p.geometry, RowIndex(p.geometry, row)) : A(0);
  }

  /// xhat, g and dy of pack v of the oldest row.
  __device__ __forceinline__ void read(const RowIndex& index, int v, A mean, A rstd, A (&xhat)[kSize],
                                       A (&gradient)[kSize], A (&dy)[kSize]) const {
    A w[kSize];
    weights.get(pipeline.share.valid(v) ? pipeline.share.pack(v) : 0, w);
    unpack(pipeline.read(slice(p.x, index), 0, v), xhat);
    unpack(pipeline.read(slice(p.dy, index), 1, v), dy);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      xhat[j] = normalized(xhat[j], mean, rstd);
      gradient[j] = dy[j] * w[j];
    }
  }

  /// Everything for one row: adds to dweight and dbias, writes dx. scratch and slices as gradient_sums wants them.
  __device__ __forceinline__ void row(const RowIndex& index, A mean, A rstd, A cols, A* scratch, A* slices, int parity,
                                      int barrier) {
    const RowShare<T, kStaged>& share = pipeline.share;
    A xhat[kVectors][kSize], gradient[kVectors][kSize], dy[kSize];
    A sum[2] = {A(0), A(0)};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      read(index, v, mean, rstd, xhat[v], gradient[v], dy);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {  // outside the row dy and g are 0 and add nothing
        if constexpr (kKind == NormKind::layer) sum[0] += gradient[v][j];
        sum[1] += gradient[v][j] * xhat[v][j];
        dweight[v][j] += dy[j] * xhat[v][j];
        dbias[v][j] += dy[j];
      }
    }
    gradient_sums<kCluster>(sum, scratch, slices, share.lanes, parity);
    if constexpr (kStaged) share.sync(barrier);  // x has been read: dx takes its place
    const A c1 = sum[0] / cols;
    const A c2 = sum[1] / cols;
    T* dx = slice(p.dx, index);
    char* staging = pipeline.ring.oldest(0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (!kKeep) read(index, v, mean, rstd, xhat[v], gradient[v], dy);
      A value[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = input_gradient(gradient[v][j], xhat[v][j], rstd, c1, c2);
      if (p.dresidual.data != nullptr) {
        A addend[kSize];
        unpack(pipeline.read(slice(p.dresidual, index), 2, v), addend);
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += addend[j];
      }
      share.store(dx, staging, v, to_pack<T>(value));
    }
    share.flush(dx, staging, barrier);
    pipeline.ring.pop();
  }

  /// Writes this thread's sums of one parameter to its group's row of columns.
  __device__ void store(const A (&sum)[kVectors][kSize], A* columns) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int column = pipeline.share.pack(v) * kSize + j;
        if (column < pipeline.share.cols) columns[column] = sum[v][j];
      }
    }
  }
};

template <class T, NormKind kKind, int kVectors, bool kCluster, bool kStaged>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    row_backward_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                        const BackwardSplit split, void* workspace) {
  using A = Accumulator<T>;
  extern __shared__ __align__(16) char shared[];
  __shared__ A scratch[2 * 2 * kMaxWarps];
  __shared__ A slices[kCluster ? 2 * 2 * kMaxCluster : 1];

  const int group = threadIdx.x / split.lanes;
  int64_t worker = static_cast<int64_t>(blockIdx.x) * (blockDim.x / split.lanes) + group;
  int first = 0;  // pack of this block's slice
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();  // every block has started before one writes to another's shared memory
    worker = blockIdx.x / cluster.num_blocks();
    first = cluster.block_rank() * split.packs_per_block;
#endif
  }
  const RowShare<T, kStaged> share(threadIdx.x % split.lanes, split.lanes, first,
                                   min(split.packs_per_block, split.packs - first), p.geometry.cols);
  // Shared memory: the effective weight of the slice, then the rings.
  const StagedParameter<T> weights(shared, split.packs_per_block);
  weights.fill(Parameter<T>(p.weight), share.first_column(), share.cols, scalars.weight_offset);
  RowPipeline<T, kVectors, kStaged> pipeline(
      share, split, group, p.dresidual.data != nullptr ? 3 : 2,
      shared + split.packs_per_block * kPackSize<T> * static_cast<int>(sizeof(A)));
  __syncthreads();

  RowGradient<T, kKind, kVectors, kCluster, kStaged> gradient(p, pipeline, weights);
  const int64_t step = split.workers;
  for (int s = 0; s < split.stages - 1; ++s) gradient.fetch(worker + s * step);
  A next_mean = kKind == NormKind::layer ? gradient.statistic(p.mean, worker) : A(0);
  A next_rstd = gradient.statistic(p.rstd, worker);
  int parity = 0;
  for (int64_t row = worker; row < p.geometry.rows; row += step, parity ^= 1) {
    if constexpr (kStaged) {  // the slot that is filled next is the one that dx has just left by
      wait_for_copies(split.stages - 2);
      share.sync(1 + group);
      gradient.fetch(row + (split.stages - 1) * step);
    } else {
      gradient.fetch(row + (split.stages - 1) * step);
      wait_for_copies(split.stages - 1);
    }
    const A mean = next_mean;
    const A rstd = next_rstd;
    if constexpr (kKind == NormKind::layer) next_mean = gradient.statistic(p.mean, row + step);
    next_rstd = gradient.statistic(p.rstd, row + step);
    gradient.row(RowIndex(p.geometry, row), mean, rstd, scalars.cols, scratch, slices, parity, 1 + group);
  }
  wait_copies<0>();
  allow_next_kernel();

  // One row of partials a block, or a cluster.
  Partials<A> partials(p, workspace, kCluster ? split.workers : gridDim.x, kCluster ? worker : blockIdx.x);
  partials.write_block(
      shared, [&](A* columns) { gradient.store(gradient.dweight, columns); },
      [&](A* columns) { gradient.store(gradient.dbias, columns); }, split.lanes, share.first_column(), share.cols);
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();  // nobody's shared memory goes away while a peer writes to it
#endif
  }
}

}  // namespace normact::cuda
