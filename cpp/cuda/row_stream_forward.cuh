// SPDX-License-Identifier: Apache-2.0
// Row norm forward for rows that no other variant takes: too long for those, with parameters of two types, or (before
// sm_90) not whole packs. Single elements that lie apart have kernels of their own (row_stream_elements_forward.cuh),
// but those that are 2^31 from each other. Variant stream.
//
// Work     a block, or a cluster with one contiguous slice a block, owns a row and walks over it in steps of
//          blockDim * kStreamUnroll units; a unit is a pack of 16 bytes or one element (StreamUnit).
// Bytes    x (and residual) is read once and the normalised sum once more, y (and residual_out) is written once. The
//          second walk runs backwards, so that it begins with what the first one left in the cache.
// Plan     packs: aligned as for the register variants. Otherwise anything.
// Sums     each step's own two-pass moments, brought together in fp64. A barrier for each of the two sums of a row, and
//          one of the cluster.
#pragma once

#include "cuda/cluster_exchange.cuh"
#include "cuda/row_forward.cuh"
#include "cuda/row_stream.cuh"

namespace normact::cuda {

/// Of units of so many elements, those whose parameters are under way: as many as registers hold. No read may overtake
/// a write.
template <int kSize>
constexpr int kParametersAhead = kSize == 8 ? 1 : kStreamUnroll;

/// Where the warps of a block and the blocks of a cluster leave a sum each.
struct RowSlots {
  double warps[kMaxWarps];
  double blocks[kMaxCluster];
};

/// The blocks that share a row; kShared: whether they may be several.
template <bool kShared>
__device__ __forceinline__ int blocks_of_row() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kShared) return static_cast<int>(cg::this_cluster().num_blocks());
#endif
  return 1;
}

/// Sum over all threads of the block, and of the cluster; every thread gets it.
__device__ __forceinline__ double row_sum(double value, RowSlots& slots, int blocks) {
  const int lane = threadIdx.x % kWarp;
  value = warp_sum(value);
  if (lane == 0) slots.warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = warp_sum(lane < blockDim.x / kWarp ? slots.warps[lane] : 0.0);
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    cluster_publish(value, slots.blocks, blocks);
    cg::this_cluster().sync();
    value = warp_sum(lane < blocks ? slots.blocks[lane] : 0.0);
  }
#endif
  return value;
}

/// Merges the moments of all threads of a row, `cols` elements in all; every thread gets the result. Two sums, the
/// mean's first: merging pairs of moments instead divides at each, in fp64, which took most of the kernel's time.
template <NormKind kKind>
__device__ __forceinline__ Moments<double> merge_over_row(const Moments<double>& mine, int64_t cols, int blocks) {
  __shared__ RowSlots slots[2];
#if __CUDA_ARCH__ >= 900
  cluster_wait(blocks);  // every block has started (the kernel arrived at its head)
#endif
  const double count = static_cast<double>(cols);
  double mean = 0.0;
  if constexpr (kKind == NormKind::layer) mean = row_sum(mine.mean * mine.count, slots[0], blocks) / count;
  return {mean, row_sum(recentred(mine, mean), slots[1], blocks), count};
}

/// Sums of deviations from a centre, and of their squares, step by step from those about each step's mean. Between the
/// means of steps fp64 has digits enough to sum about any of them.
template <NormKind kKind>
struct SumsAbout {
  double centre;
  SumPair<double> sums{0.0, 0.0};

  /// A step of `elements` with this (rounded) mean; `squares_about` and `left` are the sums of its deviations from
  /// that, squared and as they are.
  template <class A>
  __device__ __forceinline__ void add(A mean, A squares_about, A left, A elements) {
    double squares = squares_about;
    if constexpr (kKind == NormKind::layer) {
      const double from_centre = mean - centre, apart = elements * from_centre + left;  // of all elements together
      sums.first += apart;
      squares += from_centre * (apart + left);
    }
    sums.second += squares;
  }
};

/// Moments of a thread, about its first step's mean.
template <NormKind kKind>
struct StepMoments {
  SumsAbout<kKind> about{0.0};
  double count = 0.0;

  /// As SumsAbout::add().
  template <class A>
  __device__ __forceinline__ void add(A mean, A squares_about, A left, A elements) {
    if (kKind == NormKind::layer && count == 0.0) about.centre = mean;
    about.add(mean, squares_about, left, elements);
    count += elements;
  }

  __device__ __forceinline__ Moments<double> moments() const {
    if constexpr (kKind == NormKind::rms) return {0.0, about.sums.second, count};
    return moments_about(about.centre, about.sums.first, about.sums.second, count, count > 0.0 ? 1.0 / count : 0.0);
  }
};

/// What is normalised: x, or the sum. In mixed problems there is one.
template <class T, class X>
__device__ __forceinline__ const T* normalised_row(const X* x, const T* sum, bool has_residual) {
  if constexpr (std::is_same_v<X, T>) {
    return has_residual ? sum : x;
  } else {
    return sum;
  }
}

/// value = round(value + residual) of the first `units` units of a thread, which also goes to `sum`: all reads before
/// the first write, which no read may overtake. places: of x, the residual and the sum.
template <class Io, class Places, class T, class A, int kUnits>
__device__ __forceinline__ void add_residual(const Places& places, const T* residual, T* sum, int units,
                                             A (&value)[kUnits][Io::kSize]) {
  A addend[kUnits][Io::kSize];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (u < units) Io::load(places.in(residual, 1, u), addend[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (u >= units) continue;
#pragma unroll
    for (int j = 0; j < Io::kSize; ++j) value[u][j] += addend[u][j];
    Io::store(places.in(sum, 2, u), value[u]);
  }
}

/// Adds the first `units` units of a step.
template <NormKind kKind, int kUnits, int kSize, class A, class Sums>
__device__ __forceinline__ void add_step(const A (&value)[kUnits][kSize], int units, Sums& sums) {
  A mean = A(0);
  const A count = A(units * kSize);
  if constexpr (kKind == NormKind::layer) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) mean += u < units ? value[u][j] : A(0);
    }
    mean *= units < kUnits ? A(1) / count : A(1) / A(kUnits * kSize);
  }
  A squares = A(0), left = A(0);  // about the rounded mean the deviations do not quite cancel
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const A centred = u < units ? value[u][j] - mean : A(0);
      squares += centred * centred;
      left += centred;
    }
  }
  sums.add(mean, squares, left, count);
}

/// Blocks of a multiprocessor, where their registers are enough.
template <class T, bool kActivated, StreamUnit kUnit>
constexpr int kStreamBlocks = kUnit == StreamUnit::dense && !kActivated && sizeof(T) < 8 ? 2 : 1;

/// T, X: as in row_forward.cuh. kShared: whether rows may have several blocks.
template <class T, class X, NormKind kKind, bool kActivated, bool kShared, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads, (kStreamBlocks<T, kActivated, kUnit>))
    row_stream_forward_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                              const Scalars<Accumulator<T>> scalars, const __grid_constant__ ColumnPlaces columns) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize, kAhead = kParametersAhead<kSize>;
  const RowGeometry& g = p.geometry;
  int64_t row = blockIdx.x;
  int64_t begin = 0;  // this block's slice, in units
  int64_t end = g.cols / kSize;
  bool leader = threadIdx.x == 0;
  const int blocks = blocks_of_row<kShared>();
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    cluster_arrive(blocks);
    const int rank = static_cast<int>(cg::this_cluster().block_rank());
    const int64_t share = (end + blocks - 1) / blocks;
    row = blockIdx.x / blocks;
    begin = rank * share;
    end = begin + share < end ? begin + share : end;
    leader = leader && rank == 0;
  }
#endif
  start_after_previous();
  const bool has_residual = !std::is_same_v<X, T> || p.residual.data != nullptr;
  const Operand* const operands[] = {&p.x, &p.residual, &p.residual_out, &p.y, &p.mean, &p.rstd};
  int64_t at[6];
  row_offsets(row, g, operands, at);
  const X* const x = static_cast<const X*>(p.x.data) + at[0];
  const T* const residual = static_cast<const T*>(p.residual.data) + at[1];
  T* const sum = static_cast<T*>(p.residual_out.data) + at[2];
  X* const y = static_cast<X*>(p.y.data) + at[3];
  const int apart = blockDim.x;  // units of a thread
  const int64_t step = static_cast<int64_t>(apart) * kStreamUnroll;

  StepMoments<kKind> of_thread;
  for (int64_t base = begin + threadIdx.x; base < end; base += step) {
    const int units = units_within<kStreamUnroll>(end - base, apart);
    const typename Io::template Places<kStreamUnroll, 3> places(columns, g, base, apart, units, p.x, p.residual,
                                                                p.residual_out);
    A value[kStreamUnroll][kSize];
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      if (u < units) Io::load(places.in(x, 0, u), value[u]);
    }
    if (has_residual) add_residual<Io>(places, residual, sum, units, value);
    add_step<kKind>(value, units, of_thread);
  }
  const Moments<double> moments = merge_over_row<kKind>(of_thread.moments(), g.cols, blocks);
  const A mean = static_cast<A>(moments.mean);
  const A rstd = reciprocal_std(static_cast<A>(moments.m2) / scalars.cols, scalars.eps,
                                [](A value) { return reciprocal_sqrt(value); });
  if (leader) {
    if (p.mean.data != nullptr) static_cast<A*>(p.mean.data)[at[4]] = mean;
    if (p.rstd.data != nullptr) static_cast<A*>(p.rstd.data)[at[5]] = rstd;
  }

  const T* const source = normalised_row<T>(x, sum, has_residual);
  const int64_t steps = (end - begin + step - 1) / step;
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t base = begin + s * step + threadIdx.x;
    if (base >= end) continue;
    const int units = units_within<kStreamUnroll>(end - base, apart);
    const typename Io::template Places<kStreamUnroll, 5> places(columns, g, base, apart, units, p.x, p.residual_out,
                                                                p.weight, p.bias, p.y);
    A value[kStreamUnroll][kSize];
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      if (u < units) Io::load(has_residual ? places.in(source, 1, u) : places.in(source, 0, u), value[u]);
    }
#pragma unroll
    for (int first = 0; first < kStreamUnroll; first += kAhead) {
      A w[kAhead][kSize], b[kAhead][kSize];
      Io::weights(p.weight, places, 2, first, units - first, scalars.weight_offset, w);
      Io::parameters(p.bias, places, 3, first, units - first, A(0), b);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (first + u >= units) continue;
        A(&v)[kSize] = value[first + u];
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          v[j] = affine(normalized(v[j], mean, rstd), w[u][j], b[u][j]);
        }
        activate<X>(v, p);
        Io::store(places.in(y, 4, first + u), v);
      }
    }
  }
}

}  // namespace normact::cuda
