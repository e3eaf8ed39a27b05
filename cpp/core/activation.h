// SPDX-License-Identifier: Apache-2.0
// A validated activation, as problems carry it.
#pragma once

#include "normact/normact.h"

namespace normact {

/// A kind with its numbers; those that it ignores may be anything.
struct Activation {
  normact_activation_kind kind;
  double alpha;
  double beta;
  double threshold;
};

inline bool is_identity(const Activation& activation) { return activation.kind == NORMACT_ACTIVATION_IDENTITY; }

}  // namespace normact
