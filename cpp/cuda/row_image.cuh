// SPDX-License-Identifier: Apache-2.0
// Rows that lie side by side in memory, of samples that are whole packs although lines are not (layer norm over axis 1
// of an NCHW tensor of 7x7 planes): what the kernels of variant image share. core/image_layout.h has the words.
//
// Work     a cluster has one image after the other, each of its blocks some of the bands. A thread owns one pack of
//          every `lines`-th band, which it alone copies to shared memory and writes: the same rows, and columns at the
//          same distance, in all of them. A block's part lies in shared memory as it does in global memory.
#pragma once

#include "core/image_layout.h"
#include "core/plan.h"
#include "cuda/cluster_exchange.cuh"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

extern __shared__ __align__(16) char image_shared[];  // packs, then what ImageLayout says

/// What kernels are told beside the problem.
struct ImageSplit : ImageLayout {
  Divisor by_band_packs, by_places, by_cols;  // by_cols: of a block
  int cluster;                                // blocks that share an image
  int images;
  int helpers_log;  // of the threads that add up what a block has of a row, at most one for each line of a band

  ImageSplit(const RowGeometry& g, const RowPlan& plan, DType dtype, bool forward)
      : ImageSplit(
            g, image_layout(static_cast<int>(g.cols), plan.rows_per_block, dtype, plan.cluster, plan.threads, forward),
            plan.cluster) {}
  ImageSplit(const RowGeometry& g, const ImageLayout& layout, int blocks)
      : ImageLayout(layout),
        by_band_packs(static_cast<unsigned>(band_packs)),
        by_places(static_cast<unsigned>(places)),
        by_cols(static_cast<unsigned>(cols_a_block())),
        cluster(blocks),
        images(static_cast<int>(g.rows / places)),
        helpers_log(band_log) {
    while (helpers_log > 0 && places << helpers_log > threads) --helpers_log;
  }
};

/// Where an image begins in an operand.
template <class T>
__device__ __forceinline__ T* image_in(const Operand& operand, const RowGeometry& g, int image) {
  return static_cast<T*>(operand.data) + (g.row_ndim > 1 ? image * operand.row_stride[0] : 0);
}

/// A block's part of an image, and a thread's of it.
template <class T>
struct ImageShare {
  static constexpr int kSize = kPackSize<T>;

  const ImageSplit& s;
  int rank;          // of the block in its cluster
  int bands;         // of the block
  int line, pack;    // of the thread: its first band of the block's, its pack of a band
  int count;         // packs of the thread
  int place;         // row of its first element
  int column;        // of its first element, in a band
  int split;         // elements of that column; the others are of the next
  int64_t offset;    // of its first pack in an image, in elements
  SharedAddress at;  // where that is in shared memory

  __device__ __forceinline__ explicit ImageShare(const ImageSplit& split_) : s(split_) {
    rank = static_cast<int>(blockIdx.x % static_cast<unsigned>(s.cluster));
    bands = bands_of(rank);
    line = static_cast<int>(s.by_band_packs.quotient(threadIdx.x));
    pack = static_cast<int>(threadIdx.x) - line * s.band_packs;
    count = line < s.lines && line < bands ? (bands - line + s.lines - 1) / s.lines : 0;
    column = static_cast<int>(s.by_places.quotient(static_cast<unsigned>(pack * kSize)));
    place = pack * kSize - column * s.places;
    split = s.places - place;
    offset = (static_cast<int64_t>(rank) * s.bands_a_block * s.band_packs + threadIdx.x) * kSize;
    at = shared_address(image_shared) + threadIdx.x * kPackBytes;
  }
  __device__ __forceinline__ int bands_of(int block) const {
    return max(0, min(s.bands - block * s.bands_a_block, s.bands_a_block));
  }
  __device__ __forceinline__ int first_column() const { return rank * s.cols_a_block(); }
  __device__ __forceinline__ int columns_of(int block) const { return bands_of(block) << s.band_log; }
  /// Bytes from one of a thread's packs to the next.
  __device__ __forceinline__ int step() const { return s.lines * s.band_packs * kPackBytes; }
  __device__ __forceinline__ SharedAddress slot(int tensor, int k) const {
    return at + tensor * s.part_bytes + k * step();
  }
  /// Its pack k of an image that begins there.
  template <class E>
  __device__ __forceinline__ E* in(E* image, int k) const {
    return image + (offset + k * (step() / static_cast<int>(sizeof(T))));
  }
  /// The row of element j of any of its packs.
  __device__ __forceinline__ int row(int j) const { return place + j - (j < split ? 0 : s.places); }
  /// The block's column of the first element of its pack k.
  __device__ __forceinline__ int column_of(int k) const { return ((line + k * s.lines) << s.band_log) + column; }

  /// Of the elements of a pack whose first has the column of `first`.
  template <class A>
  __device__ __forceinline__ void spread(A first, A next, A (&value)[kSize]) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = j < split ? first : next;
  }

  /// Starts copying the thread's packs of an image.
  __device__ __forceinline__ void copy(int tensor, const T* image) const {
#pragma unroll 4
    for (int k = 0; k < count; ++k) copy_async(slot(tensor, k), in(image, k));
  }
};

/// A weight, with its offset, of any column: 1 where there is none.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ A weight_of_column(const RowProblem& p, const Operand& weight, A offset, int column) {
  if (weight.data == nullptr || column >= p.geometry.cols) return A(1);
  return effective_weight(Parameter<T>(weight).at(column * weight.col_stride[0]), offset);
}

/// Two numbers of each row in shared memory, for all threads that have packs of it.
template <class A>
struct RowNumbers {
  A* numbers;
  int apart;

  __device__ __forceinline__ RowNumbers(const ImageSplit& s, int bytes)
      : numbers(reinterpret_cast<A*>(image_shared + bytes)), apart(s.apart) {}
  __device__ __forceinline__ A& first(int row) const { return numbers[ImageLayout::number_at(row)]; }
  __device__ __forceinline__ A& second(int row) const { return numbers[ImageLayout::number_at(row) + apart]; }
  __device__ __forceinline__ void set(int row, A first, A second) const {
    A* const to = numbers + ImageLayout::number_at(row);
    to[0] = first;
    to[apart] = second;
  }
  /// Of the rows of a thread's packs.
  template <class T, int kSize>
  __device__ __forceinline__ void get(const ImageShare<T>& share, A (&firsts)[kSize], A (&seconds)[kSize]) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const A* const from = numbers + ImageLayout::number_at(share.row(j));
      firsts[j] = from[0];
      seconds[j] = from[apart];
    }
  }
};

/// A block's shared memory behind the packs.
template <class T>
struct ImageMemory {
  using A = Accumulator<T>;
  using Pair = SumPair<A>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr int kParts = kSize / kPackSize<A>;

  A* scratch;             // a number of each element of each thread
  RowNumbers<A> results;  // of all blocks of the cluster

  __device__ __forceinline__ explicit ImageMemory(const ImageSplit& s)
      : scratch(reinterpret_cast<A*>(image_shared + s.scratch_at)), results(s, s.results_at) {}
  /// Of the rows, from a block of the cluster.
  __device__ __forceinline__ Pair* entries(const ImageSplit& s, int block) const {
    return reinterpret_cast<Pair*>(image_shared + s.entries_at + block * s.pair_bytes);
  }

  /// Adds up a number of each element over what a block has of each row: visit(row, sum), by one thread a row, the same
  /// one each time. All threads; a barrier before and one in it. The order depends on the columns alone.
  template <class Visit>
  __device__ __forceinline__ void sum_rows(const ImageSplit& s, const ImageShare<T>& share, const A (&value)[kSize],
                                           Visit visit) const {
    const int thread = static_cast<int>(threadIdx.x), used = s.lines * s.band_packs;
    if (share.line < s.lines) {
#pragma unroll
      for (int h = 0; h < kParts; ++h) {
        store_shared_values(scratch + (h * used + thread) * kPackSize<A>, value + h * kPackSize<A>);
      }
    }
    __syncthreads();
    const int helpers = 1 << s.helpers_log, helper = thread & (helpers - 1);
    for (int first = 0; first < s.places; first += s.threads >> s.helpers_log) {
      const int row = first + (thread >> s.helpers_log);
      A sum = A(0);
      if (row < s.places) {
        for (int column = helper; column < s.band_cols(); column += helpers) {
          const int element = row + column * s.places;  // of a band
          const int owner = element / kSize, j = element % kSize;
          const A* const from = scratch + (j / kPackSize<A> * used + owner) * kPackSize<A> + j % kPackSize<A>;
#pragma unroll 4
          for (int line = 0; line < s.lines; ++line) sum += from[line * s.band_packs * kPackSize<A>];
        }
      }
      sum = sum_of_helpers(sum, helpers);
      if (helper == 0 && row < s.places) visit(row, sum);
    }
  }

  /// This block's entries, to the other blocks of the cluster.
  __device__ __forceinline__ void send_entries(const ImageSplit& s, int rank) const {
#if __CUDA_ARCH__ >= 900
    const Pair* const own = entries(s, rank);
    for (int block = 0; block < s.cluster; ++block) {
      if (block == rank) continue;
      Pair* const to = cg::this_cluster().map_shared_rank(entries(s, rank), block);
      for (int row = threadIdx.x; row < s.places; row += s.threads) to[row] = own[row];
    }
#endif
  }
};

// The barriers of a cluster around an exchange of entries: each of an image's blocks says that it has read those of the
// image before (entries_are_read), waits until all have, sends its own, and waits until all are there.

__device__ __forceinline__ void entries_are_read(const ImageSplit& s) {
#if __CUDA_ARCH__ >= 900
  cluster_arrive(s.cluster);
#endif
}
/// Behind a barrier of the block: its entries are on their way when this returns.
template <class Memory>
__device__ __forceinline__ void begin_exchange(const ImageSplit& s, const Memory& memory, int rank) {
#if __CUDA_ARCH__ >= 900
  if (s.cluster == 1) return;
  cluster_wait(s.cluster);
  memory.send_entries(s, rank);
  cluster_arrive(s.cluster);
#endif
}
__device__ __forceinline__ void end_exchange(const ImageSplit& s) {
#if __CUDA_ARCH__ >= 900
  cluster_wait(s.cluster);
#endif
}

}  // namespace normact::cuda
