// SPDX-License-Identifier: Apache-2.0
// Activations backward with the gradient of a bias, in one pass: dx (and dup) as in pointwise_backward.cuh, and sums of
// dx (and dup) over all dimensions but the bias's. In two stages, without atomics: every block writes the sums of its
// part to the workspace, and bias_sum_kernel adds the parts up in a fixed order (a single part is the result).
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/pointwise_backward.cuh"

namespace normact::cuda {

/// What the kernels of this file are told beside the problem.
struct BiasSpace {
  ElementSpace elements;
  bool dense;  // each tensor of x's shape is one array in the order of the index space
  int64_t channels, outer, inner;
  int64_t parts;
  int lanes;        // columns: threads side by side
  Divisor rows;     // columns: rows of the inner row dimension
  Divisor repeats;  // channels: elements, or groups of `width`, of a channel in one repetition

  BiasSpace(const PointwiseBackward& p, const BiasPlan& plan)
      : elements(p.geometry),
        dense(plan.dense),
        channels(plan.channels),
        outer(plan.outer),
        inner(plan.inner),
        parts(plan.parts),
        lanes(plan.lanes),
        rows(p.geometry.ndim == 3 && elements.small ? static_cast<unsigned>(p.geometry.shape[1]) : 1),
        repeats(elements.small && plan.inner >= plan.width ? static_cast<unsigned>(plan.inner / plan.width) : 1) {}

  /// Of `count`: where part `index` begins.
  __device__ __forceinline__ int64_t begin_of(int64_t count, int64_t index) const {
    return count / parts * index + min(index, count % parts);
  }
};

/// The rows of partial sums: of dbias if it is wanted, then of dup_bias.
template <class A>
struct BiasPartials {
  A* dbias;
  A* dup_bias;

  __host__ __device__ BiasPartials(const PointwiseBackward& p, void* workspace, int64_t parts, int64_t channels)
      : dbias(static_cast<A*>(workspace)),
        dup_bias(static_cast<A*>(workspace) + (p.dbias.data != nullptr ? parts * channels : 0)) {}
};

/// One sum of one entry: to the workspace, or where there is one part, to the result.
template <class T, class A>
__device__ __forceinline__ void store_bias_sum(const PointwiseBackward& p, const View& result, A* partials,
                                               const BiasSpace& space, int64_t part, int64_t channel, A sum) {
  if (result.data == nullptr) return;
  if (space.parts == 1) {
    store_parameter<T>(result, channel * result.stride[p.geometry.bias_dim], sum);
  } else {
    partials[part * space.channels + channel] = sum;
  }
}

/// kWidth neighbours in one access.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Group {
  T element[kWidth];
};
template <class T, int kWidth>
__device__ __forceinline__ void load_group(const T* from, Accumulator<T> (&value)[kWidth]) {
  if constexpr (kWidth == kPackSize<T>) {
    unpack(load_pack(from), value);
  } else {
    const auto group = *reinterpret_cast<const Group<T, kWidth>*>(from);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] = convert<Accumulator<T>>(group.element[j]);
  }
}
template <class T, int kWidth>
__device__ __forceinline__ void store_group(T* to, const Accumulator<T> (&value)[kWidth]) {
  if constexpr (kWidth == kPackSize<T>) {
    store_pack(to, to_pack<T>(value));
  } else {
    Group<T, kWidth> group;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) group.element[j] = convert<T>(value[j]);
    *reinterpret_cast<Group<T, kWidth>*>(to) = group;
  }
}

/// The gradients of kWidth neighbours, whose first is `element` of the index space and at offset(view) in each tensor:
/// stores dx and dup, adds them to the sums.
template <class T, class Act, bool kGated, SlopeSource kSource, int kWidth, class Offset>
__device__ __forceinline__ void add_gradients(const PointwiseBackward& p,
                                              const PointwiseScalars<Accumulator<T>>& scalars, int64_t element,
                                              Offset offset, const Accumulator<T> (&bias)[kWidth],
                                              const Accumulator<T> (&up_bias)[kWidth], Accumulator<T> (&sum)[kWidth],
                                              Accumulator<T> (&up_sum)[kWidth]) {
  using A = Accumulator<T>;
  A dy[kWidth], from[kWidth], up[kWidth] = {};
  load_group(static_cast<const T*>(p.dy.data) + offset(p.dy), dy);
  if constexpr (kSource == SlopeSource::mask) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) from[j] = mask_bit<A>(p.mask, element + j);
  } else {
    const View& source = kSource == SlopeSource::input ? p.x : p.y;
    load_group(static_cast<const T*>(source.data) + offset(source), from);
  }
  if constexpr (kGated) load_group(static_cast<const T*>(p.up.data) + offset(p.up), up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const A x = kSource == SlopeSource::input ? from[j] + bias[j] : from[j];
    const auto g = gradient_of<Act, kGated, kSource>(dy[j], x, up[j] + up_bias[j], scalars);
    dy[j] = g.x;
    up[j] = g.up;
    sum[j] += g.x;
    if constexpr (kGated) up_sum[j] += g.up;
  }
  store_group(static_cast<T*>(p.dx.data) + offset(p.dx), dy);
  if constexpr (kGated) store_group(static_cast<T*>(p.dup.data) + offset(p.dup), up);
}

/// For a bias along the last dimension.
/// Work     grid (column groups, parts). A block has `lanes` threads side by side, each with kWidth columns, which stay
///          the same while it walks down the rows of its part; their sums stay in registers.
/// Bytes    each element of dy and x (and up) is read once, each of dx (and dup) written once.
/// Barriers two at the end, around the sum over the block's threads of a column.
template <class T, bool kGated, SlopeSource kSource, int kWidth>
__global__ void __launch_bounds__(kPointwiseThreads)
    bias_gradient_columns_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ BiasSpace space,
                                 const PointwiseScalars<Accumulator<T>> scalars, void* workspace) {
  using A = Accumulator<T>;
  allow_next_kernel();
  __shared__ A shared[kPointwiseThreads * kWidth];
  const int lane = threadIdx.x % space.lanes, line = threadIdx.x / space.lanes;
  const int lines = kPointwiseThreads / space.lanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * space.lanes * kWidth;
  const int64_t column = first + lane * kWidth;
  const int64_t part = blockIdx.y;
  const int64_t begin = space.begin_of(space.outer, part), end = space.begin_of(space.outer, part + 1);
  A sum[kWidth] = {}, up_sum[kWidth] = {}, bias[kWidth] = {}, up_bias[kWidth] = {};
  if (column < space.channels) {
    const auto load_bias = [&](const View& view, A(&value)[kWidth]) {
      if (view.data == nullptr) return;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[j] = Parameter<T>(view).at((column + j) * view.stride[p.geometry.bias_dim]);
      }
    };
    if (kSource == SlopeSource::input) load_bias(p.bias, bias);
    if constexpr (kGated) load_bias(p.up_bias, up_bias);
    visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
#pragma unroll 2
      for (int64_t row = begin + line; row < end; row += lines) {
        const unsigned outer = space.rows.quotient(static_cast<unsigned>(row));
        const auto offset = [&](const View& view) {
          if (p.geometry.ndim < 3) return row * view.stride[0] + column;
          return outer * view.stride[0] + (row - outer * space.rows.size) * view.stride[1] + column;
        };
        add_gradients<T, decltype(act), kGated, kSource>(p, scalars, row * space.channels + column, offset, bias,
                                                         up_bias, sum, up_sum);
      }
    });
  }
  const BiasPartials<A> partials(p, workspace, space.parts, space.channels);
  const auto write = [&](const View& result, A* to, const A(&mine)[kWidth]) {
    if (result.data == nullptr) return;
    const int columns = space.lanes * kWidth;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWidth; ++j) shared[line * columns + lane * kWidth + j] = mine[j];
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += kPointwiseThreads) {
      if (first + c >= space.channels) break;
      A total = shared[c];
      for (int i = 1; i < lines; ++i) total += shared[i * columns + c];
      store_bias_sum<T>(p, result, to, space, part, first + c, total);
    }
  };
  write(p.dbias, partials.dbias, sum);
  if constexpr (kGated) write(p.dup_bias, partials.dup_bias, up_sum);
}

/// For a bias along any other dimension, and where columns do not lie side by side.
/// Work     grid (channels, parts): a block owns a part of a channel; its threads walk along it in groups of kWidth
///          neighbours.
/// Bytes    each element of dy and x (and up) is read once, each of dx (and dup) written once.
/// Barriers one or two at the end, for the sums of the warps.
template <class T, bool kGated, SlopeSource kSource, int kWidth>
__global__ void __launch_bounds__(kPointwiseThreads)
    bias_gradient_channels_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ BiasSpace space,
                                  const PointwiseScalars<Accumulator<T>> scalars, void* workspace) {
  using A = Accumulator<T>;
  allow_next_kernel();
  __shared__ A shared[2][kPointwiseThreads / kWarp];
  const int64_t channel = blockIdx.x, part = blockIdx.y;
  const int64_t groups = space.outer * (space.inner / kWidth);
  const int64_t begin = space.begin_of(groups, part), end = space.begin_of(groups, part + 1);
  const auto entry = [&](const View& view) {
    return view.data != nullptr ? Parameter<T>(view).at(channel * view.stride[p.geometry.bias_dim]) : A(0);
  };
  const A x_bias = kSource == SlopeSource::input ? entry(p.bias) : A(0), factor_bias = kGated ? entry(p.up_bias) : A(0);
  A bias[kWidth], up_bias[kWidth], sum[kWidth] = {}, up_sum[kWidth] = {};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    bias[j] = x_bias;
    up_bias[j] = factor_bias;
  }
  visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
#pragma unroll 2
    for (int64_t group = begin + threadIdx.x; group < end; group += kPointwiseThreads) {
      const int64_t repeat =
          space.elements.small ? space.repeats.quotient(static_cast<unsigned>(group)) : group / (space.inner / kWidth);
      const int64_t rest = group - repeat * (space.inner / kWidth);
      const int64_t element = (repeat * space.channels + channel) * space.inner + rest * kWidth;
      if (space.dense) {
        add_gradients<T, decltype(act), kGated, kSource>(
            p, scalars, element, [&](const View&) { return element; }, bias, up_bias, sum, up_sum);
      } else {
        const ElementPlace place(space.elements, element);
        add_gradients<T, decltype(act), kGated, kSource>(
            p, scalars, element, [&](const View& view) { return place.offset(view); }, bias, up_bias, sum, up_sum);
      }
    }
  });
  const BiasPartials<A> partials(p, workspace, space.parts, space.channels);
  const auto write = [&](const View& result, A* to, A(&mine)[kWidth], A* slots) {
    if (result.data == nullptr) return;
#pragma unroll
    for (int j = 1; j < kWidth; ++j) mine[0] += mine[j];
    const A warp = warp_sum(mine[0]);
    if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = warp;
    __syncthreads();
    if (threadIdx.x != 0) return;
    A total = slots[0];
    for (int w = 1; w < kPointwiseThreads / kWarp; ++w) total += slots[w];
    store_bias_sum<T>(p, result, to, space, part, channel, total);
  };
  write(p.dbias, partials.dbias, sum, shared[0]);
  if constexpr (kGated) write(p.dup_bias, partials.dup_bias, up_sum, shared[1]);
}

/// Work     as parameter_sum_kernel's.
/// grid     (ceil(channels / 32), 2): y = 0 is dbias, y = 1 dup_bias; an absent one is skipped.
template <class T>
__global__ void __launch_bounds__(kWarp* kParameterSumRows)
    bias_sum_kernel(const __grid_constant__ PointwiseBackward p, void* workspace, int64_t parts, int64_t channels) {
  using A = Accumulator<T>;
  const View& to = blockIdx.y == 0 ? p.dbias : p.dup_bias;
  if (to.data == nullptr) return;
  const BiasPartials<A> partials(p, workspace, parts, channels);
  sum_partial_rows(blockIdx.y == 0 ? partials.dbias : partials.dup_bias, parts, channels, [&](int64_t channel, A sum) {
    store_parameter<T>(to, channel * to.stride[p.geometry.bias_dim], sum);
  });
}

}  // namespace normact::cuda
