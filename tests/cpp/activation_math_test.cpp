// SPDX-License-Identifier: Apache-2.0
// Every activation of cpp/math on the vectors of each instruction set that runs here, against the standard library in
// more precision. kStated is what the heads in math/activation_*.h say.
#include <algorithm>
#include <cstring>

#include "activation_math_table.h"
#include "activation_reference.h"
#include "cpu_fixture.h"

namespace {

using namespace fixture;
using namespace activation_math;

constexpr Scalars kDefaults{1, 1, 20};

/// The largest errors, in ulp of the exact result. Slopes cross 0 at zero: within 1
/// of it their error is in units of 2^-24 (2^-53).
struct Stated {
  const char* name;
  Expected<double> (*in_double)(double, const Scalars&);
  Expected<long double> (*in_long)(long double, const Scalars&);
  double value24, slope24, value53, slope53;
  double at_infinity[4];  // value and slope at -infinity, at infinity
  double zero = NAN, near_zero = 0;
  double slope_at_nan = NAN;
};

const double kInfinity = INFINITY;
#define BOTH(kind) #kind, kind<double>, kind<long double>
const Stated kStated[] = {
    {BOTH(identity), 0, 0, 0, 0, {-kInfinity, 1, kInfinity, 1}, NAN, 0, 1},
    {BOTH(relu), 0, 0, 0, 0, {0, 0, kInfinity, 1}, NAN, 0, 1},
    {BOTH(relu6), 0, 0, 0, 0, {0, 0, 6, 0}, NAN, 0, 0},
    {BOTH(squared_relu), 0.5, 0, 0.5, 0, {0, 0, kInfinity, kInfinity}},
    {BOTH(leaky_relu), 0.5, 0, 0.5, 0, {-kInfinity, 1, kInfinity, 1}, NAN, 0, 1},
    {BOTH(elu), 3.5, 2, 3.5, 2, {-1, 0, kInfinity, 1}},
    {BOTH(gelu), 6, 4, 6, 3.5, {0, 0, kInfinity, 1}, -0.7517916, 3},
    {BOTH(gelu_tanh), 3.5, 7, 3.5, 6, {0, 0, kInfinity, 1}, -0.7524614, 2},
    {BOTH(quick_gelu), 3.5, 6.5, 3.5, 5.5, {0, 0, kInfinity, 1}, -0.7511, 2},
    {BOTH(silu), 3.5, 6, 3.5, 5.5, {0, 0, kInfinity, 1}, -1.2784645, 1.5},
    {BOTH(sigmoid), 3, 4.5, 3, 4, {0, 0, 1, 0}},
    {BOTH(tanh), 4, 5.5, 4, 5, {-1, 0, 1, 0}},
    {BOTH(softplus), 4, 3, 3.5, 3, {0, 0, kInfinity, 1}},
    {BOTH(mish), 4.5, 8, 4.5, 7.5, {0, 0, kInfinity, 1}, -1.1924, 2},
    {BOTH(hardswish), 2.5, 1.5, 2.5, 1.5, {0, 0, kInfinity, 1}, -1.5, 1},
    {BOTH(hardsigmoid), 1.5, 0.5, 1.5, 0.5, {0, 0, 1, 0}, NAN, 0, 0},
};

std::vector<std::pair<std::string, Table>> tables() {
  std::vector<std::pair<std::string, Table>> result;
  for (const std::string& isa : isas()) {
#if defined(__x86_64__)
    result.emplace_back(isa, isa == "avx512" ? table_avx512() : isa == "avx2" ? table_avx2() : table_baseline());
#elif defined(__aarch64__)
    result.emplace_back(isa, table_neon());
#else
    result.emplace_back(isa, table_baseline());
#endif
  }
  return result;
}

const Kind& kind_of(const Table& table, const char* name) {
  for (int i = 0; i < table.count; ++i) {
    if (std::strcmp(table.kinds[i].name, name) == 0) return table.kinds[i];
  }
  std::abort();
}

/// Of fp32 every 6151st bit pattern; many around 0; and what is easily got wrong.
template <class N>
std::vector<N> inputs() {
  std::vector<N> x;
  const uint64_t step = sizeof(N) == 4 ? 6151 : 179951;
  for (uint64_t word = 0; word < uint64_t{1} << 32; word += step) {
    const auto low = static_cast<uint32_t>(word);
    float value;
    std::memcpy(&value, &low, 4);
    if (std::isfinite(value)) x.push_back(static_cast<N>(value) * static_cast<N>(1 + 1e-9 * double(word % 97)));
  }
  const int count = sizeof(N) == 4 ? 500000 : 20000;
  for (int i = 0; i < count; ++i) x.push_back(static_cast<N>(-15 + 30.0 * i / count));
  for (double special : {88.0, 88.73, 104.0, 1e4, 3e38, 1e-40, 1e-45, 0.0, 3.0, 6.0, 20.0}) {
    x.push_back(static_cast<N>(special));
    x.push_back(static_cast<N>(-special));
  }
  return x;
}

/// The errors of one output of one kind, in units of the last of bits places.
struct Worst {
  double error = 0, x = 0;

  template <class R>
  void add(double input, double found, R expected, int bits, int least, bool absolute) {
    const R difference = std::fabs(static_cast<R>(found) - expected);
    double size = double(difference / std::ldexp(R(1), -bits));
    if (!absolute) {
      const int exponent = expected == 0 ? least : std::max(std::ilogb(expected), least);
      size = double(difference / std::ldexp(R(1), exponent - bits + 1));
    }
    // What is a product with a flushed subnormal, and what overflows.
    if (!absolute && std::fabs(input) > 1 && std::fabs(expected) < std::ldexp(R(1), least + 14)) {
      size = difference < std::ldexp(R(1), least + 8) ? 0 : kInfinity;
    }
    if (std::isinf(found)) size = std::fabs(expected) >= std::ldexp(R(1), 2 - least) * (1 - R(1e-7)) ? 0 : kInfinity;
    if (std::isnan(found)) size = kInfinity;
    if (size > error) *this = {size, input};
  }
};

void check_worst(const Worst& worst, double stated, const std::string& what) {
  CHECK(worst.error <= stated);
  if (worst.error > stated) std::cerr << what << ": " << worst.error << " ulp at " << worst.x << "\n";
}

template <class N, class R>
void sweep(const Stated& stated, Expected<R> (*reference)(R, const Scalars&), const Scalars& scalars) {
  constexpr bool kSingle = sizeof(N) == 4;
  constexpr int kBits = kSingle ? 24 : 53, kLeast = kSingle ? -126 : -1022;
  const std::vector<N> x = inputs<N>();
  const auto count = static_cast<int64_t>(x.size());
  std::vector<Expected<R>> expected;
  for (N value : x) expected.push_back(reference(static_cast<R>(value), scalars));
  for (const auto& [isa, table] : tables()) {
    const Kind& kind = kind_of(table, stated.name);
    std::vector<N> value(x.size()), slope(x.size()), from_output(x.size());
    kind.at[kSingle](x.data(), value.data(), slope.data(), count, scalars);
    if (kind.slope_from_output[kSingle]) {
      kind.slope_from_output[kSingle](value.data(), nullptr, from_output.data(), count, scalars);
    }
    Worst value_error, slope_error, near_zero, output_error;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto input = static_cast<double>(x[i]);
      value_error.add(input, static_cast<double>(value[i]), expected[i].value, kBits, kLeast, false);
      const bool near = std::fabs(input - stated.zero) < 1;
      (near ? near_zero : slope_error)
          .add(input, static_cast<double>(slope[i]), expected[i].slope, kBits, kLeast, near);
      if (kind.slope_from_output[kSingle]) {
        output_error.add(input, static_cast<double>(from_output[i]), expected[i].slope, kBits, kLeast, true);
      }
    }
    const std::string what = std::string(stated.name) + (kSingle ? " in fp32 with " : " in fp64 with ") + isa;
    check_worst(value_error, kSingle ? stated.value24 : stated.value53, what + ", value");
    check_worst(slope_error, kSingle ? stated.slope24 : stated.slope53, what + ", slope");
    check_worst(near_zero, stated.near_zero, what + ", slope near its zero");
    check_worst(output_error, 7, what + ", slope from output");  // y is off by 3 ulp, and 1 - y^2 by twice that
  }
}

/// In fp32, of the value: what the library's documents say of gelu.
TEST(gelu_is_relatively_exact) {
  std::vector<float> x;
  for (int i = -300000; i <= 300000; ++i) x.push_back(static_cast<float>(12.0 * i / 300000));
  for (double size = 1; size > 1e-30; size *= 0.999) x.push_back(static_cast<float>(-size));
  std::vector<float> value(x.size()), slope(x.size());
  for (const auto& [isa, table] : tables()) {
    kind_of(table, "gelu").at[1](x.data(), value.data(), slope.data(), static_cast<int64_t>(x.size()), kDefaults);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = gelu(static_cast<double>(x[i]), kDefaults).value;
      if (x[i] != 0) worst = std::max(worst, std::fabs(static_cast<double>(value[i]) / expected - 1));
    }
    CHECK(worst < 5e-7);
  }
}

TEST(errors_are_as_stated) {
  const Scalars others[] = {{0.375, 2, 8}, {0.5, static_cast<double>(0.7f), 30}, {0.5, -0.5, 20}};
  for (const Stated& stated : kStated) {
    sweep<float>(stated, stated.in_double, kDefaults);
    sweep<double>(stated, stated.in_long, kDefaults);
    for (const Scalars& scalars : others) {
      const std::string name = stated.name;
      if (name == "elu" || name == "leaky_relu" || name == "softplus") {
        sweep<float>(stated, stated.in_double, scalars);
        sweep<double>(stated, stated.in_long, scalars);
      }
    }
  }
}

TEST(sixteen_bits_are_rounded_correctly) {
  constexpr int kAll = 65536, kMostWrong = kAll / 1000;
  std::vector<uint16_t> x(kAll), value(kAll), slope(kAll);
  for (int i = 0; i < kAll; ++i) x[size_t(i)] = static_cast<uint16_t>(i);
  for (const Stated& stated : kStated) {
    for (DType dtype : {DType::f16, DType::bf16}) {
      for (const auto& [isa, table] : tables()) {
        kind_of(table, stated.name).at[size_t(dtype)](x.data(), value.data(), slope.data(), kAll, kDefaults);
        int wrong_value = 0, wrong_slope = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          const double input = decode(x[i], dtype);
          if (!std::isfinite(input)) continue;
          const Expected<double> expected = stated.in_double(input, kDefaults);
          wrong_value += decode(value[i], dtype) != round_to(expected.value, dtype);
          wrong_slope += decode(slope[i], dtype) != round_to(expected.slope, dtype);
        }
        CHECK(wrong_value <= kMostWrong && wrong_slope <= kMostWrong);
        if (std::max(wrong_value, wrong_slope) > kMostWrong) {
          std::cerr << stated.name << ", " << name_of(dtype) << ", " << isa << ": " << wrong_value << " values, "
                    << wrong_slope << " slopes\n";
        }
      }
    }
  }
}

template <class N>
void check_limits(const Stated& stated, const Kind& kind) {
  const N x[] = {N(-INFINITY), N(INFINITY), N(NAN)};
  N value[3], slope[3];
  kind.at[sizeof(N) == 4](x, value, slope, 3, kDefaults);
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(static_cast<double>(value[i]), stated.at_infinity[2 * i]);
    CHECK_EQ(static_cast<double>(slope[i]), stated.at_infinity[2 * i + 1]);
  }
  CHECK(std::isnan(value[2]));
  CHECK(std::isnan(stated.slope_at_nan) ? std::isnan(slope[2]) : static_cast<double>(slope[2]) == stated.slope_at_nan);
}

TEST(infinity_gives_limits_and_nan_stays) {
  for (const auto& [isa, table] : tables()) {
    for (const Stated& stated : kStated) {
      const int before = check::failures;
      check_limits<float>(stated, kind_of(table, stated.name));
      check_limits<double>(stated, kind_of(table, stated.name));
      if (check::failures > before) std::cerr << "  " << stated.name << " with " << isa << "\n";
    }
  }
}

TEST(gates_are_bounded) {
  const std::vector<float> points = {-INFINITY, -30, -7.5f, -7, -1, 0, 0.5f, 3, 7, 7.5f, 40, NAN};
  std::vector<float> gate, up;
  for (float g : points) {
    for (float u : points) {
      gate.push_back(g);
      up.push_back(u);
    }
  }
  const std::vector<float> dy(gate.size(), 0.75f);
  for (const auto& [isa, table] : tables()) {
    for (double limit : {7.0, kInfinity}) {
      std::vector<float> y(gate.size()), dgate(gate.size()), dup(gate.size());
      table.gate(gate.data(), up.data(), dy.data(), y.data(), dgate.data(), dup.data(),
                 static_cast<int64_t>(gate.size()), limit, 1);
      for (size_t i = 0; i < gate.size(); ++i) {
        const auto g = static_cast<double>(gate[i]), u = static_cast<double>(up[i]);
        if (std::isnan(g) || std::isnan(u)) {
          CHECK(std::isnan(y[i]));
          continue;
        }
        if (std::isinf(g) || std::isinf(u)) continue;
        const Expected<double> act = silu(std::min(g, limit), kDefaults);
        const double factor = std::clamp(u, -limit, limit) + 1;
        const double gate_slope = g <= limit ? 0.75 * factor * act.slope : 0;
        const double up_slope = std::fabs(u) <= limit ? 0.75 * act.value : 0;
        const double tolerance = 8 * std::ldexp(1.0, -24) * (1 + std::fabs(factor)) * (1 + std::fabs(act.value));
        CHECK_NEAR(static_cast<double>(y[i]), act.value * factor, tolerance);
        CHECK_NEAR(static_cast<double>(dgate[i]), gate_slope, tolerance);
        CHECK_NEAR(static_cast<double>(dup[i]), up_slope, tolerance);
      }
    }
  }
}

}  // namespace
