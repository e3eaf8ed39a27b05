// SPDX-License-Identifier: Apache-2.0
// Where the elements of a pointwise problem lie, and which bias belongs to them: what the pointwise kernels share.
//
// A pack is kPackSize elements that are neighbours in every tensor of x's shape. A space says which kVectors packs a
// thread computes: its Cursor has holds(v), whether there is a pack v, and offset<T>(view, v), where it begins. Its
// Bias adds the biases of a pack.
//
//   FlatSpace    each tensor is one array in the order of the index space; no bias
//   BiasedSpace  the same with a bias along any dimension: found for each pack
//   TileSpace    rows of packs at any row strides, and perhaps a bias along them: a thread stays in its column, so that
//                it finds its biases once
//   InterleavedSpace  the same for gates that alternate with what they gate: two packs hold both
//
// element_space.cuh has what goes element by element.
#pragma once

#include "core/plan_pointwise.h"
#include "cuda/device_math.cuh"
#include "cuda/element_space.cuh"
#include "cuda/memory.cuh"
#include "math/gate.h"

namespace normact::cuda {

constexpr int kPointwiseThreads = 256;

/// The policy that T is computed by.
template <class T>
using Math = DeviceMath<Accumulator<T>, sizeof(T) == 2   ? 11
                                        : sizeof(T) == 4 ? 24
                                                         : 53>;

/// The numbers of a problem in the type that kernels compute in: converted once, on the host.
template <class A>
struct PointwiseScalars {
  ActivationScalars<A> activation;
  GateScalars<A> gate;

  explicit PointwiseScalars(const PointwiseProblem& p)
      : activation(activation_scalars<A>(p.activation.alpha, p.activation.beta, p.activation.threshold)),
        gate{static_cast<A>(p.limit), static_cast<A>(p.up_offset)} {}
};

struct FlatSpace {
  int64_t packs;  // whole ones
  int tail;       // elements after them

  FlatSpace(const PointwiseProblem& p, const PointwisePlan&, int pack_size)
      : packs(p.geometry.size / pack_size), tail(static_cast<int>(p.geometry.size % pack_size)) {}

  int64_t blocks(int vectors) const {
    const int64_t a_block = int64_t{vectors} * kPointwiseThreads;
    return packs > a_block ? (packs + a_block - 1) / a_block : 1;
  }
  static int64_t layers(const PointwiseGeometry&) { return 1; }

  template <int kVectors>
  struct Cursor {
    static constexpr bool kInterleaved = false;
    int64_t first, packs;
    __device__ __forceinline__ explicit Cursor(const FlatSpace& space)
        : first(blockIdx.x * static_cast<int64_t>(kVectors * kPointwiseThreads) + threadIdx.x), packs(space.packs) {}
    __device__ __forceinline__ int64_t pack(int v) const { return first + v * kPointwiseThreads; }
    __device__ __forceinline__ bool holds(int v) const { return pack(v) < packs; }
    template <class T>
    __device__ __forceinline__ int64_t offset(const View&, int v) const {
      return pack(v) * kPackSize<T>;
    }
  };

  template <class T>
  struct Bias {
    __device__ __forceinline__ Bias(const FlatSpace&, const View&) {}
    template <class Cursor>
    __device__ __forceinline__ void add(const Cursor&, int, Accumulator<T> (&)[kPackSize<T>]) const {}
    __device__ __forceinline__ Accumulator<T> of_element(int64_t) const { return Accumulator<T>(0); }
  };

  /// The element after the last whole pack that this thread of the last block computes; -1: none.
  template <class T>
  __device__ __forceinline__ int64_t tail_element() const {
    const bool mine = static_cast<int>(threadIdx.x) < tail && blockIdx.x == gridDim.x - 1;
    return mine ? packs * kPackSize<T> + threadIdx.x : -1;
  }
};

struct BiasedSpace : FlatSpace {
  BiasAccess bias;
  int bias_dim;
  Divisor inner;     // packs (rows) or elements (straddled) from one entry's to the next one's
  Divisor channels;  // entries of the bias

  BiasedSpace(const PointwiseProblem& p, const PointwisePlan& plan, int pack_size)
      : FlatSpace(p, plan, pack_size),
        bias(plan.bias),
        bias_dim(p.geometry.bias_dim),
        inner(static_cast<unsigned>(plan.bias == BiasAccess::rows ? plan.inner / pack_size : plan.inner)),
        channels(static_cast<unsigned>(plan.channels)) {}

  template <class T>
  struct Bias {
    using A = Accumulator<T>;
    const BiasedSpace& space;
    Parameter<T> values;
    int64_t stride;

    __device__ __forceinline__ Bias(const BiasedSpace& biased, const View& view)
        : space(biased), values(view), stride(view.data != nullptr ? view.stride[biased.bias_dim] : 0) {}

    template <class Cursor>
    __device__ __forceinline__ void add(const Cursor& cursor, int v, A (&value)[kPackSize<T>]) const {
      constexpr int kSize = kPackSize<T>;
      if (values.data == nullptr) return;
      const auto pack = static_cast<unsigned>(cursor.pack(v));
      if (space.bias == BiasAccess::rows) {
        const A addend = entry(space.inner.quotient(pack));
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += addend;
      } else if (space.bias == BiasAccess::straddled) {
        const unsigned row = space.inner.quotient(pack * kSize);
        const unsigned here = space.inner.size - (pack * kSize - row * space.inner.size);  // elements in this row
        const A addend = entry(row), next = entry(row + 1);
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += j < here ? addend : next;
      } else {
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += entry(pack * kSize + j);
      }
    }

    /// For problems that have a tail: not those whose rows are whole packs.
    __device__ __forceinline__ A of_element(int64_t element) const {
      if (values.data == nullptr) return A(0);
      const auto at = static_cast<unsigned>(element);
      return entry(space.bias == BiasAccess::straddled ? space.inner.quotient(at) : at);
    }

   private:
    __device__ __forceinline__ A entry(unsigned row) const {
      return values.at((row - space.channels.quotient(row) * space.channels.size) * stride);
    }
  };
};

struct TileSpace {
  int rows;     // of the inner row dimension; the outer one is the grid's second
  int columns;  // packs in a row
  int lanes;    // threads side by side, a power of two
  int lines;    // rows that a block works on at the same time
  int inner;    // the inner row dimension
  Divisor column_groups;

  TileSpace(const PointwiseProblem& p, const PointwisePlan& plan, int pack_size)
      : rows(p.geometry.ndim == 1 ? 1 : static_cast<int>(p.geometry.shape[p.geometry.ndim - 2])),
        columns(static_cast<int>(p.geometry.shape[p.geometry.ndim - 1] / pack_size)),
        lanes(plan.lanes),
        lines(kPointwiseThreads / plan.lanes),
        inner(p.geometry.ndim == 3 ? 1 : 0),
        column_groups(static_cast<unsigned>((columns + lanes - 1) / lanes)) {}

  int64_t blocks(int vectors) const {
    const int64_t a_block = int64_t{vectors} * lines;
    return (rows + a_block - 1) / a_block * column_groups.size;
  }
  /// The grid's second dimension.
  static int64_t layers(const PointwiseGeometry& g) { return g.ndim == 3 ? g.shape[0] : 1; }

  template <int kVectors>
  struct Cursor {
    static constexpr bool kInterleaved = false;
    const TileSpace& space;
    int row;
    int column;  // pack in the row

    __device__ __forceinline__ explicit Cursor(const TileSpace& tile) : space(tile) {
      const unsigned row_group = tile.column_groups.quotient(blockIdx.x);
      const unsigned column_group = blockIdx.x - row_group * tile.column_groups.size;
      const int lane = threadIdx.x & (tile.lanes - 1);
      const int line = (threadIdx.x - lane) * tile.lines / kPointwiseThreads;
      column = static_cast<int>(column_group) * tile.lanes + lane;
      row = static_cast<int>(row_group) * kVectors * tile.lines + line;
    }
    __device__ __forceinline__ bool holds(int v) const {
      return column < space.columns && row + v * space.lines < space.rows;
    }
    template <class T>
    __device__ __forceinline__ int64_t offset(const View& view, int v) const {
      // Rows and their strides have 31 bits (the planner sees to that): one instruction multiplies them.
      const int stride = static_cast<int>(view.stride[space.inner]);
      const int64_t first = column * kPackSize<T> + (space.inner ? blockIdx.y * view.stride[0] : 0);
      return static_cast<int64_t>(row + v * space.lines) * stride + first;
    }
  };

  template <class T>
  struct Bias {
    using A = Accumulator<T>;
    A value[kPackSize<T>];
    bool present;

    __device__ __forceinline__ Bias(const TileSpace& space, const View& view) : present(view.data != nullptr) {
      if (!present) return;
      const Cursor<1> cursor(space);
      if (cursor.column < space.columns) Parameter<T>(view).load(cursor.column * kPackSize<T>, value);
    }
    template <class Cursor>
    __device__ __forceinline__ void add(const Cursor&, int, A (&to)[kPackSize<T>]) const {
      if (!present) return;
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) to[j] += value[j];
    }
    __device__ __forceinline__ A of_element(int64_t) const { return A(0); }
  };

  template <class T>
  __device__ __forceinline__ int64_t tail_element() const {
    return -1;
  }
};

/// The elements at even and odd places of two packs that follow each other. For types of 2 or 4 bytes: packs of 4
/// words.
template <class T>
__device__ __forceinline__ void split_pairs(const Pack<T>& first, const Pack<T>& second, Pack<T>& even, Pack<T>& odd) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const Pack<T>& from = w < 2 ? first : second;
      even.word[w] = __byte_perm(from.word[w % 2 * 2], from.word[w % 2 * 2 + 1], 0x5410);
      odd.word[w] = __byte_perm(from.word[w % 2 * 2], from.word[w % 2 * 2 + 1], 0x7632);
    }
  } else {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      even.word[w] = first.word[2 * w];
      odd.word[w] = first.word[2 * w + 1];
      even.word[w + 2] = second.word[2 * w];
      odd.word[w + 2] = second.word[2 * w + 1];
    }
  }
}
template <class T>
__device__ __forceinline__ void join_pairs(const Pack<T>& even, const Pack<T>& odd, Pack<T>& first, Pack<T>& second) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      Pack<T>& to = w < 2 ? first : second;
      to.word[w % 2 * 2] = __byte_perm(even.word[w], odd.word[w], 0x5410);
      to.word[w % 2 * 2 + 1] = __byte_perm(even.word[w], odd.word[w], 0x7632);
    }
  } else {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      first.word[2 * w] = even.word[w];
      first.word[2 * w + 1] = odd.word[w];
      second.word[2 * w] = even.word[w + 2];
      second.word[2 * w + 1] = odd.word[w + 2];
    }
  }
}

struct InterleavedSpace : TileSpace {
  using TileSpace::TileSpace;

  template <int kVectors>
  struct Cursor : TileSpace::Cursor<kVectors> {
    using Base = TileSpace::Cursor<kVectors>;
    using Base::Base;
    static constexpr bool kInterleaved = true;

    /// Of the first of the two packs that hold gate and up.
    template <class T>
    __device__ __forceinline__ int64_t pair_offset(const View& gate, int v) const {
      return this->template offset<T>(gate, v) + this->column * kPackSize<T>;
    }
  };

  template <class T>
  struct Bias {
    using A = Accumulator<T>;
    A value[kPackSize<T>];

    __device__ __forceinline__ Bias(const TileSpace& space, const View& view) {
      const TileSpace::Cursor<1> cursor(space);
      const bool present = view.data != nullptr && cursor.column < space.columns;
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) {
        value[j] =
            present ? Parameter<T>(view).at((cursor.column * kPackSize<T> + j) * view.stride[space.inner + 1]) : A(0);
      }
    }
    template <class Cursor>
    __device__ __forceinline__ void add(const Cursor&, int, A (&to)[kPackSize<T>]) const {
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) to[j] += value[j];
    }
    __device__ __forceinline__ A of_element(int64_t) const { return A(0); }
  };
};

/// Loads pack v of two gated inputs, stores that of two gradients, in whatever way the space has them.
template <class T, class Cursor>
__device__ __forceinline__ void load_gated(const Cursor& cursor, int v, const View& gate, const View& up, Pack<T>& x,
                                           Pack<T>& factor) {
  const T* from = static_cast<const T*>(gate.data);
  if constexpr (Cursor::kInterleaved) {
    from += cursor.template pair_offset<T>(gate, v);
    split_pairs(load_pack(from), load_pack(from + kPackSize<T>), x, factor);
  } else {
    x = load_pack(from + cursor.template offset<T>(gate, v));
    factor = load_pack(static_cast<const T*>(up.data) + cursor.template offset<T>(up, v));
  }
}
template <class T, class Cursor>
__device__ __forceinline__ void store_gated(const Cursor& cursor, int v, const View& gate, const View& up,
                                            const Pack<T>& x, const Pack<T>& factor) {
  T* to = static_cast<T*>(gate.data);
  if constexpr (Cursor::kInterleaved) {
    to += cursor.template pair_offset<T>(gate, v);
    Pack<T> first, second;
    join_pairs(x, factor, first, second);
    store_pack(to, first);
    store_pack(to + kPackSize<T>, second);
  } else {
    store_pack(to + cursor.template offset<T>(gate, v), x);
    store_pack(static_cast<T*>(up.data) + cursor.template offset<T>(up, v), factor);
  }
}

}  // namespace normact::cuda
