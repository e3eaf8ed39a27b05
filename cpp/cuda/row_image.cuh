// SPDX-License-Identifier: Apache-2.0
// Rows that lie side by side in memory, of samples that are whole packs although lines are not (layer norm over axis 1
// of an NCHW tensor of 7x7 planes): what the kernels of variant image share. core/image_layout.h has the words.
//
// Work     a block has a slice of one image after the other. A thread owns one pack of every `lines`-th band of it,
//          which it alone copies to shared memory and writes: the same rows, and columns at the same distance, in all
//          of them. Packs that are cut take more instructions; where a band has one, these are the last threads' of the
//          block.
//          Small images are kept: the blocks of a cluster have the slices of one, each as it lies in global memory.
//          Large ones are read twice, the second time from the L2 cache as far as that holds them: one kernel leaves in
//          the workspace what each slice has of its rows, another adds that up and writes.
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
  Divisor by_packs_together, by_places, by_slices;
  int images;
  int helpers_log;  // of the threads that add up what a slice has of a row, at most one for each line of a band

  ImageSplit(const RowGeometry& g, const ImageLayout& layout)
      : ImageLayout(layout),
        by_packs_together(static_cast<unsigned>(band_packs - packs_apart())),
        by_places(static_cast<unsigned>(places)),
        by_slices(static_cast<unsigned>(slices)),
        images(static_cast<int>(g.rows / places)),
        helpers_log(band_log) {
    while (helpers_log > 0 && places << helpers_log > threads) --helpers_log;
  }
  /// The first image that a block has a slice of; from each to the next.
  __device__ __forceinline__ int first_image() const { return static_cast<int>(by_slices.quotient(blockIdx.x)); }
  __device__ __forceinline__ int image_step() const { return static_cast<int>(by_slices.quotient(gridDim.x)); }
  /// What a slice has of the rows of an image, in entries for those of all.
  template <class Entry>
  __device__ __forceinline__ Entry* entries_of(Entry* entries, int image, int slice) const {
    return entries + (static_cast<int64_t>(image) * slices + slice) * places;
  }
};

/// Where an image begins in an operand.
template <class T>
__device__ __forceinline__ T* image_in(const Operand& operand, const RowGeometry& g, int image) {
  return static_cast<T*>(operand.data) + (g.row_ndim > 1 ? image * operand.row_stride[0] : 0);
}

/// A block's slice of an image, and a thread's part of it.
template <class T>
struct ImageShare {
  static constexpr int kSize = kPackSize<T>;

  const ImageSplit& s;
  int slice;         // of the block
  bool cut;          // its packs may have elements of two lines
  int line, pack;    // its first band of the slice, its pack of a band
  int count;         // its packs
  int column;        // of a band, of its packs' first elements
  int split;         // elements up to the end of that column; others are of the next one
  int64_t offset;    // of its first pack in an image, in elements
  SharedAddress at;  // where that is in shared memory

  __device__ __forceinline__ explicit ImageShare(const ImageSplit& split_)
      : s(split_), slice(static_cast<int>(blockIdx.x) - s.first_image() * s.slices) {
    const int thread = static_cast<int>(threadIdx.x);
    const int apart = s.packs_apart(), together = s.band_packs - apart;
    if (apart > 0 && thread >= s.apart_at) {
      line = thread - s.apart_at;
      pack = s.places / kSize;
    } else {
      line = static_cast<int>(s.by_packs_together.quotient(static_cast<unsigned>(thread)));
      pack = thread - line * together;
      if (apart > 0 && pack >= s.places / kSize) ++pack;
    }
    column = static_cast<int>(s.by_places.quotient(static_cast<unsigned>(pack * kSize)));
    split = (column + 1) * s.places - pack * kSize;
    cut = s.cut_packs() > apart || split < kSize;
    const int bands = bands_of(slice);
    count = line < s.lines && line < bands ? (bands - line + s.lines - 1) / s.lines : 0;
    offset = ((static_cast<int64_t>(slice) * s.slice_bands + line) * s.band_packs + pack) * kSize;
    at = shared_address(image_shared) + place() * kPackBytes;
  }
  __device__ __forceinline__ int bands_of(int of) const {
    return max(0, min(s.bands - of * s.slice_bands, s.slice_bands));
  }
  __device__ __forceinline__ int columns_of(int of) const { return bands_of(of) << s.band_log; }
  __device__ __forceinline__ int first_column() const { return slice * s.slice_cols(); }
  /// From one of its packs to the next, in elements.
  __device__ __forceinline__ int step() const { return s.lines * s.band_packs * kSize; }
  /// Among the packs of `lines` bands.
  __device__ __forceinline__ int place() const { return line * s.band_packs + pack; }
  __device__ __forceinline__ SharedAddress slot(int tensor, int k) const {
    return at + tensor * s.part_bytes + k * (s.lines * s.band_packs * kPackBytes);
  }
  /// Its pack k of an image that begins there.
  template <class E>
  __device__ __forceinline__ E* in(E* image, int k) const {
    return image + (offset + k * step());
  }
  /// The slice's column of the first element of its pack k.
  __device__ __forceinline__ int column_of(int k) const { return ((line + k * s.lines) << s.band_log) + column; }

  /// Of the elements of a pack whose first has the column of `first`.
  template <bool kCut, class A>
  __device__ __forceinline__ void spread(A first, A next, A (&value)[kSize]) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = !kCut || j < split ? first : next;
  }
  /// run(cut) takes a constant. Warps are of one mind, but for one of them.
  template <class Run>
  __device__ __forceinline__ void visit(Run run) const {
    if (cut) {
      run(std::true_type{});
    } else {
      run(std::false_type{});
    }
  }
};

/// A thread's packs of kTensors tensors of an image that is kept.
template <class T, int kTensors>
struct KeptPacks {
  const ImageShare<T>& share;
  const T* next[kTensors];  // of the next image, which takes this one's place; null: none

  /// Starts copying those of the next image.
  __device__ __forceinline__ void copy() const {
#pragma unroll 4
    for (int k = 0; k < share.count; ++k) used(k);
  }
  __device__ __forceinline__ void fetch(int k, Pack<T> (&packs)[kTensors]) const {
#pragma unroll
    for (int n = 0; n < kTensors; ++n) packs[n] = load_shared_pack<T>(share.slot(n, k));
  }
  /// Pack k is no longer needed.
  __device__ __forceinline__ void used(int k) const {
    if (next[0] == nullptr) return;
#pragma unroll
    for (int n = 0; n < kTensors; ++n) copy_async(share.slot(n, k), share.in(next[n], k));
  }
};

/// The same of images that are read twice: kRing of each are on their way, and take places in turn. Of each image all
/// are fetched and used, in order, and then finish() is called.
template <class T, int kTensors>
struct ImageRing {
  static constexpr int kRing = image_ring(kTensors == 1);

  const ImageShare<T>& share;
  const T *of[kTensors], *next[kTensors];  // of this image and of the next; null: none
  int turns;                               // of the ring in an image, in packs; one also where there are none

  __device__ __forceinline__ ImageRing(const ImageShare<T>& share_, const T* const (&first)[kTensors])
      : share(share_), turns((max(share_.count, 1) + kRing - 1) / kRing * kRing) {
#pragma unroll
    for (int n = 0; n < kTensors; ++n) of[n] = first[n];
  }
  __device__ __forceinline__ void start() const {
    for (int k = 0; k < kRing; ++k) copy(of, k, k);
  }
  /// Waits for the first kCount packs of an image, and what else was being copied before the image before was used.
  template <int kCount = 1>
  static __device__ __forceinline__ void wait() {
    wait_copies<kRing - kCount>();
  }
  __device__ __forceinline__ void fetch(int k, Pack<T> (&packs)[kTensors]) const {
    wait();
#pragma unroll
    for (int n = 0; n < kTensors; ++n) packs[n] = load_shared_pack<T>(share.slot(n, k % kRing));
  }
  __device__ __forceinline__ void used(int k) const {
    if (k + kRing < turns) {
      copy(of, k + kRing, k % kRing);
    } else {
      copy(next, k + kRing - turns, k % kRing);
    }
  }
  __device__ __forceinline__ void finish() {
    for (int k = share.count; k < turns; ++k) used(k);
#pragma unroll
    for (int n = 0; n < kTensors; ++n) of[n] = next[n];
  }

 private:
  __device__ __forceinline__ void copy(const T* const (&image)[kTensors], int k, int place) const {
    if (k < share.count && image[0] != nullptr) {
#pragma unroll
      for (int n = 0; n < kTensors; ++n) copy_async(share.slot(n, place), share.in(image[n], k));
    }
    commit_copies();
  }
};

/// A weight, with its offset, of any column: 1 where there is none.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ A weight_of_column(const RowProblem& p, const Operand& weight, A offset, int column) {
  if (weight.data == nullptr || column >= p.geometry.cols) return A(1);
  return effective_weight(Parameter<T>(weight).at(column * weight.col_stride[0]), offset);
}

/// A number of each row in shared memory, once for each line of a band, so that a thread has those of its packs side by
/// side.
template <class A>
struct BandNumbers {
  A* numbers;

  __device__ __forceinline__ explicit BandNumbers(const ImageSplit& s, int which = 0)
      : numbers(reinterpret_cast<A*>(image_shared + s.numbers_at + which * s.number_bytes)) {}
  __device__ __forceinline__ A of(int row) const { return numbers[row]; }
  __device__ __forceinline__ void put(const ImageSplit& s, int row, A value) const {
#pragma unroll 1
    for (int line = 0; line < s.band_cols(); ++line) numbers[row + line * s.places] = value;
  }
  template <class T, int kSize>
  __device__ __forceinline__ void get(const ImageShare<T>& share, A (&value)[kSize]) const {
    constexpr int kPart = kPackSize<A>;
#pragma unroll
    for (int h = 0; h < kSize / kPart; ++h) {
      const Pack<A> part = load_shared_pack<A>(shared_address(numbers + share.pack * kSize + h * kPart));
#pragma unroll
      for (int j = 0; j < kPart; ++j) value[h * kPart + j] = part.word[j];
    }
  }
};

/// Adds up a number of each element over a slice's part of each row: visit(row, sum), by one thread a row, the same one
/// each time. All threads; a barrier before and one in it. The order depends on the columns alone.
template <class T, class A = Accumulator<T>, class Visit>
__device__ __forceinline__ void sum_rows(const ImageSplit& s, const ImageShare<T>& share,
                                         const A (&value)[kPackSize<T>], Visit visit) {
  constexpr int kSize = kPackSize<T>, kPart = kPackSize<A>;
  A* const scratch = reinterpret_cast<A*>(image_shared + s.scratch_at);  // parts of packs, of each thread
  const int thread = static_cast<int>(threadIdx.x), used = s.lines * s.band_packs;
  if (share.line < s.lines) {
#pragma unroll
    for (int h = 0; h < kSize / kPart; ++h) {
      store_shared_values(scratch + (h * used + share.place()) * kPart, value + h * kPart);
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
        const A* const from = scratch + (element % kSize / kPart * used + element / kSize) * kPart + element % kPart;
#pragma unroll 4
        for (int line = 0; line < s.lines; ++line) sum += from[line * s.band_packs * kPart];
      }
    }
    sum = sum_of_helpers(sum, helpers);
    if (helper == 0 && row < s.places) visit(row, sum);
  }
}

/// What the blocks of a cluster have of the rows of an image that they keep, in each of them.
template <class Entry>
struct ImageEntries {
  const ImageSplit& s;

  /// Of the rows, from a block of the cluster.
  __device__ __forceinline__ Entry* of(int block) const {
    return reinterpret_cast<Entry*>(image_shared + s.entries_at + block * s.entry_bytes);
  }
  /// This block's, to the others.
  __device__ __forceinline__ void send(int rank) const {
#if __CUDA_ARCH__ >= 900
    const Entry* const own = of(rank);
    for (int block = 0; block < s.slices; ++block) {
      if (block == rank) continue;
      Entry* const to = cg::this_cluster().map_shared_rank(of(rank), block);
      for (int row = threadIdx.x; row < s.places; row += s.threads) to[row] = own[row];
    }
#endif
  }
};

// The barriers of a cluster around an exchange of entries: each of an image's blocks says that it has read those of the
// image before (entries_are_read), waits until all have, sends its own, and waits until all are there.

__device__ __forceinline__ void entries_are_read(const ImageSplit& s) {
#if __CUDA_ARCH__ >= 900
  cluster_arrive(s.slices);
#endif
}
/// Behind a barrier of the block: its entries are on their way when this returns.
template <class Entry>
__device__ __forceinline__ void begin_exchange(const ImageSplit& s, const ImageEntries<Entry>& entries, int rank) {
#if __CUDA_ARCH__ >= 900
  if (s.slices == 1) return;
  cluster_wait(s.slices);
  entries.send(rank);
  cluster_arrive(s.slices);
#endif
}
__device__ __forceinline__ void end_exchange(const ImageSplit& s) {
#if __CUDA_ARCH__ >= 900
  cluster_wait(s.slices);
#endif
}

}  // namespace normact::cuda
