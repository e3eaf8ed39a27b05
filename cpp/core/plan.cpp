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

int pack_size(const RowRequest& r) { return kPackBytes / size_of(r.dtype); }

/// Packs in a row for the kernels that hold rows on chip, which want contiguous columns; 0 if they cannot serve.
int64_t packs_of(const RowRequest& r) {
  return r.access == RowAccess::strided ? 0 : ceil_div(r.geometry.cols, pack_size(r));
}

bool is_staged(const RowRequest& r) { return r.access == RowAccess::staged; }

/// StagedRow::bytes: shared bytes of a row of so many packs at any alignment.
int64_t staged_row_bytes(int64_t packs) { return packs * kPackBytes + 2 * kPackBytes; }

// ---- Forward. Each returns false if the variant cannot serve the request.

bool forward_warp(const RowRequest& r, const DeviceInfo&, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  if (packs < 1 || packs > 8 * kWarp) return false;
  // Many packs a thread, because what a row costs beside its elements is paid once a thread: 8, 6 or 4, whichever
  // leaves fewest idle; but two lanes at least where there are packs for them.
  int64_t best = INT64_MAX;
  for (const int vectors : {8, 6, 4}) {
    const int64_t lanes = std::max(power_of_two_from(ceil_div(packs, vectors)), std::min<int64_t>(packs, 2));
    if (lanes > kWarp || lanes * vectors >= best) continue;
    best = lanes * vectors;
    plan->vectors = vectors;
    plan->threads_per_row = static_cast<int>(lanes);
  }
  plan->threads = 128;
  plan->rows_per_block = plan->threads / plan->threads_per_row;
  if (is_staged(r)) plan->shared_bytes = static_cast<int>(plan->rows_per_block * staged_row_bytes(packs));
  plan->blocks = ceil_div(r.geometry.rows, plan->rows_per_block);
  return true;
}

/// Threads, and packs a thread, for a slice of a row that a whole block works on: up to 256 threads, or 512.
void plan_row_block(const RowRequest& r, RowPlan* plan) {
  int64_t best = INT64_MAX;
  for (const int vectors : {8, 6}) {
    const int64_t threads = round_up(ceil_div(plan->packs_per_block, vectors), kWarp);
    if (threads > (vectors == 8 ? 512 : 256) || threads * vectors >= best) continue;
    best = threads * vectors;
    plan->vectors = vectors;
    plan->threads = static_cast<int>(threads);
  }
  plan->threads_per_row = plan->threads;
  if (is_staged(r)) plan->shared_bytes = static_cast<int>(staged_row_bytes(plan->packs_per_block));
}

bool forward_block(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  if (packs < 1 || packs > 8 * 512) return false;
  plan_row_block(r, plan);
  plan->blocks = r.geometry.rows;
  return plan->shared_bytes <= device.shared_memory_block;
}

bool forward_cluster(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  if (packs < 1 || packs > 16 * 8 * 512 || device.compute_capability < 90) return false;
  int log = 1;
  while (log < 4 && packs > (int64_t{8 * 256} << log)) ++log;
  if (device.active_clusters[log] < 1) return false;
  plan->cluster = 1 << log;
  plan->packs_per_block = static_cast<int>(ceil_div(packs, plan->cluster));
  plan_row_block(r, plan);
  const int64_t at_once = int64_t{device.active_clusters[log]} * (plan->threads <= 256 ? 2 : 1);
  plan->blocks = std::min(r.geometry.rows, at_once) * plan->cluster;
  return plan->shared_bytes <= device.shared_memory_block;
}

bool forward_stream(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t units = r.access == RowAccess::packs ? packs_of(r) : r.geometry.cols;
  plan->cluster = device.compute_capability >= 90 && units >= 8 * 4 * 512 ? 8 : 1;
  plan->threads = static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(units, 4), kWarp), kWarp, 512));
  plan->threads_per_row = plan->threads;
  plan->blocks = r.geometry.rows * plan->cluster;
  return true;
}

// ---- Backward.

int persistent_blocks(const RowRequest& r, const DeviceInfo& device) {
  return std::max(1, device.multiprocessors - r.sm_margin);
}

/// Fills in the shared memory of a block with this many groups; false if two rows do not fit in flight.
bool plan_ring(const RowRequest& r, const DeviceInfo& device, int groups, RowPlan* plan) {
  const int64_t weights = static_cast<int64_t>(plan->packs_per_block) * pack_size(r) * accumulator_bytes(r.dtype);
  const int64_t tensors = r.residual ? 3 : 2;
  plan->threads = groups * plan->threads_per_row;
  plan->rows_per_block = groups;
  const int64_t stage = tensors * (is_staged(r) ? groups * staged_row_bytes(plan->packs_per_block)
                                                : plan->threads * int64_t{kPackBytes} * plan->vectors);
  plan->stages = static_cast<int>(std::min<int64_t>(4, (device.shared_memory_block - weights) / stage));
  const int64_t shared = std::max(weights + plan->stages * stage, weights * groups);  // parameter sums meet in it too
  plan->shared_bytes = static_cast<int>(shared);
  return plan->stages >= 2 && shared <= device.shared_memory_block;
}

/// A block of up to 512 threads in groups of threads_per_row, and the persistent grid.
bool plan_groups(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int lanes = plan->threads_per_row;
  const int least = std::max(1, kWarp / lanes);  // whole warps
  // No more groups than it takes to give every multiprocessor a block.
  const int64_t wanted = power_of_two_from(ceil_div(r.geometry.rows, device.multiprocessors));
  int groups = static_cast<int>(std::clamp<int64_t>(wanted, least, 512 / lanes));
  while (!plan_ring(r, device, groups, plan)) {
    groups /= 2;
    if (groups < least) return false;
  }
  plan->blocks = std::min<int64_t>(persistent_blocks(r, device), ceil_div(r.geometry.rows, groups));
  plan->parts = plan->blocks;
  return true;
}

/// Packs a thread whose sums fit in registers beside xhat and g: 16 elements.
int kept_packs(const RowRequest& r) { return size_of(r.dtype) > 2 ? 4 : 2; }

bool backward_warp(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  const int64_t most = is_staged(r) ? kept_packs(r) : 4;
  if (packs < 1 || packs > most * kWarp) return false;
  // Few lanes with many packs each: what a row costs beside its elements is paid once a lane.
  const int64_t lanes =
      std::max(power_of_two_from(ceil_div(packs, most)), std::min<int64_t>(power_of_two_from(packs), 2));
  plan->threads_per_row = static_cast<int>(lanes);
  plan->vectors = is_staged(r) ? kept_packs(r) : static_cast<int>(ceil_div(packs, lanes));
  return plan_groups(r, device, plan);
}

/// Packs a thread, 4 to 2: many, unless fewer keep clearly more of 512 threads busy.
void divide_row(int64_t packs, RowPlan* plan) {
  int64_t best = 0;  // packs at work at once, of 512 threads' 4, 3 or 2 packs each, in thousandths
  for (int vectors = 4; vectors >= 2; --vectors) {
    const int64_t lanes = std::max<int64_t>(round_up(ceil_div(packs, vectors), kWarp), 2 * kWarp);
    if (lanes > 512) continue;
    const int64_t groups = 512 / lanes;
    const int64_t busy = groups * packs * 1000 / (512 * vectors);
    if (busy * 10 > best * 11) {
      best = busy;
      plan->vectors = vectors;
      plan->threads_per_row = static_cast<int>(lanes);
    }
  }
}

bool backward_block(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  if (packs < 1 || packs > (is_staged(r) ? kept_packs(r) : 4) * 512) return false;
  if (is_staged(r)) {
    plan->vectors = kept_packs(r);
    plan->threads_per_row = static_cast<int>(std::max<int64_t>(round_up(ceil_div(packs, plan->vectors), kWarp), 64));
  } else {
    divide_row(packs, plan);
  }
  return plan_groups(r, device, plan);
}

bool backward_cluster(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t packs = packs_of(r);
  const int64_t most = is_staged(r) ? kept_packs(r) * 512 : 4 * 512;
  if (packs < 1 || packs > 16 * most || device.compute_capability < 90) return false;
  for (int log = 1; log <= 4; ++log) {
    plan->cluster = 1 << log;
    plan->packs_per_block = static_cast<int>(ceil_div(packs, plan->cluster));
    if (plan->packs_per_block > most || device.active_clusters[log] < 1) continue;
    plan->vectors = is_staged(r) ? kept_packs(r) : 4;
    plan->threads_per_row = static_cast<int>(round_up(ceil_div(plan->packs_per_block, plan->vectors), kWarp));
    if (!plan_ring(r, device, 1, plan)) continue;
    const int margin = static_cast<int>(ceil_div(r.sm_margin, plan->cluster));
    plan->parts = std::min<int64_t>(r.geometry.rows, std::max(1, device.active_clusters[log] - margin));
    plan->blocks = plan->parts * plan->cluster;
    return true;
  }
  return false;
}

bool backward_stream(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  const int64_t units = r.access == RowAccess::packs ? packs_of(r) : r.geometry.cols;
  const int64_t slabs = ceil_div(units, 256);
  plan->threads = static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(units, 4), kWarp), kWarp, 512));
  plan->threads_per_row = plan->threads;
  plan->blocks = r.geometry.rows;
  // Enough blocks to fill the device eight times, but ranges of at least 16 rows: partial sums stay small beside x.
  plan->parts = std::clamp<int64_t>(ceil_div(8 * device.multiprocessors, slabs), 1,
                                    std::min<int64_t>(65535, ceil_div(r.geometry.rows, 16)));
  return slabs <= kMaxBlocks;
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

Status plan_first_legal(const Variant (&variants)[4], const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  for (const Variant& variant : variants) {
    if (r.variant != NORMACT_ROW_AUTO && r.variant != variant.id) continue;
    *plan = {};
    plan->variant = variant.id;
    plan->access = r.access;
    plan->cluster = 1;
    plan->rows_per_block = 1;
    plan->packs_per_block = static_cast<int>(std::min<int64_t>(packs_of(r), 1 << 30));
    if (variant.plan(r, device, plan) && plan->blocks <= kMaxBlocks) return {};
  }
  return {NORMACT_NOT_SUPPORTED, std::string("the row variant '") + variant_name(r.variant) + "' cannot serve " +
                                     std::to_string(r.geometry.rows) + " rows of " + std::to_string(r.geometry.cols) +
                                     " " + name_of(r.dtype) +
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

/// How operands of x's shape and parameters can be accessed.
RowAccess access_of(const RowProblem& problem, std::initializer_list<const Operand*> like_x,
                    std::initializer_list<const Operand*> parameters) {
  const RowGeometry& g = problem.geometry;
  if (!problem.contiguous || g.row_ndim > 2 || (g.row_ndim == 2 && g.rows > kMaxDivisibleRows))
    return RowAccess::strided;
  bool packs = g.cols * size_of(problem.dtype) % kPackBytes == 0;
  for (const Operand* operand : like_x) packs = packs && pack_aligned(*operand, g);
  const Operand* first = nullptr;
  for (const Operand* operand : parameters) {
    if (operand->data == nullptr) continue;
    packs = packs && pack_aligned(*operand, g);
    if (first != nullptr && first->dtype != operand->dtype) return RowAccess::strided;
    first = operand;
  }
  return packs ? RowAccess::packs : RowAccess::staged;
}

RowRequest request_for(const RowProblem& problem, RowAccess access, bool residual, normact_row_variant variant,
                       int sm_margin) {
  RowRequest r{};
  r.geometry = problem.geometry;
  r.dtype = problem.dtype;
  r.access = access;
  r.residual = residual;
  r.variant = variant;
  r.sm_margin = sm_margin;
  return r;
}

}  // namespace

RowRequest request_of(const RowForward& p, normact_row_variant variant, int sm_margin) {
  const RowAccess access = access_of(p, {&p.x, &p.residual, &p.y, &p.residual_out}, {&p.weight, &p.bias});
  return request_for(p, access, p.residual.data != nullptr, variant, sm_margin);
}

RowRequest request_of(const RowBackward& p, normact_row_variant variant, int sm_margin) {
  const RowAccess access = access_of(p, {&p.x, &p.dy, &p.dresidual, &p.dx}, {&p.weight});
  RowRequest r = request_for(p, access, p.dresidual.data != nullptr, variant, sm_margin);
  r.parameter_gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  return r;
}

Status plan_row_forward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  static constexpr Variant kVariants[] = {{NORMACT_ROW_WARP, forward_warp},
                                          {NORMACT_ROW_BLOCK, forward_block},
                                          {NORMACT_ROW_CLUSTER, forward_cluster},
                                          {NORMACT_ROW_STREAM, forward_stream}};
  return plan_first_legal(kVariants, request, device, plan);
}

Status plan_row_backward(const RowRequest& request, const DeviceInfo& device, RowPlan* plan) {
  static constexpr Variant kVariants[] = {{NORMACT_ROW_WARP, backward_warp},
                                          {NORMACT_ROW_BLOCK, backward_block},
                                          {NORMACT_ROW_CLUSTER, backward_cluster},
                                          {NORMACT_ROW_STREAM, backward_stream}};
  NORMACT_TRY(plan_first_legal(kVariants, request, device, plan));
  const int64_t accumulator = accumulator_bytes(request.dtype);
  int64_t bytes = 0;
  if (plan->variant == NORMACT_ROW_STREAM) bytes += round_up(request.geometry.rows * 2 * accumulator, 256);
  if (request.parameter_gradients) bytes += 2 * plan->parts * request.geometry.cols * accumulator;
  plan->workspace_bytes = static_cast<size_t>(bytes);
  return {};
}

}  // namespace normact
