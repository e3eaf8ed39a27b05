// SPDX-License-Identifier: Apache-2.0
// What the drivers of batch, group and instance norm (channel_forward.cpp, channel_backward.cpp) ask of an instruction
// set: one table of functions per element type.
//
// There are two ways through memory. By planes: the places of one channel of one sample are an array, and statistics
// are numbers. By rows: the channels at one place are an array, and so are the statistics. Tensors that lie in neither
// way are gathered and scattered plane by plane. Moments and sums are taken in blocks that depend on the shape alone.
#pragma once

#include <cstdint>

#include "core/channel.h"
#include "cpu/array_activation.h"
#include "cpu/range.h"
#include "math/hd.h"
#include "math/moments.h"

namespace normact::cpu {

/// Parts of planes that are summed together: `planes` of them, each `places` wide, of one channel of neighbouring
/// samples, or of neighbouring channels of one sample.
struct PlaneBlock {
  int64_t sample;
  int64_t channel;
  bool along_samples;
  int64_t planes;
  Range places;
};

/// dh of one sample, for which an activation's slope was computed: sums of planes or rows leave it for the gradients.
/// An array of accumulators in the order of planes, from channel ChannelFactors::first on, or of rows, from `row` on;
/// null where dh is computed again.
struct KeptSlopes {
  void* dh = nullptr;
  int64_t row = 0;
};

/// Arrays of accumulators, an entry a channel; the first entry is channel `first`'s.
struct ChannelFactors {
  int64_t first;
  void* mean;
  void* rstd;
  void* scale;  // rstd * weight
  void* bias;   // -0 without one: adding it changes no number
  void* c1;     // of an input gradient
  void* c2;
  bool streams;  // what is computed with them goes past the caches where its address allows
  KeptSlopes kept = {};
  bool leaves = false;  // sums of a backward leave dh in daddend
};

/// Sums over elements of one channel.
struct ChannelSums {
  double dh_xhat;
  double dh;
};

/// Blocks come in series: the next one is of the next channel, or of as many channels after these.
/// Rows are counted through all samples: row n * places + s.
struct ChannelKernels {
  void (*plane_moments)(const ChannelGeometry& geometry, const ChannelView& x, const PlaneBlock& first, int64_t count,
                        Moments<double>* moments);
  /// y of a range of elements, counted in the order sample, channel, place. Writes the mask if its bits are in that
  /// order; the range then begins at a multiple of 8.
  void (*plane_forward)(const ChannelForward& problem, const ArrayActivation* activation, const ChannelFactors& factors,
                        Range elements);
  /// The mask alone, of a range of its bits that begins at a multiple of 8, whatever the layout.
  void (*mask)(const ChannelForward& problem, const ChannelFactors& factors, Range bits);
  void (*plane_sums)(const ChannelBackward& problem, const ArrayActivation* activation, const ChannelFactors& factors,
                     const PlaneBlock& first, int64_t count, ChannelSums* sums);
  void (*plane_backward)(const ChannelBackward& problem, const ArrayActivation* activation,
                         const ChannelFactors& factors, Range elements);

  /// Arrays with an entry for each channel of the range.
  void (*row_moments)(const ChannelGeometry& geometry, const ChannelView& x, Range rows, Range channels, double* mean,
                      double* m2);
  /// Writes the mask: rows begin at a multiple of 8 if its bits are in the order of rows, else it was zero.
  void (*row_forward)(const ChannelForward& problem, const ArrayActivation* activation, const ChannelFactors& factors,
                      Range rows, Range channels);
  void (*row_sums)(const ChannelBackward& problem, const ArrayActivation* activation, const ChannelFactors& factors,
                   Range rows, Range channels, double* dh_xhat, double* dh);
  void (*row_backward)(const ChannelBackward& problem, const ArrayActivation* activation, const ChannelFactors& factors,
                       Range rows, Range channels);
};

constexpr int64_t kPlaneChunk = 8192;  // elements of a block of planes
constexpr int64_t kRowBlock = 32768;   // elements of a block of rows, whose second pass finds them in the cache
constexpr int64_t kMinBlockOfRows = 16;
constexpr int64_t kMaxBlockOfRows = 256;
constexpr int64_t kStrip = 1024;  // channels that the sums of rows take at a time

/// Rows whose moments are taken in two passes.
NORMACT_HD int64_t block_of_rows(int64_t channels) {
  const int64_t rows = kRowBlock / (channels < kStrip ? channels : kStrip);
  return rows < kMinBlockOfRows ? kMinBlockOfRows : rows > kMaxBlockOfRows ? kMaxBlockOfRows : rows;
}

/// Whether a mask's bits are in the order of planes, or of rows.
NORMACT_HD bool mask_by_planes(const ChannelGeometry& geometry) {
  return geometry.places_after == geometry.places || geometry.channels == 1;
}
NORMACT_HD bool mask_by_rows(const ChannelGeometry& geometry) {
  return geometry.places_after == 1 || geometry.channels == 1;
}

/// An instruction set's table, by DType.
#if defined(__x86_64__)
extern const ChannelKernels kBaselineChannel[4], kAvx2Channel[4], kAvx512Channel[4];
#elif defined(__aarch64__)
extern const ChannelKernels kNeonChannel[4];
#else
extern const ChannelKernels kBaselineChannel[4];
#endif

}  // namespace normact::cpu
