// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instances that carry it out: batch, group and instance norm of one element type.
#pragma once

#include "cuda/channel_band_slab_backward.cuh"
#include "cuda/channel_band_slab_forward.cuh"
#include "cuda/channel_cut_slab_backward.cuh"
#include "cuda/channel_plane_slab_backward.cuh"
#include "cuda/channel_plane_slab_forward.cuh"
#include "cuda/channel_planes_backward.cuh"
#include "cuda/channel_planes_forward.cuh"
#include "cuda/channel_ring_backward.cuh"
#include "cuda/channel_ring_forward.cuh"
#include "cuda/channel_slab_backward.cuh"
#include "cuda/channel_slab_forward.cuh"
#include "cuda/launch_channel_registers.cuh"
#include "cuda/launch_channel_rows.cuh"

namespace normact::cuda {

/// run(act, walk, kept) with the instance for this activation: types, by values or null pointers, and a constant.
template <class T, class Walk, class Run>
Status with_activation(const ChannelPlan& plan, normact_activation_kind kind, Run run) {
  const auto with = [&](auto act) {
    if constexpr (Walk::kWidth > 1) {
      if (plan.order == ChannelOrder::kept) return run(act, static_cast<Walk*>(nullptr), std::true_type{});
    }
    if constexpr (Walk::kWidth > 1 && !Walk::kEdges) {
      return Status{NORMACT_INTERNAL, "planes of whole packs and rows have no kernel for this plan"};
    } else {
      return run(act, static_cast<Walk*>(nullptr), std::false_type{});
    }
  };
  if constexpr (Walk::kWidth > 1) {
    return with_act<T>(kind, with);
  } else {
    if (kind == NORMACT_ACTIVATION_IDENTITY) return with(Identity<Math<T>>{});
    return with(AnyActivation{});
  }
}

/// The same with the walk of this access. That of elements has an instance for any activation, and one for none;
/// planes of whole packs that are not kept go as any others, where launches do not serve them. Rows are kept.
template <class T, class Run>
Status with_instance(const ChannelPlan& plan, normact_activation_kind kind, Run run) {
  if constexpr (sizeof(T) < 8) {
    if (plan.whole && plan.order == ChannelOrder::kept) {
      return with_activation<T, PlaneWalk<T, true>>(plan, kind, run);
    }
    if (plan.access == ChannelAccess::planes) return with_activation<T, PlaneWalk<T, false>>(plan, kind, run);
    if (goes_by_rows(plan.access)) return with_activation<T, RowWalk<T, kPackSize<T>>>(plan, kind, run);
  }
  if (plan.even_units) return with_activation<T, RowWalk<T, 1>>(plan, kind, run);
  return with_activation<T, RowWalk<T, 1, true>>(plan, kind, run);
}

/// A first pass over planes may start while the kernel before it ends, for which it waits. So may a second one, which
/// reads its tensors at once: what wrote them ended before the first went on. Alone it starts after all before it.
inline LaunchShape plane_shape(const PlaneDivision& division, bool alone = false) {
  const LaunchShape shape = channel_shape(division.blocks());
  return alone ? shape : shape.chained();
}

template <class T>
Status launch_plane_forward(const ChannelForward& problem, ChannelPasses passes, const ChannelPlan& plan,
                            const Launch& launch) {
  using A = Accumulator<T>;
  auto* entries = static_cast<MomentsEntry<A>*>(ChannelWorkspace(launch, plan).entries());
  if (passes != ChannelPasses::apply) {
    NORMACT_TRY(launch_kernel<plane_moments_kernel<T>>("plane moments kernel launch", plane_shape(plan.reduce), launch,
                                                       static_cast<const T*>(problem.x.data),
                                                       PlaneSpace(problem, problem.x, plan.reduce), entries));
  }
  if (passes == ChannelPasses::reduce) return {};
  return with_act<T>(problem.activation.kind, [&](auto act) {
    return launch_kernel<plane_forward_kernel<T, decltype(act)>>(
        "plane norm forward kernel launch", plane_shape(plan.apply, passes == ChannelPasses::apply), launch,
        ForwardProblem<A>(problem), PlaneSpace(problem, problem.x, plan.apply), entries,
        static_cast<unsigned>(plan.reduce.parts));
  });
}

template <class T>
Status launch_plane_backward(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                             const Launch& launch) {
  using A = Accumulator<T>;
  auto* entries = static_cast<NumberPair<A>*>(ChannelWorkspace(launch, plan).entries());
  return with_act<T>(problem.activation.kind, [&](auto act) -> Status {
    const BackwardProblem<A> p(problem);
    if (passes != ChannelPasses::apply) {
      using Act = decltype(act);
      NORMACT_TRY((launch_kernel<plane_sums_kernel<T, Act>>("plane sums kernel launch", plane_shape(plan.reduce),
                                                            launch, p, PlaneSpace(p, p.x, plan.reduce), entries)));
    }
    if (passes == ChannelPasses::reduce) return {};
    const bool alone = passes == ChannelPasses::apply;
    const auto gradients = ChannelGradients<T>(p, passes, plan, entries).beside(plan);
    return launch_kernel<plane_backward_kernel<T, decltype(act)>>(
        "plane norm backward kernel launch", with_gradients(plane_shape(plan.apply, alone), gradients), launch, p,
        PlaneSpace(p, p.x, plan.apply), alone ? nullptr : entries, static_cast<unsigned>(plan.reduce.parts), gradients);
  });
}

inline LaunchShape ring_shape(const ChannelPlan& plan) {
  LaunchShape shape = channel_shape(plan);
  const int servants = plan.ring.clusters ? kClusterServants : kTeamServants;
  shape.block = dim3(static_cast<unsigned>(plan.ring.threads + servants * kWarp));
  shape.cluster = plan.cluster;
  return shape.together ? shape : shape.chained();
}

template <class T>
Status launch_ring_forward(const ChannelForward& p, const ChannelPlan& plan, const Launch& launch) {
  using A = Accumulator<T>;
  const ChannelWorkspace workspace(launch, plan);
  auto* entries = static_cast<MomentsEntry<A>*>(workspace.entries());
  return with_act<T>(p.activation.kind, [&](auto act) {
    const auto run = [&](auto several) {
      return launch_kernel<ring_forward_kernel<T, decltype(act), decltype(several)::value>>(
          "ring norm forward kernel launch", ring_shape(plan), launch, ForwardProblem<A>(p),
          PlaneSpace(p, p.x, plan.apply), plan.ring, entries, workspace.finals(), workspace.counters());
    };
    return plan.ring.several ? run(std::true_type{}) : run(std::false_type{});
  });
}

template <class T>
Status launch_ring_backward(const BackwardProblem<Accumulator<T>>& p, const ChannelPlan& plan, const Launch& launch) {
  const ChannelWorkspace workspace(launch, plan);
  auto* entries = static_cast<NumberPair<Accumulator<T>>*>(workspace.entries());
  return with_act<T>(p.activation.kind, [&](auto act) {
    const auto run = [&](auto several) {
      return launch_kernel<ring_backward_kernel<T, decltype(act), decltype(several)::value>>(
          "ring norm backward kernel launch", ring_shape(plan), launch, p, PlaneSpace(p, p.x, plan.apply), plan.ring,
          entries, workspace.finals(), workspace.counters());
    };
    return plan.ring.several ? run(std::true_type{}) : run(std::false_type{});
  });
}

inline LaunchShape slab_shape(const ChannelPlan& plan) {
  LaunchShape shape = channel_shape(plan);
  if (plan.access == ChannelAccess::planes) shape.block = dim3(static_cast<unsigned>(plan.threads));
  if (plan.team) return shape;
  shape.cluster = plan.cluster;
  return shape.chained();
}

/// p: as it is planned, see set_geometry.
template <class T>
Status launch_slab_forward(const ChannelForward& p, const ChannelPlan& plan, const Launch& launch) {
  using A = Accumulator<T>;
  const ChannelWorkspace workspace(launch, plan);
  auto* entries = static_cast<MomentsEntry<A>*>(workspace.entries());
  return with_act<T>(p.activation.kind, [&](auto act) {
    if (plan.access == ChannelAccess::planes) {
      const auto run = [&](auto cut) {
        return launch_kernel<plane_slab_forward_kernel<T, decltype(act), decltype(cut)::value>>(
            "plane slab norm forward kernel launch", slab_shape(plan), launch, ForwardProblem<A>(p),
            PlaneSlabSpace(p, p.x, plan), entries);
      };
      return plan.whole ? run(std::false_type{}) : run(std::true_type{});
    }
    if (plan.bands) {
      return launch_kernel<band_slab_forward_kernel<T, decltype(act)>>("band slab norm forward kernel launch",
                                                                       slab_shape(plan), launch, ForwardProblem<A>(p),
                                                                       BandSpace(p, p.x, plan));
    }
    const auto run = [&](auto team) {
      return launch_kernel<slab_forward_kernel<T, decltype(act), decltype(team)::value>>(
          "slab norm forward kernel launch", slab_shape(plan), launch, ForwardProblem<A>(p), SlabSpace(p, p.x, plan),
          entries, static_cast<NumberPair<A>*>(workspace.finals()));
    };
    return plan.team ? run(std::true_type{}) : run(std::false_type{});
  });
}

template <class T>
Status launch_slab_backward(const BackwardProblem<Accumulator<T>>& p, const ChannelPlan& plan, const Launch& launch) {
  const ChannelWorkspace workspace(launch, plan);
  auto* entries = static_cast<NumberPair<Accumulator<T>>*>(workspace.entries());
  return with_act<T>(p.activation.kind, [&](auto act) -> Status {
    using Act = decltype(act);
    if (plan.access == ChannelAccess::planes && !plan.whole) {
      return launch_kernel<cut_slab_backward_kernel<T, Act>>("cut slab norm backward kernel launch", slab_shape(plan),
                                                             launch, p, PlaneSlabSpace(p, p.x, plan), entries);
    }
    const auto run = [&](auto keeps) {
      if (plan.access == ChannelAccess::planes) {
        return launch_kernel<plane_slab_backward_kernel<T, Act, decltype(keeps)::value>>(
            "plane slab norm backward kernel launch", slab_shape(plan), launch, p, PlaneSlabSpace(p, p.x, plan),
            entries);
      }
      if (plan.bands) {
        return launch_kernel<band_slab_backward_kernel<T, Act, decltype(keeps)::value>>(
            "band slab norm backward kernel launch", slab_shape(plan), launch, p, BandSpace(p, p.x, plan));
      }
      const auto run_slabs = [&](auto team) {
        return launch_kernel<slab_backward_kernel<T, Act, decltype(keeps)::value, decltype(team)::value>>(
            "slab norm backward kernel launch", slab_shape(plan), launch, p, SlabSpace(p, p.x, plan), entries,
            static_cast<NumberPair<Accumulator<T>>*>(workspace.finals()));
      };
      return plan.team ? run_slabs(std::true_type{}) : run_slabs(std::false_type{});
    };
    if constexpr (sizeof(T) == 2 && !kIdentity<T, Act> && !kRelu<T, Act>) {
      if (plan.keeps_slopes) return run(std::true_type{});
    }
    return run(std::false_type{});
  });
}

template <class T>
Status launch_forward_passes(const ChannelForward& problem, ChannelPasses passes, const ChannelPlan& plan,
                             const Launch& launch) {
  using A = Accumulator<T>;
  const bool launches = plan.order == ChannelOrder::launches;
  const ForwardProblem<A> p(problem);
  if (plan.order == ChannelOrder::registers) return launch_register_forward<T>(p, plan, launch);
  if constexpr (sizeof(T) < 8) {
    if (launches && goes_by_rows(plan.access)) return launch_row_forward<T>(p, passes, plan, launch);
    if (launches) return launch_plane_forward<T>(problem, passes, plan, launch);
    if (plan.order == ChannelOrder::rings) return launch_ring_forward<T>(problem, plan, launch);
    if (plan.order == ChannelOrder::slabs) return launch_slab_forward<T>(problem, plan, launch);
  }
  const ChannelWorkspace workspace(launch, plan);
  ChannelSpace space(p, plan, passes);
  space.set_extent(p.geometry, p.x);
  NORMACT_TRY(workspace.clear_counters(launch));
  return with_instance<T>(plan, p.activation.kind, [&](auto act, auto* walk, auto kept) {
    using Walk = std::remove_pointer_t<decltype(walk)>;
    return launch_kernel<channel_forward_kernel<T, decltype(act), Walk, decltype(kept)::value>>(
        "channel norm forward kernel launch", channel_shape(plan), launch, p, space, workspace.entries(),
        workspace.finals(), workspace.counters());
  });
}

/// Running statistics of instance norm.
template <class A, class Entry>
Status launch_instance_running(const ChannelForward& p, const Entry* entries, const ChannelPlan& plan,
                               const Launch& launch) {
  const auto enter = [&](const auto* from, int64_t batches, int64_t parts) {
    using From = std::remove_cv_t<std::remove_pointer_t<decltype(from)>>;
    return launch_kernel<instance_running_kernel<A, From>>(
        "running statistics kernel launch", finish_shape(p.geometry.channels), launch, p, from, batches, parts);
  };
  if (plan.chunks == 0) return enter(entries, plan.batches, plan.parts);
  NORMACT_TRY(launch_chunks<A>(entries, p.geometry.channels, plan.parts, plan, launch));
  const void* chunks = ChannelWorkspace(launch, plan).chunk_entries();
  return enter(static_cast<const NumberPair<A>*>(chunks), plan.chunks, int64_t{1});
}

template <class T>
Status launch_channel_forward(const ChannelForward& problem, const ChannelPlan& plan, const Launch& launch) {
  using A = Accumulator<T>;
  ChannelForward p = problem;
  set_geometry(plan, &p, {&p.x, &p.addend, &p.y});
  const bool batch = p.source == StatisticsSource::batch;
  const ChannelPasses passes = batch ? ChannelPasses::both : ChannelPasses::apply;
  NORMACT_TRY(launch_forward_passes<T>(p, passes, plan, launch));
  const ChannelWorkspace workspace(launch, plan);
  if (batch && p.set == ChannelSet::group && p.running.mean.data != nullptr) {
    NORMACT_TRY(
        plan.order == ChannelOrder::registers
            ? launch_instance_running<A>(p, static_cast<const NumberPair<A>*>(workspace.entries()), plan, launch)
            : launch_instance_running<A>(p, static_cast<const MomentsEntry<A>*>(workspace.entries()), plan, launch));
  }
  if (batch && p.running.batches != nullptr && p.running.cumulative) {
    NORMACT_TRY(launch_kernel<channel_batch_kernel>("batch count kernel launch", {dim3(1), dim3(1)}, launch,
                                                    p.running.batches));
  }
  if (p.mask == nullptr || plan.mask_with_y) return {};
  const int64_t bytes = (p.geometry.samples * p.geometry.channels * p.geometry.places + 7) / 8;
  return launch_kernel<channel_mask_kernel<T>>("mask kernel launch",
                                               channel_shape((bytes + kChannelThreads - 1) / kChannelThreads), launch,
                                               ForwardProblem<A>(p), ChannelSpace(p, plan, passes), workspace.finals());
}

template <class T>
Status launch_channel_moments(const ChannelMoments& problem, const ChannelPlan& plan, const Launch& launch) {
  using A = Accumulator<T>;
  ChannelForward p{};
  static_cast<ChannelProblem&>(p) = problem;
  p.activation.kind = NORMACT_ACTIVATION_IDENTITY;
  p.x = problem.x;
  set_geometry(plan, &p, {&p.x});
  if (plan.units > 0) NORMACT_TRY(launch_forward_passes<T>(p, ChannelPasses::reduce, plan, launch));
  return launch_kernel<channel_moments_kernel<T>>(
      "moments kernel launch", finish_shape(p.geometry.channels), launch, problem.moments,
      static_cast<const MomentsEntry<A>*>(ChannelWorkspace(launch, plan).entries()), p.geometry.channels, plan.parts);
}

/// ReLU's instance serves every mask: the bits are the slope. p: as it is planned, see set_geometry.
template <class T>
Status launch_backward_passes(const BackwardProblem<Accumulator<T>>& p, const ChannelInputGradient& problem,
                              ChannelPasses passes, const ChannelPlan& plan, const Launch& launch) {
  using A = Accumulator<T>;
  const bool launches = plan.order == ChannelOrder::launches;
  if (plan.units == 0) return {};
  if (plan.order == ChannelOrder::registers) return launch_register_backward<T>(p, plan, launch);
  if constexpr (sizeof(T) < 8) {
    if (launches && goes_by_rows(plan.access)) return launch_row_backward<T>(p, passes, plan, launch);
    if (launches) return launch_plane_backward<T>(problem, passes, plan, launch);
    if (plan.order == ChannelOrder::rings) return launch_ring_backward<T>(p, plan, launch);
    if (plan.order == ChannelOrder::slabs) return launch_slab_backward<T>(p, plan, launch);
  }
  const ChannelWorkspace workspace(launch, plan);
  ChannelSpace space(p, plan, passes);
  space.set_extent(p.geometry, p.x);
  NORMACT_TRY(workspace.clear_counters(launch));
  return with_instance<T>(plan, p.activation.kind, [&](auto act, auto* walk, auto kept) {
    using Walk = std::remove_pointer_t<decltype(walk)>;
    return launch_kernel<channel_backward_kernel<T, decltype(act), Walk, decltype(kept)::value>>(
        "channel norm backward kernel launch", channel_shape(plan), launch, p, space, workspace.entries(),
        workspace.finals(), workspace.counters());
  });
}

template <class T>
Status launch_channel_backward(const ChannelInputGradient& problem, ChannelPasses passes, const ChannelPlan& plan,
                               const Launch& launch) {
  using A = Accumulator<T>;
  BackwardProblem<A> p(problem);
  set_geometry(plan, &p, {&p.dy, &p.x, &p.addend, &p.y, &p.dx, &p.daddend});
  NORMACT_TRY(launch_backward_passes<T>(p, problem, passes, plan, launch));
  const ChannelWorkspace workspace(launch, plan);
  const auto* entries =
      static_cast<const NumberPair<A>*>(plan.chunks > 0 ? workspace.chunk_entries() : workspace.entries());
  const ChannelGradients<T> gradients(p, passes, plan, entries);
  const bool added_up = plan.gradients_beside() && passes == ChannelPasses::both && plan.units > 0;
  if (added_up || gradients.blocks == 0) return {};
  if (plan.chunks > 0) {
    const int64_t columns = p.geometry.channels * plan.parts;
    NORMACT_TRY(launch_chunks<A>(static_cast<const NumberPair<A>*>(workspace.entries()), columns, 1, plan, launch));
  }
  return launch_kernel<channel_gradients_kernel<T>>("parameter gradient kernel launch",
                                                    finish_shape(p.geometry.channels), launch, gradients);
}

template <class A>
Status launch_channel_merge(const ChannelMerge& p, const Launch& launch) {
  NORMACT_TRY(launch_kernel<channel_merge_kernel<A>>(
      "merge kernel launch", channel_shape((p.geometry.channels + kChannelThreads - 1) / kChannelThreads), launch, p));
  if (p.running.batches == nullptr) return {};
  return launch_kernel<channel_count_kernel<A>>("batch count kernel launch", {dim3(1), dim3(kWarp)}, launch, p);
}

}  // namespace normact::cuda
