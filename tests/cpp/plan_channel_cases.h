// SPDX-License-Identifier: Apache-2.0
// Problems of batch, group and instance norm, their plans, and what is true of any plan.
#pragma once

#include <algorithm>
#include <numeric>

#include "core/plan_channel.h"
#include "core/plan_common.h"

#include "check.h"

using normact::ceil_div;
using normact::ChannelAccess;
using normact::ChannelBackward;
using normact::ChannelForward;
using normact::ChannelMask;
using normact::ChannelOrder;
using normact::ChannelPasses;
using normact::ChannelPlan;
using normact::ChannelRequest;
using normact::ChannelSet;
using normact::ChannelTuning;
using normact::ChannelView;
using normact::DeviceInfo;
using normact::DType;
using normact::StatisticsSource;

constexpr DeviceInfo kHopper{90, 132, 227 * 1024 - 4096, {132, 66, 30, 14, 7}, 60 << 20};
constexpr DeviceInfo kAmpere{80, 108, 163 * 1024 - 4096, {}, 40 << 20};  // without clusters
alignas(16) inline char memory[64];

enum class Layout : uint8_t { planes, rows };

/// groups 0: batch norm.
inline ChannelForward forward(Layout layout, int64_t samples, int64_t channels, int64_t places, int64_t groups,
                              DType dtype = DType::bf16, int offset = 0) {
  ChannelForward p{};
  p.geometry = {samples, channels, groups != 0 ? groups : channels, places, places, 1, {places}};
  p.set = groups != 0 ? ChannelSet::group : ChannelSet::channel;
  p.dtype = dtype;
  p.source = StatisticsSource::batch;
  const bool planes = layout == Layout::planes;
  p.x = {memory + offset, dtype, channels * places, planes ? places : 1, {planes ? 1 : channels}};
  p.y = p.x;
  return p;
}

inline ChannelPlan plan_of(const ChannelForward& p, int sm_margin = 0) {
  return plan_channel(request_of(p, sm_margin), kHopper, ChannelTuning{});
}

inline ChannelPlan on_ampere(const ChannelForward& p, int sm_margin = 0) {
  return plan_channel(request_of(p, sm_margin), kAmpere, ChannelTuning{});
}

inline ChannelAccess access_of(const ChannelForward& p) { return request_of(p, 0).access; }

/// One block or two fit a multiprocessor, a thread's accesses its memory, the items of a slab the blocks that run at
/// once.
inline void check_kept(const ChannelForward& p, const ChannelPlan& plan) {
  constexpr int kStatic = 2304;  // of the kernels, at most, beside a KiB that each block takes
  const int shared = plan.scratch_bytes + plan.parameter_bytes + plan.bits_bytes + plan.kept_bytes;
  CHECK((plan.blocks > 132 ? 2 : 1) * (shared + kStatic + 1024) <= 228 * 1024);
  CHECK(plan.items_a_slab() <= 2 * 132 && plan.blocks <= 2 * 132);
  const int64_t accesses = plan.access == ChannelAccess::planes ? ceil_div(plan.segment_packs, plan.lanes) : 1;
  const int64_t turns = ceil_div(std::min(plan.units_a_part, plan.units), plan.lines);
  CHECK(accesses * turns * plan.tiles_an_item <= plan.accesses);
  CHECK_EQ(plan.kept_bytes, plan.accesses * normact::kChannelThreads * 16);
  if (plan.access == ChannelAccess::rows) CHECK(p.geometry.channels * size_of(p.dtype) % 16 == 0);
}

/// Every pack of a set is in a part, and its entries have room.
inline void check_cut(const normact::PlaneDivision& d) {
  CHECK(d.parts >= 1 && d.packs_a_part * d.parts >= d.packs && d.packs_a_part * (d.parts - 1) < d.packs);
  CHECK(d.team == normact::kChannelThreads || (d.team <= 32 && (d.team & (d.team - 1)) == 0 && d.parts == 1));
  CHECK(d.blocks() * normact::kChannelThreads >= d.numbers() * d.team);
}

/// In both passes every row of every tile is in one part, which a block has; what the first leaves has room.
inline void check_row_launches(const ChannelRequest& r, const ChannelPlan& plan) {
  CHECK(!plan.waits_together() && plan.counter_bytes == 0 && plan.kept_bytes == 0 && plan.tiles_an_item == 1);
  CHECK(plan.slabs / plan.batches * plan.tiles_a_slab >= plan.tiles && plan.tiles_a_slab <= plan.tiles);
  CHECK_EQ(plan.parameter_bytes, normact::kTileNumbers * plan.tile * accumulator_bytes(r.dtype));
  for (const ChannelPlan& pass : {plan, plan.second_pass()}) {
    CHECK_EQ(pass.blocks, pass.slabs * pass.tiles_a_slab * pass.parts);
    CHECK(pass.units_a_part * pass.parts >= pass.units && pass.units_a_part * (pass.parts - 1) < pass.units);
    CHECK(pass.unit_step == pass.lines || pass.unit_step == pass.lines * pass.parts);
    CHECK(pass.units_a_part <= 256 * pass.lines);  // fp32 bears sums of as many
  }
  CHECK_EQ(plan.second_pass().unit_step, plan.lines);
  if (r.passes != ChannelPasses::both) return;
  const auto finals = static_cast<size_t>(plan.batches * plan.groups * 2 * accumulator_bytes(r.dtype));
  CHECK(plan.finals > 0 && plan.workspace_bytes >= plan.finals + finals);
}

inline void check_launches(const ChannelRequest& r, const ChannelPlan& plan) {
  if (plan.access != ChannelAccess::planes) {
    check_row_launches(r, plan);
    return;
  }
  check_cut(plan.reduce);
  check_cut(plan.apply);
  CHECK(plan.whole && !plan.waits_together() && plan.counter_bytes == 0);
  CHECK_EQ(plan.apply.sets, plan.batches * plan.groups);
  CHECK_EQ(plan.apply.sets * plan.apply.packs, plan.reduce.sets * plan.reduce.packs);
  CHECK_EQ(plan.apply.sets * plan.apply.packs * 16,
           r.geometry.samples * r.geometry.channels * r.geometry.places * size_of(r.dtype));
  const int64_t entries = r.passes == ChannelPasses::apply ? 0 : plan.reduce.numbers() * r.entry_bytes;
  CHECK(plan.workspace_bytes >= static_cast<size_t>(entries));
}

/// Every pack of a set is in one block, none of which is without, and its sums have room.
inline void check_plane_slabs(const ChannelRequest& r, const ChannelPlan& plan) {
  const normact::ChannelGeometry& g = r.geometry;
  const bool channel = r.set == ChannelSet::channel, several = g.channels > g.groups, cut = !plan.whole;
  const int64_t width = 16 / size_of(r.dtype), bundle = cut ? width / std::gcd(width, g.places) : 1;
  const int64_t run = bundle * g.places / width;
  CHECK_EQ(plan.units, run * (channel ? g.samples : g.channels / g.groups / bundle));
  CHECK(!cut || (r.set_packs && several && g.places >= width));  // a pack lies in two planes at most
  CHECK(!cut || r.kept == 1 || (plan.lanes >= 1 && plan.lanes <= 32 && (plan.lanes & (plan.lanes - 1)) == 0));
  CHECK_EQ(plan.slabs, plan.batches * plan.groups);
  CHECK_EQ(plan.blocks, plan.slabs * plan.cluster);
  CHECK(plan.threads >= 32 && plan.threads <= normact::kMostPlaneSlabThreads);
  CHECK(plan.threads % 32 == 0 && plan.accesses * plan.threads - plan.units_a_part < 32 * plan.accesses);
  CHECK(plan.units_a_part * plan.cluster >= plan.units && plan.units_a_part * (plan.cluster - 1) < plan.units);
  CHECK(plan.accesses * plan.threads >= plan.units_a_part && plan.accesses <= normact::kMostSlabAccesses);
  CHECK(plan.cluster == 1 || plan.units_a_part % (several ? run : 32) == 0);
  CHECK(!several || r.kept == 1 || cut || run % 32 == 0);  // a warp's packs are of one channel
  CHECK_EQ(plan.kept_bytes, (r.kept + (plan.keeps_slopes ? 1 : 0)) * plan.accesses * plan.threads * 16);
  const int64_t planes = several ? plan.units_a_part / run * bundle : 0, pair = 2 * accumulator_bytes(r.dtype);
  CHECK(plan.parameter_bytes >= planes * pair);
  CHECK(plan.scratch_bytes >= (plan.threads / 32 + (r.kept > 1 && !cut ? planes : 0)) * pair);
  CHECK(!plan.keeps_slopes || r.slopes);
  CHECK(plan.kept_bytes + plan.parameter_bytes + plan.scratch_bytes <= kHopper.shared_memory_block);
  CHECK(!r.beside && !plan.waits_together() && plan.counter_bytes == 0 && plan.parts == 1);
}

/// Bands are the least whole channels and packs, a pack has elements of two at most, what threads leave has room.
inline void check_bands(const ChannelRequest& r, const ChannelPlan& plan) {
  const int64_t width = 16 / size_of(r.dtype), places = r.geometry.places;
  CHECK(plan.access == ChannelAccess::columns && places >= width && plan.tile % places == 0);
  CHECK(plan.tile == std::lcm(width, places) && plan.tile / places <= width);
  CHECK_EQ(plan.lines, normact::kChannelThreads / plan.lanes);
  CHECK(plan.cluster <= normact::kMostSlabBlocks && plan.accesses <= normact::kMostSlabAccesses);
  CHECK(plan.parameter_bytes == 0 && plan.workspace_bytes == 0);
  CHECK(plan.scratch_bytes >= 4 * normact::kChannelThreads * accumulator_bytes(r.dtype));
}

/// Slabs are whole groups and together all channels, every row is in one block, none of which is without.
inline void check_slabs(const ChannelRequest& r, const ChannelPlan& plan) {
  if (plan.access == ChannelAccess::planes) return check_plane_slabs(r, plan);
  const normact::ChannelGeometry g =
      plan.access == ChannelAccess::columns ? normact::columns_of(r.geometry) : r.geometry;
  const int shared = plan.kept_bytes + plan.parameter_bytes + plan.scratch_bytes + plan.bits_bytes;
  CHECK_EQ(plan.groups, g.groups);
  CHECK_EQ(plan.slabs / plan.batches * plan.tile, g.channels);
  CHECK_EQ(plan.tile % (g.channels / g.groups), 0);
  CHECK(plan.tile / (g.channels / g.groups) <= normact::kChannelThreads);  // a thread for each group
  if (plan.bands) {
    check_bands(r, plan);
  } else {
    const int64_t pair = 8, groups = plan.tile / (g.channels / g.groups),
                  handed = plan.team ? plan.cluster * groups : 0;
    const int64_t lines = plan.team ? normact::team_sum_lines(plan.lanes, plan.lines) : plan.lines;
    const int64_t sums = lines * normact::slab_sum_pitch(plan.tile), totals = groups == plan.tile ? 0 : plan.tile;
    const int64_t entries = normact::slab_entries(plan.team ? 1 : plan.cluster, groups);
    CHECK_EQ(normact::slab_sum_pitch(plan.tile) % 4, 0);
    CHECK(plan.scratch_bytes >= (entries + totals + std::max(sums, handed)) * pair);
    CHECK(plan.workspace_bytes >= plan.finals + static_cast<size_t>(plan.slabs * handed * pair));
    CHECK(plan.team ? plan.blocks <= 2 * 132 : plan.cluster <= normact::kMostSlabBlocks);
    CHECK(plan.blocks <= 132 || !plan.team || 2 * (shared + 1024) <= 228 * 1024);  // all are there together
  }
  CHECK_EQ(plan.lanes * 16 / size_of(r.dtype), plan.tile);
  CHECK(plan.lanes * plan.lines <= normact::kChannelThreads);
  CHECK(plan.units_a_part * plan.cluster >= plan.units && plan.units_a_part * (plan.cluster - 1) < plan.units);
  CHECK(plan.accesses * plan.lines >= plan.units_a_part);
  CHECK_EQ(plan.blocks, plan.slabs * plan.cluster);
  const int tensors = plan.bands && r.kept == 1 ? r.staged : r.kept + (plan.keeps_slopes ? 1 : 0);
  CHECK_EQ(plan.kept_bytes, tensors * plan.accesses * normact::kChannelThreads * 16);
  CHECK(!plan.keeps_slopes || r.slopes);
  CHECK(shared <= kHopper.shared_memory_block);
  CHECK(!r.mask || (r.geometry.places_after == 1 && plan.mask == ChannelMask::together && plan.mask_with_y == r.marks));
  CHECK(plan.waits_together() == plan.team && plan.counter_bytes == 0);
  CHECK_EQ(plan.parts, r.channel_sums && r.set == ChannelSet::group ? plan.cluster : 1);
}

/// Where sets have several channels: those of a block have room, and the blocks of one an entry each.
inline void check_ring_channels(const ChannelRequest& r, const ChannelPlan& plan) {
  const normact::RingDivision& d = plan.ring;
  const int64_t run = r.geometry.places * size_of(r.dtype) / 16, last = plan.units - 1;
  CHECK(d.several && d.channels <= normact::kRingChannels && d.parts == plan.parts);
  for (int64_t first = 0; first <= last; first += d.packs_a_block) {
    const int64_t end = std::min(first + d.packs_a_block - 1, last);
    CHECK(end / run - first / run < d.channels);
    if (r.kept > 1) CHECK(first % 32 == 0 && run % 32 == 0);
  }
  for (int64_t begin = 0; begin <= last; begin += run)
    CHECK((begin + run - 1) / d.packs_a_block - begin / d.packs_a_block < d.parts);
  const int pair = 2 * accumulator_bytes(r.dtype), sums = r.kept > 1 ? normact::kRingSums * d.rounds * d.warps : 0;
  CHECK_EQ(plan.parameter_bytes, (d.tables * (d.channels + 1) + sums) * pair);
}

/// A slot has the same rounds of the ring each time, as many as its chunk needs.
inline void check_ring_slots(const normact::RingDivision& d) {
  int round = 0;
  for (int i = 0; i < 3 * d.slots * d.chunks; ++i) {
    const int slot = i % d.slots, chunk = i % d.chunks;
    if (slot == 0) round = 0;
    if (d.slots % d.chunks != 0) CHECK_EQ(round, slot * d.rounds_a_chunk);
    CHECK(d.rounds_of(chunk) >= std::min(d.rounds - chunk * d.rounds_a_chunk, d.rounds_a_chunk));
    round += d.rounds_of(chunk);
    CHECK(round <= d.ring_rounds);
  }
}

/// As run_ring (cuda/channel_ring.cuh) does: what is summed is in the ring, and has what it uses of its set for itself.
inline void check_ring_turns(const normact::RingDivision& d, bool keeps_sums) {
  const int turns = 14, chunks = turns * d.chunks;
  int summed = 0, received = -1;
  for (int written = 0; written < chunks; ++written) {
    const int turn = written / d.chunks;
    for (; summed < std::min(chunks, std::max((turn + 1) * d.chunks, written + d.chunks + d.lead)); ++summed) {
      CHECK(summed - d.slots < written);  // its slot has been released, if it was used before
      const int set = summed / d.chunks;
      CHECK(set - normact::kRingDepth / 2 <= received);            // WarpExchange
      if (keeps_sums) CHECK(set - normact::kRingSums < received);  // RingShare::round_sums
    }
    if (written % d.chunks == 0) received = turn;
  }
  CHECK_EQ(d.tables & (d.tables - 1), 0);
  CHECK(d.tables * d.chunks >= d.slots + d.chunks);  // RingShare::statistics
}

/// Every pack of a set is in one thread of one block, none of which is without, and the ring has room.
inline void check_rings(const ChannelRequest& r, const ChannelPlan& plan) {
  const normact::RingDivision& d = plan.ring;
  CHECK_EQ(plan.apply.sets, plan.batches * plan.groups);
  CHECK(plan.apply.packs == plan.units && plan.apply.parts == 1);
  CHECK(d.warps >= 1 && d.warps <= normact::kClusterWarps && d.threads == d.warps * 32);
  CHECK(d.packs_a_block <= d.threads * d.rounds && d.packs_a_block > d.threads * (d.rounds - 1));
  CHECK_EQ(d.packs_a_block % 32, 0);
  CHECK(d.packs_a_block * int64_t{d.blocks} >= plan.units && d.packs_a_block * (d.blocks - int64_t{1}) < plan.units);
  CHECK(d.clusters ? plan.cluster == d.blocks : plan.cluster == 1 && d.blocks <= normact::kRingTeam);
  CHECK_EQ(plan.waits_together(), !d.clusters);
  if (!d.clusters) {
    CHECK(plan.blocks <= kHopper.multiprocessors - r.sm_margin);
    const size_t pair = r.kept > 1 ? 8 : 16;
    CHECK(plan.counters - plan.finals >= pair * static_cast<size_t>(plan.apply.sets) * static_cast<size_t>(d.blocks));
  }
  CHECK(d.rounds_a_chunk * d.chunks >= d.rounds && d.rounds_a_chunk * (d.chunks - 1) < d.rounds);
  CHECK(d.rounds_a_chunk <= normact::kRingRounds);
  CHECK(d.slots >= d.chunks && d.slots <= normact::kRingChunks && d.flight >= 1 && d.flight <= d.slots);
  const int chunk_bytes = d.rounds_a_chunk * d.threads * 16 * r.staged;
  CHECK(d.clusters || d.slots == d.chunks ? d.flight == d.slots
                                          : d.flight * chunk_bytes <= std::max(64 << 10, 2 * chunk_bytes));
  check_ring_slots(d);
  check_ring_turns(d, d.several && r.kept > 1);
  CHECK_EQ(plan.kept_bytes, d.ring_rounds * d.threads * 16 * r.staged);
  CHECK(plan.kept_bytes + plan.parameter_bytes <= kHopper.shared_memory_block);
  CHECK(plan.blocks % d.blocks == 0 && plan.blocks / d.blocks <= plan.apply.sets && plan.counter_bytes == 0);
  if (r.geometry.channels > r.geometry.groups) return check_ring_channels(r, plan);
  CHECK(plan.parts == 1 && d.channels == 1 && !d.several);
  CHECK_EQ(plan.parameter_bytes, d.tables * 2 * 2 * accumulator_bytes(r.dtype));
}

/// Every element of a set is a thread's, every set and sample a block's, and what is left of them has room.
inline void check_registers(const ChannelRequest& r, const ChannelPlan& plan) {
  const normact::RegisterDivision& d = plan.registers;
  const int64_t elements = r.geometry.places * (r.geometry.channels / r.geometry.groups);
  const int64_t own = int64_t{d.width} * d.accesses, teams = plan.threads / d.lanes;
  CHECK_EQ(d.lanes & (d.lanes - 1), 0);
  CHECK(d.lanes * own >= elements && (d.lanes == 1 || d.lanes / 2 * own < elements));
  CHECK(d.accesses == 1 || d.accesses / 2 * d.lanes * d.width <= elements);  // RegisterShare::has_access
  CHECK(own <= normact::kRegisterElements && normact::kRegisterElements % own == 0);
  CHECK(d.lanes <= 32 || own == normact::kRegisterElements);  // several warps have one sample at a time
  CHECK(plan.threads <= (own == normact::kRegisterElements ? normact::kMostRegisterThreads : normact::kChannelThreads));
  CHECK(plan.threads % 32 == 0 && d.tile >= 1 && d.lines >= 1 && d.tile * d.lines <= teams);
  CHECK(d.tile * d.tiles >= r.geometry.groups && d.tile * (d.tiles - 1) < r.geometry.groups);
  const int64_t at_once = d.lines * (normact::kRegisterElements / own), parts = plan.batches;
  CHECK(d.samples_a_part % at_once == 0 && d.samples_a_part / d.lines <= 128);  // fp32 bears sums of as many
  CHECK(parts * d.samples_a_part >= r.geometry.samples && (parts - 1) * d.samples_a_part < r.geometry.samples);
  CHECK_EQ(plan.blocks, parts * d.tiles);
  CHECK(plan.counter_bytes == 0 && !plan.waits_together() && plan.scratch_bytes <= kHopper.shared_memory_block);
  const int64_t pair = 2 * accumulator_bytes(r.dtype);
  if (!r.channel_sums && !r.averages) return;
  CHECK(plan.scratch_bytes >= (r.channel_sums ? own : 1) * plan.threads * pair);
  CHECK(plan.workspace_bytes >= static_cast<size_t>(parts * r.geometry.channels * pair));
}

/// Chunks have all batches, and leave few entries.
inline void check_chunks(const ChannelRequest& r, const ChannelPlan& plan) {
  const int64_t parts = r.channel_sums ? plan.parts : 1;
  if (plan.chunks == 0) {
    const bool sums = r.set == ChannelSet::group && r.passes == ChannelPasses::both && (r.channel_sums || r.averages);
    CHECK(!sums || plan.batches * parts <= 1024 || plan.batches < 32);
    return;
  }
  CHECK(plan.chunks * plan.batches_a_chunk >= plan.batches && (plan.chunks - 1) * plan.batches_a_chunk < plan.batches);
  CHECK(plan.chunks == 1 || plan.chunks * parts <= 1024);
  const int64_t bytes = plan.chunks * r.geometry.channels * parts * 2 * accumulator_bytes(r.dtype);
  CHECK(plan.workspace_bytes >= plan.chunk_entries + static_cast<size_t>(bytes));
  CHECK(plan.chunk_entries >= plan.finals && plan.chunk_entries >= plan.counters + plan.counter_bytes);
  CHECK(!plan.gradients_beside());
}

/// What is true of a plan that has no items; false if it has.
inline bool check_without_items(const ChannelRequest& r, const ChannelPlan& plan) {
  check_chunks(r, plan);
  switch (plan.order) {
    case ChannelOrder::launches: check_launches(r, plan); return true;
    case ChannelOrder::slabs: check_slabs(r, plan); return true;
    case ChannelOrder::rings: check_rings(r, plan); return true;
    case ChannelOrder::registers: check_registers(r, plan); return true;
    default: return false;
  }
}

/// Every channel is in a tile, every unit in a part, every group in one slab, and the wave has its slabs.
inline void check_division(const ChannelForward& p) {
  const ChannelPlan plan = plan_of(p);
  if (check_without_items(request_of(p, 0), plan)) return;
  const normact::ChannelGeometry g =
      plan.access == ChannelAccess::columns ? normact::columns_of(p.geometry) : p.geometry;
  const int64_t channels = g.channels, per_group = channels / plan.groups;
  CHECK_EQ(plan.groups, g.groups);
  CHECK(plan.tile * plan.tiles >= channels && plan.tile * (plan.tiles - 1) < channels);
  CHECK(plan.units_a_part * plan.parts >= plan.units && plan.units_a_part * (plan.parts - 1) < plan.units);
  const int64_t slabs_a_batch = plan.slabs / plan.batches;
  CHECK_EQ(slabs_a_batch * plan.batches, plan.slabs);
  CHECK(slabs_a_batch * plan.tiles_a_slab >= plan.tiles);
  CHECK(slabs_a_batch == 1 || plan.tiles_a_slab * plan.tile % per_group == 0);
  CHECK(plan.stacks_a_slab() * plan.tiles_an_item >= plan.tiles_a_slab);
  CHECK(plan.slabs_a_wave >= 1 && plan.blocks >= 1);
  CHECK(plan.lanes * plan.lines <= normact::kChannelThreads);
  if (plan.order == ChannelOrder::kept) check_kept(p, plan);
}

inline ChannelBackward backward(const ChannelForward& p) {
  ChannelBackward b{};
  static_cast<normact::ChannelProblem&>(b) = p;
  b.x = b.dy = b.dx = p.x;
  b.mean.data = b.rstd.data = memory;
  return b;
}

inline ChannelPlan plan_of(const ChannelBackward& p) {
  const ChannelRequest request = request_of(p, ChannelPasses::both, 0);
  const ChannelPlan plan = plan_channel(request, kHopper, ChannelTuning{});
  check_without_items(request, plan);
  return plan;
}
