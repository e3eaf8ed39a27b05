// SPDX-License-Identifier: Apache-2.0
// Plans whose slabs lie in the shared memory of a block or of a cluster of blocks, each of which has one, does all with
// it and ends: for tensors that a device takes at once, or in few turns.
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

struct Slabs {
  int64_t channels;  // of a slab
  int log;           // of the blocks of a cluster
  bool keeps;        // slopes
  int64_t lines, accesses, clusters;
  int64_t turns;  // clusters one after the other, where a block has a multiprocessor for itself
  bool alone;     // a block leaves no room for another
  double time;

  int64_t blocks() const { return int64_t{1} << log; }
};

int64_t kept_bytes_of(const ChannelRequest& r, const Slabs& of) {
  return (r.kept + (of.keeps ? 1 : 0)) * of.accesses * kAccessBytes;
}

/// Shared memory behind the packs.
int64_t parameter_bytes_of(const ChannelRequest& r, int64_t channels) {
  const int64_t numbers = r.kept > 1 ? 4 : 2;
  return round_up(channels * numbers * accumulator_bytes(r.dtype), kPackBytes);
}
int64_t sum_bytes_of(const ChannelRequest& r, const Slabs& of) {
  const int64_t pair = 2 * accumulator_bytes(r.dtype);
  return round_up((of.blocks() + 1) * of.channels * pair, kPackBytes) + of.lines * slab_sum_pitch(of.channels) * pair;
}
/// A byte for each pack, of a mask that is read.
int64_t bits_bytes_of(const ChannelRequest& r, const Slabs& of) {
  return r.mask && !r.marks ? of.accesses * kChannelThreads : 0;
}
int64_t shared_bytes_of(const ChannelRequest& r, const Slabs& of) {
  return kept_bytes_of(r, of) + parameter_bytes_of(r, of.channels) + sum_bytes_of(r, of) + bits_bytes_of(r, of);
}

/// Fills in the rest of a division by channels and cluster; false if it is none, or does not fit.
bool divide(const ChannelRequest& r, const DeviceInfo& device, int64_t rows, Slabs* of) {
  const int64_t slots = of->log == 0 ? device.multiprocessors : device.active_clusters[of->log];
  if (slots < 1) return false;
  of->lines = kChannelThreads / (of->channels / width_of(r));
  const int64_t rounds = ceil_div(rows, of->lines);
  of->accesses = ceil_div(rounds, of->blocks());
  if (ceil_div(rounds, of->accesses) != of->blocks() || of->accesses > kMostSlabAccesses) return false;
  const int64_t shared = shared_bytes_of(r, *of);
  if (shared > device.shared_memory_block) return false;
  of->clusters = batches_of(r) * (r.geometry.channels / of->channels);
  of->turns = ceil_div(of->clusters, slots);
  of->alone = 2 * (shared + kBlockReserve) > device.shared_memory_block + kBlockReserve;
  const bool overlap = of->turns > 1 && !of->alone;
  const double again = r.slopes && !of->keeps ? kSlopeAccesses : 0;
  const double turn = (r.kept + again) * static_cast<double>(of->accesses) + kBlockAccesses;
  const double ends = kRowEndBytes / static_cast<double>(of->channels * size_of(r.dtype));
  of->time = static_cast<double>(of->turns) * turn * (1 + ends) * (overlap ? kOverlap : 1) + kClusterAccesses[of->log];
  return true;
}

/// Turns up to which this is faster than blocks that keep one item after the other, or than reading twice (H200, bf16).
int64_t most_turns(const ChannelRequest& r, const Slabs& of) {
  if (r.access == ChannelAccess::columns) return (r.kept > 1 || r.beside) && of.alone ? 2 : 4;
  if (r.kept > 1 && of.log == kMostLog) return 1;
  if (group_channels(r) > 1) return r.kept > 1 && !r.slopes ? 4 : 5;
  return r.kept == 1 ? 2 : 1;
}

}  // namespace

bool plan_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* to) {
  if (r.passes != ChannelPasses::both || !goes_by_rows(r.access)) return false;
  if (r.mask && r.geometry.places_after != 1) return false;
  const int64_t width = width_of(r);
  const int64_t rows = r.geometry.places * (r.set == ChannelSet::channel ? r.geometry.samples : 1);
  const int64_t least = std::lcm(width, group_channels(r));
  const int64_t packs = batches_of(r) * bytes_of(r, r.geometry.channels) / kPackBytes;
  if (least > kChannelThreads * width) return false;
  // More than any division takes: planning large tensors is to cost nothing here.
  if (packs > 8 * kMostSlabAccesses * device.multiprocessors * kChannelThreads) return false;
  // Columns begin wide: twice that leaves half as many slabs, which may then all be there at once.
  const int64_t wide = r.access == ChannelAccess::columns ? 2 * least : least;
  const int64_t most = std::min(std::max(wide, kMostRowBytes / size_of(r.dtype)), kChannelThreads * width);
  Slabs best{};
  for (int64_t channels = least; channels <= std::min(most, r.geometry.channels); channels *= 2) {
    if (r.geometry.channels % channels != 0 || (r.marks && !marks_rows(r, channels / width))) continue;
    if (channels * size_of(r.dtype) < kLeastRowBytes && r.geometry.channels % (2 * channels) == 0) continue;
    for (int log = 0; log <= kMostLog; ++log) {
      for (const bool keeps : {r.slopes, false}) {
        Slabs other{channels, log, keeps, 0, 0, 0, 0, false, 0};
        if (!divide(r, device, rows, &other)) continue;
        if (best.clusters == 0 || other.time < best.time) best = other;
        if (!r.slopes) break;
      }
    }
  }
  if (best.clusters == 0 || best.turns > most_turns(r, best)) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.order = ChannelOrder::slabs;
  plan.lanes = static_cast<int>(best.channels / width);
  plan.tile = static_cast<int>(best.channels);
  plan.lines = static_cast<int>(best.lines);
  plan.lines_together = 1;
  plan.batches = batches_of(r);
  plan.groups = r.geometry.groups;
  plan.units = rows;
  plan.units_a_part = best.accesses * best.lines;
  plan.parts = 1;
  plan.slabs = best.clusters;
  plan.cluster = static_cast<int>(best.blocks());
  plan.blocks = best.clusters * best.blocks();
  plan.accesses = static_cast<int>(best.accesses);
  plan.keeps_slopes = best.keeps;
  plan.kept_bytes = static_cast<int>(kept_bytes_of(r, best));
  plan.parameter_bytes = static_cast<int>(parameter_bytes_of(r, best.channels));
  plan.scratch_bytes = static_cast<int>(sum_bytes_of(r, best));
  plan.bits_bytes = static_cast<int>(bits_bytes_of(r, best));
  plan.mask = ChannelMask::together;
  plan.mask_with_y = r.marks;
  set_slab_workspace(r, &plan);
  return true;
}

}  // namespace normact
