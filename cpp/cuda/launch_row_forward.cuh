// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instance that carries it out: row norm forward of one element type.
#pragma once

#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/row_forward.cuh"
#include "cuda/row_stream_forward.cuh"

namespace normact::cuda {

/// Rows in registers. The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kStaged, bool kWide>
Status launch_row_registers(const RowForward& p, const RowPlan& plan, const LaunchShape& shape, const Launch& launch) {
  const int packs = static_cast<int>((p.geometry.cols + kPackSize<T> - 1) / kPackSize<T>);
  const RowSplit split{plan.threads_per_row, packs, plan.packs_per_block};
  const auto run = [&](auto scope, auto threads, auto vectors) {
    return launch_kernel<row_forward_kernel<T, kKind, scope(), threads(), vectors(), kStaged, kWide>>(
        "row norm forward kernel launch", shape, launch, p, Scalars<Accumulator<T>>(p), split);
  };
  const std::integral_constant<Scope, Scope::warp> warp;
  const std::integral_constant<Scope, Scope::block> block;
  const std::integral_constant<Scope, Scope::cluster> cluster;
  const std::integral_constant<int, kWarpScopeThreads> small;
  const std::integral_constant<int, 256> medium;
  const std::integral_constant<int, kMaxRowThreads> large;
  const std::integral_constant<int, 4> four;
  const std::integral_constant<int, 6> six;
  const std::integral_constant<int, 8> eight;
  switch (plan.variant) {
    case NORMACT_ROW_WARP:
      return plan.vectors <= 4   ? run(warp, small, four)
             : plan.vectors <= 6 ? run(warp, small, six)
                                 : run(warp, small, eight);
    case NORMACT_ROW_BLOCK:
      if (plan.threads > 256) return run(block, large, eight);
      return plan.vectors <= 6 ? run(block, medium, six) : run(block, medium, eight);
    default:
      if (plan.threads > 256) return run(cluster, large, eight);
      return plan.vectors <= 6 ? run(cluster, medium, six) : run(cluster, medium, eight);
  }
}

template <class T, NormKind kKind, bool kPacks>
Status launch_row_stream(const RowForward& p, const LaunchShape& shape, const Launch& launch) {
  const char* name = "row norm forward kernel launch";
  const Scalars<Accumulator<T>> scalars(p);
  return shape.cluster > 1 ? launch_kernel<row_stream_forward_kernel<T, kKind, Scope::cluster, kPacks>>(
                                 name, shape, launch, p, scalars)
                           : launch_kernel<row_stream_forward_kernel<T, kKind, Scope::block, kPacks>>(
                                 name, shape, launch, p, scalars);
}

template <class T, NormKind kKind>
Status launch_row_forward_kind(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
                          plan.shared_bytes, plan.cluster};
  const bool packs = plan.access == RowAccess::packs;
  if (plan.variant == NORMACT_ROW_STREAM) {
    return packs ? launch_row_stream<T, kKind, true>(p, shape, launch)
                 : launch_row_stream<T, kKind, false>(p, shape, launch);
  }
  const Operand& parameter = p.weight.data != nullptr ? p.weight : p.bias;  // both have one dtype here
  if constexpr (sizeof(T) == 2) {
    if (parameter.data != nullptr && parameter.dtype != p.dtype) {
      return packs ? launch_row_registers<T, kKind, false, true>(p, plan, shape, launch)
                   : launch_row_registers<T, kKind, true, true>(p, plan, shape, launch);
    }
  }
  return packs ? launch_row_registers<T, kKind, false, false>(p, plan, shape, launch)
               : launch_row_registers<T, kKind, true, false>(p, plan, shape, launch);
}

template <class T>
Status launch_row_forward(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  return p.kind == NormKind::layer ? launch_row_forward_kind<T, NormKind::layer>(p, plan, launch)
                                   : launch_row_forward_kind<T, NormKind::rms>(p, plan, launch);
}

}  // namespace normact::cuda
