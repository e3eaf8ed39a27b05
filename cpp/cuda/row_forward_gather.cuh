// SPDX-License-Identifier: Apache-2.0
// Row norm forward of rows whose columns are in pieces or apart, held in registers: variants warp and block.
//
// Work     of a block, blockDim.x threads own a row at a time, blockDim.y rows together: lanes of a warp, or a block
//          with one row. A thread owns the same units of every row it sees (row_gather.cuh). Several blocks share a
//          multiprocessor, so that while one waits, others work. The grid of single elements is persistent: what a
//          thread finds of its units lasts for many rows.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers lanes: none. Block: one for each of the two sums of a row (rms: one).
// Sums     from registers, of deviations from the row's rounded mean, and what these leave of it.
#pragma once

#include "cuda/row_activation.cuh"
#include "cuda/row_gather.cuh"
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
template <class T, NormKind kKind>
class GatheredMoments {
 public:
  using A = Accumulator<T>;
  static constexpr bool kLayer = kKind == NormKind::layer;
  using Total = GatherSum<A, 1, 2, false>;
  using Spread = GatherSum<A, kLayer ? 2 : 1, 2, false>;
  struct Scratch {
    typename Total::Scratch total;
    typename Spread::Scratch spread;
  };

  __device__ __forceinline__ explicit GatheredMoments(Scratch& scratch)
      : total_(scratch.total), spread_(scratch.spread) {}

  /// turn: 0 and 1 by turns.
  template <int kSize, int kUnits>
  __device__ __forceinline__ GatheredStatistics<A> find(const OwnUnits<kSize, kUnits, 3>& own,
                                                        const Unit<T, kSize> (&held)[kUnits], const Scalars<A>& scalars,
                                                        int turn) const {
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
    A sums[kLayer ? 2 : 1] = {};  // squares, deviations
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      A value[kSize];
      held[u].unpack(value);
      if constexpr (kLayer) centre(value, mean);
      sums[0] += own.valid(u) ? squares_of(value) : A(0);
      if constexpr (kLayer) sums[1] += own.valid(u) ? total_of(value) : A(0);
    }
    spread_.run(sums, turn);
    const A left = kLayer ? sums[kLayer] * scalars.reciprocal_cols : A(0);
    const A difference = sums[0] * scalars.reciprocal_cols - left * left;
    const A variance = difference < A(0) ? A(0) : difference;  // by rounding, where all values are the same
    return {mean, left, reciprocal_std(variance, scalars.eps, [](A a) { return reciprocal_sqrt(a); })};
  }

 private:
  Total total_;
  Spread spread_;
};

template <class T, NormKind kKind, bool kActivated, int kSize>
__global__ void __launch_bounds__(gather_forward_layout(kSize).threads)
    row_forward_gather_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                              const Scalars<Accumulator<T>> scalars, const __grid_constant__ ForwardPlaces places) {
  using A = Accumulator<T>;
  constexpr int kUnits = gather_forward_layout(kSize).units, kAhead = kGatherAhead<kSize>;
  const RowGeometry& g = p.geometry;
  __shared__ typename GatheredMoments<T, kKind>::Scratch scratch;
  const GatheredMoments<T, kKind> moments(scratch);
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
