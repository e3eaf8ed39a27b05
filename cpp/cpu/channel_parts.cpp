// SPDX-License-Identifier: Apache-2.0
// The statistics of a batch norm over several processes.
#include "cpu/backend.h"
#include "cpu/channel_moments.h"

namespace normact::cpu {
namespace {

template <class N>
Status moments(const ChannelMoments& problem) {
  ChannelMoments p = problem;
  ChannelGeometry& g = p.geometry;
  merge_samples(g, p.set, false, {&p.x});
  const bool by_rows = goes_by_rows(g, {&p.x});
  const ChannelKernels* kernels;
  NORMACT_TRY(find_channel_kernels(p.dtype, &kernels));
  Layout layout;
  const int64_t moments_at = layout.reserve(g.channels * int64_t{sizeof(Moments<double>)});
  const int64_t scratch_at = layout.reserve(moments_scratch(g, by_rows));
  char* const memory = thread_buffer(layout.size());
  if (!memory) return out_of_memory(layout.size());
  auto* const all = reinterpret_cast<Moments<double>*>(memory + moments_at);
  const int threads = threads_for(elements_of(g) * size_of(p.dtype), num_threads());
  all_channel_moments(*kernels, g, p.x, by_rows, threads, memory + scratch_at, all);
  for (int64_t c = 0; c < g.channels; ++c) {
    *entry<N>(p.moments, 0, 0, c) = N(all[c].mean);
    *entry<N>(p.moments, 0, 1, c) = N(all[c].m2);
    *entry<N>(p.moments, 0, 2, c) = N(all[c].count);
  }
  return {};
}

template <class N>
Moments<double> merged(const ChannelMerge& p, int64_t channel) {
  Moments<double> total = {};
  for (int64_t part = 0; part < p.parts; ++part) {
    const auto row = [&](int64_t r) { return double(*entry<N>(p.moments, part, r, channel)); };
    total = merge(total, Moments<double>{row(0), row(1), row(2)});
  }
  return total;
}

template <class N>
Status merge_moments(const ChannelMerge& p) {
  const double share = running_share(p.running);
  bool learns = false;
  for (int64_t c = 0; c < p.geometry.channels; ++c) {
    const Moments<double> total = merged<N>(p, c);
    const SetStatistics s = statistics_of(total, p.eps);
    *entry<N>(p.mean, 0, c) = N(s.mean);
    *entry<N>(p.rstd, 0, c) = N(s.rstd);
    if (total.count > 0) update_running<N>(p.running, c, total.mean, unbiased_variance(total), share);
    learns = learns || total.count > 0;
  }
  if (learns && p.running.batches) ++*p.running.batches;
  return {};
}

}  // namespace

Status channel_moments(const ChannelMoments& problem) {
  return problem.dtype == DType::f64 ? moments<double>(problem) : moments<float>(problem);
}

Status channel_merge(const ChannelMerge& problem) {
  return problem.dtype == DType::f64 ? merge_moments<double>(problem) : merge_moments<float>(problem);
}

}  // namespace normact::cpu
