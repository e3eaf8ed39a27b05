// SPDX-License-Identifier: Apache-2.0
// Plans whose bands of channels (batch norm of small planes that are not whole packs, by columns) lie in the shared
// memory of a block or of a cluster of blocks, each of which has one, does all with it and ends: slabs with
// ChannelPlan::bands. A multiprocessor has several of them, so that some read while others compute or write. All limits
// are from an H100, bf16.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kLeastRoom = 2;  // blocks of a multiprocessor, where they come in turns

struct BandSlabs {
  int64_t sets, rows;
  int64_t lanes, lines;
  int log;     // of the blocks of a cluster
  bool keeps;  // slopes
  int64_t accesses;
  int64_t room;  // blocks of a multiprocessor

  int64_t blocks() const { return int64_t{1} << log; }
};

/// A forward keeps an addend, too.
int64_t kept_bytes_of(const ChannelRequest& r, const BandSlabs& of) {
  const int64_t tensors = r.kept > 1 ? r.kept + (of.keeps ? 1 : 0) : r.staged;
  return tensors * of.accesses * kChannelThreads * kPackBytes;
}
/// What each thread leaves of two channels.
int64_t sum_bytes_of(const ChannelRequest& r) { return 4 * kChannelThreads * accumulator_bytes(r.dtype); }

/// Fills in the rest of a division by cluster; false if it is none, or does not fit.
bool divide(const ChannelRequest& r, const DeviceInfo& device, BandSlabs* of) {
  if (of->log > 0 && device.active_clusters[of->log] < 1) return false;
  const int64_t rounds = ceil_div(of->rows, of->lines);
  of->accesses = ceil_div(rounds, of->blocks());
  if (ceil_div(rounds, of->accesses) != of->blocks() || of->accesses > kMostSlabAccesses) return false;
  const int64_t shared = kept_bytes_of(r, *of) + sum_bytes_of(r) + slab_bits_bytes(r, of->accesses);
  if (shared > device.shared_memory_block) return false;
  const int64_t all = device.shared_memory_block + kStaticSharedReserve + kBlockReserve;
  const int64_t most = r.kept > 1 ? kBandBackwardBlocks : kBandForwardBlocks;  // there are registers for
  of->room = std::min(all / (shared + kBandStaticBytes + kBlockReserve), most);
  return true;
}

/// The least clusters that leave no multiprocessor idle, and some blocks to each that has more than one after the
/// other; false if there are none.
bool divide_any(const ChannelRequest& r, const DeviceInfo& device, bool keeps, BandSlabs* of) {
  of->keeps = keeps;
  for (of->log = 0; int64_t{1} << of->log <= kMostSlabBlocks; ++of->log) {
    if (!divide(r, device, of)) continue;
    if (larger_clusters_help(r, device, of->sets, of->rows * of->lanes * kPackBytes, of->log + 1)) continue;
    const bool at_once = of->sets * of->blocks() <= multiprocessors_of(r, device) * of->room;
    if (at_once || of->room >= kLeastRoom) return true;
  }
  return false;
}

}  // namespace

bool plan_band_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* to) {
  if (r.passes != ChannelPasses::both || r.access != ChannelAccess::columns) return false;
  const int64_t width = width_of(r), places = group_channels(r), band = std::lcm(width, places);
  if (places < width) return false;  // packs have elements of more than two channels
  BandSlabs of{};
  of.sets = r.geometry.channels / band;
  of.rows = r.geometry.samples;
  of.lanes = band / width;
  of.lines = kChannelThreads / of.lanes;
  if (r.marks && !marks_rows(r, of.lanes)) return false;
  if (!(r.slopes && divide_any(r, device, true, &of)) && !divide_any(r, device, false, &of)) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.bands = true;
  plan.lanes = static_cast<int>(of.lanes);
  plan.tile = static_cast<int>(band);
  plan.lines = static_cast<int>(of.lines);
  plan.lines_together = 1;
  plan.batches = 1;
  plan.groups = r.geometry.groups;
  plan.units = of.rows;
  plan.units_a_part = of.accesses * of.lines;
  plan.parts = 1;
  set_slabs(of.sets, of.blocks(), of.accesses, of.keeps, kept_bytes_of(r, of), &plan);
  plan.scratch_bytes = static_cast<int>(sum_bytes_of(r));
  plan.bits_bytes = static_cast<int>(slab_bits_bytes(r, of.accesses));
  plan.mask_with_y = r.marks;
  set_slab_workspace(r, 0, &plan);
  return true;
}

}  // namespace normact
