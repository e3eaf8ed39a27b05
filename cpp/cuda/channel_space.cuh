// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm: what an item, and what adds up the sums of groups, has to do with.
// core/plan_channel.h has the words (unit, tile, part, item, slab, wave).
#pragma once

#include "core/plan_channel.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

/// Of a power of two.
inline int logarithm(int size) {
  int bits = 0;
  while (1 << bits < size) ++bits;
  return bits;
}

/// What kernels are told beside the problem.
struct ChannelSpace {
  ChannelOrder order;
  bool reduces;
  bool has_sums;  // of the backward: those that its second pass needs
  ChannelMask mask;
  int lanes, tile, lines;
  int lane_bits = logarithm(lanes), tile_bits = logarithm(tile);  // planes: the logarithms of lanes and tile
  Divisor by_lanes, by_step;                                      // by_step: of unit_step
  int unit_step;                                                  // rows: from one unit of a thread to the next
  bool settles_apart;  // kept: the sums of a slab are too many for each of its blocks to add them up for itself
  int tiles_a_slab, tiles_an_item, stacks_a_slab, slabs_a_batch;  // a stack: tiles of an item
  unsigned slabs, slabs_a_wave, waves, items_a_slab, settles_a_slab;
  int merge_lanes, merge_bits;                            // its logarithm
  int groups_an_item;                                     // that an item may touch; 0: groups of one channel
  int group_helpers = helpers_of(kWarp, groups_an_item);  // threads that share a group of an item
  int helpers;                       // threads that share a channel of an item when the lines' sums are added up
  int join_from, join_to;            // lanes of a warp whose sums are added up: distances, powers of two
  int tiles_a_sum;                   // kept: neighbours of a group whose sums are made in one
  int together_bits, scratch_lines;  // the logarithm of lines that these make one; lines that are left
  unsigned delay;                    // kept: of the second half of the teams, in nanoseconds
  int accesses;                      // kept: the most of a thread in an item, of each tensor
  int parameters_at;                 // kept: those of an item, in shared memory; 0: they are not. launches: TileNumbers
  int bits_at, kept_at;              // where bits of a mask and kept packs lie in shared memory
  bool mask_with_y;
  Divisor by_slabs, by_items, by_stacks;                           // kept, rows: of a batch, of a slab, of a part
  Divisor by_strips = divisor_of(int64_t{slabs} * stacks_a_slab);  // rows: stacks of all slabs
  int64_t channels, places, places_before, places_after, samples_a_batch;
  int64_t units, units_a_part, parts;
  bool few_units = units < kMaxDivisor;
  int64_t group_entries_at;  // of groups of several channels, in entries; 0 where channels have none
  Divisor segments;          // planes: of a plane
  // Divide numbers below 2^31, which those of the kernels for packs are, as are channels and the entries of a group.
  Divisor by_group, by_parameter, by_places, by_places_after;
  int segment_places;
  int64_t low = 0, high = 0;  // planes: x's elements lie from the one on and before the other
  int place_ndim;
  int64_t place_shape[kMaxDims];
  Divisor by_place[kMaxDims];  // its numbers, if there are fewer than 2^31 places
  int64_t group_channels = by_group.size;
  int64_t groups_a_slab;
  int64_t groups;       // of a batch
  int64_t per_channel;  // elements of a channel in a batch

  ChannelSpace(const ChannelProblem& p, const ChannelPlan& plan, ChannelPasses passes)
      : order(plan.order),
        reduces(passes != ChannelPasses::apply),
        has_sums(reduces),
        mask(plan.mask),
        lanes(plan.lanes),
        tile(plan.tile),
        lines(plan.lines),
        by_lanes(static_cast<unsigned>(plan.lanes)),
        by_step(divisor_of(plan.unit_step)),
        unit_step(static_cast<int>(plan.unit_step)),
        settles_apart(plan.settles_apart),
        tiles_a_slab(static_cast<int>(plan.tiles_a_slab)),
        tiles_an_item(plan.tiles_an_item),
        stacks_a_slab(static_cast<int>(plan.stacks_a_slab())),
        slabs_a_batch(static_cast<int>(plan.slabs / plan.batches)),
        slabs(static_cast<unsigned>(plan.slabs)),
        slabs_a_wave(static_cast<unsigned>(plan.slabs_a_wave < plan.slabs ? plan.slabs_a_wave : plan.slabs)),
        waves((slabs + slabs_a_wave - 1) / slabs_a_wave),
        items_a_slab(static_cast<unsigned>(plan.items_a_slab())),
        settles_a_slab(static_cast<unsigned>(plan.settles_a_slab)),
        merge_lanes(plan.merge_lanes),
        merge_bits(logarithm(plan.merge_lanes)),
        groups_an_item(plan.groups_an_item),
        helpers(helpers_of(plan.scratch_lines(), plan.tile * plan.tiles_an_item)),
        join_from(plan.access == ChannelAccess::planes ? 1 : plan.lanes),
        join_to(plan.access == ChannelAccess::planes ? plan.lanes : plan.lanes * plan.lines_together),
        tiles_a_sum(sums_together(p, plan)),
        together_bits(logarithm(plan.lines_together)),
        scratch_lines(plan.scratch_lines()),
        delay(static_cast<unsigned>(plan.delay)),
        accesses(plan.accesses),
        parameters_at(plan.parameter_bytes > 0 ? plan.scratch_bytes : 0),
        bits_at(plan.scratch_bytes + plan.parameter_bytes),
        kept_at(plan.scratch_bytes + plan.parameter_bytes + plan.bits_bytes),
        mask_with_y(plan.mask_with_y),
        by_slabs(divisor_of(plan.slabs / plan.batches)),
        by_items(divisor_of(plan.items_a_slab())),
        by_stacks(divisor_of(plan.stacks_a_slab())),
        channels(p.geometry.channels),
        places(p.geometry.places),
        places_before(p.geometry.places / p.geometry.places_after),
        places_after(p.geometry.places_after),
        samples_a_batch(p.set == ChannelSet::channel ? p.geometry.samples : 1),
        units(plan.units),
        units_a_part(plan.units_a_part),
        parts(plan.parts),
        group_entries_at(plan.group_entries_at),
        segments(static_cast<unsigned>(plan.segments > 0 ? plan.segments : 1)),
        segment_places(static_cast<int>(plan.segment_packs * kPackBytes / size_of(p.dtype))),
        by_group(static_cast<unsigned>(p.geometry.channels / p.geometry.groups)),
        by_parameter(static_cast<unsigned>(parameter_channels(p))),
        by_places(divisor_of(p.geometry.places)),
        by_places_after(divisor_of(p.geometry.places_after)),
        place_ndim(p.geometry.place_ndim),
        groups_a_slab(plan.tiles_a_slab * plan.tile / group_channels),
        groups(plan.groups),
        per_channel(p.geometry.places * samples_a_batch) {
    divide_places(p.geometry);
  }

  void divide_places(const ChannelGeometry& g) {
    for (int d = 0; d < kMaxDims; ++d) {
      place_shape[d] = d < place_ndim ? g.place_shape[d] : 1;
      by_place[d] = divisor_of(place_shape[d]);
    }
  }
  /// Where x lies, for walks of planes.
  void set_extent(const ChannelGeometry& g, const ChannelView& x) {
    const int64_t samples = (g.samples - 1) * x.sample_stride, span = (g.channels - 1) * x.channel_stride;
    low = (samples < 0 ? samples : 0) + (span < 0 ? span : 0);
    high = (samples > 0 ? samples : 0) + (span > 0 ? span : 0) + g.places;
  }

  /// Where a place lies from its channel's first, in a tensor of any strides.
  __device__ __forceinline__ int64_t place_offset(const ChannelView& view, int64_t place) const {
    if (places >= kMaxDivisor) return far_place_offset(view, place);
    auto rest = static_cast<unsigned>(place);
    int64_t offset = 0;
#pragma unroll 1
    for (int d = place_ndim - 1; d > 0; --d) {
      const unsigned before = by_place[d].quotient(rest);
      offset += static_cast<int64_t>(rest - before * by_place[d].size) * view.place_stride[d];
      rest = before;
    }
    return offset + static_cast<int64_t>(rest) * view.place_stride[0];
  }
  /// The same by divisions of 64 bits, which would be most of a kernel if they were inlined.
  __device__ __noinline__ int64_t far_place_offset(const ChannelView& view, int64_t place) const {
    return strided_offset(place, place_ndim, place_shape, view.place_stride);
  }

  /// The number of an element in a mask. kSmall: there are fewer than 2^31 places.
  template <bool kSmall>
  __device__ __forceinline__ int64_t number_of(int64_t sample, int64_t channel, int64_t place) const {
    const int64_t before = kSmall ? by_places_after.quotient(static_cast<unsigned>(place)) : place / places_after;
    // Samples times places before the channels': of a whole plane, samples.
    const int64_t outer = sample * places_before + before;
    return (outer * channels + channel) * places_after + place - before * places_after;
  }
  __device__ __forceinline__ int64_t group_of(int64_t channel) const {
    return by_group.quotient(static_cast<unsigned>(channel));
  }
  /// The index of a channel's weight and bias: columns (ChannelAccess) share those of their group.
  __device__ __forceinline__ int64_t parameter_of(int64_t channel) const {
    return by_parameter.quotient(static_cast<unsigned>(channel));
  }
  __device__ __forceinline__ int parameters_an_item() const {
    return static_cast<int>(parameter_of(tile * tiles_an_item));
  }
  /// Whether channels are columns: sums and parameters are of their groups.
  __device__ __forceinline__ bool has_columns() const { return by_parameter.size > 1; }

 private:
  /// That share a weight and a bias.
  static int parameter_channels(const ChannelProblem& p) {
    return p.set == ChannelSet::channel ? static_cast<int>(p.geometry.channels / p.geometry.groups) : 1;
  }
  /// Neighbours in a warp.
  static int helpers_of(int lines, int channels) {
    int helpers = 1;
    while (helpers < kWarp && 2 * helpers <= lines && 2 * helpers * channels <= kChannelThreads) helpers *= 2;
    return helpers;
  }
  static int sums_together(const ChannelProblem& p, const ChannelPlan& plan) {
    const int64_t channels = p.geometry.channels / p.geometry.groups;
    return plan.access == ChannelAccess::planes && channels % plan.tile == 0 ? static_cast<int>(channels / plan.tile)
                                                                             : 1;
  }
  static Divisor divisor_of(int64_t size) { return Divisor(size < kMaxDivisor ? static_cast<unsigned>(size) : 1); }
  static constexpr int64_t kMaxDivisor = int64_t{1} << 31;
};

/// A part of a tile of a batch: what a walk goes through.
struct ChannelTile {
  int64_t batch;
  int first;           // channel
  int channels;        // at most; 0: beyond the last channel
  int64_t begin, end;  // units
  int first_group;     // of those settled together
  int in_item;         // channels before it
};

/// A part of some neighbouring tiles of a batch.
struct ChannelItem {
  int64_t batch;
  int first;     // channel
  int channels;  // 0: an item of the last slab beyond the last channel
  int tiles;
  int64_t part;
  int64_t begin, end;   // units
  int64_t group_entry;  // its first, where groups have several channels
  int first_group;      // of those settled together: of the slab's, or the item's

  ChannelItem() = default;
  __device__ __forceinline__ ChannelItem(const ChannelSpace& s, unsigned slab, unsigned item)
      : ChannelItem(s, slab, slab / static_cast<unsigned>(s.slabs_a_batch), item,
                    item / static_cast<unsigned>(s.stacks_a_slab)) {}
  /// The batch of the slab and the part of the item are known.
  __device__ __forceinline__ ChannelItem(const ChannelSpace& s, unsigned slab, unsigned of_batch, unsigned item,
                                         unsigned of_part)
      : batch(of_batch), part(of_part) {
    const int in_slab = static_cast<int>(item - of_part * static_cast<unsigned>(s.stacks_a_slab)) * s.tiles_an_item;
    tiles = min(s.tiles_an_item, s.tiles_a_slab - in_slab);
    const int slab_of_batch = static_cast<int>(slab - of_batch * static_cast<unsigned>(s.slabs_a_batch));
    first = (slab_of_batch * s.tiles_a_slab + in_slab) * s.tile;
    first_group =
        s.settles_apart ? static_cast<int>(s.group_of(first)) : slab_of_batch * static_cast<int>(s.groups_a_slab);
    channels = max(0, min(tiles * s.tile, static_cast<int>(s.channels) - first));
    const bool interleaved = s.unit_step > s.lines;
    begin = part * (interleaved ? s.lines : s.units_a_part);
    end = interleaved ? s.units : min(begin + s.units_a_part, s.units);
    group_entry = (static_cast<int64_t>(slab) * s.items_a_slab + item) * s.groups_an_item;
  }
  __device__ __forceinline__ ChannelTile tile(const ChannelSpace& s, int index) const {
    return {batch,       first + index * s.tile, min(s.tile, channels - index * s.tile), begin, end,
            first_group, index * s.tile};
  }
};

/// Groups of a slab whose sums are added up together.
struct ChannelSettle {
  unsigned slab;
  int64_t batch;
  int64_t first, end;  // groups
  int64_t first_of_slab;
  bool begins;  // the launch's first

  __device__ __forceinline__ ChannelSettle(const ChannelSpace& s, unsigned slab, unsigned item)
      : ChannelSettle(s, slab, slab / static_cast<unsigned>(s.slabs_a_batch), item) {}
  /// The batch of the slab is known.
  __device__ __forceinline__ ChannelSettle(const ChannelSpace& s, unsigned slab, unsigned of_batch, unsigned item)
      : slab(slab), batch(of_batch), begins(slab == 0 && item == 0) {
    const int together = kChannelThreads >> s.merge_bits;
    first_of_slab = (slab - of_batch * static_cast<unsigned>(s.slabs_a_batch)) * s.groups_a_slab;
    first = first_of_slab + static_cast<int64_t>(item) * together;
    end = min(min(first + together, first_of_slab + s.groups_a_slab), s.groups);
  }
};

/// Which entries there are of a group that is being settled: of one channel, those of its parts; of several, one of
/// each item that holds some of them.
class GroupEntries {
 public:
  GroupEntries() = default;
  __device__ __forceinline__ GroupEntries(const ChannelSpace& s, const ChannelSettle& settle, int64_t group)
      : s_(&s), slab_(settle.slab), group_(static_cast<int>(group - settle.first_of_slab)) {
    if (s.groups_an_item == 0) {
      first_ = (settle.batch * s.channels + group) * s.parts;
      count_ = static_cast<unsigned>(s.parts);
      return;
    }
    const int width = s.tile * s.tiles_an_item, channels = static_cast<int>(s.group_channels);
    const int begin = group_ * channels, end = min(begin + channels, s.tiles_a_slab * s.tile);
    stack_ = begin / width;
    stacks_ = static_cast<unsigned>((end - 1) / width - stack_ + 1);
    count_ = stacks_ * static_cast<unsigned>(s.parts);
  }
  __device__ __forceinline__ unsigned count() const { return count_; }
  __device__ __forceinline__ int64_t operator()(unsigned i) const {
    if (s_->groups_an_item == 0) return first_ + i;
    const unsigned part = i / stacks_, stack = stack_ + i - part * stacks_;
    const unsigned before = stack * s_->tile * s_->tiles_an_item;  // channels of the slab
    const int64_t item = static_cast<int64_t>(slab_) * s_->items_a_slab + part * s_->stacks_a_slab + stack;
    return item * s_->groups_an_item + group_ - static_cast<int>(s_->by_group.quotient(before));
  }

 private:
  const ChannelSpace* s_;
  unsigned slab_ = 0, stacks_ = 1, count_ = 0;
  int group_ = 0, stack_ = 0;
  int64_t first_ = 0;
};

}  // namespace normact::cuda
