// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel instance that carries it out: activations of one element type.
#pragma once

#include "cuda/bias_gradient.cuh"
#include "cuda/launch.cuh"
#include "cuda/pointwise_backward.cuh"
#include "cuda/pointwise_forward.cuh"

namespace normact::cuda {

/// Formulas of so many instructions that one pack a thread leaves too much of a thread's time to its beginning.
template <class Act>
constexpr bool kLong = false;
template <class M>
constexpr bool kLong<Gelu<M>> = true;
template <class M>
constexpr bool kLong<GeluTanh<M>> = M::kBits > 11;
template <class M>
constexpr bool kLong<Tanh<M>> = M::kBits <= 11;
template <class M>
constexpr bool kLong<Elu<M>> = M::kBits <= 11;
template <class M>
constexpr bool kLong<Softplus<M>> = M::kBits <= 11;
template <class M>
constexpr bool kLong<Mish<M>> = M::kBits <= 11;

/// Packs a thread. On an H200 at 64 and 256 MiB: short formulas 0.99 with one pack, 0.97 with two; long ones 0.91 and
/// 0.96 to 0.99; backward 1.00 and 0.98; rows of packs are faster with two. Where gates alternate, a pack is two
/// already.
template <class Act, class Space, bool kForward>
constexpr int kPacks =
    std::is_same_v<Space, InterleavedSpace> || (std::is_same_v<Space, FlatSpace> && !(kForward && kLong<Act>)) ? 1 : 2;

inline LaunchShape pointwise_shape(int64_t blocks, int64_t layers = 1) {
  return {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(layers)), dim3(kPointwiseThreads)};
}

/// run(space, count): single elements, of which a thread has `count`, a constant.
template <class T, class Run>
Status with_element_space(const PointwiseProblem& p, const PointwisePlan& plan, Run run) {
  if (plan.access == PointwiseAccess::rows) return run(RowSpace(p, plan), Constant<elements_a_thread(sizeof(T))>{});
  return run(ElementSpace(p.geometry), Constant<kPackSize<T>>{});
}

constexpr const char* kForwardLaunch = "activation forward kernel launch";
constexpr const char* kBackwardLaunch = "activation backward kernel launch";

template <class T, bool kGated, class Space>
Status launch_forward_packs(const PointwiseForward& p, const PointwisePlan& plan, const Launch& launch) {
  const Space space(p, plan, kPackSize<T>);
  return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
    constexpr int kVectors = kPacks<decltype(act), Space, true>;
    return launch_kernel<pointwise_forward_kernel<T, decltype(act), kGated, Space, kVectors>>(
        kForwardLaunch, pointwise_shape(space.blocks(kVectors), space.layers(p.geometry)), launch, p, space,
        PointwiseScalars<Accumulator<T>>(p));
  });
}

template <class T, bool kGated>
Status launch_forward(const PointwiseForward& p, const Launch& launch) {
  const PointwisePlan plan = plan_pointwise(p);
  if constexpr (sizeof(T) < 8) {
    if (plan.access == PointwiseAccess::flat) return launch_forward_packs<T, kGated, FlatSpace>(p, plan, launch);
    if (plan.access == PointwiseAccess::tile) return launch_forward_packs<T, kGated, TileSpace>(p, plan, launch);
    if constexpr (kGated) {
      if (plan.access == PointwiseAccess::interleaved)
        return launch_forward_packs<T, kGated, InterleavedSpace>(p, plan, launch);
    } else {
      if (plan.access == PointwiseAccess::biased) return launch_forward_packs<T, kGated, BiasedSpace>(p, plan, launch);
    }
  }
  return with_element_space<T>(p, plan, [&](auto space, auto count) {
    return launch_kernel<pointwise_forward_elements_kernel<T, kGated, decltype(space), count()>>(
        kForwardLaunch, pointwise_shape(space.blocks(count)), launch, p, space, PointwiseScalars<Accumulator<T>>(p));
  });
}

template <class T, bool kGated, SlopeSource kSource, class Space>
Status launch_backward_packs(const PointwiseBackward& p, const PointwisePlan& plan, const Launch& launch) {
  const Space space(p, plan, kPackSize<T>);
  const auto run = [&](auto act) {
    constexpr int kVectors = kPacks<decltype(act), Space, false>;
    return launch_kernel<pointwise_backward_kernel<T, decltype(act), kGated, kSource, Space, kVectors>>(
        kBackwardLaunch, pointwise_shape(space.blocks(kVectors), space.layers(p.geometry)), launch, p, space,
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
  const PointwisePlan plan = plan_pointwise(p);
  if constexpr (sizeof(T) < 8) {
    if (plan.access == PointwiseAccess::flat)
      return launch_backward_packs<T, kGated, kSource, FlatSpace>(p, plan, launch);
    if constexpr (kGated) {
      if (plan.access == PointwiseAccess::interleaved)
        return launch_backward_packs<T, kGated, kSource, InterleavedSpace>(p, plan, launch);
    }
    if constexpr (kInput) {
      if (plan.access == PointwiseAccess::tile)
        return launch_backward_packs<T, kGated, kSource, TileSpace>(p, plan, launch);
    }
  }
  const auto run = [&](auto space, auto count) {
    return launch_kernel<pointwise_backward_elements_kernel<T, kGated, kSource, decltype(space), count()>>(
        kBackwardLaunch, pointwise_shape(space.blocks(count)), launch, p, space, PointwiseScalars<Accumulator<T>>(p));
  };
  if constexpr (kSource == SlopeSource::mask) {
    return run(ElementSpace(p.geometry), Constant<kPackSize<T>>{});
  } else {
    return with_element_space<T>(p, plan, run);
  }
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
    const auto run = [&](auto act, auto width) {
      return launch_kernel<bias_gradient_channels_kernel<T, decltype(act), kGated, kSource, width()>>(
          kBackwardLaunch, shape(plan.channels), launch, p, space, scalars, launch.workspace.data);
    };
    if (plan.width != kPack || kPack == 1) return run(AnyActivation{}, Constant<1>{});
    if constexpr (kSource == SlopeSource::input && !kGated) {
      return visit_activation<Math<T>>(p.activation.kind, [&](auto act) { return run(act, Constant<kPack>{}); });
    } else {
      return run(AnyActivation{}, Constant<kPack>{});
    }
  }
  const auto run = [&](auto act, auto width) {
    const int64_t a_block = int64_t{plan.lanes} * width();
    return launch_kernel<bias_gradient_columns_kernel<T, decltype(act), kGated, kSource, width()>>(
        kBackwardLaunch, shape((plan.partials * plan.fold + a_block - 1) / a_block).chained(), launch, p, space,
        scalars, launch.workspace.data);
  };
  if (plan.width != kPack) return run(AnyActivation{}, Constant<1>{});
  if constexpr (kSource == SlopeSource::input && sizeof(T) < 8) {
    return visit_activation<Math<T>>(p.activation.kind, [&](auto act) { return run(act, Constant<kPack>{}); });
  } else {
    return run(AnyActivation{}, Constant<kPack>{});
  }
}

/// Adds up the parts; without any, sets the sums to 0. A block an entry where a column of them is long and few lie side
/// by side.
template <class T>
Status launch_bias_sum(const PointwiseBackward& p, const BiasPlan& plan, const Launch& launch) {
  const char* name = "bias gradient kernel launch";
  const BiasSpace space(p, plan);
  LaunchShape shape{dim3(static_cast<unsigned>(plan.channels), 2), dim3(kPointwiseThreads)};
  shape.after_previous = true;
  constexpr int64_t kFewChannels = 128, kManyRows = 512;
  const bool tall = plan.channels <= kFewChannels && plan.parts * plan.fold >= kManyRows;
  if (plan.partials > plan.channels || tall)
    return launch_kernel<bias_column_sum_kernel<T>>(name, shape, launch, p, space, launch.workspace.data);
  shape.grid.x = static_cast<unsigned>((plan.channels + kWarp - 1) / kWarp);
  shape.block = dim3(kWarp, kSumThreads);
  return launch_kernel<bias_sum_kernel<T>>(name, shape, launch, p, space, launch.workspace.data);
}

template <class T, bool kGated, SlopeSource kSource>
Status launch_backward_from(const PointwiseBackward& p, const BiasPlan* bias, const Launch& launch) {
  if (bias == nullptr) return launch_backward<T, kGated, kSource>(p, launch);
  NORMACT_TRY((launch_bias_gradient<T, kGated, kSource>(p, *bias, launch)));
  return bias->single() ? Status() : launch_bias_sum<T>(p, *bias, launch);
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
