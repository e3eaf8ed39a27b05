// SPDX-License-Identifier: Apache-2.0
// Conversions of 16-bit types, over every value and around every rounding boundary, through the tables of each
// instruction set.
#include "cpu/row_kernels.h"
#include "cpu_fixture.h"

namespace {

using namespace fixture;
using normact::RowGeometry;
using normact::cpu::RowKernels;

/// The kernels that compute in fp32, of every instruction set that can run here.
std::vector<const RowKernels*> tables() {
  const auto f32 = static_cast<size_t>(DType::f32);
#if defined(__x86_64__)
  const normact::cpu::Isa* all[] = {&normact::cpu::kBaselineIsa, &normact::cpu::kAvx2Isa, &normact::cpu::kAvx512Isa};
  std::vector<const RowKernels*> result;
  for (size_t i = 0; i < isas().size(); ++i) result.push_back(&all[i]->row[f32]);
  return result;
#elif defined(__aarch64__)
  return {&normact::cpu::kNeonIsa.row[f32]};
#else
  return {&normact::cpu::kBaselineIsa.row[f32]};
#endif
}

RowGeometry vector_of(int64_t cols) { return {1, cols, 1, 1, {1}, {cols}}; }

Operand operand_of(std::vector<uint16_t>& values, DType dtype) {
  Operand operand{};
  operand.data = values.data();
  operand.dtype = dtype;
  operand.col_stride[0] = 1;
  return operand;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

TEST(every_value_widens_exactly) {
  for (const RowKernels* kernels : tables()) {
    for (DType dtype : {DType::f16, DType::bf16}) {
      std::vector<uint16_t> bits(65536 + 3);  // a tail too
      for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
      std::vector<float> wide(bits.size());
      const auto cols = static_cast<int64_t>(bits.size());
      // The offset added is -0: it changes no number.
      kernels->load_parameter(operand_of(bits, dtype), vector_of(cols), -0.0, {0, cols}, wide.data());
      int wrong = 0;
      for (size_t i = 0; i < bits.size(); ++i) wrong += !same(static_cast<double>(wide[i]), decode(bits[i], dtype));
      CHECK_EQ(wrong, 0);
    }
  }
}

TEST(narrowing_rounds_to_nearest_even) {
  for (const RowKernels* kernels : tables()) {
    for (DType dtype : {DType::f16, DType::bf16}) {
      std::vector<float> wide;
      for (uint32_t i = 0; i < 65536; ++i) {
        const auto value = static_cast<float>(decode(static_cast<uint16_t>(i), dtype));
        const auto next = static_cast<float>(decode(static_cast<uint16_t>(i + 1), dtype));
        const float middle = value + (next - value) / 2;
        for (float v : {value, middle, std::nextafter(middle, value), std::nextafter(middle, next)}) wide.push_back(v);
      }
      for (uint32_t high = 0; high < 65536; ++high) {  // every exponent, some mantissas; NaN payloads; overflow
        const uint32_t word = high << 16 | (high * 40503u & 0xffff);
        float value;
        std::memcpy(&value, &word, 4);
        wide.push_back(value);
      }
      std::vector<uint16_t> narrow(wide.size() + 1, 0xaaaa);
      const auto cols = static_cast<int64_t>(wide.size());
      kernels->reduce_parameter(operand_of(narrow, dtype), vector_of(cols), wide.data(), 0, 1, {0, cols});
      int wrong = 0;
      for (size_t i = 0; i < wide.size(); ++i) {
        // 0 + x is what the sum of one array is, so -0 becomes 0.
        const double expected = round_to(static_cast<double>(wide[i]) + 0.0, dtype);
        wrong += !same(decode(narrow[i], dtype), expected);
      }
      CHECK_EQ(wrong, 0);
      CHECK_EQ(narrow.back(), 0xaaaa);
    }
  }
}

}  // namespace
