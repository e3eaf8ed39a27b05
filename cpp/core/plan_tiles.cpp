// SPDX-License-Identifier: Apache-2.0
// Plans for rows that lie side by side in memory (cuda/row_tile.cuh).
#include <algorithm>

#include "core/plan_common.h"

namespace normact {
namespace {

/// Shared memory of a block; the kernels lay it out in this order.
int64_t tile_bytes(const RowRequest& r, Direction direction, int lanes, int threads, int lanes_a_sum) {
  const bool forward = direction == Direction::forward;
  const int accumulator = accumulator_bytes(r.dtype);
  const int64_t rows = int64_t{lanes} * pack_size(r);
  const int64_t tensors = forward ? 1 : 2;
  const int64_t sums = (threads / kWarp + 1) * (forward ? 1 : 2) * rows;
  const int64_t statistics = forward ? 0 : 4 * rows;
  const int64_t parameters = 2 * r.geometry.cols * (forward ? 1 : 1 + lanes / lanes_a_sum);  // and their gradients
  return tensors * r.geometry.cols * lanes * kPackBytes + (sums + statistics + parameters) * accumulator;
}

/// Bytes that each of so many blocks of a multiprocessor may have.
int64_t share_of(const DeviceInfo& device, int64_t blocks) {
  return device.shared_memory_block / blocks - (blocks > 1 ? 1024 : 0);
}

}  // namespace

bool plan_tile(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  const RowGeometry& g = r.geometry;
  if (!in_lines(r) || r.dtype == DType::f64 || g.row_ndim > 3 || g.col_ndim > 2 || g.rows > kMaxDivisibleRows) {
    return false;
  }
  const bool forward = direction == Direction::forward;
  const int64_t most = forward ? kTileForwardThreads : kTileBackwardThreads;
  // 128 bytes of neighbouring rows, or as many as leave room for two blocks; of long columns 16, half a sector.
  for (const int lanes : {8, 4, 2, 1}) {
    // Eight columns a thread, or as many as it takes.
    const int64_t wanted = round_up(ceil_div(r.geometry.cols, 8) * lanes, kWarp);
    const int threads = static_cast<int>(std::min(most, wanted));
    int lanes_a_sum = 1;
    const int64_t share = share_of(device, lanes <= 2 ? 1 : 2);
    const auto bytes_of = [&] { return tile_bytes(r, direction, lanes, threads, lanes_a_sum); };
    while (lanes_a_sum < lanes && bytes_of() > share) lanes_a_sum *= 2;
    const int64_t bytes = bytes_of();
    if (bytes > share) continue;
    const int64_t line = r.geometry.row_shape[r.geometry.row_ndim - 1];
    const int64_t tiles = ceil_div(r.geometry.rows / line * ceil_div(line, pack_size(r)), lanes);
    plan->threads = threads;
    plan->threads_per_row = threads / lanes;
    plan->rows_per_block = lanes * pack_size(r);
    plan->lanes_a_sum = lanes_a_sum;
    plan->shared_bytes = static_cast<int>(bytes);
    plan->blocks = tiles;
    if (forward) return true;
    // Threads of a multiprocessor that registers leave room for.
    int64_t blocks = std::max<int64_t>(1, (r.activated ? 512 : 2 * most) / threads);
    while (blocks > 1 && bytes > share_of(device, blocks)) --blocks;
    plan->blocks = std::min(tiles, blocks * persistent_blocks(r, device));
    plan->parts = plan->blocks;
    return true;
  }
  return false;
}

}  // namespace normact
