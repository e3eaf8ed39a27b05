// SPDX-License-Identifier: Apache-2.0
// From a plan to the launches over rows (channel_rows.cuh).
#pragma once

#include "cuda/channel_rows_backward.cuh"
#include "cuda/channel_rows_forward.cuh"
#include "cuda/launch_channel_common.cuh"

namespace normact::cuda {

/// The launches over rows that `passes` are: first(space, shape), settle(space, shape) between the passes, and
/// second(space, shape). All of them start while the one before ends, as those over planes do (launch_channel.cuh).
template <class Problem, class First, class Settle, class Second>
Status launch_row_passes(const Problem& p, ChannelPasses passes, const ChannelPlan& plan, First first, Settle settle,
                         Second second) {
  const ChannelSpace reduce(p, plan, ChannelPasses::reduce);
  if (passes != ChannelPasses::apply) NORMACT_TRY(first(reduce, channel_shape(plan).chained()));
  if (passes == ChannelPasses::reduce) return {};
  const bool both = passes == ChannelPasses::both;
  if (both) NORMACT_TRY(settle(reduce, channel_shape(plan.slabs * plan.settles_a_slab).chained()));
  const ChannelPlan last = plan.second_pass();
  ChannelSpace apply(p, last, ChannelPasses::apply);
  apply.has_sums = both;
  const LaunchShape shape = channel_shape(last);
  return second(apply, both ? shape.chained() : shape);
}

/// p: as it is planned, see set_geometry.
template <class T>
Status launch_row_forward(const ForwardProblem<Accumulator<T>>& p, ChannelPasses passes, const ChannelPlan& plan,
                          const Launch& launch) {
  using A = Accumulator<T>;
  using Pass = RowForwardPass<T, Identity<Math<T>>, RowWalk<T, kPackSize<T>>>;
  const ChannelWorkspace workspace(launch, plan);
  auto* entries = static_cast<MomentsEntry<A>*>(workspace.entries());
  auto* finals = static_cast<NumberPair<A>*>(workspace.finals());
  return launch_row_passes(
      p, passes, plan,
      [&](const ChannelSpace& space, const LaunchShape& shape) {
        return launch_kernel<channel_row_moments_kernel<T>>("channel row moments kernel launch", shape, launch, p,
                                                            space, entries);
      },
      [&](const ChannelSpace& space, const LaunchShape& shape) {
        return launch_kernel<channel_settle_kernel<Pass, ForwardProblem<A>, MomentsEntry<A>>>(
            "channel norm settle kernel launch", shape, launch, p, space, entries, finals);
      },
      [&](const ChannelSpace& space, const LaunchShape& shape) {
        return with_act<T>(p.activation.kind, [&](auto act) {
          const auto run = [&](auto cached) {
            return launch_kernel<channel_row_forward_kernel<T, decltype(act), decltype(cached)::value>>(
                "channel row norm forward kernel launch", shape, launch, p, space, finals);
          };
          return plan.cached ? run(std::true_type{}) : run(std::false_type{});
        });
      });
}

template <class T>
Status launch_row_backward(const BackwardProblem<Accumulator<T>>& p, ChannelPasses passes, const ChannelPlan& plan,
                           const Launch& launch) {
  using A = Accumulator<T>;
  using Pass = RowBackwardPass<T, Identity<Math<T>>, RowWalk<T, kPackSize<T>>>;
  const ChannelWorkspace workspace(launch, plan);
  auto* entries = static_cast<NumberPair<A>*>(workspace.entries());
  auto* finals = static_cast<NumberPair<A>*>(workspace.finals());
  const auto gradients = ChannelGradients<T>(p, passes, plan, entries).beside(plan);
  return with_act<T>(p.activation.kind, [&](auto act) {
    using Act = decltype(act);
    return launch_row_passes(
        p, passes, plan,
        [&](const ChannelSpace& space, const LaunchShape& shape) {
          return launch_kernel<channel_row_sums_kernel<T, Act>>("channel row sums kernel launch", shape, launch, p,
                                                                space, entries);
        },
        [&](const ChannelSpace& space, const LaunchShape& shape) {
          return launch_kernel<channel_settle_kernel<Pass, BackwardProblem<A>, NumberPair<A>>>(
              "channel norm settle kernel launch", shape, launch, p, space, entries, finals);
        },
        [&](const ChannelSpace& space, const LaunchShape& shape) {
          const auto run = [&](auto cached) {
            return launch_kernel<channel_row_backward_kernel<T, Act, decltype(cached)::value>>(
                "channel row norm backward kernel launch", with_gradients(shape, gradients), launch, p, space, finals,
                gradients);
          };
          return plan.cached ? run(std::true_type{}) : run(std::false_type{});
        });
  });
}

}  // namespace normact::cuda
