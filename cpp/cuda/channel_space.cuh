// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm: what the blocks of one launch do, in which order, and how they wait for each other.
// core/plan_channel.h has the words (unit, tile, part, item, slab, wave).
//
// Two passes over an item: the first (reduce) leaves sums of its channels in the workspace, the second (apply) writes
// the results. Between them the sums of a group are added up and what apply needs of them is left in the workspace
// (settle). Where a slab is small a block does all of it (solo). Else blocks draw items by tickets, in this order:
// reduce wave 0, reduce wave 1 with settle wave 0 in its midst, apply wave 0, reduce wave 2 with settle wave 1, apply
// wave 1, ... Settle waits for the reduce items of its slab, apply for the settle items; these have lower tickets, so
// they were drawn by blocks that run, and that themselves wait for still lower ones only. Nothing has to be resident
// together, and whatever else runs on the device only delays. Which block does an item changes no bit.
#pragma once

#include "core/plan_channel.h"
#include "cuda/memory.cuh"
#include "cuda/reduce.cuh"

namespace normact::cuda {

/// What kernels are told beside the problem.
struct ChannelSpace {
  ChannelOrder order;
  bool reduces, applies;
  bool mask_together;  // an access's bits of a mask lie in one byte
  int lanes, tile, lines;
  int lane_bits, tile_bits;  // planes: the logarithms of lanes and tile
  Divisor by_lanes;
  int tiles_a_slab, tiles_an_item, stacks_a_slab, slabs_a_batch;  // a stack: tiles of an item
  unsigned slabs, slabs_a_wave, waves, items_a_slab, settles_a_slab;
  int merge_lanes;
  int64_t channels, places, places_before, places_after, samples_a_batch;
  int64_t units, units_a_part, parts;
  Divisor segments;  // planes: of a plane
  // Divide numbers below 2^31, which those of the kernels for packs are, as are channels and the entries of a group.
  Divisor by_group, by_parts, by_places, by_places_after;
  int segment_places;
  int64_t low = 0, high = 0;  // planes: x's elements lie from the one on and before the other
  int place_ndim;
  int64_t place_shape[kMaxDims];
  int64_t group_channels;
  int64_t groups;       // of a batch
  int64_t per_channel;  // elements of a channel in a batch

  ChannelSpace(const ChannelProblem& p, const ChannelPlan& plan, ChannelPasses passes)
      : order(plan.order),
        reduces(passes != ChannelPasses::apply),
        applies(passes != ChannelPasses::reduce),
        mask_together(plan.mask_together),
        lanes(plan.lanes),
        tile(plan.tile),
        lines(plan.lines),
        lane_bits(logarithm(plan.lanes)),
        tile_bits(logarithm(plan.tile)),
        by_lanes(static_cast<unsigned>(plan.lanes)),
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
        channels(p.geometry.channels),
        places(p.geometry.places),
        places_before(p.geometry.places / p.geometry.places_after),
        places_after(p.geometry.places_after),
        samples_a_batch(p.set == ChannelSet::channel ? p.geometry.samples : 1),
        units(plan.units),
        units_a_part(plan.units_a_part),
        parts(plan.parts),
        segments(static_cast<unsigned>(plan.segments > 0 ? plan.segments : 1)),
        segment_places(static_cast<int>(plan.segment_packs * kPackBytes / size_of(p.dtype))),
        by_group(static_cast<unsigned>(p.set == ChannelSet::channel ? 1 : p.geometry.channels / p.geometry.groups)),
        by_parts(static_cast<unsigned>(plan.parts)),
        by_places(divisor_of(p.geometry.places)),
        by_places_after(divisor_of(p.geometry.places_after)),
        place_ndim(p.geometry.place_ndim),
        group_channels(p.set == ChannelSet::channel ? 1 : p.geometry.channels / p.geometry.groups),
        groups(plan.groups),
        per_channel(p.geometry.places * samples_a_batch) {
    for (int d = 0; d < kMaxDims; ++d) place_shape[d] = d < place_ndim ? p.geometry.place_shape[d] : 1;
  }

  /// Where x lies, for walks of planes.
  void set_extent(const ChannelGeometry& g, const ChannelView& x) {
    const int64_t samples = (g.samples - 1) * x.sample_stride, span = (g.channels - 1) * x.channel_stride;
    low = (samples < 0 ? samples : 0) + (span < 0 ? span : 0);
    high = (samples > 0 ? samples : 0) + (span > 0 ? span : 0) + g.places;
  }

  /// The number of an element in row-major order of x's axes. kSmall: there are fewer than 2^31 places.
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

 private:
  static int logarithm(int size) {
    int bits = 0;
    while (1 << bits < size) ++bits;
    return bits;
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
};

/// A part of some neighbouring tiles of a batch.
struct ChannelItem {
  int64_t batch;
  int first;     // channel
  int channels;  // 0: an item of the last slab beyond the last channel
  int tiles;
  int64_t part;
  int64_t begin, end;  // units

  ChannelItem() = default;
  __device__ __forceinline__ ChannelItem(const ChannelSpace& s, unsigned slab, unsigned item) {
    const unsigned slabs_a_batch = static_cast<unsigned>(s.slabs_a_batch);
    const unsigned stacks = static_cast<unsigned>(s.stacks_a_slab);
    batch = slab / slabs_a_batch;
    part = item / stacks;
    const int in_slab = static_cast<int>(item % stacks) * s.tiles_an_item;
    tiles = min(s.tiles_an_item, s.tiles_a_slab - in_slab);
    first = (static_cast<int>(slab % slabs_a_batch) * s.tiles_a_slab + in_slab) * s.tile;
    channels = max(0, min(tiles * s.tile, static_cast<int>(s.channels) - first));
    begin = part * s.units_a_part;
    end = min(begin + s.units_a_part, s.units);
  }
  __device__ __forceinline__ ChannelTile tile(const ChannelSpace& s, int index) const {
    return {batch, first + index * s.tile, min(s.tile, channels - index * s.tile), begin, end};
  }
};

/// Groups of a slab whose sums are added up together.
struct ChannelSettle {
  int64_t batch;
  int64_t first, end;  // groups
  bool begins;         // the launch's first

  __device__ __forceinline__ ChannelSettle(const ChannelSpace& s, unsigned slab, unsigned item) {
    batch = slab / static_cast<unsigned>(s.slabs_a_batch);
    const int64_t slab_groups = static_cast<int64_t>(s.tiles_a_slab) * s.tile / s.group_channels;
    const int64_t of_slab = (slab % static_cast<unsigned>(s.slabs_a_batch)) * slab_groups;
    const int together = kChannelThreads / s.merge_lanes;
    first = of_slab + static_cast<int64_t>(item) * together;
    end = min(min(first + together, of_slab + slab_groups), s.groups);
    begins = slab == 0 && item == 0;
  }
};

/// Tickets drawn, and reduce and settle items done of every slab. 0 before the launch.
struct ChannelCounters {
  unsigned* ticket;
  unsigned* reduced;
  unsigned* settled;

  __device__ __forceinline__ ChannelCounters(void* at, unsigned slabs)
      : ticket(static_cast<unsigned*>(at)), reduced(ticket + 1), settled(reduced + slabs) {}

  /// One thread, after a barrier behind what its block has written.
  static __device__ __forceinline__ void finish(unsigned* done) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(done) : "memory");
  }
  /// One thread, before a barrier.
  static __device__ __forceinline__ void wait(const unsigned* done, unsigned items) {
    for (;;) {
      unsigned now;
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(done) : "memory");
      if (now >= items) break;
      __nanosleep(20);
    }
  }
};

enum class ChannelStage : uint8_t { reduce, settle, apply, end };

/// What a ticket stands for.
struct ChannelTicket {
  ChannelStage stage;
  unsigned slab;
  unsigned item;  // of the slab

  ChannelTicket() = default;
  __device__ __forceinline__ ChannelTicket(const ChannelSpace& s, unsigned ticket) {
    const unsigned items = s.slabs_a_wave * s.items_a_slab, settles = s.slabs_a_wave * s.settles_a_slab;
    if (ticket < items_of(s, 0)) {
      take(s, ChannelStage::reduce, 0, ticket);
      return;
    }
    ticket -= items_of(s, 0);
    // Waves 0 .. waves - 3 are followed by a whole wave.
    unsigned wave = s.waves > 2 ? min(ticket / (2 * items + settles), s.waves - 2) : 0;
    ticket -= wave * (2 * items + settles);
    for (; wave < s.waves; ++wave) {
      const unsigned ahead = wave + 1 < s.waves ? items_of(s, wave + 1) : 0;
      const unsigned here = items_of(s, wave), to_settle = slabs_of(s, wave) * s.settles_a_slab;
      if (ticket < ahead / 2) {
        take(s, ChannelStage::reduce, wave + 1, ticket);
        return;
      }
      ticket -= ahead / 2;
      if (ticket < to_settle) {
        take(s, ChannelStage::settle, wave, ticket);
        return;
      }
      ticket -= to_settle;
      if (ticket < ahead - ahead / 2) {
        take(s, ChannelStage::reduce, wave + 1, ticket + ahead / 2);
        return;
      }
      ticket -= ahead - ahead / 2;
      // Backwards: what was read last is surest to be in the cache.
      if (ticket < here) {
        take(s, ChannelStage::apply, wave, here - 1 - ticket);
        return;
      }
      ticket -= here;
    }
    stage = ChannelStage::end;
    slab = s.slabs;
    item = 0;
  }

 private:
  static __device__ __forceinline__ unsigned slabs_of(const ChannelSpace& s, unsigned wave) {
    return min(s.slabs_a_wave, s.slabs - wave * s.slabs_a_wave);
  }
  static __device__ __forceinline__ unsigned items_of(const ChannelSpace& s, unsigned wave) {
    return slabs_of(s, wave) * s.items_a_slab;
  }
  __device__ __forceinline__ void take(const ChannelSpace& s, ChannelStage what, unsigned wave, unsigned index) {
    const unsigned a_slab = what == ChannelStage::settle ? s.settles_a_slab : s.items_a_slab;
    stage = what;
    slab = wave * s.slabs_a_wave + index / a_slab;
    item = index % a_slab;
  }
};

/// What a block does next. One thread finds out, while the others still work on what is before it.
class ChannelQueue {
 public:
  __device__ __forceinline__ ChannelQueue(const ChannelSpace& space, void* counters)
      : s(space), counters_(counters, space.slabs), next_(s.order == ChannelOrder::solo ? 0 : blockIdx.x) {}

  /// The item of the work that first() or finish() gave.
  __device__ __forceinline__ const ChannelItem& item() const { return slot(turn_).item; }

  /// All threads.
  __device__ __forceinline__ ChannelTicket first() {
    draw();
    publish();
    __syncthreads();
    return slot(turn_).work;
  }

  /// One of the threads asks for the next ticket; it comes in while the work goes on.
  __device__ __forceinline__ void draw() {
    if (s.order == ChannelOrder::waves && threadIdx.x == 0) next_ = atomicAdd(counters_.ticket, 1);
  }

  /// All threads: what the work builds on is there.
  __device__ __forceinline__ void wait(const ChannelTicket& work) const {
    if (s.order != ChannelOrder::waves || work.stage == ChannelStage::reduce) return;
    if (threadIdx.x == 0) {
      if (work.stage == ChannelStage::settle) {
        counters_.wait(counters_.reduced + work.slab, s.items_a_slab);
      } else {
        counters_.wait(counters_.settled + work.slab, s.settles_a_slab);
      }
    }
    __syncthreads();
  }

  /// All threads: lets others build on the work, and gives the next one.
  __device__ __forceinline__ ChannelTicket finish(const ChannelTicket& work) {
    turn_ ^= 1;
    publish();
    __syncthreads();
    if (s.order == ChannelOrder::waves && work.stage != ChannelStage::apply && threadIdx.x == kChannelThreads - 1) {
      counters_.finish((work.stage == ChannelStage::settle ? counters_.settled : counters_.reduced) + work.slab);
    }
    return slot(turn_).work;
  }

 private:
  struct Slot {
    ChannelTicket work;
    ChannelItem item;
  };
  static __device__ __forceinline__ Slot& slot(int turn) {
    __shared__ Slot slots[2];
    return slots[turn];
  }

  __device__ __forceinline__ void publish() {
    if (threadIdx.x != 0) return;
    ChannelTicket work{};
    if (s.order == ChannelOrder::waves) {
      work = ChannelTicket(s, next_);
    } else if (s.order == ChannelOrder::single) {
      work.stage = s.reduces ? ChannelStage::reduce : ChannelStage::apply;
      work.slab = next_ / s.items_a_slab;
      work.item = next_ % s.items_a_slab;
      next_ += gridDim.x;
    } else {
      const unsigned passes = 2 * s.items_a_slab + s.settles_a_slab;
      const unsigned turn = next_ / passes, step = next_ % passes;
      ++next_;
      work.slab = blockIdx.x + turn * gridDim.x;
      work.stage = step < s.items_a_slab ? ChannelStage::reduce : ChannelStage::settle;
      work.item = step < s.items_a_slab ? step : step - s.items_a_slab;
      if (step >= s.items_a_slab + s.settles_a_slab) {
        work.stage = ChannelStage::apply;
        work.item = passes - 1 - step;
      }
    }
    if (work.slab >= s.slabs) work.stage = ChannelStage::end;
    slot(turn_).work = work;
    if (work.stage == ChannelStage::reduce || work.stage == ChannelStage::apply) {
      slot(turn_).item = ChannelItem(s, work.slab, work.item);
    }
  }

  const ChannelSpace& s;
  ChannelCounters counters_;
  unsigned next_;
  int turn_ = 0;
};

/// Carries out what this block has to do: reduce(item, draw), settle(groups) and apply(item) of a pass are called by
/// all threads. draw asks for the next ticket: in reduce behind the reading, so that no block draws two before others
/// have begun.
template <class Pass>
__device__ __forceinline__ void run_channel_items(const ChannelSpace& s, void* counters, const Pass& pass) {
  ChannelQueue queue(s, counters);
  const auto draw = [&] { queue.draw(); };
#pragma unroll 1
  for (ChannelTicket work = queue.first(); work.stage != ChannelStage::end; work = queue.finish(work)) {
    queue.wait(work);
    if (work.stage == ChannelStage::reduce) {
      pass.reduce(queue.item(), draw);
      continue;
    }
    queue.draw();
    if (work.stage == ChannelStage::settle) {
      pass.settle(ChannelSettle(s, work.slab, work.item));
    } else {
      pass.apply(queue.item());
    }
  }
}

}  // namespace normact::cuda
