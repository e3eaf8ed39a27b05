// SPDX-License-Identifier: Apache-2.0
// What the plans of channel norms have in common (plan_channel.cpp, plan_channel_kept.cpp): how tensors are divided.
#pragma once

#include <algorithm>
#include <numeric>

#include "core/plan_channel.h"
#include "core/plan_common.h"

namespace normact {

constexpr int64_t kRowBytes = 128;       // the usual width of a tile of rows
constexpr int64_t kBlockReserve = 1024;  // of a multiprocessor's shared memory, for each block

inline int width_of(const ChannelRequest& r) {
  return r.access == ChannelAccess::elements ? 1 : kPackBytes / size_of(r.dtype);
}

inline int64_t group_channels(const ChannelRequest& r) { return r.geometry.channels / r.geometry.groups; }

inline int64_t batches_of(const ChannelRequest& r) { return r.set == ChannelSet::channel ? 1 : r.geometry.samples; }

/// Those of the device that a launch may count on.
inline int64_t multiprocessors_of(const ChannelRequest& r, const DeviceInfo& device) {
  return std::max(1, device.multiprocessors - r.sm_margin);
}

/// Bytes that a pass reads of `channels` channels of a batch.
inline int64_t bytes_of(const ChannelRequest& r, int64_t channels) {
  const int64_t places = r.geometry.places * (r.set == ChannelSet::channel ? r.geometry.samples : 1);
  return channels * places * size_of(r.dtype) * r.tensors;
}

/// Packs that a plane touches, at most: one that begins anywhere may touch one pack more than it fills.
inline int64_t packs_of_plane(const ChannelRequest& r) {
  const int64_t width = width_of(r);
  return r.aligned ? r.geometry.places / width : (r.geometry.places + 2 * width - 2) / width;
}

/// Shared memory in which the lines of a block leave their sums.
inline int scratch_bytes(const ChannelRequest& r, const ChannelPlan& plan) {
  if (r.passes == ChannelPasses::apply) return 0;
  const int numbers = r.sums * plan.scratch_lines() * plan.tile * plan.tiles_an_item;
  return static_cast<int>(round_up(numbers * accumulator_bytes(r.dtype), kPackBytes));
}

/// Shared memory for what belongs to the channels of two items that are kept; 0: more channels than a thread fetches.
inline int parameter_bytes(const ChannelRequest& r, const ChannelPlan& plan) {
  const bool shared = r.set == ChannelSet::channel;  // columns share those of their group
  const int64_t number = plan.tile * plan.tiles_an_item / (shared ? group_channels(r) : 1);
  if (number > kChannelThreads) return 0;
  return static_cast<int>(round_up(2 * number * r.parameters * accumulator_bytes(r.dtype), kPackBytes));
}

/// Whether bytes of a mask that is written may hold the ends of two planes: whoever writes one must have both.
inline bool marks_edges(const ChannelRequest& r) {
  return r.marks && r.numbered && !r.aligned && r.set == ChannelSet::channel && width_of(r) == 8;
}

/// Planes of whole packs: whether a pack's bits are one byte of a mask, or a part of one that others do not write.
inline bool masks_whole_packs(const ChannelRequest& r) {
  return r.set == ChannelSet::channel && r.geometry.places_after == r.geometry.places && (!r.marks || width_of(r) == 8);
}

/// Whether tiles of planes begin and end between bytes of a mask.
inline bool share_no_byte(const ChannelRequest& r, int64_t tile) {
  return tile * r.geometry.places % 8 == 0 && r.geometry.channels % tile == 0;
}

/// Rows side by side on `lanes` threads: whether the bits of a pack, or of two on neighbouring threads, are one byte.
inline bool marks_rows(const ChannelRequest& r, int64_t lanes) {
  return width_of(r) == 8 || (r.geometry.channels % 8 == 0 && lanes % 2 == 0);
}

/// The workspace of slabs: moments that are averaged, an entry a set, or sums of the channels of each sample, in parts;
/// and `handed` bytes.
inline void set_slab_workspace(const ChannelRequest& r, int64_t handed, ChannelPlan* plan) {
  const int64_t channels = r.channel_sums && r.set == ChannelSet::group ? r.geometry.channels * plan->parts : 0;
  const int64_t entries = plan->batches * (r.averages ? plan->groups : channels);
  plan->finals = static_cast<size_t>(round_up(entries * r.entry_bytes, 256));
  plan->counters = plan->workspace_bytes = plan->finals + static_cast<size_t>(round_up(handed, 256));
}

/// Slabs in the shared memory of so many blocks each, of which a thread has `accesses` of each tensor.
inline void set_slabs(int64_t slabs, int64_t blocks, int64_t accesses, bool keeps_slopes, int64_t kept_bytes,
                      ChannelPlan* plan) {
  plan->order = ChannelOrder::slabs;
  plan->mask = ChannelMask::together;
  plan->slabs = slabs;
  plan->cluster = static_cast<int>(blocks);
  plan->blocks = slabs * blocks;
  plan->accesses = static_cast<int>(accesses);
  plan->keeps_slopes = keeps_slopes;
  plan->kept_bytes = static_cast<int>(kept_bytes);
}

/// Shared memory of slabs of rows for the bits of a mask that is read: a byte for each pack.
inline int64_t slab_bits_bytes(const ChannelRequest& r, int64_t accesses) {
  return r.mask && !r.marks ? accesses * kChannelThreads : 0;
}

/// Whether multiprocessors are idle that would have a block if so many sets, of which `bytes` of x each, had clusters
/// of 1 << log blocks. A cluster costs half a microsecond (H200).
inline bool larger_clusters_help(const ChannelRequest& r, const DeviceInfo& device, int64_t sets, int64_t bytes,
                                 int log) {
  constexpr int64_t kLeastShare = 20 << 10;  // bytes of a block
  const int64_t blocks = int64_t{1} << log;
  return blocks <= kMostSlabBlocks && device.active_clusters[log] >= sets &&
         sets * blocks <= multiprocessors_of(r, device) && bytes >= blocks * kLeastShare;
}

/// Threads side by side on a plane of so many packs.
int lanes_of_plane(int64_t packs);

/// Lanes, tile, lines and units of planes, in segments of at most `segment_packs`; item_bytes: of a full item.
void divide_planes(const ChannelRequest& r, int64_t item_bytes, int64_t segment_packs, ChannelPlan* plan);

/// The same of rows in tiles of `tile` channels.
void divide_rows(const ChannelRequest& r, int64_t tile, ChannelPlan* plan);

/// Tiles to slabs of `slab_channels`.
void divide_tiles(const ChannelRequest& r, int64_t slab_channels, ChannelPlan* plan);

/// A whole plan of small sets in the registers of threads; false if they are too large, or do not lie evenly.
bool plan_registers(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* plan);

/// Chunks of batches, if these leave more entries of a channel than a warp is to add up.
void set_chunks(const ChannelRequest& r, ChannelPlan* plan);

/// A plan whose blocks keep their items between the passes; false if they cannot.
bool plan_kept(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* plan);

/// A whole plan of slabs in the shared memory of clusters; false if they do not fit, or other ways are faster.
bool plan_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* plan);

/// The same of columns, in the least slabs that hold whole channels.
bool plan_band_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* plan);

/// The same of sets of planes of whole packs, and of groups that are whole packs while their planes need not be.
bool plan_plane_slabs(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* plan);

/// A whole plan of sets that go through the shared memory of teams of blocks; false if they cannot, or are too small.
bool plan_rings(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* plan);

/// A plan of launches for each pass over rows, as far as it is about items; false if they cannot.
bool plan_rows(const ChannelRequest& r, const DeviceInfo& device, const ChannelTuning& tuning, ChannelPlan* plan);

/// A whole plan of launches for each pass over planes; false if they cannot.
bool plan_planes(const ChannelRequest& r, const ChannelTuning& tuning, ChannelPlan* plan);

}  // namespace normact
