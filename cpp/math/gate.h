// SPDX-License-Identifier: Apache-2.0
// An activation that gates a second input:
//
//   y = act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset)
//
// SwiGLU and its kin have limit = infinity and up_offset = 0; gpt-oss bounds both and adds 1.
#pragma once

#include "math/activation.h"

namespace normact {

template <class N>
struct GateScalars {
  N limit;  // > 0; infinity for none
  N up_offset;
};

template <class N>
struct GateGradients {
  N gate;
  N up;
};

/// Act: a kind of math/activation.h. NaN on either input makes y NaN.
template <class Act>
struct Gated {
  using M = typename Act::Math;
  using N = typename M::Number;

  NORMACT_HD static N value(N gate, N up, const ActivationScalars<N>& s, const GateScalars<N>& g) {
    return Act::at(M::minimum(gate, g.limit), s).value * factor(up, g);
  }

  /// dgate and dup for the gradient dy; 0 for the input that lies beyond its bound, not for one that lies on it.
  NORMACT_HD static GateGradients<N> gradients(N dy, N gate, N up, const ActivationScalars<N>& s,
                                               const GateScalars<N>& g) {
    const ValueAndSlope<N> act = Act::at(M::minimum(gate, g.limit), s);
    const N zero = M::constant(0);
    return {M::select(gate > g.limit, zero, dy * factor(up, g) * act.slope),
            M::select(M::abs(up) > g.limit, zero, dy * act.value)};
  }

 private:
  NORMACT_HD static N factor(N up, const GateScalars<N>& g) {
    return M::maximum(M::minimum(up, g.limit), -g.limit) + g.up_offset;
  }
};

}  // namespace normact
