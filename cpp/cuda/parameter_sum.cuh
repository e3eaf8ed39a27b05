// SPDX-License-Identifier: Apache-2.0
// dweight and dbias in two stages, without atomics: every block of a backward kernel writes one row of partial sums to
// the workspace, and parameter_sum_kernel adds the rows up in a fixed order.
#pragma once

#include <type_traits>

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

/// The partial sums in the workspace: `rows` rows of `cols` for dweight if it is wanted, then the same for dbias.
/// Where the grid is a single block, write_block() writes the result itself.
template <class A>
struct Partials {
  A* dweight;  // this block's (or cluster's) row; null if not wanted
  A* dbias;
  bool single;

  __host__ __device__ Partials(const RowBackward& p, void* workspace, int64_t rows, int64_t row) : single(rows == 1) {
    A* next = static_cast<A*>(workspace);
    const int64_t size = rows * p.geometry.cols;
    dweight = p.dweight.data != nullptr ? next + row * p.geometry.cols : nullptr;
    if (p.dweight.data != nullptr) next += size;
    dbias = p.dbias.data != nullptr ? next + row * p.geometry.cols : nullptr;
  }

  /// Adds up what the `parts` parts of the block hold for `cols` columns from `first` on, in the order of the parts.
  /// store_*(columns) writes a thread's sums to the columns of its part. All threads of the block call it.
  template <class T, class StoreWeight, class StoreBias>
  __device__ void write_block(const RowBackward& p, void* shared, StoreWeight store_dweight, StoreBias store_dbias,
                              int part, int parts, int64_t first, int cols) {
    write_one<T>(p.dweight, shared, dweight, store_dweight, part, parts, first, cols);
    write_one<T>(p.dbias, shared, dbias, store_dbias, part, parts, first, cols);
  }

 private:
  template <class T, class Store>
  __device__ void write_one(const Operand& result, void* shared, A* to, Store store, int part, int parts, int64_t first,
                            int cols) {
    if (result.data == nullptr) return;
    A* memory = static_cast<A*>(shared);
    __syncthreads();  // what was in the shared memory is no longer read
    store(memory + part * cols);
    __syncthreads();
    const int threads = blockDim.x * blockDim.y;
    for (int column = threadIdx.y * blockDim.x + threadIdx.x; column < cols; column += threads) {
      A total = memory[column];
#pragma unroll 4
      for (int i = 1; i < parts; ++i) total += memory[i * cols + column];
      if (single) {
        store_parameter<T>(result, (first + column) * result.col_stride[0], total);
      } else {
        to[first + column] = total;
      }
    }
  }
};

constexpr int kRowsASum = 64;  // that stream adds one to the other

/// Sums over any number of rows of what a thread has in registers, which have no room for a CascadeSum: now and then,
/// they are taken to places of the thread's own, in fp64, in shared memory or in the workspace.
struct PlacesOfSums {
  double* own;  // the thread's first; null: none are needed
  int apart;

  __device__ __forceinline__ void clear(int count) const {
#pragma unroll 1
    for (int j = 0; own != nullptr && j < count; ++j) own[j * apart] = 0.0;
  }
  /// Adds the sums to the places from the first on, and leaves zeros.
  template <class... Sums>
  __device__ __forceinline__ void take(Sums&... sums) const {
    if (own == nullptr) return;
    double* at = own;
    (take_one(at, sums), ...);
  }
  /// Adds the places to the sums.
  template <class... Sums>
  __device__ __forceinline__ void give(Sums&... sums) const {
    if (own == nullptr) return;
    const double* at = own;
    (give_one(at, sums), ...);
  }

 private:
  template <class A, int kCount>
  __device__ __forceinline__ void take_one(double*& at, A (&sum)[kCount]) const {
    if constexpr (std::is_array_v<A>) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) take_one(at, sum[j]);
    } else {
      constexpr int kTogether = kCount % 6 == 0 ? 6 : kCount % 8 == 0 ? 8 : kCount;  // reads on their way
      double value[kTogether];
#pragma unroll
      for (int j = 0; j < kCount; j += kTogether) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) value[i] = at[i * apart];
#pragma unroll
        for (int i = 0; i < kTogether; ++i, at += apart) {
          *at = value[i] + sum[j + i];
          sum[j + i] = A(0);
        }
      }
    }
  }
  template <class A, int kCount>
  __device__ __forceinline__ void give_one(const double*& at, A (&sum)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if constexpr (std::is_array_v<A>) {
        give_one(at, sum[j]);
      } else {
        sum[j] += *at;
        at += apart;
      }
    }
  }
};

/// The same for a persistent kernel's sums of dweight and dbias, kCount each. Their places are at the end of the
/// workspace, if the planner found that a thread has rows enough (RowPlan::places).
template <int kCount>
struct ParameterPlaces {
  double* of_grid;

  __device__ __forceinline__ ParameterPlaces(double* places) : of_grid(places) { own().clear(2 * kCount); }
  /// Behind a tile of the block, or a row of the cluster; they are counted from 0.
  template <class Sums>
  __device__ __forceinline__ void after(int number, Sums& dweight, Sums& dbias) const {
    if ((number + 1) % kTilesASum == 0) own().take(dweight, dbias);
  }
  template <class Sums>
  __device__ __forceinline__ void give(Sums& dweight, Sums& dbias) const {
    own().give(dweight, dbias);
  }

 private:
  /// Found each time: no registers are kept for it.
  __device__ __forceinline__ PlacesOfSums own() const {
    if (of_grid == nullptr) return {nullptr, 0};
    int threads = blockDim.x * blockDim.y;
    asm volatile("" : "+r"(threads));
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    return {of_grid + int64_t{blockIdx.x} * 2 * kCount * threads + thread, threads};
  }
};

/// Threads that share a column: of few rows of partials, where more would have nothing to add and, of many columns,
/// take the room of those that have; and of others.
constexpr int kFewSumThreads = 4, kSumThreads = 16;
constexpr int kFewSumRows = 32;

/// Adds up the `partial_rows` rows of `cols` at `from`, 32 columns a block, each by kThreads threads; store(column,
/// sum) is called once a column. A thread adds its rows eight at a time and then these sums, which leaves them more
/// digits, and the loads are on their way together. Launched so that it may start before the kernel that writes the
/// rows has ended.
template <int kThreads, class A, class Store>
__device__ __forceinline__ void sum_partial_rows(const A* from, int64_t partial_rows, int64_t cols, Store store) {
  start_after_previous();
  __shared__ A sums[kThreads][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  A sum = A(0);
  if (column < cols) {
    constexpr int kTogether = 8;
    for (int64_t row = threadIdx.y; row < partial_rows; row += kTogether * kThreads) {
      A some = A(0);
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        const int64_t next = row + r * kThreads;
        if (next < partial_rows) some += from[next * cols + column];
      }
      sum += some;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < cols) {
#pragma unroll
    for (int r = 1; r < kThreads; ++r) sum += sums[r][threadIdx.x];
    store(column, sum);
  }
}

/// Work     a block sums 32 columns of one parameter: kThreads threads a column, then one adds their sums in order.
/// Bytes    reads partial_rows * cols values from the L2 cache, writes cols.
/// grid     (ceil(cols / 32), 2): y = 0 is dweight, y = 1 dbias; an absent one is skipped.
/// X        the type of results that are not in the accumulator's.
template <class T, class X, int kThreads>
__global__ void __launch_bounds__(kWarp* kThreads)
    parameter_sum_kernel(const __grid_constant__ RowBackward p, void* workspace, int64_t partial_rows) {
  const Partials<Accumulator<T>> partials(p, workspace, partial_rows, 0);
  const Operand& to = blockIdx.y == 0 ? p.dweight : p.dbias;
  if (to.data == nullptr) return;
  sum_partial_rows<kThreads>(
      blockIdx.y == 0 ? partials.dweight : partials.dbias, partial_rows, p.geometry.cols,
      [&](int64_t column, Accumulator<T> sum) {
        store_parameter<X>(to, strided_offset(column, p.geometry.col_ndim, p.geometry.col_shape, to.col_stride), sum);
      });
}

constexpr int kWideSumRows = 8;  // threads that share a pack of columns

/// parameter_sum_kernel for many columns and few rows of partials, columns in whole packs.
/// Work     a block sums 32 packs of the accumulator's columns of one parameter: 8 threads a pack, then one adds their
///          sums in order.
/// grid     (ceil(packs / 32), 2): y = 0 is dweight, y = 1 dbias; an absent one is skipped.
template <class T>
__global__ void __launch_bounds__(kWarp* kWideSumRows)
    wide_parameter_sum_kernel(const __grid_constant__ RowBackward p, void* workspace, int64_t partial_rows) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<A>;
  start_after_previous();
  const Partials<A> partials(p, workspace, partial_rows, 0);
  const A* from = blockIdx.y == 0 ? partials.dweight : partials.dbias;
  const Operand& to = blockIdx.y == 0 ? p.dweight : p.dbias;
  if (to.data == nullptr) return;
  __shared__ Pack<A> sums[kWideSumRows][kWarp];
  const int64_t cols = p.geometry.cols;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kSize;
  Pack<A> sum{};
  const auto add = [&](const Pack<A>& pack) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum.word[j] += pack.word[j];
  };
  if (column < cols) {
#pragma unroll 4
    for (int64_t row = threadIdx.y; row < partial_rows; row += kWideSumRows) {
      add(load_pack(from + row * cols + column));
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < cols) {
#pragma unroll
    for (int r = 1; r < kWideSumRows; ++r) add(sums[r][threadIdx.x]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) store_parameter<T>(to, column + j, sum.word[j]);
  }
}

}  // namespace normact::cuda
