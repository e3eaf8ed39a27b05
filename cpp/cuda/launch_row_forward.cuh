// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instance that carries it out: row norm forward of one element type.
#pragma once

#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/launch_row.cuh"
#include "cuda/row_forward.cuh"
#include "cuda/row_forward_cluster.cuh"
#include "cuda/row_forward_cluster_runs.cuh"
#include "cuda/row_forward_gather.cuh"
#include "cuda/row_forward_image.cuh"
#include "cuda/row_forward_image_twice.cuh"
#include "cuda/row_forward_runs.cuh"
#include "cuda/row_forward_tile.cuh"
#include "cuda/row_stream_elements_forward.cuh"
#include "cuda/row_stream_forward.cuh"

namespace normact::cuda {

/// Rows of whole packs in registers. run(lanes, vectors, threads, blocks) takes constants.
template <class T, class X, NormKind kKind, bool kActivated>
auto row_packs_launcher(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  return [&](auto lanes, auto vectors, auto threads, auto blocks) {
    const LaunchShape shape =
        LaunchShape{dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads))}.chained();
    return launch_kernel<row_forward_kernel<T, X, kKind, kActivated, lanes(), vectors(), threads(), blocks()>>(
        "row norm forward kernel launch", shape, launch, KernelProblem<RowForward, T, kActivated>(p),
        Scalars<Accumulator<T>>(p));
  };
}

/// The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_packs(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  const bool block = plan.variant == NORMACT_ROW_BLOCK;
  const auto run = row_packs_launcher<T, T, kKind, kActivated>(p, plan, launch);
  // Blocks that must fit a multiprocessor: as many as leave registers for a thread's packs without spills.
  constexpr bool kHalf = sizeof(T) == 2, kSingle = sizeof(T) == 4;
  const Constant<kSingle && !kActivated ? 3 : 2> long_blocks;
  const Constant<kActivated ? 1 : 2> longest_blocks;
  const Constant<!kActivated && sizeof(T) <= 4 ? 4 : 3> five_blocks;
  const Constant<kHalf && !kActivated ? 224 : 256> five_threads;
  if (block) {
    const Constant<256> most;
    switch (plan.vectors) {
      case 3: return run(Constant<0>{}, Constant<3>{}, most, Constant<4>{});
      case 4:
        if (plan.threads <= 256) return run(Constant<0>{}, Constant<4>{}, most, Constant<4>{});
        if constexpr (kSingle) {
          if (plan.threads > kMaxRowThreads) {
            return run(Constant<0>{}, Constant<4>{}, Constant<kWideRowThreads>{}, longest_blocks);
          }
        }
        return run(Constant<0>{}, Constant<4>{}, Constant<kMaxRowThreads>{}, long_blocks);
      case 5: return run(Constant<0>{}, Constant<5>{}, five_threads, five_blocks);
      default: return run(Constant<0>{}, Constant<6>{}, most, Constant<3>{});
    }
  }
  const Constant<kWarpScopeThreads> threads;
  switch (plan.threads_per_row) {
    case 1: return run(Constant<1>{}, Constant<2>{}, threads, Constant<10>{});
    case 2: return run(Constant<2>{}, Constant<2>{}, threads, Constant<10>{});
    case 4: return run(Constant<4>{}, Constant<2>{}, threads, Constant<10>{});
    case 8: return run(Constant<8>{}, Constant<2>{}, threads, Constant<10>{});
    case 16: return run(Constant<16>{}, Constant<2>{}, threads, Constant<10>{});
    default: break;
  }
  const Constant<32> lanes;
  switch (plan.vectors) {
    case 2: return run(lanes, Constant<2>{}, threads, Constant<10>{});
    case 3: return run(lanes, Constant<3>{}, threads, Constant<8>{});
    case 4: return run(lanes, Constant<4>{}, threads, Constant<8>{});
    default: return run(lanes, Constant<6>{}, threads, Constant<kHalf ? 5 : 8>{});
  }
}

/// Wide rows of whole packs. The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_cluster(const RowForward& p, const RowPlan& plan, const LaunchShape& shape, const Launch& launch) {
  const int warps = plan.threads_per_row / kWarp;
  const ClusterSplit split{warps, plan.packs_per_block / warps, plan.stages};
  const auto run = [&](auto vectors, auto held) {
    return launch_kernel<row_forward_cluster_kernel<T, kKind, kActivated, vectors(), held()>>(
        "row norm forward kernel launch", shape, launch, KernelProblem<RowForward, T, kActivated>(p),
        Scalars<Accumulator<T>>(p), split);
  };
  // Parameters of x's type stay in registers, as far as they fit; both have one type here.
  const auto run_vectors = [&](auto vectors) {
    if constexpr (sizeof(T) == 2) {
      const Operand& parameter = p.weight.data != nullptr ? p.weight : p.bias;
      if (parameter.data != nullptr && parameter.dtype != p.dtype) return run(vectors, std::false_type{});
    }
    return run(vectors, std::true_type{});
  };
  return plan.vectors > 4 ? run_vectors(Constant<8>{}) : run_vectors(Constant<4>{});
}

inline ForwardRunTiles run_tiles(const RowForward& p, const RowPlan& plan) {
  const RowGeometry& g = p.geometry;
  ForwardRunTiles tiles(p, plan, p.residual.data != nullptr);
  tiles.input[0] = RunTensor(p.x, g);
  tiles.input[1] = RunTensor(p.residual, g);
  tiles.output[0] = RunTensor(p.y, g);
  tiles.output[1] = RunTensor(p.residual_out, g);
  return tiles;
}

/// Rows at any alignment. The planner's sizes are the ones listed here.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_runs(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  const ForwardRunTiles tiles = run_tiles(p, plan);
  const LaunchShape shape = LaunchShape{dim3(static_cast<unsigned>(plan.blocks)),
                                        dim3(static_cast<unsigned>(plan.threads)), plan.shared_bytes}
                                .chained();
  const auto run = [&](auto lanes) {
    const char* name = "row norm forward kernel launch";
    const KernelProblem<RowForward, T, kActivated> problem(p);
    const Scalars<Accumulator<T>> scalars(p);
    if constexpr (sizeof(T) == 2 && lanes() != 1) {
      if (plan.vectors == 3 || lanes() > kWarp) {
        return launch_kernel<row_forward_runs_kernel<T, kKind, kActivated, lanes(), 3>>(name, shape, launch, problem,
                                                                                        tiles, scalars);
      }
    }
    constexpr int kLanes = sizeof(T) == 2 && lanes() > kWarp ? 0 : lanes();
    return launch_kernel<row_forward_runs_kernel<T, kKind, kActivated, kLanes, 2>>(name, shape, launch, problem, tiles,
                                                                                   scalars);
  };
  if (plan.variant == NORMACT_ROW_BLOCK) {
    // Rows just over a power of two have kernels of their own, as long as no activation follows.
    if constexpr (sizeof(T) < 8 && !kActivated) {
      switch (plan.vectors == most_runs(sizeof(T)) ? plan.threads_per_row : 0) {
        case 64: return run(Constant<64>{});
        case 128: return run(Constant<128>{});
        case 256: return run(Constant<256>{});
        default: break;
      }
    }
    return run(Constant<0>{});
  }
  switch (plan.threads_per_row) {
    case 1: return run(Constant<1>{});
    case 2: return run(Constant<2>{});
    case 4: return run(Constant<4>{});
    case 8: return run(Constant<8>{});
    case 16: return run(Constant<16>{});
    default: return run(Constant<32>{});
  }
}

/// The same in clusters; the planner gives them no fp64.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_cluster_runs(const RowForward& p, const RowPlan& plan, const LaunchShape& shape,
                               const Launch& launch) {
  return launch_kernel<row_forward_cluster_runs_kernel<T, kKind, kActivated, most_runs(sizeof(T))>>(
      "row norm forward kernel launch", shape, launch, KernelProblem<RowForward, T, kActivated>(p), run_tiles(p, plan),
      Scalars<Accumulator<T>>(p));
}

/// Rows that lie side by side; the planner gives them no fp64.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_tile(const RowForward& p, const RowPlan& plan, const LaunchShape& shape, const Launch& launch) {
  const char* name = "row norm forward kernel launch";
  const TileSplit split(p.geometry, plan, kPackSize<T>);
  const Scalars<Accumulator<T>> scalars(p);
  const KernelProblem<RowForward, T, kActivated> problem(p);
  return with_line_step<T>(plan.access, [&](auto step) {
    return launch_kernel<row_forward_tile_kernel<T, kKind, kActivated, step()>>(name, shape, launch, problem, scalars,
                                                                                split);
  });
}

/// The planner makes images of bare norms alone, and of no fp64.
template <class T, NormKind kKind>
Status launch_row_image(const RowForward& p, const RowPlan& plan, const LaunchShape& shape, const Launch& launch) {
  const char* name = "row norm forward kernel launch";
  const auto cols = static_cast<int>(p.geometry.cols);
  const Scalars<Accumulator<T>> scalars(p);
  if (plan.slices == 0) {
    const ImageSplit split(p.geometry, image_layout(cols, plan.rows_per_block, p.dtype, plan.cluster, plan.threads,
                                                    ImageUse::kept_forward));
    return launch_kernel<row_forward_image_kernel<T, kKind>>(name, shape, launch, p, scalars, split);
  }
  using Entry = SliceMoments<Accumulator<T>>;
  const ImageSplit split(p.geometry, image_twice_layout(cols, plan.rows_per_block, p.dtype, true));
  auto* const moments = static_cast<Entry*>(launch.workspace.data);
  NORMACT_TRY((launch_kernel<row_image_moments_kernel<T, kKind>>(name, shape, launch, p, split, moments)));
  return launch_kernel<row_image_results_kernel<T, kKind>>(name, shape, launch, p, scalars, split,
                                                           static_cast<const Entry*>(moments));
}

/// Rows whose columns are in pieces or apart; the planner gives them no fp64.
template <class T, NormKind kKind, bool kActivated>
Status launch_row_gather(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape =
      LaunchShape{dim3(static_cast<unsigned>(plan.blocks)),
                  dim3(static_cast<unsigned>(plan.threads_per_row), static_cast<unsigned>(plan.rows_per_block))}
          .chained();
  const auto run = [&](auto unit_size) {
    const Operand* const tensors[] = {&p.residual, &p.residual_out, &p.y};
    return launch_kernel<row_forward_gather_kernel<T, kKind, kActivated, unit_size()>>(
        "row norm forward kernel launch", shape, launch, KernelProblem<RowForward, T, kActivated>(p),
        Scalars<Accumulator<T>>(p), ForwardPlaces(p.geometry, unit_size, p.x, tensors, {&p.weight, &p.bias}));
  };
  return plan.access == RowAccess::packed_pieces ? run(Constant<kPackSize<T>>{}) : run(Constant<1>{});
}

template <class T, class X, NormKind kKind, bool kActivated>
Status launch_row_stream(const RowForward& p, const RowPlan& plan, const LaunchShape& shape, const Launch& launch) {
  const char* name = "row norm forward kernel launch";
  const Scalars<Accumulator<T>> scalars(p);
  const KernelProblem<RowForward, T, kActivated> problem(p);
  const ColumnPlaces columns(p.geometry, plan.access == RowAccess::packed_pieces ? kPackSize<T> : 1, plan.near);
  if (plan.elements) {
    return launch_kernel<row_stream_elements_forward_kernel<T, X, kKind, kActivated>>(
        name, shape, launch, problem, scalars, columns, ElementSplit(p.geometry, plan));
  }
  return with_stream_unit(
      plan.access, p.geometry, {&p.x, &p.residual, &p.weight, &p.bias, &p.y, &p.residual_out}, [&](auto unit) {
        if (plan.slices == 1) {
          return launch_kernel<row_stream_forward_kernel<T, X, kKind, kActivated, unit()>>(name, shape, launch, problem,
                                                                                           scalars, columns);
        }
        const auto slices = static_cast<unsigned>(plan.slices);
        auto* const moments = static_cast<Moments<double>*>(launch.workspace.data);
        NORMACT_TRY((launch_kernel<row_slice_moments_kernel<T, X, kKind, unit()>>(
            name, shape, launch, KernelProblem<RowForward, T, false>(p), columns, slices, moments)));
        return launch_kernel<row_slice_results_kernel<T, X, kActivated, unit()>>(
            name, shape, launch, problem, scalars, columns, slices, static_cast<const Moments<double>*>(moments));
      });
}

template <class T, NormKind kKind, bool kActivated>
Status launch_row_forward_kind(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  const LaunchShape shape = LaunchShape{dim3(static_cast<unsigned>(plan.blocks)),
                                        dim3(static_cast<unsigned>(plan.threads)), plan.shared_bytes, plan.cluster}
                                .chained();
  const bool packs = plan.access == RowAccess::packs;
  if (plan.variant == NORMACT_ROW_STREAM) return launch_row_stream<T, T, kKind, kActivated>(p, plan, shape, launch);
  if (packs && plan.variant == NORMACT_ROW_CLUSTER) {
    return launch_row_cluster<T, kKind, kActivated>(p, plan, shape, launch);
  }
  if constexpr (sizeof(T) < 8) {
    if (plan.variant == NORMACT_ROW_CLUSTER) {
      return launch_row_cluster_runs<T, kKind, kActivated>(p, plan, shape, launch);
    }
    if (plan.variant == NORMACT_ROW_TILE) return launch_row_tile<T, kKind, kActivated>(p, plan, shape, launch);
    if (is_apart(plan.access)) return launch_row_gather<T, kKind, kActivated>(p, plan, launch);
    if constexpr (!kActivated) {
      if (plan.variant == NORMACT_ROW_IMAGE) return launch_row_image<T, kKind>(p, plan, shape, launch);
    }
  }
  if (!packs) return launch_row_runs<T, kKind, kActivated>(p, plan, launch);
  return launch_row_packs<T, kKind, kActivated>(p, plan, launch);
}

/// The planner gives mixed problems these alone.
template <class X, NormKind kKind, bool kActivated>
Status launch_row_forward_mixed_kind(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  if (plan.variant == NORMACT_ROW_STREAM) {
    const LaunchShape shape = LaunchShape{dim3(static_cast<unsigned>(plan.blocks)),
                                          dim3(static_cast<unsigned>(plan.threads)), plan.shared_bytes, plan.cluster}
                                  .chained();
    return launch_row_stream<float, X, kKind, kActivated>(p, plan, shape, launch);
  }
  const auto run = row_packs_launcher<float, X, kKind, kActivated>(p, plan, launch);
  if (plan.variant == NORMACT_ROW_WARP) {
    const Constant<kWarpScopeThreads> threads;
    return plan.vectors == 2 ? run(Constant<32>{}, Constant<2>{}, threads, Constant<10>{})
                             : run(Constant<32>{}, Constant<4>{}, threads, Constant<8>{});
  }
  const Constant<0> block;
  if (plan.vectors == 3) return run(block, Constant<3>{}, Constant<256>{}, Constant<4>{});
  if (plan.threads <= 256) return run(block, Constant<4>{}, Constant<256>{}, Constant<4>{});
  if (plan.threads <= kMaxRowThreads) {
    return run(block, Constant<4>{}, Constant<kMaxRowThreads>{}, Constant<kActivated ? 2 : 3>{});
  }
  return run(block, Constant<4>{}, Constant<kWideRowThreads>{}, Constant<kActivated ? 1 : 2>{});
}

/// x and y of the 16-bit type X, sums of fp32.
template <class X>
Status launch_row_forward_mixed(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  return with_row_norm(p, [&](auto kind, auto activated) {
    return launch_row_forward_mixed_kind<X, kind(), activated()>(p, plan, launch);
  });
}

template <class T>
Status launch_row_forward(const RowForward& p, const RowPlan& plan, const Launch& launch) {
  return with_row_norm(
      p, [&](auto kind, auto activated) { return launch_row_forward_kind<T, kind(), activated()>(p, plan, launch); });
}

}  // namespace normact::cuda
