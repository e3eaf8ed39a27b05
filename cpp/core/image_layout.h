// SPDX-License-Identifier: Apache-2.0
// Images: how those of variant image (cuda/row_image.cuh) are divided among blocks, and what lies where in a block's
// shared memory. The planner and the kernels both need to know.
//
// An image is all rows that one sample has, side by side, with all their columns: one piece of memory, whole packs,
// although a line of it (a column of all rows) need not be. A band is the least whole lines that are whole packs, and a
// slice some bands, which a block has.
#pragma once

#include <cstdint>
#include <numeric>

#include "core/dtype.h"
#include "math/hd.h"

namespace normact {

/// What a kernel does with images: a cluster keeps one, or they are read twice.
enum class ImageUse : uint8_t { kept_forward, kept_backward, twice_forward, twice_backward };

/// Threads of a block that has a multiprocessor for itself, and of one that shares it with another, where images are
/// kept.
constexpr int image_threads(bool forward, bool alone) { return (forward ? 448 : 384) * (alone ? 2 : 1); }

/// Of images that are read twice: threads of a block, at least and at most; of a thread, packs that are on their way of
/// each tensor, a power of two, packs whose columns are added up at a time, and packs in a slice, at most.
constexpr int kLeastTwiceThreads = 192, kMostTwiceThreads = 384;
constexpr int image_ring(bool forward) { return forward ? 8 : 4; }
constexpr int kColumnTurns = 8;
constexpr int image_turns(bool forward) { return forward ? 24 : 16; }

/// Numbers that a slice has of a row: moments, or sums of a gradient.
constexpr int image_entry(bool forward) { return forward ? 3 : 2; }

struct ImageLayout {
  int places;      // rows of an image
  int band_packs;  // of a band
  int band_log;    // of the lines of a band
  int bands;       // of an image
  int slices;      // of an image
  int slice_bands;
  int threads;   // of a block
  int lines;     // bands that a block works on at the same time, a thread a pack
  int apart_at;  // the first thread of packs that are apart
  // In bytes, in a block:
  int part_bytes;   // of one tensor, as far as it is in shared memory
  int entry_bytes;  // of what a slice has of the rows of an image
  int scratch_at, entries_at, numbers_at, weights_at, totals_at, shared_bytes;
  int number_bytes;  // of BandNumbers

  NORMACT_HD int band_cols() const { return 1 << band_log; }
  NORMACT_HD int slice_cols() const { return slice_bands << band_log; }
  /// Packs of a band that have elements of two lines.
  NORMACT_HD int cut_packs() const { return band_cols() - 1; }
  /// Of a band, those that the last threads have: cut ones where they are few, as they lie far from each other.
  NORMACT_HD int packs_apart() const { return cut_packs() == 1 ? 1 : 0; }
  /// Sums that the packs of a band leave of its columns: one each, and one more where a pack is cut.
  NORMACT_HD int band_sums() const { return band_packs + cut_packs(); }
};

/// Of an image of less than 2^31 bytes. lines: 0 where a band has more packs than a block has threads for.
inline ImageLayout image_layout(int cols, int places, DType dtype, int slices, int threads, ImageUse use) {
  const int pack = 16 / size_of(dtype);
  const int number = size_of(accumulator_of(dtype));
  const int common = std::gcd(places, pack);
  const bool forward = use == ImageUse::kept_forward || use == ImageUse::twice_forward;
  const bool kept = use == ImageUse::kept_forward || use == ImageUse::kept_backward;
  ImageLayout of{};
  of.places = places;
  of.band_packs = places / common;
  while (common << of.band_log < pack) ++of.band_log;
  of.bands = cols >> of.band_log;
  of.slices = slices;
  of.slice_bands = (of.bands + slices - 1) / slices;
  of.threads = threads;
  // Packs that are apart have a warp of their own where images are read twice, else as much of one as is left.
  constexpr int kLanes = 32;
  const bool own_warp = !kept && of.packs_apart() > 0;
  of.lines = own_warp ? (threads - kLanes) / (of.band_packs - 1) : threads / of.band_packs;
  const int together = (of.lines * (of.band_packs - of.packs_apart()) + kLanes - 1) / kLanes * kLanes;
  of.apart_at = together < threads - of.lines ? together : threads - of.lines;
  const auto up = [](int bytes) { return (bytes + 15) / 16 * 16; };
  const int ring_bands = image_ring(forward) * of.lines, column_bands = kColumnTurns * of.lines;
  const int bands_there = kept || of.slice_bands < ring_bands ? of.slice_bands : ring_bands;
  of.part_bytes = bands_there * of.band_packs * 16;
  of.entry_bytes = up(places * image_entry(forward) * number);
  of.number_bytes = of.band_packs * pack * number;
  of.scratch_at = of.part_bytes * (forward ? 1 : 2);
  const int of_rows = of.lines * of.number_bytes;  // a number of each element
  const int bands_summed = kept ? of.slice_bands : 2 * column_bands;
  const int of_columns = forward ? 0 : bands_summed * of.band_sums() * 2 * number;
  of.entries_at = of.scratch_at + up(of_rows > of_columns ? of_rows : of_columns);
  of.numbers_at = of.entries_at + (kept ? slices * of.entry_bytes : 0);
  const int numbers = use == ImageUse::kept_forward ? 2 : kept ? 6 : 4;
  of.weights_at = of.numbers_at + numbers * of.number_bytes;
  of.totals_at = of.weights_at + up((of.slice_cols() + 1) * (forward ? 2 : 1) * number);
  of.shared_bytes = of.totals_at + (forward ? 0 : of.slice_cols() * 2 * static_cast<int>(sizeof(double)));
  return of;
}

/// How one that is read twice is divided, in blocks of so many threads as leave the fewest without a pack.
inline ImageLayout image_twice_layout(int cols, int places, DType dtype, bool forward) {
  const ImageUse use = forward ? ImageUse::twice_forward : ImageUse::twice_backward;
  ImageLayout best = image_layout(cols, places, dtype, 1, kMostTwiceThreads, use);
  for (int threads = kLeastTwiceThreads; threads < kMostTwiceThreads; threads += 32) {
    const ImageLayout some = image_layout(cols, places, dtype, 1, threads, use);
    if (some.lines * best.threads > best.lines * some.threads) best = some;
  }
  if (best.lines < 1) return best;
  const int together = best.lines * image_turns(forward);
  return image_layout(cols, places, dtype, (best.bands + together - 1) / together, best.threads, use);
}

/// What the slices of all images leave of their rows in the workspace.
inline int64_t image_entries_bytes(int64_t rows, int64_t slices, DType dtype, bool forward) {
  return (rows * slices * image_entry(forward) * size_of(accumulator_of(dtype)) + 255) / 256 * 256;
}

}  // namespace normact
