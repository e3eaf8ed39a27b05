// SPDX-License-Identifier: Apache-2.0
// The activations of cpp/math on the CPU's vectors, one table per instruction set (activation_math_table.cpp).
#pragma once

#include <cstdint>

namespace activation_math {

struct Scalars {
  double alpha, beta, threshold;
};

/// value[i], slope[i] for count values x[i], all of one dtype.
using Evaluate = void (*)(const void* x, void* value, void* slope, int64_t count, const Scalars& scalars);

struct Kind {
  const char* name;
  Evaluate at[4];                 // by DType
  Evaluate slope_from_output[4];  // x is y here, value is untouched; null where there is none
};

/// y, dgate, dup of Gated<Silu> in fp32.
using EvaluateGate = void (*)(const float* gate, const float* up, const float* dy, float* y, float* dgate, float* dup,
                              int64_t count, double limit, double up_offset);

struct Table {
  const Kind* kinds;
  int count;
  EvaluateGate gate;
};

Table table_baseline();
Table table_avx2();
Table table_avx512();
Table table_neon();

}  // namespace activation_math
