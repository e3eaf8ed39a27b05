// SPDX-License-Identifier: Apache-2.0
// The element types, their sizes and names.
#pragma once

#include <cstdint>

namespace normact {

enum class DType : uint8_t { f64, f32, f16, bf16 };

/// Bytes of one element.
constexpr int size_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }

/// The type of statistics and parameter sums: fp32, and fp64 for fp64 tensors.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
  }
  return "?";
}

}  // namespace normact
