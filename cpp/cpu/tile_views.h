// SPDX-License-Identifier: Apache-2.0
// A tile of neighbouring rows as its kernels see it: where it lies in each operand, and each row's sums over the
// columns.
#pragma once

#include "cpu/row_access.h"
#include "cpu/row_tiles.h"
#include "cpu/simd_element.h"
#include "cpu/strided_copy.h"

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

/// The columns of an operand: where they lie in memory, or where those of a turned tile are meanwhile.
template <class T>
class TileColumns {
 public:
  /// turned: room for a tile, which a turned one is moved to.
  NORMACT_SIMD TileColumns(const RowProblem& problem, const Operand& operand, const RowTiles& tiles, void* turned)
      : rows_(problem, operand),
        geometry_(&problem.geometry),
        operand_(&operand),
        turned_(tiles.turned ? static_cast<T*>(turned) : nullptr),
        tile_rows_(tiles.rows) {}

  NORMACT_SIMD explicit operator bool() const { return bool(rows_); }

  /// Brings these columns of a turned tile in, and puts them back in place.
  NORMACT_SIMD void fetch(const Tile& tile, int64_t column, int64_t count) const {
    if (turned_ && rows_) turn<true>(tile, column, count);
  }
  NORMACT_SIMD void put(const Tile& tile, int64_t column, int64_t count) const {
    if (turned_ && rows_) turn<false>(tile, column, count);
  }

  /// The tile's elements of the columns from `column` on, at most kTilePart of them; null where there is no operand.
  NORMACT_SIMD void find(const Tile& tile, int64_t column, int64_t count, T* (&place)[kTilePart]) const {
    if (!rows_) {
      for (int64_t c = 0; c < count; ++c) place[c] = nullptr;
      return;
    }
    T* const base = rows_[tile.first];
    for (int64_t c = 0; c < count; ++c) {
      place[c] = turned_ ? turned_ + (column + c) * tile_rows_ : base + offset(column + c);
    }
  }

 private:
  NORMACT_SIMD int64_t offset(int64_t column) const {
    return strided_offset(column, geometry_->col_ndim, geometry_->col_shape, operand_->col_stride);
  }
  /// The rows of these columns; in, or out.
  template <bool kIn>
  __attribute__((noinline)) void turn(const Tile& tile, int64_t column, int64_t count) const {
    const Range all = {tile.first, tile.first + tile.count};
    const int64_t line = geometry_->row_shape[geometry_->row_ndim - 1];
    const Range lines = {(all.begin + line - 1) / line, all.end / line};
    T* const here = turned_ + column * tile_rows_;
    if (geometry_->row_ndim != 2 || line >= kMinRun || lines.begin >= lines.end) {
      return turn_runs<kIn>(all, column, count, here);
    }
    // Lines are short: the rows at one place of all of them, which lie evenly too.
    T* const first = here + (lines.begin * line - all.begin);
    const int64_t step = operand_->row_stride[0], apart = operand_->row_stride[1];
    turn_runs<kIn>({all.begin, lines.begin * line}, column, count, here);
    T* const memory = rows_[lines.begin * line];
    for (int64_t c = 0; c < count; ++c) {
      T *const there = memory + offset(column + c), *const to = first + c * tile_rows_;
      kIn ? copy_lines(there, step, apart, lines.end - lines.begin, line, to, line, 1)
          : copy_lines(to, line, 1, lines.end - lines.begin, line, there, step, apart);
    }
    turn_runs<kIn>({lines.end * line, all.end}, column, count, here + (lines.end * line - all.begin));
  }
  template <bool kIn>
  NORMACT_SIMD void turn_runs(Range range, int64_t column, int64_t count, T* here) const {
    T* const base = rows_[0];
    const bool whole = count == geometry_->cols && geometry_->col_ndim == 1 && operand_->col_stride[0] == 1;
    for_runs(geometry_->row_ndim, geometry_->row_shape, operand_->row_stride, range,
             [&](int64_t first, int64_t step, int64_t rows) __attribute__((always_inline)) {
               T* const memory = base + first;
               if (whole && step == count) {
                 kIn ? split_rows(memory, rows, count, here, tile_rows_)
                     : join_rows(here, tile_rows_, rows, count, memory);
               } else {
                 for (int64_t c = 0; c < count; ++c) {
                   kIn ? copy_from(memory + offset(column + c), step, rows, here + c * tile_rows_)
                       : copy_to(here + c * tile_rows_, step, rows, memory + offset(column + c));
                 }
               }
               here += rows;
             });
  }

  static constexpr int64_t kMinRun = 16;

  RowStarts<T> rows_;
  const RowGeometry* geometry_;
  const Operand* operand_;
  T* turned_;  // null: in place
  int64_t tile_rows_;
};

/// The parameters of a tile's rows: a number for all of them, or by row an array.
template <bool kByRow, class N>
struct TileParameter {
  const N* entries;  // null: absent

  /// Of the rows in these lanes; `absent` if it is.
  template <class Lanes>
  NORMACT_SIMD auto at(int64_t j, Lanes lanes, N absent) const {
    if constexpr (kByRow) {
      return load(entries + j, lanes);
    } else {
      return broadcast(entries ? *entries : absent);
    }
  }
};

/// Where the entry of a column, or the entries of a tile's rows for it, are in an array or a table that may be absent.
class ParameterPlaces {
 public:
  NORMACT_SIMD ParameterPlaces(const RowParameters& by_row, const Tile& tile)
      : by_row_(by_row), first_(by_row.sets > 0 ? tile.first % by_row.sets : 0) {}

  template <class N>
  NORMACT_SIMD N* find(N* array, int64_t column) const {
    if (!array) return nullptr;
    return by_row_.sets > 0 ? array + column / by_row_.each * by_row_.stride + first_ : array + column;
  }

 private:
  RowParameters by_row_;
  int64_t first_;
};

/// body(first column, how many) for the parts of all columns.
template <class Body>
NORMACT_SIMD void for_parts(int64_t cols, Body body) {
  for (int64_t column = 0; column < cols; column += kTilePart) {
    body(column, cols - column < kTilePart ? cols - column : kTilePart);
  }
}

constexpr int kRowGroup = 16;  // rows whose statistics are made together

/// Rows of a tile and those that its last group lacks.
NORMACT_SIMD int64_t whole_groups(int64_t rows) { return (rows + kRowGroup - 1) / kRowGroup * kRowGroup; }

/// Sums over the columns, one a row.
template <class N>
struct TileSums {
  alignas(64) double total[kMaxTileRows];
  alignas(64) N part[kMaxTileRows];

  NORMACT_SIMD explicit TileSums(int64_t rows) {
    for (int64_t r = 0; r < whole_groups(rows); ++r) total[r] = 0;
  }

  /// total += part.
  NORMACT_SIMD void add_part(int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) total[r] += part[r];
  }
};

}  // namespace normact::cpu::NORMACT_ISA
