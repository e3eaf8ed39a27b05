// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instances that carry it out: row norm backward of one element type.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/row_backward.cuh"
#include "cuda/row_stream_backward.cuh"
#include "cuda/row_tile_backward.cuh"

namespace normact::cuda {

/// Adds up the rows of partial sums; with no rows it writes zeros.
template <class T>
Status launch_parameter_sum(const RowBackward& p, void* partials, int64_t partial_rows, const Launch& launch) {
  if (p.dweight.data == nullptr && p.dbias.data == nullptr) return {};
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((p.geometry.cols + kWarp - 1) / kWarp), 2);
  shape.block = dim3(kWarp, kParameterSumRows);
  shape.after_previous = true;
  return launch_kernel<parameter_sum_kernel<T>>("parameter gradient kernel launch", shape, launch, p, partials,
                                                partial_rows);
}

template <class T, NormKind kKind, bool kPacks>
Status launch_row_stream_backward(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  using Means = GradientMeans<Accumulator<T>>;
  auto* means = static_cast<Means*>(launch.workspace);
  const int64_t means_bytes = (p.geometry.rows * static_cast<int64_t>(sizeof(Means)) + 255) / 256 * 256;
  void* partials = static_cast<char*>(launch.workspace) + means_bytes;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.blocks));
  shape.block = dim3(static_cast<unsigned>(plan.threads));
  NORMACT_TRY((launch_kernel<row_stream_backward_sums_kernel<T, kKind, kPacks>>("row norm backward kernel launch", shape,
                                                                                launch, p, means)));
  const int64_t units = p.geometry.cols / UnitAccess<T, kPacks>::kSize;
  const int64_t rows_per_part = (p.geometry.rows + plan.parts - 1) / plan.parts;
  shape.grid = dim3(static_cast<unsigned>((units + kApplyThreads - 1) / kApplyThreads), static_cast<unsigned>(plan.parts));
  shape.block = dim3(kApplyThreads);
  NORMACT_TRY((launch_kernel<row_stream_backward_apply_kernel<T, kKind, kPacks>>(
      "row norm backward kernel launch", shape, launch, p, static_cast<const Means*>(means), rows_per_part, partials)));
  return launch_parameter_sum<T>(p, partials, plan.parts, launch);
}

template <class T, NormKind kKind>
Status launch_row_backward_kind(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (plan.variant == NORMACT_ROW_STREAM) {
    return plan.packs ? launch_row_stream_backward<T, kKind, true>(p, plan, launch)
                      : launch_row_stream_backward<T, kKind, false>(p, plan, launch);
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
                          plan.shared_bytes, plan.cluster};
  const int64_t workers = plan.cluster > 1 ? plan.parts : plan.blocks * plan.rows_per_block;
  const BackwardSplit split{plan.threads_per_row, static_cast<int>(p.geometry.cols / kPackSize<T>),
                            plan.packs_per_block, plan.stages, workers};
  void* partials = launch.workspace;
  const char* name = "row norm backward kernel launch";
  const auto launch_main = [&]() -> Status {
    if (plan.variant == NORMACT_ROW_TILE) {
      return launch_kernel<row_tile_backward_kernel<T, kKind>>(name, shape, launch, p, plan.threads_per_row, partials);
    }
    if (plan.variant == NORMACT_ROW_CLUSTER) {
      return launch_kernel<row_backward_kernel<T, kKind, 4, true>>(name, shape, launch, p, split, partials);
    }
    switch (plan.vectors) {
      case 1: return launch_kernel<row_backward_kernel<T, kKind, 1, false>>(name, shape, launch, p, split, partials);
      case 2: return launch_kernel<row_backward_kernel<T, kKind, 2, false>>(name, shape, launch, p, split, partials);
      case 3: return launch_kernel<row_backward_kernel<T, kKind, 3, false>>(name, shape, launch, p, split, partials);
      default: return launch_kernel<row_backward_kernel<T, kKind, 4, false>>(name, shape, launch, p, split, partials);
    }
  };
  NORMACT_TRY(launch_main());
  return launch_parameter_sum<T>(p, partials, plan.parts, launch);
}

template <class T>
Status launch_row_backward(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (p.geometry.rows == 0) return launch_parameter_sum<T>(p, launch.workspace, 0, launch);
  return p.kind == NormKind::layer ? launch_row_backward_kind<T, NormKind::layer>(p, plan, launch)
                                   : launch_row_backward_kind<T, NormKind::rms>(p, plan, launch);
}

}  // namespace normact::cuda
