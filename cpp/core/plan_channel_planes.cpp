// SPDX-License-Identifier: Apache-2.0
// Plans whose passes are launches of their own (ChannelOrder::launches): planes of whole packs, so that a block needs
// little beside its loads and stores, and nobody waits within a launch.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 30;  // kernels count parts in 32 bits
constexpr int64_t kMostParts = 512;                 // of a set: each warp adds up what they leave
constexpr int64_t kMostPacks = 64;                  // of a part, a thread: fp32 bears sums of some hundred elements

/// Cuts sets into parts of some packs a thread. small: whether a few threads may take a set.
void cut(const ChannelTuning& tuning, bool small, PlaneDivision* to) {
  PlaneDivision& d = *to;
  d.parts = 1;
  d.team = kChannelThreads;
  if (small && d.packs <= tuning.team_packs) {
    d.team = static_cast<int>(std::clamp<int64_t>(power_of_two_from(ceil_div(d.packs, 4)), 1, kWarp));
  } else if (d.packs > tuning.whole_packs * kChannelThreads || d.sets < tuning.least_sets) {
    const int64_t even = d.sets * d.packs / (kChannelThreads * tuning.plane_parts);
    const int64_t a_thread = std::clamp(even, tuning.least_packs, tuning.most_packs);
    d.parts = std::min(ceil_div(d.packs, a_thread * kChannelThreads), kMostParts);
  }
  d.packs_a_part = ceil_div(d.packs, d.parts);
  d.parts = ceil_div(d.packs, d.packs_a_part);
}

bool fits(const PlaneDivision& d) {
  return d.numbers() < kMostNumbers && d.packs_a_part <= kMostPacks * kChannelThreads;
}

/// Whether it is faster to read x once, with blocks that wait for each other: of large planes, and sets that few blocks
/// share, waiting is short beside reading.
bool is_better_kept(const ChannelRequest& r, const ChannelTuning& tuning, const PlaneDivision& sets) {
  const int64_t set_bytes = sets.packs * kPackBytes;
  return r.passes == ChannelPasses::both && !r.beside &&
         r.geometry.places * size_of(r.dtype) >= tuning.kept_plane_bytes &&
         sets.sets * set_bytes >= tuning.kept_bytes &&
         set_bytes <= (r.kept > 1 ? tuning.kept_sets_bytes : tuning.kept_set_bytes);
}

}  // namespace

bool plan_planes(const ChannelRequest& r, const ChannelTuning& tuning, ChannelPlan* to) {
  const ChannelGeometry& g = r.geometry;
  if (r.access != ChannelAccess::planes || !r.aligned) return false;
  const bool channel = r.set == ChannelSet::channel;
  if (r.mask && !masks_whole_packs(r)) return false;
  const int64_t plane = g.places / width_of(r), of_group = group_channels(r);
  PlaneDivision apply{};
  apply.sets_a_batch = g.groups;
  apply.sets = batches_of(r) * g.groups;
  apply.packs = of_group * plane * (channel ? g.samples : 1);
  if (is_better_kept(r, tuning, apply)) return false;
  if (of_group > 1 && apply.packs < kChannelThreads) return false;  // a block for less than a pack a thread
  cut(tuning, of_group == 1, &apply);
  PlaneDivision reduce = apply;
  if (r.channel_sums && of_group > 1) {
    reduce.sets_a_batch = g.channels;
    reduce.sets = g.samples * g.channels;
    reduce.packs = plane;
    cut(tuning, true, &reduce);
  }
  if (!fits(apply) || !fits(reduce)) return false;
  // A thread of a block brings in what belongs to a channel of its part.
  if (of_group > 1 && apply.packs_a_part / plane + 2 > kChannelThreads) return false;
  if (r.averages && reduce.parts > 1) return false;  // a set's only entry becomes what is averaged
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.order = ChannelOrder::launches;
  plan.whole = true;
  plan.mask = ChannelMask::together;
  plan.mask_with_y = r.marks;
  plan.batches = batches_of(r);
  plan.groups = g.groups;
  plan.units = apply.packs;
  plan.parts = reduce.parts;
  plan.reduce = reduce;
  plan.apply = apply;
  const int64_t entries = r.passes == ChannelPasses::apply ? 0 : reduce.numbers() * r.entry_bytes;
  plan.finals = plan.counters = plan.workspace_bytes = static_cast<size_t>(round_up(entries, 256));
  return true;
}

}  // namespace normact
