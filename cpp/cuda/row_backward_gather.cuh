// SPDX-License-Identifier: Apache-2.0
// Row norm backward of rows whose columns are in pieces or apart, held in registers: variants warp and block.
//
// Work     a persistent grid. Of a block, each group of blockDim.x threads (lanes of a warp, or whole warps) has a row
//          at a time. A thread owns the same units of every row it sees (row_gather.cuh), so dweight and dbias add up
//          in its registers.
// Bytes    each element of x, dy (and dresidual) is read once, dx written once; parameter sums write one row a block to
//          the workspace, which parameter_sum.cuh adds up in a fixed order.
// Pipeline packs come in ahead, to slots in shared memory that their thread alone touches. Single elements do not, as
//          those of 16 bits cannot: they are read when it is their turn, while other groups of the block are at work.
// Barriers lanes: none. Several warps: one named barrier a row.
#pragma once

#include "cuda/parameter_sum.cuh"
#include "cuda/row_activation.cuh"
#include "cuda/row_gather.cuh"

namespace normact::cuda {

/// Tensors of x's shape beside it, in the order of GatherPlaces.
enum BackwardTensor { kBackwardDy, kBackwardDresidual, kBackwardDx };
using BackwardPlaces = GatherPlaces<3>;

/// Of one row.
template <class A>
struct InputStatistics {
  A mean = A(0), rstd = A(0);
};

/// Where a row's x and dy begin; its statistics.
template <class T, NormKind kKind>
struct RowOfInputs {
  using A = Accumulator<T>;
  const T *x, *dy;
  InputStatistics<A> statistics;

  __device__ __forceinline__ RowOfInputs(const RowBackward& p, const BackwardPlaces& places, int64_t row) {
    const Operand* const operands[] = {&p.x, &p.dy, &p.mean, &p.rstd};
    int64_t at[4];
    places.find_row(static_cast<unsigned>(row), p.geometry, operands, at);
    x = static_cast<const T*>(p.x.data) + at[0];
    dy = static_cast<const T*>(p.dy.data) + at[1];
    if constexpr (kKind == NormKind::layer) statistics.mean = static_cast<const A*>(p.mean.data)[at[2]];
    statistics.rstd = static_cast<const A*>(p.rstd.data)[at[3]];
  }
};

/// The rows of a group, `step` apart: x, dy and the statistics. In the order start(), then for every row take(), get()
/// as often as it takes, refill(). What is not there is zero.
template <class T, NormKind kKind, int kSize, int kUnits>
class GatheredRows {
 public:
  using A = Accumulator<T>;
  using Own = OwnUnits<kSize, kUnits, 3>;

  __device__ __forceinline__ GatheredRows(const RowBackward& p, const BackwardPlaces& places, const Own& own,
                                          void* shared, int64_t step)
      : p_(p), places_(places), own_(own), step_(step), unit_bytes_(blockDim.x * blockDim.y * kPackBytes) {
    slots_ = shared_address(shared) + (threadIdx.y * blockDim.x + threadIdx.x) * kPackBytes;
  }
  __device__ __forceinline__ void start(int64_t row) {
#pragma unroll
    for (int s = 0; s < kGatherStages; ++s) statistics_[s] = bring(row + s * step_, s);
  }
  __device__ __forceinline__ InputStatistics<A> take(int64_t row) {
    there_ = row < p_.geometry.rows;
    wait_copies<kGatherStages - 1>();
    return statistics_[0];
  }
  __device__ __forceinline__ void get(int u, A (&x)[kSize], A (&dy)[kSize]) const {
    Pack<T> of_x{}, of_dy{};
    if (there_ && own_.valid(u)) {
      of_x = load_shared_pack<T>(slot(current_, 0, u));
      of_dy = load_shared_pack<T>(slot(current_, 1, u));
    }
    unpack(of_x, x);
    unpack(of_dy, dy);
  }
  /// Goes on to the next row, for which this thread has read all that it will.
  __device__ __forceinline__ void refill(int64_t row) {
#pragma unroll
    for (int s = 0; s + 1 < kGatherStages; ++s) statistics_[s] = statistics_[s + 1];
    statistics_[kGatherStages - 1] = bring(row + kGatherStages * step_, current_);
    current_ = current_ + 1 < kGatherStages ? current_ + 1 : 0;
  }

 private:
  __device__ __forceinline__ SharedAddress slot(int stage, int tensor, int u) const {
    return slots_ + ((stage * 2 + tensor) * kUnits + u) * unit_bytes_;
  }
  /// Starts bringing in a row.
  __device__ __forceinline__ InputStatistics<A> bring(int64_t row, int stage) {
    InputStatistics<A> statistics;
    if (row < p_.geometry.rows) {
      const RowOfInputs<T, kKind> from(p_, places_, row);
      statistics = from.statistics;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        int of_dy[1];
        own_.of_tensor(kBackwardDy, p_.dy, u, of_dy);
        if (!own_.valid(u)) continue;
        copy_async(slot(stage, 0, u), from.x + own_.of_x(u));
        copy_async(slot(stage, 1, u), from.dy + of_dy[0]);
      }
    }
    commit_copies();
    return statistics;
  }

  const RowBackward& p_;
  const BackwardPlaces& places_;
  const Own& own_;
  int64_t step_;
  int unit_bytes_;
  SharedAddress slots_;
  InputStatistics<A> statistics_[kGatherStages];
  int current_ = 0;
  bool there_ = false;
};

/// Of single elements.
template <class T, NormKind kKind, int kUnits>
class GatheredRows<T, kKind, 1, kUnits> {
 public:
  using A = Accumulator<T>;
  using Own = OwnUnits<1, kUnits, 3>;

  __device__ __forceinline__ GatheredRows(const RowBackward& p, const BackwardPlaces& places, const Own& own, void*,
                                          int64_t)
      : p_(p), places_(places), own_(own) {}
  __device__ __forceinline__ void start(int64_t) {}
  __device__ __forceinline__ InputStatistics<A> take(int64_t row) {
    constexpr int kAhead = kGatherAhead<1>;
    const bool there = row < p_.geometry.rows;
    const RowOfInputs<T, kKind> from(p_, places_, there ? row : 0);
#pragma unroll
    for (int begin = 0; begin < kUnits; begin += kAhead) {
      int of_dy[kAhead];
      own_.of_tensor(kBackwardDy, p_.dy, begin, of_dy);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        x_[begin + u] = dy_[begin + u] = {};
        if (!there || !own_.valid(begin + u)) continue;
        x_[begin + u].load(from.x + own_.of_x(begin + u));
        dy_[begin + u].load(from.dy + of_dy[u]);
      }
    }
    return there ? from.statistics : InputStatistics<A>{};
  }
  __device__ __forceinline__ void get(int u, A (&x)[1], A (&dy)[1]) const {
    x_[u].unpack(x);
    dy_[u].unpack(dy);
  }
  __device__ __forceinline__ void refill(int64_t) {}

 private:
  const RowBackward& p_;
  const BackwardPlaces& places_;
  const Own& own_;
  Unit<T, 1> x_[kUnits], dy_[kUnits];
};

/// xhat of the next units from one on, their dy (times the activation's slope, if there is one), and g = dy * weight;
/// of units that are not there all are 0.
template <class T, int kSize, class Problem, class Rows, class Own, class Parameters, int kCount,
          class A = Accumulator<T>>
__device__ __forceinline__ void gathered_units(const Problem& p, const Rows& rows, const Own& own,
                                               const Parameters& parameters, const InputStatistics<A>& of_row,
                                               int begin, A (&xhat)[kCount], A (&g)[kCount], A (&dy)[kCount]) {
  constexpr int kAhead = kCount / kSize;
  A weight[kAhead][kSize];
  parameters.weights(begin, weight);
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    rows.get(begin + u, unit_of<kSize>(xhat, u), unit_of<kSize>(dy, u));
    const A mean = own.valid(begin + u) ? of_row.mean : A(0);
#pragma unroll
    for (int j = u * kSize; j < (u + 1) * kSize; ++j) xhat[j] = normalized(xhat[j], mean, of_row.rstd);
  }
  if constexpr (!std::is_same_v<Problem, RowBackward>) {
    A bias[kAhead][kSize], h[kCount];
    parameters.biases(begin, bias);
#pragma unroll
    for (int j = 0; j < kCount; ++j) h[j] = affine(xhat[j], weight[j / kSize][j % kSize], bias[j / kSize][j % kSize]);
    multiply_slopes<T>(dy, h, p);
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) g[j] = dy[j] * weight[j / kSize][j % kSize];
}

template <class T, NormKind kKind, bool kActivated, int kSize, int kUnits, int kThreads, bool kKept>
__global__ void __launch_bounds__(kThreads, 1)
    row_backward_gather_kernel(const __grid_constant__ KernelProblem<RowBackward, T, kActivated> p,
                               const Scalars<Accumulator<T>> scalars, const __grid_constant__ BackwardPlaces places,
                               void* workspace, double* places_of_sums) {
  static_assert(kKept || !kActivated, "slopes would be computed twice");
  using A = Accumulator<T>;
  constexpr bool kLayer = kKind == NormKind::layer;
  constexpr int kSums = kLayer ? 2 : 1;  // of a row: g * xhat, g
  constexpr int kAhead = kGatherAhead<kSize>;
  extern __shared__ __align__(128) char shared[];
  using Sum = GatherSum<A, kSums, 2, true>;
  __shared__ typename Sum::Scratch scratch;
  const RowGeometry& g = p.geometry;
  const bool residual = p.dresidual.data != nullptr;
  const OwnUnits<kSize, kUnits, 3> own(places, g, p.x);
  const Sum row_sum(scratch);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  GatheredRows<T, kKind, kSize, kUnits> rows(p, places, own, shared, step);
  start_after_previous();
  const GatheredParameters<T, kSize, kUnits, 3, kKept> parameters(p.weight, p.bias, own, scalars.weight_offset);
  const ParameterPlaces<kUnits * kSize> many(places_of_sums);

  constexpr int kChunk = kAhead * kSize, kHeld = kKept ? kUnits / kAhead : 1;
  A dweight[kUnits * kSize] = {}, dbias[kUnits * kSize] = {};
  A xhat[kHeld][kChunk], gradient[kHeld][kChunk];
  rows.start(static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y);
  int tile = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < g.rows; first += step, ++tile) {
    const int64_t row = first + threadIdx.y;
    const bool there = row < g.rows;
    const InputStatistics<A> of_row = rows.take(row);
    A sum[kSums] = {};
#pragma unroll
    for (int begin = 0; begin < kUnits; begin += kAhead) {
      const int held = kKept ? begin / kAhead : 0;
      A value[kChunk];
      gathered_units<T, kSize>(p, rows, own, parameters, of_row, begin, xhat[held], gradient[held], value);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        sum[0] += gradient[held][j] * xhat[held][j];
        if constexpr (kLayer) sum[kLayer] += gradient[held][j];
        dweight[begin * kSize + j] += value[j] * xhat[held][j];
        dbias[begin * kSize + j] += value[j];
      }
    }
    if constexpr (kKept) rows.refill(row);
    row_sum.run(sum, tile % 2);
    const A c2 = sum[0] * scalars.reciprocal_cols * of_row.rstd;
    const A c1 = kLayer ? sum[kLayer] * scalars.reciprocal_cols * of_row.rstd : A(0);

    const Operand* const operands[] = {&p.dresidual, &p.dx};
    int64_t at[2];
    places.find_row(there ? static_cast<unsigned>(row) : 0, g, operands, at);
    const T* const addends = static_cast<const T*>(p.dresidual.data) + at[0];
    T* const dx = static_cast<T*>(p.dx.data) + at[1];
#pragma unroll
    for (int begin = 0; begin < kUnits; begin += kAhead) {
      const int held = kKept ? begin / kAhead : 0;
      Unit<T, kSize> addend[kAhead];
      int offset[kAhead];
      if (residual) {
        own.of_tensor(kBackwardDresidual, p.dresidual, begin, offset);
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          if (there && own.valid(begin + u)) addend[u].load(addends + offset[u]);
        }
      }
      own.of_tensor(kBackwardDx, p.dx, begin, offset);
      A value[kChunk];
      if constexpr (!kKept)
        gathered_units<T, kSize>(p, rows, own, parameters, of_row, begin, xhat[0], gradient[0], value);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        A(&of_unit)[kSize] = unit_of<kSize>(value, u);
        addend[u].unpack(of_unit);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const int i = u * kSize + j;
          of_unit[j] += input_gradient(gradient[held][i], xhat[held][i], of_row.rstd, c1, c2);
        }
        if (there && own.valid(begin + u)) Unit<T, kSize>::write(dx + offset[u], of_unit);
      }
    }
    if constexpr (!kKept) rows.refill(row);
    many.after(tile, dweight, dbias);
  }
  wait_copies<0>();
  many.give(dweight, dbias);

  // The groups of a warp add theirs up; what is left is a part a warp, or a group of warps.
  const int lanes = static_cast<int>(blockDim.x), thread = threadIdx.y * lanes + threadIdx.x;
  const auto store = [&](A(&sum)[kUnits * kSize], A* columns) {
#pragma unroll
    for (int j = 0; j < kUnits * kSize; ++j) {
      for (int offset = lanes; offset < kWarp; offset <<= 1) sum[j] += __shfl_xor_sync(kFullWarp, sum[j], offset);
      if (thread % kWarp >= lanes || !own.valid(j / kSize)) continue;
      columns[own.column(j / kSize) + j % kSize] = sum[j];
    }
  };
  Partials<A> partials(p, workspace, gridDim.x, blockIdx.x);
  partials.single = false;  // results lie as their strides have it, which the second stage knows of
  partials.template write_block<T>(
      p, shared, [&](A* columns) { store(dweight, columns); }, [&](A* columns) { store(dbias, columns); },
      lanes < kWarp ? thread / kWarp : threadIdx.y,
      lanes < kWarp ? static_cast<int>(blockDim.y) * lanes / kWarp : blockDim.y, 0, static_cast<int>(g.cols));
}

}  // namespace normact::cuda
