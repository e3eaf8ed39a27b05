// SPDX-License-Identifier: Apache-2.0
// Which part of a row a thread owns, and how its packs get there and back.
#pragma once

#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

/// The threads that share a row: `lanes` neighbours in a warp, or warps of a block, own the packs [first, first +
/// packs) of it; thread `lane` owns number lane, lane + lanes ... of these. kStaged: the row passes through shared
/// memory, and the slice's last pack may be incomplete.
template <class T, bool kStaged>
struct RowShare {
  static constexpr int kSize = kPackSize<T>;
  int lane;
  int lanes;
  int first;
  int packs;
  int cols;  // elements of the slice

  __device__ RowShare(int thread, int threads, int first_pack, int pack_count, int64_t row_cols)
      : lane(thread), lanes(threads), first(first_pack), packs(max(0, pack_count)) {
    const int whole = packs * kSize;
    cols = kStaged ? max(0, min(static_cast<int>(row_cols) - first * kSize, whole)) : whole;
  }

  /// Number of this thread's pack v in the slice, and its first column in the row.
  __device__ __forceinline__ int pack(int v) const { return lane + v * lanes; }
  __device__ __forceinline__ int column(int v) const { return (first + pack(v)) * kSize; }
  __device__ __forceinline__ int first_column() const { return first * kSize; }
  __device__ __forceinline__ bool valid(int v) const { return pack(v) < packs; }
  /// Elements of pack v that belong to the row.
  __device__ __forceinline__ int count(int v) const {
    if constexpr (!kStaged) return valid(v) ? kSize : 0;
    return valid(v) ? min(kSize, cols - pack(v) * kSize) : 0;
  }

  /// Waits for the threads that share the row; `barrier` names one of the block's if they are several warps.
  __device__ __forceinline__ void sync(int barrier) const {
    if (lanes <= kWarp) {
      __syncwarp(group_mask(lanes));
    } else {
      group_barrier(barrier, lanes);
    }
  }

  /// This thread's packs of a slice that starts at `from`; elements that are not the row's are zero.
  template <int kVectors>
  __device__ __forceinline__ void load(const T* from, char* staging, int barrier, Pack<T> (&x)[kVectors]) const {
    if constexpr (kStaged) {
      const StagedRow<T> staged(staging, from, cols);
      staged.copy_in(from, lane, lanes);
      commit_copies();
      wait_copies<0>();
      sync(barrier);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) x[v] = valid(v) ? staged.read(pack(v)) : Pack<T>{};
      sync(barrier);  // the memory is free again
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        x[v] = Pack<T>{};
        if (valid(v)) x[v] = load_streaming(from + pack(v) * kSize);
      }
    }
  }

  /// Pack v of a slice that starts at `to`: written at once, or staged until flush().
  __device__ __forceinline__ void store(T* to, char* staging, int v, const Pack<T>& value) const {
    if (!valid(v)) return;
    if constexpr (kStaged) {
      StagedRow<T>(staging, to, cols).write(pack(v), value);
    } else {
      store_streaming(to + pack(v) * kSize, value);
    }
  }

  /// Writes out what is staged. The staging memory may be used again after another sync().
  __device__ __forceinline__ void flush(T* to, char* staging, int barrier) const {
    if constexpr (kStaged) {
      sync(barrier);
      StagedRow<T>(staging, to, cols).copy_out(to, lane, lanes);
    }
  }
};

}  // namespace normact::cuda
