// SPDX-License-Identifier: Apache-2.0
// How the sums of the threads of an item become an entry a channel in the workspace, and how entries merge. In fixed
// orders: lanes of a team, lines of a block, parts of a batch, channels of a group.
#pragma once

#include "cuda/channel_walk.cuh"
#include "math/channel.h"

namespace normact::cuda {

/// An item's moments of a channel; the mean is told from the set's first element (ForwardPass::origin_of).
template <class A>
struct alignas(4 * sizeof(A)) MomentsEntry {
  A mean, m2, count, unused;

  /// Past the L1 cache: another block may have written it.
  static __device__ __forceinline__ Moments<A> load(const MomentsEntry* from) {
    if constexpr (sizeof(A) == 4) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
      return {v.x, v.y, v.z};
    } else {
      return {__ldcg(&from->mean), __ldcg(&from->m2), __ldcg(&from->count)};
    }
  }
};

/// Two numbers: an item's sums of dh and dh * xhat of a channel, or what is left of a group's entries: mean and rstd in
/// the forward, c1 and c2 (math/channel.h) in the backward.
template <class A>
struct alignas(2 * sizeof(A)) NumberPair {
  A first, second;

  static __device__ __forceinline__ NumberPair load(const NumberPair* from) {
    if constexpr (sizeof(A) == 4) {
      const float2 v = __ldcg(reinterpret_cast<const float2*>(from));
      return {v.x, v.y};
    } else {
      const double2 v = __ldcg(reinterpret_cast<const double2*>(from));
      return {v.x, v.y};
    }
  }
};

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

template <class A>
__device__ __forceinline__ Moments<A> moments_of_lane(const Moments<A>& m, int offset) {
  return {__shfl_xor_sync(kFullWarp, m.mean, offset), __shfl_xor_sync(kFullWarp, m.m2, offset),
          __shfl_xor_sync(kFullWarp, m.count, offset)};
}

template <class A>
__device__ __forceinline__ A sum_of_helpers(A value, int helpers) {
  for (int offset = helpers / 2; offset > 0; offset >>= 1) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// The moments of an item's channel from those of the lines, to all its helpers. One division in all: the mean first,
/// then what each line has about it.
template <class A>
__device__ __forceinline__ Moments<A> moments_of_lines(const ChannelScratch<A>& scratch, int lines, int row, int column,
                                                       int helper, int helpers) {
  const A pivot = scratch.number(0)[column];
  A count = A(0), shift = A(0), m2 = A(0);
#pragma unroll 4
  for (int i = helper; i < lines; i += helpers) {
    const A n = scratch.number(2)[i * row + column];
    count += n;
    shift += n > A(0) ? n * (scratch.number(0)[i * row + column] - pivot) : A(0);
  }
  count = sum_of_helpers(count, helpers);
  shift = sum_of_helpers(shift, helpers);
  const A mean = count > A(0) ? pivot + shift / count : A(0);
#pragma unroll 4
  for (int i = helper; i < lines; i += helpers) {
    const Moments<A> line{scratch.number(0)[i * row + column], scratch.number(1)[i * row + column],
                          scratch.number(2)[i * row + column]};
    m2 += recentred(line, mean);
  }
  return {mean, sum_of_helpers(m2, helpers), count};
}

/// Where the entries of a channel begin.
__device__ __forceinline__ int64_t entry_of(const ChannelSpace& s, int64_t batch, int64_t channel) {
  return (batch * s.channels + channel) * s.parts;
}

/// Calls visit(offset) for the lanes of a warp whose sums belong together: those of a team on a plane, the lines of a
/// column of rows. Each visit adds what the lane `offset` away has.
template <class Visit>
__device__ __forceinline__ void join(const ChannelSpace& s, Visit visit) {
#pragma unroll 1
  for (int offset = s.join_from; offset < s.join_to; offset <<= 1) visit(offset);
}

/// Where this thread leaves the sums of its first channel of tile `index`; -1: another does.
template <class Walk>
__device__ __forceinline__ int scratch_index(const ChannelSpace& s, const Walk& walk, int index) {
  const int line = walk.line() >> s.together_bits;
  if (walk.lane() != 0 || line << s.together_bits != walk.line() || walk.line() >= s.lines) return -1;
  return line * row_of(s) + index * s.tile + walk.column();
}

/// Leaves the moments of this thread's channels of tile `index`, of `count` elements each. All threads.
template <class Walk, class A>
__device__ __forceinline__ void leave_moments(const ChannelSpace& s, const Walk& walk, int index,
                                              A (&mean)[Walk::kOwned], A (&m2)[Walk::kOwned], A count,
                                              const ChannelScratch<A>& scratch) {
  join(s, [&](int offset) {
    const A others = __shfl_xor_sync(kFullWarp, count, offset), share = share_of(count, others);
#pragma unroll
    for (int o = 0; o < Walk::kOwned; ++o) {
      const Moments<A> other{__shfl_xor_sync(kFullWarp, mean[o], offset), __shfl_xor_sync(kFullWarp, m2[o], offset),
                             others};
      const Moments<A> sum = merge(Moments<A>{mean[o], m2[o], count}, other, share);
      mean[o] = sum.mean;
      m2[o] = sum.m2;
    }
    count += others;
  });
  const int at = scratch_index(s, walk, index);
  if (at < 0) return;
#pragma unroll
  for (int o = 0; o < Walk::kOwned; ++o) {
    scratch.number(0)[at + o] = mean[o];
    scratch.number(1)[at + o] = m2[o];
    scratch.number(2)[at + o] = count;
  }
}

/// Writes the entries of an item from what all threads have left. All threads.
template <class A>
__device__ __forceinline__ void store_moments(const ChannelSpace& s, const ChannelItem& item,
                                              const ChannelScratch<A>& scratch, MomentsEntry<A>* entries) {
  __syncthreads();
  const int helpers = s.helpers, helper = threadIdx.x & (helpers - 1), of_warp = (threadIdx.x & ~(kWarp - 1)) / helpers;
  for (int first = 0; first + of_warp < item.channels; first += kChannelThreads / helpers) {
    const int c = first + static_cast<int>(threadIdx.x) / helpers;
    const int column = min(c, item.channels - 1);  // all lanes of a warp take part
    const Moments<A> sum = moments_of_lines(scratch, s.scratch_lines, row_of(s), column, helper, helpers);
    if (helper != 0 || c >= item.channels) continue;
    entries[entry_of(s, item.batch, item.first + c) + item.part] = {sum.mean, sum.m2, sum.count, A(0)};
  }
}

/// The same for sums.
template <class Walk, class A>
__device__ __forceinline__ void leave_sums(const ChannelSpace& s, const Walk& walk, int index,
                                           NumberPair<A> (&sums)[Walk::kOwned], const ChannelScratch<A>& scratch) {
  join(s, [&](int offset) {
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

template <class A>
__device__ __forceinline__ void store_sums(const ChannelSpace& s, const ChannelItem& item,
                                           const ChannelScratch<A>& scratch, NumberPair<A>* entries) {
  __syncthreads();
  const int row = row_of(s);
  const int helpers = s.helpers, helper = threadIdx.x & (helpers - 1), of_warp = (threadIdx.x & ~(kWarp - 1)) / helpers;
  for (int first = 0; first + of_warp < item.channels; first += kChannelThreads / helpers) {
    const int c = first + static_cast<int>(threadIdx.x) / helpers;
    const int column = min(c, item.channels - 1);  // all lanes of a warp take part
    NumberPair<A> sum{A(0), A(0)};
#pragma unroll 4
    for (int i = helper; i < s.scratch_lines; i += helpers) {
      sum.first += scratch.number(0)[i * row + column];
      sum.second += scratch.number(1)[i * row + column];
    }
    sum = {sum_of_helpers(sum.first, helpers), sum_of_helpers(sum.second, helpers)};
    if (helper == 0 && c < item.channels) entries[entry_of(s, item.batch, item.first + c) + item.part] = sum;
  }
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

/// The moments of `count` entries, to lane 0 of `lanes`.
template <class A>
__device__ __forceinline__ Moments<A> merge_entries(const MomentsEntry<A>* entries, unsigned count, int lane,
                                                    int lanes) {
  Moments<A> sum{A(0), A(0), A(0)};
#pragma unroll 4
  for (unsigned i = lane; i < count; i += lanes) sum = merge(sum, MomentsEntry<A>::load(entries + i));
  for (int offset = lanes / 2; offset > 0; offset >>= 1) sum = merge(sum, moments_of_lane(sum, offset));
  return sum;
}

}  // namespace normact::cuda
