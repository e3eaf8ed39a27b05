// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.h"
#include "cpu/channel_moments.h"
#include "cpu/small_sets.h"

namespace normact::cpu {
namespace {

/// One call. N: the accumulator.
template <class N>
class Forward {
 public:
  explicit Forward(const ChannelForward& problem) : p_(problem), g_(p_.geometry) {
    merge_samples(g_, p_.set, p_.mask != nullptr, {&p_.x, &p_.addend, &p_.y});
    by_rows_ = goes_by_rows(g_, {&p_.x, &p_.addend, &p_.y});
    tensors_ = p_.addend.data ? 3 : 2;
    const int64_t bytes = tensors_ * elements_of(g_) * size_of(p_.dtype);
    streams_ = streams_outputs(g_, by_rows_, bytes, {&p_.y}, {&p_.x, &p_.addend});
    threads_ = threads_for(bytes, num_threads());
  }

  Status run() {
    if (p_.set == ChannelSet::group && has_no_elements(g_)) {
      for (int64_t set = 0; set < g_.samples * g_.groups; ++set)
        finish(set / g_.groups, set % g_.groups, Moments<double>{}, Arrays{});
      return {};
    }
    NORMACT_TRY(find_row_kernels(p_.dtype, &row_kernels_));
    NORMACT_TRY(find_channel_kernels(p_.dtype, &kernels_));
    NORMACT_TRY(find_array_activation(p_.dtype, p_.activation, &activation_, &activated_));
    NORMACT_TRY(allocate());
    load_vector(*row_kernels_, p_.weight, g_.channels, N(1), weight_);
    load_vector(*row_kernels_, p_.bias, g_.channels, N(-0.0), bias_);
    if (p_.set == ChannelSet::channel) {
      batch();
    } else if (by_rows_) {
      groups_by_rows();
    } else {
      groups_by_planes();
    }
    return {};
  }

 private:
  /// Arrays over the channels of a set or a sample.
  struct Arrays {
    int64_t first;
    N* mean;
    N* scale;
  };

  Status allocate() {
    const bool batch = p_.set == ChannelSet::channel;
    const bool keeps = !batch && p_.running.mean.data;
    const int64_t vector = g_.channels * int64_t{sizeof(N)}, size = sizeof(Moments<double>);
    if (!batch) {
      parts_ = row_parts(g_.places, g_.channels);
      blocks_ = plane_blocks(g_, false, g_.channels / g_.groups);
    }
    Layout layout, lane;
    lane.reserve(vector);
    lane.reserve(vector);
    scratch_at_ = lane.reserve(batch      ? moments_scratch(g_, by_rows_)
                               : by_rows_ ? parts_.bytes()
                                          : std::max(blocks_.count(), g_.groups) * size);
    lane_bytes_ = lane.size();
    const int64_t weight_at = layout.reserve(vector), bias_at = layout.reserve(vector);
    const int64_t moments_at = layout.reserve((batch ? g_.channels : keeps ? g_.samples * g_.channels : 0) * size);
    const int64_t lanes_at = layout.reserve((batch ? 1 : threads_) * lane_bytes_);
    char* const memory = thread_buffer(layout.size());
    if (!memory) return out_of_memory(layout.size());
    weight_ = reinterpret_cast<N*>(memory + weight_at);
    bias_ = reinterpret_cast<N*>(memory + bias_at);
    moments_ = reinterpret_cast<Moments<double>*>(memory + moments_at);
    lanes_ = memory + lanes_at;
    return {};
  }

  char* scratch(int lane) const { return lanes_ + lane * lane_bytes_ + scratch_at_; }
  Arrays arrays(int lane, int64_t first) const {
    N* const mean = reinterpret_cast<N*>(lanes_ + lane * lane_bytes_);
    return {first, mean, mean + align_up(g_.channels * int64_t{sizeof(N)}) / int64_t{sizeof(N)}};
  }
  ChannelFactors factors(const Arrays& a) const {
    return {a.first, a.mean, nullptr, a.scale, bias_ + a.first, nullptr, nullptr, streams_};
  }

  /// Statistics of a set, rounded, to where they belong: the outputs, and the arrays unless these are absent.
  void finish(int64_t sample, int64_t group, const SetStatistics& s, const Arrays& a) const {
    const N mean = N(s.mean), rstd = N(s.rstd);
    if (p_.source != StatisticsSource::given) {
      if (p_.mean.data) *entry<N>(p_.mean, sample, group) = mean;
      if (p_.rstd.data) *entry<N>(p_.rstd, sample, group) = rstd;
    }
    if (!a.mean) return;
    const int64_t each = g_.channels / g_.groups;
    for (int64_t c = group * each; c < (group + 1) * each; ++c) {
      a.mean[c - a.first] = mean;
      a.scale[c - a.first] = channel_scale(rstd, weight_[c]);
    }
  }
  void finish(int64_t sample, int64_t group, const Moments<double>& moments, const Arrays& a) const {
    finish(sample, group, statistics_of(moments, p_.eps), a);
  }

  // ---- Batch norm ----

  void batch() {
    const Arrays a = arrays(0, 0);
    if (p_.source == StatisticsSource::batch) {
      if (const int64_t at_once = kept_channels(); at_once > 0) return batch_by_channels(at_once, a);
      all_channel_moments(*kernels_, g_, p_.x, by_rows_, threads_, scratch(0), moments_);
      for (int64_t c = 0; c < g_.channels; ++c) finish(0, c, moments_[c], a);
      if (!has_no_elements(g_)) keep_batch();
    } else {
      for (int64_t c = 0; c < g_.channels; ++c) finish(0, c, given(c), a);
    }
    if (!has_no_elements(g_)) apply(factors(a));
  }

  /// As channels_at_once; 0 also if threads would share bytes of the mask.
  int64_t kept_channels() const {
    const bool shares_bytes = p_.mask && (!mask_by_planes(g_) || g_.places % 8 != 0);
    if (has_no_elements(g_) || by_rows_ || shares_bytes) return 0;
    return channels_at_once(g_, size_of(p_.dtype), threads_);
  }

  void batch_by_channels(int64_t at_once, const Arrays& a) {
    const ChannelFactors f = factors(a);
    for_channels(threads_, g_, at_once, tensors_ * size_of(p_.dtype), [&](Range channels) {
      plane_channel_moments(*kernels_, g_, p_.x, channels, 1, scratch(0), moments_);
      for (int64_t c = channels.begin; c < channels.end; ++c) finish(0, c, moments_[c], a);
      for_planes(g_, channels, [&](Range elements) { kernels_->plane_forward(p_, activated_, f, elements); });
    });
    keep_batch();
  }

  SetStatistics given(int64_t c) const {
    if (p_.source == StatisticsSource::given) {
      return {double(*entry<N>(p_.mean, 0, c)), double(*entry<N>(p_.rstd, 0, c))};
    }
    return {double(*entry<N>(p_.running.mean, c)), rstd_of(double(*entry<N>(p_.running.variance, c)), p_.eps)};
  }

  void keep_batch() const {
    const double share = running_share(p_.running);
    for (int64_t c = 0; c < g_.channels; ++c) {
      update_running<N>(p_.running, c, moments_[c].mean, unbiased_variance(moments_[c]), share);
    }
    if (p_.running.batches) ++*p_.running.batches;
  }

  void apply(const ChannelFactors& f) const {
    const int64_t bytes = tensors_ * size_of(p_.dtype), elements = elements_of(g_);
    if (p_.mask && !(by_rows_ ? mask_by_rows(g_) : mask_by_planes(g_))) {
      parallel_elements(threads_, elements, bytes, [&](Range bits) { kernels_->mask(p_, f, bits); });
    }
    if (by_rows_) {
      parallel_rows(threads_, {0, rows_of(g_)}, g_.channels, bytes, p_.mask,
                    [&](Range rows, Range channels) { kernels_->row_forward(p_, activated_, f, rows, channels); });
    } else {
      parallel_elements(threads_, elements, bytes,
                        [&](Range range) { kernels_->plane_forward(p_, activated_, f, range); });
    }
  }

  // ---- Group norm ----

  void groups_by_planes() {
    const int64_t each = g_.channels / g_.groups, size = each * g_.places, bytes = tensors_ * size_of(p_.dtype);
    const int64_t at_once = groups_at_once(g_.groups, size), runs = ceil_div(g_.groups, at_once);
    const auto run = [&](int64_t index, int lane, int threads) {
      const int64_t sample = index / runs, group = index % runs * at_once;
      const int64_t groups = std::min(at_once, g_.groups - group);
      const Arrays a = arrays(lane, group * each);
      group_moments(sample, group, groups, lane, threads, a);
      const ChannelFactors f = factors(a);
      const int64_t from = (sample * g_.groups + group) * size;
      parallel_elements(threads, groups * size, bytes, [&](Range range) {
        kernels_->plane_forward(p_, activated_, f, {from + range.begin, from + range.end});
      });
    };
    const int64_t sets = g_.samples * runs;
    for_sets(threads_, shares_sets(threads_, sets, at_once * size), sets, at_once * size * bytes, run);
    if (p_.running.mean.data) keep_instances();
  }

  /// Statistics of neighbouring groups.
  void group_moments(int64_t sample, int64_t group, int64_t groups, int lane, int threads, const Arrays& a) const {
    const int64_t count = blocks_.count(), each = g_.channels / g_.groups;
    auto* const parts = reinterpret_cast<Moments<double>*>(scratch(lane));
    if (count == 1) {
      kernels_->plane_moments(g_, p_.x, blocks_.block(sample, a.first, 0), groups, parts);
      for (int64_t i = 0; i < groups; ++i) finish_group(sample, group + i, parts[i], a);
      return;
    }
    for (int64_t i = 0; i < groups; ++i) {
      parallel_for(threads, count, [&](int64_t block, int) {
        kernels_->plane_moments(g_, p_.x, blocks_.block(sample, a.first + i * each, block), 1, parts + block);
      });
      finish_group(sample, group + i, merge_all(parts, count), a);
    }
  }

  void groups_by_rows() {
    const int64_t each = g_.channels / g_.groups, bytes = tensors_ * size_of(p_.dtype);
    const bool shared = shares_sets(threads_, g_.samples, g_.places * g_.channels);
    const auto run_sample = [&](int64_t sample, int lane, int threads) {
      const Arrays a = arrays(lane, 0);
      double* const mean = reinterpret_cast<double*>(scratch(lane));
      double* const m2 = parts_.second(mean);
      const int64_t first = sample * g_.places;
      parallel_for(threads, parts_.units(), [&](int64_t unit, int) {
        kernels_->row_moments(g_, p_.x, parts_.part(unit, first), parts_.strip(unit), mean + parts_.at(unit),
                              m2 + parts_.at(unit));
      });
      merge_parts(parts_, mean, m2);
      for (int64_t group = 0; group < g_.groups; ++group) {
        const int64_t c = group * each;
        finish_group(sample, group, moments_of_channels(mean + c, m2 + c, each, double(g_.places)), a);
      }
      const ChannelFactors f = factors(a);
      parallel_rows(threads, {first, first + g_.places}, g_.channels, bytes, false,
                    [&](Range rows, Range channels) { kernels_->row_forward(p_, activated_, f, rows, channels); });
    };
    for_sets(threads_, shared, g_.samples, g_.places * g_.channels * bytes, run_sample);
    if (p_.running.mean.data) keep_instances();
  }

  void finish_group(int64_t sample, int64_t group, const Moments<double>& moments, const Arrays& a) const {
    finish(sample, group, moments, a);
    if (p_.running.mean.data) moments_[sample * g_.groups + group] = moments;
  }

  /// The means over the samples.
  void keep_instances() const {
    const double share = 1 / double(g_.samples);
    for (int64_t c = 0; c < g_.channels; ++c) {
      double mean = 0, unbiased = 0;
      for (int64_t n = 0; n < g_.samples; ++n) {
        mean += moments_[n * g_.channels + c].mean;
        unbiased += unbiased_variance(moments_[n * g_.channels + c]);
      }
      update_running<N>(p_.running, c, mean * share, unbiased * share, running_share(p_.running));
    }
  }

  ChannelForward p_;
  ChannelGeometry& g_;
  bool by_rows_;
  bool streams_;
  int tensors_;
  int threads_;
  const RowKernels* row_kernels_ = nullptr;
  const ChannelKernels* kernels_ = nullptr;
  ArrayActivation activation_;
  const ArrayActivation* activated_ = nullptr;
  RowParts parts_{};  // these two of a sample, with ChannelSet::group
  PlaneBlocks blocks_{};
  N* weight_ = nullptr;
  N* bias_ = nullptr;
  Moments<double>* moments_ = nullptr;
  char* lanes_ = nullptr;
  int64_t lane_bytes_ = 0;
  int64_t scratch_at_ = 0;
};

}  // namespace

Status channel_forward(const ChannelForward& problem) {
  if (has_small_sets(problem)) return small_sets_forward(problem);
  return problem.dtype == DType::f64 ? Forward<double>(problem).run() : Forward<float>(problem).run();
}

}  // namespace normact::cpu
