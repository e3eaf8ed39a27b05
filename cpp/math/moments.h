// SPDX-License-Identifier: Apache-2.0
// Mean and centred second moment of a set, and how those of two disjoint sets merge. Never E[x^2] - E[x]^2: that loses
// every digit once mean/std reaches 1e4 (fp32).
#pragma once

#include "math/hd.h"

namespace normact {

/// count values with this mean; m2 is the sum of (x - mean)^2.
template <class N>
struct Moments {
  N mean;
  N m2;
  N count;
};

/// Chan, Golub, LeVeque 1979, eq. 2.1. A set of count 0 is neutral on either side.
template <class N>
NORMACT_HD Moments<N> merge(const Moments<N>& a, const Moments<N>& b) {
  const N delta = b.mean - a.mean, count = a.count + b.count;
  const N share = count > N(0) ? b.count / count : N(0);
  return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share, count};
}

/// Of `count` values, share = 1 / count, from the sums of their deviations from `centre` and of the squares of these.
/// Of use where the centre is near the mean: the squares exceed m2 by count * (mean - centre)^2 (Chan, Golub, LeVeque
/// 1983, eq. 1.7).
template <class N>
NORMACT_HD Moments<N> moments_about(N centre, N deviations, N squares, N count, N share) {
  const N shift = deviations * share;
  return {centre + shift, squares - deviations * shift, count};
}

/// Whether that has lost digits to a centre more than two standard deviations from the mean. Not of NaN.
template <class N>
NORMACT_HD bool is_far(const Moments<N>& a, N centre) {
  const N apart = a.mean - centre;
  return a.count * apart * apart > N(4) * a.m2;
}

/// Brings the sums of `count` deviations from a centre, and of their squares, to one that lies `apart` below it.
template <class N>
NORMACT_HD void move_centre(N count, N apart, N* deviations, N* squares) {
  *squares += apart * (N(2) * *deviations + count * apart);
  *deviations += count * apart;
}

/// Sum of squares of a set about another centre than its own mean.
template <class N>
NORMACT_HD N recentred(const Moments<N>& a, N centre) {
  const N shift = a.mean - centre;
  return a.m2 + a.count * shift * shift;
}

/// rstd of a set with this mean of (centred) squares.
template <class N, class Rsqrt>
NORMACT_HD N reciprocal_std(N mean_square, N eps, Rsqrt rsqrt) {
  return rsqrt(mean_square + eps);
}

}  // namespace normact
