// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"

#include <algorithm>

#include "core/image_layout.h"
#include "core/plan_common.h"
#include "core/run_layout.h"

namespace normact {
namespace {

/// Whether contiguous rows that no block holds in runs are a cluster's, which has them faster than a block that gathers
/// their elements.
bool left_to_clusters(const RowRequest& r, const DeviceInfo& device, Direction direction) {
  if (!in_runs(r) || r.variant != NORMACT_ROW_AUTO) return false;
  RowPlan plan{};
  plan.variant = NORMACT_ROW_CLUSTER;
  return plan_run_cluster(r, device, direction, &plan);
}

// ---- Forward. Each returns false if the variant cannot serve the request.

bool forward_warp(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  if (in_runs(r) && device.compute_capability >= 90) return plan_run_warp(r, device, Direction::forward, plan);
  if (in_runs(r) || is_apart(r.access)) return plan_gather(r, device, Direction::forward, false, plan);
  const int64_t packs = packs_of(r);
  const int64_t most = size_of(r.dtype) == 2 ? 6 : 4;  // packs a thread
  if (packs < 1 || packs > most * kWarp) return false;
  if (r.variant == NORMACT_ROW_AUTO && packs > 4 * kWarp && packs <= 5 * kWarp) return false;
  // Two packs a thread, until a row takes the whole warp.
  plan->vectors = static_cast<int>(std::max<int64_t>(2, ceil_div(packs, kWarp)));
  if (plan->vectors == 5) plan->vectors = 6;
  if (r.mixed && plan->vectors == 3) plan->vectors = 4;
  plan->threads_per_row = r.mixed ? kWarp : static_cast<int>(power_of_two_from(ceil_div(packs, plan->vectors)));
  // Few rows are spread over all multiprocessors.
  plan->threads = 128;
  while (plan->threads > kWarp && r.geometry.rows * plan->threads_per_row < plan->threads * 2 * device.multiprocessors)
    plan->threads /= 2;
  plan->rows_per_block = plan->threads / plan->threads_per_row;
  plan->blocks = ceil_div(r.geometry.rows, plan->rows_per_block);
  return true;
}

bool forward_block(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  if (in_runs(r) && plan_run_block(r, device, Direction::forward, plan)) return true;
  if (left_to_clusters(r, device, Direction::forward)) return false;
  if (in_runs(r) || is_apart(r.access)) return plan_gather(r, device, Direction::forward, true, plan);
  const int64_t packs = packs_of(r);
  // The most threads that a kernel has registers for, by packs a thread.
  const int size = size_of(r.dtype);
  const int most[] = {256, size == 4 ? 768 : 512, size == 2 ? 224 : 256, 256};
  if (packs < 1 || packs > 4 * most[1]) return false;
  // Of the longest rows too few fit a multiprocessor to hide each other's latency: clusters have them come in ahead.
  const int64_t longest = !r.mixed && (size == 2 || (size == 4 && r.activated)) ? 1536 : 4 * most[1];
  if (r.variant == NORMACT_ROW_AUTO && device.active_clusters[0] > 0 && packs > longest) return false;
  // Three to six packs a thread, whichever leaves fewest of them idle; of equals, fewest threads from 96 on for 16-bit
  // elements, for others four packs, or two warps rather than one.
  int64_t best = INT64_MAX;
  for (const int vectors : {4, 5, 6, 3}) {
    const int64_t lanes = round_up(ceil_div(packs, vectors), kWarp);
    if (lanes > most[vectors - 3] || (r.mixed && vectors > 4)) continue;
    const bool preferred = size == 2 ? lanes >= 96 && lanes < plan->threads_per_row : plan->threads_per_row == kWarp;
    const bool better = lanes * vectors < best || (lanes * vectors == best && preferred);
    if (!better) continue;
    best = lanes * vectors;
    plan->vectors = vectors;
    plan->threads_per_row = static_cast<int>(lanes);
  }
  plan->threads = plan->threads_per_row;
  plan->blocks = r.geometry.rows;
  return true;
}

// The cluster kernels for whole packs: the working warps of a block, 16 at most, share its packs of the row evenly.

/// The smallest cluster whose warps have at most 32 * vectors packs each; false if there is none. even_pairs: as in
/// plan_clusters().
bool divide_over_cluster(const RowRequest& r, const DeviceInfo& device, int vectors, bool even_pairs, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  if (packs < 1 || r.geometry.rows > kMaxDivisibleRows || device.compute_capability < 90) return false;
  int log = 0;
  const int64_t slice = int64_t{kClusterWarps * kWarp} * vectors;
  while (log < 5 && (packs > slice << log || device.active_clusters[log] < 1)) ++log;
  if (log == 5) return false;
  plan->vectors = vectors;
  const int64_t share = ceil_div(packs, int64_t{1} << log);
  const int warps = static_cast<int>(ceil_div(share, kWarp * vectors));
  plan->threads_per_row = warps * kWarp;
  plan->packs_per_block = static_cast<int>(ceil_div(share, warps)) * warps;
  return plan_clusters(r, device, log, even_pairs, plan);
}

/// Fills in the ring of a block, whose threads also need `fixed` shared bytes: `wanted` rows (or halves), or more if
/// those are short, so that 96 KiB are on their way; false if `least` rows do not fit.
bool plan_cluster_ring(const DeviceInfo& device, int tensors, int least, int wanted, int fixed, RowPlan* plan) {
  const int64_t stage = int64_t{tensors} * plan->packs_per_block * kPackBytes;
  const int64_t rows = std::clamp<int64_t>(ceil_div(96 << 10, stage), wanted, kClusterStages);
  plan->stages = static_cast<int>(std::min<int64_t>(rows, (device.shared_memory_block - fixed) / stage));
  plan->shared_bytes = static_cast<int>(fixed + plan->stages * stage);
  return plan->stages >= least;
}

bool forward_cluster(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  if (in_runs(r)) return plan_run_cluster(r, device, Direction::forward, plan);
  if (r.mixed) return false;
  for (const int vectors : {4, 8}) {  // with eight the bias does not fit in registers
    // Forward is bound by bandwidth, which fewer pairs share more evenly (H200: 60 of 66).
    if (!divide_over_cluster(r, device, vectors, true, plan)) continue;
    plan->threads = plan->threads_per_row + kClusterServants * kWarp;
    return plan_cluster_ring(device, r.residual ? 2 : 1, 1, plan->cluster >= 8 ? 4 : 3, 0, plan);
  }
  return false;
}

bool forward_image(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  return plan_image(r, device, Direction::forward, plan);
}

bool forward_tile(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  return plan_tile(r, device, Direction::forward, plan);
}

bool forward_stream(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  return plan_stream(r, device, Direction::forward, plan);
}

// ---- Backward.

/// Fills in the shared memory of a block with this many groups; false if two rows do not fit in flight.
bool plan_ring(const RowRequest& r, const DeviceInfo& device, int groups, RowPlan* plan) {
  const int64_t sums = static_cast<int64_t>(plan->packs_per_block) * pack_size(r) * accumulator_bytes(r.dtype);
  const int64_t parameters = sums * (r.activated ? 2 : 1);  // the weight, and the bias of an activation
  const int64_t tensors = r.residual ? 3 : 2;
  plan->threads = groups * plan->threads_per_row;
  plan->rows_per_block = groups;
  const int64_t tensor = groups * plan->packs_per_block * int64_t{kPackBytes};
  const int64_t stage = tensors * tensor - (r.mixed ? tensor / 2 : 0);  // dy has half the bytes then
  plan->stages = static_cast<int>(std::min<int64_t>(kMaxStages, (device.shared_memory_block - parameters) / stage));
  // Parameter sums meet in it, too.
  const int64_t shared = std::max(parameters + plan->stages * stage, sums * std::min(groups, plan->threads / kWarp));
  plan->shared_bytes = static_cast<int>(shared);
  return plan->stages >= 2 && shared <= device.shared_memory_block;
}

/// A block of up to `threads` threads in groups of threads_per_row, and the persistent grid.
bool plan_groups(const RowRequest& r, const DeviceInfo& device, RowPlan* plan, int threads) {
  const int lanes = plan->threads_per_row;
  const int least = std::max(1, kWarp / lanes);  // whole warps
  // Few rows: rather several in a block than a block each, because every block writes a row of parameter sums.
  const int64_t wanted = round_up(ceil_div(4 * r.geometry.rows, device.multiprocessors), least);
  int groups = static_cast<int>(std::clamp<int64_t>(wanted, least, threads / lanes / least * least));
  while (!plan_ring(r, device, groups, plan)) {
    groups = groups / 2 / least * least;
    if (groups < least) return false;
  }
  plan->blocks = std::min<int64_t>(persistent_blocks(r, device), ceil_div(r.geometry.rows, groups));
  plan->parts = plan->blocks;
  return true;
}

/// Packs a thread whose sums fit in registers beside xhat and g: 16 elements.
int kept_packs(const RowRequest& r) { return size_of(r.dtype) > 2 ? 4 : 2; }

/// Threads of a backward block that have registers for so many elements each: 65536 registers, of which fp32 elements
/// take some more than 16-bit ones, which stay packed.
int backward_threads(const RowRequest& r, int elements) {
  return elements * accumulator_bytes(r.dtype) > 64 || size_of(r.dtype) == 4 ? 384 : 512;
}

bool backward_warp(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  if (in_runs(r) && device.compute_capability >= 90) return plan_run_warp(r, device, Direction::backward, plan);
  if (in_runs(r) || is_apart(r.access)) return plan_gather(r, device, Direction::backward, false, plan);
  const int64_t packs = packs_of(r);
  const int kept = kept_packs(r);
  const bool wide = size_of(r.dtype) == 2 && packs > kept * kWarp;
  plan->vectors = wide ? kept * 3 / 2 : kept;
  if (packs < 1 || packs > plan->vectors * kWarp) return false;
  plan->threads_per_row = r.mixed ? kWarp : static_cast<int>(power_of_two_from(ceil_div(packs, plan->vectors)));
  return plan_groups(r, device, plan, backward_threads(r, plan->vectors * pack_size(r)));
}

bool backward_block(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  if (in_runs(r) && plan_run_block(r, device, Direction::backward, plan)) return true;
  if (left_to_clusters(r, device, Direction::backward)) return false;
  if (in_runs(r) || is_apart(r.access)) return plan_gather(r, device, Direction::backward, true, plan);
  const int64_t packs = packs_of(r);
  if (packs < 1) return false;
  const int kept = kept_packs(r);
  // Two warps at least: fewer threads are the warp variant's, and a block has barriers for 15 groups.
  const auto lanes_for = [&](int vectors) {
    return std::max<int64_t>(round_up(ceil_div(packs, vectors), kWarp), 2 * kWarp);
  };
  const int64_t longest = r.activated ? 1280 : 256 * kept;
  if (r.variant == NORMACT_ROW_AUTO && device.active_clusters[0] > 0 && !r.mixed && packs > longest)
    return false;  // see forward_block
  // 16 elements a thread, while that leaves a block two rows at a time, or for 16-bit types 24, which lower the cost of
  // a row beside its elements but leave registers for fewer threads (layer norm bf16, 32768x1536: 78.0 us for 79.1 with
  // 24, 8192x4096: 55.7 for 56.3, H200). Activations are bound by arithmetic, which needs warps, and of which idle
  // lanes take their share: 16 (gelu, 8192x4096 bf16: 78 us for 84). Mixed rows, which have no clusters, take 24 where
  // these make one row at a time two, or none one.
  const int threads = backward_threads(r, kept * pack_size(r));
  const int more = kept * 3 / 2, more_threads = backward_threads(r, more * pack_size(r));
  const int64_t groups = threads / lanes_for(kept), more_groups = more_threads / lanes_for(more);
  const bool prefers_more = groups < (r.activated ? 1 : 2) && (!r.mixed || r.activated || groups < more_groups);
  const bool has_more = size_of(r.dtype) == 2 || (r.mixed && !r.activated);
  const bool use_more = has_more && prefers_more && more_groups > 0;
  if (!use_more && groups < 1) return false;
  plan->vectors = use_more ? more : kept;
  plan->threads_per_row = static_cast<int>(lanes_for(plan->vectors));
  return plan_groups(r, device, plan, use_more ? more_threads : threads);
}

bool backward_cluster(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  if (in_runs(r)) return plan_run_cluster(r, device, Direction::backward, plan);
  if (r.mixed) return false;
  const int tensors = r.residual ? 3 : 2;
  if (divide_over_cluster(r, device, kept_packs(r), false, plan)) {
    plan->threads = plan->threads_per_row + kClusterServants * kWarp;
    // With an activation, dy times its slope is kept in fp32, and so are the biases; and the first level of the cache
    // has to hold what does not fit in registers.
    const bool kept = r.activated && size_of(r.dtype) == 2;
    const int biases = kept ? plan->packs_per_block * pack_size(r) * accumulator_bytes(r.dtype) : 0;
    return plan_cluster_ring(device, kept ? tensors + 1 : tensors, 2, kept ? 3 : 4, biases, plan);
  }
  if (size_of(r.dtype) > 4 || !divide_over_cluster(r, device, 2 * kept_packs(r), false, plan)) return false;
  plan->threads = plan->threads_per_row;  // no registers to spare for another warp
  const int exchange = kExchangeDepth * plan->cluster * plan->threads_per_row / kWarp * 2 *
                       accumulator_bytes(r.dtype);  // DirectExchange::bytes
  if (size_of(r.dtype) == 2) return plan_cluster_ring(device, tensors, 2, 3, exchange, plan);
  // Rows of fp32 come in halves (kRowsByHalves), of which each warp has room for the larger.
  RowPlan half = *plan;
  half.packs_per_block = plan->threads * plan->vectors / 2;
  const bool fits = plan_cluster_ring(device, tensors, 2, 4, exchange, &half);
  plan->stages = half.stages;
  plan->shared_bytes = half.shared_bytes;
  return fits;
}

bool backward_image(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  return plan_image(r, device, Direction::backward, plan);
}

bool backward_tile(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  return plan_tile(r, device, Direction::backward, plan);
}

bool backward_stream(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  return plan_stream(r, device, Direction::backward, plan);
}

/// Of sums that grow in registers over more than kTilesASum tiles. `stream` and `image` have places in shared memory;
/// for those of `tile` there is no room (ROWS.md).
size_t bytes_of_places(const RowRequest& r, const RowPlan& plan) {
  const bool in_registers =
      plan.variant != NORMACT_ROW_STREAM && plan.variant != NORMACT_ROW_TILE && plan.variant != NORMACT_ROW_IMAGE;
  if (!in_registers || r.geometry.rows <= kTilesASum * plan.parts * plan.rows_per_block) return 0;
  const int values = plan.access == RowAccess::runs      ? plan.vectors * backward_run(size_of(r.dtype))
                     : plan.access == RowAccess::strided ? plan.vectors
                                                         : plan.vectors * pack_size(r);
  return static_cast<size_t>(plan.blocks) * plan.threads * 2 * values * sizeof(double);
}

using Planner = bool (*)(const RowRequest&, const DeviceInfo&, RowPlan*);

struct Variant {
  normact_row_variant id;
  Planner plan;
};

const char* variant_name(normact_row_variant variant) {
  switch (variant) {
#define NORMACT_CASE(symbol, value, name) \
  case NORMACT_ROW_##symbol: return name;
    NORMACT_ROW_VARIANT_LIST(NORMACT_CASE)
#undef NORMACT_CASE
  }
  return "?";
}

bool try_variant(const Variant& variant, const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  *plan = {};
  plan->variant = variant.id;
  plan->access = r.access;
  plan->near = r.near;
  plan->cluster = 1;
  plan->rows_per_block = 1;
  plan->packs_per_block = static_cast<int>(std::min<int64_t>(packs_of(r), 1 << 30));
  return variant.plan(r, device, plan) && plan->blocks <= kMaxBlocks;
}

Status plan_first_legal(const Variant (&variants)[6], const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  for (const Variant& variant : variants) {
    if (r.variant != NORMACT_ROW_AUTO && r.variant != variant.id) continue;
    // A residual takes shared memory, and so do gaps between rows in runs; what cannot serve with these does not serve
    // without, and by the same access, so that the bits are the same.
    RowRequest served = r;
    if (!r.residual || (r.dense && in_runs(r))) {
      RowRequest largest = r;
      largest.residual = true;
      largest.dense = r.dense && !in_runs(r);
      if (!try_variant(variant, largest, device, plan)) continue;
      served.access = plan->access;
    }
    if (try_variant(variant, served, device, plan)) return {};
  }
  return {NORMACT_NOT_SUPPORTED, std::string("the row variant '") + variant_name(r.variant) + "' cannot serve " +
                                     std::to_string(r.geometry.rows) + " rows of " + std::to_string(r.geometry.cols) +
                                     " " + name_of(r.dtype) +
                                     " columns with these strides and alignment on this device"};
}

}  // namespace

bool plan_clusters(const RowRequest& r, const DeviceInfo& device, int log, bool even_pairs, RowPlan* plan) {
  if (device.active_clusters[log] < 1) return false;
  plan->cluster = 1 << log;
  int64_t most = device.active_clusters[log] - ceil_div(r.sm_margin, plan->cluster);
  if (even_pairs && log == 1 && device.active_clusters[2] > 0) {
    most = std::min<int64_t>(most, 2 * device.active_clusters[2]);
  }
  most = std::max<int64_t>(1, most);
  // All get the same number of rows if that takes few of them away.
  if (r.geometry.rows >= 8 * most) most = ceil_div(r.geometry.rows, ceil_div(r.geometry.rows, most));
  plan->parts = std::min(r.geometry.rows, most);
  plan->blocks = plan->parts * plan->cluster;
  return true;
}

Status plan_row_forward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  static constexpr Variant kVariants[] = {{NORMACT_ROW_WARP, forward_warp},       {NORMACT_ROW_BLOCK, forward_block},
                                          {NORMACT_ROW_CLUSTER, forward_cluster}, {NORMACT_ROW_IMAGE, forward_image},
                                          {NORMACT_ROW_TILE, forward_tile},       {NORMACT_ROW_STREAM, forward_stream}};
  NORMACT_TRY(plan_first_legal(kVariants, request, device, plan));
  const int64_t rows = request.geometry.rows, slices = plan->slices;
  if (plan->variant == NORMACT_ROW_IMAGE && slices > 0) {
    plan->workspace_bytes = static_cast<size_t>(image_entries_bytes(rows, slices, request.dtype, true));
  } else if (plan->variant == NORMACT_ROW_STREAM && slices > 1) {
    plan->workspace_bytes = slice_moments_bytes(rows, slices);
  }
  return {};
}

Status plan_row_backward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  static constexpr Variant kVariants[] = {
      {NORMACT_ROW_WARP, backward_warp},   {NORMACT_ROW_BLOCK, backward_block}, {NORMACT_ROW_CLUSTER, backward_cluster},
      {NORMACT_ROW_IMAGE, backward_image}, {NORMACT_ROW_TILE, backward_tile},   {NORMACT_ROW_STREAM, backward_stream}};
  NORMACT_TRY(plan_first_legal(kVariants, request, device, plan));
  const int64_t accumulator = accumulator_bytes(request.dtype);
  int64_t bytes = 0;
  if (plan->variant == NORMACT_ROW_STREAM) {
    bytes += round_up(stream_pairs(*plan, request.geometry.rows) * 2 * accumulator, 256);
  } else if (plan->variant == NORMACT_ROW_IMAGE && plan->slices > 0) {
    bytes += image_entries_bytes(request.geometry.rows, plan->slices, request.dtype, false);
  }
  // Where a block has whole rows of contiguous columns, or slices of rows in runs, one row of sums is the result
  // itself.
  const bool whole_rows = plan->variant == NORMACT_ROW_WARP || plan->variant == NORMACT_ROW_BLOCK ||
                          (plan->variant == NORMACT_ROW_CLUSTER && plan->access == RowAccess::runs);
  const bool units = plan->variant == NORMACT_ROW_STREAM && !plan->elements;  // a block has all rows of some
  const bool partial = plan->parts > 1 || (!units && (!whole_rows || is_apart(plan->access)));
  if (request.parameter_gradients && partial) bytes += 2 * plan->parts * request.geometry.cols * accumulator;
  plan->places = request.parameter_gradients ? bytes_of_places(request, *plan) : 0;
  plan->workspace_bytes =
      plan->places > 0 ? static_cast<size_t>(round_up(bytes, 256)) + plan->places : static_cast<size_t>(bytes);
  return {};
}

}  // namespace normact