// SPDX-License-Identifier: Apache-2.0
// Row norm forward for rows of single elements that lie apart and that no other variant takes. Variant stream.
//
// Work     row_stream_elements.cuh
// Bytes    x (and residual) is read once and the normalised sum once more, y (and residual_out) is written once.
// Plan     any strides, less than 2^31 elements within a row; up to 2^31 rows.
// Sums     each step's own two-pass moments, brought together in fp64 about the mean of some of the row's elements. A
//          barrier of the block and one of the cluster; with a residual, one before.
#pragma once

#include "cuda/cluster_exchange.cuh"
#include "cuda/row_stream_elements.cuh"
#include "cuda/row_stream_forward.cuh"

namespace normact::cuda {

/// Elements of a row, at even distances, whose mean is the centre about which it is summed. Squares about that exceed
/// those about the row's mean by up to cols / 8 times, if these elements are the only ones apart from all others: so
/// much of fp64's digits a row of fp64 may lose. Sums of 32 and of 16 bits have digits enough.
constexpr int kCentreUnits = 8;

/// Waits for all threads of the rows of this block.
__device__ __forceinline__ void wait_for_rows(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) return cg::this_cluster().sync();
#endif
  __syncthreads();
}

/// T, X: as in row_forward.cuh.
template <class T, class X, NormKind kKind, bool kActivated>
__global__ void __launch_bounds__(kElementThreads, (kElementBlocks<T, kActivated>))
    row_stream_elements_forward_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                                       const Scalars<Accumulator<T>> scalars,
                                       const __grid_constant__ ColumnPlaces columns, const ElementSplit split) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, StreamUnit::dense>;
  constexpr int kUnits = kElementUnits<T>;
  const RowGeometry& g = p.geometry;
  const int blocks = blocks_of_row();
  const ElementThread thread(split, g, blocks);
  start_after_previous();
  const bool has_residual = !std::is_same_v<X, T> || p.residual.data != nullptr;
  const Operand* const operands[] = {&p.x, &p.residual, &p.residual_out, &p.y, &p.mean, &p.rstd};
  int64_t at[6];
  row_offsets(thread.row, g, operands, at);
  const X* const x = static_cast<const X*>(p.x.data) + at[0];
  const T* const residual = static_cast<const T*>(p.residual.data) + at[1];
  T* const sum = static_cast<T*>(p.residual_out.data) + at[2];
  X* const y = static_cast<X*>(p.y.data) + at[3];

  double centre = 0.0;
  if (kKind == NormKind::layer && thread.there) {
    const int units = units_within<kCentreUnits>(g.cols, 1);
    const int between = max(1, static_cast<int>(g.cols) / kCentreUnits);
    const NearPlaces<kCentreUnits, 2> places(columns, g, 0, between, p.x, p.residual);
    A value[kCentreUnits], addend[kCentreUnits], of_units = A(0);
#pragma unroll
    for (int u = 0; u < kCentreUnits; ++u) {
      value[u] = u < units ? convert<A>(*places.in(x, 0, u)) : A(0);
      addend[u] = u < units && has_residual ? convert<A>(*places.in(residual, 1, u)) : A(0);
    }
#pragma unroll
    for (int u = 0; u < kCentreUnits; ++u) of_units += value[u] + addend[u];
    centre = of_units / A(units);
    if (!isfinite(centre)) centre = 0.0;
  }
  if (kKind == NormKind::layer && has_residual) wait_for_rows(blocks);  // sums may take the place of what was read
  const int apart = kElementWarps << split.log_strands;                 // columns of a strand
  const SumPair<double> mine = thread.sum_of_strands(split, [&](int64_t first) {
    SumsAbout<kKind> of_strand{centre};
    for (int64_t base = first; base < thread.end; base += apart * kUnits) {
      const int units = units_within<kUnits>(thread.end - base, apart);
      const NearPlaces<kUnits, 1> places(columns, g, base, apart, p.x);
      A value[kUnits][1];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u < units) Io::load(places.in(x, 0, u), value[u]);
      }
      if (has_residual) {
        const NearPlaces<kUnits, 3> of_sum(columns, g, base, apart, p.x, p.residual, p.residual_out);
        add_residual<Io>(of_sum, residual, sum, units, value);
      }
      add_step<kKind>(value, units, of_strand);
    }
    return of_strand.sums;
  });
  __shared__ ElementSlots slots;
  const SumPair<double> sums = sum_over_warps(mine, slots, thread, blocks);
  const double count = static_cast<double>(g.cols);
  const Moments<double> moments = moments_about(centre, sums.first, sums.second, count, 1.0 / count);
#if __CUDA_ARCH__ >= 900
  cluster_arrive(blocks);  // has read what the others left
#endif
  const A mean = static_cast<A>(moments.mean);
  const A rstd = reciprocal_std(static_cast<A>(moments.m2) / scalars.cols, scalars.eps,
                                [](A value) { return reciprocal_sqrt(value); });
  if (thread.leads) {
    if (p.mean.data != nullptr) static_cast<A*>(p.mean.data)[at[4]] = mean;
    if (p.rstd.data != nullptr) static_cast<A*>(p.rstd.data)[at[5]] = rstd;
  }

  const T* const source = normalised_row<T>(x, sum, has_residual);
  const int step = kElementWarps << thread.log_lanes;  // columns apart
  const int64_t first = thread.begin + (thread.warp << thread.log_lanes) + thread.lane;
  for (int64_t base = first; base < thread.end; base += step * kUnits) {
    const int units = units_within<kUnits>(thread.end - base, step);
    const NearPlaces<kUnits, 4> places(columns, g, base, step, has_residual ? p.residual_out : p.x, p.weight, p.bias,
                                       p.y);
    A value[kUnits][1], w[kUnits][1], b[kUnits][1];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u < units) Io::load(places.in(source, 0, u), value[u]);
    }
    Io::weights(p.weight, places, 1, 0, units, scalars.weight_offset, w);
    Io::parameters(p.bias, places, 2, 0, units, A(0), b);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u >= units) continue;
      value[u][0] = affine(normalized(value[u][0], mean, rstd), w[u][0], b[u][0]);
      activate<X>(value[u], p);
      Io::store(places.in(y, 3, u), value[u]);
    }
  }
#if __CUDA_ARCH__ >= 900
  cluster_wait(blocks);
#endif
}

}  // namespace normact::cuda
