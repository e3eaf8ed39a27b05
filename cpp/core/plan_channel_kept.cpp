// SPDX-License-Identifier: Apache-2.0
// Plans whose blocks keep what they have read in shared memory between the two passes (ChannelOrder::kept). The items
// of a slab must be at work together, so there are no more of them than blocks that run at once.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kAccessBytes = int64_t{kChannelThreads} * kPackBytes;  // of all threads, of a tensor
constexpr int64_t kLeastAccesses = 4;
constexpr int64_t kItemAccesses = 7;  // an item costs as much beside its accesses (H200, bf16: 4.6 us, and 0.67 each)
constexpr int64_t kMostItems = int64_t{1} << 31;

/// What there is to run on.
struct Room {
  int64_t blocks;  // at the same time
  int64_t teams;   // of these, each at a slab, where not everything is at work at once
  int64_t memory;  // of a block
};

/// Neighbouring slabs together as long as there are enough for all blocks and an item has room.
int64_t together(const ChannelRequest& r, int64_t channels, int64_t blocks, int64_t item_bytes) {
  const int64_t slabs = batches_of(r) * ceil_div(r.geometry.channels, channels);
  const int64_t fit = item_bytes / std::max<int64_t>(1, bytes_of(r, channels));
  return std::max<int64_t>(1, std::min(ceil_div(slabs, blocks), fit));
}

/// Fills the plan, with at most `wanted` accesses of a thread in an item; false if an item does not fit.
bool divide(const ChannelRequest& r, const Room& room, int64_t wanted, ChannelPlan* plan) {
  const int64_t per_group = group_channels(r);
  const auto fit = [&](int64_t scratch) {
    const int64_t bits = r.mask ? kAccessBytes / kPackBytes : 0;  // a byte of a mask for each access
    const int64_t slack = r.mask ? 8 * kChannelThreads + kPackBytes : 0;
    return (room.memory - scratch - slack) / (kAccessBytes * r.kept + bits);
  };
  const auto most = [&](int64_t scratch) { return std::min(wanted, fit(scratch)); };
  const int64_t scratch = int64_t{r.sums} * kChannelThreads * accumulator_bytes(r.dtype);
  int64_t full = most(scratch);             // accesses of an item
  int64_t slab_channels = 0, accesses = 1;  // of a unit
  plan->tiles_an_item = 1;
  if (full <= 0) return false;
  const int64_t item_bytes = full * kAccessBytes * r.tensors;
  if (r.access == ChannelAccess::planes) {
    const int64_t packs = packs_of_plane(r), lanes = lanes_of_plane(packs);
    const int64_t along = ceil_div(packs, lanes);
    if (marks_edges(r) && along <= fit(scratch)) full = std::max(full, along);
    const int64_t segments = ceil_div(along, full);
    divide_planes(r, item_bytes, ceil_div(along, segments) * lanes, plan);
    accesses = ceil_div(plan->segment_packs, plan->lanes);
    slab_channels = std::lcm<int64_t>(plan->tile, per_group);
    slab_channels *= together(r, slab_channels, room.blocks, item_bytes);
  } else {
    const int64_t width = width_of(r), widest = int64_t{kChannelThreads} * width;
    const int64_t whole = std::lcm(width, per_group);
    int64_t tile = round_up(kRowBytes / size_of(r.dtype), whole <= widest ? whole : width);
    tile *= together(r, tile, room.blocks, item_bytes);
    tile = std::min({tile, r.geometry.channels, whole <= widest ? widest / whole * whole : widest});
    divide_rows(r, tile, plan);
    const int64_t beside = scratch_bytes(r, *plan) + parameter_bytes(r, *plan);
    full = most(beside);
    slab_channels = std::lcm<int64_t>(plan->tile, per_group);
  }
  divide_tiles(r, slab_channels, plan);
  const int64_t turns = ceil_div(plan->units, plan->lines), turns_a_part = full / accesses;
  if (turns_a_part <= 0) return false;
  plan->parts = ceil_div(turns, turns_a_part);
  plan->units_a_part = ceil_div(turns, plan->parts) * plan->lines;  // evenly
  plan->parts = ceil_div(plan->units, plan->units_a_part);
  const int64_t of_tile = accesses * ceil_div(plan->units_a_part, plan->lines);
  if (r.access == ChannelAccess::planes && plan->parts == 1) {  // small tiles go together
    const int64_t columns = std::min<int64_t>(plan->lanes, plan->tiles_a_slab);
    plan->tiles_an_item = static_cast<int>(std::clamp<int64_t>(full / of_tile, 1, columns));
  }
  plan->accesses = static_cast<int>(of_tile * plan->tiles_an_item);
  const int64_t items = plan->slabs * plan->items_a_slab();
  const int64_t team = items <= room.blocks ? room.blocks : room.blocks / room.teams;
  if (plan->items_a_slab() > team || items >= kMostItems) return false;
  const int64_t beside = scratch_bytes(r, *plan) + parameter_bytes(r, *plan);
  if (plan->accesses > (marks_edges(r) ? fit(beside) : most(beside))) return false;
  // Whole teams: none is at two slabs, of which one would wait for blocks that have yet to come to it.
  plan->blocks = std::min(plan->slabs, room.blocks / plan->items_a_slab()) * plan->items_a_slab();
  return true;
}

/// Items that a block has one after the other.
int64_t rounds_of(const ChannelPlan& plan) { return ceil_div(plan.slabs * plan.items_a_slab(), plan.blocks); }

/// What all blocks do one after the other, in accesses of a thread.
int64_t work_of(const ChannelPlan& plan) { return rounds_of(plan) * (plan.accesses + kItemAccesses); }

/// The plan, whatever the rounds.
bool plan_rounds(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* plan) {
  const int blocks = tuning.kept_blocks;
  const int64_t multiprocessors = multiprocessors_of(r, device);
  const Room room{multiprocessors * blocks, tuning.kept_teams, device.shared_memory_block / blocks - kBlockReserve};
  const int64_t most = room.memory / (kAccessBytes * r.kept);
  ChannelPlan best{};
  const auto consider = [&](int64_t accesses) {
    ChannelPlan other = *plan;
    if (!divide(r, room, accesses, &other)) return;
    if (best.blocks == 0 || work_of(other) < work_of(best)) best = other;
  };
  // Everything at once, if it fits, in items just as large as they need be; else large items, or somewhat smaller ones
  // that leave fewer blocks without work in the last round.
  const int64_t total = batches_of(r) * bytes_of(r, r.geometry.channels) / r.tensors;
  const int64_t even = std::max(kLeastAccesses, ceil_div(total, room.blocks * kAccessBytes));
  const auto at_once = [&] { return best.blocks > 0 && best.slabs * best.items_a_slab() <= room.blocks; };
  for (int64_t accesses = even; accesses <= most && !at_once(); accesses += ceil_div(accesses, 8)) consider(accesses);
  for (int64_t accesses = most; 2 * accesses > most && !at_once(); --accesses) consider(accesses);
  if (best.blocks == 0) return false;
  best.order = ChannelOrder::kept;
  best.delay = at_once() ? 0 : static_cast<int>(r.kept * best.accesses * tuning.kept_delay);
  best.parameter_bytes = parameter_bytes(r, best);
  best.kept_bytes = static_cast<int>(r.kept * best.accesses * kAccessBytes);
  best.slabs_a_wave = best.slabs;
  *plan = best;
  return true;
}

/// Backwards of batch norms whose rows are narrower than two tiles go by launches (H200, us, kept and so; with relu, an
/// addend, a mask or y no slower): bf16 64x40x28x28 15.0 and 10.5, 256x80x14x14 18.9 and 14.6, 64x24x56x56 19.5
/// and 16.0, 256x112x14x14 20.7 and 17.5; fp32 64x40x28x28 14.7 and 12.2, 64x16x56x56 with relu 17.8 and 17.0. Of wider
/// ones, from y: bf16 8x256x56x56 23.9 and 28.9, fp32 32x128x28x28 23.4 and 27.5.
bool is_narrow_backward(const ChannelRequest& r) {
  return r.kept > 1 && r.access == ChannelAccess::rows && r.set == ChannelSet::channel &&
         r.geometry.channels * size_of(r.dtype) < 2 * kRowBytes;
}

}  // namespace

// Rows that need several rounds, kept and read twice by launches (H200, bf16, us). Forward, two: 32x256x56x56 53 and
// 46, 64x512x28x28 50 and 45; four: 256x1024x14x14 94 and 92, instance norm 8x64x256x256 70 and 62; with an addend,
// two: 64x512x28x28 96 and 62. Backward, two: 32x512x28x28 42 and 39, group norm 8x320x64x64 44 and 40; four:
// 256x2048x7x7 74 and 74; with a mask, four: 64x512x28x28 106 and 97. Columns: 256x1024x14x14 backward, ten, 227 and
// 191 with a mask.
bool plan_kept(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* plan) {
  if (r.passes != ChannelPasses::both || r.access == ChannelAccess::elements || is_narrow_backward(r)) return false;
  ChannelPlan kept = *plan;
  if (!plan_rounds(r, device, tuning, &kept)) return false;
  const bool bare_columns = r.access == ChannelAccess::columns && r.kept == 1 && !r.beside;
  const int64_t most = bare_columns ? tuning.column_rounds : tuning.row_rounds;
  if (goes_by_rows(r.access) && kept.items_a_slab() > 1 && rounds_of(kept) > most) return false;
  *plan = kept;
  return true;
}

}  // namespace normact
