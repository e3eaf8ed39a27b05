// SPDX-License-Identifier: Apache-2.0
// The validated problems of batch, group and instance norm: plain data, no tensor descriptors, nothing left to check.
//
// An element is (sample n, channel c, place s in the sample's channel). What is normalised together is a set: with
// ChannelSet::group the channels of one group of one sample, with ChannelSet::channel one channel of all samples.
// Samples are x's axis 0 (one sample where that is the channels'); the places are all other axes, in the order of
// memory where no mask has one of its own, merged where they lie evenly in memory in every operand. To a batch norm
// both are one: the slowest places may be samples, or places and samples change roles (channel_arguments.cpp).
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/dtype.h"
#include "core/problem.h"
#include "math/hd.h"

namespace normact {

struct ChannelGeometry {
  int64_t samples;
  int64_t channels;
  int64_t groups;        // ChannelSet::group: of a sample, divides channels; ChannelSet::channel: channels
  int64_t places;        // the product of place_shape
  int64_t places_after;  // of masks: divides places. The bit of element (n, c, s) is number
                         // ((n * before + s / after) * channels + c) * after + s % after, before = places / after:
                         // in row-major order `after` counts the places of the axes after the channels', in
                         // that of channels last it is 1
  int place_ndim;        // >= 1
  int64_t place_shape[kMaxDims];  // slowest first
};

/// Of a batch norm whose planes lie side by side in every sample: the same with each column of such a row, one place of
/// one channel, in the place of a channel. What was a channel is a group.
inline ChannelGeometry columns_of(const ChannelGeometry& g) {
  return {g.samples, g.channels * g.places, g.channels, 1, 1, 1, {1}};
}

NORMACT_HD bool has_no_elements(const ChannelGeometry& geometry) {
  return geometry.samples == 0 || geometry.channels == 0 || geometry.places == 0;
}

/// One tensor of x's shape; absent when data is null. Strides are in elements.
struct ChannelView {
  void* data;
  DType dtype;
  int64_t sample_stride;
  int64_t channel_stride;
  int64_t place_stride[kMaxDims];
};

/// How far apart units are, places of samples one after the other, where they have one stride.
NORMACT_HD int64_t unit_stride(int64_t places, const ChannelView& view) {
  return places == 1 ? view.sample_stride : view.place_stride[0];
}

/// Along dimensions that have several indices.
inline bool have_equal_strides(const ChannelGeometry& g, const ChannelView& a, const ChannelView& b) {
  if (g.samples > 1 && a.sample_stride != b.sample_stride) return false;
  if (g.channels > 1 && a.channel_stride != b.channel_stride) return false;
  for (int d = 0; d < g.place_ndim && g.places > 1; ++d) {
    if (a.place_stride[d] != b.place_stride[d]) return false;
  }
  return true;
}

/// A tensor with an entry a channel (weight, bias, their gradients, running statistics); absent when data is null.
struct ChannelVector {
  void* data;
  DType dtype;
  int64_t stride;
};

/// A tensor with an entry a set: (samples, groups), or (channels,) with sample_stride 0. The accumulator's dtype.
struct ChannelStatistic {
  void* data;
  int64_t sample_stride;
  int64_t group_stride;
};

/// Rows of fp32 (fp64 for fp64) with an entry a channel: moments have the rows mean, m2, count of every part; sums have
/// the rows sum(dh * xhat) and sum(dh).
struct ChannelTable {
  void* data;
  int64_t part_stride;
  int64_t row_stride;
  int64_t channel_stride;
};

enum class ChannelSet : uint8_t { group, channel };

/// Where a forward's statistics come from.
enum class StatisticsSource : uint8_t {
  batch,    // x: mean and rstd are outputs, and may be absent
  running,  // running_mean and running_var: the same
  given,    // mean and rstd are inputs
};

/// What all of them have in common.
struct ChannelProblem {
  ChannelGeometry geometry;
  ChannelSet set;
  DType dtype;  // of x and everything of x's shape
  double eps;
  Activation activation;
};

/// Kept over batches. mean and variance are both there or both absent.
struct RunningStatistics {
  ChannelVector mean, variance;
  int64_t* batches;  // num_batches_tracked; null: not kept
  double momentum;
  bool cumulative;  // momentum is 1 / *batches; batches is there
};

/// y = act((x - mean) * rstd * weight + bias + addend). Not empty.
struct ChannelForward : ChannelProblem {
  StatisticsSource source;
  ChannelView x, addend;       // addend may be absent
  ChannelVector weight, bias;  // may be absent
  ChannelStatistic mean, rstd;
  RunningStatistics running;  // source running: mean and variance are read; batch: updated if there
  ChannelView y;
  uint8_t* mask;  // relu only; null: not wanted. Bit i % 8 of byte i / 8 is element i as places_after counts them
};

/// Gradients. Where the problem has no elements, dweight and dbias are still to be zeroed.
struct ChannelBackward : ChannelProblem {
  bool frozen;                   // the statistics are constants
  ChannelView dy, x, addend, y;  // addend, y may be absent; with y the slope is a function of the output
  const uint8_t* mask;           // or of these bits
  ChannelVector weight, bias;    // may be absent
  ChannelStatistic mean, rstd;
  ChannelView dx, daddend;       // daddend may be absent
  ChannelVector dweight, dbias;  // may be absent
};

/// The parts of a batch norm over several processes. set is ChannelSet::channel in all of them.
struct ChannelMoments : ChannelProblem {
  ChannelView x;
  ChannelTable moments;  // one part
};

struct ChannelMerge : ChannelProblem {  // of the geometry only channels
  int64_t parts;
  ChannelTable moments;
  ChannelStatistic mean, rstd;
  RunningStatistics running;
};

/// A backward whose results are sums, or whose sums are given.
struct ChannelReduce : ChannelBackward {  // without dx, daddend, dweight, dbias
  ChannelTable sums;
};

struct ChannelInputGradient : ChannelBackward {  // without dweight, dbias
  ChannelTable sums;
  void* count;           // elements a channel over all processes; the accumulator's dtype
  int64_t count_stride;  // 0: one for all channels
};

}  // namespace normact
