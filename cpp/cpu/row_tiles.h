// SPDX-License-Identifier: Apache-2.0
// Tiles: some neighbouring rows and all columns; each lane of a vector is a row. They serve
// - adjacent problems: neighbouring rows lie side by side in memory, the columns of a row far apart (layer norm over
//   axis 1 of an NCHW tensor);
// - rows of few columns, whose tiles are turned so on the way in and out. A row by itself fills no vector, and what it
//   costs besides its columns is much more than moving these.
//
// A tile's numbers are copied to a dense array once, from where the later passes read them: columns that are a power of
// two apart would push each other out of the cache.
#pragma once

#include <algorithm>

#include "cpu/partition.h"
#include "cpu/scratch.h"

namespace normact::cpu {

constexpr int64_t kMaxTileCols = 16 * 1024;   // the array of 16 rows of these fits the second cache, or nearly
constexpr int64_t kTileElements = 32 * 1024;  // the array's size, as far as kMinTileRows allow
constexpr int64_t kMinTileRows = 16;          // a vector, or 64 bytes of 16-bit elements in two
constexpr int64_t kMaxTileRows = 512;
constexpr int64_t kShortLineStep = 4;  // rows of a tile of fewer than kMinTileRows
constexpr int64_t kFewCols = 8;        // rows of so many and fewer are turned ...
constexpr int64_t kFewActivatedCols = 24;
constexpr int64_t kMinLine = 64;   // ... unless so many lie side by side as they are
constexpr int64_t kFewInLine = 5;  // fewer, which leave most lanes empty in place, are turned beside other lines
constexpr int64_t kFewActivatedInLine = 8;
constexpr int64_t kTurnedElements = 4096;  // of a turned tile: several arrays of them are near
constexpr int64_t kMaxBlockTiles = 64;     // whose gradients are added one to the other
static_assert(kMaxTileRows % kActivationStep == 0);

/// Whether tiles are turned, which changes no bit. An activation takes a loop over each row, or over each column of a
/// tile.
inline bool turns_tiles(const RowProblem& problem) {
  const RowGeometry& geometry = problem.geometry;
  const bool activated = !is_identity(problem.activation);
  const bool few_cols = geometry.cols <= (activated ? kFewActivatedCols : kFewCols);
  if (!problem.adjacent) return few_cols;
  const int64_t line = geometry.row_shape[geometry.row_ndim - 1];
  const bool one_line = line == geometry.rows;
  if (!one_line && line < (activated ? kFewActivatedInLine : kFewInLine)) return geometry.cols <= kMaxTileCols;
  return few_cols && line < kMinLine;
}

/// A function of the shape alone.
inline RowTiles row_tiles(const RowGeometry& geometry, bool turned) {
  const int64_t line = turned ? geometry.rows : geometry.row_shape[geometry.row_ndim - 1];
  const int64_t fit = (turned ? kTurnedElements : kTileElements) / geometry.cols / kMinTileRows * kMinTileRows;
  // Lines that end before leave no gaps between the array's columns, which would leave the first cache.
  const int64_t step = turned || line >= kMinTileRows ? kMinTileRows : kShortLineStep;
  const int64_t most = std::min(std::max(ceil_div(line, step), int64_t{1}) * step, kMaxTileRows);
  const int64_t rows = std::min(std::max(kMinTileRows, fit), most);
  const int64_t per_line = ceil_div(line, rows);
  return {turned, rows, line, per_line, line > 0 ? geometry.rows / line * per_line : 0};
}
inline RowTiles row_tiles(const RowProblem& problem) { return row_tiles(problem.geometry, turns_tiles(problem)); }

inline bool in_tiles(const RowProblem& problem) {
  return turns_tiles(problem) || (problem.adjacent && problem.geometry.cols <= kMaxTileCols);
}

/// The blocks of rows, or of tiles, whose parameter gradients are summed apart.
inline RowBlocks blocks_of(const RowProblem& problem) {
  if (!in_tiles(problem)) return row_blocks(problem.geometry);
  const int64_t count = row_tiles(problem).count;
  const int64_t each = std::clamp<int64_t>(ceil_div(count, kMaxBlocks), 1, kMaxBlockTiles);
  return {false, each, ceil_div(count, each)};
}

/// Bytes of a thread's scratch: `arrays` arrays of a tile, as many more and one where it is turned, and two of a vector
/// for each column.
inline int64_t tile_scratch(const RowProblem& problem, const RowTiles& tiles, int arrays) {
  const int64_t cols = problem.geometry.cols, size = size_of(accumulator_of(problem.dtype));
  return (tiles.turned ? 2 * arrays + 1 : arrays) * align_up(cols * tiles.rows * size) + 2 * cols * int64_t{64};
}

}  // namespace normact::cpu
