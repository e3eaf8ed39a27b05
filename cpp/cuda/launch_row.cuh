// SPDX-License-Identifier: Apache-2.0
// From a row norm's problem to the constants that every instance of its kernels is made of.
#pragma once

#include <type_traits>

#include "core/activation.h"
#include "core/problem.h"
#include "core/status.h"

namespace normact::cuda {

/// run(kind, activated) takes constants: the norm, and whether an activation follows it. p: RowForward or RowBackward.
template <class P, class Run>
Status with_row_norm(const P& p, const Run& run) {
  const auto run_kind = [&](auto kind) {
    return is_identity(p.activation) ? run(kind, std::false_type{}) : run(kind, std::true_type{});
  };
  return p.kind == NormKind::layer ? run_kind(std::integral_constant<NormKind, NormKind::layer>{})
                                   : run_kind(std::integral_constant<NormKind, NormKind::rms>{});
}

}  // namespace normact::cuda
