// SPDX-License-Identifier: Apache-2.0
// Row norm forward of rows that are whole 16-byte packs, held in registers: variants warp and block.
//
// Mixed    T is fp32 and X a 16-bit type: x and y move in packs of 8 bytes, all else is as for fp32.
// Work     warp: kLanes lanes own a row; block: a block of threads owns a row, and many small blocks share a
//          multiprocessor. (Several rows a block would need named barriers; a block whose barriers the compiler cannot
//          count reserves all 16, and then few blocks fit.) A warp owns a contiguous chunk of 32 * kVectors packs, so
//          that every address is one base and constant offsets; a thread holds kVectors packs.
// Bytes    each element of x (and residual) is read once, each of y (and residual_out) written once.
// Barriers warp: none. block: one.
// Sums     from registers: warp: two-pass, about the row's own mean; block: about the mean of each warp's first packs,
//          merged by Chan's formula.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_parts.cuh"
#include "cuda/values.cuh"
#include "math/normalize.h"

namespace normact::cuda {

constexpr int kWarpScopeThreads = 128;
constexpr int kMaxRowThreads = 512;   // of a block, but for ...
constexpr int kWideRowThreads = 768;  // ... fp32 rows just too long for that

/// Blocks that may wait for the kernel before this one have their rows on the way meanwhile; later ones never wait, and
/// would only have more to do.
constexpr unsigned kPrefetchingBlocks = 1024;

/// The packs of one row that a thread owns: first, first + kStride, ... as far as they are below `packs`.
template <class T, int kStride>
struct OwnPacks {
  int first;
  int packs;  // in the row; 0 for a thread without a row

  __device__ __forceinline__ bool valid(int v) const { return first + v * kStride < packs; }
  /// In a row of T, or of as many elements of another type.
  template <class X>
  __device__ __forceinline__ X* in(X* row, int v) const {
    return row + first * kPackSize<T> + v * (kStride * kPackSize<T>);
  }
  /// Has them on their way to the L2 cache, a line of 128 bytes a thread; `from` is the first.
  template <int kVectors, class X>
  __device__ __forceinline__ void prefetch(const X* from) const {
    constexpr int kThreads = kLineBytes / (kPackSize<T> * static_cast<int>(sizeof(X)));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!valid(v) || threadIdx.x % kThreads != 0) continue;
      prefetch_line(from + v * (kStride * kPackSize<T>));
    }
  }
};

/// s = round(x + residual), which also goes to residual_out: the norm is of what the caller gets back. s may be x.
template <class X, class T, int kStride, int kVectors>
__device__ __forceinline__ void add_residual(const PackBeside<X, T> (&x)[kVectors], const T* residual, T* to,
                                             const OwnPacks<T, kStride>& own, Pack<T> (&s)[kVectors]) {
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
    s[v] = to_pack<T>(sum);
    if (own.valid(v)) store_pack(own.in(to, v), s[v]);
  }
}

/// Which parameters there are. usual: all that this norm commonly has, without an offset (layer: both; rms: the
/// weight), so that nothing needs to be chosen for each pack.
enum class Parameters : uint8_t { usual, any };

/// y = act(xhat * (weight + offset) + bias); xhat_of(v, xhat) gives pack v, apply(h) is h = act(h).
template <NormKind kKind, Parameters kParameters, class Stored, int kVectors, class T, class X, int kStride,
          class Problem, class XhatOf, class Apply, class A = Accumulator<T>>
__device__ __forceinline__ void write_packs(const Problem& p, X* y, const OwnPacks<T, kStride>& own, XhatOf xhat_of,
                                            A offset, Apply apply) {
  constexpr int kSize = kPackSize<T>, kStep = kStride * kSize;
  constexpr bool kAny = kParameters == Parameters::any;
  const auto* weights = static_cast<const Stored*>(p.weight.data) + own.first * kSize;
  const auto* biases = static_cast<const Stored*>(p.bias.data) + own.first * kSize;
  y = own.in(y, 0);
  if constexpr (!kAny) {  // no load before it is known what there is
    weights = one_base(weights);
    biases = one_base(biases);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!own.valid(v)) continue;
    if constexpr (kAny && !std::is_same_v<Problem, RowForward>) {  // no addresses in registers over a call
      int first = own.first;
      asm volatile("" : "+r"(first));
      weights = static_cast<const Stored*>(p.weight.data) + first * kSize;
      biases = static_cast<const Stored*>(p.bias.data) + first * kSize;
    }
    A value[kSize], weight[kSize], bias[kSize] = {};
    load_parameters<T>(weights + v * kStep, !kAny || p.weight.data != nullptr, A(1), weight);
    if constexpr (kAny || kKind == NormKind::layer) {
      load_parameters<T>(biases + v * kStep, !kAny || p.bias.data != nullptr, A(0), bias);
    }
    if (kAny && offset != A(0)) {
      asm volatile("");  // a branch, not a predicate on each addition
#pragma unroll
      for (int j = 0; j < kSize; ++j) weight[j] = effective_weight(weight[j], offset);
    }
    xhat_of(v, value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) value[j] = affine(value[j], weight[j], bias[j]);
    apply(value);
    store_pack(y + v * kStep, to_pack_beside<X, T>(value));
  }
}

/// The same for the parameters and the activation that there are. kSeparate: the usual ones, with an activation that is
/// inlined or none, have code of their own, so that nothing is looked up at each pack.
template <NormKind kKind, bool kSeparate, class Stored, int kVectors, class T, class X, int kStride, class Problem,
          class XhatOf, class A = Accumulator<T>>
__device__ __forceinline__ void write_output(const Problem& p, X* y, const OwnPacks<T, kStride>& own, XhatOf xhat_of,
                                             A offset) {
  constexpr int kSize = kPackSize<T>;
  const bool bias = p.bias.data != nullptr;
  if (kSeparate && p.weight.data != nullptr && bias == (kKind == NormKind::layer) && offset == A(0)) {
    const bool written = with_inlined_activation<X, kSize>(p, [&](auto apply) {
      write_packs<kKind, Parameters::usual, Stored, kVectors>(p, y, own, xhat_of, offset, apply);
    });
    if (written) return;
  }
  write_packs<kKind, Parameters::any, Stored, kVectors>(p, y, own, xhat_of, offset,
                                                        [&](A(&h)[kSize]) { call_activation<X>(h, p); });
}

/// Mean of a set, sum of the squares about it, and how far the mean is from what this thread's deviations are from.
template <class A>
struct RowMoments {
  A mean;
  A squares;
  A distance;
};

/// Those of a block's row, of whose values deviations are left. Every warp takes them, and their squares, about the
/// mean of its first packs: these are enough of its values for that to cost few bits, whatever the others are.
template <class T, int kVectors, class A = Accumulator<T>>
__device__ __forceinline__ RowMoments<A> block_moments(const OwnPacks<T, kWarp>& own,
                                                       A (&value)[kVectors][kPackSize<T>], A reciprocal_cols) {
  constexpr int kSize = kPackSize<T>;
  constexpr int kFull = kWarp * kVectors;  // packs of every warp but the last, which has at least one
  __shared__ RowPart<A> parts[kWarp];
  const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int last_packs = own.packs - (warps - 1) * kFull;
  const A last = static_cast<A>(last_packs * kSize);
  const auto share_of_warp = [&](int w) { return w < warps - 1 ? A(1.0 / (kFull * kSize)) : A(1) / last; };
  const A first = static_cast<A>((warp < warps - 1 ? kWarp : min(kWarp, last_packs)) * kSize);
  const A about = warp_sum(total_of(value[0])) * rough_reciprocal(first);
  A sums[2] = {};  // of deviations and of their squares
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    centre(value[v], about);
    sums[0] += own.valid(v) ? total_of(value[v]) : A(0);
    sums[1] += own.valid(v) ? squares_of(value[v]) : A(0);
  }
  lane_sums<kWarp>(sums);
  if (lane == 0) parts[warp] = {about, sums[0], sums[1], A(0)};
  __syncthreads();
  const A count = lane < warps - 1 ? A(kFull * kSize) : lane == warps - 1 ? last : A(0);
  const MergedParts<A> row =
      merge_parts(parts, warps, count, lane < warps ? share_of_warp(lane) : A(0), reciprocal_cols);
  return {row.from + row.mean, row.squares, row.mean - (about - row.from)};
}

/// kLanes: lanes that share a row (warp), or 0 for all threads of a block (block). kThreads bounds the block, kBlocks
/// is how many must fit a multiprocessor: as many as leave registers for a thread's packs without spills.
template <class T, class X, NormKind kKind, bool kActivated, int kLanes, int kVectors, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    row_forward_kernel(const __grid_constant__ KernelProblem<RowForward, T, kActivated> p,
                       const Scalars<Accumulator<T>> scalars) {
  using A = Accumulator<T>;
  constexpr int kSize = kPackSize<T>;
  constexpr bool kBlock = kLanes == 0;
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr bool kSeparate = kActivated || !kBlock || sizeof(T) == 2;  // long bare rows of wider types would spill
  constexpr int kStride = kBlock ? kWarp : kLanes;
  const RowGeometry& g = p.geometry;
  const int lane = kBlock ? threadIdx.x : threadIdx.x % kStride;
  const int64_t row =
      kBlock ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * (blockDim.x / kStride) + threadIdx.x / kStride;
  const bool active = row < g.rows;  // lanes without a row take part in their warp's shuffles
  const int packs = static_cast<int>(g.cols) / kSize;
  const OwnPacks<T, kStride> own{kBlock ? lane / kWarp * (kWarp * kVectors) + lane % kWarp : lane, active ? packs : 0};
  const RowIndex index(scalars.rows, active ? row : 0);

  prefetch_parameter<X>(p.weight, g.cols);
  prefetch_parameter<X>(p.bias, g.cols);
  const X* from = own.in(row_pointer<const X>(p.x, index), 0);
  if (blockIdx.x < kPrefetchingBlocks) own.template prefetch<kVectors>(from);
  start_after_previous();
  Pack<T> s[kVectors];
  const auto load_own = [&](auto(&x)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      x[v] = own.valid(v) ? load_pack_beside<T>(from + v * (kStride * kSize)) : PackBeside<X, T>{};
    }
  };
  const auto add_to = [&](const auto(&x)[kVectors]) {
    add_residual<X>(x, row_pointer<const T>(p.residual, index), row_pointer<T>(p.residual_out, index), own, s);
  };
  if constexpr (std::is_same_v<X, T>) {
    load_own(s);
    if (p.residual.data != nullptr) add_to(s);
  } else {
    PackBeside<X, T> x[kVectors];
    load_own(x);
    add_to(x);
  }
  // Where there are registers for it, values wait for their row's statistics as deviations from about the mean, so that
  // they are unpacked and centred once.
  constexpr bool kKept = kBlock && kLayer;
  A kept[kKept ? kVectors : 1][kSize];
  A mean = A(0), squares = A(0), distance = A(0);
  if constexpr (kKept) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) unpack(s[v], kept[v]);
    const RowMoments<A> moments = block_moments<T>(own, kept, scalars.reciprocal_cols);
    mean = moments.mean;
    squares = moments.squares;
    distance = moments.distance;
  } else {
    if constexpr (kLayer) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        A value[kSize];
        unpack(s[v], value);
        mean += total_of(value);
      }
      mean = lane_sum<kStride>(mean) * scalars.reciprocal_cols;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      A value[kSize];
      unpack(s[v], value);
      if constexpr (kLayer) centre(value, mean);
      squares += own.valid(v) ? squares_of(value) : A(0);
    }
    using Sum = RowSum<kLanes, A, 1>;
    __shared__ typename Sum::Scratch scratch;
    A value[1] = {squares};
    Sum(scratch, 0, lane / kWarp, blockDim.x / kWarp, 0).run(value, 0);
    squares = value[0];
  }
  const A variance = squares * scalars.reciprocal_cols;
  const A rstd = reciprocal_std(variance, scalars.eps, [](A a) { return reciprocal_sqrt(a); });
  if (lane == 0 && active) store_statistics(p, index, mean, rstd);
  const A shift = -distance * rstd;
  const auto xhat_of = [&](int v, A(&xhat)[kSize]) {
    if constexpr (!kKept) unpack(s[v], xhat);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      xhat[j] = kKept ? normalized_deviation(kept[kKept ? v : 0][j], rstd, shift) : normalized(xhat[j], mean, rstd);
    }
  };
  X* y = row_pointer<X>(p.y, index);
  const Operand& parameter = p.weight.data != nullptr ? p.weight : p.bias;  // both have one dtype here
  if (sizeof(X) == 2 && parameter.data != nullptr && parameter.dtype == DType::f32) {
    write_output<kKind, kSeparate, A, kVectors>(p, y, own, xhat_of, scalars.weight_offset);
  } else {
    write_output<kKind, kSeparate, X, kVectors>(p, y, own, xhat_of, scalars.weight_offset);
  }
}

}  // namespace normact::cuda
