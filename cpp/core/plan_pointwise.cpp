// SPDX-License-Identifier: Apache-2.0
#include "core/plan_pointwise.h"

#include <cstdlib>
#include <initializer_list>
#include <numeric>

#include "core/plan_common.h"

namespace normact {
namespace {

using Views = std::initializer_list<const View*>;

bool aligned(const View& view) { return reinterpret_cast<uintptr_t>(view.data) % kPackBytes == 0; }

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

/// Numbers of packs, rows and elements are divided in 32 bits.
constexpr int64_t kMaxDivisible = 2147483647;
constexpr int64_t kMaxGridY = 65535;

struct Request {
  const PointwiseProblem& problem;
  Views like_x;
  Views biases;
  const void* mask;
  const View* pairs[4];  // what may alternate: gate and up, dgate and dup
  Views others;          // of like_x
};

bool biased(const Request& r) {
  for (const View* bias : r.biases) {
    if (bias->data != nullptr) return true;
  }
  return false;
}

/// Whether biases can be loaded in packs along the last dimension.
bool biases_are_packs(const Request& r) {
  const PointwiseGeometry& g = r.problem.geometry;
  for (const View* bias : r.biases) {
    if (bias->data == nullptr) continue;
    if (g.bias_dim != g.ndim - 1 || !aligned(*bias) || bias->stride[g.bias_dim] != 1) return false;
  }
  return true;
}

/// The most threads side by side that leave few of them idle at the end of a row.
int tile_lanes(int64_t packs) {
  int64_t lanes = std::min<int64_t>(256, power_of_two_from(packs));
  while (lanes > 8 && round_up(packs, lanes) - packs > packs / 16) lanes /= 2;
  return static_cast<int>(lanes);
}

/// Rows of whole packs that tiles serve.
bool tiles_fit(const Request& r, int64_t pack, Views rows) {
  const PointwiseGeometry& g = r.problem.geometry;
  if (g.ndim > 3 || (g.ndim == 3 && g.shape[0] > kMaxGridY)) return false;
  if (r.mask != nullptr || g.size / pack > kMaxDivisible / 2 || !in_rows(g, pack, rows)) return false;
  for (const View* view : r.like_x) {
    if (view->data != nullptr && g.ndim > 1 && std::abs(view->stride[g.ndim - 2]) > kMaxDivisible) return false;
  }
  return true;
}

bool plan_tile(const Request& r, int64_t pack, PointwisePlan* plan) {
  const PointwiseGeometry& g = r.problem.geometry;
  plan->lanes = tile_lanes(g.shape[g.ndim - 1] / pack);
  return tiles_fit(r, pack, r.like_x) && biases_are_packs(r);
}

/// Whether `second` lies one element behind `first` in rows of twice as many packs.
bool alternate(const PointwiseGeometry& g, const View& first, const View& second, int64_t pack) {
  const int last = g.ndim - 1;
  if (first.data == nullptr || second.data == nullptr) return first.data == second.data;
  if (static_cast<const char*>(second.data) != static_cast<const char*>(first.data) + size_of(first.dtype))
    return false;
  for (int d = 0; d < last; ++d) {
    if (first.stride[d] != second.stride[d] || (g.shape[d] > 1 && first.stride[d] % pack != 0)) return false;
  }
  return first.stride[last] == 2 && second.stride[last] == 2 && aligned(first);
}

bool plan_interleaved(const Request& r, int64_t pack, PointwisePlan* plan) {
  const PointwiseGeometry& g = r.problem.geometry;
  if (!r.problem.gated || !alternate(g, *r.pairs[0], *r.pairs[1], pack) ||
      !alternate(g, *r.pairs[2], *r.pairs[3], pack))
    return false;
  for (const View* bias : r.biases) {
    if (bias->data != nullptr && g.bias_dim != g.ndim - 1) return false;
  }
  plan->lanes = tile_lanes(g.shape[g.ndim - 1] / pack);
  return tiles_fit(r, pack, r.others);
}

bool plan_biased(const Request& r, int64_t pack, PointwisePlan* plan) {
  const int64_t size = r.problem.geometry.size;
  const bool rows = plan->inner % pack == 0;
  plan->bias = rows ? BiasAccess::rows : plan->inner >= pack ? BiasAccess::straddled : BiasAccess::columns;
  return (rows ? size / pack : size) <= kMaxDivisible;
}

/// A block's threads in lanes and lines so that the fewest blocks, of which it is as wide as can be, cover the last two
/// dimensions. False if more than three in four of the elements that they have room for are none.
bool plan_rows(const PointwiseProblem& p, PointwisePlan* plan) {
  const PointwiseGeometry& g = p.geometry;
  const int64_t columns = g.shape[g.ndim - 1], rows = g.ndim > 1 ? g.shape[g.ndim - 2] : 1;
  if (columns > kMaxDivisible / 2 || rows > kMaxDivisible / 2) return false;
  const int64_t a_thread = elements_a_thread(size_of(p.dtype));
  const int64_t least = std::min<int64_t>(kWarp, power_of_two_from(columns));
  int64_t best = INT64_MAX;
  for (int64_t lanes = kPointwiseThreads; lanes >= least; lanes /= 2) {
    const int64_t lines = kPointwiseThreads / lanes;
    for (const bool down : {false, true}) {
      const int64_t blocks = ceil_div(columns, down ? lanes : lanes * a_thread) *  //
                             ceil_div(rows, down ? lines * a_thread : lines);
      if (blocks >= best) continue;
      best = blocks;
      plan->lanes = static_cast<int>(lanes);
      plan->down = down;
    }
  }
  const int64_t blocks = g.size / (rows * columns) * best;
  return blocks <= kMaxBlocks && blocks * kPointwiseThreads * a_thread / 4 <= std::max<int64_t>(g.size, 512 * a_thread);
}

/// What reads and writes packs; false if they do not lie so.
bool plan_packs(const Request& r, PointwisePlan* plan) {
  const PointwiseGeometry& g = r.problem.geometry;
  const int64_t pack = kPackBytes / size_of(r.problem.dtype);
  const auto with = [&](PointwiseAccess access) {
    plan->access = access;
    return true;
  };
  if (r.problem.dtype == DType::f64) return false;  // packs of two elements gain nothing
  if (r.mask != nullptr && g.size % 8 != 0) return false;
  if (plan_interleaved(r, pack, plan)) return with(PointwiseAccess::interleaved);
  for (const View* view : r.like_x) {
    if (view->data != nullptr && !aligned(*view)) return false;
  }
  const bool dense = all_dense(g, r.like_x);
  if (dense && !biased(r)) return with(PointwiseAccess::flat);
  if (plan_tile(r, pack, plan)) return with(PointwiseAccess::tile);
  return dense && !r.problem.gated && plan_biased(r, pack, plan) && with(PointwiseAccess::biased);
}

PointwisePlan plan_access(const Request& r) {
  const BiasDims dims = bias_dims(r.problem.geometry);
  PointwisePlan plan{PointwiseAccess::elements, BiasAccess::rows, 0, false, dims.channels, dims.inner};
  if (plan_packs(r, &plan)) return plan;
  // Bits of a mask follow the index space.
  const bool rows = r.mask == nullptr && plan_rows(r.problem, &plan);
  plan.access = rows ? PointwiseAccess::rows : PointwiseAccess::elements;
  return plan;
}

}  // namespace

PointwisePlan plan_pointwise(const PointwiseForward& p) {
  const View none{};
  return plan_access({p, {&p.x, &p.up, &p.y}, {&p.bias, &p.up_bias}, p.mask, {&p.x, &p.up, &none, &none}, {&p.y}});
}

PointwisePlan plan_pointwise(const PointwiseBackward& p) {
  const View none{};  // the biases' values matter only where the slope follows from x
  const View& bias = p.x.data != nullptr ? p.bias : none;
  const View& up_bias = p.x.data != nullptr ? p.up_bias : none;
  return plan_access(
      {p, {&p.dy, &p.x, &p.up, &p.y, &p.dx, &p.dup}, {&bias, &up_bias}, p.mask, {&p.x, &p.up, &p.dx, &p.dup}, {&p.dy}});
}

namespace {

/// Whether the bias's dimension and those within it lie without gaps in each tensor, with at most one other, and rows
/// and their strides have 31 bits.
bool entries_are_columns(const PointwiseGeometry& g, Views like_x) {
  if (g.bias_dim > 1 || (g.bias_dim == 1 && g.shape[0] > kMaxDivisible / 2)) return false;
  for (const View* view : like_x) {
    if (view->data == nullptr) continue;
    if (g.bias_dim == 1 && std::abs(view->stride[0]) > kMaxDivisible) return false;
    int64_t stride = 1;
    for (int d = g.ndim - 1; d >= g.bias_dim; --d) {
      if (g.shape[d] > 1 && view->stride[d] != stride) return false;
      stride *= g.shape[d];
    }
  }
  return true;
}

constexpr int64_t kFewRows = 16;  // fewer would make the partial sums of columns large beside the tensors

/// How many rows without gaps to see as one, so that it is whole packs; 1 if rows are, or these would be few.
int rows_as_one(int64_t columns, int64_t pack, int64_t rows) {
  const int64_t fold = pack / std::gcd(pack, columns);
  return rows % fold == 0 && rows / fold >= kFewRows ? static_cast<int>(fold) : 1;
}

/// Whether rows that begin at the bias's dimension, `fold` without gaps at a time, are whole packs at multiples of 16
/// bytes.
bool columns_are_packs(const PointwiseGeometry& g, int64_t columns, int64_t pack, int fold, Views like_x) {
  for (const View* view : like_x) {
    if (view->data == nullptr) continue;
    if (!aligned(*view)) return false;
    for (int d = 0; d < g.bias_dim; ++d) {
      if (g.shape[d] > 1 && view->stride[d] * fold % pack != 0) return false;
    }
  }
  return columns % pack == 0;
}

}  // namespace

BiasPlan plan_bias_gradient(const PointwiseBackward& p, const DeviceInfo& device, int sm_margin) {
  const PointwiseGeometry& g = p.geometry;
  const Views like_x = {&p.dy, &p.x, &p.up, &p.y, &p.dx, &p.dup};
  const int64_t pack = p.dtype == DType::f64 ? 1 : kPackBytes / size_of(p.dtype);
  BiasPlan plan{};
  const BiasDims dims = bias_dims(g);
  plan.channels = dims.channels;
  plan.width = plan.lanes = plan.fold = 1;
  if (g.size == 0) return plan;
  plan.inner = dims.inner;
  plan.outer = dims.outer;
  plan.dense = all_dense(g, like_x);
  const int64_t columns = plan.channels * plan.inner;
  const bool by_columns = entries_are_columns(g, like_x);
  const bool whole_entries = plan.dense && plan.inner % pack == 0;
  plan.sum = by_columns && (plan.inner == 1 || (!whole_entries && plan.outer >= kFewRows)) ? BiasSum::columns
                                                                                           : BiasSum::channels;
  const bool packs = g.size <= kMaxDivisible && (p.mask == nullptr || (plan.dense && g.size % 8 == 0));
  // As many blocks as run at once: 4 a multiprocessor with 16-bit types, else 2; a few times that by channels.
  const int64_t at_once = size_of(p.dtype) == 2 && !p.gated ? 4 : 2;
  const int64_t blocks = at_once * std::max(1, device.multiprocessors - sm_margin);
  if (plan.sum == BiasSum::columns) {
    plan.fold = plan.dense ? rows_as_one(columns, pack, plan.outer) : 1;
    const int64_t columns_of_all = columns * plan.fold;
    plan.width = static_cast<int>(packs && columns_are_packs(g, columns_of_all, pack, plan.fold, like_x) ? pack : 1);
    const int64_t groups = ceil_div(columns_of_all, pack);  // whatever the alignment
    const int64_t lanes = std::min<int64_t>(kWarp, power_of_two_from(groups));
    plan.lanes = static_cast<int>(lanes);
    // One block too many would cost a whole round of all of them.
    plan.parts = std::min(blocks / ceil_div(groups, lanes), ceil_div(plan.outer / plan.fold * lanes, int64_t{4} * 256));
    plan.partials = columns;
  } else {
    plan.width = static_cast<int>(packs && plan.dense && in_rows(g, pack, like_x) ? pack : 1);
    plan.parts =
        std::min(ceil_div(4 * blocks, plan.channels), ceil_div(plan.outer * plan.inner, int64_t{4} * 256 * pack));
    plan.partials = plan.channels;
  }
  plan.parts = std::max<int64_t>(plan.parts, 1);
  const int sums = (p.dbias.data != nullptr ? 1 : 0) + (p.dup_bias.data != nullptr ? 1 : 0);
  plan.workspace_bytes =
      static_cast<size_t>(plan.parts * plan.fold * plan.partials * sums * size_of(accumulator_of(p.dtype)));
  return plan;
}

}  // namespace normact
