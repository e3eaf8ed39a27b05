// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"

#include <algorithm>
#include <initializer_list>

namespace normact {
namespace {

constexpr int kPackBytes = 16;
constexpr int kWarp = 32;
constexpr int64_t kMaxBlocks = 2147483647;
constexpr int64_t kMaxDivisibleRows = 2147483647;  // kernels divide row indices in 32 bits

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

int64_t power_of_two_from(int64_t value) {
  int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

int accumulator_bytes(DType dtype) { return size_of(accumulator_of(dtype)); }

/// Whole 16-byte packs in a row, or 0 if rows cannot be accessed in packs.
int64_t whole_packs(const RowRequest& r) {
  const int pack = kPackBytes / size_of(r.dtype);
  return r.contiguous && r.aligned && r.geometry.cols % pack == 0 ? r.geometry.cols / pack : 0;
}

/// TileSpan::pitch: shared bytes of a row at any misalignment.
int64_t tile_pitch(const RowRequest& r) {
  return round_up(r.geometry.cols * size_of(r.dtype) + kPackBytes - 1, kPackBytes);
}

// ---- Forward. Each returns false if the variant cannot serve the request; `forced` lifts what is only a preference.

bool forward_warp(const RowRequest& r, const DeviceInfo&, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  if (packs < 1 || packs > 8 * kWarp) return false;
  plan->threads = 128;
  plan->threads_per_row = static_cast<int>(std::min<int64_t>(power_of_two_from(packs), kWarp));
  plan->vectors = static_cast<int>(power_of_two_from(ceil_div(packs, kWarp)));
  const int rows_per_thread = plan->vectors >= 4 ? 1 : 4 / plan->vectors;  // four packs in flight
  plan->rows_per_block = plan->threads / plan->threads_per_row * rows_per_thread;
  plan->blocks = ceil_div(r.geometry.rows, plan->rows_per_block);
  return true;
}

bool forward_block(const RowRequest& r, const DeviceInfo& device, bool forced, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  const int64_t most = forced || device.compute_capability < 90 ? 8 * 512 : 4 * 512;
  if (packs < 1 || packs > most) return false;
  plan->vectors = packs > 4 * 512 ? 8 : 4;
  plan->threads = static_cast<int>(round_up(ceil_div(packs, plan->vectors), kWarp));
  plan->threads_per_row = plan->threads;
  plan->blocks = r.geometry.rows;
  return true;
}

bool forward_cluster(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  if (packs < 1 || packs > 16 * 8 * 512 || device.compute_capability < 90) return false;
  plan->cluster = static_cast<int>(std::clamp<int64_t>(power_of_two_from(ceil_div(packs, 4 * 512)), 2, 16));
  plan->packs_per_block = static_cast<int>(ceil_div(packs, plan->cluster));
  plan->vectors = plan->packs_per_block > 4 * 512 ? 8 : 4;
  plan->threads = static_cast<int>(round_up(ceil_div(plan->packs_per_block, plan->vectors), kWarp));
  plan->threads_per_row = plan->threads;
  plan->blocks = r.geometry.rows * plan->cluster;
  return true;
}

bool forward_tile(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t cols = r.geometry.cols;
  if (!r.contiguous || cols > 32 * 1024) return false;
  const int64_t elements = cols <= 16 * 256 ? 16 : 32;
  plan->packs = false;
  plan->threads_per_row = static_cast<int>(power_of_two_from(ceil_div(cols, elements)));
  plan->threads = std::max(256, plan->threads_per_row);
  plan->vectors = static_cast<int>(elements);
  plan->rows_per_block = plan->threads / plan->threads_per_row;
  const int64_t shared = (r.residual ? 2 : 1) * plan->rows_per_block * tile_pitch(r);
  if (shared > device.shared_memory_block) return false;
  plan->shared_bytes = static_cast<int>(shared);
  plan->blocks = ceil_div(r.geometry.rows, plan->rows_per_block);
  return true;
}

bool forward_stream(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  const int64_t units = packs > 0 ? packs : r.geometry.cols;
  plan->packs = packs > 0;
  plan->cluster = device.compute_capability >= 90 && units >= 8 * 4 * 512 ? 8 : 1;
  plan->threads = static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(units, 4), kWarp), kWarp, 512));
  plan->threads_per_row = plan->threads;
  plan->blocks = r.geometry.rows * plan->cluster;
  return true;
}

// ---- Backward.

/// Groups in a block: as many as fit `threads`, but no more than it takes to give every multiprocessor a block.
int groups_of(const RowRequest& r, const DeviceInfo& device, int threads, int lanes) {
  const int least = std::max(1, kWarp / lanes);  // whole warps
  const int64_t wanted = power_of_two_from(ceil_div(r.geometry.rows, device.multiprocessors));
  return static_cast<int>(std::clamp<int64_t>(wanted, least, threads / lanes));
}

int persistent_blocks(const RowRequest& r, const DeviceInfo& device) {
  return std::max(1, device.multiprocessors - r.sm_margin);
}

/// Fills in ring, shared memory and workspace for kernels of row_backward.cuh; false if two rows do not fit in flight.
bool plan_ring(const RowRequest& r, const DeviceInfo& device, int groups, RowPlan* plan) {
  const int tensors = r.residual ? 3 : 2;
  const int accumulator = accumulator_bytes(r.dtype);
  const int64_t slice_cols = static_cast<int64_t>(plan->packs_per_block) * (kPackBytes / size_of(r.dtype));
  const int64_t weights = slice_cols * accumulator;
  const int64_t left = device.shared_memory_block - weights;
  for (;; groups /= 2) {
    plan->threads = groups * plan->threads_per_row;
    const int64_t stage = static_cast<int64_t>(plan->threads) * kPackBytes * plan->vectors * tensors;
    plan->stages = static_cast<int>(std::min<int64_t>(4, left / stage));
    plan->shared_bytes = static_cast<int>(std::max(weights + plan->stages * stage, groups * slice_cols * accumulator));
    if (plan->stages >= 2) break;
    if (groups / 2 * plan->threads_per_row < kWarp) return false;
  }
  plan->rows_per_block = groups;
  return true;
}

bool backward_groups(const RowRequest& r, const DeviceInfo& device, int64_t lanes, int64_t packs, RowPlan* plan) {
  plan->threads_per_row = static_cast<int>(lanes);
  plan->vectors = static_cast<int>(ceil_div(packs, lanes));
  plan->packs_per_block = static_cast<int>(packs);
  if (!plan_ring(r, device, groups_of(r, device, 512, plan->threads_per_row), plan)) return false;
  plan->blocks = std::min<int64_t>(persistent_blocks(r, device), ceil_div(r.geometry.rows, plan->rows_per_block));
  plan->parts = plan->blocks;
  return true;
}

bool backward_warp(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  if (packs < 1 || packs > 4 * kWarp) return false;
  // Eight lanes at least where there are packs for them: 128 contiguous bytes an access.
  const int64_t lanes = std::max(power_of_two_from(ceil_div(packs, 4)), std::min<int64_t>(power_of_two_from(packs), 8));
  return backward_groups(r, device, lanes, packs, plan);
}

bool backward_block(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  if (packs < 1 || packs > 4 * 512) return false;
  const int64_t lanes = std::max<int64_t>(power_of_two_from(ceil_div(packs, 4)), 2 * kWarp);
  return backward_groups(r, device, lanes, packs, plan);
}

bool backward_cluster(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  if (packs < 1 || packs > 16 * 4 * 512 || device.compute_capability < 90) return false;
  for (int log = 1; log <= 4; ++log) {
    plan->cluster = 1 << log;
    plan->packs_per_block = static_cast<int>(ceil_div(packs, plan->cluster));
    if (plan->packs_per_block > 4 * 512 || device.active_clusters[log] < 1) continue;
    const int64_t lanes = std::max<int64_t>(power_of_two_from(ceil_div(plan->packs_per_block, 4)), kWarp);
    plan->threads_per_row = static_cast<int>(lanes);
    plan->vectors = 4;
    if (!plan_ring(r, device, 1, plan)) continue;
    const int margin = static_cast<int>(ceil_div(r.sm_margin, plan->cluster));
    const int64_t clusters = std::min<int64_t>(r.geometry.rows, std::max(1, device.active_clusters[log] - margin));
    plan->blocks = clusters * plan->cluster;
    plan->parts = clusters;
    return true;
  }
  return false;
}

bool backward_tile(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t cols = r.geometry.cols;
  if (!r.contiguous || cols > 16 * 512) return false;
  const int lanes = static_cast<int>(power_of_two_from(ceil_div(cols, 16)));
  const int64_t tensors = r.residual ? 3 : 2;
  const int64_t left = device.shared_memory_block;
  plan->packs = false;
  plan->vectors = 16;
  plan->stages = 2;
  plan->threads_per_row = lanes;
  for (int groups = groups_of(r, device, 512, lanes); groups * lanes >= kWarp; groups /= 2) {
    const int64_t shared = std::max(plan->stages * tensors * groups * tile_pitch(r),
                                    groups * cols * accumulator_bytes(r.dtype));
    if (shared > left) continue;
    plan->shared_bytes = static_cast<int>(shared);
    plan->rows_per_block = groups;
    plan->threads = groups * lanes;
    plan->blocks = std::min<int64_t>(persistent_blocks(r, device), ceil_div(r.geometry.rows, groups));
    plan->parts = plan->blocks;
    return true;
  }
  return false;
}

bool backward_stream(const RowRequest& r, const DeviceInfo& device, bool, RowPlan* plan) {
  const int64_t packs = whole_packs(r);
  const int64_t units = packs > 0 ? packs : r.geometry.cols;
  const int64_t slabs = ceil_div(units, 256);
  plan->packs = packs > 0;
  plan->threads = static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(units, 4), kWarp), kWarp, 512));
  plan->threads_per_row = plan->threads;
  plan->blocks = r.geometry.rows;
  // Enough blocks to fill the device eight times, but ranges of at least 16 rows: partial sums stay small beside x.
  plan->parts = std::clamp<int64_t>(ceil_div(8 * device.multiprocessors, slabs), 1,
                                    std::min<int64_t>(65535, ceil_div(r.geometry.rows, 16)));
  return slabs <= kMaxBlocks;
}

using Planner = bool (*)(const RowRequest&, const DeviceInfo&, bool forced, RowPlan*);

struct Variant {
  normact_row_variant id;
  Planner plan;
};

const char* variant_name(normact_row_variant variant) {
  switch (variant) {
#define NORMACT_CASE(symbol, value, name) \
  case NORMACT_ROW_##symbol:              \
    return name;
    NORMACT_ROW_VARIANT_LIST(NORMACT_CASE)
#undef NORMACT_CASE
  }
  return "?";
}

Status plan_first_legal(const Variant (&variants)[5], const char* function, const RowRequest& r,
                        const DeviceInfo& device, RowPlan* plan) {
  if (r.geometry.row_ndim > 1 && r.geometry.rows > kMaxDivisibleRows) {
    return {NORMACT_NOT_SUPPORTED, std::string(function) + ": more than 2^31 - 1 rows need rows at one common stride; found " +
                                       std::to_string(r.geometry.rows) + " rows in " +
                                       std::to_string(r.geometry.row_ndim) + " strided dimensions"};
  }
  for (const Variant& variant : variants) {
    const bool forced = r.variant == variant.id;
    if (r.variant != NORMACT_ROW_AUTO && !forced) continue;
    *plan = {};
    plan->variant = variant.id;
    plan->packs = true;
    plan->cluster = 1;
    plan->rows_per_block = 1;
    plan->packs_per_block = static_cast<int>(std::min<int64_t>(whole_packs(r), 1 << 30));
    if (variant.plan(r, device, forced, plan) && plan->blocks <= kMaxBlocks) return {};
  }
  return {NORMACT_NOT_SUPPORTED, std::string(function) + ": the row variant '" + variant_name(r.variant) +
                                     "' cannot serve " + std::to_string(r.geometry.rows) + " rows of " +
                                     std::to_string(r.geometry.cols) + " " + name_of(r.dtype) +
                                     " columns with these strides and alignment on this device"};
}

bool pack_aligned(const Operand& operand, const RowGeometry& g) {
  if (operand.data == nullptr) return true;
  if (reinterpret_cast<uintptr_t>(operand.data) % kPackBytes != 0) return false;
  for (int d = 0; d < g.row_ndim; ++d) {
    if (g.row_shape[d] > 1 && operand.row_stride[d] * size_of(operand.dtype) % kPackBytes != 0) return false;
  }
  return true;
}

RowRequest request_of(const RowProblem& problem, std::initializer_list<const Operand*> operands, bool residual,
                      normact_row_variant variant, int sm_margin) {
  RowRequest r{};
  r.geometry = problem.geometry;
  r.kind = problem.kind;
  r.dtype = problem.dtype;
  r.contiguous = problem.contiguous;
  r.aligned = true;
  for (const Operand* operand : operands) r.aligned = r.aligned && pack_aligned(*operand, problem.geometry);
  r.residual = residual;
  r.variant = variant;
  r.sm_margin = sm_margin;
  return r;
}

}  // namespace

RowRequest request_of(const RowForward& p, normact_row_variant variant, int sm_margin) {
  return request_of(p, {&p.x, &p.residual, &p.weight, &p.bias, &p.y, &p.residual_out}, p.residual.data != nullptr,
                    variant, sm_margin);
}

RowRequest request_of(const RowBackward& p, normact_row_variant variant, int sm_margin) {
  RowRequest r = request_of(p, {&p.dy, &p.x, &p.weight, &p.dresidual, &p.dx}, p.dresidual.data != nullptr, variant,
                            sm_margin);
  r.parameter_gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  return r;
}

Status plan_row_forward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  static constexpr Variant kVariants[] = {{NORMACT_ROW_WARP, forward_warp},
                                          {NORMACT_ROW_BLOCK, forward_block},
                                          {NORMACT_ROW_CLUSTER, forward_cluster},
                                          {NORMACT_ROW_TILE, forward_tile},
                                          {NORMACT_ROW_STREAM, forward_stream}};
  return plan_first_legal(kVariants, "normact_norm_forward", request, device, plan);
}

Status plan_row_backward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  static constexpr Variant kVariants[] = {{NORMACT_ROW_WARP, backward_warp},
                                          {NORMACT_ROW_BLOCK, backward_block},
                                          {NORMACT_ROW_CLUSTER, backward_cluster},
                                          {NORMACT_ROW_TILE, backward_tile},
                                          {NORMACT_ROW_STREAM, backward_stream}};
  NORMACT_TRY(plan_first_legal(kVariants, "normact_norm_backward", request, device, plan));
  const int64_t accumulator = accumulator_bytes(request.dtype);
  int64_t bytes = 0;
  if (plan->variant == NORMACT_ROW_STREAM) bytes += round_up(request.geometry.rows * 2 * accumulator, 256);
  if (request.parameter_gradients) bytes += 2 * plan->parts * request.geometry.cols * accumulator;
  plan->workspace_bytes = static_cast<size_t>(bytes);
  return {};
}

}  // namespace normact
