// SPDX-License-Identifier: Apache-2.0
// Plans for rows at any alignment (cuda/row_runs.cuh).
#include <algorithm>

#include "core/plan_common.h"
#include "core/run_layout.h"

namespace normact {
namespace {

int run_of(const RowRequest& r, Direction direction) {
  return direction == Direction::forward ? forward_run(size_of(r.dtype)) : backward_run(size_of(r.dtype));
}

/// Whether rows of `lanes` lanes of `runs` runs have a kernel: only a lane's last run may be cut or empty, except in a
/// row of one lane, which has two.
bool runs_fit(const RowRequest& r, int run, int runs, int64_t lanes) {
  if (runs > most_runs(size_of(r.dtype)) || (runs == 3 && lanes == 1)) return false;
  return lanes * runs * run >= r.geometry.cols && (lanes == 1 || lanes * (runs - 1) * run <= r.geometry.cols);
}

/// Shared memory for a planned tile, with `blocks` blocks a multiprocessor: about so many bytes of tiles on their way
/// as keep memory busy, as far as they fit. False if not even one tile does, or of a cluster's rows two.
bool plan_run_ring(const RowRequest& r, const DeviceInfo& device, Direction direction, int blocks, RowPlan* plan) {
  const bool sliced = plan->variant == NORMACT_ROW_CLUSTER;  // two rows are worked on at the same time
  const int64_t cols = run_slice(r.geometry.cols, plan->cluster);
  plan->dense = r.dense && !sliced;
  const RunLayout layout = run_layout(cols, r.dtype, plan->rows_per_block, plan->dense);
  const int accumulator = accumulator_bytes(r.dtype);
  const bool forward = direction == Direction::forward;
  const int64_t slot = forward ? int64_t{r.residual ? 2 : 1} * layout.tile_bytes
                               : int64_t{r.residual ? 3 : 2} * layout.tile_bytes + layout.statistics_bytes;
  int64_t rest = 2 * (forward ? slot + layout.statistics_bytes : layout.tile_bytes);  // output buffers
  if (!forward &&
      (r.activated || sliced || plan->threads > kBackwardRunThreads)) {  // weights, and an activation's biases
    rest += int64_t{plan->vectors} * run_of(r, direction) * plan->threads_per_row * accumulator * (r.activated ? 2 : 1);
  }
  const int64_t available = device.shared_memory_block / blocks - (blocks > 1 ? 1024 : 0);
  const int64_t in_flight = (forward ? 64 : 84) * 1024 / blocks + (sliced ? 2 * slot : 0);
  plan->stages = static_cast<int>(std::min<int64_t>(
      {(available - rest) / slot, kMaxRunStages, std::max<int64_t>(2, (in_flight + slot / 2) / slot)}));
  const int64_t parts = plan->threads_per_row < kWarp ? plan->threads / kWarp : plan->rows_per_block;
  const int64_t sums = forward ? 0 : parts * cols * accumulator;  // parameter sums meet in the same memory
  const int64_t shared = std::max(plan->stages * slot + rest, sums);
  plan->shared_bytes = static_cast<int>(shared);
  return plan->stages >= (blocks > 1 || sliced ? 2 : 1) && shared <= available;
}

/// plan_run_ring for a tile that also fits with every optional tensor and gaps between rows: neither a workspace's size
/// nor how rows are summed may depend on those.
bool plan_full_run_ring(const RowRequest& r, const DeviceInfo& device, Direction direction, int blocks, RowPlan* plan) {
  RowRequest largest = r;
  if (direction == Direction::backward || plan->variant == NORMACT_ROW_CLUSTER) {
    largest.residual = true;
    largest.dense = false;
  }
  return plan_run_ring(largest, device, direction, blocks, plan) && plan_run_ring(r, device, direction, blocks, plan);
}

/// The same, and the grid, where a block has whole rows.
bool plan_run_tile(const RowRequest& r, const DeviceInfo& device, Direction direction, int blocks, RowPlan* plan) {
  plan->blocks = std::min<int64_t>(int64_t{persistent_blocks(r, device)} * blocks,
                                   ceil_div(r.geometry.rows, plan->rows_per_block));
  plan->parts = plan->blocks;
  return plan_full_run_ring(r, device, direction, blocks, plan);
}

}  // namespace

/// Rows that a warp or less works on: several in each warp of a block.
bool plan_run_warp(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  const int run = run_of(r, direction);
  int64_t best = INT64_MAX;
  for (const int runs : {3, 2}) {
    const int64_t lanes = power_of_two_from(ceil_div(r.geometry.cols, int64_t{runs} * run));
    if (lanes > kWarp || lanes * runs >= best || !runs_fit(r, run, runs, lanes)) continue;
    best = lanes * runs;
    plan->vectors = runs;
    plan->threads_per_row = static_cast<int>(lanes);
  }
  if (best == INT64_MAX) return false;
  const bool forward = direction == Direction::forward;
  const int rows_a_warp = kWarp / plan->threads_per_row;
  // Few rows are spread over all multiprocessors.
  int warps = forward ? 16 : 4;
  while (warps > 1 && r.geometry.rows < int64_t{warps} * rows_a_warp * device.multiprocessors) warps /= 2;
  for (; warps >= 1; warps /= 2) {
    plan->threads = (warps + (forward ? kForwardMovers : kBackwardMovers)) * kWarp;
    plan->rows_per_block = warps * rows_a_warp;
    if (plan_run_tile(r, device, direction, forward ? 1 : 3, plan)) return true;
  }
  return false;
}

/// Rows that several warps work on.
bool plan_run_block(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  if (device.compute_capability < 90) return false;
  const int run = run_of(r, direction);
  const bool forward = direction == Direction::forward;
  // As many rows at once on a multiprocessor as registers allow. Backward prefers several blocks; forward does only if
  // each has one row.
  double best = 0;
  int blocks = 1, most = 1;
  for (const int runs : {3, 2}) {
    const int64_t lanes = std::max<int64_t>(round_up(ceil_div(r.geometry.cols, int64_t{runs} * run), kWarp), 2 * kWarp);
    if (lanes > 480 || !runs_fit(r, run, runs, lanes)) continue;
    const bool shared_weights = !forward && !r.activated && lanes == 256 && runs * run == kSharedWeightValues;
    const int movers = (forward ? kForwardMovers : kBackwardMovers) * kWarp;
    const int budget = forward ? kForwardRunThreads : shared_weights ? kBackwardSharedRunThreads : kBackwardRunThreads;
    for (int groups = static_cast<int>(std::min(512, budget - movers) / lanes); groups >= 1; --groups) {
      const int threads = static_cast<int>(groups * lanes) + movers;
      const int fit = std::min(4, budget / threads);
      const bool several = fit > 1 && !shared_weights;
      const double preference =
          forward ? (groups == 1 ? 1.001 : 1 + groups * 1e-5) : (several ? 1.2 - groups * 1e-5 : 1);
      const double rows = fit * groups * preference + static_cast<double>(lanes) / 1e6;
      if (rows <= best) continue;
      best = rows;
      blocks = fit;
      most = groups;
      plan->vectors = runs;
      plan->threads_per_row = static_cast<int>(lanes);
    }
  }
  if (best == 0) return false;
  // No more rows at once than it takes to give every multiprocessor a block.
  int groups = static_cast<int>(std::clamp<int64_t>(ceil_div(r.geometry.rows, device.multiprocessors), 1, most));
  for (; groups >= 1; --groups) {
    plan->rows_per_block = groups;
    plan->threads = groups * plan->threads_per_row + (forward ? kForwardMovers : kBackwardMovers) * kWarp;
    for (int b = blocks; b >= 1; --b) {
      if (plan_run_tile(r, device, direction, b, plan)) return true;
    }
  }
  return false;
}

/// Wide rows, of which each block of a cluster has a slice: the smallest cluster whose blocks have threads and shared
/// memory for theirs.
bool plan_run_cluster(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  if (size_of(r.dtype) > 4 || r.geometry.rows > kMaxDivisibleRows || device.compute_capability < 90) return false;
  const bool forward = direction == Direction::forward;
  const int run = run_of(r, direction), runs = most_runs(size_of(r.dtype));
  const int64_t most = (forward ? kForwardSliceWarps : kBackwardSliceWarps) * kWarp;
  plan->vectors = runs;
  plan->rows_per_block = 1;
  for (int log = 0; log < 5; ++log) {
    const int64_t slice = run_slice(r.geometry.cols, 1 << log);
    const int64_t last = r.geometry.cols - slice * ((1 << log) - 1);
    const int64_t lanes = round_up(ceil_div(slice, int64_t{runs} * run), kWarp);
    if (lanes > most || lanes < 2 * kWarp || lanes * (runs - 1) * run > last) continue;
    plan->threads_per_row = static_cast<int>(lanes);
    plan->threads = plan->threads_per_row + (kSliceServants + (forward ? kForwardMovers : kBackwardMovers)) * kWarp;
    if (plan_clusters(r, device, log, false, plan) && plan_full_run_ring(r, device, direction, 1, plan)) return true;
  }
  return false;
}

}  // namespace normact
