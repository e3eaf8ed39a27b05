// SPDX-License-Identifier: Apache-2.0
// Plans for rows whose columns are in pieces or apart, held in registers (cuda/row_gather.cuh): variants warp and
// block.
#include <algorithm>

#include "core/gather_layout.h"
#include "core/plan_common.h"

namespace normact {
namespace {

/// The fewest threads of a row of so many units, of which each has `most` at most: a power of two of lanes, of which
/// short rows take more, or whole warps.
int64_t threads_of_row(int64_t units, int most) {
  const int64_t few = ceil_div(units, std::min(most, kGatherFewUnits)), lanes = power_of_two_from(few);
  return lanes <= kWarp ? lanes : std::max<int64_t>(kWarp, round_up(ceil_div(units, most), kWarp));
}

}  // namespace

bool plan_gather(const RowRequest& r, const DeviceInfo& device, Direction direction, bool block, RowPlan* plan) {
  const bool pieces = r.access == RowAccess::packed_pieces;
  if (!r.near || r.mixed || r.dtype == DType::f64 || r.geometry.rows > kMaxDivisibleRows) return false;
  plan->stages = plan->shared_bytes = 0;  // that of another kernel, which did not fit
  plan->access = pieces ? RowAccess::packed_pieces : RowAccess::strided;
  const int unit_size = pieces ? pack_size(r) : 1;
  const int64_t units = r.geometry.cols / unit_size;
  const auto fill = [&](const GatherLayout& layout) {
    plan->vectors = layout.units;
    plan->threads_per_row = static_cast<int>(threads_of_row(units, layout.units));
    return (plan->threads_per_row > kWarp) == block && plan->threads_per_row <= layout.threads;
  };
  if (direction == Direction::forward) {
    const GatherLayout layout = gather_forward_layout(unit_size);
    if (!fill(layout)) return false;
    plan->rows_per_block = block ? 1 : kGatherForwardBlock / plan->threads_per_row;
    plan->threads = plan->rows_per_block * plan->threads_per_row;
    plan->blocks = ceil_div(r.geometry.rows, plan->rows_per_block);
    const int64_t at_once = int64_t{persistent_blocks(r, device)} * (layout.threads / plan->threads);
    if (unit_size == 1) plan->blocks = std::min(at_once, plan->blocks);
    return true;
  }
  for (const bool wide : {false, true}) {
    if (wide && !block) break;  // more threads hold such rows faster
    const GatherLayout layout = gather_backward_layout(size_of(r.dtype), unit_size, r.activated, wide);
    if (layout.units == 0 || !fill(layout)) continue;
    const int lanes = plan->threads_per_row, least = std::max(1, kWarp / lanes);  // whole warps
    const int64_t slots = unit_size > 1 ? int64_t{lanes} * layout.units * 2 * kGatherStages * kPackBytes : 0;
    const int64_t bytes = std::max(slots, r.geometry.cols * accumulator_bytes(r.dtype));  // sums meet there, too
    const int64_t most = std::min(layout.threads / lanes, static_cast<int>(device.shared_memory_block / bytes));
    // Few rows: rather few in each of many blocks.
    const int64_t wanted = ceil_div(r.geometry.rows, persistent_blocks(r, device));
    int64_t groups = std::min(round_up(wanted, least), most / least * least);
    if (block) groups = std::min<int64_t>(groups, kGatherGroups);
    if (groups < least) continue;
    plan->rows_per_block = static_cast<int>(groups);
    plan->threads = plan->rows_per_block * lanes;
    plan->shared_bytes = static_cast<int>(groups * bytes);
    plan->blocks = std::min<int64_t>(persistent_blocks(r, device), ceil_div(r.geometry.rows, groups));
    plan->parts = plan->blocks;
    return true;
  }
  return false;
}

}  // namespace normact
