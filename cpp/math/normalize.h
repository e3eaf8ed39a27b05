// SPDX-License-Identifier: Apache-2.0
// The formulas of normalization, each in its only place. N is any number type with + - * : float, double, or a SIMD
// vector of floats on the CPU. E[.] is the mean over the normalised set.
#pragma once

#include "math/hd.h"

namespace normact {

/// What the affine step multiplies by: weight_offset is 1 for Gemma's (1 + w), else 0.
template <class N>
NORMACT_HD N effective_weight(N weight, N weight_offset) {
  return weight_offset + weight;
}

/// xhat = (x - mean) * rstd.
template <class N>
NORMACT_HD N normalized(N x, N mean, N rstd) {
  return (x - mean) * rstd;
}

/// The same of x = centre + deviation, shift = (centre - mean) * rstd.
template <class N>
NORMACT_HD N normalized_deviation(N deviation, N rstd, N shift) {
  return deviation * rstd + shift;
}

/// y = xhat * weight + bias.
template <class N>
NORMACT_HD N affine(N xhat, N weight, N bias) {
  return xhat * weight + bias;
}

/// The same as one fused operation: multiply_add is (a, b, c) -> a * b + c.
template <class N, class MultiplyAdd>
NORMACT_HD N affine(N xhat, N weight, N bias, MultiplyAdd multiply_add) {
  return multiply_add(xhat, weight, bias);
}

/// dx = rstd * (g - E[g] - xhat * E[g * xhat]) with g = dy * weight, the gradient of every norm in this library with
/// respect to its input: c1 = rstd * E[g] (0 when the norm does not centre), c2 = rstd * E[g * xhat].
template <class N>
NORMACT_HD N input_gradient(N g, N xhat, N rstd, N c1, N c2) {
  return rstd * g - (xhat * c2 + c1);
}

/// The same of fused operations.
template <class N, class MultiplyAdd>
NORMACT_HD N input_gradient(N g, N xhat, N rstd, N c1, N c2, MultiplyAdd multiply_add) {
  return multiply_add(rstd, g, -multiply_add(xhat, c2, c1));
}

}  // namespace normact
