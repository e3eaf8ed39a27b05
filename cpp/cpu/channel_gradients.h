// SPDX-License-Identifier: Apache-2.0
// The driver of every backward of the channel norms: sums over the channels, what input gradients need of them, and the
// input gradients.
#pragma once

#include "cpu/channel_common.h"
#include "math/channel.h"

namespace normact::cpu {

/// One call. N: the accumulator.
template <class N>
class Gradients {
 public:
  explicit Gradients(const ChannelBackward& problem) : p_(problem), g_(p_.geometry) {
    merge_samples(g_, p_.set, p_.mask != nullptr, {&p_.dy, &p_.x, &p_.addend, &p_.y, &p_.dx, &p_.daddend});
    by_rows_ = (p_.mask == nullptr || mask_by_rows(g_)) &&
               goes_by_rows(g_, {&p_.dy, &p_.x, &p_.addend, &p_.y, &p_.dx, &p_.daddend});
    const int64_t bytes = 3 * elements_of(g_) * size_of(p_.dtype);
    streams_ = streams_outputs(g_, by_rows_, bytes, {&p_.dx, &p_.daddend}, {&p_.dy, &p_.x, &p_.addend, &p_.y});
    threads_ = threads_for(bytes, num_threads());
  }

  Status prepare() {
    NORMACT_TRY(find_row_kernels(p_.dtype, &row_kernels_));
    NORMACT_TRY(find_channel_kernels(p_.dtype, &kernels_));
    NORMACT_TRY(find_array_activation(p_.dtype, p_.activation, &activation_, &activated_));
    NORMACT_TRY(allocate());
    rest_ = p_;
    rest_activated_ = activated_;
    load_vector(*row_kernels_, p_.weight, g_.channels, N(1), weight_);
    load_vector(*row_kernels_, p_.bias, g_.channels, N(-0.0), bias_);
    if (batch()) load_statistics(0, g_.channels, arrays(0, 0));
    return {};
  }

  /// For a batch norm whose sums are taken in this call: where dh and daddend are the same bits, the sums leave it
  /// there, and what follows reads it there instead of dy and all that an activation's slope is computed from.
  void leave_dh() {
    const bool exact = sizeof(N) == size_of(p_.dtype) || p_.activation.kind == NORMACT_ACTIVATION_RELU;
    leaves_ = p_.daddend.data && activated_ && exact && !(streams_ && kept_channels() > 0);
    if (!leaves_) return;
    rest_.dy = p_.daddend;
    rest_.addend = rest_.y = rest_.daddend = {};
    rest_.mask = nullptr;
    rest_.activation = {};
    rest_activated_ = nullptr;
  }

  /// Sums over all samples of every channel, one set a channel.
  const ChannelSums* batch_sums() {
    if (has_no_elements(g_)) {
      std::fill(sums(0), sums(0) + g_.channels, ChannelSums{});
    } else if (by_rows_) {
      sums_by_rows(0, 0, threads_);
    } else {
      sums_by_planes(0, {0, g_.channels}, 0, arrays(0, 0), threads_);
    }
    return sums(0);
  }

  /// As channels_at_once, for both passes of a batch norm's backward.
  int64_t kept_channels() const {
    if (has_no_elements(g_) || by_rows_) return 0;
    const int64_t tensors = p_.addend.data || p_.y.data ? 3 : 2;
    return channels_at_once(g_, tensors * size_of(p_.dtype), threads_);
  }

  /// Both passes; the sums.
  const ChannelSums* batch_by_channels(int64_t at_once) {
    const Arrays a = arrays(0, 0);
    const ChannelFactors f = factors(a);
    const double size = double(rows_of(g_));
    for_channels(threads_, g_, at_once, 3 * size_of(p_.dtype), [&](Range channels) {
      sums_by_planes(0, channels, 0, a, 1);
      set_terms(channels, a, [this](int64_t c) { return sums(0)[c]; }, [size](int64_t) { return size; });
      for_planes(g_, channels, [&](Range elements) { kernels_->plane_backward(rest_, rest_activated_, f, elements); });
    });
    return sums(0);
  }

  /// dx and daddend. sums: (channel) -> ChannelSums, count: (channel) -> how many elements these are over.
  template <class Sums, class Count>
  void batch_gradients(Sums sums, Count count) {
    const Arrays a = arrays(0, 0);
    set_terms({0, g_.channels}, a, sums, count);
    apply(0, {0, elements_of(g_)}, a, threads_);
  }

  void store_batch_sums(const ChannelSums* sums) {
    N* const array = arrays(0, 0).c1;  // free by now
    const auto store = [&](const ChannelVector& vector, double ChannelSums::* sum) {
      if (!vector.data) return;
      for (int64_t c = 0; c < g_.channels; ++c) array[c] = N(sums[c].*sum);
      store_sums(*row_kernels_, vector, g_.channels, array, 1);
    };
    store(p_.dweight, &ChannelSums::dh_xhat);
    store(p_.dbias, &ChannelSums::dh);
  }

  bool wants_sums() const { return p_.dweight.data || p_.dbias.data; }

  void groups() {
    const bool empty = has_no_elements(g_);
    if (!empty) by_rows_ ? groups_by_rows() : groups_by_planes();
    const int64_t count = empty ? 0 : g_.samples;
    store_sums(*row_kernels_, p_.dweight, g_.channels, dweight_, count);
    store_sums(*row_kernels_, p_.dbias, g_.channels, dbias_, count);
  }

 private:
  /// Arrays over the channels of a set or a sample.
  struct Arrays {
    int64_t first;
    N *mean, *rstd, *scale, *c1, *c2;
    N* dh;  // of all elements of these channels, in one sample; null: not kept
  };

  bool batch() const { return p_.set == ChannelSet::channel; }

  Status allocate() {
    const int64_t vector = align_up(g_.channels * int64_t{sizeof(N)});
    parts_ = row_parts(batch() ? rows_of(g_) : g_.places, g_.channels);
    blocks_ = plane_blocks(g_, true, batch() ? g_.samples : 1);
    const int64_t each = g_.channels / g_.groups;
    const int64_t units = batch() ? g_.channels : each * groups_at_once(g_.groups, each * g_.places);
    Layout layout, lane;
    for (int i = 0; i < 5; ++i) lane.reserve(vector);
    sums_at_ = lane.reserve(g_.channels * int64_t{sizeof(ChannelSums)});
    const int64_t kept = kept_bytes(by_rows_ ? g_.channels * g_.places : units * g_.places);
    kept_at_ = kept > 0 ? lane.reserve(kept) : 0;
    scratch_at_ = lane.reserve(has_no_elements(g_) ? 0
                               : by_rows_          ? parts_.bytes()
                                                   : units * blocks_.count() * int64_t{sizeof(ChannelSums)});
    lane_bytes_ = lane.size();
    const int64_t weight_at = layout.reserve(vector), bias_at = layout.reserve(vector);
    const int64_t partial = batch() || !wants_sums() ? 0 : g_.samples * g_.channels * int64_t{sizeof(N)};
    const int64_t dweight_at = layout.reserve(partial), dbias_at = layout.reserve(partial);
    const int64_t lanes_at = layout.reserve((batch() ? 1 : threads_) * lane_bytes_);
    char* const memory = thread_buffer(layout.size());
    if (!memory) return out_of_memory(layout.size());
    weight_ = reinterpret_cast<N*>(memory + weight_at);
    bias_ = reinterpret_cast<N*>(memory + bias_at);
    dweight_ = reinterpret_cast<N*>(memory + dweight_at);
    dbias_ = reinterpret_cast<N*>(memory + dbias_at);
    lanes_ = memory + lanes_at;
    return {};
  }

  /// What is kept of dh of so many elements between both passes over them: computing an activation's slope takes
  /// longer than moving it to and from the caches, but for relu's and a mask's.
  int64_t kept_bytes(int64_t elements) const {
    const int64_t bytes = elements * int64_t{sizeof(N)};
    const bool cheap = !activated_ || p_.mask || p_.activation.kind == NORMACT_ACTIVATION_RELU;
    return batch() || cheap || bytes > kKeptBytes ? 0 : bytes;
  }

  char* scratch(int lane) const { return lanes_ + lane * lane_bytes_ + scratch_at_; }
  ChannelSums* sums(int lane) const { return reinterpret_cast<ChannelSums*>(lanes_ + lane * lane_bytes_ + sums_at_); }
  Arrays arrays(int lane, int64_t first) const {
    N* const base = reinterpret_cast<N*>(lanes_ + lane * lane_bytes_);
    const int64_t step = align_up(g_.channels * int64_t{sizeof(N)}) / int64_t{sizeof(N)};
    N* const dh = kept_at_ > 0 ? reinterpret_cast<N*>(lanes_ + lane * lane_bytes_ + kept_at_) : nullptr;
    return {first, base, base + step, base + 2 * step, base + 3 * step, base + 4 * step, dh};
  }
  ChannelFactors factors(const Arrays& a, int64_t sample = 0) const {
    const KeptSlopes kept = {a.dh, sample * g_.places};
    return {a.first, a.mean, a.rstd, a.scale, bias_ + a.first, a.c1, a.c2, streams_, kept, leaves_};
  }

  /// Of `count` channels from a.first on: whole groups.
  void load_statistics(int64_t sample, int64_t count, const Arrays& a) const {
    const int64_t each = g_.channels / g_.groups, group = a.first / each;
    for (int64_t begin = 0, i = 0; begin < count; begin += each, ++i) {
      const N mean = *entry<N>(p_.mean, sample, group + i), rstd = *entry<N>(p_.rstd, sample, group + i);
      for (int64_t c = begin; c < begin + each; ++c) {
        a.mean[c] = mean;
        a.rstd[c] = rstd;
        a.scale[c] = channel_scale(rstd, weight_[a.first + c]);
      }
    }
  }

  /// Of a batch norm, what input gradients need of the sums.
  template <class Sums, class Count>
  void set_terms(Range channels, const Arrays& a, Sums sums, Count count) const {
    for (int64_t c = channels.begin; c < channels.end && !p_.frozen; ++c) {
      a.c1[c] = N(double(a.scale[c]) * sums(c).dh / count(c));
      a.c2[c] = N(double(a.scale[c]) * sums(c).dh_xhat / count(c));
    }
  }

  // ---- Sums of each channel, to those of the lane: their first is of the arrays' first channel ----

  void sums_by_planes(int64_t sample, Range channels, int lane, const Arrays& a, int threads) const {
    const int64_t count = blocks_.count(), first = channels.begin - a.first, number = channels.end - channels.begin;
    auto* const parts = reinterpret_cast<ChannelSums*>(scratch(lane)) + first * count;
    const ChannelFactors f = factors(a, sample);
    const int64_t bytes = 2 * blocks_.each * std::min(blocks_.places, kPlaneChunk) * size_of(p_.dtype);
    parallel_ranges(threads, number * count, bytes, [&](Range units, int) {
      if (count == 1) {
        return kernels_->plane_sums(p_, activated_, f, blocks_.block(sample, channels.begin + units.begin, 0),
                                    units.end - units.begin, parts + units.begin);
      }
      for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const PlaneBlock block = blocks_.block(sample, channels.begin + unit / count, unit % count);
        kernels_->plane_sums(p_, activated_, f, block, 1, parts + unit);
      }
    });
    ChannelSums* const all = sums(lane) + first;
    for (int64_t c = 0; c < number; ++c) {
      all[c] = {};
      for (int64_t i = 0; i < count; ++i) {
        all[c].dh_xhat += parts[c * count + i].dh_xhat;
        all[c].dh += parts[c * count + i].dh;
      }
    }
  }

  void sums_by_rows(int64_t sample, int lane, int threads) const {
    double* const dh_xhat = reinterpret_cast<double*>(scratch(lane));
    double* const dh = parts_.second(dh_xhat);
    const ChannelFactors f = factors(arrays(lane, 0), sample);
    parallel_for(threads, parts_.units(), [&](int64_t unit, int) {
      kernels_->row_sums(p_, activated_, f, parts_.part(unit, sample * g_.places), parts_.strip(unit),
                         dh_xhat + parts_.at(unit), dh + parts_.at(unit));
    });
    for (int64_t part = 1; part < parts_.count; ++part) {
      const double *next = dh_xhat + part * g_.channels, *next_dh = dh + part * g_.channels;
      for (int64_t c = 0; c < g_.channels; ++c) dh_xhat[c] += next[c], dh[c] += next_dh[c];
    }
    ChannelSums* const all = sums(lane);
    for (int64_t c = 0; c < g_.channels; ++c) all[c] = {dh_xhat[c], dh[c]};
  }

  // ---- Group norm ----

  /// What input gradients need, from the lane's sums; a partial sum of dweight and dbias.
  void finish_channels(int64_t sample, int64_t first, int64_t channels, int lane, const Arrays& a) const {
    const int64_t each = g_.channels / g_.groups;
    const double size = double(each * g_.places);
    const ChannelSums* const all = sums(lane);
    for (int64_t begin = 0; begin < channels; begin += each) {
      double g = 0, g_xhat = 0;
      for (int64_t i = begin; i < begin + each; ++i) {
        g += double(weight_[first + i]) * all[i].dh;
        g_xhat += double(weight_[first + i]) * all[i].dh_xhat;
      }
      const double rstd = double(a.rstd[begin]);
      std::fill(a.c1 + begin, a.c1 + begin + each, N(rstd * g / size));
      std::fill(a.c2 + begin, a.c2 + begin + each, N(rstd * g_xhat / size));
    }
    if (!wants_sums()) return;
    for (int64_t i = 0; i < channels; ++i) {
      dweight_[sample * g_.channels + first + i] = N(all[i].dh_xhat);
      dbias_[sample * g_.channels + first + i] = N(all[i].dh);
    }
  }

  void groups_by_planes() const {
    const int64_t each = g_.channels / g_.groups, size = each * g_.places;
    const int64_t at_once = groups_at_once(g_.groups, size), runs = ceil_div(g_.groups, at_once);
    const auto run = [&](int64_t index, int lane, int threads) {
      const int64_t sample = index / runs, group = index % runs * at_once;
      const int64_t groups = std::min(at_once, g_.groups - group), first = group * each;
      const Arrays a = arrays(lane, first);
      load_statistics(sample, groups * each, a);
      sums_by_planes(sample, {first, first + groups * each}, lane, a, threads);
      finish_channels(sample, first, groups * each, lane, a);
      apply((sample * g_.groups + group) * size, {0, groups * size}, a, threads);
    };
    const int64_t sets = g_.samples * runs, bytes = 3 * size_of(p_.dtype);
    for_sets(threads_, shares_sets(threads_, sets, at_once * size), sets, at_once * size * bytes, run);
  }

  void groups_by_rows() const {
    const int64_t size = g_.places * g_.channels, bytes = 3 * size_of(p_.dtype);
    const auto run_sample = [&](int64_t sample, int lane, int threads) {
      const Arrays a = arrays(lane, 0);
      load_statistics(sample, g_.channels, a);
      sums_by_rows(sample, lane, threads);
      finish_channels(sample, 0, g_.channels, lane, a);
      apply(sample * size, {0, size}, a, threads);
    };
    for_sets(threads_, shares_sets(threads_, g_.samples, size), g_.samples, size * bytes, run_sample);
  }

  /// dx and daddend of a range of elements, counted from `from` on.
  void apply(int64_t from, Range all, const Arrays& a, int threads) const {
    const ChannelFactors f = factors(a, from / (g_.channels * g_.places));
    const int64_t bytes = 3 * size_of(p_.dtype);
    if (by_rows_) {
      const Range rows = {from / g_.channels, (from + all.end) / g_.channels};
      parallel_rows(threads, rows, g_.channels, bytes, false, [&](Range part, Range channels) {
        kernels_->row_backward(rest_, rest_activated_, f, part, channels);
      });
    } else {
      parallel_elements(threads, all.end, bytes, [&](Range range) {
        kernels_->plane_backward(rest_, rest_activated_, f, {from + range.begin, from + range.end});
      });
    }
  }

  ChannelBackward p_;
  ChannelGeometry& g_;
  bool by_rows_;
  bool streams_;
  int threads_;
  const RowKernels* row_kernels_ = nullptr;
  const ChannelKernels* kernels_ = nullptr;
  ArrayActivation activation_;
  const ArrayActivation* activated_ = nullptr;
  ChannelBackward rest_;  // what the pass over the input gradients is of
  const ArrayActivation* rest_activated_ = nullptr;
  bool leaves_ = false;
  RowParts parts_{};
  PlaneBlocks blocks_{};
  N* weight_ = nullptr;
  N* bias_ = nullptr;
  N* dweight_ = nullptr;  // of each sample, with ChannelSet::group
  N* dbias_ = nullptr;
  char* lanes_ = nullptr;
  int64_t lane_bytes_ = 0;
  int64_t sums_at_ = 0;
  int64_t scratch_at_ = 0;
  int64_t kept_at_ = 0;  // 0: nothing is
};

}  // namespace normact::cpu
