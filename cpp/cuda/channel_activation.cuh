// SPDX-License-Identifier: Apache-2.0
// Activations inside the channel kernels: an access of values at a time. Kernels have instances for no activation, ReLU
// and SiLU, and one for all others, most of which it calls (row_activation.cuh says why). Some have one for none and
// one for any.
#pragma once

#include "cuda/channel_walk.cuh"
#include "cuda/row_activation.cuh"

namespace normact::cuda {

/// In the place of an activation: one that is known at run time only.
struct AnyActivation {};
/// The same of a kind that has no instance of its own. It has no mask.
struct OtherActivation {};

template <class T, class Act>
constexpr bool kIdentity = std::is_same_v<Act, Identity<Math<T>>>;
template <class T, class Act>
constexpr bool kRelu = std::is_same_v<Act, Relu<Math<T>>>;
template <class Act>
constexpr bool kOther = std::is_same_v<Act, OtherActivation>;
template <class Act>
constexpr bool kAny = std::is_same_v<Act, AnyActivation> || kOther<Act>;

/// common(Act{}) with the formula of a kind without an instance that is inlined, else rare().
template <class T, class Common, class Rare>
__device__ __forceinline__ void with_other_activation(normact_activation_kind kind, Common common, Rare rare) {
  switch (kind) {
    case NORMACT_ACTIVATION_GELU: return common(Gelu<Math<T>>{});
    case NORMACT_ACTIVATION_GELU_TANH: return common(GeluTanh<Math<T>>{});
    default: return rare();
  }
}

/// Whether the slope may have to come from the output: the reader refuses that for kinds where it does not follow.
template <class Act>
constexpr bool slope_follows_from_output() {
  if constexpr (kAny<Act>) {
    return true;
  } else {
    return Act::kSlopeFromOutput;
  }
}

/// value = act(value).
template <class T, class Act, class Problem, int kCount, class A>
__device__ __forceinline__ void apply_activation(A (&value)[kCount], const ActivatedProblem<Problem, A>& p) {
  const auto inlined = [&](auto act) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) value[j] = decltype(act)::at(value[j], p.scalars).value;
  };
  if constexpr (kOther<Act>) {
    with_other_activation<T>(p.activation.kind, inlined, [&] { call_activation<T>(value, p); });
  } else if constexpr (kAny<Act>) {
    activate<T>(value, p);
  } else {
    inlined(Act{});
  }
}

/// dy = dy * act'(h).
template <class T, class Act, class Problem, int kCount, class A>
__device__ __forceinline__ void apply_slopes(A (&dy)[kCount], const A (&h)[kCount],
                                             const ActivatedProblem<Problem, A>& p) {
  const auto inlined = [&](auto act) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= decltype(act)::at(h[j], p.scalars).slope;
  };
  if constexpr (kOther<Act>) {
    with_other_activation<T>(p.activation.kind, inlined, [&] { call_slopes<T>(dy, h, p); });
  } else if constexpr (kAny<Act>) {
    multiply_slopes<T>(dy, h, p);
  } else {
    inlined(Act{});
  }
}

template <class T, class Problem, int kCount, class A>
__device__ __noinline__ Values<A, kCount> slopes_from_outputs(Values<A, kCount> y,
                                                              const ActivatedProblem<Problem, A>& p) {
  return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
    Values<A, kCount> result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      result.value[j] = A(0);  // the reader refuses an output for kinds whose slope does not follow from it
      if constexpr (decltype(act)::kSlopeFromOutput) result.value[j] = act.slope_from_output(y.value[j], p.scalars);
    }
    return result;
  });
}

/// dy = dy * act'(h), from y = act(h).
template <class T, class Act, class Problem, int kCount, class A>
__device__ __forceinline__ void apply_slopes_of_output(A (&dy)[kCount], const A (&y)[kCount],
                                                       const ActivatedProblem<Problem, A>& p) {
  if constexpr (kAny<Act>) {
    A slope[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) slope[j] = y[j];
    call_for_values(slope, [&](auto values) { return slopes_from_outputs<T>(values, p); });
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= slope[j];
  } else if constexpr (Act::kSlopeFromOutput) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= Act::slope_from_output(y[j], p.scalars);
  }
}

}  // namespace normact::cuda
