// SPDX-License-Identifier: Apache-2.0
// The formulas that only a GPU uses, in numbers of the CPU that behave like its own: exponentials and reciprocals that
// flush, results of 16 bits.
#include <random>

#include "activation_reference.h"
#include "cpu_fixture.h"
#include "math/activation.h"

namespace {

using namespace fixture;
using namespace activation_math;

/// As DeviceMath of cpp/cuda computes for types of 16 bits.
template <int kPrecision>
struct DeviceLikeMath {
  using Number = float;
  static constexpr int kBits = kPrecision;
  static constexpr bool kExp2Instruction = true, kLookup = false;

  static float constant(double c) { return static_cast<float>(c); }
  static float multiply(float a, float b) { return a * b; }
  static float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
  static float product_error(float a, float b, float p) { return std::fma(a, b, -p); }
  static float abs(float a) { return std::fabs(a); }
  static float minimum(float a, float b) { return b < a ? b : a; }
  static float maximum(float a, float b) { return b > a ? b : a; }
  static float select(bool condition, float yes, float no) { return condition ? yes : no; }
  static float select_negative(float x, float yes, float no) { return x < 0 ? yes : no; }
  static float reciprocal(float d) { return d > 0x1p126f ? 0 : 1 / d; }
  static float exp2(float t) { return t < -126 ? 0 : std::exp2(t); }
};

constexpr Scalars kDefaults{1, 1, 20};
constexpr double kMostWrong = 1e-3;

/// A kind under test: its formula, in what it is rounded to, and the definition.
struct Kind {
  const char* name;
  DType dtype;
  normact::ValueAndSlope<float> (*found)(float);
  Expected<double> (*expected)(double, const Scalars&);
};

template <template <class> class Act, int kPrecision>
normact::ValueAndSlope<float> found(float x) {
  return Act<DeviceLikeMath<kPrecision>>::at(x, normact::ActivationScalars<float>{});
}

const Kind kKinds[] = {
    {"gelu", DType::bf16, found<normact::Gelu, 8>, gelu<double>},
    {"gelu", DType::f16, found<normact::Gelu, 11>, gelu<double>},
    {"gelu_tanh", DType::bf16, found<normact::GeluTanh, 8>, gelu_tanh<double>},
    {"gelu_tanh", DType::f16, found<normact::GeluTanh, 11>, gelu_tanh<double>},
    {"quick_gelu", DType::bf16, found<normact::QuickGelu, 8>, quick_gelu<double>},
    {"quick_gelu", DType::f16, found<normact::QuickGelu, 11>, quick_gelu<double>},
    {"silu", DType::bf16, found<normact::Silu, 8>, silu<double>},
    {"silu", DType::f16, found<normact::Silu, 11>, silu<double>},
};

struct Wrong {
  int values = 0, slopes = 0;
  double worst = 0;  // error of a value, relative

  void add(const Kind& kind, float x) {
    const auto now = kind.found(x);
    const Expected<double> expected = kind.expected(static_cast<double>(x), kDefaults);
    const auto rounded = [&](double y) { return round_to(y, kind.dtype); };
    values += rounded(static_cast<double>(now.value)) != rounded(expected.value);
    slopes += rounded(static_cast<double>(now.slope)) != rounded(expected.slope);
    if (std::fabs(expected.value) > 0x1p-112)  // below, what is flushed counts
      worst = std::max(worst, std::fabs(static_cast<double>(now.value) / expected.value - 1));
  }

  void check(const Kind& kind, double count, const char* of) const {
    CHECK(values <= kMostWrong * count && slopes <= kMostWrong * count);
    CHECK(worst < 0x1p-16);  // as tests/python/activation_cases.py allows
    if (std::max(values, slopes) > kMostWrong * count || worst >= 0x1p-16)
      std::cerr << kind.name << ", " << name_of(kind.dtype) << ", " << of << ": " << values << " values, " << slopes
                << " slopes of " << count << " are not correctly rounded; values are off by " << worst << "\n";
  }
};

TEST(every_16_bit_input_is_rounded_correctly) {
  for (const Kind& kind : kKinds) {
    Wrong wrong;
    for (uint32_t i = 0; i < 65536; ++i) {
      const double x = decode(static_cast<uint16_t>(i), kind.dtype);
      if (std::isfinite(x)) wrong.add(kind, static_cast<float>(x));
    }
    wrong.check(kind, 65536, "all inputs");
  }
}

/// As behind a bias or a norm, where x has more digits than the result.
TEST(fp32_inputs_are_rounded_correctly_to_bf16) {
  constexpr int kCount = 300000;
  for (const Kind& kind : kKinds) {
    if (kind.dtype != DType::bf16) continue;
    for (float size : {1.0f, 3.0f}) {
      std::mt19937 random(7);
      std::normal_distribution<float> normal(0, size);
      Wrong wrong;
      for (int i = 0; i < kCount; ++i) wrong.add(kind, std::fmax(normal(random), -12.0f));
      wrong.check(kind, kCount, "fp32 inputs");
    }
  }
}

TEST(infinity_gives_limits_and_nan_stays) {
  for (const Kind& kind : kKinds) {
    for (float x : {INFINITY, 3e38f, 1e10f}) CHECK(kind.found(x).value == x && kind.found(x).slope == 1);
    for (float x : {-INFINITY, -3e38f, -1e10f}) CHECK(kind.found(x).value == 0 && kind.found(x).slope == 0);
    CHECK(std::isnan(kind.found(NAN).value) && std::isnan(kind.found(NAN).slope));
    CHECK(kind.found(0).value == 0 && std::fabs(kind.found(0).slope - 0.5f) < 1e-5f);
  }
}

}  // namespace
