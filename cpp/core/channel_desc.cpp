// SPDX-License-Identifier: Apache-2.0
#include "core/channel_desc.h"

#include <cmath>

#include "core/message.h"

namespace normact {

Status check_flag(const char* field, int32_t value) {
  if (value == 0 || value == 1) return {};
  return invalid(field, " is ", value, "; expected 0 or 1");
}

Status check_momentum(double momentum) {
  if (std::isfinite(momentum)) return {};
  return invalid("desc->momentum is ", momentum, "; expected a finite number");
}

Status check_both_or_none(const normact_tensor* a, const char* a_name, const normact_tensor* b, const char* b_name) {
  if ((a == nullptr) == (b == nullptr)) return {};
  return invalid(a != nullptr ? a_name : b_name, " is given but ", a != nullptr ? b_name : a_name,
                 " is NULL; expected both or none");
}

Status read_running(const normact_batch_norm_desc& desc, const normact_tensor* mean, const normact_tensor* variance,
                    const normact_tensor* batches, RunningStatistics* running) {
  NORMACT_TRY(check_flag("desc->cumulative", desc.cumulative));
  NORMACT_TRY(check_both_or_none(mean, "running_mean", variance, "running_var"));
  running->cumulative = desc.cumulative != 0 && mean != nullptr;
  running->momentum = desc.momentum;
  if (mean == nullptr) return {};
  if (!running->cumulative) return check_momentum(desc.momentum);
  if (batches != nullptr) return {};
  return invalid("desc->cumulative is 1 but num_batches_tracked is NULL; expected the number of batches so far");
}

Status check_slope_source(const Activation& activation, const normact_tensor* y, const normact_tensor* mask) {
  NORMACT_TRY(check_mask(activation, mask, "desc->activation"));
  if (y == nullptr) return {};
  if (mask != nullptr) return invalid("y and mask are given; expected at most one of them, which the slope comes from");
  return check_slope_from_output(activation, "desc->activation", "NULL");
}

}  // namespace normact
