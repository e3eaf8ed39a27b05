// SPDX-License-Identifier: Apache-2.0
// Plans whose passes are launches of their own (ChannelOrder::launches) over rows of packs: a block for each part of a
// tile, and one launch between the passes that adds up what the blocks of the first have left.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

/// What belongs to the channels of a tile.
int number_bytes(const ChannelRequest& r, const ChannelPlan& plan) {
  return kTileNumbers * plan.tile * accumulator_bytes(r.dtype);
}

/// Whether so many blocks with tiles of so many packs fit a multiprocessor.
bool fit(const ChannelRequest& r, const DeviceInfo& device, int64_t lanes, int64_t blocks) {
  ChannelPlan plan{};
  plan.tiles_an_item = 1;
  divide_rows(r, lanes * width_of(r), &plan);
  const int64_t shared = number_bytes(r, plan) + scratch_bytes(r, plan);
  return blocks * (shared + kBlockReserve) <= device.shared_memory_block + kBlockReserve;
}

/// Packs of a tile: whole rows, or parts of one size that leave fewer threads without work, and pairs of packs together
/// where these have a byte of a mask. The narrower tiles are, the fewer blocks leave an entry of each channel, which
/// are to be added up; memory is read as fast by 256 bytes of a row as by all of it. Columns are many, and their
/// entries of groups. 0: not so many blocks fit.
int64_t lanes_of_rows(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, int64_t blocks) {
  const int64_t packs = r.geometry.channels / width_of(r);
  const int64_t least = r.marks && width_of(r) == 4 && packs % 2 == 0 ? 2 : 1;
  const int64_t widest = r.access == ChannelAccess::columns ? tuning.column_lanes : tuning.row_lanes;
  int64_t best = 0, most = 0;
  for (int64_t parts = ceil_div(packs, widest); 10 * most < 9 * kChannelThreads; ++parts) {
    const int64_t lanes = round_up(ceil_div(packs, parts), least);
    if (best > 0 && lanes * kPackBytes < kRowBytes) break;
    const int64_t working = kChannelThreads / lanes * packs / parts;  // on average
    if (working > most && fit(r, device, lanes, blocks)) {
      best = lanes;
      most = working;
    }
    if (lanes == least) break;
  }
  return best;
}

/// Channels of a tile: as many as leave room for the blocks that are to share a multiprocessor, or else for one. Those
/// of 16 bytes leave it on any device.
int64_t tile_of_rows(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, int64_t blocks) {
  int64_t lanes = lanes_of_rows(r, device, tuning, blocks);
  if (lanes == 0) lanes = lanes_of_rows(r, device, tuning, 1);
  return std::max<int64_t>(1, lanes) * width_of(r);
}

/// The first pass: a part for each of the blocks that run at the same time, or for several rounds of them, where a
/// thread's sums would grow too long or strips leave blocks without work. Parts lie between each other, so that blocks
/// go down the rows side by side.
void divide_first(const ChannelTuning& tuning, int64_t blocks, int64_t strips, ChannelPlan* plan) {
  constexpr int64_t kMoreRounds = 3, kPartAccesses = 12;  // a part costs as much beside its accesses
  const int64_t turns = ceil_div(plan->units, plan->lines);
  const int64_t least = std::max(ceil_div(strips, blocks), ceil_div(strips * turns, blocks * tuning.most_row_accesses));
  int64_t best = 0, a_part = 0;
  for (int64_t rounds = least; rounds <= least + kMoreRounds; ++rounds) {
    const int64_t wanted = std::max<int64_t>(1, rounds * blocks / strips);
    const int64_t size = std::clamp(ceil_div(turns, wanted), tuning.least_row_accesses, tuning.most_row_accesses);
    const int64_t time = ceil_div(strips * ceil_div(turns, size), blocks) * (size + kPartAccesses);
    if (best > 0 && time >= best) continue;
    best = time;
    a_part = size;
  }
  plan->units_a_part = a_part * plan->lines;
  plan->parts = ceil_div(plan->units, plan->units_a_part);
  plan->unit_step = plan->lines * plan->parts;
}

/// The second pass: a part is a few rows one after the other, more where a block begins with more work, to fetch
/// numbers of channels or to wait for several tensors; fewer where blocks would be without work.
void divide_second(const ChannelRequest& r, const ChannelTuning& tuning, int64_t blocks, int64_t strips,
                   ChannelPlan* plan) {
  const int64_t turns = ceil_div(plan->units, plan->lines);
  const int64_t fetches = ceil_div(plan->tile, kChannelThreads) * (r.staged > 1 ? 2 : 1);
  const int64_t a_part =
      std::clamp(ceil_div(strips * turns, 2 * blocks), tuning.least_row_accesses, fetches * tuning.apply_accesses);
  plan->apply_units = a_part * plan->lines;
  plan->apply_parts = ceil_div(plan->units, plan->apply_units);
}

}  // namespace

bool plan_rows(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* to) {
  // Tables of sums are of channels, and so are entries; those of columns are of groups.
  if (!goes_by_rows(r.access) || (r.access == ChannelAccess::columns && r.passes == ChannelPasses::reduce))
    return false;
  ChannelPlan& plan = *to;
  const int64_t blocks_an_sm = r.tensors > 1 ? tuning.row_pair_blocks : tuning.row_blocks;
  const int64_t resident = multiprocessors_of(r, device) * blocks_an_sm;
  plan.order = ChannelOrder::launches;
  const int64_t read = batches_of(r) * bytes_of(r, r.geometry.channels);
  const double room = tuning.cached_share * device.l2_bytes;
  plan.cached = r.passes == ChannelPasses::both && static_cast<double>(read) <= room;
  plan.tiles_an_item = 1;
  divide_rows(r, tile_of_rows(r, device, tuning, blocks_an_sm), &plan);
  divide_tiles(r, std::lcm<int64_t>(plan.tile, group_channels(r)), &plan);
  plan.slabs_a_wave = plan.slabs;
  const int64_t strips = plan.slabs * plan.tiles_a_slab;
  divide_first(tuning, resident, strips, &plan);
  divide_second(r, tuning, resident, strips, &plan);
  plan.parameter_bytes = number_bytes(r, plan);
  plan.blocks = plan.slabs * plan.items_a_slab();
  return true;
}

}  // namespace normact
