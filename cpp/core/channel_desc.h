// SPDX-License-Identifier: Apache-2.0
// What the readers of the channel norms ask of a desc, and of arguments that need or exclude each other.
#pragma once

#include <cstddef>

#include "core/channel.h"
#include "core/norm_desc.h"
#include "core/read_activation.h"
#include "core/status.h"
#include "core/versioned.h"

namespace normact {

/// 0 or 1.
Status check_flag(const char* field, int32_t value);
/// Of running statistics.
Status check_momentum(double momentum);
Status check_both_or_none(const normact_tensor* a, const char* a_name, const normact_tensor* b, const char* b_name);

/// Reads a desc of batch or group norm: what both have. Its last field of the first version is threshold.
template <class Desc>
Status read_channel_desc(const Desc* given, Desc* desc, ChannelProblem* problem) {
  NORMACT_TRY(read_struct(given, offsetof(Desc, threshold) + sizeof(double), "desc", desc));
  NORMACT_TRY(check_eps(desc->eps));
  problem->eps = desc->eps;
  return read_kind(desc->activation, desc->alpha, desc->beta, desc->threshold, &problem->activation,
                   "desc->activation");
}

/// Of a training forward or a merge: both running statistics or none, and what they need.
Status read_running(const normact_batch_norm_desc& desc, const normact_tensor* mean, const normact_tensor* variance,
                    const normact_tensor* batches, RunningStatistics* running);

/// Whether a backward computes h again, as neither y nor mask tells the slope: only then addend and bias play a part.
inline bool computes_again(const Activation& activation, const normact_tensor* y, const normact_tensor* mask) {
  return !is_identity(activation) && y == nullptr && mask == nullptr;
}

/// What a slope may come from in a backward: at most one of y and mask.
Status check_slope_source(const Activation& activation, const normact_tensor* y, const normact_tensor* mask);

}  // namespace normact
