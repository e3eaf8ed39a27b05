// SPDX-License-Identifier: Apache-2.0
// What the drivers of the channel norms share: the way through memory, the blocks that moments and sums are taken in,
// parameters as arrays, and the parallel loops. Blocks depend on the shape alone, so that bits do too.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/channel.h"
#include "cpu/channel_kernels.h"
#include "cpu/dispatch.h"
#include "cpu/partition.h"
#include "cpu/scratch.h"

namespace normact::cpu {

// ---- The way through memory -----------------------------------------------------------------------------------------

inline int64_t rows_of(const ChannelGeometry& geometry) { return geometry.samples * geometry.places; }
inline int64_t elements_of(const ChannelGeometry& geometry) { return rows_of(geometry) * geometry.channels; }

/// Whether the kernels by rows serve: the channels are contiguous in all tensors and the places are not.
inline bool goes_by_rows(const ChannelGeometry& geometry, std::initializer_list<const ChannelView*> views) {
  if (geometry.channels == 1) return false;
  bool rows = true, planes = geometry.place_ndim == 1 && geometry.places > 1;
  for (const ChannelView* view : views) {
    if (!view->data) continue;
    rows = rows && view->channel_stride == 1;
    planes = planes && view->place_stride[0] == 1;
  }
  return rows && !planes;
}

/// Whether the outputs of a call that moves so many bytes go past the caches: they are arrays, and none is written in
/// place.
inline bool streams_outputs(const ChannelGeometry& geometry, bool by_rows, int64_t bytes,
                            std::initializer_list<const ChannelView*> outputs,
                            std::initializer_list<const ChannelView*> inputs) {
  if (!streams(bytes)) return false;
  for (const ChannelView* output : outputs) {
    if (!output->data) continue;
    if (!by_rows && (geometry.place_ndim != 1 || output->place_stride[0] != 1)) return false;
    for (const ChannelView* input : inputs) {
      if (input->data == output->data) return false;
    }
  }
  return true;
}

/// Samples that lie one after the other are more places, where statistics are over all of them and bits keep their
/// order: (n, 1) and channels first are then as good as anything.
inline void merge_samples(ChannelGeometry& geometry, ChannelSet set, bool has_mask,
                          std::initializer_list<ChannelView*> views) {
  if (set == ChannelSet::group || geometry.samples == 1 || geometry.place_ndim != 1) return;
  if (has_mask && geometry.places_after != 1 && geometry.channels != 1) return;
  const bool one = geometry.places == 1;
  for (const ChannelView* view : views) {
    if (!view->data) continue;
    if (!one && view->sample_stride != geometry.places * view->place_stride[0]) return;
  }
  for (ChannelView* view : views) {
    if (one) view->place_stride[0] = view->sample_stride;
  }
  geometry.places = geometry.place_shape[0] = rows_of(geometry);
  geometry.samples = 1;
}

// ---- Blocks ---------------------------------------------------------------------------------------------------------

/// How a list of planes is cut.
struct PlaneBlocks {
  bool along_samples;
  int64_t planes;  // of the list
  int64_t places;
  int64_t each;    // planes of a block
  int64_t chunks;  // blocks of a plane, where each is 1

  int64_t count() const { return ceil_div(planes, each) * chunks; }
  PlaneBlock block(int64_t sample, int64_t channel, int64_t index) const {
    const int64_t first = index / chunks * each, begin = index % chunks * kPlaneChunk;
    return {along_samples ? sample + first : sample,
            along_samples ? channel : channel + first,
            along_samples,
            std::min(each, planes - first),
            {begin, std::min(places, begin + kPlaneChunk)}};
  }
};

/// Of a list without elements there are no blocks, or empty ones.
inline PlaneBlocks plane_blocks(const ChannelGeometry& geometry, bool along_samples, int64_t planes) {
  const int64_t places = geometry.places;
  if (places > kPlaneChunk) return {along_samples, planes, places, 1, ceil_div(places, kPlaneChunk)};
  const int64_t each = std::min(planes, kPlaneChunk / std::max<int64_t>(places, 1));
  return {along_samples, planes, places, std::max<int64_t>(each, 1), 1};
}

/// How rows are cut into parts, whose moments or sums are arrays over the channels.
struct RowParts {
  int64_t rows;
  int64_t each;
  int64_t count;
  int64_t channels;
  int64_t strips;  // of channels

  int64_t units() const { return count * strips; }
  Range part(int64_t unit, int64_t first_row) const {
    const int64_t begin = unit / strips * each;
    return {first_row + begin, first_row + std::min(rows, begin + each)};
  }
  Range strip(int64_t unit) const {
    const int64_t begin = unit % strips * kStrip;
    return {begin, std::min(channels, begin + kStrip)};
  }
  /// Where a unit's array begins in two arrays for all parts.
  int64_t at(int64_t unit) const { return unit / strips * channels + unit % strips * kStrip; }
  int64_t bytes() const { return 2 * count * channels * int64_t{sizeof(double)}; }
  double* second(double* first) const { return first + count * channels; }
};

constexpr int64_t kMaxParts = 64;
constexpr int64_t kMinPartBlocks = 2;

inline RowParts row_parts(int64_t rows, int64_t channels) {
  const int64_t block = block_of_rows(channels);
  const int64_t each = block * std::max(kMinPartBlocks, ceil_div(ceil_div(rows, block), kMaxParts));
  return {rows, each, ceil_div(rows, each), channels, ceil_div(channels, kStrip)};
}

// ---- Parameters -----------------------------------------------------------------------------------------------------

/// The entries of a channel vector as accumulators; `absent` where there is none.
template <class N>
void load_vector(const RowKernels& kernels, const ChannelVector& vector, int64_t channels, N absent, N* target) {
  if (!vector.data) return std::fill(target, target + channels, absent);
  const RowGeometry geometry{1, channels, 1, 1, {1}, {channels}};
  kernels.load_parameter({vector.data, vector.dtype, {}, {vector.stride}}, geometry, 0, {0, channels}, target);
}

/// vector[c] = the sum of `count` arrays of accumulators, one after the other; count 0 gives zeros.
template <class N>
void store_sums(const RowKernels& kernels, const ChannelVector& vector, int64_t channels, const N* arrays,
                int64_t count) {
  if (!vector.data) return;
  const RowGeometry geometry{1, channels, 1, 1, {1}, {channels}};
  kernels.reduce_parameter({vector.data, vector.dtype, {}, {vector.stride}}, geometry, arrays, channels, count,
                           {0, channels});
}

/// The entry of a set.
template <class N>
N* entry(const ChannelStatistic& statistic, int64_t sample, int64_t group) {
  return static_cast<N*>(statistic.data) + sample * statistic.sample_stride + group * statistic.group_stride;
}

template <class N>
N* entry(const ChannelVector& vector, int64_t channel) {
  return static_cast<N*>(vector.data) + channel * vector.stride;
}

template <class N>
N* entry(const ChannelTable& table, int64_t part, int64_t row, int64_t channel) {
  return static_cast<N*>(table.data) + part * table.part_stride + row * table.row_stride +
         channel * table.channel_stride;
}

// ---- Parallel loops -------------------------------------------------------------------------------------------------

constexpr int64_t kUnit = 1024;   // elements; ranges begin at multiples of it, and so at whole bytes of a mask
constexpr int64_t kUnitRows = 8;  // the same for rows

/// body(Range) for parts of [0, elements).
template <class Body>
void parallel_elements(int threads, int64_t elements, int64_t bytes_each, Body&& body) {
  if (threads == 1) return body(Range{0, elements});
  parallel_ranges(threads, ceil_div(elements, kUnit), kUnit * bytes_each,
                  [&](Range units, int) { body(Range{units.begin * kUnit, std::min(elements, units.end * kUnit)}); });
}

/// body(rows, channels) for parts of `rows`, or of the channels where rows are few and need not stay whole.
template <class Body>
void parallel_rows(int threads, Range rows, int64_t channels, int64_t bytes_each, bool whole, Body&& body) {
  const int64_t count = rows.end - rows.begin;
  if (threads == 1) return body(rows, Range{0, channels});
  if (!whole && count < 2 * kUnitRows * threads) {
    return parallel_ranges(threads, ceil_div(channels, kUnit), count * kUnit * bytes_each, [&](Range units, int) {
      body(rows, Range{units.begin * kUnit, std::min(channels, units.end * kUnit)});
    });
  }
  parallel_ranges(threads, ceil_div(count, kUnitRows), kUnitRows * channels * bytes_each, [&](Range units, int) {
    body(Range{rows.begin + units.begin * kUnitRows, rows.begin + std::min(count, units.end * kUnitRows)},
         Range{0, channels});
  });
}

/// Groups of a sample that are worked on together: small ones share the cost of a step.
inline int64_t groups_at_once(int64_t groups, int64_t elements) {
  return std::clamp<int64_t>(kPlaneChunk / std::max<int64_t>(elements, 1), 1, groups);
}

/// Many sets: a thread does each from its statistics to its output. Few: threads share each.
inline bool shares_sets(int threads, int64_t sets, int64_t elements) {
  return threads > 1 && sets < 4 * threads && elements >= 4 * kPlaneChunk;
}

/// body(set, lane, threads that share it) for every set. bytes_each: moved for one.
template <class Body>
void for_sets(int threads, bool shared, int64_t sets, int64_t bytes_each, const Body& body) {
  if (shared) {
    for (int64_t set = 0; set < sets; ++set) body(set, 0, threads);
    return;
  }
  parallel_ranges(threads, sets, bytes_each, [&](Range range, int lane) {
    for (int64_t set = range.begin; set < range.end; ++set) body(set, lane, 1);
  });
}

// ---- Channels of a batch, some at a time ----------------------------------------------------------------------------

constexpr int64_t kKeptBytes = 1024 * 1024;  // of a second-level cache, between two passes
constexpr int64_t kMinRun = 512;             // elements that are worth a call

/// How many channels of all samples a thread takes through both passes by planes while its cache keeps them; 0 if each
/// pass had better go over all of them. bytes_each: read in both passes for an element.
inline int64_t channels_at_once(const ChannelGeometry& geometry, int64_t bytes_each, int threads) {
  const int64_t kept = kKeptBytes / (rows_of(geometry) * bytes_each);
  const int64_t count = std::min(kept, ceil_div(geometry.channels, int64_t{4} * threads));
  return geometry.channels < threads || count * geometry.places < kMinRun ? 0 : count;
}

/// body(channels) for parts of all channels.
template <class Body>
void for_channels(int threads, const ChannelGeometry& geometry, int64_t at_once, int64_t bytes_each, const Body& body) {
  const int64_t runs = ceil_div(geometry.channels, at_once), bytes = at_once * rows_of(geometry) * bytes_each;
  parallel_ranges(threads, runs, bytes, [&](Range range, int) {
    for (int64_t run = range.begin; run < range.end; ++run) {
      body(Range{run * at_once, std::min(geometry.channels, (run + 1) * at_once)});
    }
  });
}

/// body(elements) for the ranges of elements of some channels in all samples.
template <class Body>
void for_planes(const ChannelGeometry& geometry, Range channels, const Body& body) {
  for (int64_t sample = 0; sample < geometry.samples; ++sample) {
    const int64_t first = sample * geometry.channels;
    body(Range{(first + channels.begin) * geometry.places, (first + channels.end) * geometry.places});
  }
}

}  // namespace normact::cpu
