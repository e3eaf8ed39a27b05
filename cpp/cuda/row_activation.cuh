// SPDX-License-Identifier: Apache-2.0
// Activations inside row kernels, a pack of values at a time.
//
// The kinds that norms are commonly followed by are inlined at each pack behind a uniform branch. Sixteen formulas
// there would be most of the library: all others are called, some values at a time (kCalledCount), which travel in
// registers. A call makes the kernel spill what lives across it.
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

/// Of kCount values, those that a called function takes at a time. Each kernel has its own copy of the function, of
/// sixteen formulas for each of them: with all values of a thread it was most of such kernels.
template <class A, int kCount>
constexpr int kCalledCount = sizeof(A) == 8                  ? 1
                             : kCount > 8 && kCount % 6 == 0 ? 6
                                                             : kCount;

/// value = function(value), kCalledCount at a time.
template <int kCount, class A, class Function>
__device__ __forceinline__ void call_for_values(A (&value)[kCount], Function function) {
  constexpr int kCalled = kCalledCount<A, kCount>;
#pragma unroll
  for (int first = 0; first < kCount; first += kCalled) {
    Values<A, kCalled> values;
#pragma unroll
    for (int j = 0; j < kCalled; ++j) values.value[j] = value[first + j];
    values = function(values);
#pragma unroll
    for (int j = 0; j < kCalled; ++j) value[first + j] = values.value[j];
  }
}

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
  call_for_values(h, [&](auto values) { return activation_values<T>(values, p); });
}

/// h = act(h), or nothing.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void activate(A (&h)[kCount], const Problem& p) {
  if (!with_inlined_activation<T, kCount>(p, [&](auto apply) { apply(h); })) call_activation<T>(h, p);
}

/// dy = dy * act'(h) by calls. of(j, h) gives kStep elements of h from the j-th on.
template <class T, int kStep, class Problem, int kCount, class A, class Of>
__device__ __forceinline__ void call_slopes_of(A (&dy)[kCount], Of of, const ActivatedProblem<Problem, A>& p) {
  constexpr int kCalled = kCalledCount<A, kCount>, kChunk = kCalled < kStep ? kStep : kCalled;
#pragma unroll
  for (int first = 0; first < kCount; first += kChunk) {
    A slope[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; j += kStep) of(first + j, slope + j);
    call_for_values(slope, [&](auto values) { return activation_slopes<T>(values, p); });
#pragma unroll
    for (int j = 0; j < kChunk; ++j) dy[first + j] *= slope[j];
  }
}

/// dy = dy * act'(h); whether by a call, which takes the registers. So few elements of h at a time take few of them.
template <class T, int kStep, class Problem, int kCount, class A, class Of>
__device__ __forceinline__ bool multiply_slopes_of(A (&dy)[kCount], Of of, const ActivatedProblem<Problem, A>& p) {
  bool called = false;
  const auto common = [&](auto act) {
#pragma unroll
    for (int j = 0; j < kCount; j += kStep) {
      A h[kStep];
      of(j, h);
#pragma unroll
      for (int i = 0; i < kStep; ++i) dy[j + i] *= decltype(act)::at(h[i], p.scalars).slope;
    }
  };
  with_activation<T, kCount>(p.activation.kind, common, [&] {
    call_slopes_of<T, kStep>(dy, of, p);
    called = true;
  });
  return called;
}

/// The same of h in registers.
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ void call_slopes(A (&dy)[kCount], const A (&h)[kCount],
                                            const ActivatedProblem<Problem, A>& p) {
  call_slopes_of<T, 1>(dy, [&](int j, A* to) { *to = h[j]; }, p);
}
template <class T, class Problem, int kCount, class A>
__device__ __forceinline__ bool multiply_slopes(A (&dy)[kCount], const A (&h)[kCount],
                                                const ActivatedProblem<Problem, A>& p) {
  return multiply_slopes_of<T, 1>(dy, [&](int j, A* to) { *to = h[j]; }, p);
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
