// SPDX-License-Identifier: Apache-2.0
// How the kernels for wide rows divide a row, and how its bytes reach shared memory (sm_90).
//
// Work     the blocks of a cluster share every row of the cluster. Each working warp of a block, at most kClusterWarps,
//          owns the same contiguous packs of all these rows, and lane l of it the packs l, l + 32, ... of those.
// Bytes    come in by bulk copies. One more warp brings in the block's part of every row, a copy a tensor, as soon as
//          all warps have read the row before it in its slot; where there are no registers for one, every warp brings
//          in its own packs, into slots that only it reads and refills.
#pragma once

#include "cuda/cluster_exchange.cuh"
#include "cuda/memory.cuh"
#include "cuda/tile_ring.cuh"

namespace normact::cuda {

/// How a row is divided; see RowPlan.
struct ClusterSplit {
  int warps;  // of a block that work on rows
  int packs_per_warp;
  int stages;  // rows in flight, the one worked on included, or halves of rows
};

#if __CUDA_ARCH__ >= 900

/// What a thread of a cluster works on.
struct ClusterShare {
  int warp;   // of the block
  int warps;  // of the block that work on rows
  int lane;
  int blocks;  // of the cluster
  int rank;    // of this block in it
  int packs;   // of a row
  int packs_per_warp;
  int first;        // pack of this warp
  int count;        // packs of this warp; 0 past the end of the row and for a warp that does not work on rows
  int block_first;  // pack of this block
  int block_count;  // packs of this block
  int cluster;      // of the grid
  int clusters;     // in the grid
  int turns;        // rows of this cluster

  __device__ __forceinline__ ClusterShare(int64_t rows, int row_packs, const ClusterSplit& split)
      : warp(uniform_warp()),
        warps(split.warps),
        lane(threadIdx.x % kWarp),
        blocks(cg::this_cluster().num_blocks()),
        rank(cg::this_cluster().block_rank()),
        packs(row_packs),
        packs_per_warp(split.packs_per_warp),
        first(part() * packs_per_warp),
        count(warp < warps ? packs_from(first, packs_per_warp) : 0),
        block_first(rank * room()),
        block_count(packs_from(block_first, room())),
        cluster(blockIdx.x / blocks),
        clusters(gridDim.x / blocks),
        turns(static_cast<int>((rows - cluster + clusters - 1) / clusters)) {}

  /// Rows are fewer than 2^31 (the planner sees to that); two turns past the end are still numbers.
  __device__ __forceinline__ unsigned row(int turn) const { return cluster + static_cast<unsigned>(turn) * clusters; }
  __device__ __forceinline__ bool full(int vectors) const { return count == vectors * kWarp; }

  __device__ __forceinline__ bool valid(int v) const { return lane + v * kWarp < count; }
  /// Packs that the warps of a block have room for.
  __device__ __forceinline__ int room() const { return warps * packs_per_warp; }
  /// Working warps of the cluster, and the number of this one among them.
  __device__ __forceinline__ int parts() const { return warps * blocks; }
  __device__ __forceinline__ int part() const { return warps * rank + warp; }
  /// Packs of this lane.
  __device__ __forceinline__ int lane_count() const { return max(0, (count - lane + kWarp - 1) / kWarp); }
  /// The row's packs in [from, from + most).
  __device__ __forceinline__ int packs_from(int from, int most) const { return min(max(packs - from, 0), most); }
  /// Element 0 of this lane's pack 0, in a row.
  template <class T>
  __device__ __forceinline__ T* own(T* row) const {
    return row + (first + lane) * kPackSize<std::remove_const_t<T>>;
  }
};

/// Where a row of this operand starts: row_pointer() in as few instructions as rows in one dimension take.
template <class T>
__device__ __forceinline__ T* turn_pointer(const Operand& operand, const RowDivisor& divisor, unsigned row) {
  int64_t offset = row * operand.row_stride[0];
  if (!divisor.flat) {
    const unsigned outer = divisor.quotient(row);
    offset = outer * operand.row_stride[0] + (row - outer * divisor.size) * operand.row_stride[1];
  }
  return static_cast<T*>(operand.data) + offset;
}

/// From one of a lane's packs to its next: elements, and bytes in shared memory.
template <class T>
constexpr int kClusterStride = kWarp * kPackSize<T>;
constexpr int kClusterStrideBytes = kWarp * kPackBytes;

/// The slot of a row, and how often it has been used before, modulo 2.
struct RingPlace {
  int slot;
  int parity;

  /// That of the warp's next row.
  __device__ __forceinline__ RingPlace next(int stages) const {
    return slot + 1 == stages ? RingPlace{0, parity ^ 1} : RingPlace{slot + 1, parity};
  }
};

/// A ring of rows, or of halves of rows, in shared memory: `stages` slots of `tensors` tensors. It is a block's, which
/// one warp fills, or a warp's own.
class RowRing {
 public:
  /// room: packs of a tensor in a slot; count: those of a row that come; own: this lane's pack 0; spare: tensors of a
  /// slot that are not copied.
  __device__ __forceinline__ RowRing(char* memory, Mbarrier* full, int room, int count, int own, int stages,
                                     int tensors, int spare)
      : full_(full),
        begin_(shared_address(memory)),
        own_(begin_ + own * kPackBytes),
        bytes_(count * kPackBytes),
        tensor_bytes_(room * kPackBytes),
        slot_bytes_((tensors + spare) * tensor_bytes_),
        stages_(stages),
        tensors_(tensors) {}

  /// One thread, before the first expect().
  __device__ __forceinline__ void init() {
#pragma unroll 1
    for (int s = 0; s < stages_; ++s) full_[s].init(1);
    fence_barriers();
  }

  /// What is started and waited for after this finds the barriers that this thread initialised.
  static __device__ __forceinline__ void fence_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  /// One thread: a row is to come to the slot, or so many bytes of one; copy() of these of each tensor follows, if
  /// there are any.
  __device__ __forceinline__ void expect(int slot) { expect(slot, bytes_); }
  __device__ __forceinline__ void expect(int slot, int bytes) { full_[slot].arrive_and_expect(tensors_ * bytes); }

  /// One thread has a row's packs on their way to the L2 cache; `from` is where they begin.
  __device__ __forceinline__ void prefetch(const void* from) {
    if (bytes_ > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes_));
  }

  /// The same for some bytes that have to stay there until copy(), while others are read and written.
  __device__ __forceinline__ void prefetch_to_stay(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from), "r"(bytes),
                 "l"(stay_policy()));
  }

  /// One thread starts bringing in a tensor of a row; `from` is where its packs begin.
  __device__ __forceinline__ void copy(int slot, int tensor, const void* from) { copy(slot, tensor, from, bytes_); }
  __device__ __forceinline__ void copy(int slot, int tensor, const void* from, int bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(begin_ + slot * slot_bytes_ + tensor * tensor_bytes_),
        "l"(from), "r"(bytes), "r"(shared_address(&full_[slot])), "l"(stay_policy())
        : "memory");
  }

  __device__ __forceinline__ void wait(const RingPlace& place) {
    if (bytes_ > 0) full_[place.slot].wait(place.parity);
  }

  /// This lane's pack 0 of a tensor.
  __device__ __forceinline__ SharedAddress own(int slot, int tensor) const {
    return own_ + slot * slot_bytes_ + tensor * tensor_bytes_;
  }

  __device__ __forceinline__ int bytes() const { return bytes_; }

 private:
  /// Lets what is written leave the L2 cache before what is still to be read.
  static __device__ __forceinline__ uint64_t stay_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
  }

  Mbarrier* full_;
  SharedAddress begin_;
  SharedAddress own_;
  int bytes_;
  int tensor_bytes_;
  int slot_bytes_;
  int stages_;
  int tensors_;
};

/// The barriers of a block's ring; in static shared memory.
struct BlockRingBarriers {
  Mbarrier full[kClusterStages];
  Mbarrier empty[kClusterStages];  // every working warp has read the row

  /// One thread.
  __device__ __forceinline__ void init(int warps) {
    for (Mbarrier& barrier : full) barrier.init(1);
    for (Mbarrier& barrier : empty) barrier.init(warps);
    RowRing::fence_barriers();
  }
};

/// One thread keeps a block's ring filled: fetch(turn, slot) starts bringing in a row.
template <class Fetch>
__device__ __forceinline__ void fetch_rows(BlockRingBarriers& barriers, int turns, int stages, Fetch fetch) {
  RingPlace place{0, 0};
  for (int turn = 0; turn < turns; ++turn) {
    if (turn >= stages) barriers.empty[place.slot].wait(place.parity ^ 1);
    fetch(turn, place.slot);
    place = place.next(stages);
  }
}

/// A pack in shared memory, or zeros; without a branch, so that other packs' loads need not wait for it.
template <class T>
__device__ __forceinline__ Pack<T> load_shared_pack_if(bool valid, SharedAddress from) {
  uint4 bits{};
  asm volatile(
      "{\n"
      ".reg .pred valid;\n"
      "setp.ne.s32 valid, %5, 0;\n"
      "@valid ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w)
      : "r"(from), "r"(static_cast<int>(valid))
      : "memory");
  return to_pack<T>(bits);
}

/// Keeps the compiler from unpacking parameters once for all rows, which takes twice their registers.
template <class T>
__device__ __forceinline__ void keep_packed(Pack<T>& pack) {
#pragma unroll
  for (uint32_t& word : pack.word) asm volatile("" : "+r"(word));
}

/// A parameter's elements for a lane's packs. kHeld: in registers, as they are stored in Stored. Else read again for
/// each row, in whatever type they are stored.
template <class T, class Stored, int kVectors, bool kHeld>
class LaneParameter {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr int kPieces = kSize / kPackSize<Stored>;
  static constexpr bool kReady = kHeld && std::is_same_v<Stored, A>;  // the offset is added once for all rows

 public:
  /// `offset` is added to every element. Where the operand is absent, all are `otherwise`.
  __device__ __forceinline__ LaneParameter(const Operand& operand, const ClusterShare& share, A otherwise, A offset)
      : parameter_(operand),
        first_((share.first + share.lane) * kSize),
        otherwise_(otherwise),
        offset_(operand.data != nullptr ? offset : A(0)) {
    if constexpr (kHeld) {
      const Stored* from = static_cast<const Stored*>(operand.data) + first_;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          pack_[v][i] = constant_pack<Stored>(otherwise);
          if (operand.data != nullptr && share.valid(v)) {
            pack_[v][i] = to_pack<Stored>(
                __ldg(reinterpret_cast<const uint4*>(from + v * kClusterStride<T> + i * kPackSize<Stored>)));
          }
          if constexpr (kReady) {
#pragma unroll
            for (A& element : pack_[v][i].word) element = effective_weight(element, offset_);
          }
        }
      }
    }
  }

  /// Those of pack v, which must be valid.
  __device__ __forceinline__ void get(int v, A (&value)[kSize]) {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if constexpr (sizeof(Stored) < sizeof(A)) keep_packed(pack_[v][i]);
        unpack(pack_[v][i], value + i * kPackSize<Stored>);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = otherwise_;
      if (parameter_.data != nullptr) parameter_.load(first_ + v * kClusterStride<T>, value);
    }
    if (!kReady && offset_ != A(0)) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = effective_weight(value[j], offset_);
    }
  }

  /// The same of a parameter in x's type that is read again, without a branch: `otherwise` where pack v is not there.
  __device__ __forceinline__ void get_if(bool there, int v, A (&value)[kSize]) const {
    static_assert(!kHeld && std::is_same_v<T, A>);
    const T* from = static_cast<const T*>(parameter_.data) + first_;
    load_parameters_if<T>(from + v * kClusterStride<T>, there && parameter_.data != nullptr, otherwise_, value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = effective_weight(value[j], offset_);
  }

 private:
  Parameter<T> parameter_;
  int first_;
  A otherwise_;
  A offset_;
  Pack<Stored> pack_[kHeld ? kVectors : 1][kPieces];
};

/// The same, kept in shared memory: a lane's packs for the lane alone, so without a barrier.
template <class T, int kVectors>
class SharedLaneParameter {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;

 public:
  static __device__ __forceinline__ int bytes(const ClusterShare& share) {
    return StagedParameter<T>::bytes(share.room());
  }
  /// `memory` has so many bytes.
  __device__ __forceinline__ SharedLaneParameter(const Operand& operand, const ClusterShare& share, A otherwise,
                                                 SharedAddress memory)
      : own_(memory + (share.warp * share.packs_per_warp + share.lane) * kPackBytes, share.room()) {
    const Parameter<T> parameter(operand);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!share.valid(v)) continue;
      A value[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] = otherwise;
      if (operand.data != nullptr) parameter.load((share.first + share.lane) * kSize + v * kClusterStride<T>, value);
      own_.put(v * kClusterStrideBytes, value);
    }
  }

  /// Those of pack v, which must be valid.
  __device__ __forceinline__ void get(int v, A (&value)[kSize]) const { own_.get(v * kClusterStrideBytes, value); }

 private:
  StagedParameter<T> own_;
};

#endif

}  // namespace normact::cuda
