// SPDX-License-Identifier: Apache-2.0
// Adjacent problems: neighbouring rows lie side by side in memory, the columns of a row far apart (layer norm over axis
// 1 of an NCHW tensor). A tile is some neighbouring rows and all columns; each lane of a vector is a row.
//
// A tile's numbers are copied to a dense array once, from where the later passes read them: columns that are a power of
// two apart would push each other out of the cache.
#pragma once

#include <algorithm>

#include "cpu/partition.h"
#include "cpu/scratch.h"
#include "math/hd.h"

namespace normact::cpu {

constexpr int64_t kMaxTileCols = 16 * 1024;   // the array of 16 rows of these fits the second cache, or nearly
constexpr int64_t kTileElements = 32 * 1024;  // the array's size, as far as kMinTileRows allow
constexpr int64_t kMinTileRows = 16;          // a vector, or 64 bytes of 16-bit elements in two
constexpr int64_t kMaxTileRows = 512;
constexpr int64_t kMaxBlockTiles = 64;  // whose gradients are added one to the other
static_assert(kMaxTileRows % kActivationStep == 0);

/// How the rows are cut; a function of the shape alone. A line is the rows that differ in the inmost dimension only.
struct RowTiles {
  int64_t rows;      // of a tile; the last of a line may have fewer
  int64_t line;      // rows
  int64_t per_line;  // tiles
  int64_t count;
};

NORMACT_HD RowTiles row_tiles(const RowGeometry& geometry) {
  const int64_t line = geometry.row_shape[geometry.row_ndim - 1];
  const int64_t fit = kTileElements / geometry.cols / kMinTileRows * kMinTileRows;
  const int64_t rows = fit < kMinTileRows ? kMinTileRows : fit > kMaxTileRows ? kMaxTileRows : fit;
  const int64_t per_line = ceil_div(line, rows);
  return {rows, line, per_line, line > 0 ? geometry.rows / line * per_line : 0};
}

inline bool in_tiles(const RowProblem& problem) { return problem.adjacent && problem.geometry.cols <= kMaxTileCols; }

/// The blocks of rows, or of tiles, whose parameter gradients are summed apart.
inline RowBlocks blocks_of(const RowProblem& problem) {
  if (!in_tiles(problem)) return row_blocks(problem.geometry);
  const int64_t count = row_tiles(problem.geometry).count;
  const int64_t each = std::clamp<int64_t>(ceil_div(count, kMaxBlocks), 1, kMaxBlockTiles);
  return {false, each, ceil_div(count, each)};
}

/// Bytes of a thread's scratch: `arrays` arrays of a tile, and two of a vector for each column.
inline int64_t tile_scratch(const RowProblem& problem, int arrays) {
  const int64_t size = size_of(accumulator_of(problem.dtype));
  const RowTiles tiles = row_tiles(problem.geometry);
  return arrays * align_up(problem.geometry.cols * tiles.rows * size) + 2 * problem.geometry.cols * int64_t{64};
}

}  // namespace normact::cpu
