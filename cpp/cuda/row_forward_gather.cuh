// SPDX-License-Identifier: Apache-2.0
// Row norm forward of rows whose columns are in pieces or apart, held in registers: variants warp and block.
//
// Work     of a block, blockDim.x threads own a row at a time, blockDim.y rows together: lanes of a warp, or a block
//          with one row. A thread owns the same units of every row it sees (row_gather.cuh). Several blocks share a
//          multiprocessor, so that while one waits, others work. The grid of single elements is persistent: what a
//          thread finds of its units lasts for many rows.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers lanes: none. Block: one a row (row_parts.cuh); two where layer norm has single elements.
// Sums     from registers, of deviations from a mean that is rounded, and what these leave of it.
#pragma once

#include "cuda/row_activation.cuh"
#include "cuda/row_gather.cuh"
#include "cuda/row_parts.cuh"
#include "cuda/values.cuh"

namespace normact::cuda {

/// Tensors of x's shape beside it, in the order of GatherPlaces.
enum ForwardTensor { kForwardResidual, kForwardSum, kForwardY };
using ForwardPlaces = GatherPlaces<3>;

/// What is normalised, to `held`: x, or its sum with the residual, which is written. row: 0 where there is none.
template <class T, int kSize, int kUnits>
__device__ __forceinline__ void load_units(const RowForward& p, const ForwardPlaces& places, unsigned row, bool active,
                                           const OwnUnits<kSize, kUnits, 3>& own, Unit<T, kSize> (&held)[kUnits]) {
  using A = Accumulator<T>;
  constexpr int kAhead = kGatherAhead<kSize>;
  const Operand* const operands[] = {&p.x, &p.residual, &p.residual_out};
  int64_t at[3];
  places.find_row(row, p.geometry, operands, at);
  const T* const x = static_cast<const T*>(p.x.data) + at[0];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    held[u] = {};
    if (active && own.valid(u)) held[u].load(x + own.of_x(u));
  }
  if (p.residual.data == nullptr) return;
  const T* const residual = static_cast<const T*>(p.residual.data) + at[1];
  T* const sum = static_cast<T*>(p.residual_out.data) + at[2];
#pragma unroll
  for (int first = 0; first < kUnits; first += kAhead) {
    Unit<T, kSize> addend[kAhead];
    int offset[kAhead];
    own.of_tensor(kForwardResidual, p.residual, first, offset);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (active && own.valid(first + u)) addend[u].load(residual + offset[u]);
    }
    own.of_tensor(kForwardSum, p.residual_out, first, offset);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      A value[kSize], more[kSize];
      held[first + u].unpack(value);
      addend[u].unpack(more);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[j] += more[j];
      held[first + u].hold(value);
      if (active && own.valid(first + u)) held[first + u].write(sum + offset[u], value);
    }
  }
}

/// Mean and rstd of a row, and the share of the mean that its rounded sum had left out.
template <class A>
struct GatheredStatistics {
  A rounded_mean, left, rstd;
};

/// Finds them. Of one object a block.
template <class T, NormKind kKind, int kSize, int kUnits>
class GatheredMoments {
 public:
  using A = Accumulator<T>;
  using Own = OwnUnits<kSize, kUnits, 3>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  /// Whether warps leave parts of a row. Merging takes more instructions than a second sum, of which threads that have
  /// a few single elements have none to spare.
  static constexpr bool kParts = kLayer && kSize > 1;
  template <int kCount>
  using Sum = std::conditional_t<kParts, HelperSum<A, kCount>, GatherSum<A, kCount, 2, false>>;
  using Total = Sum<1>;
  using Spread = Sum<kLayer ? 2 : 1>;
  struct Parts {
    RowPart<A> of_warp[2][kWarp];
  };
  struct NoParts {};
  struct Scratch {
    typename Total::Scratch total;
    typename Spread::Scratch spread;
    std::conditional_t<kParts, Parts, NoParts> parts;
  };

  __device__ __forceinline__ GatheredMoments(Scratch& scratch, int units)
      : scratch_(scratch), total_(scratch.total), spread_(scratch.spread) {
    if (!kParts || blockDim.x <= kWarp) return;
    const int first = static_cast<int>(threadIdx.x) % kWarp * kWarp, apart = static_cast<int>(blockDim.x);
    if (first >= apart) return;  // no such warp
#pragma unroll
    for (int u = 0; u < kUnits; ++u) count_ += static_cast<A>(max(0, min(kWarp, units - u * apart - first)) * kSize);
    share_ = A(1) / count_;
  }

  /// turn: 0 and 1 by turns.
  __device__ __forceinline__ GatheredStatistics<A> find(const Own& own, const Unit<T, kSize> (&held)[kUnits],
                                                        const Scalars<A>& scalars, int turn) const {
    if constexpr (kParts) {
      if (blockDim.x > kWarp) return of_warps(own, held, scalars, turn);
    }
    A mean = A(0);
    if constexpr (kLayer) {
      A total[1] = {A(0)};
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {  // units that are not there are zero
        A value[kSize];
        held[u].unpack(value);
        total[0] += total_of(value);
      }
      total_.run(total, turn);
      mean = total[0] * scalars.reciprocal_cols;
    }
    A sums[kLayer ? 2 : 1] = {};
    add_up(own, held, mean, sums);
    spread_.run(sums, turn);
    if constexpr (!kLayer) return {A(0), A(0), rstd(sums[0], scalars)};
    const Moments<A> row = moments_about(A(0), sums[kLayer], sums[0], A(0), scalars.reciprocal_cols);
    return {mean, row.mean, rstd(row.m2, scalars)};
  }

 private:
  /// Adds up the squares of the deviations of a thread's values from a centre, and if there are two sums, these.
  template <int kCount>
  static __device__ __forceinline__ void add_up(const Own& own, const Unit<T, kSize> (&held)[kUnits], A about,
                                                A (&sums)[kCount]) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      A value[kSize];
      held[u].unpack(value);
      if constexpr (kLayer) centre(value, about);
      sums[0] += own.valid(u) ? squares_of(value) : A(0);
      if constexpr (kCount == 2) sums[1] += own.valid(u) ? total_of(value) : A(0);
    }
  }

  static __device__ __forceinline__ A rstd(A squares, const Scalars<A>& scalars) {
    const A variance = squares < A(0) ? A(0) : squares * scalars.reciprocal_cols;  // by rounding, of the same values
    return reciprocal_std(variance, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
  }

  /// Every warp about the mean of its first units: all of these are there, and enough of its values for that to cost
  /// few bits, whatever the others are.
  __device__ __forceinline__ GatheredStatistics<A> of_warps(const Own& own, const Unit<T, kSize> (&held)[kUnits],
                                                            const Scalars<A>& scalars, int turn) const {
    A first[kSize];
    held[0].unpack(first);
    const A about = warp_sum(total_of(first)) * A(1.0 / (kWarp * kSize));
    A sums[2] = {};
    add_up(own, held, about, sums);
    lane_sums<kWarp>(sums);
    RowPart<A>* const parts = scratch_.parts.of_warp[turn];
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = {about, sums[1], sums[0], A(0)};
    __syncthreads();
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    const MergedParts<A> row = merge_parts(parts, warps, count_, share_, scalars.reciprocal_cols);
    const A mean = row.from + row.mean;
    return {mean, row.mean - (mean - row.from), rstd(row.squares, scalars)};
  }

  Scratch& scratch_;
  Total total_;
  Spread spread_;
  A count_ = A(0), share_ = A(0);  // with parts: values of the warp that this lane merges, and 1 / count
};

template <class T, NormKind kKind, bool kActivated, int kSize>
__global__ void __launch_bounds__(gather_forward_layout(kSize).threads)
    row_forward_gather_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                              const Scalars<Accumulator<T>> scalars, const __grid_constant__ ForwardPlaces places) {
  using A = Accumulator<T>;
  constexpr int kUnits = gather_forward_layout(kSize).units, kAhead = kGatherAhead<kSize>;
  const RowGeometry& g = p.geometry;
  using Statistics = GatheredMoments<T, kKind, kSize, kUnits>;
  __shared__ typename Statistics::Scratch scratch;
  const Statistics moments(scratch, places.units);
  const OwnUnits<kSize, kUnits, 3> own(places, g, p.x);
  start_after_previous();
  // Packs have more of them, and fewer instructions to find them.
  const GatheredParameters<T, kSize, kUnits, 3, kSize == 1> parameters(p.weight, p.bias, own, scalars.weight_offset);

  int turn = 0;
  for (int64_t first_row = static_cast<int64_t>(blockIdx.x) * blockDim.y; first_row < g.rows;
       first_row += static_cast<int64_t>(gridDim.x) * blockDim.y, turn ^= 1) {
    const bool active = first_row + threadIdx.y < g.rows;  // lanes without a row take part in their warp's shuffles
    const unsigned row = active ? static_cast<unsigned>(first_row) + threadIdx.y : 0;
    Unit<T, kSize> held[kUnits];
    load_units<T>(p, places, row, active, own, held);
    const GatheredStatistics<A> of_row = moments.find(own, held, scalars, turn);

    const Operand* const operands[] = {&p.y, &p.mean, &p.rstd};
    int64_t at[3];
    places.find_row(row, g, operands, at);
    if (threadIdx.x == 0 && active) {
      if (p.mean.data != nullptr) static_cast<A*>(p.mean.data)[at[1]] = of_row.rounded_mean + of_row.left;
      if (p.rstd.data != nullptr) static_cast<A*>(p.rstd.data)[at[2]] = of_row.rstd;
    }
    const A shift = -of_row.left * of_row.rstd;
    T* const y = static_cast<T*>(p.y.data) + at[0];
#pragma unroll
    for (int first = 0; first < kUnits; first += kAhead) {
      A weight[kAhead][kSize], bias[kAhead][kSize];
      int offset[kAhead];
      own.of_tensor(kForwardY, p.y, first, offset);
      parameters.weights(first, weight);
      parameters.biases(first, bias);
      A value[kAhead * kSize];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        A(&of_unit)[kSize] = unit_of<kSize>(value, u);
        held[first + u].unpack(of_unit);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const A xhat = normalized_deviation(of_unit[j] - of_row.rounded_mean, of_row.rstd, shift);
          of_unit[j] = affine(xhat, weight[u][j], bias[u][j]);
        }
      }
      activate<T>(value, p);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (active && own.valid(first + u)) Unit<T, kSize>::write(y + offset[u], unit_of<kSize>(value, u));
      }
    }
  }
}

}  // namespace normact::cuda
