// SPDX-License-Identifier: Apache-2.0
// A tile of neighbouring rows as its kernels see it: where it lies in each operand, and each row's sums over the
// columns.
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_tiles.h"
#include "cpu/simd_element.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int64_t kTilePart = 16;  // columns whose sums are made in the accumulator type, before they join in double

/// Some neighbouring rows of one line.
struct Tile {
  int64_t first;
  int64_t count;
};

NORMACT_SIMD Tile tile_at(const RowTiles& tiles, int64_t index) {
  const int64_t line = index / tiles.per_line;
  const int64_t begin = (index - line * tiles.per_line) * tiles.rows;
  return {line * tiles.line + begin, tiles.line - begin < tiles.rows ? tiles.line - begin : tiles.rows};
}

/// Where the columns of an operand lie, from any row.
template <class T>
class TileColumns {
 public:
  NORMACT_SIMD TileColumns(const RowProblem& problem, const Operand& operand)
      : rows_(problem, operand), geometry_(&problem.geometry), stride_(operand.col_stride) {}

  NORMACT_SIMD explicit operator bool() const { return bool(rows_); }

  /// The tile's elements of the columns from `column` on, at most kTilePart of them; null where there is no operand.
  NORMACT_SIMD void find(const Tile& tile, int64_t column, int64_t count, T* (&place)[kTilePart]) const {
    if (!rows_) {
      for (int64_t c = 0; c < count; ++c) place[c] = nullptr;
      return;
    }
    T* const base = rows_[tile.first];
    for (int64_t c = 0; c < count; ++c) {
      place[c] = base + strided_offset(column + c, geometry_->col_ndim, geometry_->col_shape, stride_);
    }
  }

 private:
  RowStarts<T> rows_;
  const RowGeometry* geometry_;
  const int64_t* stride_;
};

/// body(first column, how many) for the parts of all columns.
template <class Body>
NORMACT_SIMD void for_parts(int64_t cols, Body body) {
  for (int64_t column = 0; column < cols; column += kTilePart) {
    body(column, cols - column < kTilePart ? cols - column : kTilePart);
  }
}

/// Sums over the columns, one a row.
template <class N>
struct TileSums {
  double total[kMaxTileRows] = {};
  alignas(64) N part[kMaxTileRows] = {};

  /// total += part.
  NORMACT_SIMD void add_part(int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) total[r] += part[r];
  }
};

}  // namespace normact::cpu::NORMACT_ISA
