// SPDX-License-Identifier: Apache-2.0
// Streamed rows of single elements that lie apart, but within 2^31: what both directions have in common. Lanes go over
// what is nearer in memory. Where that is rows, a warp reads whole sectors, of which a block with one row would use an
// element each.
//
// Work     the warps of a block, and the blocks of a cluster, each with a slice of the columns, share some neighbouring
//          rows (a power of two up to 32). In a warp, a row has as many lanes as that leaves.
// Sums     a warp's columns of a row are summed in strands, every so many columns a strand, which are brought together
//          as a tree. A lane sums its strands one after the other, and the lanes of a row go on where it ends: the bits
//          do not depend on how many rows share a warp. Warps and blocks follow in their order.
#pragma once

#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_index.cuh"
#include "cuda/row_stream.cuh"

namespace normact::cuda {

constexpr int kElementWarps = kElementThreads / kWarp;
/// Columns of a strand under way.
template <class T>
constexpr int kElementUnits = sizeof(T) == 8 ? 4 : 8;
/// Blocks of a multiprocessor.
template <class T, bool kActivated>
constexpr int kElementBlocks = sizeof(T) == 8 || kActivated ? 2 : 3;

/// How a plan divides rows: as in its head.
struct ElementSplit {
  int log_rows;        // of a warp
  int log_strands;     // of a warp
  int log_apply_rows;  // of a warp, where the backward goes over rows
  int64_t share;       // columns of a block

  explicit ElementSplit(const RowGeometry& g, const RowPlan& plan)
      : log_rows(0), log_strands(0), log_apply_rows(0), share((g.cols + plan.cluster - 1) / plan.cluster) {
    while ((1 << log_rows) < plan.rows_per_block) ++log_rows;
    while ((kElementWarps << log_strands) < plan.threads_per_row) ++log_strands;
    while ((1 << log_apply_rows) < plan.apply_rows) ++log_apply_rows;
  }
};

template <class N>
__device__ __forceinline__ void add(SumPair<N>& to, const SumPair<N>& more) {
  to.first += more.first;
  to.second += more.second;
}

/// What is a thread's.
struct ElementThread {
  int64_t row;
  bool there;           // the row
  int64_t begin, end;   // columns of this block; none without a row
  int place;            // of the row in the warp
  int lane, log_lanes;  // among those of the row in the warp, and how many these are
  int warp;
  bool leads;  // the row

  __device__ __forceinline__ ElementThread(const ElementSplit& split, const RowGeometry& g, int blocks) {
    const int in_warp = threadIdx.x % kWarp;
    const unsigned group = blockIdx.x / blocks, rank = blockIdx.x - group * blocks;
    warp = uniform_warp();
    place = in_warp & ((1 << split.log_rows) - 1);
    lane = in_warp >> split.log_rows;
    log_lanes = 5 - split.log_rows;
    row = (static_cast<int64_t>(group) << split.log_rows) + place;
    there = row < g.rows;
    begin = rank * split.share;
    end = there ? min(g.cols, begin + split.share) : begin;
    leads = there && rank == 0 && warp == 0 && lane == 0;
  }

  /// A row's sums of what of_strand(first column) gives, to all its lanes in the warp.
  template <class OfStrand>
  __device__ __forceinline__ auto sum_of_strands(const ElementSplit& split, OfStrand of_strand) const {
    using Sums = decltype(of_strand(int64_t{}));
    constexpr int kLevels = 5;
    const int log_turns = split.log_strands - log_lanes;
    const int64_t first = begin + (static_cast<int64_t>(warp) << split.log_strands) + lane;
    Sums whole{}, left[kLevels];
    // Strands that differ in the highest bit are added first: in turns whose lowest bit that is.
    for (int turn = 0; turn < 1 << log_turns; ++turn) {
      const int strand = log_turns > 0 ? static_cast<int>(__brev(turn) >> (32 - log_turns)) << log_lanes : 0;
      whole = of_strand(first + strand);
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        if ((turn >> level & 1) == 0) {
          left[level] = whole;
          break;
        }
        add(whole, left[level]);
      }
    }
    for (int apart = 1 << (log_lanes - 1 + split.log_rows); apart >= 1 << split.log_rows; apart /= 2) {
      add(whole, Sums{__shfl_xor_sync(kFullWarp, whole.first, apart), __shfl_xor_sync(kFullWarp, whole.second, apart)});
    }
    return whole;
  }
};

/// Where the warps of a block leave two sums of each of its rows, and the block its own for the others.
struct ElementSlots {
  double2 warps[kElementWarps][kWarp];
  double2 block[kWarp];
};

/// Sums over the warps of a block and the blocks of a cluster, to all threads of each row. Blocks may still read each
/// other's slots when it returns.
template <class N>
__device__ __forceinline__ SumPair<double> sum_over_warps(const SumPair<N>& mine, ElementSlots& slots,
                                                          const ElementThread& thread, int blocks) {
  if (thread.lane == 0) slots.warps[thread.warp][thread.place] = {double(mine.first), double(mine.second)};
  __syncthreads();
  SumPair<double> part[kElementWarps];
#pragma unroll
  for (int w = 0; w < kElementWarps; ++w) {
    const double2 of_warp = slots.warps[w][thread.place];
    part[w] = {of_warp.x, of_warp.y};
  }
#pragma unroll
  for (int apart = kElementWarps / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int w = 0; w < apart; ++w) add(part[w], part[w + apart]);
  }
  SumPair<double> sum = part[0];
#if __CUDA_ARCH__ >= 900
  if (blocks == 1) return sum;
  if (thread.warp == 0 && thread.lane == 0) slots.block[thread.place] = {sum.first, sum.second};
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  sum = {0.0, 0.0};
  for (int b = 0; b < blocks; ++b) {
    const double2 of_block = cluster.map_shared_rank(slots.block, b)[thread.place];
    add(sum, SumPair<double>{of_block.x, of_block.y});
  }
#endif
  return sum;
}

/// Where single elements of a thread are, kUnits of them in each of some tensors: less than 2^31 from their row's.
template <int kUnits, int kTensors>
struct NearPlaces {
  int at[kUnits][kTensors];

  template <class... Operands>
  __device__ __forceinline__ NearPlaces(const ColumnPlaces& columns, const RowGeometry& g, int64_t first, int apart,
                                        const Operands&... operands) {
    columns.find_near(g, first, apart, at, operands...);
  }
  template <class E>
  __device__ __forceinline__ E* in(E* row, int i, int u) const {
    return row + at[u][i];
  }
};

/// Where rows in any number of dimensions, fewer than 2^31, are.
struct RowPlaces {
  Divisor by[kMaxDims];

  explicit RowPlaces(const RowGeometry& g) {
    for (int d = 1; d < g.row_ndim; ++d) by[d] = Divisor(static_cast<unsigned>(g.row_shape[d]));
  }
  template <int kTensors>
  __device__ __forceinline__ void find(const RowGeometry& g, int64_t row, const Operand* const (&operands)[kTensors],
                                       int64_t (&offset)[kTensors]) const {
    row_offsets(static_cast<unsigned>(row), g, operands, offset,
                [&](unsigned of, int d) { return by[d].quotient(of); });
  }
};

}  // namespace normact::cuda
