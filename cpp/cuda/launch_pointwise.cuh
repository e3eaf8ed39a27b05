// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instance that carries it out: activations of one element type.
#pragma once

#include "cuda/bias_gradient.cuh"
#include "cuda/launch.cuh"
#include "cuda/pointwise_backward.cuh"
#include "cuda/pointwise_forward.cuh"

namespace normact::cuda {

constexpr int kForwardPacks = 1;  // packs a thread
constexpr int kBackwardPacks = 1;

/// A grid of blocks that compute so many packs, or elements, each.
inline LaunchShape pointwise_shape(int64_t count, int a_block) {
  const int64_t blocks = std::max<int64_t>((count + a_block - 1) / a_block, 1);
  return {dim3(static_cast<unsigned>(blocks)), dim3(kPointwiseThreads)};
}

template <class T, bool kGated>
Status launch_forward(const PointwiseForward& p, const Launch& launch) {
  const char* name = "activation forward kernel launch";
  const PointwiseScalars<Accumulator<T>> scalars(p);
  const PointwisePlan plan = plan_pointwise(p);
  if constexpr (sizeof(T) < 8) {
    if (plan.access != PointwiseAccess::elements) {
      const PackSpace space(p, plan, kPackSize<T>);
      const LaunchShape shape = pointwise_shape(space.packs, kForwardPacks * kPointwiseThreads);
      return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
        return launch_kernel<pointwise_forward_kernel<T, decltype(act), kGated, kForwardPacks>>(name, shape, launch, p,
                                                                                                space, scalars);
      });
    }
  }
  const LaunchShape shape = pointwise_shape(p.geometry.size, kPackSize<T> * kPointwiseThreads);
  return launch_kernel<pointwise_forward_elements_kernel<T, kGated>>(name, shape, launch, p, ElementSpace(p.geometry),
                                                                     scalars);
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_backward(const PointwiseBackward& p, const Launch& launch) {
  const char* name = "activation backward kernel launch";
  const PointwiseScalars<Accumulator<T>> scalars(p);
  const PointwisePlan plan = plan_pointwise(p);
  if constexpr (sizeof(T) < 8) {
    if (plan.access != PointwiseAccess::elements) {
      const PackSpace space(p, plan, kPackSize<T>);
      const LaunchShape shape = pointwise_shape(space.packs, kBackwardPacks * kPointwiseThreads);
      return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
        using Act = decltype(act);
        constexpr bool kOutput = kSource == SlopeSource::output && !Act::kSlopeFromOutput;
        using Served = std::conditional_t<kOutput || kSource == SlopeSource::mask, Relu<Math<T>>, Act>;
        return launch_kernel<pointwise_backward_kernel<T, Served, kGated, kSource, kBackwardPacks>>(name, shape, launch,
                                                                                                    p, space, scalars);
      });
    }
  }
  const LaunchShape shape = pointwise_shape(p.geometry.size, kPackSize<T> * kPointwiseThreads);
  return launch_kernel<pointwise_backward_elements_kernel<T, kGated, kSource>>(name, shape, launch, p,
                                                                               ElementSpace(p.geometry), scalars);
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_bias_gradient(const PointwiseBackward& p, const BiasPlan& plan, const Launch& launch) {
  const char* name = "activation backward kernel launch";
  const PointwiseScalars<Accumulator<T>> scalars(p);
  void* partials = launch.workspace.data;
  const BiasSpace space(p, plan);
  const auto run = [&](auto width) {
    constexpr int kWidth = width();
    if (plan.sum == BiasSum::columns) {
      const int64_t groups = (plan.channels + plan.lanes * kWidth - 1) / (plan.lanes * kWidth);
      const LaunchShape shape{dim3(static_cast<unsigned>(groups), static_cast<unsigned>(plan.parts)),
                              dim3(kPointwiseThreads)};
      return launch_kernel<bias_gradient_columns_kernel<T, kGated, kSource, kWidth>>(name, shape, launch, p, space,
                                                                                     scalars, partials);
    }
    const LaunchShape shape{dim3(static_cast<unsigned>(plan.channels), static_cast<unsigned>(plan.parts)),
                            dim3(kPointwiseThreads)};
    return launch_kernel<bias_gradient_channels_kernel<T, kGated, kSource, kWidth>>(name, shape, launch, p, space,
                                                                                    scalars, partials);
  };
  constexpr int kPack = sizeof(T) < 8 ? kPackSize<T> : 1;
  return plan.width == kPack ? run(Constant<kPack>{}) : run(Constant<1>{});
}

/// Adds up the parts; without any, sets the sums to 0.
template <class T>
Status launch_bias_sum(const PointwiseBackward& p, int64_t parts, int64_t channels, const Launch& launch) {
  const unsigned blocks = static_cast<unsigned>((channels + kWarp - 1) / kWarp);
  LaunchShape shape{dim3(blocks, 2), dim3(kWarp, kParameterSumRows)};
  shape.after_previous = true;
  return launch_kernel<bias_sum_kernel<T>>("bias gradient kernel launch", shape, launch, p, launch.workspace.data,
                                           parts, channels);
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_backward_from(const PointwiseBackward& p, const BiasPlan* bias, const Launch& launch) {
  if (bias == nullptr) return launch_backward<T, kGated, kSource>(p, launch);
  NORMACT_TRY((launch_bias_gradient<T, kGated, kSource>(p, *bias, launch)));
  return bias->parts > 1 ? launch_bias_sum<T>(p, bias->parts, bias->channels, launch) : Status();
}

template <class T>
Status launch_pointwise_forward(const PointwiseForward& p, const Launch& launch) {
  return p.gated ? launch_forward<T, true>(p, launch) : launch_forward<T, false>(p, launch);
}

/// bias: the plan of the bias gradients; null: none are wanted.
template <class T>
Status launch_pointwise_backward(const PointwiseBackward& p, const BiasPlan* bias, const Launch& launch) {
  if (p.geometry.size == 0) return launch_bias_sum<T>(p, 0, bias->channels, launch);
  if (p.gated) return launch_backward_from<T, true, SlopeSource::input>(p, bias, launch);
  if (p.mask != nullptr) return launch_backward_from<T, false, SlopeSource::mask>(p, bias, launch);
  if (p.y.data != nullptr) return launch_backward_from<T, false, SlopeSource::output>(p, bias, launch);
  return launch_backward_from<T, false, SlopeSource::input>(p, bias, launch);
}

}  // namespace normact::cuda
