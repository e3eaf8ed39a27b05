// SPDX-License-Identifier: Apache-2.0
// What batch, group and instance norm add to the formulas of normalize.h and moments.h. N is a float, a double, or a
// SIMD vector of these where only + - * occur.
#pragma once

#include <cstdint>

#include "math/moments.h"
#include "math/normalize.h"

namespace normact {

/// E[(x - mean)^2]; 0 of no values, so that rstd is then 1 / sqrt(eps).
template <class N>
NORMACT_HD N variance(const Moments<N>& moments) {
  return moments.count > N(0) ? moments.m2 / moments.count : N(0);
}

/// variance * n / (n - 1), which running statistics keep; of a single value that value's variance, 0.
template <class N>
NORMACT_HD N unbiased_variance(const Moments<N>& moments) {
  return moments.count > N(1) ? moments.m2 / (moments.count - N(1)) : N(0);
}

/// The share of a batch in running statistics: the momentum, or, where these are the means of all `batches` before and
/// of this one, that of one of them.
template <class N>
NORMACT_HD N running_share(bool cumulative, const int64_t* batches, double momentum) {
  return cumulative ? N(1) / N(*batches + 1) : N(momentum);
}

/// A running statistic after a batch: (1 - f) * running + f * batch.
template <class N>
NORMACT_HD N updated_running(N running, N batch, N f) {
  return (N(1) - f) * running + f * batch;
}

/// What x - mean is multiplied by: rstd * weight, once a channel.
template <class N>
NORMACT_HD N channel_scale(N rstd, N weight) {
  return rstd * weight;
}

/// The affine norm of a channel. Not x * scale + (bias - mean * scale): that loses the digits of x - mean.
template <class N>
NORMACT_HD N channel_affine(N x, N mean, N scale, N bias) {
  return affine(x - mean, scale, bias);
}

/// dx of a channel: scale = rstd * weight, c1 = rstd * E[g], c2 = rstd * E[g * xhat], g = dh * weight, E over the set.
/// With one channel a set these are scale * E[dh] and scale * E[dh * xhat].
template <class N>
NORMACT_HD N channel_input_gradient(N dh, N xhat, N scale, N c1, N c2) {
  return input_gradient(dh, xhat, scale, c1, c2);
}

}  // namespace normact
