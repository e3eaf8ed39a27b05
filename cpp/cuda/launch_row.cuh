// SPDX-License-Identifier: Apache-2.0
// From a row norm's problem and plan to the constants that every instance of its kernels is made of.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "core/activation.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/status.h"
#include "cuda/launch.cuh"
#include "cuda/numeric.cuh"
#include "cuda/row_stream_forward.cuh"

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

/// run(step) takes the bytes in which lines of this access move (kStep in row_tile.cuh), a constant.
template <class T, class Run>
Status with_line_step(RowAccess access, const Run& run) {
  if (access == RowAccess::packed_lines) return run(Constant<kPackBytes>{});
  if constexpr (sizeof(T) == 2) {
    if (access == RowAccess::half_packed_lines) return run(Constant<kPackBytes / 2>{});
  }
  return run(Constant<static_cast<int>(sizeof(T))>{});
}

/// run(unit) takes the units of rows that are streamed, a constant. operands: all with columns.
template <class Run>
Status with_stream_unit(RowAccess access, const RowGeometry& g, std::initializer_list<const Operand*> operands,
                        const Run& run) {
  if (access == RowAccess::packs) return run(std::integral_constant<StreamUnit, StreamUnit::packs>{});
  if (access == RowAccess::packed_pieces) return run(std::integral_constant<StreamUnit, StreamUnit::pieces>{});
  bool dense = g.col_ndim == 1;
  for (const Operand* operand : operands) dense = dense && (operand->data == nullptr || operand->col_stride[0] == 1);
  return dense ? run(std::integral_constant<StreamUnit, StreamUnit::dense>{})
               : run(std::integral_constant<StreamUnit, StreamUnit::far>{});
}

}  // namespace normact::cuda
