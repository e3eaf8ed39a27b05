// SPDX-License-Identifier: Apache-2.0
// Row norm forward for rows that no other variant takes: too long for those, with columns that are not
// contiguous, with parameters of two types, or (before sm_90) not whole packs. Variant stream.
//
// Work     a block, or a cluster with one contiguous slice a block, owns a row and walks over it in steps of
//          blockDim * kStreamUnroll units; a unit is a pack of 16 bytes or one element (StreamUnit).
// Bytes    x (and residual) is read once and the normalised sum once more, y (and residual_out) is written once. The
//          second walk runs backwards, so that it begins with what the first one left in the cache.
// Plan     packs: aligned as for the register variants. Otherwise anything.
// Sums     each step's own two-pass moments, merged by Chan's formula in fp64.
#pragma once

#include "cuda/row_forward.cuh"

namespace normact::cuda {

/// Units of a thread under way.
constexpr int kStreamUnroll = 4;

/// A unit: a pack of 16 bytes, or one element, of columns side by side in all tensors or anywhere. `dense` is for
/// itself because it spends few instructions on addresses: of strides of 64 bits an element needs ten for each tensor.
enum class StreamUnit { packs, dense, strided };

/// Reads and writes one unit of a row: a pack of T, or as many elements of another type, or one element.
/// X: the type of parameters that are not in the accumulator's.
template <class T, class X, StreamUnit kUnit>
struct StreamAccess {
  static constexpr bool kPacks = kUnit == StreamUnit::packs;
  static constexpr int kSize = kPacks ? kPackSize<T> : 1;
  using A = Accumulator<T>;

  /// Where a unit begins in a row.
  static __device__ __forceinline__ int64_t offset(const Operand& operand, const RowGeometry& g, int64_t column) {
    return kUnit != StreamUnit::strided ? column : strided_offset(column, g.col_ndim, g.col_shape, operand.col_stride);
  }

  template <class E>
  static __device__ __forceinline__ void load(const E* unit, A (&value)[kSize]) {
    if constexpr (kPacks) {
      unpack(load_pack_beside<T>(unit), value);
    } else {
      value[0] = convert<A>(*unit);
    }
  }

  /// Rounds, writes, and leaves the rounded values behind.
  template <class E>
  static __device__ __forceinline__ void store(E* unit, A (&value)[kSize]) {
    if constexpr (kPacks) {
      const PackBeside<E, T> pack = to_pack_beside<E, T>(value);
      using Bits = std::conditional_t<sizeof(pack) == kPackBytes, uint4, uint2>;
      *reinterpret_cast<Bits*>(unit) = *reinterpret_cast<const Bits*>(&pack);
      unpack(pack, value);
    } else {
      const E rounded = convert<E>(value[0]);
      *unit = rounded;
      value[0] = convert<A>(rounded);
    }
  }

  static __device__ __forceinline__ void parameter(const Parameter<T, X>& from, const Operand& operand,
                                                   const RowGeometry& g, int64_t column, A (&value)[kSize]) {
    if constexpr (kPacks) {
      from.load(column, value);
    } else {
      value[0] = from.at(offset(operand, g, column));
    }
  }
};

/// Merges the moments of all threads of the block, and of the cluster; every thread gets the result.
template <bool kCluster>
__device__ Moments<double> merge_over_row(Moments<double> mine) {
  __shared__ Moments<double> warps[kMaxWarps];
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Moments<double> other{__shfl_down_sync(kFullWarp, mine.mean, offset),
                                __shfl_down_sync(kFullWarp, mine.m2, offset),
                                __shfl_down_sync(kFullWarp, mine.count, offset)};
    mine = merge(mine, other);  // lane 0 ends with the merge of the warp
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Moments<double> total = warps[0];
  for (int w = 1; w < blockDim.x / kWarp; ++w) total = merge(total, warps[w]);
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    __shared__ Moments<double> slices[kMaxCluster];
    cg::cluster_group cluster = cg::this_cluster();
    cluster.barrier_wait();  // every block has started (the kernel arrived at its head)
    cluster_publish(total, slices, cluster.num_blocks());
    cluster.sync();
    total = slices[0];
    for (int b = 1; b < cluster.num_blocks(); ++b) total = merge(total, slices[b]);
#endif
  }
  return total;
}

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
/// the first write, which no read may overtake.
template <class Io, class T, class A>
__device__ __forceinline__ void add_residual(const RowForward& p, const T* residual, T* sum, int64_t base, int units,
                                             A (&value)[kStreamUnroll][Io::kSize]) {
  const auto column = [&](int u) { return (base + static_cast<int64_t>(u) * blockDim.x) * Io::kSize; };
  A addend[kStreamUnroll][Io::kSize];
#pragma unroll
  for (int u = 0; u < kStreamUnroll; ++u) {
    if (u < units) Io::load(residual + Io::offset(p.residual, p.geometry, column(u)), addend[u]);
  }
#pragma unroll
  for (int u = 0; u < kStreamUnroll; ++u) {
    if (u >= units) continue;
#pragma unroll
    for (int j = 0; j < Io::kSize; ++j) value[u][j] += addend[u][j];
    Io::store(sum + Io::offset(p.residual_out, p.geometry, column(u)), value[u]);
  }
}

/// T, X: as in row_forward.cuh.
template <class T, class X, NormKind kKind, bool kActivated, bool kCluster, StreamUnit kUnit>
__global__ void __launch_bounds__(kMaxRowThreads)
    row_stream_forward_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                              const Scalars<Accumulator<T>> scalars) {
  using A = Accumulator<T>;
  using Io = StreamAccess<T, X, kUnit>;
  constexpr int kSize = Io::kSize;
  const RowGeometry& g = p.geometry;
  int64_t row = blockIdx.x;
  int64_t begin = 0;  // this block's slice, in units
  int64_t end = g.cols / kSize;
  bool leader = threadIdx.x == 0;
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    cg::cluster_group cluster = cg::this_cluster();
    cluster.barrier_arrive();
    const int64_t share = (end + cluster.num_blocks() - 1) / cluster.num_blocks();
    row = blockIdx.x / cluster.num_blocks();
    begin = cluster.block_rank() * share;
    end = begin + share < end ? begin + share : end;
    leader = leader && cluster.block_rank() == 0;
#endif
  }
  start_after_previous();
  const bool has_residual = !std::is_same_v<X, T> || p.residual.data != nullptr;
  const X* x = any_row_pointer<const X>(p.x, g, row);
  const T* residual = any_row_pointer<const T>(p.residual, g, row);
  T* sum = any_row_pointer<T>(p.residual_out, g, row);
  X* y = any_row_pointer<X>(p.y, g, row);
  const int64_t step = static_cast<int64_t>(blockDim.x) * kStreamUnroll;

  Moments<double> moments{0, 0, 0};
  for (int64_t base = begin + threadIdx.x; base < end; base += step) {
    A value[kStreamUnroll][kSize];
    int units = 0;
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      const int64_t unit = base + static_cast<int64_t>(u) * blockDim.x;
      if (unit < end) {
        units = u + 1;
        Io::load(x + Io::offset(p.x, g, unit * kSize), value[u]);
      }
    }
    if (has_residual) add_residual<Io>(p, residual, sum, base, units, value);
    A mean = A(0);
    const A count = A(units * kSize);
    if constexpr (kKind == NormKind::layer) {
#pragma unroll
      for (int u = 0; u < kStreamUnroll; ++u) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) mean += u < units ? value[u][j] : A(0);
      }
      mean /= count;
    }
    A squares = A(0), left = A(0);  // about the rounded mean the deviations do not quite cancel
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const A centred = u < units ? value[u][j] - mean : A(0);
        squares += centred * centred;
        left += centred;
      }
    }
    const double exact_mean = kKind == NormKind::layer ? mean + static_cast<double>(left) / count : 0.0;
    moments = merge(moments, Moments<double>{exact_mean, squares, count});
  }
  moments = merge_over_row<kCluster>(moments);
  const A mean = static_cast<A>(moments.mean);
  const A rstd = reciprocal_std(static_cast<A>(moments.m2) / scalars.cols, scalars.eps,
                                [](A value) { return reciprocal_sqrt(value); });
  if (leader) {
    if (p.mean.data != nullptr) *any_row_pointer<A>(p.mean, g, row) = mean;
    if (p.rstd.data != nullptr) *any_row_pointer<A>(p.rstd, g, row) = rstd;
  }

  const T* source = normalised_row<T>(x, sum, has_residual);
  const Operand& source_operand = has_residual ? p.residual_out : p.x;
  const Parameter<T, X> weight(p.weight), bias(p.bias);
  const int64_t steps = (end - begin + step - 1) / step;
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t base = begin + s * step + threadIdx.x;
    A value[kStreamUnroll][kSize];
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      const int64_t unit = base + static_cast<int64_t>(u) * blockDim.x;
      if (unit < end) Io::load(source + Io::offset(source_operand, g, unit * kSize), value[u]);
    }
#pragma unroll
    for (int u = 0; u < kStreamUnroll; ++u) {
      const int64_t unit = base + static_cast<int64_t>(u) * blockDim.x;
      if (unit >= end) continue;
      A w[kSize], b[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) w[j] = A(1), b[j] = A(0);
      if (weight.data != nullptr) {
        Io::parameter(weight, p.weight, g, unit * kSize, w);
#pragma unroll
        for (int j = 0; j < kSize; ++j) w[j] = effective_weight(w[j], scalars.weight_offset);
      }
      if (bias.data != nullptr) Io::parameter(bias, p.bias, g, unit * kSize, b);
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[u][j] = affine(normalized(value[u][j], mean, rstd), w[j], b[j]);
      activate<X>(value[u], p);
      Io::store(y + Io::offset(p.y, g, unit * kSize), value[u]);
    }
  }
}

}  // namespace normact::cuda
