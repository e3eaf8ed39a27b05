// SPDX-License-Identifier: Apache-2.0
// Row norm forward for rows that no other variant takes: too long for those, with parameters of two types, or (before
// sm_90) not whole packs. Single elements that lie apart have kernels of their own (row_stream_elements_forward.cuh),
// but those that are 2^31 from each other. Variant stream.
//
// Work     a block owns a row and walks over it in steps of blockDim * kStreamUnroll units; a unit is a pack of 16
//          bytes or one element (StreamUnit). Long rows are cut into slices, and each of the two walks is a kernel, of
//          which a block owns a slice.
// Bytes    x (and residual) is read once and the normalised sum once more, y (and residual_out) is written once. The
//          second walk runs backwards, over slices and in them, so that it begins with what the first one left in the
//          cache. A slice leaves its moments in the workspace.
// Plan     packs: aligned as for the register variants. Otherwise anything.
// Sums     each step's own two-pass moments, brought together in fp64. A barrier for each of the two sums of a row or a
//          slice; those of slices are brought together by each warp that needs them.
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

/// The blocks that share a row: a cluster.
__device__ __forceinline__ int blocks_of_row() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(cg::this_cluster().num_blocks());
#else
  return 1;
#endif
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

/// What is read and written of one row.
template <class T, class X>
struct StreamedRow {
  const X* x;
  const T* residual;
  T* sum;
  X* y;
  int64_t mean_at, rstd_at;
  bool has_residual;

  template <class Problem>
  __device__ __forceinline__ StreamedRow(const Problem& p, int64_t row)
      : has_residual(!std::is_same_v<X, T> || p.residual.data != nullptr) {
    const Operand* const operands[] = {&p.x, &p.residual, &p.residual_out, &p.y, &p.mean, &p.rstd};
    int64_t at[6];
    row_offsets(row, p.geometry, operands, at);
    x = static_cast<const X*>(p.x.data) + at[0];
    residual = static_cast<const T*>(p.residual.data) + at[1];
    sum = static_cast<T*>(p.residual_out.data) + at[2];
    y = static_cast<X*>(p.y.data) + at[3];
    mean_at = at[4];
    rstd_at = at[5];
  }
};

/// The moments of this thread's units of begin .. end - 1 of a row. All threads of the block.
template <class T, class X, NormKind kKind, StreamUnit kUnit, int kUnroll = kStreamUnroll, class Problem>
__device__ __forceinline__ Moments<double> stream_moments(const Problem& p, const ColumnPlaces& columns,
                                                          const StreamedRow<T, X>& row, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  const int apart = blockDim.x;  // units of a thread
  const int64_t step = static_cast<int64_t>(apart) * kUnroll;
  StepMoments<kKind> of_thread;
  for (int64_t base = begin + threadIdx.x; base < end; base += step) {
    const int units = units_within<kUnroll>(end - base, apart);
    const typename Io::template Places<kUnroll, 3> places(columns, p.geometry, base, apart, units, p.x, p.residual,
                                                          p.residual_out);
    A value[kUnroll][Io::kSize];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u < units) Io::load(places.in(row.x, 0, u), value[u]);
    }
    if (row.has_residual) add_residual<Io>(places, row.residual, row.sum, units, value);
    add_step<kKind>(value, units, of_thread);
  }
  return of_thread.moments();
}

/// Writes y of these units, from the last step to the first.
template <class T, class X, StreamUnit kUnit, int kUnroll = kStreamUnroll, class Problem, class A>
__device__ __forceinline__ void stream_results(const Problem& p, const Scalars<A>& scalars, const ColumnPlaces& columns,
                                               const StreamedRow<T, X>& row, int64_t begin, int64_t end, A mean,
                                               A rstd) {
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize, kAhead = kParametersAhead<kSize>;
  const int apart = blockDim.x;
  const int64_t step = static_cast<int64_t>(apart) * kUnroll;
  const T* const source = normalised_row<T>(row.x, row.sum, row.has_residual);
  const int64_t steps = (end - begin + step - 1) / step;
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t base = begin + s * step + threadIdx.x;
    if (base >= end) continue;
    const int units = units_within<kUnroll>(end - base, apart);
    const typename Io::template Places<kUnroll, 5> places(columns, p.geometry, base, apart, units, p.x, p.residual_out,
                                                          p.weight, p.bias, p.y);
    A value[kUnroll][kSize];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u < units) Io::load(row.has_residual ? places.in(source, 1, u) : places.in(source, 0, u), value[u]);
    }
#pragma unroll
    for (int first = 0; first < kUnroll; first += kAhead) {
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
        Io::store(places.in(row.y, 4, first + u), v);
      }
    }
  }
}

/// mean and rstd of a row, which `leader` also writes.
template <class Problem, class A>
__device__ __forceinline__ SumPair<A> stream_statistics(const Problem& p, const Scalars<A>& scalars,
                                                        const Moments<double>& moments, int64_t mean_at,
                                                        int64_t rstd_at, bool leader) {
  const A mean = static_cast<A>(moments.mean);
  const A rstd = reciprocal_std(static_cast<A>(moments.m2) / scalars.cols, scalars.eps,
                                [](A value) { return reciprocal_sqrt(value); });
  if (leader) {
    if (p.mean.data != nullptr) static_cast<A*>(p.mean.data)[mean_at] = mean;
    if (p.rstd.data != nullptr) static_cast<A*>(p.rstd.data)[rstd_at] = rstd;
  }
  return {mean, rstd};
}

/// T, X: as in row_forward.cuh.
template <class T, class X, NormKind kKind, bool kActivated, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads, (kStreamBlocks<T, kActivated, kUnit>))
    row_stream_forward_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                              const Scalars<Accumulator<T>> scalars, const __grid_constant__ ColumnPlaces columns) {
  using A = Accumulator<T>;
  const int64_t units = p.geometry.cols / StreamAccess<T, X, kUnit>::kSize;
  start_after_previous();
  const StreamedRow<T, X> row(p, blockIdx.x);
  const Moments<double> own = stream_moments<T, X, kKind, kUnit>(p, columns, row, 0, units);
  const Moments<double> moments = merge_over_row<kKind>(own, p.geometry.cols, 1);
  const SumPair<A> of = stream_statistics(p, scalars, moments, row.mean_at, row.rstd_at, threadIdx.x == 0);
  stream_results<T, X, kUnit>(p, scalars, columns, row, 0, units, of.first, of.second);
}

/// Units of a thread of a slice under way, and blocks of a multiprocessor that there are registers for.
template <int kSize>
constexpr int kSliceUnroll = kSize == 8 ? 2 : kStreamUnroll;
template <class T>
constexpr int kSliceBlocks = sizeof(T) == 8 ? 1 : 2;

/// A slice of a row, of units.
struct StreamSlice {
  int64_t row, begin, end;
  bool first;

  __device__ __forceinline__ StreamSlice(unsigned number, unsigned slices, int64_t units) {
    const unsigned of = number / slices, slice = number - of * slices;
    const int64_t share = (units + slices - 1) / slices;
    row = of;
    begin = min(slice * share, units);
    end = min(begin + share, units);
    first = slice == 0;
  }
};

/// The first walk over slices.
template <class T, class X, NormKind kKind, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads, kSliceBlocks<T>)
    row_slice_moments_kernel(const __grid_constant__ KernelProblem<RowForward, T, false> p,
                             const __grid_constant__ ColumnPlaces columns, unsigned slices,
                             Moments<double>* __restrict__ of_slices) {
  constexpr int kSize = StreamAccess<T, X, kUnit>::kSize;
  start_after_previous();
  const StreamSlice slice(blockIdx.x, slices, p.geometry.cols / kSize);
  Moments<double> moments{0.0, 0.0, 0.0};
  if (slice.begin < slice.end) {
    const StreamedRow<T, X> row(p, slice.row);
    const Moments<double> own =
        stream_moments<T, X, kKind, kUnit, kSliceUnroll<kSize>>(p, columns, row, slice.begin, slice.end);
    moments = merge_over_row<kKind>(own, (slice.end - slice.begin) * kSize, 1);
  }
  if (threadIdx.x == 0) of_slices[blockIdx.x] = moments;
}

/// Brings together the moments of a row's slices. All threads of a warp.
__device__ __forceinline__ Moments<double> merge_slices(const Moments<double>* of_row, unsigned slices, int64_t cols) {
  const auto sum_of = [&](auto value) {
    double sum = 0.0;
    for (unsigned slice = threadIdx.x % kWarp; slice < slices; slice += kWarp) sum += value(of_row[slice]);
    return warp_sum(sum);
  };
  const double count = static_cast<double>(cols);
  const double mean = sum_of([](const Moments<double>& of) { return of.mean * of.count; }) / count;
  return {mean, sum_of([mean](const Moments<double>& of) { return recentred(of, mean); }), count};
}

/// The second walk.
template <class T, class X, bool kActivated, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads, kSliceBlocks<T>)
    row_slice_results_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                             const Scalars<Accumulator<T>> scalars, const __grid_constant__ ColumnPlaces columns,
                             unsigned slices, const Moments<double>* __restrict__ of_slices) {
  using A = Accumulator<T>;
  constexpr int kSize = StreamAccess<T, X, kUnit>::kSize;
  const StreamSlice slice(gridDim.x - 1 - blockIdx.x, slices, p.geometry.cols / kSize);
  const StreamedRow<T, X> row(p, slice.row);
  start_after_previous();
  const Moments<double> moments = merge_slices(of_slices + slice.row * slices, slices, p.geometry.cols);
  const SumPair<A> of =
      stream_statistics(p, scalars, moments, row.mean_at, row.rstd_at, slice.first && threadIdx.x == 0);
  stream_results<T, X, kUnit, kSliceUnroll<kSize>>(p, scalars, columns, row, slice.begin, slice.end, of.first,
                                                   of.second);
}

}  // namespace normact::cuda
