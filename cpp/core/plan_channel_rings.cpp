// SPDX-License-Identifier: Apache-2.0
// Plans whose sets of planes go one after the other through the shared memory of teams of blocks (ChannelOrder::rings):
// too large for all of x to be on the chip, or large enough for a turn to be worth its exchange. A team is a cluster,
// or, where that is too small, an even part of the device.
#include <iterator>

#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int kMostLog = 4;
constexpr int kMostSets = 4;       // in a ring
constexpr int kMostTeams = 6;      // that are no clusters, of one tensor; ...
constexpr int kMostMoreTeams = 4;  // ... of more
constexpr int64_t kMostRounds = kRingChunks * kRingRounds;
constexpr int64_t kMostNumbers = int64_t{1} << 30;  // kernels count sets in 32 bits

// What a turn costs beside its bytes, in bytes that a block moves in that time, fitted on an H200 in bf16. A cluster's:
// by the sets that are there or on their way (1, 2, 3; between them evenly), and by its blocks (13 shapes, each in all
// clusters).
constexpr int64_t kSetBytes[] = {70 << 10, 20 << 10, 12 << 10};
constexpr int64_t kClusterBytes[] = {0, 0, 4 << 10, 7 << 10, 10 << 10};
constexpr int64_t kSumsBytes = 36 << 10;  // of several channels in a backward
constexpr int64_t kClusterFlightBytes = 96 << 10;

// That of teams which are no clusters: of one tensor, of single channels without exponentials, and of more tensors. The
// exchange takes as long as so many bytes of the next sets take to come in and be summed; a turn that has less of a
// lead waits. Where the ring has room for one set only, all that works meanwhile are other teams (17
// cases, each in 1 to 6 teams: cuda/CHANNELS.md).
constexpr int64_t kTeamBytes = 16 << 10, kTeamChannelBytes = 24 << 10, kTeamMoreBytes = 12 << 10;
constexpr int64_t kLeadBytes = 84 << 10, kMoreLeadBytes = 96 << 10;
constexpr int64_t kMostLoneWaitBytes = 148 << 10, kMostWaitBytes = 90 << 10, kAloneBytes = 252 << 10;
constexpr int64_t kTeamStartBytes = 100 << 10;  // until they have their first sums, and after their last

// Bytes that are on their way to a block of such a team: as many as keep memory busy, for which a lead leaves room, and
// at most so many, as the sums that blocks hand each other would queue behind more.
constexpr int64_t kTeamFlightBytes = 48 << 10, kMoreFlightBytes = 32 << 10, kMostFlightBytes = 64 << 10;

// Chunks are as large as leaves sums this lead: of a team that waits for few others; where exponentials take issue
// slots; else kLeadBytes.
constexpr int64_t kFewBlocks = 48, kFewLeadBytes = 60 << 10, kBusyLeadBytes = 64 << 10;

constexpr double kLeastGain = 1.05;   // over a cluster, whose cost is the better known, of more tensors
constexpr double kLeastBlocks = 0.6;  // of the multiprocessors, that together reach memory's full speed

struct Rings {
  RingDivision division;
  int64_t teams;
  int64_t turn_bytes;  // that a block moves
  int64_t cost;        // of a turn, bytes
  double time;         // bytes of all

  int64_t blocks() const { return teams * division.blocks; }
};

/// Threads that share the packs of a block: as evenly as whole warps can, in few rounds. Where blocks need not have
/// whole rounds, in the fewest rounds of all warps, as a chunk costs a warp about as much as a round does.
void share_packs(int64_t packs, bool whole, RingDivision* d) {
  constexpr int64_t kThreads = int64_t{kClusterWarps} * kWarp;
  const int64_t least = ceil_div(packs, kThreads);
  int64_t best = 0;
  for (int64_t rounds = least; rounds <= least + std::max<int64_t>(1, least / (whole ? 4 : 3)); ++rounds) {
    const int64_t warps = ceil_div(packs, rounds * kWarp);
    const int64_t cost = warps * (rounds + (whole ? 0 : ceil_div(rounds, kRingRounds)));
    if (best != 0 && cost >= best) continue;
    best = cost;
    d->warps = static_cast<int>(warps);
    d->rounds = static_cast<int>(rounds);
  }
  d->threads = d->warps * kWarp;
  d->packs_a_block = whole ? d->threads * d->rounds : static_cast<int>(round_up(packs, kWarp));
}

/// How many channels a block has a part of, and in how many blocks one lies, at most, that is not the whole set.
void share_channels(const ChannelRequest& r, RingDivision* d) {
  d->several = group_channels(r) > 1;
  d->channels = d->parts = 1;
  if (!d->several) return;
  const int64_t run = r.geometry.places / width_of(r), share = d->packs_a_block;
  const int64_t uneven = share % run == 0 || run % share == 0 ? 0 : 1;
  d->channels = static_cast<int>(std::min(group_channels(r), ceil_div(share, run) + uneven));
  d->parts = static_cast<int>(std::min<int64_t>(d->blocks, ceil_div(run, share) + uneven));
}

/// Shared memory of a block beside the ring: parameters of sets and their channels, and in a backward of several the
/// sums of rounds of a warp.
int64_t bytes_beside(const ChannelRequest& r, const RingDivision& d) {
  const int64_t pair = 2 * accumulator_bytes(r.dtype);
  const int64_t sums = d.several && r.kept > 1 ? int64_t{kRingSums} * d.rounds * d.warps : 0;
  return (int64_t{d.tables} * (d.channels + 1) + sums) * pair;
}

int64_t ring_bytes(const ChannelRequest& r, const RingDivision& d) {
  return int64_t{d.ring_rounds} * d.threads * kPackBytes * r.staged;
}

/// Chunks of so many rounds, and as many slots as fit; false if a set does not.
bool divide_rounds(const ChannelRequest& r, const DeviceInfo& device, int rounds, RingDivision* d) {
  d->rounds_a_chunk = rounds;
  d->chunks = (d->rounds + rounds - 1) / rounds;
  for (d->slots = std::min(kRingChunks, kMostSets * d->chunks); d->slots >= d->chunks; --d->slots) {
    const bool whole = d->slots % d->chunks == 0;
    d->last_rounds = whole ? d->rounds - (d->chunks - 1) * rounds : rounds;
    d->ring_rounds = whole ? d->slots / d->chunks * d->rounds : d->slots * rounds;
    d->tables = static_cast<int>(power_of_two_from(ceil_div(d->slots, d->chunks) + 1));
    if (ring_bytes(r, *d) + bytes_beside(r, *d) <= device.shared_memory_block) return true;
  }
  return false;
}

int64_t chunk_bytes(const ChannelRequest& r, const RingDivision& d) {
  return int64_t{d.rounds_a_chunk} * d.threads * kPackBytes * r.staged;
}

/// Chunks of a team that is no cluster that are on their way.
int flight_of(const ChannelRequest& r, const RingDivision& d) {
  const int64_t bytes = chunk_bytes(r, d);
  const int64_t chunks = bytes < kMostFlightBytes ? std::max<int64_t>(2, kMostFlightBytes / bytes) : 1;
  return static_cast<int>(std::min<int64_t>(d.slots, chunks));
}

/// Chunks that are summed before those of a set are asked for: what the ring has room for beside the set, but for what
/// is on its way. A cluster's exchange is short: one is enough.
int lead_of(const ChannelRequest& r, const RingDivision& d, int64_t flight_bytes) {
  const int64_t left = d.slots - d.chunks - ceil_div(flight_bytes, chunk_bytes(r, d));
  if (d.clusters) return d.slots >= 2 * d.chunks ? 1 : static_cast<int>(std::clamp<int64_t>(left, -d.chunks, 1));
  const int most = (d.several && r.kept > 1 ? kRingSums - 2 : kRingDepth / 2 - 1) * d.chunks;
  return static_cast<int>(std::clamp<int64_t>(left, d.slots >= 2 * d.chunks ? 1 : -d.chunks, most));
}

/// Bytes of the next sets whose sums are taken before those of a set are asked for.
int64_t lead_bytes(const ChannelRequest& r, const RingDivision& d) {
  const int rounds = d.lead / d.chunks * d.rounds + d.lead % d.chunks * d.rounds_a_chunk;
  return int64_t{std::max(0, rounds)} * d.threads * kPackBytes * r.staged;
}

/// Chunks of a cluster: the largest, or smaller ones that leave more of the ring to the next set. False if a set does
/// not fit.
bool divide_cluster(const ChannelRequest& r, const DeviceInfo& device, RingDivision* d) {
  const RingDivision whole = *d;
  int most = -1;  // rounds of the next set
  for (int rounds = std::min(whole.rounds, kRingRounds); rounds > 0; --rounds) {
    RingDivision other = whole;
    if (!divide_rounds(r, device, rounds, &other)) continue;
    const int ahead = std::min(other.ring_rounds - other.rounds, other.rounds);
    if (most >= 0 && ahead <= most + other.rounds / 8) continue;
    most = ahead;
    *d = other;
  }
  if (most < 0) return false;
  d->lead = lead_of(r, *d, kClusterFlightBytes);
  d->flight = d->slots;
  return true;
}

/// Chunks of a team that is no cluster, of so many rounds: about as large as each other, with the lead that they allow.
bool divide_team_by(const ChannelRequest& r, const DeviceInfo& device, int rounds, RingDivision* d) {
  if (rounds > d->rounds || !divide_rounds(r, device, rounds, d)) return false;
  const bool roomy = d->slots > d->chunks, short_flight = r.staged > 1 && (d->several || !r.slopes);
  d->lead = lead_of(r, *d, roomy && short_flight ? kMoreFlightBytes : kTeamFlightBytes);
  d->flight = roomy ? flight_of(r, *d) : d->slots;
  return d->chunks * rounds - d->rounds <= d->rounds % 2;
}

/// Of one tensor: the largest chunks that give sums enough of a lead, or those that give them the longest. Of more: of
/// as many packs, or of four rounds where slopes take issue slots; of four, too, where the ring does not hold two sets.
bool divide_team(const ChannelRequest& r, const DeviceInfo& device, RingDivision* d) {
  const RingDivision whole = *d;
  const bool more = r.staged > 1, busy = more ? r.slopes && d->several : r.exponentials;
  const int64_t enough = d->blocks <= kFewBlocks ? kFewLeadBytes : busy ? kBusyLeadBytes : kLeadBytes;
  int64_t longest = 0;  // bytes
  bool found = false;
  for (const int rounds : {more && !busy ? std::max(1, kRingRounds / r.staged) : kRingRounds, 4, 3, 2, 1}) {
    if (found && rounds == d->rounds_a_chunk) continue;
    RingDivision other = whole;
    if (!divide_team_by(r, device, rounds, &other)) continue;
    const int64_t lead = lead_bytes(r, other);
    const bool larger = rounds > d->rounds_a_chunk && other.slots > other.chunks;
    const bool better = more ? larger : busy ? lead > longest : lead >= longest;
    if (found && !better) continue;
    found = true;
    longest = lead;
    *d = other;
    if (more ? other.ring_rounds >= 2 * other.rounds : lead >= enough) break;
  }
  return found;
}

/// What a turn of a cluster costs by the sets that are there at once.
int64_t waiting_bytes(const RingDivision& d) {
  const int sets = d.slots / d.chunks, last = static_cast<int>(std::size(kSetBytes));
  if (sets >= last) return kSetBytes[last - 1];
  const int64_t of = kSetBytes[sets - 1], of_next = kSetBytes[sets];
  return of + (of_next - of) * (d.slots - sets * d.chunks) / d.chunks;
}

/// What a turn of one of some teams that are no clusters costs.
int64_t waiting_bytes(const ChannelRequest& r, const RingDivision& d, int64_t teams) {
  const bool lone = r.staged == 1, busy = r.slopes || r.exponentials;
  const int64_t bytes = !lone ? kTeamMoreBytes : d.several || busy ? kTeamBytes : kTeamChannelBytes;
  if (d.lead < 0) return bytes + kAloneBytes / (lone ? 1 : teams);
  const int64_t wanted = lone ? kLeadBytes : busy ? kBusyLeadBytes : kMoreLeadBytes;
  const int64_t missing = std::max<int64_t>(0, wanted - lead_bytes(r, d));
  return bytes + std::min(lone ? kMostLoneWaitBytes : kMostWaitBytes, (lone && !busy ? 3 : 2) * missing);
}

/// Whether turns are worth the exchange of teams that are no clusters: the kept tensors could be read twice instead.
bool is_worth(const ChannelRequest& r, const Rings& of) {
  const int64_t again = int64_t{of.division.packs_a_block} * kPackBytes * r.kept;
  return (of.cost - of.turn_bytes) * 10 < again * (r.kept > 1 ? 8 : 11);
}

/// Fills in a division for teams of so many blocks, of which so many may be there; false if a set does not fit.
bool divide(const ChannelRequest& r, const DeviceInfo& device, int64_t sets, int64_t packs, int64_t blocks,
            int64_t teams, int64_t cluster_bytes, Rings* of) {
  const int64_t share = ceil_div(packs, blocks);
  if (teams < 1 || share > kMostRounds * kClusterWarps * kWarp) return false;
  RingDivision& d = of->division;
  share_packs(share, d.clusters || r.staged > 1, &d);
  if (d.clusters && (blocks - 1) * d.packs_a_block >= packs) return false;  // a block would have nothing
  d.blocks = static_cast<int>(d.clusters ? blocks : ceil_div(packs, d.packs_a_block));
  share_channels(r, &d);
  if (d.channels > kRingChannels) return false;
  if (!(d.clusters ? divide_cluster(r, device, &d) : divide_team(r, device, &d))) return false;
  of->teams = std::min(sets, teams);
  of->turn_bytes = int64_t{d.packs_a_block} * kPackBytes * (r.staged + 1);
  of->cost = of->turn_bytes + (d.clusters ? waiting_bytes(d) + cluster_bytes : waiting_bytes(r, d, of->teams));
  if (d.clusters && d.several && r.kept > 1) of->cost += kSumsBytes;
  if (!d.clusters && !is_worth(r, *of)) return false;
  const double working = std::max(static_cast<double>(of->blocks()), kLeastBlocks * device.multiprocessors);
  of->time = static_cast<double>(ceil_div(sets, of->teams) * of->cost + (d.clusters ? 0 : kTeamStartBytes)) * working;
  if (!d.clusters && r.staged > 1) of->time *= kLeastGain;
  return true;
}

/// Whether turns are long enough, or few, and enough blocks work.
bool is_large(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, int64_t sets,
              const Rings& of) {
  if (group_channels(r) == 1) {
    return of.turn_bytes >= tuning.ring_turn_bytes || ceil_div(sets, of.teams) <= tuning.ring_small_turns;
  }
  const bool busy = of.blocks() * 100 >= tuning.ring_group_blocks * device.multiprocessors;
  return busy && of.turn_bytes >= tuning.ring_group_bytes;
}

/// The fastest of all divisions, of teams that are no clusters only those that are large; none has teams.
Rings best_rings(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, int64_t sets,
                 int64_t packs) {
  Rings best{};
  const auto consider = [&](bool clusters, int64_t blocks, int64_t teams, int64_t cluster_bytes) {
    Rings other{};
    other.division.clusters = clusters;
    if (!divide(r, device, sets, packs, blocks, teams, cluster_bytes, &other)) return;
    if (!clusters && !is_large(r, device, tuning, sets, other)) return;
    if (best.teams == 0 || other.time < best.time) best = other;
  };
  const bool several = group_channels(r) > 1, pairs = several && sets * packs * kPackBytes < tuning.ring_wide_bytes;
  for (int log = 0; log <= (pairs ? 1 : several ? 3 : kMostLog); ++log) {
    const int64_t blocks = int64_t{1} << log, active = device.active_clusters[log];
    const int64_t left = active - ceil_div(r.sm_margin, blocks);
    consider(true, blocks, active > 0 && log == 0 ? std::max<int64_t>(1, left) : left, kClusterBytes[log]);
  }
  if (sets * packs * kPackBytes < tuning.ring_team_bytes) return best;
  const int64_t multiprocessors = multiprocessors_of(r, device);
  for (int64_t teams = 1; teams <= (r.staged > 1 ? kMostMoreTeams : kMostTeams); ++teams) {
    const int64_t blocks = std::min<int64_t>(multiprocessors / teams, kRingTeam);
    if (blocks > 1 << kMostLog) consider(false, blocks, teams, 0);
  }
  return best;
}

}  // namespace

bool plan_rings(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* to) {
  const ChannelGeometry& g = r.geometry;
  if (device.compute_capability < 90 || r.passes != ChannelPasses::both) return false;
  if (r.access != ChannelAccess::planes || !r.aligned) return false;
  const bool several = group_channels(r) > 1;
  if (g.places * size_of(r.dtype) < (several ? tuning.ring_channel_bytes : tuning.ring_plane_bytes)) return false;
  // Rounds of a warp belong to one channel each.
  if (several && (r.beside || (r.kept > 1 && g.places / width_of(r) % kWarp != 0))) return false;
  const bool channel = r.set == ChannelSet::channel;
  if (r.mask && !masks_whole_packs(r)) return false;
  const int64_t sets = batches_of(r) * g.groups,
                packs = g.places / width_of(r) * (channel ? g.samples : group_channels(r));
  if (sets * packs * kPackBytes < tuning.ring_bytes || sets > kMostNumbers) return false;
  const Rings best = best_rings(r, device, tuning, sets, packs);
  if (best.teams == 0 || !is_large(r, device, tuning, sets, best)) return false;
  const RingDivision& division = best.division;
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
  plan.parts = division.parts;
  plan.reduce = plan.apply = {sets, g.groups, packs, 1, packs, kChannelThreads};
  plan.ring = division;
  plan.cluster = division.clusters ? division.blocks : 1;
  plan.blocks = best.blocks();
  plan.kept_bytes = static_cast<int>(ring_bytes(r, division));
  plan.parameter_bytes = static_cast<int>(bytes_beside(r, division));
  // Moments that are averaged, or sums of the channels of each sample.
  const bool leaves = r.averages || (r.channel_sums && !channel);
  const int64_t entries = batches_of(r) * g.channels * plan.parts;
  plan.finals = static_cast<size_t>(round_up(leaves ? entries * r.entry_bytes : 0, 256));
  // The sums that blocks hand each other are pairs: of moments in fp64.
  const int64_t handed = division.clusters ? 0 : sets * division.blocks * 2 * (r.kept > 1 ? 4 : 8);
  plan.counters = plan.workspace_bytes = plan.finals + static_cast<size_t>(round_up(handed, 256));
  return true;
}

}  // namespace normact
