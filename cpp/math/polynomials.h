// SPDX-License-Identifier: Apache-2.0
// Minimax polynomials, in the degree that M::kBits asks for. Written by fit_polynomials.py; do not edit. After each:
// the largest relative error before any rounding.
#pragma once

#include "math/hd.h"

namespace normact {

/// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <class M>
NORMACT_HD typename M::Number polynomial(typename M::Number, double c0) {
  return M::constant(c0);
}
template <class M, class... Rest>
NORMACT_HD typename M::Number polynomial(typename M::Number x, double c0, Rest... rest) {
  return M::multiply_add(x, polynomial<M>(x, rest...), M::constant(c0));
}

/// (2^f - 1) / f for |f| <= 1/2.
template <class M>
NORMACT_HD typename M::Number exp2_ratio(typename M::Number f) {
  if constexpr (M::kBits <= 11) {
    return polynomial<M>(f, 0.6931471436, 0.2402235163, 0.05550500130, 0.009666222520,
                         0.001333353809);  // degree 4, 2^-21.1
  } else if constexpr (M::kBits <= 24) {
    return polynomial<M>(f, 0.6931471879, 0.2402264980, 0.05550357471, 0.009618237418, 0.001339071544,
                         1.540351265e-4);  // degree 5, 2^-26.5
  } else {
    return polynomial<M>(f, 0.69314718055994531, 0.24022650695910071, 0.055504108664821627, 0.0096181291076284370,
                         0.0013333558146406639, 1.5403530393466138e-4, 1.5252733841367120e-5, 1.3215486721375215e-6,
                         1.0178057175136058e-7, 7.0549322695074037e-9, 4.4558038129240477e-10,
                         2.5678425591236990e-11);  // degree 11, 2^-61.9
  }
}

/// (2 atanh(s) / s - 2) / u at u = s^2 <= 1/9; the error is that of 2 atanh(s).
template <class M>
NORMACT_HD typename M::Number atanh_rest(typename M::Number u) {
  if constexpr (M::kBits <= 11) {
    return polynomial<M>(u, 0.6667347750, 0.3963618272, 0.3398190641);  // degree 2, 2^-22.3
  } else if constexpr (M::kBits <= 24) {
    return polynomial<M>(u, 0.6666641647, 0.4002151533, 0.2800202127, 0.2801082926);  // degree 3, 2^-27.7
  } else {
    return polynomial<M>(u, 0.66666666666666310, 0.40000000000155066, 0.28571428548124872, 0.22222223953193460,
                         0.18181744495858115, 0.15386548019259333, 0.13301126472283619, 0.12104903222582459,
                         0.083451593069343994, 0.17009398591230672);  // degree 9, 2^-59.4
  }
}

/// (Phi(-z) exp(z^2 / 2) (z + 4)^2 - 8) / z at s = (z - 4) / (z + 4), for 0 <= z <= 14.5 (double: 39);
/// the error is that of Phi(-z).
template <class M>
NORMACT_HD typename M::Number normal_tail_rest(typename M::Number s) {
  if constexpr (M::kBits <= 11) {
    return polynomial<M>(s, -0.4894294645, 1.273644074, -0.4993903947, 0.1261965033, -0.005227010873, -0.009062482650,
                         0.001840478681);  // degree 6, 2^-20.9
  } else if constexpr (M::kBits <= 24) {
    return polynomial<M>(s, -0.4894297281, 1.273636553, -0.4993628513, 0.1263159516, -0.005507001582, -0.009543244425,
                         0.002512763377, 6.245107766e-4, -2.585406147e-4);  // degree 8, 2^-26.7
  } else {
    return polynomial<M>(s, -0.48942973916849702, 1.2736364552247128, -0.49936165374028314, 0.12631793782096588,
                         -0.0055247880391265266, -0.0095555898942395762, 0.0025962051601977361, 6.6543175375231356e-4,
                         -3.9874313742473939e-4, -6.3446723864635706e-5, 5.9630263740833893e-5, 1.0659071127362999e-5,
                         -9.2259773331681747e-6, -2.6142874830644606e-6, 1.3555434651625411e-6, 6.8750319769025252e-7,
                         -1.4503449914889025e-7, -1.6501681273984110e-7, -4.5489983946365602e-9, 3.1450377747051781e-8,
                         7.0094852447410673e-9, -3.4908806203089139e-9, -1.3427950332744278e-9);  // degree 22, 2^-59.3
  }
}

/// (log2(Phi(-z)) + 1) / z for 0 <= z <= 13.3; the error is that of Phi(-z). Beyond, up
/// to 16, it gives less than 2^-126.
template <class M>
NORMACT_HD typename M::Number normal_tail_exponent_rest(typename M::Number z) {
  const auto r = M::reciprocal(z + M::constant(3.8));
  return M::multiply_add(z, M::constant(-0.7209925215),
                         polynomial<M>(r, -0.04669722573, -4.907120162, 9.777699338, -61.07378925, 173.6777307,
                                       -166.4777521));  // degree 5, 2^-20.4
}

/// (Phi(-z) - z phi(z)) exp(z^2 / 2) for 0 <= z <= 13.3; near its zero the error is relative to a quarter of
/// its terms.
template <class M>
NORMACT_HD typename M::Number normal_tail_slope(typename M::Number z) {
  const auto r = M::reciprocal(z + M::constant(3.0));
  return M::multiply_add(z, M::constant(-0.3990017897),
                         polynomial<M>(r, 0.003303566651, 0.3175366521, 2.185513783, -3.530358462, 32.11688379,
                                       -28.60964229));  // degree 5, 2^-20.1
}

}  // namespace normact
