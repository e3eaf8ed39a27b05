// SPDX-License-Identifier: Apache-2.0
// Wide rows at any element alignment, on sm_90: how the blocks of a cluster share them (variant cluster of rows in
// runs). What a block has of a row is a row of row_runs.cuh to it, and moves as such.
//
// Work     persistent clusters of one block a multiprocessor; a cluster owns every row of its own. Each block has the
//          same columns of all these (run_slice()), and each thread of its working warps the same runs of them.
// Warps    those that work on rows, one that exchanges sums (cluster_exchange.cuh), and the movers.
// Pipeline rows come in ahead. A warp takes the sums of row i + 1 and then writes row i, both from shared memory, so
//          that a row's exchange takes place during another row's arithmetic.
#pragma once

#include "core/run_layout.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/row_runs.cuh"
#include "cuda/run_access.cuh"

namespace normact::cuda {

#if __CUDA_ARCH__ >= 900

/// What a block of a cluster has of the cluster's rows.
struct RowSlice {
  int blocks;  // of the cluster
  int rank;    // of this block in it
  int cluster;
  int clusters;  // in the grid
  int width;     // columns of a block, but of the last
  int first;     // column of this block
  int cols;      // of this block

  __device__ __forceinline__ explicit RowSlice(int cols_of_row)
      : blocks(cg::this_cluster().num_blocks()),
        rank(cg::this_cluster().block_rank()),
        cluster(static_cast<int>(blockIdx.x) / blocks),
        clusters(static_cast<int>(gridDim.x) / blocks),
        width(static_cast<int>(run_slice(cols_of_row, blocks))),
        first(rank * width),
        cols(min(width, cols_of_row - first)) {}

  __device__ __forceinline__ int64_t row(int turn) const { return cluster + int64_t{turn} * clusters; }
  /// Rows of the cluster, of so many.
  __device__ __forceinline__ int turns(int64_t rows) const {
    return static_cast<int>((rows - cluster + clusters - 1) / clusters);
  }
  /// A parameter from the block's first column on.
  template <class T>
  __device__ __forceinline__ Operand of(Operand parameter) const {
    if (parameter.data == nullptr) return parameter;
    const int64_t size = Parameter<T>(parameter).wide ? sizeof(Accumulator<T>) : sizeof(T);
    parameter.data = static_cast<char*>(parameter.data) + first * size;
    return parameter;
  }
};

/// The exchange and the barriers of a block; in static shared memory. Sums travel in N.
template <class N, class A>
struct SliceMemory {
  WarpExchange<N, A> exchange;
  RunBarriers barriers;
};

/// All rows of a working warp: contribute(turn, cursor) gives its part of a row's sums to the exchange, and
/// finish(turn, cursor) writes the row with what the exchange answers.
template <class Contribute, class Finish>
__device__ __forceinline__ void work_on_turns(int turns, int stages, Contribute contribute, Finish finish) {
  RunCursor now;
  contribute(0, now);
  for (int turn = 0; turn < turns; ++turn) {
    RunCursor next = now;
    next.next(stages);
    if (turn + 1 < turns) contribute(turn + 1, next);
    finish(turn, now);
    now = next;
  }
}

#endif

}  // namespace normact::cuda
