// SPDX-License-Identifier: Apache-2.0
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kSegmentPacks = 512;   // of a plane that a warp walks along at a time
constexpr int64_t kPacksAThread = 4;     // of a plane, that are under way together
constexpr int64_t kPlanesBytes = 2048;   // of neighbouring channels
constexpr int64_t kMostEntries = 1024;   // that a block adds up for itself while others do the same
constexpr int64_t kMostBits = 16 << 10;  // of shared memory for the edges of planes
constexpr int64_t kMostParts = 16384;    // of a tile: a thread sums some hundred elements, which fp32 bears

/// Some items a block, but of no more than item_bytes.
int64_t item_bytes_of(const ChannelRequest& r, const ChannelTuning& tuning, int64_t blocks) {
  const int64_t even = batches_of(r) * bytes_of(r, r.geometry.channels) / (tuning.items_a_block * blocks);
  return std::clamp(even, tuning.least_item_bytes, tuning.item_bytes);
}

/// Of rows and elements.
void set_lines(ChannelPlan* plan) {
  plan->lines = kChannelThreads / plan->lanes;
  const bool whole = power_of_two_from(plan->lanes) == plan->lanes && plan->lanes < kWarp;
  plan->lines_together = whole ? kWarp / plan->lanes : 1;
  plan->unit_step = plan->lines;
}

/// Elements by channels side by side.
void divide_elements(const ChannelRequest& r, ChannelPlan* plan) {
  plan->units = r.geometry.places * (r.set == ChannelSet::channel ? r.geometry.samples : 1);
  const int64_t lines = r.place_major ? 4 : std::min<int64_t>(kChannelThreads, power_of_two_from(plan->units));
  plan->lanes = static_cast<int>(std::min<int64_t>(kChannelThreads / lines, r.geometry.channels));
  plan->tile = plan->lanes;
  set_lines(plan);
}

/// Items of about item_bytes, or smaller ones where these leave blocks without work.
void divide_units(const ChannelRequest& r, const ChannelTuning& tuning, int64_t blocks, ChannelPlan* plan) {
  const int64_t strip_bytes = bytes_of(r, plan->tile);
  const int64_t turns = ceil_div(plan->units, plan->lines);
  const int64_t turn_bytes = std::max<int64_t>(1, strip_bytes / turns);
  // Some items a block, few enough for their entries to merge fast.
  const int64_t item_bytes = std::max(item_bytes_of(r, tuning, blocks), strip_bytes / kMostParts);
  const int64_t turns_a_part = std::max<int64_t>(1, item_bytes / turn_bytes);
  plan->parts = ceil_div(turns, turns_a_part);
  plan->units_a_part = ceil_div(turns, plan->parts) * plan->lines;  // evenly
  plan->parts = ceil_div(plan->units, plan->units_a_part);
}

/// Small tiles of planes go together: a block adds up the sums of all of them at once.
int tiles_an_item(const ChannelRequest& r, const ChannelTuning& tuning, int64_t blocks, const ChannelPlan& plan) {
  if (r.access != ChannelAccess::planes || plan.parts > 1) return 1;
  const int64_t room = std::min<int64_t>(plan.lanes, plan.tiles_a_slab);
  if (plan.order == ChannelOrder::solo) return static_cast<int>(room);
  const int64_t strip_bytes = bytes_of(r, plan.tile);
  const int64_t item_bytes = item_bytes_of(r, tuning, blocks);
  return static_cast<int>(std::clamp<int64_t>(item_bytes / std::max<int64_t>(1, strip_bytes), 1, room));
}

/// Shared memory for the bits of an item's planes at their edges: a byte for either end.
int64_t edge_bytes(const ChannelPlan& plan) {
  return round_up(2 * plan.units_a_part * plan.tile * plan.tiles_an_item, kPackBytes);
}

/// room: shared memory that is left.
ChannelMask mask_of(const ChannelRequest& r, const ChannelPlan& plan, int64_t room) {
  const ChannelGeometry& g = r.geometry;
  if (goes_by_rows(r.access)) return g.places_after == 1 ? ChannelMask::together : ChannelMask::apart;
  if (r.access == ChannelAccess::elements) return ChannelMask::apart;
  if (g.places_after == g.places && g.places % 8 == 0 && r.aligned) return ChannelMask::together;
  const bool edges = plan.segments == 1 && share_no_byte(r, plan.tile) && edge_bytes(plan) <= std::min(kMostBits, room);
  return (r.marks ? marks_edges(r) && edges : r.numbered) ? ChannelMask::edged : ChannelMask::apart;
}

/// Whether the bits of a mask are written with y.
bool marks_with_y(const ChannelRequest& r, const ChannelPlan& plan) {
  if (!r.marks || plan.mask == ChannelMask::apart) return false;
  return goes_by_rows(r.access) ? marks_rows(r, plan.lanes) : width_of(r) == 8;
}

/// Shared memory for bits of an item: those at the edges of planes, or of kept packs that a mask is read for.
int64_t bits_bytes(const ChannelRequest& r, const ChannelPlan& plan) {
  if (r.marks) return plan.mask == ChannelMask::edged ? edge_bytes(plan) : 0;
  const bool kept = plan.order == ChannelOrder::kept && goes_by_rows(r.access) && plan.mask == ChannelMask::together;
  return r.mask && kept ? int64_t{plan.accesses} * kChannelThreads : 0;
}

/// Items of a part that a group lies in, at most.
int64_t stacks_a_group(const ChannelRequest& r, const ChannelPlan& plan) {
  const int64_t width = plan.tile * plan.tiles_an_item, channels = group_channels(r);
  if (width % channels == 0) return 1;
  return channels % width == 0 ? channels / width : std::min(plan.stacks_a_slab(), ceil_div(channels - 1, width) + 1);
}

/// Groups that an item touches, at most.
int groups_an_item(const ChannelRequest& r, const ChannelPlan& plan) {
  const int64_t width = plan.tile * plan.tiles_an_item, channels = group_channels(r);
  if (width % channels == 0) return static_cast<int>(width / channels);
  return channels % width == 0 ? 1 : static_cast<int>(ceil_div(width - 1, channels) + 1);
}

/// Everything that follows from the access, for plans of planes and elements that read x twice.
void plan_read_twice(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* to) {
  ChannelPlan& plan = *to;
  const bool planes = r.access == ChannelAccess::planes;
  const int blocks_an_sm = planes ? tuning.plane_blocks : tuning.element_blocks;
  const int64_t resident = multiprocessors_of(r, device) * blocks_an_sm;
  if (planes) {
    divide_planes(r, item_bytes_of(r, tuning, resident), kSegmentPacks, &plan);
  } else {
    divide_elements(r, &plan);
  }
  const int64_t channels = r.geometry.channels;
  int64_t slab_channels = std::lcm<int64_t>(plan.tile, group_channels(r));
  // Slabs for one block each are not too small where there are plenty.
  const int64_t pieces = plan.batches * ceil_div(channels, slab_channels) / (4 * resident);
  const int64_t together = tuning.solo_bytes / 4 / std::max<int64_t>(1, bytes_of(r, slab_channels));
  if (planes) slab_channels *= std::max<int64_t>(1, std::min(pieces, together));
  divide_tiles(r, slab_channels, &plan);
  const int64_t slab_bytes = bytes_of(r, std::min(plan.tiles_a_slab * plan.tile, channels));
  plan.slabs_a_wave = std::max<int64_t>(1, tuning.wave_bytes / std::max<int64_t>(1, slab_bytes));
  divide_units(r, tuning, resident, &plan);
  if (r.passes != ChannelPasses::both) {
    plan.order = ChannelOrder::single;
  } else {
    const bool enough = plan.slabs >= tuning.solo_slabs || slab_bytes <= tuning.solo_bytes / 4;
    plan.order = slab_bytes <= tuning.solo_bytes && enough ? ChannelOrder::solo : ChannelOrder::waves;
  }
  if (plan.order == ChannelOrder::solo) {
    plan.parts = 1;
    plan.units_a_part = plan.units;
  }
  plan.tiles_an_item = tiles_an_item(r, tuning, resident, plan);
  const int64_t items = plan.slabs * plan.items_a_slab();
  plan.blocks = std::min(plan.order == ChannelOrder::solo ? plan.slabs : items, resident);
}

/// Fills the plan as far as it is about items; false if there is none by columns.
bool divide(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* plan) {
  *plan = {};
  plan->access = r.access;
  plan->whole = r.access == ChannelAccess::planes && r.aligned;
  plan->even_units = r.even_units;
  plan->batches = batches_of(r);
  plan->groups = r.geometry.groups;
  plan->unit_step = 1;
  if (plan_kept(r, device, tuning, plan)) return true;
  if (goes_by_rows(r.access)) return plan_rows(r, device, tuning, plan);
  plan_read_twice(r, device, tuning, plan);
  return true;
}

/// The request by columns, if it may go so and its planes are small. The bits of a mask lie as columns do if they are
/// in row-major order and the channels' axis is before all places.
ChannelRequest by_columns(const ChannelRequest& request, const ChannelTuning& tuning) {
  ChannelRequest r = request;
  const bool in_order = !r.mask || r.geometry.places_after == r.geometry.places;
  if (!r.columns || !in_order || r.geometry.places * size_of(r.dtype) > tuning.column_bytes) return r;
  r.access = ChannelAccess::columns;
  r.geometry = columns_of(r.geometry);
  r.channel_sums = false;
  return r;
}

int64_t bytes_of_set(const ChannelRequest& r) { return group_channels(r) * r.geometry.places * size_of(r.dtype); }

/// Whether sets of a few kilobytes go as fast by this plan as through registers. An item takes some 22 ns of a device,
/// however little of a sample it is (H100).
bool bears_small_sets(const ChannelRequest& r, const ChannelTuning& tuning, const ChannelPlan& plan) {
  const int64_t sample = r.geometry.channels * r.geometry.places;
  if (plan.access == ChannelAccess::planes) {
    return sample >= tuning.register_elements && r.geometry.places * size_of(r.dtype) >= tuning.register_plane_bytes;
  }
  if (plan.access != ChannelAccess::rows || r.geometry.places < tuning.register_rows) return false;
  if (plan.order == ChannelOrder::kept && plan.accesses >= tuning.register_kept_accesses) return true;
  return sample >= (r.set_packs ? tuning.register_packs : tuning.register_elements);
}

/// All but the chunks.
ChannelPlan plan_passes(const ChannelRequest& request, const DeviceInfo& device, const ChannelTuning& tuning) {
  ChannelPlan plan{};
  if (has_no_elements(request.geometry)) return plan;
  const bool tiny = request.access == ChannelAccess::planes &&
                    bytes_of_set(request) <= (request.kept > 1 ? tuning.tiny_back_bytes : tuning.tiny_bytes);
  if (tiny && plan_registers(request, device, &plan)) return plan;
  if (plan_plane_slabs(request, device, &plan)) return plan;
  if (plan_rings(request, device, tuning, &plan)) return plan;
  if (plan_planes(request, tuning, &plan)) return plan;
  ChannelRequest r = by_columns(request, tuning);
  if (plan_band_slabs(r, device, &plan)) return plan;
  if (plan_slabs(r, device, &plan)) return plan;
  if (!divide(r, device, tuning, &plan)) divide(r = request, device, tuning, &plan);
  if (ChannelPlan small{}; !bears_small_sets(r, tuning, plan) && plan_registers(request, device, &small)) return small;
  const int64_t entries_a_group = plan.parts * stacks_a_group(r, plan);
  plan.merge_lanes = static_cast<int>(std::min<int64_t>(kWarp, power_of_two_from(entries_a_group)));
  plan.scratch_bytes = scratch_bytes(r, plan);
  plan.mask =
      mask_of(r, plan, device.shared_memory_block - plan.scratch_bytes - plan.parameter_bytes - plan.kept_bytes);
  plan.mask_with_y = marks_with_y(r, plan);
  plan.bits_bytes = static_cast<int>(bits_bytes(r, plan));
  const int64_t groups_a_slab = ceil_div(plan.tiles_a_slab * plan.tile, group_channels(r));
  plan.settles_a_slab = ceil_div(groups_a_slab * plan.merge_lanes, kChannelThreads);
  const int64_t entries_a_slab = groups_a_slab * entries_a_group;
  plan.settles_apart =
      plan.settles_a_slab > 1 || entries_a_slab > kMostEntries || (r.averages && plan.items_a_slab() > 1);
  const bool both = r.passes == ChannelPasses::both;
  const bool sums = r.passes != ChannelPasses::apply, several = group_channels(r) > 1;
  const int64_t channel_entries = plan.batches * r.geometry.channels * plan.parts;
  if (sums && several) plan.groups_an_item = groups_an_item(r, plan);
  plan.group_entries_at = several && sums && r.channel_sums ? channel_entries : 0;
  const int64_t group_entries = plan.slabs * plan.items_a_slab() * plan.groups_an_item;
  const int64_t entries = several ? plan.group_entries_at + group_entries : sums ? channel_entries : 0;
  plan.finals = static_cast<size_t>(round_up(entries * r.entry_bytes, 256));
  const int64_t finals = both ? plan.batches * plan.groups * 2 * accumulator_bytes(r.dtype) : 0;
  plan.counters = plan.finals + static_cast<size_t>(round_up(finals, 256));
  plan.counter_bytes =
      plan.order == ChannelOrder::waves ? static_cast<size_t>(2 * plan.slabs + 1) * sizeof(uint32_t) : 0;
  plan.workspace_bytes = plan.counters + plan.counter_bytes;
  return plan;
}

}  // namespace

int lanes_of_plane(int64_t packs) {
  int64_t lanes = std::min<int64_t>(kWarp, power_of_two_from(ceil_div(packs, kPacksAThread)));
  // Fewer where many would have nothing left in the last turn.
  while (lanes > 4 && 20 * packs < 17 * lanes * ceil_div(packs, lanes)) lanes /= 2;
  return static_cast<int>(lanes);
}

void divide_planes(const ChannelRequest& r, int64_t item_bytes, int64_t segment_packs, ChannelPlan* plan) {
  const int64_t packs = packs_of_plane(r);
  plan->lanes = lanes_of_plane(packs);
  plan->segment_packs = std::min(packs, segment_packs);
  plan->segments = ceil_div(packs, plan->segment_packs);
  const int64_t teams = kChannelThreads / plan->lanes;
  const int64_t plane = r.geometry.places * size_of(r.dtype);
  const int64_t samples = r.set == ChannelSet::channel ? r.geometry.samples : 1;
  // Tiles that fit groups, as long as these are not too little work.
  const int64_t per_group = group_channels(r);
  int64_t most = std::min(teams, power_of_two_from(r.geometry.channels));
  while (most > 1 && per_group % most != 0 && most % per_group != 0 && most * plane > kPlanesBytes) most /= 2;
  // Channels side by side until they span 2 KiB, no team is without work, or, where teams would have to share a plane,
  // they make up an item: further teams work on further units.
  int64_t tile = 1;
  const auto grows = [&] {
    if (marks_edges(r) && !share_no_byte(r, tile)) return true;
    if (marks_edges(r) && !share_no_byte(r, 2 * tile)) return false;
    if (tile * plane < kPlanesBytes || samples * packs < teams / tile * plan->lanes) return true;
    return samples < teams / tile && tile * plane * samples * r.tensors < item_bytes;
  };
  while (tile < most && grows()) tile *= 2;
  // A plane whose edges are put together is not cut.
  if (samples * plan->segments < teams / tile && !(marks_edges(r) && share_no_byte(r, tile))) {
    plan->segment_packs = round_up(ceil_div(packs, ceil_div(teams / tile, samples)), plan->lanes);
    plan->segments = ceil_div(packs, plan->segment_packs);
  }
  plan->units = samples * plan->segments;
  plan->tile = static_cast<int>(tile);
  plan->lines = static_cast<int>(teams / tile);
  plan->lines_together = 1;
}

void divide_rows(const ChannelRequest& r, int64_t tile, ChannelPlan* plan) {
  plan->units = r.geometry.places * (r.set == ChannelSet::channel ? r.geometry.samples : 1);
  plan->lanes = static_cast<int>(tile / width_of(r));
  plan->tile = static_cast<int>(tile);
  set_lines(plan);
}

void divide_tiles(const ChannelRequest& r, int64_t slab_channels, ChannelPlan* plan) {
  plan->tiles = ceil_div(r.geometry.channels, plan->tile);
  plan->tiles_a_slab = std::min(slab_channels / plan->tile, plan->tiles);
  plan->slabs = plan->batches * ceil_div(plan->tiles, plan->tiles_a_slab);
}

void set_chunks(const ChannelRequest& r, ChannelPlan* plan) {
  constexpr int64_t kMostSums = 1024, kTerms = 32;  // of a warp; of a thread of a chunk, about
  const int64_t parts = r.channel_sums ? plan->parts : 1, columns = r.geometry.channels * parts;
  const bool sums = r.set == ChannelSet::group && r.passes == ChannelPasses::both && (r.channel_sums || r.averages);
  if (!sums || plan->batches * parts <= kMostSums || plan->batches < kTerms) return;
  const int64_t lines = std::max<int64_t>(1, kChannelThreads / columns);
  const int64_t chunks = std::min(ceil_div(plan->batches, kTerms * lines), std::max<int64_t>(1, kMostSums / parts));
  plan->batches_a_chunk = ceil_div(plan->batches, chunks);
  plan->chunks = ceil_div(plan->batches, plan->batches_a_chunk);
  plan->chunk_entries = static_cast<size_t>(round_up(static_cast<int64_t>(plan->workspace_bytes), 256));
  const int64_t bytes = plan->chunks * columns * 2 * accumulator_bytes(r.dtype);
  plan->workspace_bytes = plan->chunk_entries + static_cast<size_t>(round_up(bytes, 256));
}

ChannelPlan plan_channel(const ChannelRequest& request, const DeviceInfo& device, const ChannelTuning& tuning) {
  ChannelPlan plan = plan_passes(request, device, tuning);
  set_chunks(request, &plan);
  return plan;
}

}  // namespace normact
