// SPDX-License-Identifier: Apache-2.0
// Built once per instruction set, with NORMACT_ISA and its flags.
#include "activation_math_table.h"

#include "core/dtype.h"
#include "cpu/simd_element.h"
#include "cpu/simd_math.h"
#include "math/gate.h"

namespace normact::cpu::NORMACT_ISA {
namespace {

using activation_math::Kind;
using activation_math::Scalars;
using activation_math::Table;

template <class T>
NORMACT_SIMD ActivationScalars<Vec<T>> vector_scalars(const Scalars& s) {
  return broadcast_scalars<T>(activation_scalars<Accumulator<T>>(s.alpha, s.beta, s.threshold));
}

template <template <class> class Act, class T>
void at(const void* x, void* value, void* slope, int64_t count, const Scalars& scalars) {
  const auto s = vector_scalars<T>(scalars);
  for_vectors<T>(count, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    const auto result = Act<Math<T>>::at(load(static_cast<const T*>(x) + i, lanes), s);
    store(static_cast<T*>(value) + i, result.value, lanes);
    store(static_cast<T*>(slope) + i, result.slope, lanes);
  });
}

template <template <class> class Act, class T>
void slope_from_output(const void* y, void*, void* slope, int64_t count, const Scalars& scalars) {
  const auto s = vector_scalars<T>(scalars);
  for_vectors<T>(count, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    store(static_cast<T*>(slope) + i, Act<Math<T>>::slope_from_output(load(static_cast<const T*>(y) + i, lanes), s),
          lanes);
  });
}

template <template <class> class Act>
constexpr Kind kind(const char* name) {
  static_assert(int(DType::f64) == 0 && int(DType::f32) == 1 && int(DType::f16) == 2 && int(DType::bf16) == 3);
  Kind result{name, {at<Act, double>, at<Act, float>, at<Act, Half>, at<Act, BFloat>}, {}};
  if constexpr (Act<Math<float>>::kSlopeFromOutput) {
    result.slope_from_output[0] = slope_from_output<Act, double>;
    result.slope_from_output[1] = slope_from_output<Act, float>;
    result.slope_from_output[2] = slope_from_output<Act, Half>;
    result.slope_from_output[3] = slope_from_output<Act, BFloat>;
  }
  return result;
}

constexpr Kind kKinds[] = {
    kind<Identity>("identity"),    kind<Relu>("relu"), kind<Relu6>("relu6"),         kind<SquaredRelu>("squared_relu"),
    kind<LeakyRelu>("leaky_relu"), kind<Elu>("elu"),   kind<Gelu>("gelu"),           kind<GeluTanh>("gelu_tanh"),
    kind<QuickGelu>("quick_gelu"), kind<Silu>("silu"), kind<Sigmoid>("sigmoid"),     kind<Tanh>("tanh"),
    kind<Softplus>("softplus"),    kind<Mish>("mish"), kind<Hardswish>("hardswish"), kind<Hardsigmoid>("hardsigmoid"),
};

void gate(const float* gates, const float* ups, const float* dys, float* y, float* dgate, float* dup, int64_t count,
          double limit, double up_offset) {
  using Act = Gated<Silu<Math<float>>>;
  const auto s = vector_scalars<float>({1, 1, 20});
  const GateScalars<FloatVec> g{broadcast(static_cast<float>(limit)), broadcast(static_cast<float>(up_offset))};
  for_vectors<float>(count, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    const FloatVec gate_value = load(gates + i, lanes), up = load(ups + i, lanes);
    store(y + i, Act::value(gate_value, up, s, g), lanes);
    const auto gradients = Act::gradients(load(dys + i, lanes), gate_value, up, s, g);
    store(dgate + i, gradients.gate, lanes);
    store(dup + i, gradients.up, lanes);
  });
}

}  // namespace
}  // namespace normact::cpu::NORMACT_ISA

#define TABLE_OF(isa) table_##isa
#define NAME_OF(isa) TABLE_OF(isa)
activation_math::Table activation_math::NAME_OF(NORMACT_ISA)() {
  using namespace normact::cpu::NORMACT_ISA;
  return {kKinds, sizeof kKinds / sizeof kKinds[0], gate};
}
