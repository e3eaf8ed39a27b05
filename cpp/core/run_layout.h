// SPDX-License-Identifier: Apache-2.0
// Rows at any element alignment (cuda/row_runs.cuh): how their tiles lie in shared memory, and which pieces of a row a
// thread owns. The planner and the kernels both need to know.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace normact {

/// Consecutive elements of a row that a thread owns at a time: runs of neighbouring threads must begin an odd number of
/// shared memory words apart. A thread owns two or three runs, as many as its registers hold.
constexpr int forward_run(int element_bytes) { return element_bytes == 2 ? 6 : element_bytes == 4 ? 9 : 5; }
constexpr int backward_run(int element_bytes) { return element_bytes == 2 ? 6 : element_bytes == 4 ? 9 : 3; }

/// Runs that a thread owns, at most: those of 16-bit types are short.
constexpr int most_runs(int element_bytes) { return element_bytes == 2 ? 3 : 2; }

/// Warps of a block that move data.
constexpr int kForwardMovers = 2;
constexpr int kBackwardMovers = 1;

/// Threads of a multiprocessor that a kernel's registers are for. Backward takes the larger number where it keeps
/// weights in shared memory, not in registers.
constexpr int kForwardRunThreads = 640;
constexpr int kBackwardRunThreads = 512;
constexpr int kBackwardSharedRunThreads = 576;
constexpr int kSharedWeightValues = 18;  // a thread's
constexpr int kMaxRunStages = 6;

/// Of wide rows, which the blocks of a cluster share: warps of a block that work on rows, at most, and one more, which
/// exchanges sums. Registers are given to four warps at a time.
constexpr int kForwardSliceWarps = 16;
constexpr int kBackwardSliceWarps = 14;
constexpr int kSliceServants = 1;

/// Columns of a row that a block of a cluster has; the last may have fewer.
constexpr int64_t run_slice(int64_t cols, int cluster) { return (cols + cluster - 1) / cluster; }

/// One tile: consecutive rows of one tensor, each at its own phase modulo 16 bytes.
struct RunLayout {
  int row_bytes;
  int pitch;             // bytes from a row of a tile to the next in shared memory
  int tile_bytes;        // one tensor of a tile
  int statistics_bytes;  // mean and rstd of a tile's rows
};

/// dense: every tensor's rows follow each other without gaps, so that a tile is one piece of memory.
inline RunLayout run_layout(int64_t cols, DType dtype, int rows, bool dense) {
  const auto up = [](int64_t bytes, int unit) { return static_cast<int>((bytes + unit - 1) / unit * unit); };
  const int most = 15;  // bytes before a row's first element in its first 16
  RunLayout layout;
  layout.row_bytes = static_cast<int>(cols * size_of(dtype));
  layout.pitch = dense ? layout.row_bytes : up(layout.row_bytes + most, 16);
  layout.tile_bytes = up(int64_t{rows} * layout.pitch + (dense ? most : 0), 128);
  layout.statistics_bytes = up(int64_t{2} * rows * size_of(accumulator_of(dtype)), 128);
  return layout;
}

}  // namespace normact
