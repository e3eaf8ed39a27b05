// SPDX-License-Identifier: Apache-2.0
// What an activation takes beside x, and what it gives.
#pragma once

#include "math/functions.h"

namespace normact {

template <class N>
struct ValueAndSlope {
  N value;
  N slope;
};

/// The scalars of an activation, made on the host once a call; a kind reads only its own.
template <class N>
struct ActivationScalars {
  N alpha;            // LeakyRelu, Elu
  N beta;             // Softplus, as all below
  N reciprocal_beta;  // 1 / beta
  N threshold;
  N reach;      // from |x| = reach on, exp(-|beta x|) is 0
  N rate_high;  // -|beta| log2(e) = rate_high + rate_low
  N rate_low;
};

/// N: float or double. For the host.
template <class N>
NORMACT_HD ActivationScalars<N> activation_scalars(double alpha, double beta, double threshold) {
  const double size = beta < 0 ? -beta : beta;
  const double rate = -size * kLog2E;
  const double rest = -__builtin_fma(size, kLog2E, rate) - size * kLog2ERest;
  const double reach = 800 / size;  // enough for double
  ActivationScalars<N> s{};
  s.alpha = static_cast<N>(alpha);
  s.beta = static_cast<N>(beta);
  s.reciprocal_beta = static_cast<N>(1 / beta);
  s.threshold = static_cast<N>(threshold);
  s.reach = static_cast<N>(reach < 1e30 ? reach : 1e30);
  s.rate_high = static_cast<N>(rate);
  s.rate_low = static_cast<N>((rate - static_cast<double>(s.rate_high)) + rest);
  return s;
}

/// The same scalars as another number type: broadcast(number) for each, e.g. to a SIMD vector.
template <class To, class From, class Broadcast>
NORMACT_HD ActivationScalars<To> map_scalars(const ActivationScalars<From>& s, Broadcast broadcast) {
  return {broadcast(s.alpha), broadcast(s.beta),      broadcast(s.reciprocal_beta), broadcast(s.threshold),
          broadcast(s.reach), broadcast(s.rate_high), broadcast(s.rate_low)};
}

}  // namespace normact
