// SPDX-License-Identifier: Apache-2.0
// Moments of channels over all samples, and of the groups of one sample.
#pragma once

#include "cpu/channel_common.h"
#include "math/channel.h"

namespace normact::cpu {

/// The moments of parts, arrays over the channels, merged into those of the first.
inline void merge_parts(const RowParts& parts, double* mean, double* m2) {
  for (int64_t part = 1; part < parts.count; ++part) {
    const double before = double(part * parts.each);
    const double size = double(std::min(parts.rows, (part + 1) * parts.each)) - before;
    const double *next_mean = mean + part * parts.channels, *next_m2 = m2 + part * parts.channels;
    for (int64_t c = 0; c < parts.channels; ++c) {
      const Moments<double> all =
          merge(Moments<double>{mean[c], m2[c], before}, Moments<double>{next_mean[c], next_m2[c], size});
      mean[c] = all.mean;
      m2[c] = all.m2;
    }
  }
}

/// term(begin) + ... + term(end - 1) by halves: rounding grows with the logarithm of their number, not with the number.
template <class Term>
double pairwise_sum(Range range, const Term& term) {
  constexpr int64_t kChain = 8;
  if (range.end - range.begin > kChain) {
    const int64_t middle = range.begin + (range.end - range.begin) / 2;
    return pairwise_sum({range.begin, middle}, term) + pairwise_sum({middle, range.end}, term);
  }
  double total = 0;
  for (int64_t i = range.begin; i < range.end; ++i) total += term(i);
  return total;
}

/// Moments of neighbouring channels together, each over `rows` rows.
inline Moments<double> moments_of_channels(const double* mean, const double* m2, int64_t channels, double rows) {
  if (channels == 1) return {mean[0], m2[0], rows};
  const Range all = {0, channels};
  const double centre = pairwise_sum(all, [&](int64_t c) { return mean[c]; }) / double(channels);
  const double squares =
      pairwise_sum(all, [&](int64_t c) { return recentred(Moments<double>{mean[c], m2[c], rows}, centre); });
  return {centre, squares, rows * double(channels)};
}

inline Moments<double> merge_all(const Moments<double>* blocks, int64_t count) {
  Moments<double> total = blocks[0];
  for (int64_t i = 1; i < count; ++i) total = merge(total, blocks[i]);
  return total;
}

/// Scratch that all_channel_moments wants.
inline int64_t moments_scratch(const ChannelGeometry& geometry, bool by_rows) {
  if (has_no_elements(geometry)) return 0;
  if (by_rows) return row_parts(rows_of(geometry), geometry.channels).bytes();
  return plane_blocks(geometry, true, geometry.samples).count() * geometry.channels * int64_t{sizeof(Moments<double>)};
}

/// By planes, the moments of some channels over all samples. They use their own part of the scratch.
inline void plane_channel_moments(const ChannelKernels& kernels, const ChannelGeometry& geometry, const ChannelView& x,
                                  Range channels, int threads, char* scratch, Moments<double>* moments) {
  const PlaneBlocks blocks = plane_blocks(geometry, true, geometry.samples);
  const int64_t count = blocks.count();
  auto* const parts = reinterpret_cast<Moments<double>*>(scratch) + channels.begin * count;
  const int64_t bytes = blocks.each * std::min(blocks.places, kPlaneChunk) * size_of(x.dtype);
  parallel_ranges(threads, (channels.end - channels.begin) * count, bytes, [&](Range units, int) {
    if (count == 1) {
      return kernels.plane_moments(geometry, x, blocks.block(0, channels.begin + units.begin, 0),
                                   units.end - units.begin, parts + units.begin);
    }
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
      const PlaneBlock block = blocks.block(0, channels.begin + unit / count, unit % count);
      kernels.plane_moments(geometry, x, block, 1, parts + unit);
    }
  });
  for (int64_t c = channels.begin; c < channels.end; ++c) {
    moments[c] = merge_all(parts + (c - channels.begin) * count, count);
  }
}

/// The moments of every channel over all samples.
inline void all_channel_moments(const ChannelKernels& kernels, const ChannelGeometry& geometry, const ChannelView& x,
                                bool by_rows, int threads, char* scratch, Moments<double>* moments) {
  const Range all = {0, geometry.channels};
  if (has_no_elements(geometry)) return std::fill(moments, moments + geometry.channels, Moments<double>{});
  if (!by_rows) return plane_channel_moments(kernels, geometry, x, all, threads, scratch, moments);
  const RowParts parts = row_parts(rows_of(geometry), geometry.channels);
  double* const mean = reinterpret_cast<double*>(scratch);
  double* const m2 = parts.second(mean);
  parallel_for(threads, parts.units(), [&](int64_t unit, int) {
    kernels.row_moments(geometry, x, parts.part(unit, 0), parts.strip(unit), mean + parts.at(unit),
                        m2 + parts.at(unit));
  });
  merge_parts(parts, mean, m2);
  for (int64_t c = 0; c < geometry.channels; ++c) moments[c] = {mean[c], m2[c], double(parts.rows)};
}

/// mean and rstd of a set.
struct SetStatistics {
  double mean;
  double rstd;
};

inline double rstd_of(double variance, double eps) {
  return reciprocal_std(variance, eps, [](double v) { return 1 / __builtin_sqrt(v); });
}

inline SetStatistics statistics_of(const Moments<double>& moments, double eps) {
  return {moments.mean, rstd_of(variance(moments), eps)};
}

/// What a batch adds to running statistics.
inline double running_share(const RunningStatistics& running) {
  return normact::running_share<double>(running.cumulative, running.batches, running.momentum);
}

template <class N>
void update_running(const RunningStatistics& running, int64_t channel, double mean, double unbiased, double share) {
  if (!running.mean.data) return;
  N* const kept_mean = entry<N>(running.mean, channel);
  N* const kept_variance = entry<N>(running.variance, channel);
  *kept_mean = N(updated_running(double(*kept_mean), mean, share));
  *kept_variance = N(updated_running(double(*kept_variance), unbiased, share));
}

}  // namespace normact::cpu
