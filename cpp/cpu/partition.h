// SPDX-License-Identifier: Apache-2.0
// How work is cut. What decides bits (the blocks of the parameter gradients) is a function of the problem alone; what
// only decides who does it may look at the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/row_kernels.h"
#include "cpu/thread_pool.h"
#include "math/hd.h"

namespace normact::cpu {

constexpr int64_t kSerialBytes = 256 * 1024;  // less traffic than this takes less time than waking a thread
constexpr int64_t kTaskBytes = 64 * 1024;
/// What more traffic than this has written, the next call does not find in a cache. Of calls that each read what the
/// last has written (relu in turn between two tensors, 1 and 2 threads of a Xeon), those on 8 MiB take 1.0 and 0.74
/// times as long with usual stores as past the caches, on 16 MiB 1.41 and 1.13, on 32 MiB 1.35 and 1.38.
constexpr int64_t kCachedBytes = 32 * 1024 * 1024;

NORMACT_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Whether outputs go past the caches. Only x86 is told how: an Arm processor sees by itself that whole lines are
/// written.
inline bool streams([[maybe_unused]] int64_t bytes) {
#if defined(__x86_64__)
  return bytes >= kCachedBytes;
#else
  return false;
#endif
}

/// Whether rows of so many bytes, one after the other, are whole cache lines.
inline bool are_lines(const void* first, int64_t row_bytes) {
  return (reinterpret_cast<uintptr_t>(first) | static_cast<uintptr_t>(row_bytes)) % kLineBytes == 0;
}

inline int threads_for(int64_t bytes, int available) { return bytes < kSerialBytes ? 1 : available; }

/// body(Range, lane) for pieces of [0, count), of at least kTaskBytes each.
template <class Body>
void parallel_ranges(int threads, int64_t count, int64_t bytes_each, Body&& body) {
  const int64_t step = std::max(ceil_div(count, int64_t{4} * threads), ceil_div(kTaskBytes, bytes_each));
  parallel_for(threads, ceil_div(count, step),
               [&](int64_t task, int lane) { body(Range{task * step, std::min(count, (task + 1) * step)}, lane); });
}

/// body(Range, chunk, lane) for every chunk of a row.
template <class Body>
void parallel_chunks(int threads, int64_t cols, Body&& body) {
  parallel_for(threads, ceil_div(cols, kChunk), [&](int64_t chunk, int lane) {
    body(Range{chunk * kChunk, std::min(cols, (chunk + 1) * kChunk)}, chunk, lane);
  });
}

/// Few long rows: threads share each row, chunk by chunk. Moves no bits in the forward.
inline bool forward_by_chunks_is_better(const RowGeometry& geometry, int threads) {
  return geometry.cols >= 4 * kChunk && geometry.rows < int64_t{4} * threads;
}

/// The row blocks whose parameter gradients are summed apart.
struct RowBlocks {
  bool shares_rows;    // one block, threads share each row
  int64_t block_rows;  // rows (or tiles of rows) of each block but the last
  int64_t count;
};

constexpr int64_t kMaxBlocks = 64;
constexpr int64_t kMaxBlockRows = 4096;  // even if there are more blocks then: they are added up one to the other
constexpr int64_t kMinBlockRows = 16;    // so that the partial sums are small beside the tensors
constexpr int64_t kMinBlockElements = 16 * 1024;

inline RowBlocks row_blocks(const RowGeometry& geometry) {
  const int64_t rows = geometry.rows, cols = geometry.cols;
  if (cols >= 32 * kChunk || (cols > kChunk && rows < 2 * kMinBlockRows)) return {true, rows, rows > 0 ? 1 : 0};
  const int64_t share = std::min(ceil_div(rows, kMaxBlocks), kMaxBlockRows);
  const int64_t block_rows = std::max({kMinBlockRows, ceil_div(kMinBlockElements, cols), share});
  return {false, block_rows, ceil_div(rows, block_rows)};
}

}  // namespace normact::cpu
