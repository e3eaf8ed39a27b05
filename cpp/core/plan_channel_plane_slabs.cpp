// SPDX-License-Identifier: Apache-2.0
// Plans whose sets of planes lie in the shared memory of a block or of a cluster of blocks, each of which has one, does
// all with it and ends (ChannelOrder::slabs, planes). A multiprocessor has several of them, so that some read while
// others compute or write. Planes are whole packs, or some of a group's are together. All limits are from an H200, bf16
// and fp32.
#include <cstdint>
#include <iterator>
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kForwardPacks = 8;      // of a thread, about: what each does besides is as much as some packs are
constexpr int64_t kBackwardPacks = 4;     // the same; a pack is more work
constexpr int64_t kForwardThreads = 256;  // of a block, while these have no more than so many packs each:
constexpr int64_t kForwardAccesses = 20;
constexpr int64_t kLeastPacks = 128;    // of a set: a warp has some each
constexpr int64_t kLeastCutPacks = 64;  // the same where other ways for packs cut them at the edges of planes
constexpr int64_t kMostCutPacks = 256;  // of a whole plane that is added up by words
constexpr int kForwardRoom = 3;         // blocks of a multiprocessor, at least, where they come in turns
constexpr int kBackwardRoom = 2;
constexpr int kKeptRoom = 3;                     // the same, for slopes to be worth their room
constexpr int64_t kMostSets = int64_t{1} << 27;  // kernels count blocks in 32 bits
constexpr int64_t kSumsBytes = 8 << 20;          // x, at least, where sums of channels take a further launch,
constexpr int64_t kSlopeSumsBytes = 2 << 20;     // or of these, where slopes of 16 bits are not computed twice

struct PlaneSlabs {
  int64_t sets, packs;  // of a set
  int64_t bundle;       // the least planes that are whole packs
  int64_t bundles;      // of a set
  int64_t run;          // packs of a bundle
  bool cut;             // a pack may hold the end of one plane and the beginning of the next
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
  of->packs_a_block = several ? ceil_div(of->bundles, of->blocks()) * of->run : round_up(share, kWarp);
  if ((of->blocks() - 1) * of->packs_a_block >= of->packs) return false;
  const bool back = r.kept > 1;
  set_threads(back, of);
  if (of->accesses > kMostSlabAccesses) return false;
  const int64_t pair = 2 * accumulator_bytes(r.dtype), planes = several ? of->packs_a_block / of->run * of->bundle : 0;
  of->parameter_bytes = round_up(planes * pair, kPackBytes);
  of->sum_bytes = round_up((of->threads / kWarp + (back && !of->cut ? planes : 0)) * pair, kPackBytes);
  const int64_t shared = kept_bytes_of(r, *of) + of->parameter_bytes + of->sum_bytes;
  if (shared > device.shared_memory_block) return false;
  of->room = std::min((device.shared_memory_block + kBlockReserve) / (shared + kBlockReserve),
                      2 * kMostPlaneSlabThreads / of->threads);
  of->at_once =
      of->log > 0 ? device.active_clusters[of->log] >= of->sets : of->sets <= multiprocessors_of(r, device) * of->room;
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

/// Blocks of a multiprocessor that overlap enough where sets come in turns.
int64_t wanted_room(const ChannelRequest& r) { return r.kept > 1 ? kBackwardRoom : kForwardRoom; }

/// The division by the smallest cluster of more than 1 << log blocks of which a multiprocessor has as many as overlap,
/// or else some; false if there is none.
bool divide_further(const ChannelRequest& r, const DeviceInfo& device, int log, PlaneSlabs* of) {
  of->keeps = false;
  for (int64_t room = wanted_room(r); room > 0; --room) {
    for (of->log = log + 1; of->blocks() <= kMostSlabBlocks && device.active_clusters[of->log] > 0; ++of->log) {
      if (divide(r, device, of) && of->room >= room) return true;
    }
  }
  return false;
}

/// Whether a set's blocks overlap with others, or all are there at once, so that this is faster than teams whose sets
/// come in one after the other, and than reading twice.
bool overlaps(const ChannelRequest& r, const PlaneSlabs& of) { return of.at_once || of.room >= wanted_room(r); }

/// Whether sets that take larger clusters than leave no multiprocessor idle are slabs, too: other ways for cut planes
/// are slower, but for whole ones of 16 bits, which go by launches (bf16 128x128x28x28, one group, backward: 47 us for
/// 34).
bool goes_further(const ChannelRequest& r, const PlaneSlabs& of) {
  return of.cut && (!r.aligned || size_of(r.dtype) > 2);
}

/// Whether there is enough to read for what sums of channels cost, where ways for other planes cost less.
bool is_worth_sums(const ChannelRequest& r, const PlaneSlabs& of) {
  if (!r.aligned || r.set != ChannelSet::group || !r.channel_sums) return true;
  return of.sets * of.packs * kPackBytes >= (of.keeps ? kSlopeSumsBytes : kSumsBytes);
}

/// How many of a warp's threads read from the same bank of shared memory, if `lanes` side by side read a plane.
int64_t bank_conflicts(int64_t plane_bytes, int lanes) {
  constexpr int64_t kBanks = 32, kWord = 4;
  int64_t readers[kBanks] = {};
  for (int team = 0; team * lanes < kWarp; ++team) {
    for (int lane = 0; lane < lanes; ++lane) ++readers[(team * plane_bytes / kWord + lane) % kBanks];
  }
  return *std::max_element(std::begin(readers), std::end(readers));
}

/// Threads side by side on a plane that is added up by words (cuda/channel_cut_slab_backward.cuh): those that take the
/// fewest steps. Each plane takes some, and so do bringing together what threads have, and each turn of four elements,
/// unless the banks of shared memory take more.
int lanes_of_cut_plane(const ChannelRequest& r, const PlaneSlabs& of) {
  constexpr int64_t kPlaneSteps = 15, kJoinSteps = 12, kTurnSteps = 40, kElements = 4;
  const int64_t planes = of.packs_a_block / of.run * of.bundle, size = size_of(r.dtype);
  int best = 1;
  int64_t least = INT64_MAX;
  for (int lanes = 1, log = 0; lanes <= kWarp; lanes *= 2, ++log) {
    const int64_t turn = std::max(kTurnSteps, 8 * size * bank_conflicts(r.geometry.places * size, lanes));
    const int64_t turns = ceil_div(r.geometry.places, kElements * lanes);
    const int64_t steps = ceil_div(planes, of.threads / lanes) * (kPlaneSteps + kJoinSteps * log + turn * turns);
    if (steps >= least) continue;
    least = steps;
    best = lanes;
  }
  return best;
}

/// Fills in the plan of sets that are told but for their division; false if there is none, or other ways are faster.
bool plan_sets(const ChannelRequest& r, const DeviceInfo& device, PlaneSlabs of, ChannelPlan* to) {
  of.sets = batches_of(r) * r.geometry.groups;
  of.packs = of.bundles * of.run;
  // More than any division takes.
  if (of.packs < (r.aligned ? kLeastPacks : kLeastCutPacks)) return false;
  if (of.packs > kMostSlabBlocks * device.shared_memory_block / kPackBytes) return false;
  if (of.sets > kMostSets) return false;
  const int log = log_of(r, device, of);
  const bool keeps =
      r.slopes && !of.cut && divide_up_to(r, device, log, true, &of) && (of.at_once || of.room >= kKeptRoom);
  const bool divided = keeps || divide_up_to(r, device, log, false, &of);
  if (!(divided && overlaps(r, of)) && !(goes_further(r, of) && divide_further(r, device, log, &of))) return false;
  if (!is_worth_sums(r, of)) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.whole = !of.cut;
  plan.lanes = of.cut && r.kept > 1 ? lanes_of_cut_plane(r, of) : 0;
  plan.threads = static_cast<int>(of.threads);
  plan.batches = batches_of(r);
  plan.groups = r.geometry.groups;
  plan.units = of.packs;
  plan.units_a_part = of.packs_a_block;
  plan.parts = 1;
  set_slabs(of.sets, of.blocks(), of.accesses, of.keeps, kept_bytes_of(r, of), &plan);
  plan.parameter_bytes = static_cast<int>(of.parameter_bytes);
  plan.scratch_bytes = static_cast<int>(of.sum_bytes);
  set_slab_workspace(r, 0, &plan);
  return true;
}

}  // namespace

bool plan_plane_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* plan) {
  if (r.passes != ChannelPasses::both || r.access != ChannelAccess::planes || r.beside) return false;
  const int64_t width = width_of(r), channels = group_channels(r);
  const bool several = r.set == ChannelSet::group && channels > 1;
  PlaneSlabs of{};
  of.bundle = r.aligned ? 1 : width / std::gcd(width, r.geometry.places);
  of.run = of.bundle * r.geometry.places / width;
  of.bundles = r.set == ChannelSet::channel ? r.geometry.samples : channels / of.bundle;
  // A backward adds up whole planes by warps, each of whose packs are of one channel.
  of.cut = !r.aligned || (several && r.kept > 1 && of.run % kWarp != 0);
  if (of.cut && (!several || !r.set_packs || r.geometry.places < width)) return false;
  if (of.cut && r.aligned && of.run > kMostCutPacks) return false;
  return plan_sets(r, device, of, plan);
}

}  // namespace normact
