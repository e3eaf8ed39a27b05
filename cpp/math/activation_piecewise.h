// SPDX-License-Identifier: Apache-2.0
// Activations of + * and comparisons: correctly rounded unless their head says otherwise.
#pragma once

#include "math/activation_types.h"

namespace normact {

/// x; 1.
template <class M>
struct Identity {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) { return {x, M::constant(1)}; }
  NORMACT_HD static N slope_from_output(N, const ActivationScalars<N>&) { return M::constant(1); }
};

/// max(x, 0); x <= 0 ? 0 : 1. Exact.
template <class M>
struct Relu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>& s) {
    return {M::maximum(x, M::constant(0)), slope_from_output(x, s)};
  }
  NORMACT_HD static N slope_from_output(N y, const ActivationScalars<N>&) {
    return M::select(y <= M::constant(0), M::constant(0), M::constant(1));
  }
};

/// min(max(x, 0), 6); 0 < x < 6 ? 1 : 0. Exact.
template <class M>
struct Relu6 {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>& s) {
    const N value = M::minimum(M::maximum(x, M::constant(0)), M::constant(6));
    return {value, slope_from_output(value, s)};
  }
  NORMACT_HD static N slope_from_output(N y, const ActivationScalars<N>&) {
    // |y - 3| < 3 would round for tiny y.
    return M::select(y > M::constant(0), M::select(y < M::constant(6), M::constant(1), M::constant(0)), M::constant(0));
  }
};

/// max(x, 0)^2; 2 max(x, 0).
template <class M>
struct SquaredRelu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N positive = M::maximum(x, M::constant(0));
    return {positive * positive, positive + positive};
  }
};

/// x > 0 ? x : alpha x; x > 0 ? 1 : alpha. The slope from the output needs alpha >= 0.
template <class M>
struct LeakyRelu {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = true;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>& s) {
    return {M::select(x > M::constant(0), x, s.alpha * x), slope_from_output(x, s)};
  }
  NORMACT_HD static N slope_from_output(N y, const ActivationScalars<N>& s) {
    return M::select(y > M::constant(0), M::constant(1), s.alpha);
  }
};

/// x min(max(x + 3, 0), 6) / 6; 0 for x <= -3, x / 3 + 1/2 for x < 3, else 1. Within 2.5 and 1.5 ulp; near the
/// slope's zero, 2^-24 (2^-53).
template <class M>
struct Hardswish {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N share = M::minimum(M::maximum(x + M::constant(3), M::constant(0)), M::constant(6)) * M::constant(1.0 / 6);
    const N bounded = M::maximum(x, M::constant(-3));  // no infinity times 0
    const N middle = M::multiply_add(x, M::constant(1.0 / 3), M::constant(0.5));
    const N right = M::select(x >= M::constant(3), M::constant(1), middle);
    return {bounded * share, M::select(x <= M::constant(-3), M::constant(0), right)};
  }
};

/// min(max(x + 3, 0), 6) / 6; -3 < x < 3 ? 1/6 : 0. Value within 1.5 ulp.
template <class M>
struct Hardsigmoid {
  using Math = M;
  using N = typename M::Number;
  static constexpr bool kSlopeFromOutput = false;

  NORMACT_HD static ValueAndSlope<N> at(N x, const ActivationScalars<N>&) {
    const N bounded = M::minimum(M::maximum(x + M::constant(3), M::constant(0)), M::constant(6));
    const N slope = M::select(M::abs(x) < M::constant(3), M::constant(1.0 / 6), M::constant(0));
    return {bounded * M::constant(1.0 / 6), slope};
  }
};

}  // namespace normact
