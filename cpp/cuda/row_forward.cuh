// SPDX-License-Identifier: Apache-2.0
// Row norm forward of rows that are whole 16-byte packs, held in registers: variants warp and block.
//
// Work     warp: kLanes lanes own a row; block: a block of threads owns a row, and many small blocks share a
//          multiprocessor. (Several rows a block would need named barriers; a block whose barriers the compiler cannot
//          count reserves all 16, and then few blocks fit.) A warp owns a contiguous chunk of 32 * kVectors packs, so
//          that every address is one base and constant offsets; a thread holds kVectors packs.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers warp: none. block: one a sum (layer: two, rms: one).
// Sums     two-pass from registers, about the row's own mean.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

constexpr int kWarpScopeThreads = 128;
constexpr int kMaxRowThreads = 512;  // of a block

/// The packs of one row that a thread owns: first, first + kStride, ... as far as they are below `packs`.
template <class T, int kStride>
struct OwnPacks {
  int first;
  int packs;  // in the row; 0 for a thread without a row

  __device__ __forceinline__ bool valid(int v) const { return first + v * kStride < packs; }
  __device__ __forceinline__ const T* in(const T* row, int v) const {
    return row + first * kPackSize<T> + v * (kStride * kPackSize<T>);
  }
  __device__ __forceinline__ T* in(T* row, int v) const {
    return row + first * kPackSize<T> + v * (kStride * kPackSize<T>);
  }
};

/// A grid of so few blocks has the parameters fetched early, beside the rows; in a larger one the first blocks do it
/// for all others, and fetching early costs more than it saves.
constexpr int kColdGrid = 256;

/// Has the parameters on their way to the cache.
template <class T, int kStride>
__device__ __forceinline__ void prefetch_parameters(const Operand& parameter, const OwnPacks<T, kStride>& own) {
  if (parameter.data == nullptr) return;
  const int bytes = own.packs * kPackSize<T> * (parameter.dtype == DType::f32 ? 4 : static_cast<int>(sizeof(T)));
  constexpr int kLine = 128;
  for (int at = threadIdx.x * kLine; at < bytes; at += blockDim.x * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(parameter.data) + at));
  }
}

/// x = round(x + residual), which also goes to residual_out: the norm is of what the caller gets back.
template <class T, int kStride, int kVectors>
__device__ __forceinline__ void add_residual(const T* residual, T* to, const OwnPacks<T, kStride>& own,
                                             Pack<T> (&x)[kVectors]) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  Pack<T> addends[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) addends[v] = own.valid(v) ? load_pack(own.in(residual, v)) : Pack<T>{};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    A sum[kSize], addend[kSize];
    unpack(x[v], sum);
    unpack(addends[v], addend);
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum[j] += addend[j];
    x[v] = to_pack<T>(sum);
    if (own.valid(v)) store_pack(own.in(to, v), x[v]);
  }
}

/// Which parameters there are. affine: all that this norm commonly has, without an offset (layer: both; rms: the
/// weight), so that nothing needs to be chosen for each pack.
enum class Parameters : uint8_t { affine, any };

/// y = act(xhat * (weight + offset) + bias).
template <NormKind kKind, Parameters kParameters, class Stored, class T, int kStride, int kVectors, class Problem,
          class A = Accumulator<T>>
__device__ __forceinline__ void write_packs(const Problem& p, T* y, const OwnPacks<T, kStride>& own,
                                            const Pack<T> (&x)[kVectors], A mean, A rstd, A offset) {
  constexpr int kSize = kPackSize<T>;
  constexpr bool kAny = kParameters == Parameters::any;
  const auto* weights = static_cast<const Stored*>(p.weight.data) + own.first * kSize;
  const auto* biases = static_cast<const Stored*>(p.bias.data) + own.first * kSize;
  if constexpr (!kAny) asm volatile("" : "+l"(weights), "+l"(biases));  // no load before it is known what there is
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!own.valid(v)) continue;
    if constexpr (kAny && !std::is_same_v<Problem, RowForward>) {  // no addresses in registers over a call
      int first = own.first;
      asm volatile("" : "+r"(first));
      weights = static_cast<const Stored*>(p.weight.data) + first * kSize;
      biases = static_cast<const Stored*>(p.bias.data) + first * kSize;
    }
    A value[kSize], weight[kSize], bias[kSize];
    load_parameters<T>(weights + v * (kStride * kSize), !kAny || p.weight.data != nullptr, A(1), weight);
    if constexpr (kAny || kKind == NormKind::layer) {
      load_parameters<T>(biases + v * (kStride * kSize), !kAny || p.bias.data != nullptr, A(0), bias);
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) bias[j] = A(0);
    }
    if (kAny && offset != A(0)) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) weight[j] = effective_weight(weight[j], offset);
    }
    unpack(x[v], value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = affine(normalized(value[j], mean, rstd), weight[j], bias[j]);
    activate<T, !kAny>(value, p);
    store_pack(own.in(y, v), to_pack<T>(value));
  }
}

template <NormKind kKind, class Stored, class T, int kStride, int kVectors, class Problem, class A = Accumulator<T>>
__device__ __forceinline__ void write_output(const Problem& p, T* y, const OwnPacks<T, kStride>& own,
                                             const Pack<T> (&x)[kVectors], A mean, A rstd, A offset) {
  const bool bias = p.bias.data != nullptr;
  if (p.weight.data != nullptr && bias == (kKind == NormKind::layer) && offset == A(0)) {
    write_packs<kKind, Parameters::affine, Stored>(p, y, own, x, mean, rstd, offset);
  } else {
    write_packs<kKind, Parameters::any, Stored>(p, y, own, x, mean, rstd, offset);
  }
}

/// kLanes: lanes that share a row (warp), or 0 for all threads of a block (block). kThreads bounds the block, kBlocks
/// is how many must fit a multiprocessor: as many as leave registers for a thread's packs without spills.
template <class T, NormKind kKind, bool kActivated, int kLanes, int kVectors, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    row_forward_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                       const Scalars<Accumulator<T>> scalars) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr bool kBlock = kLanes == 0;
  constexpr int kStride = kBlock ? kWarp : kLanes;
  const RowGeometry& g = p.geometry;
  const int lane = kBlock ? threadIdx.x : threadIdx.x % kStride;
  const int64_t row =
      kBlock ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * (blockDim.x / kStride) + threadIdx.x / kStride;
  const bool active = row < g.rows;  // lanes without a row take part in their warp's shuffles
  const int packs = static_cast<int>(g.cols) / kSize;
  const OwnPacks<T, kStride> own{kBlock ? lane / kWarp * (kWarp * kVectors) + lane % kWarp : lane, active ? packs : 0};
  const RowIndex index(scalars.rows, active ? row : 0);

  Pack<T> x[kVectors];
  const T* from = row_pointer<const T>(p.x, index);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) x[v] = own.valid(v) ? load_pack(own.in(from, v)) : Pack<T>{};
  if (gridDim.x <= kColdGrid) {
    prefetch_parameters(p.weight, own);
    prefetch_parameters(p.bias, own);
  }
  if (p.residual.data != nullptr) {
    add_residual(row_pointer<const T>(p.residual, index), row_pointer<T>(p.residual_out, index), own, x);
  }
  __shared__ GroupScratch<A, 1> scratch[kBlock ? 2 : 1];
  const auto sum = [&](A part, int which) {
    A value[1] = {part};
    if constexpr (kBlock) {
      group_sum(value, scratch[which].slots(0, blockDim.x / kWarp), lane / kWarp, blockDim.x / kWarp, 0);
    } else {
      value[0] = lane_sum<kStride>(part);
    }
    return value[0];
  };
  A mean = A(0);
  if constexpr (kKind == NormKind::layer) {
    A part = A(0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      A value[kSize];
      unpack(x[v], value);
      part += total_of(value);
    }
    mean = sum(part, 0) * scalars.reciprocal_cols;
  }
  A part = A(0);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    A value[kSize];
    unpack(x[v], value);
    if constexpr (kKind == NormKind::layer) centre(value, mean);
    part += own.valid(v) ? squares_of(value) : A(0);
  }
  const A variance = sum(part, 1) * scalars.reciprocal_cols;
  const A rstd = reciprocal_std(variance, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
  if (lane == 0 && active) {
    if (p.mean.data != nullptr) *row_pointer<A>(p.mean, index) = mean;
    if (p.rstd.data != nullptr) *row_pointer<A>(p.rstd, index) = rstd;
  }
  T* y = row_pointer<T>(p.y, index);
  const Operand& parameter = p.weight.data != nullptr ? p.weight : p.bias;  // both have one dtype here
  if (sizeof(T) == 2 && parameter.data != nullptr && parameter.dtype == DType::f32) {
    write_output<kKind, A>(p, y, own, x, mean, rstd, scalars.weight_offset);
  } else {
    write_output<kKind, T>(p, y, own, x, mean, rstd, scalars.weight_offset);
  }
}

}  // namespace normact::cuda
