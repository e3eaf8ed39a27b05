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

template <class M>
NORMACT_HD constexpr double normal_tail_centre() {
  if constexpr (M::kBits <= 11) {
    return 3.5;  // reach 14.5
  } else if constexpr (M::kBits <= 24) {
    return 3.5;  // reach 14.5
  } else {
    return 5.0;  // reach 39.0
  }
}

/// (2^f - 1) / f for |f| <= 1/2.
template <class M>
NORMACT_HD typename M::Number exp2_ratio(typename M::Number f) {
  if constexpr (M::kBits <= 11) {
    return polynomial<M>(f, 0.6931471435, 0.2402235134, 0.05550500211, 0.009666245389,
                         0.001333353981);  // degree 4, 2^-21.1
  } else if constexpr (M::kBits <= 24) {
    return polynomial<M>(f, 0.6931471879, 0.2402264979, 0.05550357434, 0.009618237491, 0.001339073543,
                         1.540351346e-4);  // degree 5, 2^-26.5
  } else {
    return polynomial<M>(f, 0.69314718055994531, 0.24022650695910071, 0.055504108664821627, 0.0096181291076284369,
                         0.0013333558146406630, 1.5403530393466170e-4, 1.5252733841378416e-5, 1.3215486721355701e-6,
                         1.0178057169314275e-7, 7.0549322731111515e-9, 4.4558048497800143e-10,
                         2.5678426461011179e-11);  // degree 11, 2^-61.9
  }
}

/// (2 atanh(s) / s - 2) / s^2 at u = s^2 <= 1/9.
template <class M>
NORMACT_HD typename M::Number atanh_rest(typename M::Number u) {
  if constexpr (M::kBits <= 24) {
    return polynomial<M>(u, 0.6666663994, 0.4000762573, 0.2823504190, 0.2686102310);  // degree 3, 2^-21.3
  } else {
    return polynomial<M>(u, 0.66666666666666658, 0.40000000000014816, 0.28571428567052554, 0.22222222722644708,
                         0.18181789193748318, 0.15385576387322734, 0.13314047381745284, 0.12001936763007304,
                         0.087965827448196727, 0.16172372614116680);  // degree 9, 2^-52.8
  }
}

/// Phi(-z) exp(z^2 / 2) (z + c) at s = (z - c) / (z + c), for 0 <= z <= reach; c is normal_tail_centre.
template <class M>
NORMACT_HD typename M::Number normal_tail_ratio(typename M::Number s) {
  if constexpr (M::kBits <= 11) {
    return polynomial<M>(s, 0.7444159226, -0.5655588779, 0.3154322519, -0.1161067749, 0.01733410519, 0.006731167097,
                         -0.002877416139, -7.599379357e-4);  // degree 7, 2^-21.2
  } else if constexpr (M::kBits <= 24) {
    return polynomial<M>(s, 0.7444160741, -0.5655617451, 0.3154250487, -0.1160530408, 0.01740637815, 0.006493115641,
                         -0.003175309676, -4.949427846e-4, 4.218965320e-4, 1.106882996e-4);  // degree 9, 2^-27.1
  } else {
    return polynomial<M>(s, 0.76919304975006296, -0.66538250289005678, 0.49530561596997730, -0.31353315667129620,
                         0.16502036617033742, -0.069118638706569991, 0.020795066800837666, -0.0029933767667057277,
                         -7.9786940800976881e-4, 5.4489903339076834e-4, -5.9375674791408787e-5, -4.9762654908961446e-5,
                         1.6681041216290326e-5, 3.9803846907340721e-6, -2.7689524603547360e-6, -3.3553715653715585e-7,
                         4.3288407304009989e-7, 4.0880427965250130e-8, -6.6011505877339067e-8, -8.2947605979724130e-9,
                         7.9421773997585235e-9, 1.4319596629244825e-9, -3.0290033782779430e-10);  // degree 22, 2^-57.2
  }
}

}  // namespace normact
