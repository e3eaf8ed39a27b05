// SPDX-License-Identifier: Apache-2.0
// Activations backward with the gradient of a bias, in one pass: dx (and dup) as in pointwise_backward.cuh, and sums of
// dx (and dup) over all dimensions but the bias's. In two stages, without atomics: every block writes the sums of its
// part to the workspace, and bias_sum_kernel adds the parts up in a fixed order (a single part is the result).
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/pointwise_backward.cuh"

namespace normact::cuda {

inline int sum_lanes_of(int of_entry) {
  int lanes = 1;
  while (lanes < of_entry && lanes < kPointwiseThreads) lanes *= 2;
  return lanes;
}

/// What the kernels of this file are told beside the problem.
struct BiasSpace {
  ElementSpace elements;
  int64_t channels, outer, inner;  // columns: outer counts rows seen as one
  int64_t parts, partials;
  int fold;        // columns: rows seen as one
  int lanes;       // columns: threads side by side
  int of_entry;    // sums of a part's row that are an entry's
  int sum_lanes;   // second stage: threads on these, a power of two
  bool single;     // as in the plan
  Divisor groups;  // channels: groups of `width` of an entry in one repetition

  BiasSpace(const PointwiseBackward& p, const BiasPlan& plan)
      : elements(p.geometry),
        channels(plan.channels),
        outer(plan.outer / plan.fold),
        inner(plan.inner),
        parts(plan.parts),
        partials(plan.partials),
        fold(plan.fold),
        lanes(plan.lanes),
        of_entry(plan.channels > 0 ? static_cast<int>(plan.partials / plan.channels) : 1),
        sum_lanes(sum_lanes_of(of_entry)),
        single(plan.single()),
        groups(elements.small && inner >= plan.width ? static_cast<unsigned>(inner / plan.width) : 1) {}

  /// Partial sums: rows of `partials` of them.
  __device__ __forceinline__ int64_t rows() const { return parts * fold; }
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

  __device__ BiasPartials(const PointwiseBackward& p, const BiasSpace& space, void* workspace)
      : dbias(static_cast<A*>(workspace)),
        dup_bias(static_cast<A*>(workspace) + (p.dbias.data != nullptr ? space.rows() * space.partials : 0)) {}
};

/// One sum: to the workspace, or where it is the result, there.
template <class T, class A>
__device__ __forceinline__ void store_bias_sum(const PointwiseBackward& p, const View& result, A* partials,
                                               const BiasSpace& space, int64_t part, int64_t index, A sum) {
  if (space.single) {
    store_parameter<T>(result, index * result.stride[p.geometry.bias_dim], sum);
  } else {
    partials[part * space.fold * space.partials + index] = sum;
  }
}

/// kWidth neighbours in one access.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Group {
  T element[kWidth];

  static __device__ __forceinline__ Group load(const View& view, int64_t offset) {
    const T* from = static_cast<const T*>(view.data) + offset;
    if constexpr (kWidth * sizeof(T) == kPackBytes) {
      const auto pack = load_pack(from);
      return *reinterpret_cast<const Group*>(&pack);
    } else {
      return *reinterpret_cast<const Group*>(from);
    }
  }
  __device__ __forceinline__ void get(Accumulator<T> (&value)[kWidth]) const {
    if constexpr (kWidth == kPackSize<T>) {
      unpack(*reinterpret_cast<const Pack<T>*>(this), value);
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] = convert<Accumulator<T>>(element[j]);
    }
  }
  static __device__ __forceinline__ void store(const View& view, int64_t offset,
                                               const Accumulator<T> (&value)[kWidth]) {
    T* to = static_cast<T*>(view.data) + offset;
    if constexpr (kWidth == kPackSize<T>) {
      store_pack(to, to_pack<T>(value));
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) to[j] = convert<T>(value[j]);
    }
  }
};

/// In the place of an activation: any, looked up for each group.
struct AnyActivation {};

/// What a thread adds up over the groups of kWidth neighbours that it goes through.
template <class T, class Act, bool kGated, SlopeSource kSource, int kWidth>
struct BiasSums {
  using A = Accumulator<T>;
  using In = Group<T, kWidth>;
  static constexpr bool kInput = kSource == SlopeSource::input, kMask = kSource == SlopeSource::mask;

  A bias[kWidth], up_bias[kGated ? kWidth : 1];
  A sum[kWidth] = {}, up_sum[kGated ? kWidth : 1] = {};

  struct Loaded {
    In dy, from, up;
  };

  /// offset(view): where the group begins.
  template <class Offset>
  static __device__ __forceinline__ Loaded load(const PointwiseBackward& p, Offset offset) {
    Loaded in;
    in.dy = In::load(p.dy, offset(p.dy));
    if constexpr (!kMask) {
      const View& source = kInput ? p.x : p.y;
      in.from = In::load(source, offset(source));
    }
    if constexpr (kGated) in.up = In::load(p.up, offset(p.up));
    return in;
  }

  /// Has the line in which load() finds the group on its way to the L2 cache.
  template <class Offset>
  static __device__ __forceinline__ void prefetch(const PointwiseBackward& p, Offset offset) {
    const auto one = [&](const View& view) { prefetch_line(static_cast<const T*>(view.data) + offset(view)); };
    one(p.dy);
    if constexpr (!kMask) one(kInput ? p.x : p.y);
    if constexpr (kGated) one(p.up);
  }

  /// Stores the group's gradients and adds them to the sums; `element` is its first in the index space.
  template <class Offset>
  __device__ __forceinline__ void add(const PointwiseBackward& p, const PointwiseScalars<A>& scalars, const Loaded& in,
                                      int64_t element, Offset offset) {
    A dy[kWidth], from[kWidth], up[kWidth] = {};
    in.dy.get(dy);
    if constexpr (kMask) {
      load_mask(p.mask, element, from);
    } else {
      in.from.get(from);
    }
    if constexpr (kGated) in.up.get(up);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if constexpr (kInput) from[j] += bias[j];
      if constexpr (kGated) up[j] += up_bias[j];
    }
    const auto differentiate = [&](auto act) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const auto g = gradient_of<decltype(act), kGated, kSource>(dy[j], from[j], up[j], scalars);
        dy[j] = g.x;
        up[j] = g.up;
      }
    };
    if constexpr (kMask) {
      differentiate(Relu<Math<T>>{});  // the bits are the slope of any kind
    } else if constexpr (std::is_same_v<Act, AnyActivation>) {
      visit_activation<Math<T>>(p.activation.kind, differentiate);
    } else {
      differentiate(Act{});
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum[j] += dy[j];
      if constexpr (kGated) up_sum[j] += up[j];
    }
    In::store(p.dx, offset(p.dx), dy);
    if constexpr (kGated) In::store(p.dup, offset(p.dup), up);
  }
};

/// Blocks that must fit a multiprocessor, and rows whose loads a thread has under way. On an H200 bf16 is slower with 2
/// rows: their registers make the compiler put the loads one behind the other, each after some arithmetic. fp32 is
/// slower with 2 than with 4, and both with loads ahead of the rows worked on.
template <class T, bool kGated>
constexpr int kColumnBlocks = sizeof(T) == 2 && !kGated ? 4 : 2;
template <class T, bool kGated>
constexpr int kColumnRows = kGated           ? 2
                            : sizeof(T) == 2 ? 1
                                             : 4;

/// Work     grid (column groups, parts). A block has `lanes` threads side by side, each with kWidth columns, which stay
///          the same while it walks down the rows of its part, kColumnRows at a time; their sums stay in registers.
///          Rows without gaps that are no whole packs go some at a time, as one (fold).
/// Bytes    each element of dy and x (and up) is read once, each of dx (and dup) written once.
/// Barriers two at the end for each bias, around the sum over the block's threads of a column.
template <class T, class Act, bool kGated, SlopeSource kSource, int kWidth>
__global__ void __launch_bounds__(kPointwiseThreads, kColumnBlocks<T, kGated>)
    bias_gradient_columns_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ BiasSpace space,
                                 const PointwiseScalars<Accumulator<T>> scalars, void* workspace) {
  using A = Accumulator<T>;
  using Sums = BiasSums<T, Act, kGated, kSource, kWidth>;
  constexpr int kRows = kColumnRows<T, kGated>;
  __shared__ A shared[kPointwiseThreads * kWidth];
  const int lane = threadIdx.x & (space.lanes - 1), line = (threadIdx.x - lane) / space.lanes;
  const int lines = kPointwiseThreads / space.lanes;
  const int64_t columns = space.partials * space.fold;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * space.lanes * kWidth;
  const int64_t column = first + lane * kWidth;
  const int64_t part = blockIdx.y;
  const int64_t begin = space.begin_of(space.outer, part), end = space.begin_of(space.outer, part + 1);
  Sums sums;
  // Rows and row strides have 31 bits (the planner sees to that): one instruction multiplies them.
  const auto offset_of = [&](int row) {
    return [column, first_row = row * space.fold](const View& view) {
      return static_cast<int64_t>(first_row) * static_cast<int>(view.stride[0]) + column;
    };
  };
  const int last = static_cast<int>(end);
  int row = static_cast<int>(begin) + line;
  if (column < columns && lane * kWidth * static_cast<int>(sizeof(T)) % kLineBytes == 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r * lines < last) Sums::prefetch(p, offset_of(row + r * lines));
    }
  }
  start_after_previous();
  if (column < columns) {
    const auto load_bias = [&](const View& view, auto& value) {
      int64_t in_row = space.fold == 1 ? column : column % space.partials;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[j] = A(-0.0);  // leaves the sign of a zero
        if (view.data != nullptr) {
          const int64_t entry = space.inner == 1 ? in_row : in_row / space.inner;
          value[j] = Parameter<T>(view).at(entry * view.stride[p.geometry.bias_dim]);
        }
        if (++in_row == space.partials) in_row = 0;
      }
    };
    if constexpr (kSource == SlopeSource::input) load_bias(p.bias, sums.bias);
    if constexpr (kGated) load_bias(p.up_bias, sums.up_bias);
    const auto add = [&](const typename Sums::Loaded& in, int row) {
      sums.add(p, scalars, in, row * columns + column, offset_of(row));
    };
#pragma unroll 1
    for (; row + (kRows - 1) * lines < last; row += kRows * lines) {
      typename Sums::Loaded in[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) in[r] = Sums::load(p, offset_of(row + r * lines));
#pragma unroll
      for (int r = 0; r < kRows; ++r) add(in[r], row + r * lines);
    }
#pragma unroll 1
    for (; row < last; row += lines) add(Sums::load(p, offset_of(row)), row);
  }
  const BiasPartials<A> partials(p, space, workspace);
  const auto write = [&](const View& result, A* to, const A(&mine)[kWidth]) {
    if (result.data == nullptr) return;
    const int wide = space.lanes * kWidth;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWidth; ++j) shared[line * wide + lane * kWidth + j] = mine[j];
    __syncthreads();
    for (int c = threadIdx.x; c < wide && first + c < columns; c += kPointwiseThreads) {
      A total = shared[c];
      for (int i = 1; i < lines; ++i) total += shared[i * wide + c];
      store_bias_sum<T>(p, result, to, space, part, first + c, total);
    }
  };
  write(p.dbias, partials.dbias, sums.sum);
  if constexpr (kGated) write(p.dup_bias, partials.dup_bias, sums.up_sum);
}

/// Work     grid (entries, parts): a block owns a part of what an entry of the bias is added to; its threads walk along
///          it in groups of kWidth neighbours.
/// Bytes    each element of dy and x (and up) is read once, each of dx (and dup) written once.
/// Barriers one at the end for each bias, for the sums of the warps.
template <class T, class Act, bool kGated, SlopeSource kSource, int kWidth>
__global__ void __launch_bounds__(kPointwiseThreads, kGated ? 2 : 4)
    bias_gradient_channels_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ BiasSpace space,
                                  const PointwiseScalars<Accumulator<T>> scalars, void* workspace) {
  using A = Accumulator<T>;
  using Sums = BiasSums<T, Act, kGated, kSource, kWidth>;
  constexpr int kGroups = kWidth > 1 ? 2 : 1;  // whose loads are under way together
  allow_next_kernel();
  __shared__ A shared[2][kPointwiseThreads / kWarp];
  const int64_t channel = blockIdx.x, part = blockIdx.y;
  const int64_t a_repetition = space.inner / kWidth;
  const int64_t groups = space.outer * a_repetition;
  const int64_t begin = space.begin_of(groups, part), end = space.begin_of(groups, part + 1);
  Sums sums;
  const auto load_bias = [&](const View& view, auto& value) {
    const A entry = view.data != nullptr ? Parameter<T>(view).at(channel * view.stride[p.geometry.bias_dim]) : A(-0.0);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] = entry;
  };
  if constexpr (kSource == SlopeSource::input) load_bias(p.bias, sums.bias);
  if constexpr (kGated) load_bias(p.up_bias, sums.up_bias);
  const auto element_of = [&](int64_t group) {
    const int64_t repetition =
        space.elements.small ? space.groups.quotient(static_cast<unsigned>(group)) : group / a_repetition;
    return (repetition * space.channels + channel) * space.inner + (group - repetition * a_repetition) * kWidth;
  };
#pragma unroll 1
  for (int64_t group = begin + threadIdx.x; group < end; group += kGroups * kPointwiseThreads) {
    if constexpr (kWidth == 1) {
      const int64_t element = element_of(group);
      const ElementPlace place(space.elements, element);
      const auto offset = [&](const View& view) { return place.offset(view); };
      sums.add(p, scalars, Sums::load(p, offset), element, offset);
    } else {  // of dense problems only
      typename Sums::Loaded in[kGroups];
      int64_t element[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (group + g * kPointwiseThreads >= end) continue;
        element[g] = element_of(group + g * kPointwiseThreads);
        in[g] = Sums::load(p, [&](const View&) { return element[g]; });
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (group + g * kPointwiseThreads < end)
          sums.add(p, scalars, in[g], element[g], [&](const View&) { return element[g]; });
      }
    }
  }
  const BiasPartials<A> partials(p, space, workspace);
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
  write(p.dbias, partials.dbias, sums.sum, shared[0]);
  if constexpr (kGated) write(p.dup_bias, partials.dup_bias, sums.up_sum, shared[1]);
}

/// The second stage where each partial sum is an entry's.
/// Work     as parameter_sum_kernel's.
/// grid     (ceil(channels / 32), 2): y = 0 is dbias, y = 1 dup_bias; an absent one is skipped.
template <class T>
__global__ void __launch_bounds__(kWarp* kSumThreads)
    bias_sum_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ BiasSpace space,
                    void* workspace) {
  using A = Accumulator<T>;
  const View& to = blockIdx.y == 0 ? p.dbias : p.dup_bias;
  if (to.data == nullptr) return;
  const BiasPartials<A> partials(p, space, workspace);
  sum_partial_rows<kSumThreads>(
      blockIdx.y == 0 ? partials.dbias : partials.dup_bias, space.rows(), space.channels,
      [&](int64_t channel, A sum) { store_parameter<T>(to, channel * to.stride[p.geometry.bias_dim], sum); });
}

/// The second stage where an entry has several partial sums in each row of them, or entries are few.
/// Work     a block adds up the columns of an entry in all rows of them.
/// Bytes    reads rows * columns values from the L2 cache.
/// grid     (channels, 2), as above.
template <class T>
__global__ void __launch_bounds__(kPointwiseThreads)
    bias_column_sum_kernel(const __grid_constant__ PointwiseBackward p, const __grid_constant__ BiasSpace space,
                           void* workspace) {
  using A = Accumulator<T>;
  wait_for_previous_kernel();
  const View& to = blockIdx.y == 0 ? p.dbias : p.dup_bias;
  if (to.data == nullptr) return;
  __shared__ A slots[kPointwiseThreads / kWarp];
  const BiasPartials<A> partials(p, space, workspace);
  const A* from = (blockIdx.y == 0 ? partials.dbias : partials.dup_bias) + int64_t{blockIdx.x} * space.of_entry;
  const int lanes = space.sum_lanes;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), line = (static_cast<int>(threadIdx.x) - lane) / lanes;
  A sum = A(0);
  for (int64_t row = line; row < space.rows(); row += kPointwiseThreads / lanes) {
    for (int k = lane; k < space.of_entry; k += lanes) sum += from[row * space.partials + k];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kPointwiseThreads / kWarp; ++w) sum += slots[w];
  store_parameter<T>(to, static_cast<int64_t>(blockIdx.x) * to.stride[p.geometry.bias_dim], sum);
}

}  // namespace normact::cuda
