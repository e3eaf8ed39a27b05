// SPDX-License-Identifier: Apache-2.0
// Plans whose slabs lie in the shared memory of a block, of a cluster of blocks, or of a team of more of them, which
// have one, do all with it and end: for tensors that a device takes at once, or in few turns.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kAccessBytes = int64_t{kChannelThreads} * kPackBytes;  // of all threads, of a tensor
constexpr int64_t kLeastRowBytes = 32;  // where there are wider ones: memory comes in sectors
constexpr int64_t kMostRowBytes = 256;  // of a slab, but for the narrowest; wider ones gain nothing

// What the kernels' time is taken for, in accesses of a thread (fitted to 23 shapes, H200, bf16): what a block does
// beside its accesses, what clusters of 1, 2, 4 and 8 blocks cost, what is lost at the ends of rows, and what two
// blocks of a multiprocessor gain by overlapping.
constexpr double kBlockAccesses = 4, kClusterAccesses[] = {0, 0.7, 4, 6}, kRowEndBytes = 8, kOverlap = 0.8;
constexpr double kSlopeAccesses = 0.35;  // slopes that are computed twice
constexpr int kMostLog = 3;
// Teams: what one costs, and each pair of numbers that a thread takes of it (H100).
constexpr double kTeamAccesses = 19, kHandedAccesses = 1;
constexpr double kMaskRowBytes = 40;  // bits of a mask are a part of a sector for each row: as much as so many bytes
constexpr int64_t kLeastTeamTensor = 2 << 20;                   // bytes of x
constexpr int64_t kMostHanded = 1200;                           // pairs that a block takes
constexpr int64_t kLeastTeamBytes = 64, kLeastMaskBytes = 128;  // of a row of its slab, and where there is a mask

struct Slabs {
  int64_t channels;  // of a slab
  int log;           // of the blocks of a cluster
  int64_t team;      // blocks of a team; 0: they are a cluster
  bool keeps;        // slopes
  int64_t lines, accesses, clusters;
  int64_t turns;  // clusters one after the other, where a block has a multiprocessor for itself
  bool alone;     // a block leaves no room for another
  double time;

  int64_t blocks() const { return team > 0 ? team : int64_t{1} << log; }
};

int64_t kept_bytes_of(const ChannelRequest& r, const Slabs& of) {
  return (r.kept + (of.keeps ? 1 : 0)) * of.accesses * kAccessBytes;
}

/// Of a slab.
int64_t groups_of(const ChannelRequest& r, const Slabs& of) {
  return of.channels / std::max<int64_t>(1, group_channels(r));
}

/// Shared memory behind the packs.
int64_t parameter_bytes_of(const ChannelRequest& r, int64_t channels) {
  const int64_t numbers = r.kept > 1 ? 4 : 2;
  return round_up(channels * numbers * accumulator_bytes(r.dtype), kPackBytes);
}
int64_t sum_bytes_of(const ChannelRequest& r, const Slabs& of) {
  const int64_t pair = 2 * accumulator_bytes(r.dtype), groups = groups_of(r, of);
  const int64_t totals = groups == of.channels ? 0 : of.channels;
  const int64_t pitch = slab_sum_pitch(of.channels) * pair;
  if (of.team == 0) return (slab_entries(of.blocks(), groups) + totals) * pair + of.lines * pitch;
  const int64_t sums = team_sum_lines(of.channels / width_of(r), of.lines) * pitch;
  return (slab_entries(1, groups) + totals) * pair + std::max(sums, round_up(of.team * groups * pair, kPackBytes));
}
int64_t shared_bytes_of(const ChannelRequest& r, const Slabs& of) {
  return kept_bytes_of(r, of) + parameter_bytes_of(r, of.channels) + sum_bytes_of(r, of) +
         slab_bits_bytes(r, of.accesses);
}

/// What a block does, in accesses of a thread.
double turn_of(const ChannelRequest& r, const Slabs& of) {
  const double again = r.slopes && !of.keeps ? kSlopeAccesses : 0;
  const double turn = (r.kept + again) * static_cast<double>(of.accesses) + kBlockAccesses;
  return turn * (1 + kRowEndBytes / static_cast<double>(of.channels * size_of(r.dtype)));
}

/// The time of a division beside one of another kind, whose rows are not as wide.
double time_beside(const ChannelRequest& r, const Slabs& of) {
  return r.mask ? of.time * (1 + kMaskRowBytes / static_cast<double>(of.channels * size_of(r.dtype))) : of.time;
}

/// Whether the accesses fit; sets whether one block alone does.
bool fits(const ChannelRequest& r, const DeviceInfo& device, Slabs* of) {
  const int64_t shared = shared_bytes_of(r, *of);
  of->alone = 2 * (shared + kBlockReserve) > device.shared_memory_block + kBlockReserve;
  return of->accesses <= kMostSlabAccesses && shared <= device.shared_memory_block;
}

/// Fills in the rest of a division by channels and cluster; false if it is none, or does not fit.
bool divide(const ChannelRequest& r, const DeviceInfo& device, int64_t rows, Slabs* of) {
  const int64_t slots = of->log == 0 ? device.multiprocessors : device.active_clusters[of->log];
  if (slots < 1) return false;
  of->lines = kChannelThreads / (of->channels / width_of(r));
  const int64_t rounds = ceil_div(rows, of->lines);
  of->accesses = ceil_div(rounds, of->blocks());
  if (ceil_div(rounds, of->accesses) != of->blocks() || !fits(r, device, of)) return false;
  of->clusters = batches_of(r) * (r.geometry.channels / of->channels);
  of->turns = ceil_div(of->clusters, slots);
  const bool overlap = of->turns > 1 && !of->alone;
  of->time = static_cast<double>(of->turns) * turn_of(r, *of) * (overlap ? kOverlap : 1) + kClusterAccesses[of->log];
  return true;
}

/// The same of teams which together have all multiprocessors, `together` blocks each: all are there at once.
bool divide_teams(const ChannelRequest& r, const DeviceInfo& device, int64_t rows, int64_t together, Slabs* of) {
  if (of->channels * size_of(r.dtype) < (r.mask ? kLeastMaskBytes : kLeastTeamBytes)) return false;
  of->clusters = batches_of(r) * (r.geometry.channels / of->channels);
  of->lines = kChannelThreads / (of->channels / width_of(r));
  const int64_t rounds = ceil_div(rows, of->lines);
  const int64_t most = std::min(rounds, together * multiprocessors_of(r, device) / of->clusters);
  if (most < 2) return false;
  of->accesses = ceil_div(rounds, most);
  of->team = ceil_div(rounds, of->accesses);
  const int64_t handed = of->team * groups_of(r, *of);
  if (handed > kMostHanded || !fits(r, device, of) || (together > 1 && of->alone)) return false;
  of->turns = 1;
  of->time = static_cast<double>(together) * turn_of(r, *of) * (together > 1 ? kOverlap : 1) + kTeamAccesses +
             kHandedAccesses * static_cast<double>(handed) / kChannelThreads;
  return true;
}

/// Turns up to which this is faster than blocks that keep one item after the other, or than reading twice (H200, bf16).
int64_t most_turns(const ChannelRequest& r, const Slabs& of) {
  if (r.access == ChannelAccess::columns) return (r.kept > 1 || r.beside) && of.alone ? 2 : 4;
  if (r.kept > 1 && of.log == kMostLog) return 1;
  if (group_channels(r) > 1) return r.kept > 1 && !r.slopes ? 4 : 5;
  return r.kept == 1 ? 2 : 1;
}

/// The fastest division; of no channels where there is none, or other ways are faster.
Slabs best_division(const ChannelRequest& r, const DeviceInfo& device, int64_t rows) {
  const int64_t width = width_of(r), least = std::lcm(width, group_channels(r));
  // Columns begin wide: twice that leaves half as many slabs, which may then all be there at once.
  const int64_t wide = r.access == ChannelAccess::columns ? 2 * least : least;
  const int64_t most = std::min(std::max(wide, kMostRowBytes / size_of(r.dtype)), kChannelThreads * width);
  const bool small = batches_of(r) * bytes_of(r, r.geometry.channels) < kLeastTeamTensor * r.tensors;
  Slabs best{}, team{};
  const auto consider = [&](auto divide_it, Slabs* of, Slabs other) {
    for (const bool keeps : {r.slopes, false}) {
      other.keeps = keeps;
      if (divide_it(&other) && (of->clusters == 0 || other.time < of->time)) *of = other;
      if (!r.slopes) break;
    }
  };
  for (int64_t channels = least; channels <= std::min(most, r.geometry.channels); channels *= 2) {
    if (r.geometry.channels % channels != 0 || (r.marks && !marks_rows(r, channels / width))) continue;
    if (channels * size_of(r.dtype) < kLeastRowBytes && r.geometry.channels % (2 * channels) == 0) continue;
    Slabs other{};
    other.channels = channels;
    for (int log = 0; log <= kMostLog; ++log) {
      other.log = log;
      consider([&](Slabs* of) { return divide(r, device, rows, of); }, &best, other);
    }
    if (small) continue;
    other.log = 0;
    for (const int64_t together : {1, 2}) {
      consider([&](Slabs* of) { return divide_teams(r, device, rows, together, of); }, &team, other);
    }
  }
  if (best.turns > most_turns(r, best)) best.clusters = 0;
  if (team.clusters > 0 && (best.clusters == 0 || time_beside(r, team) < time_beside(r, best))) best = team;
  return best;
}

}  // namespace

bool plan_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* to) {
  if (r.passes != ChannelPasses::both || !goes_by_rows(r.access)) return false;
  if (r.mask && r.geometry.places_after != 1) return false;
  const int64_t width = width_of(r);
  const int64_t rows = r.geometry.places * (r.set == ChannelSet::channel ? r.geometry.samples : 1);
  const int64_t packs = batches_of(r) * bytes_of(r, r.geometry.channels) / kPackBytes;
  if (std::lcm(width, group_channels(r)) > kChannelThreads * width) return false;
  // More than any division takes: planning large tensors is to cost nothing here.
  if (packs > 8 * kMostSlabAccesses * device.multiprocessors * kChannelThreads) return false;
  const Slabs best = best_division(r, device, rows);
  if (best.clusters == 0) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.lanes = static_cast<int>(best.channels / width);
  plan.tile = static_cast<int>(best.channels);
  plan.lines = static_cast<int>(best.lines);
  plan.lines_together = 1;
  plan.batches = batches_of(r);
  plan.groups = r.geometry.groups;
  plan.units = rows;
  plan.units_a_part = best.accesses * best.lines;
  plan.parts = r.channel_sums && r.set == ChannelSet::group ? best.blocks() : 1;
  plan.team = best.team > 0;
  set_slabs(best.clusters, best.blocks(), best.accesses, best.keeps, kept_bytes_of(r, best), &plan);
  plan.parameter_bytes = static_cast<int>(parameter_bytes_of(r, best.channels));
  plan.scratch_bytes = static_cast<int>(sum_bytes_of(r, best));
  plan.bits_bytes = static_cast<int>(slab_bits_bytes(r, best.accesses));
  plan.mask_with_y = r.marks;
  const int64_t groups = best.clusters * groups_of(r, best);
  set_slab_workspace(r, plan.team ? best.blocks() * groups * 2 * accumulator_bytes(r.dtype) : 0, &plan);
  return true;
}

}  // namespace normact
