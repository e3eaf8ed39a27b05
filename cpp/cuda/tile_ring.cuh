// SPDX-License-Identifier: Apache-2.0
// A ring of tiles in shared memory, filled ahead of use: how the persistent kernels keep memory busy while they
// compute.
//
// Tile     `rows` consecutive rows of one or more tensors; a slot of the ring holds one tile of each.
// sm_90    rows arrive by bulk copies that one warp starts. `full` opens when all bytes of a slot are there, `empty`
//          when every warp has read it; nobody waits for anyone else's arithmetic.
// Before   all threads copy 16 bytes at a time (asynchronously from sm_80 on), with block barriers in between.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

/// A barrier in shared memory that copies and threads arrive at (sm_90).
class Mbarrier {
 public:
#if __CUDA_ARCH__ >= 900
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  /// One arrival, and the phase also waits for so many bytes.
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// One arrival, once the cp.async copies that this thread has started are done.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }
  /// The phase also waits for so many bytes.
  __device__ __forceinline__ void expect(int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// Waits until the phase of this parity is over.
  __device__ __forceinline__ void wait(int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n"
        "}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  /// Starts copying whole 16-byte pieces from global memory; they count as this barrier's bytes.
  __device__ __forceinline__ void copy(SharedAddress shared, const void* global, int bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(address())
        : "memory");
  }

 private:
  __device__ __forceinline__ SharedAddress address() { return shared_address(&state_); }
#endif
  uint64_t state_;
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

/// The barriers of a ring; in static shared memory.
struct RingBarriers {
  Mbarrier full[kMaxStages];
  Mbarrier empty[kMaxStages];
};

/// All threads of the block call every method together, in the order: the constructor, start(); then for every tile
/// wait(), reads of tensor(), release(), refill().
/// Source: rows(tile), how many rows a tile has; from(tensor, tile, row), where a row begins in global memory;
/// kNarrowLast: whether the elements of the last tensor have half the bytes of the others'.
template <class Source>
class TileRing {
 public:
  /// tensor_bytes: of one tensor of a tile; row_bytes: a multiple of 16; dense: the rows of a tile follow each other in
  /// memory, so that one copy brings them all.
  __device__ TileRing(SharedAddress memory, RingBarriers& barriers, const Source& source, int tiles, int stages,
                      int tensors, int tensor_bytes, int row_bytes, bool dense)
      : source_(source),
        barriers_(barriers),
        begin_(memory),
        stage_bytes_(all_of(tensors, 1, tensor_bytes)),
        tiles_(tiles),
        stages_(stages),
        tensors_(tensors),
        tensor_bytes_(tensor_bytes),
        row_bytes_(row_bytes),
        dense_(dense),
        warp_(uniform_warp(thread())),
        current_(begin_) {
#if __CUDA_ARCH__ >= 900
    if (thread() == 0) {
      for (int s = 0; s < stages; ++s) {
        barriers.full[s].init(1);
        barriers.empty[s].init(threads() / kWarp);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#endif
    __syncthreads();
  }

  /// Starts bringing in the first tiles.
  __device__ void start() {
#pragma unroll 1
    for (int s = 0; s < stages_ - 1; ++s) fill(s, s);
  }

  __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
    barriers_.full[slot_].wait(phase_);
#else
    wait_for_copies(stages_ - 2);
    __syncthreads();
#endif
  }

  /// One tensor of the tile that wait() waited for.
  __device__ __forceinline__ SharedAddress tensor(int which) const { return current_ + which * tensor_bytes_; }

  /// This warp has read the tile.
  __device__ __forceinline__ void release() {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barriers_.empty[slot_].arrive();
#endif
  }

  /// Starts bringing in the tile `stages - 1` after this one, into the slot of the tile before this one.
  __device__ __forceinline__ void refill(int tile) {
    const int slot = slot_ == 0 ? stages_ - 1 : slot_ - 1;
    const int next = tile + stages_ - 1;
#if __CUDA_ARCH__ >= 900
    if (warp_ == 0 && next < tiles_) {
      if (tile > 0) barriers_.empty[slot].wait(slot_ == 0 ? phase_ ^ 1 : phase_);
      fill(slot, next);
    }
#else
    fill(slot, next);  // wait() was a barrier: the tile before has been read
#endif
    current_ += stage_bytes_;
    if (++slot_ == stages_) {
      slot_ = 0;
      phase_ ^= 1;
      current_ = begin_;
    }
  }

  /// After the last tile, before the memory is used for something else. Every copy has been waited for.
  __device__ void finish() {
    wait_copies<0>();
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ int thread() { return threadIdx.y * blockDim.x + threadIdx.x; }
  static __device__ __forceinline__ int threads() { return blockDim.x * blockDim.y; }

  /// Bytes of all tensors, and of one of them, where a tensor of full width has so many (all: times rows).
  static __device__ __forceinline__ int all_of(int tensors, int rows, int bytes) {
    return tensors * rows * bytes - (Source::kNarrowLast ? rows * bytes / 2 : 0);
  }
  __device__ __forceinline__ int one_of(int tensor, int bytes) const {
    return Source::kNarrowLast && tensor == tensors_ - 1 ? bytes / 2 : bytes;
  }

  __device__ __forceinline__ void fill(int slot, int tile) {
    const SharedAddress to = begin_ + slot * stage_bytes_;
    const int rows = tile < tiles_ ? source_.rows(tile) : 0;
#if __CUDA_ARCH__ >= 900
    if (warp_ != 0 || rows <= 0) return;
    Mbarrier& full = barriers_.full[slot];
    if (thread() == 0) full.arrive_and_expect(all_of(tensors_, rows, row_bytes_));
    __syncwarp();
    const int copies = dense_ ? 1 : rows;
    const int bytes = dense_ ? rows * row_bytes_ : row_bytes_;
#pragma unroll 1
    for (int i = thread(); i < copies * tensors_; i += kWarp) {
      const int tensor = i / copies;
      const int row = i - tensor * copies;
      full.copy(to + tensor * tensor_bytes_ + one_of(tensor, row * row_bytes_), source_.from(tensor, tile, row),
                one_of(tensor, bytes));
    }
#else
    for (int tensor = 0; tensor < tensors_; ++tensor) {
      const int pieces = one_of(tensor, row_bytes_) / kPackBytes;
      for (int i = thread(); i < rows * pieces; i += threads()) {
        const int row = i / pieces;
        copy_async(to + tensor * tensor_bytes_ + i * kPackBytes,
                   static_cast<const char*>(source_.from(tensor, tile, row)) + (i - row * pieces) * kPackBytes);
      }
    }
    commit_copies();
#endif
  }

  Source source_;
  RingBarriers& barriers_;
  SharedAddress begin_;
  int stage_bytes_;
  int tiles_;
  int stages_;
  int tensors_;
  int tensor_bytes_;
  int row_bytes_;
  bool dense_;
  int warp_;
  SharedAddress current_;
  int slot_ = 0;
  int phase_ = 0;
};

}  // namespace normact::cuda
