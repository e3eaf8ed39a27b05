// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instances that carry it out: row norm backward of one element type.
#pragma once

#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/launch_row.cuh"
#include "cuda/row_backward.cuh"
#include "cuda/row_backward_cluster.cuh"
#include "cuda/row_backward_cluster_runs.cuh"
#include "cuda/row_backward_gather.cuh"
#include "cuda/row_backward_image.cuh"
#include "cuda/row_backward_image_twice.cuh"
#include "cuda/row_backward_runs.cuh"
#include "cuda/row_backward_tile.cuh"
#include "cuda/row_stream_backward.cuh"
#include "cuda/row_stream_elements_backward.cuh"

namespace normact::cuda {

/// Packs of 16 elements (fp64: 8), whose sums a thread of the backward has registers for.
template <class T>
constexpr int kMostPacks = sizeof(T) == 2 ? 2 : 4;

/// Of a kernel whose blocks are those of the plan.
inline LaunchShape row_shape(const RowPlan& plan) {
  return LaunchShape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
                     plan.shared_bytes, plan.cluster}
      .chained();
}

/// Adds up the rows of partial sums; with no rows it writes zeros.
template <class T, class X = T>
Status launch_parameter_sum(const RowBackward& p, void* partials, int64_t partial_rows, const Launch& launch) {
  if (p.dweight.data == nullptr && p.dbias.data == nullptr) return {};
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((p.geometry.cols + kWarp - 1) / kWarp), 2);
  shape.after_previous = true;
  const auto run = [&](auto threads) {
    shape.block = dim3(kWarp, threads());
    return launch_kernel<parameter_sum_kernel<T, X, threads()>>("parameter gradient kernel launch", shape, launch, p,
                                                                partials, partial_rows);
  };
  return partial_rows <= kFewSumRows ? run(Constant<kFewSumThreads>{}) : run(Constant<kSumThreads>{});
}

/// The kernels of stream; `means` has room for stream_pairs(), `partials` takes the partial sums.
template <class T, class X, NormKind kKind, bool kActivated>
Status launch_row_stream_kernels(const RowBackward& p, const RowPlan& plan, GradientMeans<Accumulator<T>>* means,
                                 void* partials, const Launch& launch) {
  using A = Accumulator<T>;
  using Means = GradientMeans<A>;
  const char* name = "row norm backward kernel launch";
  const KernelProblem<RowBackward, T, kActivated> problem(p);
  const Scalars<A> scalars(p);
  const ColumnPlaces columns(p.geometry, plan.access == RowAccess::packed_pieces ? kPackSize<T> : 1, plan.near);
  LaunchShape shape =
      LaunchShape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)), 0, plan.cluster}
          .chained();
  const int64_t rows_per_part = (p.geometry.rows + plan.parts - 1) / plan.parts;
  if (plan.elements) {
    const ElementSplit split(p.geometry, plan);
    NORMACT_TRY((launch_kernel<row_stream_elements_sums_kernel<T, X, kKind, kActivated>>(
        name, shape, launch, problem, scalars, columns, split, means)));
    const int64_t slab = apply_slab(plan);
    shape.grid = dim3(static_cast<unsigned>((p.geometry.cols + slab - 1) / slab), static_cast<unsigned>(plan.parts));
    shape.cluster = 1;
    return launch_kernel<row_stream_elements_apply_kernel<T, X, kKind, kActivated>>(
        name, shape, launch, problem, scalars, columns, RowPlaces(p.geometry), split.log_apply_rows,
        static_cast<const Means*>(means), rows_per_part, partials);
  }
  return with_stream_unit(
      plan.access, p.geometry, {&p.dy, &p.x, &p.weight, &p.bias, &p.dresidual, &p.dx, &p.daddend}, [&](auto unit) {
        const auto slices = static_cast<unsigned>(plan.slices);
        Means* const of_slices = slices > 1 ? means + p.geometry.rows : means;
        NORMACT_TRY((launch_kernel<row_stream_backward_sums_kernel<T, X, kKind, kActivated, unit()>>(
            name, shape, launch, problem, scalars, columns, slices, of_slices)));
        if (slices > 1) {
          const auto one_each = LaunchShape{dim3(static_cast<unsigned>(p.geometry.rows)), dim3(kWarp)}.chained();
          NORMACT_TRY(launch_kernel<row_stream_means_kernel<A>>("gradient mean kernel launch", one_each, launch,
                                                                static_cast<const Means*>(of_slices), slices, means));
        }
        const int64_t units = p.geometry.cols / StreamAccess<T, X, unit()>::kSize;
        unsigned lanes = kApplyThreads;  // of short rows a block has several at a time
        while (kUnitsApart<unit()> && lanes / 2 >= units) lanes /= 2;
        shape.grid = dim3(static_cast<unsigned>((units + lanes - 1) / lanes), static_cast<unsigned>(plan.parts));
        shape.block = dim3(lanes, kApplyThreads / lanes);
        return launch_kernel<row_stream_backward_apply_kernel<T, X, kKind, kActivated, unit()>>(
            name, shape, launch, problem, scalars, columns, static_cast<const Means*>(means), rows_per_part, partials);
      });
}

template <class T, class X, NormKind kKind, bool kActivated>
Status launch_row_stream_backward(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  using Means = GradientMeans<Accumulator<T>>;
  const int64_t pairs = stream_pairs(plan, p.geometry.rows);
  const int64_t means_bytes = (pairs * static_cast<int64_t>(sizeof(Means)) + 255) / 256 * 256;
  void* partials = static_cast<char*>(launch.workspace.data) + means_bytes;
  NORMACT_TRY((launch_row_stream_kernels<T, X, kKind, kActivated>(p, plan, static_cast<Means*>(launch.workspace.data),
                                                                  partials, launch)));
  if (plan.parts == 1 && !plan.elements) return {};
  return launch_parameter_sum<T, X>(p, partials, plan.parts, launch);
}

/// Where threads take their sums now and then; null if they have few.
inline double* places_of(const RowPlan& plan, const Launch& launch) {
  if (plan.places == 0) return nullptr;
  return reinterpret_cast<double*>(static_cast<char*>(launch.workspace.data) + plan.workspace_bytes - plan.places);
}

/// Rows of whole packs in registers. run(lanes, vectors) takes constants.
template <class T, class X, NormKind kKind, bool kActivated>
auto row_packs_launcher(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  return [&](auto lanes, auto vectors) {
    const dim3 threads = plan.variant == NORMACT_ROW_BLOCK ? dim3(static_cast<unsigned>(plan.threads_per_row),
                                                                  static_cast<unsigned>(plan.rows_per_block))
                                                           : dim3(static_cast<unsigned>(plan.threads));
    const LaunchShape shape =
        LaunchShape{dim3(static_cast<unsigned>(plan.blocks)), threads, plan.shared_bytes}.chained();
    // More elements a thread leave registers for fewer threads.
    constexpr int kThreads = vectors() <= kMostPacks<T> && sizeof(T) != 4 ? 512 : 384;
    return launch_kernel<row_backward_kernel<T, X, kKind, kActivated, lanes(), vectors(), kThreads>>(
        "row norm backward kernel launch", shape, launch, KernelProblem<RowBackward, T, kActivated>(p),
        Scalars<Accumulator<T>>(p), plan.stages, launch.workspace.data, places_of(plan, launch));
  };
}

/// The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_packs(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const bool block = plan.variant == NORMACT_ROW_BLOCK;
  const auto run = row_packs_launcher<T, T, kKind, kActivated>(p, plan, launch);
  constexpr int kMost = kMostPacks<T>;
  const Constant<kMost> most;
  const Constant<sizeof(T) == 2 ? kMost * 3 / 2 : kMost> wide;
  if (block) {
    const Constant<0> lanes;
    return plan.vectors > kMost ? run(lanes, wide) : run(lanes, most);
  }
  switch (plan.threads_per_row) {
    case 1: return run(Constant<1>{}, most);
    case 2: return run(Constant<2>{}, most);
    case 4: return run(Constant<4>{}, most);
    case 8: return run(Constant<8>{}, most);
    case 16: return run(Constant<16>{}, most);
    default: return plan.vectors > kMost ? run(Constant<32>{}, wide) : run(Constant<32>{}, most);
  }
}

/// The same after the cluster kernel: whole packs of contiguous columns, rows >= 1.
template <class T>
Status launch_wide_parameter_sum(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (p.dweight.data == nullptr && p.dbias.data == nullptr) return {};
  const int64_t columns = kWarp * kPackSize<Accumulator<T>>;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((p.geometry.cols + columns - 1) / columns), 2);
  shape.block = dim3(kWarp, kWideSumRows);
  shape.after_previous = true;
  return launch_kernel<wide_parameter_sum_kernel<T>>("parameter gradient kernel launch", shape, launch, p,
                                                     launch.workspace.data, plan.parts);
}

/// Wide rows of whole packs. The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_cluster(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape = row_shape(plan);
  const int warps = plan.threads_per_row / kWarp;
  const ClusterSplit split{warps, plan.packs_per_block / warps, plan.stages};
  const auto run = [&](auto stored, auto vectors, auto held, auto served) {
    return launch_kernel<
        row_backward_cluster_kernel<T, kKind, kActivated, decltype(stored), vectors(), held(), served()>>(
        "row norm backward kernel launch", shape, launch, KernelProblem<RowBackward, T, kActivated>(p),
        Scalars<Accumulator<T>>(p), split, launch.workspace.data, places_of(plan, launch));
  };
  const std::true_type yes;
  const std::false_type no;
  if constexpr (sizeof(T) == 2) {
    const Constant<2> few;
    const Constant<4> many;
    const bool wide = p.weight.data != nullptr && p.weight.dtype != p.dtype;
    if (plan.vectors > few) return wide ? run(T{}, many, no, no) : run(T{}, many, yes, no);
    return wide ? run(Accumulator<T>{}, few, yes, yes) : run(T{}, few, yes, yes);
  } else {
    const Constant<4> few;
    if constexpr (sizeof(T) == 4) {
      if (plan.vectors > few) return run(T{}, Constant<8>{}, no, no);
    }
    return run(T{}, few, yes, yes);
  }
}

inline BackwardRunTiles run_tiles(const RowBackward& p, const RowPlan& plan) {
  const RowGeometry& g = p.geometry;
  BackwardRunTiles tiles(p, plan, p.dresidual.data != nullptr);
  tiles.input[0] = RunTensor(p.x, g);
  tiles.input[1] = RunTensor(p.dy, g);
  tiles.input[2] = RunTensor(p.dresidual, g);
  tiles.output[0] = RunTensor(p.dx, g);
  return tiles;
}

/// Rows at any alignment. The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_runs(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const BackwardRunTiles tiles = run_tiles(p, plan);
  const LaunchShape shape = row_shape(plan);
  const auto run = [&](auto lanes, auto runs, auto share_weights) {
    constexpr bool kShareWeights = kActivated || share_weights();
    return launch_kernel<row_backward_runs_kernel<T, kKind, kActivated, lanes(), runs(), kShareWeights>>(
        "row norm backward kernel launch", shape, launch, KernelProblem<RowBackward, T, kActivated>(p), tiles,
        Scalars<Accumulator<T>>(p), launch.workspace.data, places_of(plan, launch));
  };
  const auto run_lanes = [&](auto lanes) {
    if constexpr (sizeof(T) == 2 && lanes() != 1) {
      if (plan.vectors == 3) return run(lanes, Constant<3>{}, std::false_type{});
    }
    return run(lanes, Constant<2>{}, std::false_type{});
  };
  if (plan.variant == NORMACT_ROW_BLOCK) {
    if constexpr (sizeof(T) < 8 && !kActivated) {
      constexpr int kRuns = kSharedWeightValues / kBackwardRun<T>;
      if (plan.threads > kBackwardRunThreads) return run(Constant<256>{}, Constant<kRuns>{}, std::true_type{});
      if (plan.vectors == kRuns && plan.threads_per_row == 64) {
        return run(Constant<64>{}, Constant<kRuns>{}, std::false_type{});
      }
      if (plan.vectors == kRuns && plan.threads_per_row == 128) {
        return run(Constant<128>{}, Constant<kRuns>{}, std::false_type{});
      }
    }
    return run_lanes(Constant<0>{});
  }
  switch (plan.threads_per_row) {
    case 1: return run_lanes(Constant<1>{});
    case 2: return run_lanes(Constant<2>{});
    case 4: return run_lanes(Constant<4>{});
    case 8: return run_lanes(Constant<8>{});
    case 16: return run_lanes(Constant<16>{});
    default: return run_lanes(Constant<32>{});
  }
}

/// The same in clusters; the planner gives them no fp64.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_cluster_runs(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape = row_shape(plan);
  return launch_kernel<row_backward_cluster_runs_kernel<T, kKind, kActivated, most_runs(sizeof(T))>>(
      "row norm backward kernel launch", shape, launch, KernelProblem<RowBackward, T, kActivated>(p),
      run_tiles(p, plan), Scalars<Accumulator<T>>(p), launch.workspace.data, places_of(plan, launch));
}

/// Rows that lie side by side; the planner gives them no fp64.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_tile(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const char* name = "row norm backward kernel launch";
  const LaunchShape shape = row_shape(plan);
  const TileSplit split(p.geometry, plan, kPackSize<T>);
  const Scalars<Accumulator<T>> scalars(p);
  const KernelProblem<RowBackward, T, kActivated> problem(p);
  void* const partials = launch.workspace.data;
  return with_line_step<T>(plan.access, [&](auto step) {
    return launch_kernel<row_backward_tile_kernel<T, kKind, kActivated, step()>>(name, shape, launch, problem, scalars,
                                                                                 split, partials);
  });
}

/// Rows whose columns are in pieces or apart; the planner gives them no fp64.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_gather(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape =
      LaunchShape{dim3(static_cast<unsigned>(plan.blocks)),
                  dim3(static_cast<unsigned>(plan.threads_per_row), static_cast<unsigned>(plan.rows_per_block)),
                  plan.shared_bytes}
          .chained();
  const auto run = [&](auto unit_size, auto wide) {
    constexpr GatherLayout kLayout = gather_backward_layout(sizeof(T), unit_size(), kActivated, wide());
    const Operand* const tensors[] = {&p.dy, &p.dresidual, &p.dx};
    return launch_kernel<
        row_backward_gather_kernel<T, kKind, kActivated, unit_size(), kLayout.units, kLayout.threads, kLayout.kept>>(
        "row norm backward kernel launch", shape, launch, KernelProblem<RowBackward, T, kActivated>(p),
        Scalars<Accumulator<T>>(p), BackwardPlaces(p.geometry, unit_size, p.x, tensors, {&p.weight, &p.bias}),
        launch.workspace.data, places_of(plan, launch));
  };
  const auto run_wide = [&](auto unit_size) {
    if constexpr (gather_backward_layout(sizeof(T), unit_size(), kActivated, true).units > 0) {
      if (plan.vectors == gather_backward_layout(sizeof(T), unit_size(), kActivated, true).units) {
        return run(unit_size, std::true_type{});
      }
    }
    return run(unit_size, std::false_type{});
  };
  return plan.access == RowAccess::strided ? run_wide(Constant<1>{}) : run_wide(Constant<kPackSize<T>>{});
}

/// The planner makes images of bare norms alone, and of no fp64.
template <class T, NormKind kKind>
Status launch_row_image(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  const char* name = "row norm backward kernel launch";
  const auto cols = static_cast<int>(p.geometry.cols);
  const Scalars<Accumulator<T>> scalars(p);
  if (plan.slices == 0) {
    const ImageSplit split(p.geometry, image_layout(cols, plan.rows_per_block, p.dtype, plan.cluster, plan.threads,
                                                    ImageUse::kept_backward));
    NORMACT_TRY((launch_kernel<row_backward_image_kernel<T, kKind>>(name, row_shape(plan), launch, p, scalars, split,
                                                                    launch.workspace.data)));
    return launch_parameter_sum<T>(p, launch.workspace.data, plan.parts, launch);
  }
  using Pair = SumPair<Accumulator<T>>;
  const ImageSplit split(p.geometry, image_twice_layout(cols, plan.rows_per_block, p.dtype, false));
  auto* const sums = static_cast<Pair*>(launch.workspace.data);
  void* const partials =
      static_cast<char*>(launch.workspace.data) + image_entries_bytes(p.geometry.rows, plan.slices, p.dtype, false);
  NORMACT_TRY((launch_kernel<row_image_sums_kernel<T, kKind>>(name, row_shape(plan), launch, p, scalars, split, sums,
                                                              partials)));
  NORMACT_TRY((launch_kernel<row_image_gradients_kernel<T, kKind>>(name, row_shape(plan), launch, p, scalars, split,
                                                                   static_cast<const Pair*>(sums))));
  return launch_parameter_sum<T>(p, partials, plan.parts, launch);
}

template <class T, NormKind kKind, bool kActivated>
Status launch_row_backward_kind(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (plan.variant == NORMACT_ROW_STREAM) return launch_row_stream_backward<T, T, kKind, kActivated>(p, plan, launch);
  if (plan.variant == NORMACT_ROW_CLUSTER && plan.access == RowAccess::packs) {
    NORMACT_TRY((launch_row_cluster<T, kKind, kActivated>(p, plan, launch)));
    return launch_wide_parameter_sum<T>(p, plan, launch);
  }
  if constexpr (sizeof(T) < 8) {
    if (plan.variant == NORMACT_ROW_TILE) {
      NORMACT_TRY((launch_row_tile<T, kKind, kActivated>(p, plan, launch)));
      return launch_parameter_sum<T>(p, launch.workspace.data, plan.parts, launch);
    }
    if (is_apart(plan.access)) {
      NORMACT_TRY((launch_row_gather<T, kKind, kActivated>(p, plan, launch)));
      return launch_parameter_sum<T>(p, launch.workspace.data, plan.parts, launch);
    }
    if constexpr (!kActivated) {
      if (plan.variant == NORMACT_ROW_IMAGE) return launch_row_image<T, kKind>(p, plan, launch);
    }
  }
  const auto launch_contiguous = [&] {
    if (plan.access == RowAccess::packs) return launch_row_packs<T, kKind, kActivated>(p, plan, launch);
    if constexpr (sizeof(T) < 8) {
      if (plan.variant == NORMACT_ROW_CLUSTER) return launch_row_cluster_runs<T, kKind, kActivated>(p, plan, launch);
    }
    return launch_row_runs<T, kKind, kActivated>(p, plan, launch);
  };
  NORMACT_TRY(launch_contiguous());
  if (plan.parts == 1) return {};  // the one row of partial sums is the result, and has been written as such
  return launch_parameter_sum<T>(p, launch.workspace.data, plan.parts, launch);
}

/// The planner gives mixed problems these alone.
template <class X, NormKind kKind, bool kActivated>
Status launch_row_backward_mixed_kind(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (plan.variant == NORMACT_ROW_STREAM) {
    return launch_row_stream_backward<float, X, kKind, kActivated>(p, plan, launch);
  }
  const auto run = row_packs_launcher<float, X, kKind, kActivated>(p, plan, launch);
  const Constant<kMostPacks<float>> most;
  const auto run_vectors = [&] {
    if constexpr (!kActivated) {
      if (plan.vectors > most) return run(Constant<0>{}, Constant<most * 3 / 2>{});
    }
    return plan.variant == NORMACT_ROW_BLOCK ? run(Constant<0>{}, most) : run(Constant<32>{}, most);
  };
  NORMACT_TRY(run_vectors());
  if (plan.parts == 1) return {};  // as in launch_row_backward_kind
  return launch_parameter_sum<float, X>(p, launch.workspace.data, plan.parts, launch);
}

/// dy and dx of the 16-bit type X, x of fp32.
template <class X>
Status launch_row_backward_mixed(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (p.geometry.rows == 0) return launch_parameter_sum<float, X>(p, launch.workspace.data, 0, launch);
  return with_row_norm(p, [&](auto kind, auto activated) {
    return launch_row_backward_mixed_kind<X, kind(), activated()>(p, plan, launch);
  });
}

template <class T>
Status launch_row_backward(const RowBackward& p, const RowPlan& plan, const Launch& launch) {
  if (p.geometry.rows == 0) return launch_parameter_sum<T>(p, launch.workspace.data, 0, launch);
  return with_row_norm(
      p, [&](auto kind, auto activated) { return launch_row_backward_kind<T, kind(), activated()>(p, plan, launch); });
}

}  // namespace normact::cuda
