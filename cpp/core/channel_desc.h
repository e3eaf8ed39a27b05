// SPDX-License-Identifier: Apache-2.0
// What the readers of the channel norms ask of a desc, and of arguments that need or exclude each other.
#pragma once

#include "core/channel.h"
#include "core/status.h"

namespace normact {

Status check_eps(double eps);
/// 0 or 1.
Status check_flag(const char* field, int32_t value);
/// Of running statistics.
Status check_momentum(double momentum);
Status check_both_or_none(const normact_tensor* a, const char* a_name, const normact_tensor* b, const char* b_name);

/// Reads a batch norm's desc but for its flags.
Status read_batch_norm_desc(const normact_batch_norm_desc* given, normact_batch_norm_desc* desc,
                            ChannelProblem* problem);

/// Of a training forward or a merge: both running statistics or none, and what they need.
Status read_running(const normact_batch_norm_desc& desc, const normact_tensor* mean, const normact_tensor* variance,
                    const normact_tensor* batches, RunningStatistics* running);

/// What a slope may come from in a backward: at most one of y and mask.
Status check_slope_source(const Activation& activation, const normact_tensor* y, const normact_tensor* mask);

}  // namespace normact
