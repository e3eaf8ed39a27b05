// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm: what the blocks of one launch do, in which order, and how they wait for each other.
//
// Two passes over an item: the first (reduce) leaves sums of its channels in the workspace, the second (apply) writes
// the results. Between them the sums of a group are added up and what apply needs of them is left in the workspace
// (settle).
//
// kept     A block keeps an item in shared memory from its reading to its writing (channel_rounds.cuh). Items are dealt
//          out in turn, item i to block i modulo their number; the blocks of a slab wait for each other's sums, so all
//          blocks are launched together (or no slab has several items). There are at least two teams of blocks that are
//          at a slab, all of them whole; half of them begin later: while one adds up and waits, another reads and
//          writes. A block's items are of different slabs, in their order: whoever waits, waits for blocks that are at
//          that slab or an earlier one.
// solo     A block does both passes of a slab: nobody waits.
// waves    Blocks draw items by tickets, in this order: reduce wave 0, reduce wave 1 with settle wave 0 in its midst,
//          apply wave 0, reduce wave 2 with settle wave 1, apply wave 1, ... Settle waits for the reduce items of its
//          slab, apply for the settle items; these have lower tickets, so they were drawn by blocks that run, and that
//          themselves wait for still lower ones only. Nothing has to be resident together, and whatever else runs on
//          the device only delays.
// single   One pass: items are dealt out in turn.
// Which block does an item changes no bit. Planes of whole packs mostly do without this, and rows that are not kept
// always: channel_planes.cuh, channel_rows.cuh.
#pragma once

#include "cuda/channel_kept.cuh"

namespace normact::cuda {

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
    publish();
    __syncthreads();
    advance();
    return slot(turn_).work;
  }

  /// One of the threads asks for the next ticket, once; it comes in while the work goes on.
  __device__ __forceinline__ void draw() {
    if (!drawn_ && s.order == ChannelOrder::waves && threadIdx.x == 0) next_ = atomicAdd(counters_.ticket, 1);
    drawn_ = true;
  }
  /// All threads: what is next is known behind a barrier.
  __device__ __forceinline__ void publish() {
    draw();
    write(&slot(turn_ ^ 1));
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
    publish();
    __syncthreads();
    advance();
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

  __device__ __forceinline__ void advance() {
    turn_ ^= 1;
    drawn_ = false;
  }
  __device__ __forceinline__ void write(Slot* slot) {
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
    slot->work = work;
    if (work.stage == ChannelStage::reduce || work.stage == ChannelStage::apply) {
      slot->item = ChannelItem(s, work.slab, work.item);
    }
  }

  const ChannelSpace& s;
  ChannelCounters counters_;
  unsigned next_;
  int turn_ = 0;
  bool drawn_ = false;
};

/// The way from an item to the next ticket.
class DrawnSteps {
 public:
  __device__ __forceinline__ explicit DrawnSteps(ChannelQueue& queue) : queue_(queue) {}
  /// All threads: a barrier.
  __device__ __forceinline__ void meet() {
    queue_.draw();
    __syncthreads();
  }
  __device__ __forceinline__ void advance(int) const {}  // no item comes in (ItemCopy)

 private:
  ChannelQueue& queue_;
};

/// Carries out what this block has to do, where items are not kept: reduce(item, steps, kept), settle(groups) or
/// apply(item, kept, steps) of a pass, called by all threads.
template <class Pass>
__device__ __forceinline__ void run_drawn_items(const ChannelSpace& s, void* counters, const Pass& pass) {
  ChannelQueue queue(s, counters);
  ChannelTicket work = queue.first();
#pragma unroll 1
  while (work.stage != ChannelStage::end) {
    queue.wait(work);
    DrawnSteps steps(queue);
    if (work.stage == ChannelStage::reduce) {
      pass.reduce(queue.item(), steps, KeptPacks());
    } else if (work.stage == ChannelStage::settle) {
      queue.draw();
      pass.settle(ChannelSettle(s, work.slab, work.item), true);
    } else {
      queue.draw();
      pass.apply(queue.item(), KeptPacks(), steps);
    }
    work = queue.finish(work);
  }
}

}  // namespace normact::cuda
