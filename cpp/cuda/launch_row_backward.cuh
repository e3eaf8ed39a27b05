// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instances that carry it out: row norm backward of one element type.
#pragma once

#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/row_backward.cuh"
#include "cuda/row_stream_backward.cuh"

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
  const Scalars<Accumulator<T>> scalars(p);
  const int64_t means_bytes = (p.geometry.rows * static_cast<int64_t>(sizeof(Means)) + 255) / 256 * 256;
  void* partials = static_cast<char*>(launch.workspace) + means_bytes;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.blocks));
  shape.block = dim3(static_cast<unsigned>(plan.threads));
  NORMACT_TRY((launch_kernel<row_stream_backward_sums_kernel<T, kKind, kPacks>>("row norm backward kernel launch",
                                                                                shape, launch, p, scalars, means)));
  const int64_t units = p.geometry.cols / StridedUnit<T, kPacks>::kSize;
  const int64_t rows_per_part = (p.geometry.rows + plan.parts - 1) / plan.parts;
  shape.grid =
      dim3(static_cast<unsigned>((units + kApplyThreads - 1) / kApplyThreads), static_cast<unsigned>(plan.parts));
  shape.block = dim3(kApplyThreads);
  NORMACT_TRY((launch_kernel<row_stream_backward_apply_kernel<T, kKind, kPacks>>(
      "row norm backward kernel launch", shape, launch, p, scalars, static_cast<const Means*>(means), rows_per_part,
      partials)));
  return launch_parameter_sum<T>(p, partials, plan.parts, launch);
}

/// Rows that are read once. The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kStaged>
Status launch_row_once(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
                          plan.shared_bytes, plan.cluster};
  const int packs = static_cast<int>((p.geometry.cols + kPackSize<T> - 1) / kPackSize<T>);
  const int64_t workers = plan.cluster > 1 ? plan.parts : plan.blocks * plan.rows_per_block;
  const BackwardSplit split{plan.threads_per_row, packs, plan.packs_per_block, plan.stages, workers};
  const auto run = [&](auto vectors, auto cluster) {
    return launch_kernel<row_backward_kernel<T, kKind, vectors(), cluster(), kStaged>>(
        "row norm backward kernel launch", shape, launch, p, Scalars<Accumulator<T>>(p), split, launch.workspace);
  };
  const std::integral_constant<int, sizeof(T) == 2 ? 2 : 4> kept;  // packs whose xhat and g stay in registers
  const std::integral_constant<int, 4> four;
  const std::false_type block;
  const std::true_type cluster;
  if constexpr (kStaged) {
    return plan.cluster > 1 ? run(kept, cluster) : run(kept, block);
  } else {
    if (plan.cluster > 1) return plan.vectors <= kept ? run(kept, cluster) : run(four, cluster);
    switch (plan.vectors) {
      case 1: return run(std::integral_constant<int, 1>{}, block);
      case 2: return run(std::integral_constant<int, 2>{}, block);
      case 3: return run(std::integral_constant<int, 3>{}, block);
      default: return run(four, block);
    }
  }
}

template <class T, NormKind kKind>
Status launch_row_backward_kind(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const bool packs = plan.access == RowAccess::packs;
  if (plan.variant == NORMACT_ROW_STREAM) {
    return packs ? launch_row_stream_backward<T, kKind, true>(p, plan, launch)
                 : launch_row_stream_backward<T, kKind, false>(p, plan, launch);
  }
  NORMACT_TRY(
      (packs ? launch_row_once<T, kKind, false>(p, plan, launch) : launch_row_once<T, kKind, true>(p, plan, launch)));
  return launch_parameter_sum<T>(p, launch.workspace, plan.parts, launch);
}

template <class T>
Status launch_row_backward(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (p.geometry.rows == 0) return launch_parameter_sum<T>(p, launch.workspace, 0, launch);
  return p.kind == NormKind::layer ? launch_row_backward_kind<T, NormKind::layer>(p, plan, launch)
                                   : launch_row_backward_kind<T, NormKind::rms>(p, plan, launch);
}

}  // namespace normact::cuda
