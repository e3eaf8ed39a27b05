// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instance that carries it out: activations of one element type.
#pragma once

#include "cuda/bias_gradient.cuh"
#include "cuda/launch.cuh"
#include "cuda/pointwise_backward.cuh"
#include "cuda/pointwise_forward.cuh"

namespace normact::cuda {

/// Packs a thread, by space and whether there is one input (forward) or more.
template <class Space, bool kOneInput>
constexpr int kPacks = kOneInput ? 2 : 1;
template <>
constexpr int kPacks<TileSpace, true> = 4;
template <>
constexpr int kPacks<TileSpace, false> = 2;

inline LaunchShape pointwise_shape(int64_t blocks) {
  return {dim3(static_cast<unsigned>(blocks)), dim3(kPointwiseThreads)};
}

inline LaunchShape element_shape(const PointwiseProblem& p, int a_thread) {
  const int64_t a_block = int64_t{a_thread} * kPointwiseThreads;
  return pointwise_shape((p.geometry.size + a_block - 1) / a_block);
}

constexpr const char* kForwardLaunch = "activation forward kernel launch";
constexpr const char* kBackwardLaunch = "activation backward kernel launch";

template <class T, bool kGated, class Space>
Status launch_forward_packs(const PointwiseForward& p, const PointwisePlan& plan, const Launch& launch) {
  constexpr int kVectors = kPacks<Space, !kGated>;
  const Space space(p, plan, kPackSize<T>);
  return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
    return launch_kernel<pointwise_forward_kernel<T, decltype(act), kGated, Space, kVectors>>(
        kForwardLaunch, pointwise_shape(space.blocks(kVectors)), launch, p, space, PointwiseScalars<Accumulator<T>>(p));
  });
}

template <class T, bool kGated>
Status launch_forward(const PointwiseForward& p, const Launch& launch) {
  if constexpr (sizeof(T) < 8) {
    const PointwisePlan plan = plan_pointwise(p);
    if (plan.access == PointwiseAccess::flat) return launch_forward_packs<T, kGated, FlatSpace>(p, plan, launch);
    if (plan.access == PointwiseAccess::tile) return launch_forward_packs<T, kGated, TileSpace>(p, plan, launch);
    if constexpr (!kGated) {
      if (plan.access == PointwiseAccess::biased) return launch_forward_packs<T, kGated, BiasedSpace>(p, plan, launch);
    }
  }
  return launch_kernel<pointwise_forward_elements_kernel<T, kGated>>(kForwardLaunch, element_shape(p, kPackSize<T>),
                                                                     launch, p, ElementSpace(p.geometry),
                                                                     PointwiseScalars<Accumulator<T>>(p));
}

template <class T, bool kGated, SlopeSource kSource, class Space>
Status launch_backward_packs(const PointwiseBackward& p, const PointwisePlan& plan, const Launch& launch) {
  constexpr int kVectors = kPacks<Space, false>;
  const Space space(p, plan, kPackSize<T>);
  const auto run = [&](auto act) {
    return launch_kernel<pointwise_backward_kernel<T, decltype(act), kGated, kSource, Space, kVectors>>(
        kBackwardLaunch, pointwise_shape(space.blocks(kVectors)), launch, p, space,
        PointwiseScalars<Accumulator<T>>(p));
  };
  if constexpr (kSource == SlopeSource::mask) {
    return run(Relu<Math<T>>{});
  } else {
    return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
      using Act = decltype(act);
      // The reader refuses an output for kinds whose slope does not follow from it.
      constexpr bool kServed = kSource == SlopeSource::input || Act::kSlopeFromOutput;
      return run(std::conditional_t<kServed, Act, Relu<Math<T>>>{});
    });
  }
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_backward(const PointwiseBackward& p, const Launch& launch) {
  constexpr bool kInput = kSource == SlopeSource::input;
  if constexpr (sizeof(T) < 8) {
    const PointwisePlan plan = plan_pointwise(p);
    if (plan.access == PointwiseAccess::flat)
      return launch_backward_packs<T, kGated, kSource, FlatSpace>(p, plan, launch);
    if constexpr (kInput) {
      if (plan.access == PointwiseAccess::tile)
        return launch_backward_packs<T, kGated, kSource, TileSpace>(p, plan, launch);
    }
  }
  return launch_kernel<pointwise_backward_elements_kernel<T, kGated, kSource>>(
      kBackwardLaunch, element_shape(p, kPackSize<T>), launch, p, ElementSpace(p.geometry),
      PointwiseScalars<Accumulator<T>>(p));
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_bias_gradient(const PointwiseBackward& p, const BiasPlan& plan, const Launch& launch) {
  const BiasSpace space(p, plan);
  const PointwiseScalars<Accumulator<T>> scalars(p);
  constexpr int kPack = sizeof(T) < 8 ? kPackSize<T> : 1;
  const auto shape = [&](int64_t blocks) {
    return LaunchShape{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.parts)), dim3(kPointwiseThreads)};
  };
  if (plan.sum == BiasSum::channels) {
    const auto run = [&](auto width) {
      return launch_kernel<bias_gradient_channels_kernel<T, kGated, kSource, width()>>(
          kBackwardLaunch, shape(plan.channels), launch, p, space, scalars, launch.workspace.data);
    };
    return plan.width == kPack ? run(Constant<kPack>{}) : run(Constant<1>{});
  }
  const auto run = [&](auto act, auto width) {
    const int64_t a_block = int64_t{plan.lanes} * width();
    return launch_kernel<bias_gradient_columns_kernel<T, decltype(act), kGated, kSource, width()>>(
        kBackwardLaunch, shape((plan.partials + a_block - 1) / a_block), launch, p, space, scalars,
        launch.workspace.data);
  };
  if (plan.width != kPack) return run(AnyActivation{}, Constant<1>{});
  if constexpr (kSource == SlopeSource::input && sizeof(T) < 8) {
    return visit_activation<Math<T>>(p.activation.kind, [&](auto act) { return run(act, Constant<kPack>{}); });
  } else {
    return run(AnyActivation{}, Constant<kPack>{});
  }
}

/// Adds up the parts; without any, sets the sums to 0.
template <class T>
Status launch_bias_sum(const PointwiseBackward& p, const BiasPlan& plan, const Launch& launch) {
  const char* name = "bias gradient kernel launch";
  const BiasSpace space(p, plan);
  LaunchShape shape{dim3(static_cast<unsigned>(plan.channels), 2), dim3(kPointwiseThreads)};
  shape.after_previous = true;
  if (plan.partials > plan.channels)
    return launch_kernel<bias_column_sum_kernel<T>>(name, shape, launch, p, space, launch.workspace.data);
  shape.grid.x = static_cast<unsigned>((plan.channels + kWarp - 1) / kWarp);
  shape.block = dim3(kWarp, kParameterSumRows);
  return launch_kernel<bias_sum_kernel<T>>(name, shape, launch, p, space, launch.workspace.data);
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_backward_from(const PointwiseBackward& p, const BiasPlan* bias, const Launch& launch) {
  if (bias == nullptr) return launch_backward<T, kGated, kSource>(p, launch);
  NORMACT_TRY((launch_bias_gradient<T, kGated, kSource>(p, *bias, launch)));
  return bias->parts > 1 || bias->partials > bias->channels ? launch_bias_sum<T>(p, *bias, launch) : Status();
}

template <class T>
Status launch_pointwise_forward(const PointwiseForward& p, const Launch& launch) {
  return p.gated ? launch_forward<T, true>(p, launch) : launch_forward<T, false>(p, launch);
}

/// bias: the plan of the bias gradients; null: none are wanted.
template <class T>
Status launch_pointwise_backward(const PointwiseBackward& p, const BiasPlan* bias, const Launch& launch) {
  if (p.geometry.size == 0) return launch_bias_sum<T>(p, *bias, launch);
  if (p.gated) return launch_backward_from<T, true, SlopeSource::input>(p, bias, launch);
  if (p.mask != nullptr) return launch_backward_from<T, false, SlopeSource::mask>(p, bias, launch);
  if (p.y.data != nullptr) return launch_backward_from<T, false, SlopeSource::output>(p, bias, launch);
  return launch_backward_from<T, false, SlopeSource::input>(p, bias, launch);
}

}  // namespace normact::cuda
