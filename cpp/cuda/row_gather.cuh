// SPDX-License-Identifier: Apache-2.0
// What both directions of gathered rows have in common: rows whose columns are in pieces or apart, which threads hold
// in registers (variants warp and block).
//
// A unit is a pack of 16 bytes, of columns in pieces of whole packs, or one element. The threads that share a row are
// blockDim.x: up to 32 lanes of a warp, or whole warps. Each owns every so many-th unit of it, whose places it finds
// once for all rows, and all tensors in which they are the same.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/gather_layout.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_index.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// What is divided by to find rows and units, and which tensors' columns lie as those of x. Rows, units, and from one
/// row or column to the next in any tensor are fewer than 2^31 elements (the planner sees to that).
template <int kTensors>
struct GatherPlaces {
  Divisor rows[kMaxDims], cols[kMaxDims];  // sizes of dimensions, those of columns in units
  int units;
  bool as_x[kTensors];
  bool flat;  // parameters' columns follow each other in the order in which they are counted

  /// tensors: those of x's shape but x itself; parameters may be absent.
  GatherPlaces(const RowGeometry& g, int unit_size, const Operand& x, const Operand* const (&tensors)[kTensors],
               std::initializer_list<const Operand*> parameters)
      : units(static_cast<int>(g.cols / unit_size)), flat(true) {
    for (int d = 0; d < g.row_ndim; ++d) rows[d] = Divisor(static_cast<unsigned>(g.row_shape[d]));
    for (int d = 0; d < g.col_ndim; ++d) {
      cols[d] = Divisor(static_cast<unsigned>(g.col_shape[d] / (d + 1 == g.col_ndim ? unit_size : 1)));
    }
    const auto like = [&](const int64_t* a, const int64_t* b) { return std::equal(a, a + g.col_ndim, b); };
    for (int i = 0; i < kTensors; ++i) as_x[i] = like(tensors[i]->col_stride, x.col_stride);
    int64_t in_order[kMaxDims];
    for (int64_t d = g.col_ndim - 1, size = 1; d >= 0; size *= g.col_shape[d--]) in_order[d] = size;
    for (const Operand* parameter : parameters) {
      flat = flat && (parameter->data == nullptr || like(parameter->col_stride, in_order));
    }
  }

  /// Where a row starts in each of some operands, in elements.
  template <int kCount>
  __device__ __forceinline__ void find_row(unsigned row, const RowGeometry& g, const Operand* const (&operands)[kCount],
                                           int64_t (&offset)[kCount]) const {
#pragma unroll
    for (int64_t& of : offset) of = 0;
#pragma unroll 1
    for (int d = g.row_ndim - 1; d >= 0; --d) {
      const unsigned outer = d > 0 ? rows[d].quotient(row) : 0;
      const int index = static_cast<int>(row - outer * rows[d].size);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        offset[i] += static_cast<int64_t>(index) * static_cast<int>(operands[i]->row_stride[d]);
      }
      row = outer;
    }
  }

  /// Where the units of kSize columns of these indices are in an operand.
  template <int kSize, int kUnits>
  __device__ __forceinline__ void find(const RowGeometry& g, const Operand& operand, unsigned (&index)[kUnits],
                                       int (&offset)[kUnits]) const {
#pragma unroll
    for (int& of : offset) of = 0;
    int size = kSize;  // of what is counted in the innermost dimension
#pragma unroll 1
    for (int d = g.col_ndim - 1; d > 0; --d) {
      const int stride = static_cast<int>(operand.col_stride[d]) * size;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const unsigned outer = cols[d].quotient(index[u]);
        offset[u] += static_cast<int>(index[u] - outer * cols[d].size) * stride;
        index[u] = outer;
      }
      size = 1;
    }
    const int stride = static_cast<int>(operand.col_stride[0]) * size;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) offset[u] += static_cast<int>(index[u]) * stride;
  }
};

/// A thread's units of a row, kUnits of kSize columns at most, and where they are in the columns of tensors, in
/// elements.
template <int kSize, int kUnits, int kTensors>
class OwnUnits {
 public:
  __device__ __forceinline__ OwnUnits(const GatherPlaces<kTensors>& places, const RowGeometry& g, const Operand& x)
      : places_(places), g_(g) {
    find(x, 0, of_x_);
    const int apart = static_cast<int>(blockDim.x), left = places.units - static_cast<int>(threadIdx.x);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) count_ += u * apart < left ? 1 : 0;
  }
  __device__ __forceinline__ bool valid(int u) const { return u < count_; }
  /// Where a unit is in x.
  __device__ __forceinline__ int of_x(int u) const { return of_x_[u]; }
  /// Where the next kCount units from one on are in tensor i.
  template <int kCount>
  __device__ __forceinline__ void of_tensor(int i, const Operand& operand, int begin, int (&offset)[kCount]) const {
    if (!places_.as_x[i]) return find(operand, begin, offset);
#pragma unroll
    for (int u = 0; u < kCount; ++u) offset[u] = of_x_[begin + u];
  }
  /// The first column of a unit, as they are counted.
  __device__ __forceinline__ int column(int u) const { return index(u) * kSize; }
  /// Parameters of the next kCount units from one on; `otherwise` where there are none. What they are is asked once for
  /// all of them.
  template <class T, int kCount, class A>
  __device__ __forceinline__ void parameters(const Operand& operand, int begin, A otherwise,
                                             A (&value)[kCount][kSize]) const {
#pragma unroll
    for (auto& of_unit : value) {
#pragma unroll
      for (A& of : of_unit) of = otherwise;
    }
    const Parameter<T> from(operand);
    if (from.data == nullptr) return;
    int at[kCount];
    if (places_.flat) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) at[u] = column(begin + u);
    } else {
      find(operand, begin, at);
    }
    const auto read = [&](auto* data) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        if (valid(begin + u)) value[u][0] = convert<A>(data[at[u]]);
      }
    };
    if constexpr (kSize > 1) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        if (valid(begin + u)) from.load(at[u], value[u]);
      }
    } else if (from.wide) {
      read(static_cast<const A*>(from.data));
    } else {
      read(static_cast<const T*>(from.data));
    }
  }
  /// Weights as they take effect: 1 where there is no weight.
  template <class T, int kCount, class A>
  __device__ __forceinline__ void weights(const Operand& operand, int begin, A weight_offset,
                                          A (&value)[kCount][kSize]) const {
    parameters<T>(operand, begin, A(1), value);
    if (operand.data == nullptr) return;
#pragma unroll
    for (auto& of_unit : value) {
#pragma unroll
      for (A& of : of_unit) of = effective_weight(of, weight_offset);
    }
  }

 private:
  __device__ __forceinline__ int index(int u) const {
    return static_cast<int>(threadIdx.x) + u * static_cast<int>(blockDim.x);
  }
  template <int kCount>
  __device__ __forceinline__ void find(const Operand& operand, int begin, int (&offset)[kCount]) const {
    unsigned unit[kCount];
#pragma unroll
    for (int u = 0; u < kCount; ++u) unit[u] = static_cast<unsigned>(index(begin + u));
    places_.template find<kSize>(g_, operand, unit, offset);
  }

  const GatherPlaces<kTensors>& places_;
  const RowGeometry& g_;
  int of_x_[kUnits];
  int count_ = 0;  // of those that are there
};

/// Units that are under way at a time beside those that a thread holds; no read may overtake a write.
template <int kSize>
constexpr int kGatherAhead = kSize == 1 ? 4 : 1;

/// Weights and biases of a thread's units. kKept: they stay in registers for all rows, else they are read for each.
template <class T, int kSize, int kUnits, int kTensors, bool kKept>
class GatheredParameters {
 public:
  using A = Accumulator<T>;
  using Own = OwnUnits<kSize, kUnits, kTensors>;

  __device__ __forceinline__ GatheredParameters(const Operand& weight, const Operand& bias, const Own& own,
                                                A weight_offset)
      : of_weight_(weight), of_bias_(bias), own_(own), weight_offset_(weight_offset) {
    if constexpr (!kKept) return;
    constexpr int kAhead = kGatherAhead<kSize>;
#pragma unroll
    for (int begin = 0; begin < kHeld; begin += kAhead) {
      A some_weights[kAhead][kSize], some_biases[kAhead][kSize];
      own.template weights<T>(weight, begin, weight_offset, some_weights);
      own.template parameters<T>(bias, begin, A(0), some_biases);
      copy<kAhead>(some_weights, 0, weight_, begin);
      copy<kAhead>(some_biases, 0, bias_, begin);
    }
  }
  /// Those of the next kCount units from one on.
  template <int kCount>
  __device__ __forceinline__ void weights(int begin, A (&value)[kCount][kSize]) const {
    if constexpr (kKept) {
      copy<kCount>(weight_, begin, value, 0);
    } else {
      own_.template weights<T>(of_weight_, begin, weight_offset_, value);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void biases(int begin, A (&value)[kCount][kSize]) const {
    if constexpr (kKept) {
      copy<kCount>(bias_, begin, value, 0);
    } else {
      own_.template parameters<T>(of_bias_, begin, A(0), value);
    }
  }

 private:
  static constexpr int kHeld = kKept ? kUnits : 1;

  template <int kCount>
  static __device__ __forceinline__ void copy(const A (*from)[kSize], int first, A (*to)[kSize], int begin) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) to[begin + u][j] = from[first + u][j];
    }
  }

  const Operand &of_weight_, &of_bias_;
  const Own& own_;
  A weight_offset_;
  A weight_[kHeld][kSize], bias_[kHeld][kSize];
};

/// The values of one of several units.
template <int kSize, class A>
__device__ __forceinline__ A (&unit_of(A* values, int u))
    [kSize] { return *reinterpret_cast<A(*)[kSize]>(values + u * kSize); }

/// A unit of a row as a thread holds it: a pack, or one element.
template <class T, int kSize>
struct Unit {
  using A = Accumulator<T>;
  Pack<T> pack{};

  __device__ __forceinline__ void load(const T* from) { pack = load_pack(from); }
  __device__ __forceinline__ void unpack(A (&value)[kSize]) const { cuda::unpack(pack, value); }
  /// Holds the values as they are written.
  __device__ __forceinline__ void hold(const A (&value)[kSize]) { pack = to_pack<T>(value); }
  static __device__ __forceinline__ void write(T* to, const A (&value)[kSize]) { store_pack(to, to_pack<T>(value)); }
};

template <class T>
struct Unit<T, 1> {
  using A = Accumulator<T>;
  A element = A(0);

  __device__ __forceinline__ void load(const T* from) { element = convert<A>(*from); }
  __device__ __forceinline__ void unpack(A (&value)[1]) const { value[0] = element; }
  __device__ __forceinline__ void hold(const A (&value)[1]) { element = convert<A>(convert<T>(value[0])); }
  static __device__ __forceinline__ void write(T* to, const A (&value)[1]) { *to = convert<T>(value[0]); }
};

/// Sum of each value over the blockDim.x lanes that share a row; the whole warp takes part.
template <class A, int kCount>
__device__ __forceinline__ void sums_of_lanes(A (&value)[kCount]) {
#pragma unroll
  for (A& of : value) of = sum_of_helpers(of, static_cast<int>(blockDim.x));
}

/// The same in the form of GatherSum.
template <class A, int kCount>
class HelperSum {
 public:
  struct Scratch {};

  __device__ __forceinline__ explicit HelperSum(Scratch&) {}
  __device__ __forceinline__ void run(A (&value)[kCount], int) const { sums_of_lanes(value); }
};

/// Sums of kCount values over the blockDim.x threads that share a row, kTurns times before a barrier of the caller's.
/// kGroups: whether a block may have several rows of several warps each.
template <class A, int kCount, int kTurns, bool kGroups>
class GatherSum {
 public:
  using Scratch = GroupScratch<A, kCount, kTurns>;

  __device__ __forceinline__ explicit GatherSum(Scratch& scratch)
      : sum_(scratch, kGroups ? static_cast<int>(threadIdx.y) : 0, static_cast<int>(threadIdx.x) / kWarp,
             blockDim.x > kWarp ? static_cast<int>(blockDim.x) / kWarp : 0,
             kGroups ? 1 + static_cast<int>(threadIdx.y) : 0) {}
  __device__ __forceinline__ void run(A (&value)[kCount], int turn) const {
    if (blockDim.x > kWarp) return sum_.run(value, turn);
    sums_of_lanes(value);
  }

 private:
  GroupSum<A, kCount, kTurns> sum_;
};

}  // namespace normact::cuda
