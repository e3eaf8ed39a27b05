// SPDX-License-Identifier: Apache-2.0
// Activations inside row kernels, a pack of values at a time.
//
// The kinds that norms are commonly followed by are inlined at each pack behind a uniform branch. Sixteen formulas
// there would be most of the library: all others share one function per element type and direction, which takes and
// returns a pack in registers. A call makes the kernel spill what lives across it.
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

/// common(Act{}) with the formula of a kind that is inlined, else rare(). Single elements and doubles, which are slow
/// anyway, are not worth the code.
template <class T, int kCount, class Common, class Rare>
__device__ __forceinline__ void with_activation(normact_activation_kind kind, Common common, Rare rare) {
  if constexpr (kCount == 1 || sizeof(T) == 8) return rare();
  switch (kind) {
    case NORMACT_ACTIVATION_GELU: return common(Gelu<Math<T>>{});
    case NORMACT_ACTIVATION_GELU_TANH: return common(GeluTanh<Math<T>>{});
    case NORMACT_ACTIVATION_SILU: return common(Silu<Math<T>>{});
    case NORMACT_ACTIVATION_RELU: return common(Relu<Math<T>>{});
    default: return rare();
  }
}

template <int kCount, class A>
__device__ __forceinline__ Values<A, kCount> values_of(const A (&h)[kCount]) {
  Values<A, kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) values.value[j] = h[j];
  return values;
}

/// visit(apply) where the problem's activation is inlined for packs of kCount, or where it has none: apply(h) is
/// h = act(h). Whether it did.
template <class T, int kCount, class Problem, class Visit>
__device__ __forceinline__ bool with_inlined_activation(const Problem&, Visit visit) {
  visit([](auto&) {});
  return true;
}

template <class T, int kCount, class Problem, class A, class Visit>
__device__ __forceinline__ bool with_inlined_activation(const ActivatedProblem<Problem, A>& p, Visit visit) {
  bool inlined = true;
  const auto common = [&](auto act) {
    visit([&](A(&h)[kCount]) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) h[j] = decltype(act)::at(h[j], p.scalars).value;
    });
  };
  with_activation<T, kCount>(p.activation.kind, common, [&] { inlined = false; });
  return inlined;
}

/// h = act(h) by a call, or nothing.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void call_activation(A (&)[kCount], const Problem&) {}

template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void call_activation(A (&h)[kCount], const ActivatedProblem<Problem, A>& p) {
  const Values<A, kCount> values = activation_values<T>(values_of(h), p);
#pragma unroll
  for (int j = 0; j < kCount; ++j) h[j] = values.value[j];
}

/// h = act(h), or nothing.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void activate(A (&h)[kCount], const Problem& p) {
  if (!with_inlined_activation<T, kCount>(p, [&](auto apply) { apply(h); })) call_activation<T>(h, p);
}

/// dy = dy * act'(h); whether by a call, which takes the registers.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ bool multiply_slopes(A (&dy)[kCount], const A (&h)[kCount],
                                                const ActivatedProblem<Problem, A>& p) {
  bool called = false;
  const auto common = [&](auto act) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= decltype(act)::at(h[j], p.scalars).slope;
  };
  with_activation<T, kCount>(p.activation.kind, common, [&] {
    const Values<A, kCount> slopes = activation_slopes<T>(values_of(h), p);
#pragma unroll
    for (int j = 0; j < kCount; ++j) dy[j] *= slopes.value[j];
    called = true;
  });
  return called;
}

/// The same for h = affine(xhat), whose weights it leaves in `weight`.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void multiply_slopes_of_row(A (&dy)[kCount], const A (&xhat)[kCount],
                                                       const StagedParameter<T>& weights,
                                                       const StagedParameter<T>& biases, int bytes, A (&weight)[kCount],
                                                       const ActivatedProblem<Problem, A>& p) {
  A h[kCount];
  biases.get(bytes, h);
  weights.get(bytes, weight);
#pragma unroll
  for (int j = 0; j < kCount; ++j) h[j] = affine(xhat[j], weight[j], h[j]);
  if (multiply_slopes<T>(dy, h, p)) weights.get(bytes, weight);
}

}  // namespace normact::cuda
