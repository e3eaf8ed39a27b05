// SPDX-License-Identifier: Apache-2.0
// Activations inside the channel kernels: an access of values at a time. Kernels have instances for no activation, ReLU
// and SiLU; AnyActivation looks the kind up, in one function per element type (row_activation.cuh says why).
#pragma once

#include "cuda/channel_walk.cuh"
#include "cuda/row_activation.cuh"

namespace normact::cuda {

/// In the place of an activation: one that is known at run time only.
struct AnyActivation {};

template <class T, class Act>
constexpr bool kIdentity = std::is_same_v<Act, Identity<Math<T>>>;
template <class T, class Act>
constexpr bool kRelu = std::is_same_v<Act, Relu<Math<T>>>;
template <class Act>
constexpr bool kAny = std::is_same_v<Act, AnyActivation>;

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
  if constexpr (kAny<Act>) {
    activate<T>(value, p);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) value[j] = Act::at(value[j], p.scalars).value;
  }
}

/// dy = dy * act'(h).
template <class T, class Act, class Problem, int kCount, class A>
__device__ __forceinline__ void apply_slopes(A (&dy)[kCount], const A (&h)[kCount],
                                             const ActivatedProblem<Problem, A>& p) {
  if constexpr (kAny<Act>) {
    multiply_slopes<T>(dy, h, p);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= Act::at(h[j], p.scalars).slope;
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
    Values<A, kCount> values;
#pragma unroll
    for (int j = 0; j < kCount; ++j) values.value[j] = y[j];
    values = slopes_from_outputs<T>(values, p);
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= values.value[j];
  } else if constexpr (Act::kSlopeFromOutput) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= Act::slope_from_output(y[j], p.scalars);
  }
}

}  // namespace normact::cuda
