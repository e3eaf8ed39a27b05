// SPDX-License-Identifier: Apache-2.0
// The activations in double or long double through the standard library, written from their definitions and not from
// cpp/math: only what would overflow or cancel is written otherwise.
#pragma once

#include <cmath>

#include "activation_math_table.h"

namespace activation_math {

template <class R>
struct Expected {
  R value;
  R slope;
};

template <class R>
R logistic(R x) {
  return 1 / (1 + std::exp(-x));
}

/// x F(x) for a logistic F(x) = S(t), t' = dt.
template <class R>
Expected<R> logistic_unit(R x, R t, R dt) {
  return {x * logistic(t), logistic(t) + x * dt * logistic(t) * logistic(-t)};
}

template <class R>
Expected<R> identity(R x, const Scalars&) {
  return {x, 1};
}
template <class R>
Expected<R> relu(R x, const Scalars&) {
  return {std::fmax(x, R(0)), R(x > 0)};
}
template <class R>
Expected<R> relu6(R x, const Scalars&) {
  return {std::fmin(std::fmax(x, R(0)), R(6)), R(x > 0 && x < 6)};
}
template <class R>
Expected<R> squared_relu(R x, const Scalars&) {
  return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
}
template <class R>
Expected<R> leaky_relu(R x, const Scalars& s) {
  return {x > 0 ? x : R(s.alpha) * x, x > 0 ? 1 : R(s.alpha)};
}
template <class R>
Expected<R> elu(R x, const Scalars& s) {
  return {x > 0 ? x : R(s.alpha) * std::expm1(x), x > 0 ? 1 : R(s.alpha) * std::exp(x)};
}
template <class R>
Expected<R> gelu(R x, const Scalars&) {
  const R pi = std::acos(R(-1));
  const R phi = std::erfc(-x / std::sqrt(R(2))) / 2;
  return {x * phi, phi + x * std::exp(-x * x / 2) / std::sqrt(2 * pi)};
}
template <class R>
Expected<R> gelu_tanh(R x, const Scalars&) {
  const R factor = 2 * std::sqrt(2 / std::acos(R(-1))), cubic = R(44715) / 1000000;
  return logistic_unit<R>(x, factor * (x + cubic * x * x * x), factor * (1 + 3 * cubic * x * x));
}
template <class R>
Expected<R> quick_gelu(R x, const Scalars&) {
  const R factor = R(1702) / 1000;
  return logistic_unit<R>(x, factor * x, factor);
}
template <class R>
Expected<R> silu(R x, const Scalars&) {
  return logistic_unit<R>(x, x, 1);
}
template <class R>
Expected<R> sigmoid(R x, const Scalars&) {
  return {logistic(x), logistic(x) * logistic(-x)};
}
template <class R>
Expected<R> tanh(R x, const Scalars&) {
  const R cosh = std::cosh(x);
  return {std::tanh(x), 1 / cosh / cosh};
}
template <class R>
Expected<R> softplus(R x, const Scalars& s) {
  const R t = R(s.beta) * x;
  if (t > R(s.threshold)) return {x, 1};
  return {(std::fmax(t, R(0)) + std::log1p(std::exp(-std::fabs(t)))) / R(s.beta), logistic(t)};
}
template <class R>
Expected<R> mish(R x, const Scalars& s) {
  const R inner = softplus<R>(x, {s.alpha, 1, 1e30}).value, cosh = std::cosh(inner);
  return {x * std::tanh(inner), std::tanh(inner) + x * logistic(x) / cosh / cosh};
}
template <class R>
Expected<R> hardswish(R x, const Scalars&) {
  return {x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6, x <= -3 ? 0 : x < 3 ? x / 3 + R(0.5) : 1};
}
template <class R>
Expected<R> hardsigmoid(R x, const Scalars&) {
  return {x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6, x > -3 && x < 3 ? R(1) / 6 : 0};
}

}  // namespace activation_math
