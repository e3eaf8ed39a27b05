// SPDX-License-Identifier: Apache-2.0
// Plans for rows that are read twice (cuda/row_stream.cuh).
#include <algorithm>

#include "core/plan_common.h"

namespace normact {
namespace {

/// Columns of a block that walks over a slice of a row, and of rows that are cut. Forward, one block may read its row
/// again from the cache, which shorter rows gain by. How a row is summed must not depend on how many there are.
constexpr int64_t kSliceCols = 1 << 14, kLeastForwardCols = 1 << 17, kLeastBackwardCols = 1 << 16;

/// Units of a row, as kernels of `stream` go through it.
int64_t stream_units(const RowRequest& r) {
  const bool in_packs = r.access == RowAccess::packs || r.access == RowAccess::packed_pieces;
  return in_packs ? r.geometry.cols / pack_size(r) : r.geometry.cols;
}

/// Columns that a block of a cluster has, up to twice as many, where single elements lie apart: of rows beside each
/// other and of others. Both are for many rows; few would rather have more blocks.
constexpr int64_t kColumnsBeside = 512, kColumnsApart = 1 << 14;

/// Ranges of rows that each of so many slabs of columns goes over, backward: enough blocks to fill the device eight
/// times, but ranges of so many rows at least, so that partial sums stay small beside x.
int64_t parts_of(const RowRequest& r, const DeviceInfo& device, int64_t slabs, int64_t least) {
  return std::clamp<int64_t>(ceil_div(8 * device.multiprocessors, slabs), 1,
                             std::min<int64_t>(65535, ceil_div(r.geometry.rows, least)));
}

/// The largest power of two up to a number; 1 of none.
int64_t power_of_two_within(int64_t value) {
  int64_t power = 1;
  while (2 * power <= value) power *= 2;
  return power;
}

/// Single elements that lie apart. Lanes go over what is nearer, rows or columns.
bool plan_elements(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  constexpr int64_t kWarps = kElementThreads / kWarp;
  const int64_t rows = r.geometry.rows, cols = r.geometry.cols;
  const bool in_units = r.access == RowAccess::packs || r.access == RowAccess::packed_pieces || r.contiguous;
  if (in_units || !r.near || rows > kMaxDivisibleRows) return false;
  // Rows side by side share blocks, of which there would be few without clusters.
  const bool clusters = device.compute_capability >= 90;
  const int64_t of_block = r.beside ? kColumnsBeside : kColumnsApart;
  const int64_t slices = std::min<int64_t>(power_of_two_within(cols / of_block), 8);
  const bool beside = r.beside && (clusters || slices == 1);
  const int64_t cluster = clusters ? slices : 1;
  const int64_t least = beside ? 32 : 4;  // columns of a strand
  const int64_t strands = std::min<int64_t>(power_of_two_within(cols / (cluster * kWarps * least)), kWarp);
  // As many rows as leave a block for each multiprocessor, and as lie beside each other.
  const int64_t in_line = beside ? power_of_two_from(r.geometry.row_shape[r.geometry.row_ndim - 1]) : 1;
  const int64_t wanted = std::min(in_line, power_of_two_within(rows * cluster / device.multiprocessors));
  plan->elements = true;
  plan->cluster = static_cast<int>(cluster);
  plan->slices = 1;
  plan->threads = kElementThreads;
  plan->threads_per_row = static_cast<int>(kWarps * strands);
  plan->rows_per_block = static_cast<int>(std::clamp<int64_t>(wanted, kWarp / strands, kWarp));
  plan->blocks = ceil_div(rows, plan->rows_per_block) * cluster;
  if (direction == Direction::forward) return true;
  // Short rows leave no lanes idle.
  const int64_t lanes = std::min<int64_t>(power_of_two_within(cols / (kWarps * kApplyColumns)), kWarp);
  plan->apply_rows = static_cast<int>(beside ? std::min<int64_t>(in_line, kWarp) : kWarp / lanes);
  plan->parts = parts_of(r, device, ceil_div(cols, apply_slab(*plan)), 4 * std::max(plan->apply_rows, 4));
  return true;
}

}  // namespace

size_t most_stream_workspace(const RowGeometry& g) {
  return g.cols < kLeastForwardCols ? 0 : slice_moments_bytes(g.rows, g.cols / kSliceCols);
}

bool plan_stream(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  if (plan_elements(r, device, direction, plan)) return true;
  // Single elements 2^31 apart take many registers: small blocks, of which a multiprocessor has several.
  const bool far = r.access == RowAccess::strided && !r.contiguous && r.geometry.cols < 16384;
  const int64_t wanted = round_up(ceil_div(stream_units(r), 4), kWarp);
  plan->threads = static_cast<int>(std::clamp<int64_t>(wanted, kWarp, far ? 128 : 512));
  plan->threads_per_row = plan->threads;
  const int64_t least = direction == Direction::forward ? kLeastForwardCols : kLeastBackwardCols;
  plan->cluster = 1;
  plan->slices = r.geometry.cols < least ? 1 : r.geometry.cols / kSliceCols;
  if (plan->slices > kMaxBlocks / std::max<int64_t>(1, r.geometry.rows)) return false;
  plan->blocks = r.geometry.rows * plan->slices;
  if (direction == Direction::forward) return true;
  const int64_t slabs = ceil_div(stream_units(r), 256);
  plan->parts = slabs >= 2 * device.multiprocessors ? 1 : parts_of(r, device, slabs, 16);
  return slabs <= kMaxBlocks;
}

}  // namespace normact
