// SPDX-License-Identifier: Apache-2.0
// What the warps of row_backward_cluster.cuh do with a row (sm_90): those that work on it take its sums, then write dx,
// both from shared memory; one that serves answers with the sums of the whole row.
#pragma once

#include "cuda/cluster_exchange.cuh"
#include "cuda/cluster_row.cuh"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// Whether rows follow each other in halves, of which a ring of two is enough: two of the widest rows of fp32 do not
/// fit in shared memory.
template <class T, bool kServed>
constexpr bool kRowsByHalves = !kServed && sizeof(T) == sizeof(Accumulator<T>);

#if __CUDA_ARCH__ >= 900

/// Mean (layer) and rstd of a row.
template <class A>
struct alignas(2 * sizeof(A)) RowStatistics {
  A mean;
  A rstd;
};

/// Those of a turn's row, if there is one.
template <NormKind kKind, class A>
__device__ __forceinline__ RowStatistics<A> load_statistics(const RowBackward& p, const RowDivisor& divisor,
                                                            const ClusterShare& share, int turn) {
  RowStatistics<A> statistics{A(0), A(0)};
  if (turn < share.turns) {
    const unsigned row = share.row(turn);
    if constexpr (kKind == NormKind::layer) statistics.mean = *turn_pointer<const A>(p.mean, divisor, row);
    statistics.rstd = *turn_pointer<const A>(p.rstd, divisor, row);
  }
  return statistics;
}

/// The serving warp of a block: answers with c1 and c2 of each of the cluster's rows. It also brings in the rows'
/// statistics, those of turns 0 and 1 before the block's first barrier, others with the answer two turns before: the
/// workers have no registers to load them ahead.
template <NormKind kKind, class A>
class BackwardServer {
 public:
  __device__ __forceinline__ BackwardServer(const RowBackward& p, const Scalars<A>& scalars, const ClusterShare& share,
                                            RowStatistics<A>* shared)
      : p_(p), scalars_(scalars), share_(share), shared_(shared) {}

  /// Before the block's first barrier.
  __device__ __forceinline__ void start() {
    next_ = batch_ = load(share_.lane);
    if (share_.lane < 2) shared_[share_.lane] = batch_;
  }

  __device__ __forceinline__ void run(WarpExchange<A, A>& exchange) {
    const auto merge = [](const SumPair<A>& part) {
      return SumPair<A>{warp_sum(part.first), kKind == NormKind::layer ? warp_sum(part.second) : A(0)};
    };
    A rstd = __shfl_sync(kFullWarp, batch_.rstd, 0), next_rstd = __shfl_sync(kFullWarp, batch_.rstd, 1);
    for (int turn = 0; turn < share_.turns; ++turn) {
      // Lane l has the statistics of turn l of 32; the next 32 are on their way by half of these.
      const int later = turn + 2;
      if (later % kWarp == kWarp / 2) next_ = load(later + kWarp / 2 + share_.lane);
      if (later % kWarp == 0) batch_ = next_;
      const RowStatistics<A> statistics{__shfl_sync(kFullWarp, batch_.mean, later % kWarp),
                                        __shfl_sync(kFullWarp, batch_.rstd, later % kWarp)};
      const SumPair<A> total = exchange.merge(turn, share_.warps, share_.blocks, share_.rank, merge, merge);
      if (share_.lane == 0) {
        shared_[later % kExchangeDepth] = statistics;
        exchange.publish(
            turn, {total.second * scalars_.reciprocal_cols * rstd, total.first * scalars_.reciprocal_cols * rstd});
      }
      rstd = next_rstd;
      next_rstd = statistics.rstd;
    }
  }

 private:
  __device__ __forceinline__ RowStatistics<A> load(int turn) const {
    return load_statistics<kKind, A>(p_, scalars_.rows, share_, turn);
  }

  const RowBackward& p_;
  const Scalars<A>& scalars_;
  const ClusterShare& share_;
  RowStatistics<A>* shared_;
  RowStatistics<A> batch_;
  RowStatistics<A> next_;
};

/// fetch(turn, slot): one thread starts bringing in a turn's row, if there is one: the block's part of it, or without a
/// serving warp the warp's own.
template <class T, bool kServed>
struct BackwardFetch {
  const RowBackward& p;
  const RowDivisor& divisor;
  const ClusterShare& share;
  RowRing& ring;
  bool residual;
  int stages;

  __device__ __forceinline__ void operator()(int turn, int slot) const {
    if (turn >= share.turns || (kServed ? share.block_count : share.count) == 0) return;
    ring.expect(slot);
    ring.copy(slot, 0, from(p.x, turn));
    ring.copy(slot, 1, from(p.dy, turn));
    if (residual) ring.copy(slot, 2, from(p.dresidual, turn));
  }

  /// The same of half a row, the first being a lane's first `split` packs; `number` counts halves.
  __device__ __forceinline__ void half(int number, int slot, int split) const {
    if (number / 2 >= share.turns || share.count == 0) return;
    const Half of(*this, number, split);
    ring.expect(slot, of.bytes);
    if (of.bytes > 0) {
      ring.copy(slot, 0, of.from(p.x), of.bytes);
      ring.copy(slot, 1, of.from(p.dy), of.bytes);
      if (residual) ring.copy(slot, 2, of.from(p.dresidual), of.bytes);
    }
    // With less than two rows nothing else would be on its way until a half is finished.
    const Half ahead(*this, number + 2, split);
    if (stages >= 4 || ahead.turn >= share.turns || ahead.bytes == 0) return;
    ring.prefetch_to_stay(ahead.from(p.x), ahead.bytes);
    ring.prefetch_to_stay(ahead.from(p.dy), ahead.bytes);
    if (residual) ring.prefetch_to_stay(ahead.from(p.dresidual), ahead.bytes);
  }

 private:
  struct Half {
    const BackwardFetch& fetch;
    int turn, first, bytes;

    __device__ __forceinline__ Half(const BackwardFetch& of, int number, int split) : fetch(of), turn(number / 2) {
      const int middle = min(split * kClusterStrideBytes, of.ring.bytes());
      first = number % 2 != 0 ? middle : 0;
      bytes = number % 2 != 0 ? of.ring.bytes() - middle : middle;
    }
    __device__ __forceinline__ const void* from(const Operand& operand) const {
      return reinterpret_cast<const char*>(fetch.from(operand, turn)) + first;
    }
  };

  __device__ __forceinline__ const T* from(const Operand& operand, int turn) const {
    return turn_pointer<const T>(operand, divisor, share.row(turn)) +
           (kServed ? share.block_first : share.first) * kPackSize<T>;
  }
};

/// Writes a thread's sums of one parameter to its cluster's row of partials.
template <class T, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ void store_partials(A* row, const A (&sum)[kVectors][kPackSize<T>],
                                               const ClusterShare& share) {
  if (row == nullptr) return;
  row += (share.first + share.lane) * kPackSize<T>;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!share.valid(v)) continue;
#pragma unroll
    for (int j = 0; j < kPackSize<T>; j += kPackSize<A>) {
      Pack<A> pack;
#pragma unroll
      for (int i = 0; i < kPackSize<A>; ++i) pack.word[i] = sum[v][j + i];
      store_pack(row + v * kClusterStride<T> + j, pack);
    }
  }
}

/// A working warp of a block: a thread's part of every row of its cluster, and its sums of dweight and dbias.
/// Template parameters as row_backward_cluster_kernel's.
template <class T, NormKind kKind, bool kActivated, class Stored, int kVectors, bool kHeld, bool kServed>
struct BackwardWorker {
  using A = Accumulator<T>;
  using Exchange = std::conditional_t<kServed, WarpExchange<A, A>, DirectExchange<A>>;
  /// Read from shared memory where there is room: the first level of the cache is small beside it, and its answers
  /// late.
  static constexpr bool kSharesBias = kActivated && kServed && sizeof(T) == 2;
  using Biases =
      std::conditional_t<kSharesBias, SharedLaneParameter<T, kVectors>, LaneParameter<T, T, kVectors, false>>;
  static __device__ __forceinline__ int bias_bytes(const ClusterShare& share) {
    return kSharesBias ? SharedLaneParameter<T, kVectors>::bytes(share) : 0;
  }
  /// shared: has so many bytes.
  static __device__ __forceinline__ Biases biases_of(const RowBackward& p, const ClusterShare& share, char* shared) {
    if constexpr (kSharesBias) {
      return Biases(p.bias, share, A(0), shared_address(shared));
    } else {
      return Biases(p.bias, share, A(0), A(0));
    }
  }
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  static constexpr bool kByHalves = kRowsByHalves<T, kServed>;
  /// g takes the place of dy in the ring, so that the weight, for which there are no registers, is read once a row.
  static constexpr bool kKeepsGradient = kByHalves;
  /// Slopes are computed once: dy times the slope takes the place of dy in the ring, and with a type of 16 bits also
  /// that of a tensor behind the others, for which the planner leaves room.
  static constexpr bool kKeeps = (kActivated && kServed) || kKeepsGradient;
  // Where there are registers for several packs at once.
  static constexpr bool kBranchless = (kHeld && kServed) || kKeepsGradient;
  static constexpr int kParts = sizeof(A) / sizeof(T);

  const KernelProblem<RowBackward, T, kActivated>& p;
  const Scalars<A>& scalars;
  const ClusterShare& share;
  RowRing& ring;
  Exchange& exchange;
  LaneParameter<T, Stored, kVectors, kHeld>& weights;
  Biases& biases;  // the forward's, for an activation
  A (&dweight)[kVectors][kSize];
  A (&dbias)[kVectors][kSize];
  const ParameterPlaces<kVectors * kSize> many;
  char* parts;  // of a direct exchange
  bool residual;
  bool bias;

  /// xhat, g = dy * weight and dy (times the activation's slope) of pack v; for a pack that is not there all are 0 and
  /// add nothing to any sum. kKept: they have been read before; of a kept gradient, dy is not given.
  template <bool kKept>
  __device__ __forceinline__ void read(int slot, int v, const RowStatistics<A>& of, A (&xhat)[kSize],
                                       A (&gradient)[kSize], A (&value)[kSize]) {
    constexpr bool kReady = kKept && kKeepsGradient;
    A weight[kSize];
    const bool there = !kBranchless || share.valid(v);
    unpack(load_shared_pack_if<T>(there, at(slot, 0, v)), xhat);
    if constexpr (kKept) {
#pragma unroll
      for (int h = 0; h < kParts; ++h) {
        unpack(load_shared_pack_if<A>(there, kept(slot, h, v)), (kReady ? gradient : value) + h * kPackSize<A>);
      }
    } else {
      unpack(load_shared_pack_if<T>(there, at(slot, 1, v)), value);
    }
    if constexpr (!kReady) get(weights, there, v, weight);
#pragma unroll
    for (int j = 0; j < kSize; ++j) xhat[j] = normalized(xhat[j], there ? of.mean : A(0), of.rstd);
    if constexpr (kActivated && !kKept) {
      A h[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) h[j] = A(0);
      if (share.valid(v)) get(biases, true, v, h);
#pragma unroll
      for (int j = 0; j < kSize; ++j) h[j] = affine(xhat[j], weight[j], h[j]);
      if (multiply_slopes<T>(value, h, p)) get(weights, there, v, weight);
    }
    if constexpr (!kReady) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] = value[j] * weight[j];
    }
  }

  template <class Parameter>
  static __device__ __forceinline__ void get(Parameter& parameter, bool there, int v, A (&value)[kSize]) {
    if constexpr (kKeepsGradient) {
      parameter.get_if(there, v, value);
    } else {
      parameter.get(v, value);
    }
  }

  /// What was written to a slot comes before what the next copy writes there, which lane 0 starts after a __syncwarp().
  static __device__ __forceinline__ void fence_kept() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

  /// Where pack v of a tensor is.
  __device__ __forceinline__ SharedAddress at(int slot, int tensor, int v) const {
    return ring.own(slot, tensor) + (kByHalves ? v % (kVectors / 2) : v) * kClusterStrideBytes;
  }
  /// Where what takes the place of dy is kept, in parts.
  __device__ __forceinline__ SharedAddress kept(int slot, int part, int v) const {
    return at(slot, part == 0 ? 1 : residual ? 3 : 2, v);
  }
  __device__ __forceinline__ void keep(int slot, int v, const A (&value)[kSize]) {
    if (!share.valid(v)) return;
#pragma unroll
    for (int h = 0; h < kParts; ++h) {
      Pack<A> pack;
#pragma unroll
      for (int j = 0; j < kPackSize<A>; ++j) pack.word[j] = value[h * kPackSize<A> + j];
      store_shared_pack(kept(slot, h, v), pack);
    }
  }

  /// Adds packs kFrom .. kTo - 1, once they are there, to the parameters' sums and to those of the row.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void add(const RingPlace& place, const RowStatistics<A>& of, SumPair<A>& sums) {
    if (share.count == 0) return;
    ring.wait(place);
#pragma unroll
    for (int v = kFrom; v < kTo; ++v) {
      if (!kBranchless && !share.valid(v)) continue;
      A xhat[kSize], gradient[kSize], value[kSize];
      read<false>(place.slot, v, of, xhat, gradient, value);
      if constexpr (kKeeps) keep(place.slot, v, kKeepsGradient ? gradient : value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        sums.first += gradient[j] * xhat[j];
        if constexpr (kLayer) sums.second += gradient[j];
        dweight[v][j] += value[j] * xhat[j];
      }
      if (bias) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) dbias[v][j] += value[j];
      }
    }
  }

  /// Gives the warp's part of a row's sums to the exchange.
  __device__ __forceinline__ void give(int turn, const SumPair<A>& sums) {
    A total[kLayer ? 2 : 1] = {sums.first};
    if constexpr (kLayer) total[1] = sums.second;
    lane_sums<kWarp>(total);
    const SumPair<A> pair{total[0], kLayer ? total[kLayer] : A(0)};
    if constexpr (kServed) {
      exchange.contribute(turn, share.warp, pair);
    } else {
      exchange.contribute(turn, parts, share.part(), share.parts(), share.blocks, pair);
    }
    if constexpr (kKeeps && !kServed) fence_kept();  // while others contribute: the answer is not there yet
  }

  /// Waits for a turn's row, adds to the parameters' sums and gives the warp's part of the row's sums to the exchange.
  __device__ __forceinline__ void contribute(int turn, const RingPlace& place, const RowStatistics<A>& of) {
    SumPair<A> sums{A(0), A(0)};
    add<0, kVectors>(place, of, sums);
    give(turn, sums);
  }

  /// What the exchange answers: the factors of a row's dx.
  __device__ __forceinline__ SumPair<A> answer(int turn, const RowStatistics<A>& of) {
    if constexpr (kServed) {
      const SumPair<A> answer = exchange.answer(turn);
      return {kLayer ? answer.first : A(0), answer.second};
    } else {
      const SumPair<A> total = exchange.answer(turn, parts, share.parts());
      return {kLayer ? total.second * scalars.reciprocal_cols * of.rstd : A(0),
              total.first * scalars.reciprocal_cols * of.rstd};
    }
  }

  /// Writes packs kFrom .. kTo - 1 of a turn's dx; the slot may be filled again then.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void write(int turn, int slot, const RowStatistics<A>& of, const SumPair<A>& c) {
    T* dx = share.own(turn_pointer<T>(p.dx, scalars.rows, share.row(turn)));
#pragma unroll
    for (int v = kFrom; v < kTo; ++v) {
      if (!kBranchless && !share.valid(v)) continue;
      A xhat[kSize], gradient[kSize], value[kSize];
      read<kKeeps>(slot, v, of, xhat, gradient, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[j] = input_gradient(gradient[j], xhat[j], of.rstd, c.first, c.second);
      if (residual) {
        unpack(load_shared_pack_if<T>(!kBranchless || share.valid(v), at(slot, 2, v)), value);
#pragma unroll
        for (int j = 0; j < kSize; ++j) gradient[j] += value[j];
      }
      if (share.valid(v)) store_pack(dx + v * kClusterStride<T>, to_pack<T>(gradient));
    }
    if constexpr (kKeeps && kServed) fence_kept();
    __syncwarp();
  }

  /// The same of all packs, with what the exchange answers.
  __device__ __forceinline__ void finish(int turn, int slot, const RowStatistics<A>& of) {
    write<0, kVectors>(turn, slot, of, answer(turn, of));
  }

  /// Writes the sums of dweight and dbias to the cluster's row of partials.
  __device__ __forceinline__ void write_sums(void* workspace) {
    many.give(dweight, dbias);
    const Partials<A> partials(p, workspace, share.clusters, share.cluster);
    store_partials<T>(partials.dweight, dweight, share);
    store_partials<T>(partials.dbias, dbias, share);
  }
};

#endif

}  // namespace normact::cuda
