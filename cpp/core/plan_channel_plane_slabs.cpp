// SPDX-License-Identifier: Apache-2.0
// Plans whose sets of planes lie in the shared memory of a block or of a cluster of blocks, each of which has one, does
// all with it and ends (ChannelOrder::slabs, planes of whole packs). A multiprocessor has several of them, so that some
// read while others compute or write. All limits are from an H200, bf16 and fp32.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kForwardPacks = 8;      // of a thread, about: what each does besides is as much as some packs are
constexpr int64_t kBackwardPacks = 4;     // the same; a pack is more work
constexpr int64_t kForwardThreads = 256;  // of a block, while these have no more than so many packs each:
constexpr int64_t kForwardAccesses = 20;
constexpr int64_t kLeastPacks = 128;  // of a set: a warp has some each
constexpr int kForwardRoom = 3;       // blocks of a multiprocessor, at least, where they come in turns
constexpr int kBackwardRoom = 2;
constexpr int kKeptRoom = 3;                     // the same, for slopes to be worth their room
constexpr int64_t kMostSets = int64_t{1} << 27;  // kernels count blocks in 32 bits
constexpr int64_t kSumsBytes = 8 << 20;          // x, at least, where sums of channels take a further launch,
constexpr int64_t kSlopeSumsBytes = 2 << 20;     // or of these, where slopes of 16 bits are not computed twice

struct PlaneSlabs {
  int64_t sets, packs;  // of a set
  int64_t planes;       // of a set
  int64_t run;          // packs of a plane
  int log;              // of the blocks of a cluster
  bool keeps;           // slopes
  int64_t threads, packs_a_block, accesses;
  int64_t parameter_bytes, sum_bytes;
  int64_t room;  // blocks of a multiprocessor
  bool at_once;  // all blocks run at the same time

  int64_t blocks() const { return int64_t{1} << log; }
};

int64_t kept_bytes_of(const ChannelRequest& r, const PlaneSlabs& of) {
  return (r.kept + (of.keeps ? 1 : 0)) * of.accesses * of.threads * kPackBytes;
}

/// As many blocks a set as leave no multiprocessor idle that could have one.
int log_of(const ChannelRequest& r, const DeviceInfo& device, const PlaneSlabs& of) {
  int log = 0;
  while (larger_clusters_help(r, device, of.sets, of.packs * kPackBytes, log + 1)) ++log;
  return log;
}

/// Threads that share a block's packs, as evenly as whole warps can; however many sets there are: what a sample comes
/// to depends on its batch by the cluster alone.
void set_threads(bool back, PlaneSlabs* of) {
  const int64_t even = of->packs_a_block / (back ? kBackwardPacks : kForwardPacks);
  const bool many = back || of->packs_a_block > kForwardAccesses * kForwardThreads;
  const int64_t most = many ? kMostPlaneSlabThreads : kForwardThreads;
  const int64_t threads = std::clamp<int64_t>(power_of_two_from(even / 2 + 1), kWarp, most);
  of->accesses = ceil_div(of->packs_a_block, threads);
  of->threads = round_up(ceil_div(of->packs_a_block, of->accesses), kWarp);
}

/// Fills in the rest of a division by cluster; false if it is none, or does not fit.
bool divide(const ChannelRequest& r, const DeviceInfo& device, PlaneSlabs* of) {
  const bool several = group_channels(r) > 1;
  const int64_t share = ceil_div(of->packs, of->blocks());
  of->packs_a_block = several ? ceil_div(of->planes, of->blocks()) * of->run : round_up(share, kWarp);
  if ((of->blocks() - 1) * of->packs_a_block >= of->packs) return false;
  const bool back = r.kept > 1;
  set_threads(back, of);
  if (of->accesses > kMostSlabAccesses) return false;
  const int64_t pair = 2 * accumulator_bytes(r.dtype), planes = several ? of->packs_a_block / of->run : 0;
  of->parameter_bytes = round_up(planes * pair, kPackBytes);
  of->sum_bytes = round_up((of->threads / kWarp + (back ? planes : 0)) * pair, kPackBytes);
  const int64_t shared = kept_bytes_of(r, *of) + of->parameter_bytes + of->sum_bytes;
  if (shared > device.shared_memory_block) return false;
  of->room = std::min((device.shared_memory_block + kBlockReserve) / (shared + kBlockReserve),
                      2 * kMostPlaneSlabThreads / of->threads);
  of->at_once = of->log > 0 || of->sets <= multiprocessors_of(r, device) * of->room;
  return true;
}

/// The division by the largest cluster of at most 1 << log blocks that there is one by; false if there is none.
bool divide_up_to(const ChannelRequest& r, const DeviceInfo& device, int log, bool keeps, PlaneSlabs* of) {
  of->keeps = keeps;
  for (of->log = log; of->log >= 0; --of->log) {
    if (divide(r, device, of)) return true;
  }
  return false;
}

/// Whether a set's blocks overlap with others, or all are there at once, so that this is faster than teams whose sets
/// come in one after the other, and than reading twice.
bool is_worth(const ChannelRequest& r, const PlaneSlabs& of) {
  if (r.set == ChannelSet::group && r.channel_sums) {
    const int64_t least = of.keeps ? kSlopeSumsBytes : kSumsBytes;
    if (of.sets * of.packs * kPackBytes < least) return false;
  }
  return of.at_once || of.room >= (r.kept > 1 ? kBackwardRoom : kForwardRoom);
}

}  // namespace

bool plan_plane_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* to) {
  const ChannelGeometry& g = r.geometry;
  if (r.passes != ChannelPasses::both || r.access != ChannelAccess::planes || !r.aligned || r.beside) return false;
  PlaneSlabs of{};
  of.run = g.places / width_of(r);
  of.planes = r.set == ChannelSet::channel ? g.samples : group_channels(r);
  of.packs = of.planes * of.run;
  of.sets = batches_of(r) * g.groups;
  // More than any division takes.
  if (of.packs < kLeastPacks || of.packs > kMostSlabBlocks * device.shared_memory_block / kPackBytes) return false;
  if (of.sets > kMostSets) return false;
  if (group_channels(r) > 1 && r.kept > 1 && of.run % kWarp != 0) return false;  // a warp's packs are of one channel
  const int log = log_of(r, device, of);
  const bool keeps = r.slopes && divide_up_to(r, device, log, true, &of) && (of.at_once || of.room >= kKeptRoom);
  if (!keeps && !divide_up_to(r, device, log, false, &of)) return false;
  if (!is_worth(r, of)) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.whole = true;
  plan.threads = static_cast<int>(of.threads);
  plan.batches = batches_of(r);
  plan.groups = g.groups;
  plan.units = of.packs;
  plan.units_a_part = of.packs_a_block;
  plan.parts = 1;
  set_slabs(of.sets, of.blocks(), of.accesses, of.keeps, kept_bytes_of(r, of), &plan);
  plan.parameter_bytes = static_cast<int>(of.parameter_bytes);
  plan.scratch_bytes = static_cast<int>(of.sum_bytes);
  set_slab_workspace(r, 0, &plan);
  return true;
}

}  // namespace normact
