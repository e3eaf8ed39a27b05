// SPDX-License-Identifier: Apache-2.0
// Plans whose sets of planes go one after the other through the shared memory of clusters (ChannelOrder::rings): too
// large for all of x to be on the chip, or large enough for a turn to be worth its exchange.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int kMostLog = 4;
constexpr int kMostStages = 4;
constexpr int kRoundsAChunk = 4;  // a batch of loads in the kernels
constexpr int64_t kMostRounds = kRingChunks * kRoundsAChunk;
constexpr int64_t kMostNumbers = int64_t{1} << 30;  // kernels count sets in 32 bits

// What a turn costs beside its bytes, in bytes that a block moves in that time: by the sets that are there or on their
// way (1, 2, more), and by the blocks of a cluster. Fitted to 13 shapes, each in all clusters (H200, bf16).
constexpr int64_t kStageBytes[] = {60 << 10, 20 << 10, 12 << 10};
constexpr int64_t kClusterBytes[] = {0, 0, 4 << 10, 7 << 10, 10 << 10};
constexpr double kLeastBlocks = 0.6;  // of the multiprocessors, that together reach memory's full speed

struct Rings {
  RingDivision division;
  int log;  // of the blocks of a cluster
  int64_t clusters;
  int64_t turn_bytes;  // that a block moves
  double time;         // bytes of all
};

/// Threads that share the packs of a block as evenly as whole warps can, in few rounds.
void share_packs(int64_t packs, RingDivision* d) {
  constexpr int64_t kThreads = int64_t{kClusterWarps} * kWarp;
  const int64_t least = ceil_div(packs, kThreads);
  int64_t best = 0;
  for (int64_t rounds = least; rounds <= least + std::max<int64_t>(1, least / 4); ++rounds) {
    const int64_t warps = ceil_div(packs, rounds * kWarp);
    if (best != 0 && warps * kWarp * rounds >= best) continue;
    best = warps * kWarp * rounds;
    d->warps = static_cast<int>(warps);
    d->rounds = static_cast<int>(rounds);
  }
  d->threads = d->warps * kWarp;
  d->packs_a_block = d->threads * d->rounds;
  d->rounds_a_chunk = std::min(d->rounds, kRoundsAChunk);
  d->chunks = (d->rounds + d->rounds_a_chunk - 1) / d->rounds_a_chunk;
}

/// Channels of a set that has several; else 0.
int64_t several_channels(const ChannelRequest& r) { return group_channels(r) > 1 ? group_channels(r) : 0; }

/// Where sets have several channels: how many a block has a part of, and in how many blocks one lies, at most.
void share_channels(const ChannelRequest& r, int64_t blocks, RingDivision* d) {
  const int64_t channels = several_channels(r), run = r.geometry.places / width_of(r), share = d->packs_a_block;
  const int64_t uneven = share % run == 0 || run % share == 0 ? 0 : 1;
  d->channels = static_cast<int>(std::min(channels, channels > 0 ? ceil_div(share, run) + uneven : 0));
  d->parts = channels > 0 ? static_cast<int>(std::min(blocks, ceil_div(run, share) + uneven)) : 1;
}

/// Shared memory of a block beside the ring: parameters of channels, and in a backward the sums of rounds of a warp.
int64_t bytes_beside(const ChannelRequest& r, const RingDivision& d) {
  if (d.channels == 0) return 0;
  const int64_t pair = 2 * accumulator_bytes(r.dtype), sums = r.kept > 1 ? kRingSums * d.rounds * d.warps : 0;
  return ((d.stages + 1) * d.channels + sums) * pair;
}

/// Fills in the rest of a division by the cluster; false if a set does not fit.
bool divide(const ChannelRequest& r, const DeviceInfo& device, int64_t sets, int64_t packs, Rings* of) {
  const int64_t blocks = int64_t{1} << of->log;
  const int64_t most = device.active_clusters[of->log] - ceil_div(r.sm_margin, blocks);
  const int64_t share = ceil_div(packs, blocks);
  if (most < 1 && of->log > 0) return false;  // sm_margin
  if (device.active_clusters[of->log] < 1 || share > kMostRounds * kClusterWarps * kWarp) return false;
  RingDivision& d = of->division;
  share_packs(share, &d);
  if ((blocks - 1) * d.packs_a_block >= packs) return false;  // a block would have nothing
  share_channels(r, blocks, &d);
  if (d.channels > kRingChannels) return false;
  const int64_t stage = int64_t{d.packs_a_block} * kPackBytes * r.staged;
  d.stages = std::min(kMostStages, kRingChunks / d.chunks);
  while (d.stages > 0 && d.stages * stage + bytes_beside(r, d) > device.shared_memory_block) --d.stages;
  if (d.stages < 1) return false;
  of->clusters = std::min(sets, std::max<int64_t>(1, most));
  const int64_t turns = ceil_div(sets, of->clusters);
  of->turn_bytes = int64_t{d.packs_a_block} * kPackBytes * (r.staged + 1);
  const int64_t cost = of->turn_bytes + kStageBytes[std::min(d.stages, 3) - 1] + kClusterBytes[of->log];
  const double working = std::max(static_cast<double>(of->clusters * blocks), kLeastBlocks * device.multiprocessors);
  of->time = static_cast<double>(turns * cost) * working;
  return true;
}

}  // namespace

bool plan_rings(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* to) {
  const ChannelGeometry& g = r.geometry;
  if (device.compute_capability < 90 || r.passes != ChannelPasses::both) return false;
  if (r.access != ChannelAccess::planes || !r.aligned) return false;
  const int64_t several = several_channels(r);
  if (g.places * size_of(r.dtype) < (several > 0 ? tuning.ring_channel_bytes : tuning.ring_plane_bytes)) return false;
  // Rounds of a warp belong to one channel each.
  if (several > 0 && (r.beside || (r.kept > 1 && g.places / width_of(r) % kWarp != 0))) return false;
  const bool channel = r.set == ChannelSet::channel;
  if (r.mask && !masks_whole_packs(r)) return false;
  const int64_t sets = batches_of(r) * g.groups,
                packs = g.places / width_of(r) * (channel ? g.samples : std::max<int64_t>(several, 1));
  if (sets * packs * kPackBytes < tuning.ring_bytes || sets > kMostNumbers) return false;
  if (packs > kMostRounds * kClusterWarps * kWarp << kMostLog) return false;
  Rings best{};
  const bool pairs = several > 0 && sets * packs * kPackBytes < tuning.ring_wide_bytes;
  for (int log = 0; log <= (pairs ? 1 : several > 0 ? 3 : kMostLog); ++log) {
    Rings other{{}, log, 0, 0, 0};
    if (!divide(r, device, sets, packs, &other)) continue;
    if (best.clusters == 0 || other.time < best.time) best = other;
  }
  if (best.clusters == 0) return false;
  const int64_t turns = ceil_div(sets, best.clusters);
  if (several > 0 && best.turn_bytes < tuning.ring_group_bytes) return false;
  if (several > 0 && (best.clusters << best.log) * 100 < tuning.ring_group_blocks * device.multiprocessors)
    return false;
  if (several == 0 && best.turn_bytes < tuning.ring_turn_bytes && turns > tuning.ring_small_turns) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.order = ChannelOrder::rings;
  plan.whole = true;
  plan.mask = ChannelMask::together;
  plan.mask_with_y = r.marks;
  plan.batches = batches_of(r);
  plan.groups = g.groups;
  plan.units = packs;
  plan.parts = best.division.parts;
  plan.reduce = plan.apply = {sets, g.groups, packs, 1, packs, kChannelThreads};
  plan.ring = best.division;
  plan.cluster = 1 << best.log;
  plan.blocks = best.clusters * plan.cluster;
  plan.kept_bytes = best.division.stages * best.division.packs_a_block * kPackBytes * r.staged;
  plan.parameter_bytes = static_cast<int>(bytes_beside(r, best.division));
  // Moments that are averaged, or sums of the channels of each sample.
  const bool leaves = r.averages || (r.channel_sums && !channel);
  const int64_t entries = batches_of(r) * g.channels * plan.parts;
  plan.finals = plan.counters = plan.workspace_bytes =
      static_cast<size_t>(round_up(leaves ? entries * r.entry_bytes : 0, 256));
  return true;
}

}  // namespace normact
