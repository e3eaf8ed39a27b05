// SPDX-License-Identifier: Apache-2.0
// How the sums of the threads of an item become an entry a channel in the workspace, and how entries merge. In fixed
// orders: lanes of a team, lines of a block, parts of a batch, channels of a group.
#pragma once

#include "cuda/channel_handed.cuh"
#include "cuda/channel_walk.cuh"
#include "math/channel.h"

namespace normact::cuda {

/// Channels of an item.
__device__ __forceinline__ int row_of(const ChannelSpace& s) { return s.tile * s.tiles_an_item; }

/// Where the threads of a block leave the sums of their channels: index line * row + the channel of the item. Lines of
/// a warp have been added up before (join).
template <class A>
struct ChannelScratch {
  A* at;
  int stride;

  __device__ __forceinline__ explicit ChannelScratch(const ChannelSpace& s)
      : at(reinterpret_cast<A*>(channel_shared)), stride(s.scratch_lines * row_of(s)) {}
  __device__ __forceinline__ A* number(int which) const { return at + which * stride; }
};

/// What is left of the sums of a group, counted from the first that is settled with it: of the slab where a block does
/// so for itself, else of the item, whose results it collects in the scratch memory.
template <class A>
__device__ __forceinline__ NumberPair<A> settled_at(const ChannelSpace& s, const NumberPair<A>* settled,
                                                    int64_t group) {
  if (!s.settles_apart) return settled[group];
  const ChannelScratch<A> scratch(s);
  return {scratch.number(0)[group], scratch.number(1)[group]};
}

/// Waits for what other blocks have made of the sums of an item's groups. All threads.
template <class A>
__device__ __forceinline__ void collect_finals(const ChannelSpace& s, const ChannelItem& item,
                                               const NumberPair<A>* finals) {
  const ChannelScratch<A> scratch(s);
  const auto first = static_cast<int>(s.group_of(item.first));
  const int groups = item.channels > 0 ? static_cast<int>(s.group_of(item.first + item.channels - 1)) - first + 1 : 0;
  for (int i = threadIdx.x; i < groups; i += kChannelThreads) {
    const auto of = handed<Arrival::awaited>(finals + item.batch * s.groups + first + i);
    scratch.number(0)[i] = of.first;
    scratch.number(1)[i] = of.second;
  }
}

template <class A>
__device__ __forceinline__ Moments<A> moments_of_lane(const Moments<A>& m, int offset) {
  return {__shfl_xor_sync(kFullWarp, m.mean, offset), __shfl_xor_sync(kFullWarp, m.m2, offset),
          __shfl_xor_sync(kFullWarp, m.count, offset)};
}

/// The same of what each(visit) goes through by its index in the scratch memory.
template <class A, class Each>
__device__ __forceinline__ Moments<A> moments_of_lines(const ChannelScratch<A>& scratch, int helpers, A pivot,
                                                       Each each) {
  return moments_of_sets(helpers, pivot, [&](auto visit) {
    each([&](int at) { visit(Moments<A>{scratch.number(0)[at], scratch.number(1)[at], scratch.number(2)[at]}); });
  });
}

/// Calls visit(channel, index in the scratch memory) for what a helper has of the sums of channels from .. to - 1.
template <class Visit>
__device__ __forceinline__ void for_each_sum(int row, int lines, int from, int to, int helper, int helpers,
                                             Visit visit) {
  const unsigned channels = to > from ? static_cast<unsigned>(to - from) : 0;
  if (channels == 0) return;
  const unsigned line_step = static_cast<unsigned>(helpers) / channels, step = helpers - line_step * channels;
  unsigned line = static_cast<unsigned>(helper) / channels, c = helper - line * channels;
#pragma unroll 4
  while (line < static_cast<unsigned>(lines)) {
    visit(static_cast<int>(from + c), static_cast<int>(line * row + from + c));
    line += line_step;
    c += step;
    if (c >= channels) {
      c -= channels;
      ++line;
    }
  }
}

/// Calls visit(local, from, to, helper, helpers) for the groups that an item may touch: their channels of the item,
/// none where from >= to. All threads of a warp take part.
template <class Visit>
__device__ __forceinline__ void for_each_group_of_item(const ChannelSpace& s, const ChannelItem& item, Visit visit) {
  const int helpers = s.group_helpers, helper = threadIdx.x & (helpers - 1);
  const int of_warp = (threadIdx.x & ~(kWarp - 1)) / helpers, channels = static_cast<int>(s.group_channels);
  const int before = item.first - static_cast<int>(s.group_of(item.first)) * channels;  // of the first group
  for (int first = 0; first + of_warp < s.groups_an_item; first += kChannelThreads / helpers) {
    const int local = first + static_cast<int>(threadIdx.x) / helpers, begin = local * channels - before;
    visit(local, max(begin, 0), min(begin + channels, item.channels), helper, helpers);
  }
}

/// Where the entries of a channel begin.
__device__ __forceinline__ int64_t entry_of(const ChannelSpace& s, int64_t batch, int64_t channel) {
  return (batch * s.channels + channel) * s.parts;
}

/// Calls visit(offset) for the lanes of a warp whose sums belong together: those of a team on a plane, the lines of a
/// column of rows. Each visit adds what the lane `offset` away has.
template <class Visit>
__device__ __forceinline__ void join(int from, int to, Visit visit) {
#pragma unroll 1
  for (int offset = from; offset < to; offset <<= 1) visit(offset);
}

/// Where this thread leaves the sums of its first channel of tile `index`; -1: another does.
template <class Walk>
__device__ __forceinline__ int scratch_index(const ChannelSpace& s, const Walk& walk, int index) {
  const int line = walk.line() >> s.together_bits;
  if (walk.lane() != 0 || line << s.together_bits != walk.line() || walk.line() >= s.lines) return -1;
  return line * row_of(s) + index * s.tile + walk.column();
}

/// Leaves the moments of this thread's channels of tile `index`, of `count` elements each.
template <class Walk, class A>
__device__ __forceinline__ void leave_moments(const ChannelSpace& s, const Walk& walk, int index,
                                              const A (&mean)[Walk::kOwned], const A (&m2)[Walk::kOwned], A count,
                                              const ChannelScratch<A>& scratch) {
  const int at = scratch_index(s, walk, index);
  if (at < 0) return;
#pragma unroll
  for (int o = 0; o < Walk::kOwned; ++o) {
    scratch.number(0)[at + o] = mean[o];
    scratch.number(1)[at + o] = m2[o];
    scratch.number(2)[at + o] = count;
  }
}

/// Writes the entries of an item from what all threads have left: of its channels, or of its groups of several.
/// origin(the item's channel). meet(): a barrier. All threads.
template <class A, class Origin, class Meet>
__device__ __forceinline__ void store_moments(const ChannelSpace& s, const ChannelItem& item,
                                              const ChannelScratch<A>& scratch, MomentsEntry<A>* entries, Origin origin,
                                              Meet meet) {
  const int row = row_of(s), lines = s.scratch_lines;
  if (item.channels == 0) {  // beyond the last channel, which has no origin
    meet();
    return;
  }
  if (s.groups_an_item > 0) {
    meet();
    for_each_group_of_item(s, item, [&](int local, int from, int to, int helper, int helpers) {
      const A of = origin(min(from, item.channels - 1));
      const Moments<A> sum = moments_of_lines(
          scratch, helpers, scratch.number(0)[from < to ? from : 0],
          [&](auto visit) { for_each_sum(row, lines, from, to, helper, helpers, [&](int, int at) { visit(at); }); });
      if (helper == 0 && from < to) {
        hand(entries + item.group_entry + local, MomentsEntry<A>{sum.mean, sum.m2, sum.count, of});
      }
    });
    return;
  }
  const int helpers = s.helpers, helper = threadIdx.x & (helpers - 1), of_warp = (threadIdx.x & ~(kWarp - 1)) / helpers;
  const int of_block = static_cast<int>(threadIdx.x) / helpers;
  A from = origin(min(of_block, item.channels - 1));  // comes in while others are still at their sums
  meet();
  for (int first = 0; first + of_warp < item.channels; first += kChannelThreads / helpers) {
    const int c = first + of_block;
    const int column = min(c, item.channels - 1);  // all lanes of a warp take part
    if (first > 0) from = origin(column);
    const Moments<A> sum = moments_of_lines(scratch, helpers, scratch.number(0)[column], [&](auto visit) {
#pragma unroll 4
      for (int i = helper; i < lines; i += helpers) visit(i * row + column);
    });
    if (helper != 0 || c >= item.channels) continue;
    hand(entries + entry_of(s, item.batch, item.first + c) + item.part,
         MomentsEntry<A>{sum.mean, sum.m2, sum.count, from});
  }
}

/// The same for sums.
template <class Walk, class A>
__device__ __forceinline__ void leave_sums(const ChannelSpace& s, const Walk& walk, int index,
                                           NumberPair<A> (&sums)[Walk::kOwned], const ChannelScratch<A>& scratch) {
  join(s.join_from, s.join_to, [&](int offset) {
#pragma unroll
    for (int o = 0; o < Walk::kOwned; ++o) {
      sums[o].first += __shfl_xor_sync(kFullWarp, sums[o].first, offset);
      sums[o].second += __shfl_xor_sync(kFullWarp, sums[o].second, offset);
    }
  });
  const int at = scratch_index(s, walk, index);
  if (at < 0) return;
#pragma unroll
  for (int o = 0; o < Walk::kOwned; ++o) {
    scratch.number(0)[at + o] = sums[o].first;
    scratch.number(1)[at + o] = sums[o].second;
  }
}

/// The same for sums, behind a barrier.
template <class A>
__device__ __forceinline__ void store_sums(const ChannelSpace& s, const ChannelItem& item,
                                           const ChannelScratch<A>& scratch, NumberPair<A>* entries) {
  const int row = row_of(s);
  const int helpers = s.helpers, helper = threadIdx.x & (helpers - 1), of_warp = (threadIdx.x & ~(kWarp - 1)) / helpers;
  for (int first = 0; first + of_warp < item.channels; first += kChannelThreads / helpers) {
    const int c = first + static_cast<int>(threadIdx.x) / helpers;
    NumberPair<A> sum{A(0), A(0)};
#pragma unroll 4
    for (int i = c < item.channels ? helper : s.scratch_lines; i < s.scratch_lines; i += helpers) {
      sum.first += scratch.number(0)[i * row + c];
      sum.second += scratch.number(1)[i * row + c];
    }
    // All lanes of a warp take part.
    sum = {sum_of_helpers(sum.first, helpers), sum_of_helpers(sum.second, helpers)};
    if (helper != 0 || c >= item.channels) continue;
    hand(entries + entry_of(s, item.batch, item.first + c) + item.part, sum);
    if (s.groups_an_item > 0) {  // for store_group_sums
      scratch.number(0)[c] = sum.first;
      scratch.number(1)[c] = sum.second;
    }
  }
}

/// The same of the groups of several channels, behind a barrier: weighted by weight(the item's channel), as g is.
/// lines: 1 after store_sums, which has added them up.
template <class A, class Weight>
__device__ __forceinline__ void store_group_sums(const ChannelSpace& s, const ChannelItem& item,
                                                 const ChannelScratch<A>& scratch, int lines, NumberPair<A>* entries,
                                                 Weight weight) {
  const int row = row_of(s);
  for_each_group_of_item(s, item, [&](int local, int from, int to, int helper, int helpers) {
    NumberPair<A> sum{A(0), A(0)};
    for_each_sum(row, lines, from, to, helper, helpers, [&](int c, int at) {
      const A w = weight(c);
      sum.first += w * scratch.number(0)[at];
      sum.second += w * scratch.number(1)[at];
    });
    sum = {sum_of_helpers(sum.first, helpers), sum_of_helpers(sum.second, helpers)};
    if (helper == 0 && from < to) hand(entries + item.group_entry + local, sum);
  });
}

/// Calls visit(group, lane, lanes, valid) for the groups of a settle item, `merge_lanes` threads of a warp for each;
/// all threads of the warp take part.
template <class Visit>
__device__ __forceinline__ void for_each_group(const ChannelSpace& s, const ChannelSettle& settle, Visit visit) {
  const int lane = threadIdx.x & (s.merge_lanes - 1);
  if (settle.first + (static_cast<int>(threadIdx.x & ~(kWarp - 1)) >> s.merge_bits) >= settle.end) return;  // a warp
  const int64_t group = settle.first + (static_cast<int>(threadIdx.x) >> s.merge_bits);
  visit(group, lane, s.merge_lanes, group < settle.end);
}

/// The moments of the entries at(0 .. count - 1), to lane 0 of `lanes`; with the set's mean.
template <Arrival kArrival, unsigned kTogether, class A, class At>
__device__ __forceinline__ Moments<A> merge_entries(const MomentsEntry<A>* entries, unsigned count, int lane, int lanes,
                                                    At at) {
  Moments<A> sum{A(0), A(0), A(0)};
  A origin = A(0);
  for_each_handed<kArrival, kTogether>(entries, count, lane, lanes, at, [&](const MomentsEntry<A>& entry) {
    sum = merge(sum, entry.moments());
    origin = entry.origin;
  });
  for (int offset = lanes / 2; offset > 0; offset >>= 1) sum = merge(sum, moments_of_lane(sum, offset));
  sum.mean += origin;
  return sum;
}

}  // namespace normact::cuda
