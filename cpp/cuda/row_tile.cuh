// SPDX-License-Identifier: Apache-2.0
// Rows that lie side by side in memory, with columns far apart (layer norm over axis 1 of an NCHW tensor): what the
// kernels of variant tile share.
//
// A unit is as many neighbouring rows of a line as a pack of 16 bytes has elements; a line is the rows that differ in
// the inmost dimension only, and its last unit may be cut. A tile is `lanes` units in a row: neighbouring threads of a
// group own neighbouring units, and the groups of a block share the columns. A thread keeps what it owns of the tile in
// shared memory, which it alone touches, so that no barrier guards it: these are registers that one can count through.
// Only elements on their way out are read by a group's other lanes, too (store_unit).
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"
#include "cuda/narrow_pack.cuh"
#include "cuda/reduce.cuh"
#include "cuda/row_activation.cuh"

namespace normact::cuda {

/// How the rows are cut; they are fewer than 2^31.
struct TileSplit {
  int lanes;        // units of a tile; a power of two up to 8
  int lanes_a_sum;  // of these, neighbours whose gradients of parameters are one sum; a power of two
  int line;         // rows
  unsigned units;
  Divisor line_units;
  Divisor inner_lines;  // lines of the inner of two dimensions; 1 of one
  Divisor inner_cols;   // columns of the same

  TileSplit(const RowGeometry& g, const RowPlan& plan, int unit_rows)
      : lanes(plan.rows_per_block / unit_rows),
        lanes_a_sum(plan.lanes_a_sum),
        line(static_cast<int>(g.row_shape[g.row_ndim - 1])),
        line_units(static_cast<unsigned>((line + unit_rows - 1) / unit_rows)),
        inner_lines(g.row_ndim > 2 ? static_cast<unsigned>(g.row_shape[1]) : 1),
        inner_cols(g.col_ndim > 1 ? static_cast<unsigned>(g.col_shape[1]) : 1) {
    units = static_cast<unsigned>(g.rows / line) * line_units.size;
  }
};

/// The neighbouring rows that a thread owns.
struct TileUnit {
  unsigned outer_line, inner_line;  // the line in at most two merged dimensions
  int place;                        // of the first row in its line
  int rows;                         // 0: none

  __device__ __forceinline__ TileUnit(const TileSplit& split, unsigned unit, int unit_rows) {
    const bool any = unit < split.units;
    const unsigned line = any ? split.line_units.quotient(unit) : 0;
    outer_line = split.inner_lines.quotient(line);
    inner_line = line - outer_line * split.inner_lines.size;
    place = any ? static_cast<int>(unit - line * split.line_units.size) * unit_rows : 0;
    rows = any ? min(split.line - place, unit_rows) : 0;
  }

  /// Where the unit's first row begins in an operand.
  template <class T>
  __device__ __forceinline__ T* in(const Operand& operand, const RowGeometry& g) const {
    return static_cast<T*>(operand.data) + (outer_line * operand.row_stride[0] + inner_line * operand.row_stride[1] +
                                            place * operand.row_stride[g.row_ndim - 1]);
  }

  /// Starts bringing a statistic of its rows into shared memory; zeros without the statistic, and where there is no
  /// row.
  template <int kSize>
  __device__ __forceinline__ void fetch_statistic(const Operand& operand, const RowGeometry& g, float* to) const {
    const float* from = in<const float>(operand, g);
    const int64_t stride = operand.row_stride[g.row_ndim - 1];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      copy_async<sizeof(float)>(shared_address(to + j), from + j * stride, j < rows && operand.data != nullptr);
    }
  }
  template <class A, int kSize>
  __device__ __forceinline__ void store_statistic(const Operand& operand, const RowGeometry& g,
                                                  const A (&value)[kSize]) const {
    A* to = in<A>(operand, g);
    const int64_t stride = operand.row_stride[g.row_ndim - 1];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j < rows) to[j * stride] = value[j];
    }
  }
};

/// A column in at most two merged dimensions.
struct TileColumn {
  unsigned outer;
  unsigned inner;  // 0 in one dimension

  __device__ __forceinline__ TileColumn(const TileSplit& split, int column)
      : outer(split.inner_cols.quotient(static_cast<unsigned>(column))),
        inner(static_cast<unsigned>(column) - outer * split.inner_cols.size) {}

  /// Its offset from the row's begin.
  __device__ __forceinline__ int64_t in(const Operand& operand) const {
    return outer * operand.col_stride[0] + inner * operand.col_stride[1];
  }
};

/// The place of a thread in its block, and what it owns in shared memory: a pack for each of its columns.
struct TileThread {
  int lane;  // which unit of the tile
  int lanes;
  int group;  // the first of its columns; they are `groups` apart
  int groups;

  __device__ __forceinline__ explicit TileThread(int lanes_of_tile)
      : lane(static_cast<int>(threadIdx.x) % lanes_of_tile),
        lanes(lanes_of_tile),
        group(static_cast<int>(threadIdx.x) / lanes_of_tile),
        groups(static_cast<int>(blockDim.x) / lanes_of_tile) {}

  __device__ __forceinline__ SharedAddress slot(SharedAddress tile, int column) const {
    return tile + static_cast<unsigned>(column * lanes + lane) * kPackBytes;
  }
};

/// How a thread goes from column to column, without a division at each. kFlat: they have one dimension.
template <bool kFlat>
class TileColumns {
 public:
  __device__ __forceinline__ TileColumns(const TileSplit& split, const TileThread& thread)
      : first_(split, thread.group), step_(split, thread.groups), inner_cols_(split.inner_cols.size) {
    inner_ = first_.inner;
  }

  /// Where the unit begins in the first of them.
  template <class T>
  __device__ __forceinline__ T* first(T* unit, const Operand& operand) const {
    return unit + first_.in(operand);
  }
  /// Takes places in operands to the next of them.
  template <class... Path>
  __device__ __forceinline__ void advance(Path&... path) {
    if constexpr (kFlat) {
      (path.move(step_.outer * path.operand.col_stride[0]), ...);
    } else {
      (path.move(step_.in(path.operand)), ...);
      inner_ += step_.inner;
      if (inner_ < inner_cols_) return;
      inner_ -= inner_cols_;
      (path.move(path.operand.col_stride[0] - inner_cols_ * path.operand.col_stride[1]), ...);
    }
  }

 private:
  TileColumn first_, step_;
  unsigned inner_, inner_cols_;
};

/// Calls run(std::bool_constant<kFlat>): loops over columns of one dimension have code of their own, as what two need
/// costs four instructions a tensor and column.
template <class Run>
__device__ __forceinline__ void with_flat(const TileSplit& split, Run run) {
  if (split.inner_cols.size == 1) {
    run(std::true_type());
  } else {
    run(std::false_type());
  }
}

/// A place in an operand.
template <class T>
struct TilePath {
  T* at;
  const Operand& operand;
  template <class Columns>
  __device__ __forceinline__ TilePath(T* unit, const Operand& of, const Columns& columns)
      : at(columns.first(unit, of)), operand(of) {}
  __device__ __forceinline__ void move(int64_t elements) { at += elements; }
};

// Lines move kStep bytes at a time, which divide their addresses and their length: packs of 16, halves of these, or
// elements.

/// One column of a unit from memory; zero where there is no row.
template <class T, int kStep>
__device__ __forceinline__ Pack<T> load_unit(const T* from, int rows) {
  if constexpr (kStep == kPackBytes) {
    return rows > 0 ? load_pack(from) : Pack<T>{};
  } else if constexpr (kStep == sizeof(T)) {
    return load_pack_elements(from, [&](int j) { return j < rows; });
  } else {
    static_assert(kStep == kPackBytes / 2 && sizeof(T) == 2);
    constexpr int kHalf = kPackSize<T> / 2;
    const NarrowPack<T> low = rows > 0 ? load_narrow_pack(from) : NarrowPack<T>{};
    const NarrowPack<T> high = rows > kHalf ? load_narrow_pack(from + kHalf) : NarrowPack<T>{};
    return {low.word[0], low.word[1], high.word[0], high.word[1]};
  }
}

/// Whether copies can bring lines into shared memory.
template <int kStep>
constexpr bool kTileCopies = kStep >= 4;

/// Starts bringing one column of a unit into its slot; zeros where there is no row.
template <class T, int kStep>
__device__ __forceinline__ void fetch_column(SharedAddress slot, const T* from, int rows) {
  static_assert(kTileCopies<kStep>);
  constexpr int kElements = kStep / sizeof(T);
#pragma unroll
  for (int j = 0; j < kPackSize<T>; j += kElements) {
    copy_async<kStep>(slot + j * static_cast<int>(sizeof(T)), from + j, j < rows);
  }
}

/// The same of x and dy, where a tile has been used: by a branch, which for packs is 2 % faster in the backward, and 1
/// to 2 % slower in the forward (fp32, bf16; H200). Without a row only dy must be zero.
template <class T, int kStep>
__device__ __forceinline__ void refill_columns(SharedAddress x_slot, SharedAddress dy_slot, const T* x, const T* dy,
                                               int rows) {
  if constexpr (kStep < kPackBytes) {
    fetch_column<T, kStep>(x_slot, x, rows);
    fetch_column<T, kStep>(dy_slot, dy, rows);
  } else if (rows > 0) {
    copy_async(x_slot, x);
    copy_async(dy_slot, dy);
  } else {
    store_shared_pack(dy_slot, Pack<T>{});
  }
}

/// Writes one column of a unit; all lanes of a group call it. Elements pass through the unit's slot, which they stay in
/// and which the group's lanes read between two __syncwarp(), so that neighbouring lanes write neighbouring ones: a
/// write to a part of 32 bytes costs as much as to all.
template <class T, int kStep>
__device__ __forceinline__ void store_unit(T* to, const Pack<T>& pack, int rows, const TileThread& thread,
                                           SharedAddress slot) {
  if constexpr (kStep == kPackBytes) {
    if (rows > 0) store_pack(to, pack);
  } else if constexpr (kStep == sizeof(T)) {
    using Bits = std::conditional_t<sizeof(T) == 2, unsigned short, unsigned>;
    const unsigned lanes = (1u << thread.lanes) - 1 << (threadIdx.x % kWarp - thread.lane);
    const auto* tile = static_cast<const Bits*>(__cvta_shared_to_generic(slot - thread.lane * kPackBytes));
    store_shared_pack(slot, pack);
    __syncwarp(lanes);
#pragma unroll 2
    for (int at = thread.lane; at < kPackSize<T> * thread.lanes; at += thread.lanes) {
      const int unit = at / kPackSize<T>, j = at % kPackSize<T>;
      const auto address = __shfl_sync(lanes, reinterpret_cast<unsigned long long>(to), unit, thread.lanes);
      const int count = __shfl_sync(lanes, rows, unit, thread.lanes);
      if (j < count) reinterpret_cast<Bits*>(address)[j] = tile[at];
    }
    __syncwarp(lanes);
  } else {
    static_assert(kStep == kPackBytes / 2 && sizeof(T) == 2);
    constexpr int kHalf = kPackSize<T> / 2;
    if (rows > 0) store_pack(to, NarrowPack<T>{pack.word[0], pack.word[1]});
    if (rows > kHalf) store_pack(to + kHalf, NarrowPack<T>{pack.word[2], pack.word[3]});
  }
}

/// Starts bringing in all of a thread's columns of one operand; without copies they are there when it returns.
template <class T, int kStep>
__device__ __forceinline__ void fetch_unit(const Operand& operand, const RowGeometry& g, const TileSplit& split,
                                           const TileUnit& unit, const TileThread& thread, SharedAddress tile) {
  const int cols = static_cast<int>(g.cols);
  with_flat(split, [&](auto flat) {
    TileColumns<flat> columns(split, thread);
    TilePath from(unit.in<const T>(operand, g), operand, columns);
    if constexpr (kTileCopies<kStep>) {
#pragma unroll 2
      for (int column = thread.group; column < cols; column += thread.groups) {
        fetch_column<T, kStep>(thread.slot(tile, column), from.at, unit.rows);
        columns.advance(from);
      }
    } else {
      for (int column = thread.group; column < cols; column += 2 * thread.groups) {
        const int second = column + thread.groups;
        const Pack<T> pack = load_unit<T, kStep>(from.at, unit.rows);
        columns.advance(from);
        if (second < cols) {
          const Pack<T> other = load_unit<T, kStep>(from.at, unit.rows);
          store_shared_pack(thread.slot(tile, second), other);
        }
        columns.advance(from);
        store_shared_pack(thread.slot(tile, column), pack);
      }
    }
  });
}

/// value[0 .. kSize) = from[0 ..), from shared memory at a multiple of 16 bytes.
template <int kSize, class A>
__device__ __forceinline__ void load_shared_values(const A* from, A (&value)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; j += kPackSize<A>) {
    const Pack<A> pack = load_shared_pack<A>(shared_address(from + j));
#pragma unroll
    for (int k = 0; k < kPackSize<A>; ++k) value[j + k] = pack.word[k];
  }
}

/// Sums over the groups of a block, for every row of the tile and each of kCount values: every thread gets those of its
/// rows. `memory` has room for (warps + 1) * kCount * lanes * kSize values. All threads of the block call it; two
/// barriers. The order of the sums depends on nothing but lanes and groups. Gives the place of the sums of the thread's
/// rows, which stay there until the next call.
template <int kCount, int kSize, class A>
__device__ __forceinline__ const A* tile_sum(A (&value)[kCount][kSize], const TileThread& thread, A* memory) {
  const int rows = thread.lanes * kSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  A* const result = memory + warps * kCount * rows;
  for (int offset = thread.lanes; offset < kWarp; offset *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) value[i][j] += __shfl_xor_sync(kFullWarp, value[i][j], offset);
    }
  }
  if (threadIdx.x % kWarp < thread.lanes) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < kSize; j += kPackSize<A>) {
        store_shared_values(memory + (warp * kCount + i) * rows + thread.lane * kSize + j, &value[i][j]);
      }
    }
  }
  __syncthreads();
  for (int r = threadIdx.x; r < kCount * rows; r += blockDim.x) {
    A total = memory[r];
#pragma unroll 4
    for (int w = 1; w < warps; ++w) total += memory[w * kCount * rows + r];
    result[r] = total;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) load_shared_values(result + i * rows + thread.lane * kSize, value[i]);
  return result + thread.lane * kSize;
}

/// Weights, with their offset, and biases of all columns, in shared memory: 1 and 0 where there are none.
template <class A>
struct TileParameters {
  A* weights;
  A* biases;

  __device__ __forceinline__ TileParameters(A* at, int cols) : weights(at), biases(at + cols) {}

  /// All threads; a barrier is to follow.
  template <class T, class Problem>
  __device__ __forceinline__ void fill(const Problem& p, const Scalars<A>& scalars, const TileSplit& split) const {
    for (int column = threadIdx.x; column < static_cast<int>(p.geometry.cols); column += blockDim.x) {
      const TileColumn at(split, column);
      weights[column] = p.weight.data != nullptr
                            ? effective_weight(Parameter<T>(p.weight).at(at.in(p.weight)), scalars.weight_offset)
                            : A(1);
      biases[column] = p.bias.data != nullptr ? Parameter<T>(p.bias).at(at.in(p.bias)) : A(0);
    }
  }
};

}  // namespace normact::cuda
