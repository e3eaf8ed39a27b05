// SPDX-License-Identifier: Apache-2.0
// What the descs of all norms have in common.
#pragma once

#include <cmath>

#include "core/message.h"

namespace normact {

inline Status check_eps(double eps) {
  if (std::isfinite(eps) && eps >= 0) return {};
  return invalid("desc->eps is ", eps, "; expected a finite number that is at least 0");
}

}  // namespace normact
