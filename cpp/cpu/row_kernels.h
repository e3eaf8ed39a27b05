// SPDX-License-Identifier: Apache-2.0
// What the drivers (forward.cpp, backward.cpp) ask of an instruction set: one table of functions per element type.
//
// A row is worked on in chunks of kChunk columns: the statistics of a chunk are taken while it is in the first cache,
// those of the chunks are merged in order. So one thread may do a row or many threads may share it, with the same bits.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "cpu/array_activation.h"
#include "cpu/pointwise_kernels.h"
#include "cpu/range.h"
#include "math/moments.h"

namespace normact::cpu {

struct ChannelKernels;

constexpr int64_t kLineBytes = 64;              // of a cache
constexpr int64_t kFarBytes = 3 * 1024 * 1024;  // larger tensors come from memory
constexpr int64_t kChunk = 8192;
constexpr int64_t kFlushRows = 64;  // rows that are summed in fp32 before they join a longer sum

/// How rows are cut into tiles (row_tiles.h). A line is the rows that differ in the inmost dimension only; of tiles
/// that are turned, all rows.
struct RowTiles {
  bool turned;       // brought into the lanes, and back
  int64_t rows;      // of a tile; the last of a line may have fewer
  int64_t line;      // rows
  int64_t per_line;  // tiles
  int64_t count;
};

/// Parameters that change from row to row: row r has those of set r % sets. They are tables then, and so are the sums
/// of their gradients: for each parameter of a row, which `each` neighbouring columns share, `stride` entries, of which
/// entry i is of set i % sets. Those of a tile's rows follow each other.
struct RowParameters {
  int64_t sets = 0;  // 0: all rows have the same, an array with an entry a column
  int64_t each = 1;
  int64_t stride = 0;  // sets + the rows of a tile
};

/// Parameters are arrays of the accumulator type without gaps, weight_offset added.
struct ForwardWork {
  const RowForward* problem;
  const void* weight;                 // null: absent
  const void* bias;                   // null: absent
  int64_t parameters_from;            // the column that the arrays begin with
  const ArrayActivation* activation;  // null: none
  bool streams;                       // y goes past the caches; the problem is contiguous
  bool streams_sum;                   // so does the sum with a residual, whose rows are whole lines
  RowTiles tiles = {};                // where it is in tiles
  RowParameters by_row = {};          // in tiles alone
};

struct BackwardWork {
  const RowBackward* problem;
  const void* weight;                 // never null
  const void* bias;                   // null: absent; read only for an activation
  const ArrayActivation* activation;  // null: none
  bool streams;                       // dx goes past the caches; the problem is contiguous
  RowTiles tiles = {};                // where it is in tiles
  RowParameters by_row = {};          // in tiles alone
};

struct Statistics {
  double mean;  // 0 for rms
  double rstd;
};

/// What an input gradient needs to know of its row.
struct RowSums {
  double g;       // sum of g = dy * weight
  double g_xhat;  // sum of g * xhat
};

/// Running sums over rows, one per column, in the accumulator type; null: not wanted. dbias needs dweight.
struct ParameterSums {
  void* dweight;
  void* dbias;
};

/// `scratch` holds forward_scratch / backward_scratch bytes when the problem is not contiguous.
struct RowKernels {
  /// Everything for these rows.
  void (*forward_rows)(const ForwardWork& work, Range rows, void* scratch);
  /// The same in steps, for a row that several threads share: (1) residual sum and moments of one chunk,
  /// (2) their merge, which also writes mean and rstd, (3) y of one chunk.
  Moments<double> (*forward_moments)(const ForwardWork& work, int64_t row, Range columns, void* scratch);
  Statistics (*forward_merge)(const ForwardWork& work, int64_t row, const Moments<double>* chunks, int64_t count);
  void (*forward_apply)(const ForwardWork& work, int64_t row, Range columns, Statistics statistics, void* scratch);

  /// Everything for these rows; adds to the sums.
  void (*backward_rows)(const BackwardWork& work, Range rows, ParameterSums sums, void* scratch);
  /// The same in steps: (1) sums of one chunk, (2) dx of one chunk from the total of the row.
  RowSums (*backward_sums)(const BackwardWork& work, int64_t row, Range columns, ParameterSums sums, void* scratch);
  void (*backward_apply)(const BackwardWork& work, int64_t row, Range columns, RowSums total, void* scratch);

  /// Everything for these tiles; scratch as tile_scratch says.
  void (*forward_tiles)(const ForwardWork& work, Range tiles, void* scratch);
  void (*backward_tiles)(const BackwardWork& work, Range tiles, ParameterSums sums, void* scratch);

  /// target[i] = offset + parameter[i], or 1 if it is absent; for columns of the range, with which target begins.
  void (*load_parameter)(const Operand& parameter, const RowGeometry& geometry, double offset, Range columns,
                         void* target);
  /// gradient[i] = the sum of count arrays, `stride` elements apart, in a fixed order; count 0 gives zeros.
  void (*reduce_parameter)(const Operand& gradient, const RowGeometry& geometry, const void* partials, int64_t stride,
                           int64_t count, Range columns);
  /// target[i] += source[i].
  void (*add)(void* target, const void* source, int64_t count);
};

/// An instruction set: its name and its kernels by DType; those of mixed problems, for fp16 and bf16.
struct Isa {
  const char* name;
  RowKernels row[4];
  RowKernels mixed_row[2];
  const PointwiseKernels* pointwise;
  const ChannelKernels* channel;
};

#if defined(__x86_64__)
extern const Isa kBaselineIsa, kAvx2Isa, kAvx512Isa;
#elif defined(__aarch64__)
extern const Isa kNeonIsa;
#else
extern const Isa kBaselineIsa;
#endif

/// Bytes of scratch per thread for columns of this many, and none for contiguous problems.
inline int64_t forward_scratch(const RowProblem& problem, int64_t columns) {
  return problem.contiguous ? 0 : columns * (size_of(problem.dtype) + size_of(problem.io_dtype));
}
inline int64_t backward_scratch(const RowProblem& problem, int64_t columns) {
  return problem.contiguous ? 0 : columns * (2 * size_of(problem.dtype) + size_of(problem.io_dtype));
}

}  // namespace normact::cpu
