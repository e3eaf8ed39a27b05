// SPDX-License-Identifier: Apache-2.0
// Where the elements of a pointwise problem lie, and which bias belongs to them: what the pointwise kernels share.
//
// A pack is kPackSize elements that are neighbours in every tensor of x's shape. A space says which kVectors packs a
// thread computes: its Cursor has holds(v), whether there is a pack v, and offset<T>(view, v), where it begins. Its
// Bias adds the biases of a pack: where there is none, nothing or -0, which leaves the sign of a zero.
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
#include "cuda/reduce.cuh"
#include "math/gate.h"

namespace normact::cuda {

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
    __device__ __forceinline__ Accumulator<T> of_element(int64_t) const { return Accumulator<T>(-0.0); }
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
  Divisor inner;     // packs (rows) or elements from one entry's to the next one's
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
      } else if (space.inner.size == 1) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += entry(pack * kSize + j);
      } else {
#pragma unroll
        for (int j = 0; j < kSize; ++j) value[j] += entry(space.inner.quotient(pack * kSize + j));
      }
    }

    /// For problems that have a tail: not those whose rows are whole packs.
    __device__ __forceinline__ A of_element(int64_t element) const {
      if (values.data == nullptr) return A(-0.0);
      const auto at = static_cast<unsigned>(element);
      return entry(space.inner.quotient(at));
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
  int last;     // the dimension of the columns
  Divisor column_groups;

  TileSpace(const PointwiseProblem& p, const PointwisePlan& plan, int pack_size)
      : rows(p.geometry.ndim == 1 ? 1 : static_cast<int>(p.geometry.shape[p.geometry.ndim - 2])),
        columns(static_cast<int>(p.geometry.shape[p.geometry.ndim - 1] / pack_size)),
        lanes(plan.lanes),
        lines(kPointwiseThreads / plan.lanes),
        inner(p.geometry.ndim == 3 ? 1 : 0),
        last(p.geometry.ndim - 1),
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
      const int64_t first = int64_t{column} * kPackSize<T> + (space.inner ? blockIdx.y * view.stride[0] : 0);
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
      if (cursor.column < space.columns) Parameter<T>(view).load(int64_t{cursor.column} * kPackSize<T>, value);
    }
    template <class Cursor>
    __device__ __forceinline__ void add(const Cursor&, int, A (&to)[kPackSize<T>]) const {
      if (!present) return;
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) to[j] += value[j];
    }
    __device__ __forceinline__ A of_element(int64_t) const { return A(-0.0); }
  };

  template <class T>
  __device__ __forceinline__ int64_t tail_element() const {
    return -1;
  }
};

/// Two packs of equal places.
template <class T>
struct PackPair {
  Pack<T> first;
  Pack<T> second;
};

/// The elements at even and at odd places of two packs that follow each other. For types of 2 or 4 bytes.
template <class T>
__device__ __forceinline__ PackPair<T> split_pairs(const PackPair<T>& from) {
  const auto& a = from.first.word;
  const auto& b = from.second.word;
  if constexpr (sizeof(T) == 2) {
    constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
    return {{__byte_perm(a[0], a[1], kLow), __byte_perm(a[2], a[3], kLow), __byte_perm(b[0], b[1], kLow),
             __byte_perm(b[2], b[3], kLow)},
            {__byte_perm(a[0], a[1], kHigh), __byte_perm(a[2], a[3], kHigh), __byte_perm(b[0], b[1], kHigh),
             __byte_perm(b[2], b[3], kHigh)}};
  } else {
    return {{a[0], a[2], b[0], b[2]}, {a[1], a[3], b[1], b[3]}};
  }
}
/// The reverse.
template <class T>
__device__ __forceinline__ PackPair<T> join_pairs(const PackPair<T>& from) {
  const auto& even = from.first.word;
  const auto& odd = from.second.word;
  if constexpr (sizeof(T) == 2) {
    constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
    return {{__byte_perm(even[0], odd[0], kLow), __byte_perm(even[0], odd[0], kHigh),
             __byte_perm(even[1], odd[1], kLow), __byte_perm(even[1], odd[1], kHigh)},
            {__byte_perm(even[2], odd[2], kLow), __byte_perm(even[2], odd[2], kHigh),
             __byte_perm(even[3], odd[3], kLow), __byte_perm(even[3], odd[3], kHigh)}};
  } else {
    return {{even[0], odd[0], even[1], odd[1]}, {even[2], odd[2], even[3], odd[3]}};
  }
}

struct InterleavedSpace : TileSpace {
  using TileSpace::TileSpace;

  template <int kVectors>
  struct Cursor : TileSpace::Cursor<kVectors> {
    static constexpr bool kInterleaved = true;
    bool paired;  // every two lanes of this warp, of which one is even, have four packs that follow each other

    __device__ __forceinline__ explicit Cursor(const TileSpace& tile) : TileSpace::Cursor<kVectors>(tile) {
      const bool beside = (this->column | 1) < tile.columns;
      paired = __all_sync(kFullWarp, beside && this->holds(kVectors - 1));
    }

    /// Of the first of the two packs that hold gate and up.
    template <class T>
    __device__ __forceinline__ int64_t pair_offset(const View& gate, int v) const {
      return this->template offset<T>(gate, v) + int64_t{this->column} * kPackSize<T>;
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
        value[j] = present
                       ? Parameter<T>(view).at((int64_t{cursor.column} * kPackSize<T> + j) * view.stride[space.last])
                       : A(-0.0);
      }
    }
    template <class Cursor>
    __device__ __forceinline__ void add(const Cursor&, int, A (&to)[kPackSize<T>]) const {
#pragma unroll
      for (int j = 0; j < kPackSize<T>; ++j) to[j] += value[j];
    }
    __device__ __forceinline__ A of_element(int64_t) const { return A(-0.0); }
  };
};

/// Two lanes have four packs that follow each other, the even one 0 and 1, the odd one 2 and 3. If each wrote its own,
/// an instruction would write half of every 32-byte sector, and memory takes whole ones. So the even lane gets packs 0
/// and 2 to write, the odd one 1 and 3. (What is read comes out of the L1 cache the second time.) All lanes of a warp
/// call it.
template <class T>
__device__ __forceinline__ PackPair<T> exchange_packs(const PackPair<T>& mine) {
  constexpr int kWords = kPackBytes / static_cast<int>(sizeof(typename Pack<T>::Word));
  const bool even = threadIdx.x % 2 == 0;
  PackPair<T> result;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const auto sent = even ? mine.second.word[w] : mine.first.word[w];
    const auto got = __shfl_xor_sync(kFullWarp, sent, 1);
    result.first.word[w] = even ? mine.first.word[w] : got;
    result.second.word[w] = even ? got : mine.second.word[w];
  }
  return result;
}

/// Pack v of gate and up, in whatever way the space has them.
template <class T, class Cursor>
__device__ __forceinline__ PackPair<T> load_gated(const Cursor& cursor, int v, const View& gate, const View& up) {
  const T* from = static_cast<const T*>(gate.data);
  if constexpr (Cursor::kInterleaved) {
    from += cursor.template pair_offset<T>(gate, v);
    return split_pairs(PackPair<T>{load_pack(from), load_pack(from + kPackSize<T>)});
  } else {
    return {load_pack(from + cursor.template offset<T>(gate, v)),
            load_pack(static_cast<const T*>(up.data) + cursor.template offset<T>(up, v))};
  }
}
template <class T, class Cursor>
__device__ __forceinline__ void store_gated(const Cursor& cursor, int v, const View& gate, const View& up,
                                            const PackPair<T>& packs) {
  T* to = static_cast<T*>(gate.data);
  if constexpr (Cursor::kInterleaved) {
    to += cursor.template pair_offset<T>(gate, v);
    PackPair<T> joined = join_pairs(packs);
    int first = 0, second = kPackSize<T>;  // where they go, from this lane's own first pack on
    if (cursor.paired) {
      joined = exchange_packs(joined);
      const bool even = threadIdx.x % 2 == 0;
      first = even ? 0 : -kPackSize<T>;
      second = even ? 2 * kPackSize<T> : kPackSize<T>;
    }
    store_pack(to + first, joined.first);
    store_pack(to + second, joined.second);
  } else {
    store_pack(to + cursor.template offset<T>(gate, v), packs.first);
    store_pack(static_cast<T*>(up.data) + cursor.template offset<T>(up, v), packs.second);
  }
}

}  // namespace normact::cuda
