// SPDX-License-Identifier: Apache-2.0
// Row problems in memory of every dtype, layout and alignment, for the tests of the CPU back end.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/problem.h"
#include "cpu/backend.h"

namespace fixture {

using normact::DType;
using normact::Operand;

/// Rounds to nearest even in a format with this many significant bits and least exponent; independent of the library.
inline double round_to(double value, int bits, int least_exponent, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), least_exponent);
  const double unit = std::ldexp(1.0, exponent - bits + 1);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

inline double round_to(double value, DType dtype) {
  switch (dtype) {
    case DType::f64: return value;
    case DType::f32: return round_to(value, 24, -126, 3.4028234663852886e38);
    case DType::f16: return round_to(value, 11, -14, 65504.0);
    case DType::bf16: return round_to(value, 8, -126, 3.3895313892515355e38);
  }
  return 0;
}

/// Half the distance between neighbours around value: what one rounding may cost.
inline double half_ulp(double value, DType dtype) {
  const int bits = dtype == DType::f64 ? 53 : dtype == DType::f32 ? 24 : dtype == DType::f16 ? 11 : 8;
  const int least = dtype == DType::f64 ? -1022 : dtype == DType::f16 ? -14 : -126;
  return std::ldexp(0.5, std::max(value == 0 ? least : std::ilogb(value), least) - bits + 1);
}

inline double decode_half(uint16_t bits) {
  const double sign = bits >> 15 ? -1 : 1;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

/// A number of f16 or bf16.
inline double decode(uint16_t bits, DType dtype) {
  if (dtype == DType::f16) return decode_half(bits);
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return static_cast<double>(value);
}

inline uint16_t encode_half(double value) {  // value is a half already
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(size)) return static_cast<uint16_t>(sign | 0x7c00);
  if (size < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(size, 24)));
  const int exponent = std::ilogb(size);
  const int mantissa = static_cast<int>(std::ldexp(size, 10 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | mantissa);
}

/// A rows x cols tensor with any strides, at any offset from a 64-byte boundary; a row or column operand has stride 0.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride = 1, int64_t offset = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), row_stride_(row_stride), col_stride_(col_stride) {
    const int64_t span = (rows - 1) * row_stride + (cols - 1) * col_stride + 1;
    memory_.assign(static_cast<size_t>((span + offset) * size_of(dtype) + 64), 0);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    start_ = (64 - address % 64) % 64 + static_cast<size_t>(offset * size_of(dtype));
  }
  Tensor(const Tensor&) = delete;  // the alignment would change
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  bool exists() const { return !memory_.empty(); }
  DType dtype() const { return dtype_; }

  double get(int64_t row, int64_t col) const {
    const char* p = at(row, col);
    if (dtype_ == DType::f64) return load<double>(p);
    if (dtype_ == DType::f32) return static_cast<double>(load<float>(p));
    return decode(load<uint16_t>(p), dtype_);
  }

  void set(int64_t row, int64_t col, double value) {
    char* p = at(row, col);
    value = round_to(value, dtype_);
    if (dtype_ == DType::f64) return store(p, value);
    if (dtype_ == DType::f32) return store(p, static_cast<float>(value));
    if (dtype_ == DType::f16) return store(p, encode_half(value));
    const auto single = static_cast<float>(value);
    uint32_t word;
    std::memcpy(&word, &single, 4);
    store(p, static_cast<uint16_t>(word >> 16));
  }

  void fill(std::mt19937& random, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) set(r, c, normal(random));
    }
  }

  void copy_from(const Tensor& other) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) std::memcpy(at(r, c), other.at(r, c), static_cast<size_t>(size_of(dtype_)));
    }
  }

  bool same_bits(int64_t row, const Tensor& other, int64_t other_row) const {
    for (int64_t c = 0; c < cols_; ++c) {
      if (std::memcmp(at(row, c), other.at(other_row, c), static_cast<size_t>(size_of(dtype_))) != 0) return false;
    }
    return true;
  }
  bool same_bits(const Tensor& other) const {
    for (int64_t r = 0; r < rows_; ++r) {
      if (!same_bits(r, other, r)) return false;
    }
    return true;
  }

  Operand operand() {
    Operand result{};
    if (!exists()) return result;
    result.data = memory_.data() + start_;
    result.dtype = dtype_;
    result.row_stride[0] = row_stride_;
    result.col_stride[0] = col_stride_;
    return result;
  }

 private:
  template <class N>
  static N load(const char* p) {
    N value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  template <class N>
  static void store(char* p, N value) {
    std::memcpy(p, &value, sizeof value);
  }
  const char* at(int64_t row, int64_t col) const {
    return memory_.data() + start_ +
           static_cast<size_t>((row * row_stride_ + col * col_stride_) * static_cast<int64_t>(size_of(dtype_)));
  }
  char* at(int64_t row, int64_t col) { return const_cast<char*>(static_cast<const Tensor*>(this)->at(row, col)); }

  DType dtype_ = DType::f32;
  int64_t rows_ = 0, cols_ = 0, row_stride_ = 0, col_stride_ = 0;
  std::vector<char> memory_;
  size_t start_ = 0;
};

/// The instruction sets that this machine can run.
inline std::vector<std::string> isas() {
#if defined(__x86_64__)
  std::vector<std::string> names{"baseline"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    names.push_back("avx2");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      names.push_back("avx512");
    }
  }
  return names;
#elif defined(__aarch64__)
  return {"neon"};
#else
  return {"baseline"};
#endif
}

/// Runs the body in a child process with NORMACT_CPU_ISA set: the library chooses once per process. The parent must not
/// have used the back end.
template <class Body>
void in_child(const std::string& isa, Body body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("NORMACT_CPU_ISA", isa.c_str(), 1);
    check::failures = 0;
    body();
    if (check::failures > 0) std::cerr << "  with " << isa << "\n";
    std::exit(check::failures > 0 ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

template <class Body>
void for_each_isa(Body body) {
  for (const std::string& isa : isas()) {
    in_child(isa, [&] {
      CHECK(normact::cpu::isa_name() == isa);
      body();
    });
  }
}

}  // namespace fixture
