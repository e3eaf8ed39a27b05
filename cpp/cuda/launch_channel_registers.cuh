// SPDX-License-Identifier: Apache-2.0
// From a plan to the launches of sets in registers (channel_registers.cuh).
#pragma once

#include <initializer_list>

#include "cuda/channel_registers_backward.cuh"
#include "cuda/channel_registers_forward.cuh"
#include "cuda/launch_channel_common.cuh"

namespace normact::cuda {

/// Whether the elements of a set lie in all tensors as they do in x.
inline bool are_alike(const ChannelGeometry& g, const ChannelView& x,
                      std::initializer_list<const ChannelView*> others) {
  for (const ChannelView* view : others) {
    if (g.channels > g.groups && view->channel_stride != x.channel_stride) return false;
    for (int d = 0; d < g.place_ndim; ++d) {
      if (g.place_shape[d] > 1 && view->place_stride[d] != x.place_stride[d]) return false;
    }
  }
  return true;
}

/// A register kernel's constants beside its types.
template <int kWidth_, int kAccesses_, bool kAlike_, int kThreads_>
struct RegisterInstance {
  static constexpr int kWidth = kWidth_, kAccesses = kAccesses_, kThreads = kThreads_;
  static constexpr bool kAlike = kAlike_;
};

/// run(act, instance) with the instance for this plan and activation.
template <class T, class Run>
Status with_registers(const ChannelPlan& plan, normact_activation_kind kind, bool alike, Run run) {
  const auto with_threads = [&](auto width, auto accesses, auto threads) {
    constexpr int kWidth = decltype(width)::value, kAccesses = decltype(accesses)::value;
    constexpr int kThreads = decltype(threads)::value;
    using Instance = RegisterInstance<kWidth, kAccesses, true, kThreads>;
    if constexpr (kWidth == 1) {  // packs lie alike
      if (!alike) return run(AnyActivation{}, RegisterInstance<1, kAccesses, false, kThreads>{});
    }
    return kind == NORMACT_ACTIVATION_IDENTITY ? run(Identity<Math<T>>{}, Instance{})
                                               : run(AnyActivation{}, Instance{});
  };
  const auto with = [&](auto width, auto accesses) {
    if constexpr (decltype(width)::value * decltype(accesses)::value == kRegisterElements) {
      if (plan.threads > kChannelThreads) return with_threads(width, accesses, Constant<kMostRegisterThreads>{});
    }
    return with_threads(width, accesses, Constant<kChannelThreads>{});
  };
  const RegisterDivision& d = plan.registers;
  if constexpr (sizeof(T) < 8) {
    constexpr Constant<kPackSize<T>> kPack{};
    if (d.width > 1 && d.accesses == 1) return with(kPack, Constant<1>{});
    if constexpr (kPack < kRegisterElements) {
      if (d.width > 1) return with(kPack, Constant<kRegisterElements / kPack>{});
    }
  }
  if (d.accesses == 1) return with(Constant<1>{}, Constant<1>{});
  if (d.accesses == 4) return with(Constant<1>{}, Constant<4>{});
  if (d.accesses == kRegisterElements) return with(Constant<1>{}, Constant<kRegisterElements>{});
  return {NORMACT_INTERNAL, "sets in registers have no kernel for this plan"};
}

/// wanted: whether entries are, for which the block has shared memory.
inline LaunchShape register_shape(const ChannelPlan& plan, bool wanted) {
  LaunchShape shape = channel_shape(plan.blocks);
  shape.block = dim3(static_cast<unsigned>(plan.threads));
  if (wanted) shape.shared_bytes = plan.scratch_bytes;
  return shape.chained();
}

template <class T>
Status launch_register_forward(const ForwardProblem<Accumulator<T>>& p, const ChannelPlan& plan, const Launch& launch) {
  const bool averages = p.running.mean.data != nullptr, alike = are_alike(p.geometry, p.x, {&p.y});
  auto* entries = static_cast<NumberPair<Accumulator<T>>*>(ChannelWorkspace(launch, plan).entries());
  return with_registers<T>(plan, p.activation.kind, alike, [&](auto act, auto instance) {
    using I = decltype(instance);
    return launch_kernel<register_forward_kernel<T, decltype(act), I::kWidth, I::kAccesses, I::kAlike, I::kThreads>>(
        "register norm forward kernel launch", register_shape(plan, averages), launch, p,
        RegisterSpace(p.geometry, plan.registers), averages ? entries : nullptr);
  });
}

template <class T>
Status launch_register_backward(const BackwardProblem<Accumulator<T>>& p, const ChannelPlan& plan,
                                const Launch& launch) {
  const bool gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const bool alike = are_alike(p.geometry, p.x, {&p.dy, &p.dx});
  auto* entries = static_cast<NumberPair<Accumulator<T>>*>(ChannelWorkspace(launch, plan).entries());
  return with_registers<T>(plan, p.activation.kind, alike, [&](auto act, auto instance) {
    using I = decltype(instance);
    return launch_kernel<register_backward_kernel<T, decltype(act), I::kWidth, I::kAccesses, I::kAlike, I::kThreads>>(
        "register norm backward kernel launch", register_shape(plan, gradients), launch, p,
        RegisterSpace(p.geometry, plan.registers), gradients ? entries : nullptr);
  });
}

}  // namespace normact::cuda
