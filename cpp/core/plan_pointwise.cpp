// SPDX-License-Identifier: Apache-2.0
#include "core/plan_pointwise.h"

#include <initializer_list>

#include "core/plan_common.h"

namespace normact {
namespace {

using Views = std::initializer_list<const View*>;

bool aligned(const View& view) { return reinterpret_cast<uintptr_t>(view.data) % kPackBytes == 0; }

/// Whether the view is one array in the order of the index space.
bool is_dense(const View& view, const PointwiseGeometry& g) {
  int64_t stride = 1;
  for (int d = g.ndim - 1; d >= 0; --d) {
    if (g.shape[d] > 1 && view.stride[d] != stride) return false;
    stride *= g.shape[d];
  }
  return true;
}

bool all_dense(const PointwiseGeometry& g, Views like_x) {
  for (const View* view : like_x) {
    if (view->data != nullptr && !is_dense(*view, g)) return false;
  }
  return true;
}

/// Whether the last dimension is rows of elements side by side, which start at multiples of `width` elements.
bool in_rows(const PointwiseGeometry& g, int64_t width, Views like_x) {
  const int last = g.ndim - 1;
  if (g.shape[last] % width != 0) return false;
  for (const View* view : like_x) {
    if (view->data == nullptr) continue;
    if (view->stride[last] != 1 && g.shape[last] > 1) return false;
    if (reinterpret_cast<uintptr_t>(view->data) % (width * size_of(view->dtype)) != 0) return false;
    for (int d = 0; d < last; ++d) {
      if (g.shape[d] > 1 && view->stride[d] % width != 0) return false;
    }
  }
  return true;
}

int64_t channels_of(const PointwiseGeometry& g) { return g.bias_dim < 0 ? 1 : g.shape[g.bias_dim]; }

int64_t inner_of(const PointwiseGeometry& g) {
  int64_t inner = 1;
  if (g.bias_dim < 0) return inner;
  for (int d = g.bias_dim + 1; d < g.ndim; ++d) inner *= g.shape[d];
  return inner;
}

/// Packs are divided in 32 bits.
constexpr int64_t kMaxDivisible = 2147483647;

struct Request {
  const PointwiseProblem& problem;
  Views like_x;
  Views biases;
  const void* mask;
};

bool biases_are_packs(const Request& r) {
  for (const View* bias : r.biases) {
    if (bias->data == nullptr) continue;
    if (!aligned(*bias) || bias->stride[r.problem.geometry.bias_dim] != 1) return false;
  }
  return true;
}

/// How biases are found in packs of the whole index space; false if they cannot be.
bool plan_dense_bias(const Request& r, int64_t pack, PointwisePlan* plan) {
  const PointwiseGeometry& g = r.problem.geometry;
  if (plan->inner == 1) {
    if (plan->channels < pack) return false;
    const bool packs = plan->channels % pack == 0 && biases_are_packs(r) && g.size / pack <= kMaxDivisible;
    plan->bias = packs ? BiasAccess::packs : BiasAccess::columns;
    return packs || g.size <= kMaxDivisible;
  }
  if (plan->inner < pack) return false;
  plan->bias = plan->inner % pack == 0 ? BiasAccess::rows : BiasAccess::straddled;
  return (plan->bias == BiasAccess::rows ? g.size / pack : g.size) <= kMaxDivisible;
}

bool plan_rows(const Request& r, int64_t pack, PointwisePlan* plan) {
  const PointwiseGeometry& g = r.problem.geometry;
  if (g.ndim > 3 || r.mask != nullptr || g.size / pack > kMaxDivisible || !in_rows(g, pack, r.like_x)) return false;
  if (plan->bias == BiasAccess::none) return true;
  if (g.bias_dim != g.ndim - 1) {
    plan->bias = BiasAccess::rows;
    return true;
  }
  plan->bias = biases_are_packs(r) ? BiasAccess::packs : BiasAccess::columns;
  return true;
}

PointwisePlan plan_access(const Request& r) {
  const PointwiseGeometry& g = r.problem.geometry;
  const int64_t pack = kPackBytes / size_of(r.problem.dtype);
  bool biased = false;
  for (const View* bias : r.biases) biased |= bias->data != nullptr;
  PointwisePlan plan{PointwiseAccess::dense, BiasAccess::none, channels_of(g), inner_of(g)};
  const auto begin = [&](PointwiseAccess access) {
    plan.access = access;
    plan.bias = biased ? BiasAccess::rows : BiasAccess::none;
  };
  if (r.problem.dtype != DType::f64) {  // whose packs of two elements gain nothing
    bool packs = r.mask == nullptr || g.size % 8 == 0;
    for (const View* view : r.like_x) packs = packs && (view->data == nullptr || aligned(*view));
    begin(PointwiseAccess::dense);
    if (packs && all_dense(g, r.like_x) && (!biased || plan_dense_bias(r, pack, &plan))) return plan;
    begin(PointwiseAccess::rows);
    if (packs && plan_rows(r, pack, &plan)) return plan;
  }
  begin(PointwiseAccess::elements);
  return plan;
}

}  // namespace

PointwisePlan plan_pointwise(const PointwiseForward& p) {
  return plan_access({p, {&p.x, &p.up, &p.y}, {&p.bias, &p.up_bias}, p.mask});
}

PointwisePlan plan_pointwise(const PointwiseBackward& p) {
  const bool from_x = p.x.data != nullptr;  // the biases' values matter
  const View none{};
  return plan_access(
      {p, {&p.dy, &p.x, &p.up, &p.y, &p.dx, &p.dup}, {from_x ? &p.bias : &none, from_x ? &p.up_bias : &none}, p.mask});
}

BiasPlan plan_bias_gradient(const PointwiseBackward& p, const DeviceInfo& device, int sm_margin) {
  const PointwiseGeometry& g = p.geometry;
  const int pack = p.dtype == DType::f64 ? 1 : kPackBytes / size_of(p.dtype);
  const Views like_x = {&p.dy, &p.x, &p.up, &p.y, &p.dx, &p.dup};
  BiasPlan plan{};
  plan.channels = channels_of(g);
  plan.inner = inner_of(g);
  plan.outer = plan.channels > 0 ? g.size / (plan.channels * std::max<int64_t>(plan.inner, 1)) : 0;
  plan.sum = g.bias_dim == g.ndim - 1 && g.ndim <= 3 && in_rows(g, 1, like_x) ? BiasSum::columns : BiasSum::channels;
  plan.dense = all_dense(g, like_x);
  const bool packs = g.size > 0 && g.size <= kMaxDivisible && g.ndim <= 3 && (p.mask == nullptr || plan.dense);
  plan.width = packs && in_rows(g, pack, like_x) ? pack : 1;
  const int sums = (p.dbias.data != nullptr ? 1 : 0) + (p.dup_bias.data != nullptr ? 1 : 0);
  const int64_t blocks = int64_t{4} * std::max(1, device.multiprocessors - sm_margin);
  // Parts as for packs, whatever the alignment.
  if (plan.sum == BiasSum::columns) {
    const int64_t packs = ceil_div(plan.channels, pack);
    const int64_t lanes = std::min<int64_t>(kWarp, power_of_two_from(std::max<int64_t>(packs, 1)));
    const int64_t rows_at_once = 256 / lanes;
    plan.lanes = static_cast<int>(lanes);
    plan.parts = std::min(ceil_div(blocks, ceil_div(packs, lanes)), ceil_div(plan.outer, 4 * rows_at_once));
  } else {
    plan.lanes = 256;
    plan.parts = std::min(ceil_div(2 * blocks, std::max<int64_t>(plan.channels, 1)),
                          ceil_div(plan.outer * plan.inner, int64_t{4} * 256 * pack));
  }
  plan.parts = std::max<int64_t>(plan.parts, 1);
  plan.workspace_bytes = static_cast<size_t>(plan.parts * plan.channels * sums * size_of(accumulator_of(p.dtype)));
  if (g.size == 0) plan.workspace_bytes = 0;
  return plan;
}

}  // namespace normact
