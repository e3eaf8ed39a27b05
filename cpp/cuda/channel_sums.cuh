// SPDX-License-Identifier: Apache-2.0
// How the sums of the threads of an item become an entry a channel in the workspace, and how entries merge. In fixed
// orders: lanes of a team, lines of a block, parts of a batch, channels of a group.
#pragma once

#include "cuda/channel_walk.cuh"
#include "math/channel.h"

namespace normact::cuda {

/// An item's moments of a channel.
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

/// Where the threads of a block leave the sums of their channels: index line * tile + column of the tile.
template <class A, int kOwned, int kNumbers>
struct ChannelScratch {
  alignas(16) A number[kNumbers][kChannelThreads * kOwned];
};

template <class A>
__device__ __forceinline__ Moments<A> moments_of_lane(const Moments<A>& m, int offset) {
  return {__shfl_xor_sync(kFullWarp, m.mean, offset), __shfl_xor_sync(kFullWarp, m.m2, offset),
          __shfl_xor_sync(kFullWarp, m.count, offset)};
}

/// The moments of a tile's channel from those of the lines. One division in all: the mean first, then what each line
/// has about it.
template <class A, class Scratch>
__device__ __forceinline__ Moments<A> moments_of_lines(const Scratch& scratch, int lines, int tile, int column) {
  const A pivot = scratch.number[0][column];
  A count = A(0), shift = A(0), m2 = A(0);
#pragma unroll 4
  for (int i = 0; i < lines; ++i) {
    const A n = scratch.number[2][i * tile + column];
    count += n;
    shift += n > A(0) ? n * (scratch.number[0][i * tile + column] - pivot) : A(0);
  }
  const A mean = count > A(0) ? pivot + shift / count : A(0);
#pragma unroll 4
  for (int i = 0; i < lines; ++i) {
    const Moments<A> line{scratch.number[0][i * tile + column], scratch.number[1][i * tile + column],
                          scratch.number[2][i * tile + column]};
    m2 += recentred(line, mean);
  }
  return {mean, m2, count};
}

/// Where the entries of a channel begin.
__device__ __forceinline__ int64_t entry_of(const ChannelSpace& s, int64_t batch, int64_t channel) {
  return (batch * s.channels + channel) * s.parts;
}

/// Writes the entries of an item. mean, m2: of this thread's channels, of `count` elements each. All threads.
template <class Walk, class A>
__device__ __forceinline__ void store_moments(const ChannelSpace& s, const ChannelItem& item, const Walk& walk,
                                              A (&mean)[Walk::kOwned], A (&m2)[Walk::kOwned], A count,
                                              MomentsEntry<A>* entries) {
  __shared__ ChannelScratch<A, Walk::kOwned, 3> scratch;
  if constexpr (Walk::kPlanes) {
    Moments<A> sum{mean[0], m2[0], count};
    for (int offset = s.lanes / 2; offset > 0; offset >>= 1) sum = merge(sum, moments_of_lane(sum, offset));
    mean[0] = sum.mean;
    m2[0] = sum.m2;
    count = sum.count;
  }
  const int at = walk.line() * s.tile + walk.column();
  if (walk.lane() == 0) {
#pragma unroll
    for (int o = 0; o < Walk::kOwned; ++o) {
      scratch.number[0][at + o] = mean[o];
      scratch.number[1][at + o] = m2[o];
      scratch.number[2][at + o] = count;
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < item.channels; c += kChannelThreads) {
    const Moments<A> sum = moments_of_lines<A>(scratch, s.lines, s.tile, c);
    entries[entry_of(s, item.batch, item.first + c) + item.part] = {sum.mean, sum.m2, sum.count, A(0)};
  }
}

/// The same for sums.
template <class Walk, class A>
__device__ __forceinline__ void store_sums(const ChannelSpace& s, const ChannelItem& item, const Walk& walk,
                                           NumberPair<A> (&m)[Walk::kOwned], NumberPair<A>* entries) {
  __shared__ ChannelScratch<A, Walk::kOwned, 2> scratch;
  if constexpr (Walk::kPlanes) {
    for (int offset = s.lanes / 2; offset > 0; offset >>= 1) {
      m[0].first += __shfl_xor_sync(kFullWarp, m[0].first, offset);
      m[0].second += __shfl_xor_sync(kFullWarp, m[0].second, offset);
    }
  }
  const int at = walk.line() * s.tile + walk.column();
  if (walk.lane() == 0) {
#pragma unroll
    for (int o = 0; o < Walk::kOwned; ++o) {
      scratch.number[0][at + o] = m[o].first;
      scratch.number[1][at + o] = m[o].second;
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < item.channels; c += kChannelThreads) {
    NumberPair<A> sum{A(0), A(0)};
#pragma unroll 4
    for (int i = 0; i < s.lines; ++i) {
      sum.first += scratch.number[0][i * s.tile + c];
      sum.second += scratch.number[1][i * s.tile + c];
    }
    entries[entry_of(s, item.batch, item.first + c) + item.part] = sum;
  }
}

/// Calls visit(group, lane, lanes, valid) for the groups of a settle item, `merge_lanes` threads of a warp for each; all
/// threads of the warp take part.
template <class Visit>
__device__ __forceinline__ void for_each_group(const ChannelSpace& s, const ChannelSettle& settle, Visit visit) {
  const int lane = threadIdx.x & (s.merge_lanes - 1);
  const int64_t group = settle.first + (static_cast<int>(threadIdx.x) - lane) / s.merge_lanes;
  visit(group, lane, s.merge_lanes, group < settle.end);
}

/// The moments of `count` entries, to lane 0 of `lanes`.
template <class A>
__device__ __forceinline__ Moments<A> merge_entries(const MomentsEntry<A>* entries, unsigned count, int lane, int lanes) {
  Moments<A> sum{A(0), A(0), A(0)};
#pragma unroll 2
  for (unsigned i = lane; i < count; i += lanes) sum = merge(sum, MomentsEntry<A>::load(entries + i));
  for (int offset = lanes / 2; offset > 0; offset >>= 1) sum = merge(sum, moments_of_lane(sum, offset));
  return sum;
}

}  // namespace normact::cuda
