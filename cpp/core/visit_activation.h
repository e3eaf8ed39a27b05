// SPDX-License-Identifier: Apache-2.0
// From an activation's number to its formula.
#pragma once

#include "math/activation.h"
#include "normact/normact.h"

namespace normact {

/// visit(Act{}) with the formula of this kind under the math policy M.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class M, class Visit>
NORMACT_HD auto visit_activation(normact_activation_kind kind, Visit visit) {
  switch (kind) {
#define NORMACT_VISIT(symbol, value, name, Struct) \
  case NORMACT_ACTIVATION_##symbol: return visit(Struct<M>{});
    NORMACT_ACTIVATION_LIST(NORMACT_VISIT)
#undef NORMACT_VISIT
  }
  return visit(Identity<M>{});
}

}  // namespace normact
