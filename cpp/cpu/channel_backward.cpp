// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.h"
#include "cpu/channel_gradients.h"
#include "cpu/small_sets.h"

namespace normact::cpu {
namespace {

template <class N>
Status backward(const ChannelBackward& problem) {
  Gradients<N> call(problem);
  NORMACT_TRY(call.prepare());
  if (problem.set == ChannelSet::group) {
    call.groups();
    return {};
  }
  const bool empty = has_no_elements(problem.geometry);
  const bool needs_sums = !problem.frozen || call.wants_sums();
  if (needs_sums) call.leave_dh();
  if (const int64_t at_once = call.kept_channels(); needs_sums && at_once > 0) {
    call.store_batch_sums(call.batch_by_channels(at_once));
    return {};
  }
  const ChannelSums* sums = nullptr;
  if (needs_sums) {
    sums = call.batch_sums();
    call.store_batch_sums(sums);
  }
  const double size = double(rows_of(problem.geometry));
  if (!empty) call.batch_gradients([sums](int64_t c) { return sums[c]; }, [size](int64_t) { return size; });
  return {};
}

template <class N>
Status reduce(const ChannelReduce& problem) {
  Gradients<N> call(problem);
  NORMACT_TRY(call.prepare());
  const ChannelSums* const sums = call.batch_sums();
  for (int64_t c = 0; c < problem.geometry.channels; ++c) {
    *entry<N>(problem.sums, 0, 0, c) = N(sums[c].dh_xhat);
    *entry<N>(problem.sums, 0, 1, c) = N(sums[c].dh);
  }
  return {};
}

template <class N>
Status input_gradient(const ChannelInputGradient& problem) {
  Gradients<N> call(problem);
  NORMACT_TRY(call.prepare());
  call.batch_gradients(
      [&](int64_t c) {
        return ChannelSums{double(*entry<N>(problem.sums, 0, 0, c)), double(*entry<N>(problem.sums, 0, 1, c))};
      },
      [&](int64_t c) { return double(static_cast<const N*>(problem.count)[c * problem.count_stride]); });
  return {};
}

}  // namespace

Status channel_backward(const ChannelBackward& problem) {
  if (has_small_sets(problem)) return small_sets_backward(problem);
  return problem.dtype == DType::f64 ? backward<double>(problem) : backward<float>(problem);
}

Status channel_reduce(const ChannelReduce& problem) {
  return problem.dtype == DType::f64 ? reduce<double>(problem) : reduce<float>(problem);
}

Status channel_input_gradient(const ChannelInputGradient& problem) {
  return problem.dtype == DType::f64 ? input_gradient<double>(problem) : input_gradient<float>(problem);
}

}  // namespace normact::cpu
