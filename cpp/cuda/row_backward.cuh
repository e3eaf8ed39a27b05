// SPDX-License-Identifier: Apache-2.0
// Row norm backward of rows that are whole 16-byte packs, one read of everything: variants warp and block.
//
// Mixed    T is fp32 and X a 16-bit type: dy and dx move in packs of 8 bytes, all else is as for fp32.
// Work     a persistent grid of one block a multiprocessor. A block works on a tile of rows at a time, one row for each
//          of its groups: kLanes lanes (warp), or a whole number of warps (block). A thread owns the same kVectors
//          packs of every row it sees, so dweight and dbias add up in its registers.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one row a block to
//          the workspace, which parameter_sum.cuh adds up in a fixed order (a single block writes the result).
// Pipeline tiles come in ahead through a ring of shared memory (tile_ring.cuh). xhat and g stay in registers over the
//          two sums of a row, so that a tile's slot is free again as soon as it has been read.
// Barriers warp: none. block: one named barrier a row. Before sm_90 also one of the block a tile.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/parameter_sum.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_forward.cuh"
#include "cuda/tile_ring.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// The tiles of one block: one row for each of its groups. Of x, dy and dresidual, but of x, dresidual and dy if those
/// of dy, which then are half as long, come last.
template <class T, class X>
struct BackwardTiles {
  static constexpr bool kNarrowLast = !std::is_same_v<X, T>;

  const RowBackward& p;
  const RowDivisor& divisor;
  int groups;
  int64_t first;  // row of this block's first tile
  int64_t step;   // rows from one of its tiles to the next

  __device__ int count() const {
    return first < p.geometry.rows ? static_cast<int>((p.geometry.rows - first + step - 1) / step) : 0;
  }
  __device__ __forceinline__ int64_t row(int tile) const { return first + tile * step; }
  __device__ __forceinline__ int rows(int tile) const {
    return static_cast<int>(min(p.geometry.rows - row(tile), static_cast<int64_t>(groups)));
  }
  __device__ __forceinline__ const void* from(int tensor, int tile, int row_of_tile) const {
    if constexpr (kNarrowLast) {
      const RowIndex index(divisor, row(tile) + row_of_tile);
      if (tensor == dy_place(p.dresidual.data != nullptr)) return row_pointer<const X>(p.dy, index);
      return row_pointer<const T>(tensor == 0 ? p.x : p.dresidual, index);
    } else {
      const Operand& operand = tensor == 0 ? p.x : tensor == 1 ? p.dy : p.dresidual;
      return row_pointer<const T>(operand, RowIndex(divisor, row(tile) + row_of_tile));
    }
  }
  static __device__ __forceinline__ int dy_place(bool residual) { return kNarrowLast && residual ? 2 : 1; }
  static constexpr int kResidualPlace = kNarrowLast ? 1 : 2;
  __device__ bool dense() const {
    const auto follows = [&](const Operand& operand) {
      return operand.data == nullptr || operand.row_stride[0] == p.geometry.cols;
    };
    return p.geometry.row_ndim == 1 && follows(p.x) && follows(p.dy) && follows(p.dresidual);
  }
};

/// This thread's packs of a row in shared memory; past the row there may be none, and they are zero.
template <class T, int kStride, int kVectors>
__device__ __forceinline__ void load_own_packs(SharedAddress from, const OwnPacks<T, kStride>& own, int packs,
                                               Pack<T> (&pack)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    pack[v] = {};
    if (own.first + v * kStride < packs) pack[v] = load_shared_pack<T>(from + v * kStride * kPackBytes);
  }
}

/// sum += the pack's elements.
template <class T>
__device__ __forceinline__ void add_pack(const Pack<T>& pack, Accumulator<T> (&sum)[kPackSize<T>]) {
  Accumulator<T> value[kPackSize<T>];
  unpack(pack, value);
#pragma unroll
  for (int j = 0; j < kPackSize<T>; ++j) sum[j] += value[j];
}

/// Leaves a thread's sums of one parameter in the columns of its warp (whose groups it adds up) or its group.
template <class T, int kStride, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ void store_thread_sums(const OwnPacks<T, kStride>& own, A (&sum)[kVectors][kPackSize<T>],
                                                  A* columns) {
  constexpr int kSize = kPackSize<T>;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum[v][j] = sum_over_groups<kStride>(sum[v][j]);
    if (!own.valid(v) || threadIdx.x % kWarp >= kStride) continue;
#pragma unroll
    for (int j = 0; j < kSize; j += kPackSize<A>) {
      store_shared_values(columns + (own.first + v * kStride) * kSize + j, &sum[v][j]);
    }
  }
}

/// Adds up the sums of the block's parts and writes them. The groups of a warp have added theirs up; what is left is a
/// part a warp, or a group of warps.
template <class X, class T, int kStride, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ void write_parameter_sums(const RowBackward& p, const OwnPacks<T, kStride>& own,
                                                     void* shared, void* workspace, int part, int parts,
                                                     A (&dweight)[kVectors][kPackSize<T>],
                                                     A (&dbias)[kVectors][kPackSize<T>]) {
  const auto store = [&](A(&sum)[kVectors][kPackSize<T>], A* columns) { store_thread_sums<T>(own, sum, columns); };
  Partials<A> partials(p, workspace, gridDim.x, blockIdx.x);
  partials.template write_block<X>(
      p, shared, [&](A* columns) { store(dweight, columns); }, [&](A* columns) { store(dbias, columns); }, part, parts,
      0, static_cast<int>(p.geometry.cols));
}

/// The rows of a group, one a tile, as far as they do not come through the ring: their statistics, and where a thread's
/// first pack of dx (and of daddend) is. Each of the kBatch lanes that have the same rows brings in the statistics of
/// one of their next kBatch, a batch ahead.
template <class T, class X, NormKind kKind, int kBatch>
class GroupRows {
 public:
  using A = Accumulator<T>;

  /// `offset`: of the thread's first pack, in elements.
  __device__ __forceinline__ GroupRows(const RowBackward& p, const BackwardTiles<T, X>& tiles, int count, int group,
                                       int offset)
      : p_(p),
        tiles_(tiles),
        group_(group),
        offset_(offset),
        count_(count > 0 && row_of(count - 1) >= p.geometry.rows ? count - 1 : count) {
    if (count_ == 0) return;
    load(lane());
    find(0);
    step_ = tiles.step * p.dx.row_stride[0];
    asm volatile("" : "+l"(step_));  // or it would be multiplied for each row
  }
  /// Whether the group has one of a tile's rows: of the last tile it may have none.
  __device__ __forceinline__ bool there(int tile) const { return tile < count_; }
  /// Goes on to a tile, one after the other. All lanes of a warp.
  __device__ __forceinline__ void take(int tile, A& mean, A& rstd) {
    const int of = tile % kBatch;
    if (of == 0) batch_ = next_;
    if (of == kBatch / 2) load(tile - of + kBatch + lane());
    const auto of_lane = [&](A value) { return kBatch == 1 ? value : __shfl_sync(kFullWarp, value, of, kBatch); };
    if constexpr (kLayer) mean = of_lane(batch_.mean);
    rstd = of_lane(batch_.rstd);
    if (!tiles_.divisor.flat && there(tile)) find(tile);
  }
  /// Writes the pack of the tile's row that begins `elements` behind the thread's first one.
  __device__ __forceinline__ void store(int elements, const A (&gradient)[kPackSize<T>]) const {
    store_pack(dx_ + elements, to_pack_beside<X, T>(gradient));
    if constexpr (kMixed) {
      if (p_.daddend.data != nullptr) store_pack(daddend_ + elements, to_pack<T>(gradient));
    }
  }
  /// Ends a tile. In one dimension rows are equally far apart; in two, finding one takes a division.
  __device__ __forceinline__ void leave() {
    dx_ += step_;
    if constexpr (kMixed) daddend_ += tiles_.step * p_.daddend.row_stride[0];
  }

 private:
  struct Statistics {
    A mean, rstd;
  };
  static constexpr bool kLayer = kKind == NormKind::layer, kMixed = !std::is_same_v<X, T>;

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kBatch; }
  __device__ __forceinline__ int64_t row_of(int tile) const { return tiles_.row(tile) + group_; }
  __device__ __forceinline__ void load(int tile) {
    next_ = {A(0), A(0)};
    if (!there(tile)) return;
    const RowIndex index(tiles_.divisor, row_of(tile));
    if constexpr (kLayer) next_.mean = *row_pointer<const A>(p_.mean, index);
    next_.rstd = *row_pointer<const A>(p_.rstd, index);
  }
  __device__ __forceinline__ void find(int tile) {
    const RowIndex index(tiles_.divisor, row_of(tile));
    dx_ = row_pointer<X>(p_.dx, index) + offset_;
    if constexpr (kMixed) daddend_ = row_pointer<T>(p_.daddend, index) + offset_;
  }

  const RowBackward& p_;
  const BackwardTiles<T, X>& tiles_;
  int group_, offset_, count_;
  Statistics batch_, next_{A(0), A(0)};
  X* dx_;
  T* daddend_;
  int64_t step_;
};

template <class T, class X, NormKind kKind, bool kActivated, int kLanes, int kVectors, int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    row_backward_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                        const Scalars<Accumulator<T>> scalars, int stages, void* workspace, double* places) {
  using A = Accumulator<T>;
  using Tiles = BackwardTiles<T, X>;
  constexpr int kSize = kPackSize<T>;
  constexpr bool kBlock = kLanes == 0;
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr int kStride = kBlock ? kWarp : kLanes;
  extern __shared__ __align__(128) char shared[];
  __shared__ RingBarriers barriers;
  constexpr int kSums = kLayer ? 2 : 1;
  using Sum = RowSum<kLanes, A, kSums, 2>;
  __shared__ typename Sum::Scratch scratch;

  const RowGeometry& g = p.geometry;
  const int lane = kBlock ? threadIdx.x : threadIdx.x % kStride;
  const int group = kBlock ? threadIdx.y : threadIdx.x / kStride;
  const int groups = kBlock ? blockDim.y : blockDim.x / kStride;
  const int packs = static_cast<int>(g.cols) / kSize;
  const OwnPacks<T, kStride> own{kBlock ? lane / kWarp * (kWarp * kVectors) + lane % kWarp : lane, packs};
  const int row_bytes = packs * kPackBytes;
  const bool residual = p.dresidual.data != nullptr;
  const bool bias = p.dbias.data != nullptr;

  // Shared memory: the effective weight, with an activation the bias, then the ring.
  const int parameter_bytes = StagedParameter<T>::bytes(packs);
  const SharedAddress memory = known_address(shared);
  const StagedParameter<T> weights(memory, packs);
  const StagedParameter<T> biases(memory + (kActivated ? parameter_bytes : 0), packs);
  const Tiles source{p, scalars.rows, groups, static_cast<int64_t>(blockIdx.x) * groups,
                     static_cast<int64_t>(gridDim.x) * groups};
  const int tiles = source.count();
  TileRing<Tiles> ring(memory + (kActivated ? 2 : 1) * parameter_bytes, at_known_address(barriers), source, tiles,
                       stages, residual ? 3 : 2, groups * row_bytes, row_bytes, source.dense());
  prefetch_parameter<X>(p.weight, g.cols);
  start_after_previous();
  ring.start();
  weights.fill_packs(Parameter<T, X>(p.weight), packs, A(1), scalars.weight_offset);
  if constexpr (kActivated) biases.fill_packs(Parameter<T, X>(p.bias), packs, A(0), A(0));
  __syncthreads();

  A dweight[kVectors][kSize] = {}, dbias[kVectors][kSize] = {};
  const ParameterPlaces<kVectors * kSize> many(places);
  const SharedAddress row_offset = group * row_bytes + own.first * kPackBytes;
  const Sum row_sum(scratch, group, lane / kWarp, blockDim.x / kWarp, 1 + group);
  // Statistics of more rows at a time take fewer instructions, by which activated rows are bound. Bare ones are bound
  // by memory, and slower so (layer norm 65536x768 bf16: 86 us for 80.5, H200).
  constexpr int kBatch = !kActivated ? 1 : kStride < 8 ? kStride : 8;
  GroupRows<T, X, kKind, kBatch> rows(p, source, tiles, group, own.first * kSize);
  int parity = 0;
  for (int tile = 0; tile < tiles; ++tile, parity ^= 1) {
    const int here = rows.there(tile) ? packs : 0;  // of this group's row, if it has one
    A mean = A(0), rstd;
    rows.take(tile, mean, rstd);
    ring.wait();
    const SharedAddress x = ring.tensor(0) + row_offset;
    const SharedAddress dy =
        ring.tensor(Tiles::dy_place(residual)) + (Tiles::kNarrowLast ? row_offset / 2 : row_offset);
    A xhat[kVectors][kSize], gradient[kVectors][kSize];
    A sum[kSums] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const bool valid = own.first + v * kStride < here;
      Pack<T> x_pack{};  // zeros add nothing to any sum; nor does their xhat, which would overflow of a large mean
      PackBeside<X, T> dy_pack{};
      if (valid) {
        x_pack = load_shared_pack<T>(x + v * kStride * kPackBytes);
        dy_pack = load_shared_pack_beside<X, T>(dy + v * kStride * kBytesBeside<X, T>);
      }
      A value[kSize], weight[kSize];
      const int place = own.valid(v) ? (own.first + v * kStride) * kPackBytes : 0;
      if constexpr (!kActivated) weights.get(place, weight);
      unpack(x_pack, xhat[v]);
      unpack(dy_pack, value);
#pragma unroll
      for (int j = 0; j < kSize; ++j) xhat[v][j] = normalized(xhat[v][j], own.valid(v) ? mean : A(0), rstd);
      if constexpr (kActivated) multiply_slopes_of_row<T>(value, xhat[v], weights, biases, place, weight, p);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        gradient[v][j] = value[j] * weight[j];
        sum[0] += gradient[v][j] * xhat[v][j];
        if constexpr (kLayer) sum[kLayer] += gradient[v][j];
        dweight[v][j] += value[j] * xhat[v][j];
      }
      if (kLayer || kActivated || bias) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) dbias[v][j] += value[j];
      }
    }
    Pack<T> addend[kVectors];
    if (residual) load_own_packs(ring.tensor(Tiles::kResidualPlace) + row_offset, own, here, addend);
    ring.release();
    row_sum.run(sum, parity);
    ring.refill(tile);
    const A c2 = sum[0] * scalars.reciprocal_cols * rstd;
    const A c1 = kLayer ? sum[kLayer] * scalars.reciprocal_cols * rstd : A(0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) gradient[v][j] = input_gradient(gradient[v][j], xhat[v][j], rstd, c1, c2);
      if (residual) add_pack(addend[v], gradient[v]);
      if (own.first + v * kStride < here) rows.store(v * (kStride * kSize), gradient[v]);
    }
    rows.leave();
    many.after(tile, dweight, dbias);
  }
  ring.finish();
  many.give(dweight, dbias);

  write_parameter_sums<X>(p, own, shared, workspace, kBlock ? group : threadIdx.x / kWarp,
                          kBlock ? groups : blockDim.x / kWarp, dweight, dbias);
}

}  // namespace normact::cuda
