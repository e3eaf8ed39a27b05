// SPDX-License-Identifier: Apache-2.0
// How a batch, group or instance norm will be run on a GPU: how its tensors are accessed, how it is divided into items
// that blocks carry out one at a time, and in which order. Pure functions of the problem and the device.
//
//   batch   what is normalised apart whatever the channel: a sample (group norm), or all of them (batch norm)
//   unit    of a batch: a row of channels, or a segment of a plane
//   tile    channels that a block works on together
//   part    a range of units
//   item    a part of a tile of a batch, or of neighbouring tiles; leaves an entry a channel, its sums, behind
//   slab    tiles of a batch that make up whole groups; or, of planes of whole packs, what is normalised together
//   wave    slabs whose bytes stay in the L2 cache between the two passes over them
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/channel.h"
#include "core/plan.h"

namespace normact {

constexpr int kChannelThreads = 256;
constexpr int kRingChunks = 16;     // of a ring, at most (RingDivision::slots)
constexpr int kRingRounds = 4;      // of a chunk, at most: a batch of loads in the kernels
constexpr int kRingChannels = 128;  // of a block's part of a set, at most, if several
constexpr int kRingTeam = 160;      // blocks that share a set, at most
constexpr int kRingDepth = 6;       // sets whose sums are exchanged at the same time
constexpr int kRingSums = 4;        // sets whose sums of rounds are there: taken, being taken, and left as entries
constexpr int kMostSlabBlocks = 8;  // of a cluster
constexpr int kMostPlaneSlabThreads = 512;  // of a block, of which a multiprocessor has two or more
constexpr int kMostSlabAccesses = 32;       // of a thread: fp32 bears sums of some hundred elements
constexpr int64_t kBandForwardBlocks = 4, kBandBackwardBlocks = 2;  // bands: a multiprocessor, at most
constexpr int64_t kBandStaticBytes = 1024;                          // of a block's shared memory, beside what it keeps
constexpr int kMostRegisterThreads = 1024;                          // registers: of a set;
constexpr int kRegisterElements = 8;                                // of a thread, of each tensor
constexpr int kTileNumbers = 6;  // launches: of a channel, that the rows of a block have in common

/// Slabs of so many channels: numbers from what one row of threads leaves to what the next one does. Of 32, 64 and 128
/// channels, the threads of a warp that add up those of neighbouring channels, of several rows, meet in no bank of
/// shared memory; narrower ones would need rows that no pack can be stored to.
constexpr int64_t slab_sum_pitch(int64_t channels) {
  constexpr int64_t kBanks = 32, kPack = 4;
  if (channels > kBanks && channels % kBanks != 0) return channels;
  return channels + (channels / 8 < kPack ? kPack : channels / 8);
}

/// Rows of threads of a team's slab that leave sums: those of a warp add up theirs first, where it has whole ones.
constexpr int64_t team_sum_lines(int64_t lanes, int64_t lines) {
  constexpr int64_t kMost = 16;
  return lanes <= kMost && (lanes & (lanes - 1)) == 0 ? kChannelThreads / 32 : lines;
}

/// Pairs of numbers of a slab's groups: the results, and those of so many blocks, in whole packs.
constexpr int64_t slab_entries(int64_t blocks, int64_t groups) { return ((blocks + 1) * groups + 1) / 2 * 2; }

/// How the tensors of x's shape are accessed.
enum class ChannelAccess : uint8_t {
  planes,   // packs: the places of a channel are neighbours; a pack at the edge of a plane is cut
  rows,     // packs: the channels of a place are neighbours, whole packs at multiples of 16 bytes
  columns,  // the same of rows that are samples: small planes side by side (columns_of), of which packs hold several
  elements  // one element at a time, at any strides
};

/// Whether units are rows of packs.
inline bool goes_by_rows(ChannelAccess access) {
  return access == ChannelAccess::rows || access == ChannelAccess::columns;
}

/// How a mask is accessed.
enum class ChannelMask : uint8_t {
  together,  // the bits of an access lie in one byte
  edged,     // planes: together but at the edges of planes, where neighbours share a byte
  apart      // bit by bit
};

/// Which passes a launch makes.
enum class ChannelPasses : uint8_t { both, reduce, apply };

/// Who carries out the items.
enum class ChannelOrder : uint8_t {
  registers,  // a few threads both passes of a small set, which they have in registers between them: x is read once
  kept,       // every block both passes of its items, which it keeps in shared memory between them: x is read once
  slabs,      // a cluster of blocks both passes of a slab, which lies in their shared memory: x is read once
  rings,      // persistent teams of blocks both passes of sets that come in one after the other: x is read once
  launches,   // each pass a launch of its own, over planes of whole packs (PlaneDivision) or rows: nobody waits
  solo,       // a block both passes of a slab: nobody waits
  waves,      // blocks draw items by tickets, wave by wave
  single,     // one pass only: nobody waits
};

/// How a launch of its own goes through planes of whole packs, a team of threads for each part of a set. A set is what
/// is normalised together, or a channel of a batch whose sums are made.
struct PlaneDivision {
  int64_t sets;
  int64_t sets_a_batch;
  int64_t packs;  // of a set
  int64_t parts;  // of a set
  int64_t packs_a_part;
  int team;  // threads: a power of two below a warp's, or all of a block's

  int64_t numbers() const { return sets * parts; }
  int64_t blocks() const { return (numbers() * team + kChannelThreads - 1) / kChannelThreads; }
};

/// How teams of blocks go through sets of planes of whole packs: whose packs are whose, and the ring of a block.
struct RingDivision {
  int blocks;          // of a team, which share the packs of its sets
  bool clusters;       // teams are clusters; else blocks hand each other their sums through the workspace
  int warps;           // of a block that work
  int threads;         // of these
  int rounds;          // packs of a thread, at most
  int rounds_a_chunk;  // that come and go together
  int chunks;
  int packs_a_block;  // of a set
  int slots;          // chunks that are there or on their way: those of a set, or more
  int last_rounds;    // that the last chunk of a set takes up: its own where the ring holds whole sets, else as any
  int ring_rounds;    // of all slots
  int flight;         // chunks that are on their way at the same time, at most
  int lead;           // chunks of the next sets whose sums are taken before those of a set are asked for; or,
                      // negative, chunks of the set that are written before the next one's sums are taken
  int tables;         // sets whose parameters are there: those that chunks of the ring may belong to, and one that
                      // comes in, or more, a power of two
  bool several;       // sets have several channels
  int channels;       // of a block's part of a set, at most
  int parts;          // of a channel, by the blocks that it lies in, at most: entries that a backward leaves of it

  /// Rounds that a chunk takes up.
  constexpr int rounds_of(int chunk) const { return chunk + 1 == chunks ? last_rounds : rounds_a_chunk; }
};

/// How small sets are given to threads, that hold them in registers (cuda/channel_registers.cuh).
struct RegisterDivision {
  int lanes;               // threads of a set: a power of two
  int width;               // elements of an access
  int accesses;            // of a thread to a set, at most
  int tile;                // groups of a block, which are neighbours
  int lines;               // samples of a block at a time, or of these so many times as a thread has room for
  bool place_major;        // the elements of a set are counted channels first
  int64_t tiles;           // of a sample
  int64_t samples_a_part;  // of a block
};

struct ChannelPlan {
  ChannelAccess access;
  ChannelOrder order;
  bool whole;       // planes: each is whole packs
  bool even_units;  // elements: units have one stride in each tensor
  ChannelMask mask;
  bool mask_with_y;    // its bits are written with y: those of an access, or of two side by side, are a byte
  bool cached;         // launches over rows: the L2 cache has room for all that the first pass reads
  int lanes;           // planes: threads on a segment; else threads on a unit, side by side
  int tile;            // channels
  int lines;           // units that a block works on at the same time
  int lines_together;  // rows: lines whose threads are lanes of a warp; these add up their sums among themselves
  int64_t batches;
  int64_t groups;         // of a batch
  int64_t units;          // of a batch; rings, slabs of planes: packs of a set
  int64_t segments;       // planes: of a plane
  int64_t segment_packs;  // planes: of a segment
  int64_t units_a_part;
  int64_t parts;
  int64_t unit_step;  // rows: from one unit of a thread to the next; more than `lines` where parts are interleaved
  int64_t apply_units, apply_parts;  // launches over rows: units of a part in the second pass, and parts
  int64_t tiles;                     // of a batch
  int64_t tiles_a_slab;
  int tiles_an_item;  // neighbours
  int64_t slabs;      // of all batches
  int64_t slabs_a_wave;
  int merge_lanes;         // threads that add up the entries of a group
  int64_t settles_a_slab;  // items that do so
  bool settles_apart;      // kept: else each block does so for itself
  int64_t blocks;
  int threads;          // slabs of planes: of a block
  int cluster;          // slabs, rings: blocks of one, 1 and more
  bool team;            // slabs of rows: such blocks are no cluster, but run together
  bool bands;           // slabs of columns: the least that are whole channels and packs, at most two channels a pack
  bool keeps_slopes;    // slabs: dh of 16 bits is kept in fp32, where one more tensor would be
  int accesses;         // kept, slabs: the most of a thread in an item, of each tensor
  int delay;            // kept: nanoseconds by which half of the teams begin later
  int kept_bytes;       // of shared memory, for a block's item
  int scratch_bytes;    // of shared memory, in front of the parameters; slabs: behind them, for sums
  int parameter_bytes;  // kept: those of the channels of two items; 0: too many. rings, slabs: behind kept_bytes.
                        // launches over rows: kTileNumbers of the channels of a tile
  int bits_bytes;       // of shared memory, between scratch memory and kept packs: for bits of a mask
  PlaneDivision reduce, apply;  // launches, rings: of the two passes
  RingDivision ring;            // rings
  RegisterDivision registers;   // registers
  int groups_an_item;           // that an item may touch, and leaves an entry of; 0: groups of one channel
  int64_t group_entries_at;     // index of the first entry of a group, behind those of channels
  size_t finals;                // offset in the workspace, behind the entries: two numbers a group, or a block and set
  size_t counters;              // behind these
  size_t counter_bytes;
  int64_t chunks;  // of batches, an entry of each, where they are many; 0: those of batches are added up at once
  int64_t batches_a_chunk;
  size_t chunk_entries;  // offset in the workspace of the entries of chunks
  size_t workspace_bytes;

  int scratch_lines() const { return lines / lines_together; }
  int64_t stacks_a_slab() const { return (tiles_a_slab + tiles_an_item - 1) / tiles_an_item; }
  /// Whether blocks wait for others that may come later.
  bool waits_together() const {
    if (order == ChannelOrder::slabs) return team;
    return order == ChannelOrder::rings ? !ring.clusters : order == ChannelOrder::kept && items_a_slab() > 1;
  }
  /// Whether blocks of the second pass add up the gradients of parameters.
  bool gradients_beside() const { return order == ChannelOrder::launches && chunks == 0; }
  int64_t items_a_slab() const { return stacks_a_slab() * parts; }
  /// Launches over rows: the plan with the parts of the second pass.
  ChannelPlan second_pass() const {
    ChannelPlan plan = *this;
    plan.units_a_part = apply_units;
    plan.parts = apply_parts;
    plan.unit_step = lines;
    plan.scratch_bytes = 0;
    plan.blocks = plan.slabs * plan.items_a_slab();
    return plan;
  }
};

struct ChannelRequest {
  ChannelGeometry geometry;
  ChannelSet set;
  DType dtype;
  ChannelAccess access;
  bool aligned;       // planes: each begins at a multiple of 16 bytes
  bool place_major;   // elements: channels lie closer together than places
  bool even;          // the places of each tensor lie evenly, or in lines that do, and a set's elements less than
                      // 2^31 apart
  bool even_units;    // places of samples one after the other have one stride in each tensor
  bool set_packs;     // packs: a set is whole packs in all tensors, at multiples of 16 bytes
  bool columns;       // whether a batch norm whose planes are not whole packs may go by columns, too
  int tensors;        // of x's shape that a pass reads
  int staged;         // that both passes read together, addends and what a slope needs included
  int kept;           // of these, those that both passes need, and that may be kept between them
  bool slopes;        // whether slopes are worth keeping as well: of 16 bits, of another activation than ReLU
  bool exponentials;  // forward: whether y takes some, of 16 bits: as in `slopes`
  bool beside;        // whether a pass reads anything beside what may be kept: an addend, y, a mask
  bool mask;          // whether there is one
  bool marks;         // whether it is written
  bool numbered;      // planes: elements follow each other in memory as in the mask, from a multiple of 16 bytes on
  bool averages;      // whether moments are left for running statistics, that are averages over samples
  int sums;           // numbers that a thread leaves of a channel
  int parameters;     // numbers that belong to a channel beside its sums
  int entry_bytes;    // of a channel's sums
  bool channel_sums;  // whether those of each channel are wanted, though groups have several
  ChannelPasses passes;
  int sm_margin;
};

/// What measurements may vary.
struct ChannelTuning {
  int64_t column_bytes = 1024;     // of a plane that goes by columns, at most
  int64_t wave_bytes = 32 << 20;   // read in a wave
  int64_t item_bytes = 128 << 10;  // read by an item, at most
  int64_t least_item_bytes = 16 << 10;
  int items_a_block = 2;
  int64_t solo_bytes = 128 << 10;  // most that a block takes on alone
  int solo_slabs = 192;            // fewest that occupy a device
  int plane_blocks = 4;            // a multiprocessor
  int element_blocks = 3;
  int row_blocks = 3, row_pair_blocks = 2;    // a multiprocessor: launches over rows that read one tensor, or more
  int64_t row_lanes = 16, column_lanes = 64;  // of a tile of these, at most
  int64_t least_row_accesses = 4, most_row_accesses = 256;  // of a thread in a part: fp32 bears sums of some hundred
  double cached_share = 0.875;  // launches over rows: of the L2 cache, that a pass reads and leaves there, at most
  int64_t apply_accesses = 8;   // of a thread in a part of the second pass, at most, for each number that it fetches
  int kept_blocks = 2;          // a multiprocessor
  int kept_delay = 190;         // nanoseconds an access (ChannelPlan::delay)
  int64_t team_packs = 512;     // launches: largest set of a team that is not a block
  int64_t whole_packs = 20;     // a thread of a set that is not cut
  int64_t least_sets = 256;     // fewer are cut
  int64_t plane_parts = 1024;   // of sets that are cut
  int64_t least_packs = 4, most_packs = 16;  // a thread of a set that is cut
  int64_t kept_plane_bytes = 6 << 10;  // of sets that are kept rather than gone through by launches: planes, at least
  int64_t kept_bytes = 32 << 20;       // x, at least
  int64_t kept_set_bytes = 5 << 20, kept_sets_bytes = 7 << 19;  // one tensor of a set, or two, at most
  int64_t ring_plane_bytes = 1024;                              // rings: of a plane, at least: a copy each;
  int64_t ring_channel_bytes = 512;                             // of a channel of several, which lie side by side
  int64_t ring_bytes = 3 << 20;                                 // x, at least
  int64_t ring_turn_bytes = 48 << 10;                           // that a block moves in a turn, at least,
  int64_t ring_small_turns = 4;                                 // or no more turns than these;
  int64_t ring_group_bytes = 64 << 10;                          // of sets of several channels;
  int64_t ring_group_blocks = 60;                               // blocks, at least, in percent of multiprocessors;
  int64_t ring_wide_bytes = 32 << 20;                           // x, at least, in clusters of more than two;
  int64_t tiny_bytes = 64, tiny_back_bytes = 256;  // of a set that goes through registers first of all, at most
  // Registers: unless a sample has so many elements, whose sets are packs or not, and planes are so large, or rows so
  // many and a thread has so many accesses to a kept item.
  int64_t register_elements = 3 << 10, register_packs = 32 << 10, register_plane_bytes = 384, register_rows = 16;
  int register_kept_accesses = 8;
  int64_t ring_team_bytes = 32 << 20;         // in teams that are no clusters
  int64_t row_rounds = 1, column_rounds = 2;  // kept, whose blocks wait for others: items that a block has after each
                                              // other, at most; columns only forward with nothing beside x
  int kept_teams = 2;                         // at work at the same time, at least, where not everything is
};

ChannelPlan plan_channel(const ChannelRequest& request, const DeviceInfo& device, const ChannelTuning& tuning);

/// The most that any alignment and strides of the tensors may need.
size_t largest_channel_workspace(const ChannelRequest& request, const DeviceInfo& device, const ChannelTuning& tuning);

/// The planner's view of a problem.
ChannelRequest request_of(const ChannelForward& problem, int sm_margin);
ChannelRequest request_of(const ChannelBackward& problem, ChannelPasses passes, int sm_margin);
ChannelRequest request_of(const ChannelMoments& problem, int sm_margin);

}  // namespace normact
