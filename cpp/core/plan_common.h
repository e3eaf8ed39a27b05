// SPDX-License-Identifier: Apache-2.0
// What the planners have in common.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/plan.h"

namespace normact {

constexpr int kPackBytes = 16;
constexpr int kWarp = 32;
constexpr int64_t kMaxBlocks = 2147483647;
constexpr int64_t kMaxDivisibleRows = 2147483647;  // kernels divide row indices in 32 bits

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

inline int64_t power_of_two_from(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

inline int accumulator_bytes(DType dtype) { return size_of(accumulator_of(dtype)); }

inline int pack_size(const RowRequest& r) { return kPackBytes / size_of(r.dtype); }

inline bool in_runs(const RowRequest& r) { return r.access == RowAccess::runs; }
inline bool in_lines(const RowRequest& r) {
  return r.access == RowAccess::packed_lines || r.access == RowAccess::half_packed_lines ||
         r.access == RowAccess::lines;
}

/// Packs in a row for the kernels that hold whole rows of contiguous columns; 0 if they cannot serve.
inline int64_t packs_of(const RowRequest& r) {
  return r.access == RowAccess::packs || in_runs(r) ? ceil_div(r.geometry.cols, pack_size(r)) : 0;
}

inline int persistent_blocks(const RowRequest& r, const DeviceInfo& device) {
  return std::max(1, device.multiprocessors - r.sm_margin);
}

enum class Direction : uint8_t { forward, backward };

/// A persistent grid of clusters of 1 << log blocks, as many as run at once; false if none does. even_pairs: no more
/// clusters of two than clusters of four leave room for (plan.cpp).
bool plan_clusters(const RowRequest& r, const DeviceInfo& device, int log, bool even_pairs, RowPlan* plan);

/// Variants warp and block for rows at any alignment; false if they cannot serve the request (plan_runs.cpp).
bool plan_run_warp(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan);
bool plan_run_block(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan);

/// Variant cluster for them.
bool plan_run_cluster(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan);

/// The same for rows whose columns are in pieces or apart; `block`: variant block (plan_gather.cpp).
bool plan_gather(const RowRequest& r, const DeviceInfo& device, Direction direction, bool block, RowPlan* plan);

/// Variant image; false if it cannot serve the request (plan_images.cpp).
bool plan_image(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan);

/// Variant tile; false if it cannot serve the request (plan_tiles.cpp).
bool plan_tile(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan);

/// Variant stream, which serves whatever has few enough blocks (plan_stream.cpp).
bool plan_stream(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan);

/// The most that its forward may need in the workspace.
size_t most_stream_workspace(const RowGeometry& g);

}  // namespace normact
