// SPDX-License-Identifier: Apache-2.0
// Images: how those of variant image (cuda/row_image.cuh) are divided among the blocks of a cluster, and what lies
// where in a block's shared memory. The planner and the kernels both need to know.
//
// An image is all rows that one sample has, side by side, with all their columns: one piece of memory, whole packs,
// although a line of it (a column of all rows) need not be. A band is the least whole lines that are whole packs.
#pragma once

#include <cstdint>
#include <numeric>

#include "core/dtype.h"
#include "math/hd.h"

namespace normact {

/// Threads of a block that has a multiprocessor for itself, and of one that shares it with another.
constexpr int image_threads(bool forward, bool alone) { return (forward ? 448 : 384) * (alone ? 2 : 1); }

/// The backward of images that are read twice: bands of a thread, where it writes; threads of a block that writes, at
/// least and at most.
constexpr int kImageBands = 4, kLeastImageThreads = 256, kMostImageThreads = 384;

struct ImageLayout {
  int places;      // rows of an image
  int band_packs;  // of a band
  int band_log;    // of the lines of a band
  int bands;       // of an image
  int lines;       // bands that a block works on at the same time, a thread a pack
  int bands_a_block;
  int threads;
  // In bytes, in a block:
  int part_bytes;  // of one tensor
  int pair_bytes;  // of a pair of numbers for each row
  int apart;       // RowNumbers: from the first numbers of rows to the second
  int scratch_at, entries_at, results_at, statistics_at, parameters_at, shared_bytes;

  /// Where a row's first number is in RowNumbers. Neighbouring threads read numbers a pack apart, which are not to be
  /// in the same bank of shared memory.
  NORMACT_HD static int number_at(int row) { return row + row / 32; }
  NORMACT_HD int band_cols() const { return 1 << band_log; }
  NORMACT_HD int cols_a_block() const { return bands_a_block << band_log; }
};

/// Of an image of less than 2^31 bytes whose bands have no more packs than a block has threads. kept: in shared memory.
inline ImageLayout image_layout(int cols, int places, DType dtype, int cluster, int threads, bool forward,
                                bool kept = true) {
  const int pack = 16 / size_of(dtype);
  const int number = size_of(accumulator_of(dtype));
  const int common = std::gcd(places, pack);
  ImageLayout of{};
  of.places = places;
  of.band_packs = places / common;
  while (common << of.band_log < pack) ++of.band_log;
  of.bands = cols >> of.band_log;
  of.threads = threads;
  of.lines = of.threads / of.band_packs;
  of.bands_a_block = (of.bands + cluster - 1) / cluster;
  of.part_bytes = of.bands_a_block * of.band_packs * 16;
  const auto up = [](int bytes) { return (bytes + 15) / 16 * 16; };
  of.pair_bytes = up(places * 2 * number);
  of.scratch_at = kept ? of.part_bytes * (forward ? 1 : 2) : 0;
  of.entries_at = of.scratch_at + of.lines * of.band_packs * pack * number;  // a pair of each block for each row
  of.results_at = of.entries_at + cluster * of.pair_bytes;
  of.apart = ImageLayout::number_at(places) + 1;
  const int numbers = up(2 * of.apart * number);
  of.statistics_at = of.results_at + numbers;
  of.parameters_at = of.statistics_at + (forward ? 0 : 2 * numbers);  // of this image and of the next
  of.shared_bytes = of.parameters_at + up((of.cols_a_block() + 1) * (forward ? 2 : 1) * number);
  return of;
}

/// How the backward of images that are read twice sums rows: blocks of an image, which are a cluster where there are
/// any.
inline ImageLayout image_sums_layout(int cols, int places, DType dtype, int cluster) {
  return image_layout(cols, places, dtype, cluster, image_threads(false, false), false, false);
}

/// How it writes: in blocks of so many threads as leave the fewest without a pack, `slices` of an image. In shared
/// memory are packs of x and dy, of this image and of the next, where two pairs of sums a band of each thread are put
/// in the end; from statistics_at, of both images, statistics and sums of each row; and weights.
inline ImageLayout image_apply_layout(int cols, int places, DType dtype, int slices) {
  const int packs = places / std::gcd(places, 16 / size_of(dtype));
  int threads = kLeastImageThreads, idle = kMostImageThreads;
  for (int some = kLeastImageThreads; some <= kMostImageThreads; some += 32) {
    if (packs < 1 || some < packs || some % packs * threads >= idle * some) continue;
    idle = some % packs;
    threads = some;
  }
  ImageLayout of = image_layout(cols, places, dtype, slices, threads, false, false);
  const int number = size_of(accumulator_of(dtype)), numbers = of.statistics_at - of.results_at;
  const int sums = threads * kImageBands * 4 * number;
  of.statistics_at = 4 * of.part_bytes > sums ? 4 * of.part_bytes : sums;
  of.parameters_at = of.statistics_at + 4 * numbers;
  of.shared_bytes = of.parameters_at + (of.cols_a_block() + 1) * number;
  return of;
}

/// Blocks that write an image.
inline int image_slices(int cols, int places, DType dtype) {
  const ImageLayout one = image_apply_layout(cols, places, dtype, 1);
  const int together = one.lines * kImageBands;
  return (one.bands + together - 1) / together;
}

}  // namespace normact
