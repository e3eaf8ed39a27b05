// SPDX-License-Identifier: Apache-2.0
// Activations inside row kernels, a pack of values at a time.
//
// One function per element type and direction serves every kernel instance: sixteen formulas inlined at each pack would
// be most of the library. It takes and returns a pack in registers, and the kind is uniform, so a call costs some ten
// instructions beside its formula.
#pragma once

#include "core/visit_activation.h"
#include "cuda/device_math.cuh"
#include "cuda/memory.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// A problem with the scalars of its activation.
template <class Problem, class A>
struct ActivatedProblem : Problem {
  ActivationScalars<A> scalars;

  explicit ActivatedProblem(const Problem& p)
      : Problem(p), scalars(activation_scalars<A>(p.activation.alpha, p.activation.beta, p.activation.threshold)) {}
};

/// What a kernel for elements of type T is handed.
template <class Problem, class T, bool kActivated>
using KernelProblem = std::conditional_t<kActivated, ActivatedProblem<Problem, Accumulator<T>>, Problem>;

/// kCount values by value: they travel in registers.
template <class A, int kCount>
struct Values {
  A value[kCount];
};

template <class T, class Problem, int kCount, class A>
__device__ __noinline__ Values<A, kCount> activation_values(Values<A, kCount> h,
                                                            const ActivatedProblem<Problem, A>& p) {
  return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
    Values<A, kCount> result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) result.value[j] = decltype(act)::at(h.value[j], p.scalars).value;
    return result;
  });
}

template <class T, class Problem, int kCount, class A>
__device__ __noinline__ Values<A, kCount> activation_slopes(Values<A, kCount> h,
                                                            const ActivatedProblem<Problem, A>& p) {
  return visit_activation<Math<T>>(p.activation.kind, [&](auto act) {
    Values<A, kCount> result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) result.value[j] = decltype(act)::at(h.value[j], p.scalars).slope;
    return result;
  });
}

/// h = act(h), or nothing.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void activate(A (&)[kCount], const Problem&) {}

template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void activate(A (&h)[kCount], const ActivatedProblem<Problem, A>& p) {
  Values<A, kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) values.value[j] = h[j];
  values = activation_values<T>(values, p);
#pragma unroll
  for (int j = 0; j < kCount; ++j) h[j] = values.value[j];
}

/// dy = dy * act'(h).
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void multiply_slopes(A (&dy)[kCount], const A (&h)[kCount],
                                                const ActivatedProblem<Problem, A>& p) {
  Values<A, kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) values.value[j] = h[j];
  values = activation_slopes<T>(values, p);
#pragma unroll
  for (int j = 0; j < kCount; ++j) dy[j] *= values.value[j];
}

/// The same for h = affine(normalized(x)), whose weights it leaves in `weight`.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void multiply_slopes_of_row(A (&dy)[kCount], const A (&x)[kCount], A mean, A rstd,
                                                       const StagedParameter<T>& weights,
                                                       const StagedParameter<T>& biases, int place, A (&weight)[kCount],
                                                       const ActivatedProblem<Problem, A>& p) {
  A h[kCount];
  biases.get(place, h);
  weights.get(place, weight);
#pragma unroll
  for (int j = 0; j < kCount; ++j) h[j] = affine(normalized(x[j], mean, rstd), weight[j], h[j]);
  multiply_slopes<T>(dy, h, p);
  weights.get(place, weight);  // again: the call takes the registers
}

}  // namespace normact::cuda
