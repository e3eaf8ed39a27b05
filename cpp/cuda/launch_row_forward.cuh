// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instance that carries it out: row norm forward of one element type.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/row_forward.cuh"
#include "cuda/row_stream_forward.cuh"
#include "cuda/row_tile_forward.cuh"

namespace normact::cuda {

template <class T, NormKind kKind>
Status launch_row_forward_kind(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
                          plan.shared_bytes, plan.cluster};
  const RowSplit split{plan.threads_per_row, static_cast<int>(p.geometry.cols / kPackSize<T>), plan.packs_per_block};
  const char* name = "row norm forward kernel launch";
  switch (plan.variant) {
    case NORMACT_ROW_WARP:
      switch (plan.vectors) {
        case 1: return launch_kernel<row_forward_kernel<T, kKind, Scope::warp, 4, 1>>(name, shape, launch, p, split);
        case 2: return launch_kernel<row_forward_kernel<T, kKind, Scope::warp, 2, 2>>(name, shape, launch, p, split);
        case 4: return launch_kernel<row_forward_kernel<T, kKind, Scope::warp, 1, 4>>(name, shape, launch, p, split);
        default: return launch_kernel<row_forward_kernel<T, kKind, Scope::warp, 1, 8>>(name, shape, launch, p, split);
      }
    case NORMACT_ROW_BLOCK:
      return plan.vectors <= 4
                 ? launch_kernel<row_forward_kernel<T, kKind, Scope::block, 1, 4>>(name, shape, launch, p, split)
                 : launch_kernel<row_forward_kernel<T, kKind, Scope::block, 1, 8>>(name, shape, launch, p, split);
    case NORMACT_ROW_CLUSTER:
      return plan.vectors <= 4
                 ? launch_kernel<row_forward_kernel<T, kKind, Scope::cluster, 1, 4>>(name, shape, launch, p, split)
                 : launch_kernel<row_forward_kernel<T, kKind, Scope::cluster, 1, 8>>(name, shape, launch, p, split);
    case NORMACT_ROW_TILE:
      return plan.vectors <= 16
                 ? launch_kernel<row_tile_forward_kernel<T, kKind, 16>>(name, shape, launch, p, plan.threads_per_row)
                 : launch_kernel<row_tile_forward_kernel<T, kKind, 32>>(name, shape, launch, p, plan.threads_per_row);
    default:
      if (!plan.packs) {
        return plan.cluster > 1
                   ? launch_kernel<row_stream_forward_kernel<T, kKind, Scope::cluster, false>>(name, shape, launch, p)
                   : launch_kernel<row_stream_forward_kernel<T, kKind, Scope::block, false>>(name, shape, launch, p);
      }
      return plan.cluster > 1
                 ? launch_kernel<row_stream_forward_kernel<T, kKind, Scope::cluster, true>>(name, shape, launch, p)
                 : launch_kernel<row_stream_forward_kernel<T, kKind, Scope::block, true>>(name, shape, launch, p);
  }
}

template <class T>
Status launch_row_forward(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  return p.kind == NormKind::layer ? launch_row_forward_kind<T, NormKind::layer>(p, plan, launch)
                                   : launch_row_forward_kind<T, NormKind::rms>(p, plan, launch);
}

}  // namespace normact::cuda
