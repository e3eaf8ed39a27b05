// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <initializer_list>
#include <numeric>

#include "core/plan_channel_division.h"

namespace normact {
namespace {

using Views = std::initializer_list<const ChannelView*>;

constexpr int64_t kMost = int64_t{1} << 30;  // kernels for packs count units and places in 32 bits

bool all_have_strides(const ChannelGeometry& g, const ChannelView& x, Views others) {
  for (const ChannelView* view : others) {
    if (view->data != nullptr && !have_equal_strides(g, x, *view)) return false;
  }
  return true;
}

/// Where the first element lies in its 16 bytes.
uintptr_t phase_of(const ChannelView& view) { return reinterpret_cast<uintptr_t>(view.data) % kPackBytes; }

bool have_equal_phases(const ChannelView& x, Views others) {
  for (const ChannelView* view : others) {
    if (view->data != nullptr && phase_of(*view) != phase_of(x)) return false;
  }
  return true;
}

bool are_planes(const ChannelProblem& p, const ChannelView& x) {
  const ChannelGeometry& g = p.geometry;
  const int64_t width = kPackBytes / size_of(p.dtype);
  return g.place_ndim == 1 && x.place_stride[0] == 1 && g.places >= width && g.places < kMost &&
         g.samples * ceil_div(g.places, width) < kMost;
}

bool are_rows(const ChannelProblem& p, const ChannelView& x) {
  const ChannelGeometry& g = p.geometry;
  const int64_t width = kPackBytes / size_of(p.dtype);
  if (g.place_ndim != 1 || g.channels % width != 0 || x.channel_stride != 1) return false;
  if (g.places > 1 && (x.place_stride[0] % width != 0 || x.place_stride[0] >= kMost || x.place_stride[0] < 0))
    return false;
  if (g.samples > 1 && x.sample_stride % width != 0) return false;
  if (g.samples * g.places >= kMost) return false;
  if (p.set == ChannelSet::group || g.samples == 1) return true;
  if (g.places == 1) return x.sample_stride >= 0 && x.sample_stride < kMost;
  return x.sample_stride == g.places * x.place_stride[0];
}

/// Whether a batch norm's samples may go as rows of their planes. Packs hold parts of several channels; threads on some
/// whole packs side by side have whole channels.
bool fit_columns(const ChannelGeometry& g, ChannelSet set, DType dtype) {
  constexpr int64_t kLeastSamples = 8;  // each a row: fewer leave threads without work
  const int64_t width = kPackBytes / size_of(dtype);
  return set == ChannelSet::channel && dtype != DType::f64 && g.samples >= kLeastSamples && g.samples < kMost &&
         g.places > 0 && g.channels < kMost / g.places && g.channels * g.places % width == 0 &&
         std::lcm(width, g.places) <= kChannelThreads * width;
}

bool are_columns(const ChannelProblem& p, const ChannelView& x) {
  const ChannelGeometry& g = p.geometry;
  return g.place_ndim == 1 && x.place_stride[0] == 1 && x.channel_stride == g.places &&
         x.sample_stride % (kPackBytes / size_of(p.dtype)) == 0 && x.sample_stride >= 0 && x.sample_stride < kMost &&
         fit_columns(g, p.set, p.dtype);
}

/// Whether a set's elements are channels and places, of one stride each or the places of two, and lie less than 2^31
/// apart.
bool is_even(const ChannelGeometry& g, const ChannelView& view) {
  if (view.data == nullptr) return true;
  const auto less = [](int64_t count, int64_t stride) { return count <= 1 || std::abs(stride) < kMost / 4 / count; };
  bool even = g.place_ndim <= 2 && less(g.channels / g.groups, view.channel_stride);
  for (int d = 0; d < g.place_ndim; ++d) even = even && less(g.place_shape[d], view.place_stride[d]);
  return even;
}

/// Whether the places of a batch, which are those of all samples or of one, have one stride.
bool has_even_units(const ChannelProblem& p, const ChannelView& view) {
  const ChannelGeometry& g = p.geometry;
  if (view.data == nullptr || g.places == 1) return true;
  const bool several = p.set == ChannelSet::channel && g.samples > 1;
  return g.place_ndim == 1 && (!several || view.sample_stride == g.places * view.place_stride[0]);
}

/// Whether the sets of a group norm are whole packs: all of one is side by side, or the channels of each place are.
bool are_set_packs(const ChannelProblem& p, const ChannelView& x) {
  const ChannelGeometry& g = p.geometry;
  const int64_t width = kPackBytes / size_of(p.dtype), channels = g.channels / g.groups;
  if (g.place_ndim != 1 || (g.samples > 1 && x.sample_stride % width != 0)) return false;
  const bool in_place = g.places == 1 || x.place_stride[0] == 1;
  const bool run = in_place && (g.channels == 1 || x.channel_stride == g.places) && channels * g.places % width == 0;
  const bool even = g.places == 1 || (x.place_stride[0] > 0 && x.place_stride[0] % width == 0);  // channels come first
  const bool rows = x.channel_stride == 1 && channels % width == 0 && even;
  return run || rows;
}

/// The planner's view of a problem whose tensors of x's shape are x and `others`.
ChannelRequest request_with(const ChannelProblem& p, const ChannelView& x, Views others, ChannelPasses passes,
                            int sm_margin) {
  ChannelRequest r{};
  const ChannelGeometry& g = p.geometry;
  r.geometry = g;
  r.set = p.set;
  r.dtype = p.dtype;
  r.passes = passes;
  r.sm_margin = sm_margin;
  r.access = ChannelAccess::elements;
  const int64_t apart = p.set == ChannelSet::channel && g.samples > 1 ? x.sample_stride : 0;  // of single places
  r.place_major = g.channels > 1 && (g.places > 1 ? x.place_stride[g.place_ndim - 1] : apart) > x.channel_stride;
  const int64_t width = kPackBytes / size_of(p.dtype);
  const bool aligned = phase_of(x) == 0;
  r.aligned = aligned && g.places % width == 0 && (g.channels == 1 || x.channel_stride % width == 0) &&
              (g.samples == 1 || x.sample_stride % width == 0);
  r.even = is_even(g, x);
  r.even_units = has_even_units(p, x);
  for (const ChannelView* view : others) {
    r.even = r.even && is_even(g, *view);
    r.even_units = r.even_units && has_even_units(p, *view);
  }
  if (p.dtype == DType::f64 || !all_have_strides(g, x, others) || !have_equal_phases(x, others)) return r;
  r.set_packs = aligned && are_set_packs(p, x);
  if (are_rows(p, x) && aligned) {
    r.access = ChannelAccess::rows;
    return r;
  }
  r.columns = aligned && !r.aligned && are_columns(p, x);
  if (are_planes(p, x)) {
    r.access = ChannelAccess::planes;
    r.numbered = aligned && g.places_after == g.places && (g.channels == 1 || x.channel_stride == g.places) &&
                 (g.samples == 1 || x.sample_stride == g.channels * g.places);
  }
  return r;
}

/// Whether issue slots, not bytes, may be what an activation is short of.
template <class Problem>
bool is_busy(const Problem& p) {
  const normact_activation_kind kind = p.activation.kind;
  return size_of(p.dtype) == 2 && kind != NORMACT_ACTIVATION_IDENTITY && kind != NORMACT_ACTIVATION_RELU;
}

}  // namespace

ChannelRequest request_of(const ChannelForward& p, int sm_margin) {
  const bool batch = p.source == StatisticsSource::batch;
  ChannelRequest r =
      request_with(p, p.x, {&p.addend, &p.y}, batch ? ChannelPasses::both : ChannelPasses::apply, sm_margin);
  r.tensors = r.kept = 1;
  r.staged = p.addend.data != nullptr ? 2 : 1;
  r.mask = r.marks = p.mask != nullptr;
  r.beside = p.addend.data != nullptr || r.mask;
  r.exponentials = is_busy(p);
  r.averages = p.set == ChannelSet::group && p.running.mean.data != nullptr;
  r.sums = 3;
  r.parameters = 3;
  r.entry_bytes = 4 * accumulator_bytes(p.dtype);
  return r;
}

ChannelRequest request_of(const ChannelBackward& p, ChannelPasses passes, int sm_margin) {
  ChannelRequest r = request_with(p, p.x, {&p.dy, &p.addend, &p.y, &p.dx, &p.daddend}, passes, sm_margin);
  r.tensors = r.kept = 2;
  if (p.y.data != nullptr || p.addend.data != nullptr) r.tensors = 3;  // an addend is there if h is computed again
  r.mask = p.mask != nullptr;
  const normact_activation_kind kind = p.activation.kind;
  r.staged = kind != NORMACT_ACTIVATION_IDENTITY && !r.mask ? r.tensors : r.kept;
  r.slopes = is_busy(p);
  r.beside = r.tensors > r.kept || r.mask;
  r.sums = 2;
  r.parameters = 4;
  r.channel_sums = true;
  r.entry_bytes = 2 * accumulator_bytes(p.dtype);
  return r;
}

ChannelRequest request_of(const ChannelMoments& p, int sm_margin) {
  ChannelRequest r = request_with(p, p.x, {}, ChannelPasses::reduce, sm_margin);
  r.tensors = 1;
  r.sums = 3;
  r.entry_bytes = 4 * accumulator_bytes(p.dtype);
  return r;
}

size_t largest_channel_workspace(const ChannelRequest& request, const DeviceInfo& device, const ChannelTuning& tuning) {
  size_t most = 0;
  const int64_t width = kPackBytes / size_of(request.dtype);
  ChannelRequest r = request;
  r.columns = r.even = false;
  for (const ChannelAccess access : {ChannelAccess::planes, ChannelAccess::rows, ChannelAccess::elements}) {
    if (access == ChannelAccess::planes && request.geometry.places < width) continue;
    if (access == ChannelAccess::rows && request.geometry.channels % width != 0) continue;
    r.access = access;
    for (const bool flag : {false, true}) {
      if (access == ChannelAccess::planes && flag && request.geometry.places % width != 0) continue;
      r.aligned = r.place_major = flag;
      // Planes of whole packs that begin elsewhere in 16 bytes are no whole packs.
      const bool may_be_cut = access == ChannelAccess::planes && !flag && request.set_packs;
      for (const bool cut : {false, true}) {
        if (cut && !may_be_cut) continue;
        r.set_packs = request.set_packs && !cut;
        for (const bool numbered : {false, true}) {
          r.numbered = numbered;
          most = std::max(most, plan_channel(r, device, tuning).workspace_bytes);
          if (!r.marks) break;
        }
      }
    }
  }
  r.columns = fit_columns(request.geometry, request.set, request.dtype);
  most = std::max(most, plan_channel(r, device, tuning).workspace_bytes);
  if (has_no_elements(r.geometry)) return most;
  const auto consider = [&](const auto& plan_by) {
    ChannelPlan plan{};
    if (!plan_by(r, device, &plan)) return;
    set_chunks(r, &plan);
    most = std::max(most, plan.workspace_bytes);
  };
  r.even = true;
  for (const bool packs : {false, true}) {
    r.set_packs = packs;
    consider(plan_registers);
  }
  r.access = ChannelAccess::planes;
  r.aligned = false;
  consider(plan_plane_slabs);
  return most;
}

}  // namespace normact
