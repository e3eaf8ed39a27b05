// SPDX-License-Identifier: Apache-2.0
// Pointwise problems element by element: any strides, any alignment, any number of dimensions.
//
// A space says which kCount elements a thread computes: its Cursor, which is told the views, has holds(i), whether
// there is an element i, and place(i), whose [v] is where that lies in view v.
//
//   RowSpace      elements of one row or one column, which an addition takes a thread to
//   ElementSpace  any, each found by divisions
#pragma once

#include "core/plan_pointwise.h"
#include "core/pointwise.h"
#include "cuda/memory.cuh"

namespace normact::cuda {

template <class T>
__device__ __forceinline__ Accumulator<T> load_element(const View& view, int64_t offset) {
  return convert<Accumulator<T>>(static_cast<const T*>(view.data)[offset]);
}
template <class T>
__device__ __forceinline__ void store_element(const View& view, int64_t offset, Accumulator<T> value) {
  static_cast<T*>(view.data)[offset] = convert<T>(value);
}

struct ElementSpace {
  int64_t size;
  int ndim;
  bool small;  // below 2^31 elements: no division
  int64_t shape[kMaxDims];
  Divisor divisor[kMaxDims];

  explicit ElementSpace(const PointwiseGeometry& g) : size(g.size), ndim(g.ndim), small(g.size <= 2147483647) {
    for (int d = 0; d < kMaxDims; ++d) {
      shape[d] = d < ndim ? g.shape[d] : 1;
      if (small && shape[d] > 0) divisor[d] = Divisor(static_cast<unsigned>(shape[d]));
    }
  }

  int64_t blocks(int a_thread) const {
    const int64_t a_block = int64_t{a_thread} * kPointwiseThreads;
    return (size + a_block - 1) / a_block;
  }

  template <int kCount, int kViews>
  struct Cursor;
};

/// The coordinates of an element.
struct ElementPlace {
  int ndim;
  int64_t coordinate[kMaxDims] = {};

  __device__ __forceinline__ ElementPlace(const ElementSpace& space, int64_t element) : ndim(space.ndim) {
    int64_t rest = element;
#pragma unroll
    for (int d = kMaxDims - 1; d > 0; --d) {
      if (d < ndim) {
        const int64_t next =
            space.small ? space.divisor[d].quotient(static_cast<unsigned>(rest)) : rest / space.shape[d];
        coordinate[d] = rest - next * space.shape[d];
        rest = next;
      }
    }
    coordinate[0] = rest;
  }

  __device__ __forceinline__ int64_t offset(const View& view) const {
    int64_t offset = coordinate[0] * view.stride[0];
    if (ndim > 1) offset += coordinate[1] * view.stride[1];
    if (ndim > 2) {
#pragma unroll
      for (int d = 2; d < kMaxDims; ++d) {
        if (d < ndim) offset += coordinate[d] * view.stride[d];
      }
    }
    return offset;
  }
};

/// A bias's entry; without a bias -0, which leaves what it is added to as it is.
template <class T>
__device__ __forceinline__ Accumulator<T> load_bias(const View& view, int64_t offset) {
  return view.data != nullptr ? Parameter<T>(view).at(offset) : Accumulator<T>(-0.0);
}

/// Elements a block's width apart.
template <int kCount, int kViews>
struct ElementSpace::Cursor {
  const ElementSpace& space;
  const View* const* views;
  int64_t first;

  struct Place {
    ElementPlace place;
    const View* const* views;
    __device__ __forceinline__ int64_t operator[](int view) const { return place.offset(*views[view]); }
  };

  __device__ __forceinline__ Cursor(const ElementSpace& elements, const View* const* of)
      : space(elements),
        views(of),
        first(blockIdx.x * static_cast<int64_t>(kCount * kPointwiseThreads) + threadIdx.x) {}
  /// The element's number in the index space.
  __device__ __forceinline__ int64_t number(int i) const { return first + i * kPointwiseThreads; }
  __device__ __forceinline__ bool holds(int i) const { return number(i) < space.size; }
  __device__ __forceinline__ Place place(int i) const { return {ElementPlace(space, number(i)), views}; }
};

/// Rows are the last dimension. A block has `lanes` threads side by side in each of its lines; the elements of a thread
/// are `lanes` apart in its row or, `down`, as many rows apart as there are lines. It finds its first one in each view,
/// from which an addition takes it to the next.
struct RowSpace {
  int outer_ndim;  // all dimensions but the last two
  Divisor outer[kMaxDims];
  int rows, columns;
  int last;  // dimension; the rows' is the one before, if there is one
  int lanes, lines;
  bool down;
  Divisor column_groups, row_groups;  // of blocks
  int64_t outer_size = 1;

  RowSpace(const PointwiseProblem& p, const PointwisePlan& plan)
      : outer_ndim(p.geometry.ndim > 2 ? p.geometry.ndim - 2 : 0),
        rows(p.geometry.ndim > 1 ? static_cast<int>(p.geometry.shape[p.geometry.ndim - 2]) : 1),
        columns(static_cast<int>(p.geometry.shape[p.geometry.ndim - 1])),
        last(p.geometry.ndim - 1),
        lanes(plan.lanes),
        lines(kPointwiseThreads / plan.lanes),
        down(plan.down) {
    const int a_thread = elements_a_thread(size_of(p.dtype));
    const auto groups = [](int64_t count, int64_t of) { return Divisor(static_cast<unsigned>((count + of - 1) / of)); };
    column_groups = groups(columns, down ? lanes : lanes * a_thread);
    row_groups = groups(rows, down ? lines * a_thread : lines);
    for (int d = 0; d < outer_ndim; ++d) {
      outer_size *= p.geometry.shape[d];
      outer[d] = Divisor(static_cast<unsigned>(p.geometry.shape[d]));
    }
  }
  int64_t blocks(int) const { return outer_size * column_groups.size * row_groups.size; }

  template <int kCount, int kViews>
  struct Cursor {
    int64_t first[kViews], step[kViews];
    int left, apart;  // elements along the thread's way; from one to the next

    struct Place {
      const Cursor& cursor;
      int i;
      __device__ __forceinline__ int64_t operator[](int view) const {
        return cursor.first[view] + i * cursor.step[view];
      }
    };

    __device__ __forceinline__ Cursor(const RowSpace& space, const View* const* views) {
      const unsigned block = space.column_groups.quotient(blockIdx.x);
      const auto column_group = static_cast<int>(blockIdx.x - block * space.column_groups.size);
      unsigned place = space.row_groups.quotient(block);  // of the row group, in the dimensions outside
      const auto row_group = static_cast<int>(block - place * space.row_groups.size);
      const int lane = static_cast<int>(threadIdx.x) & (space.lanes - 1);
      const int line = (static_cast<int>(threadIdx.x) - lane) * space.lines / kPointwiseThreads;
      const int row = row_group * (space.down ? space.lines * kCount : space.lines) + line;
      const int column = column_group * (space.down ? space.lanes : space.lanes * kCount) + lane;
      apart = space.down ? space.lines : space.lanes;
      left = row >= space.rows || column >= space.columns ? 0 : space.down ? space.rows - row : space.columns - column;
#pragma unroll
      for (int v = 0; v < kViews; ++v) {
        const int64_t a_column = views[v]->stride[space.last];
        const int64_t a_row = space.last > 0 ? views[v]->stride[space.last - 1] : 0;
        first[v] = row * a_row + column * a_column;
        step[v] = apart * (space.down ? a_row : a_column);
      }
#pragma unroll 1
      for (int d = space.outer_ndim - 1; d >= 0; --d) {
        const unsigned before = space.outer[d].quotient(place);
        const auto at = static_cast<int64_t>(place - before * space.outer[d].size);
        place = before;
#pragma unroll
        for (int v = 0; v < kViews; ++v) first[v] += at * views[v]->stride[d];
      }
    }
    __device__ __forceinline__ bool holds(int i) const { return i * apart < left; }
    __device__ __forceinline__ Place place(int i) const { return {*this, i}; }
  };
};

}  // namespace normact::cuda
