// SPDX-License-Identifier: Apache-2.0
// The gradient formula against central differences of the forward formulas, both from math/.
#include "math/normalize.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "math/moments.h"

namespace {

using Row = std::vector<double>;

struct Norm {
  bool centers;
  double eps, weight_offset;
  Row weight, bias;

  static double rsqrt(double v) { return 1 / std::sqrt(v); }

  void statistics(const Row& x, double* mean, double* rstd) const {
    const auto n = static_cast<double>(x.size());
    double sum = 0, squares = 0;
    for (double v : x) sum += v;
    *mean = centers ? sum / n : 0;
    for (double v : x) squares += (v - *mean) * (v - *mean);
    *rstd = normact::reciprocal_std(squares / n, eps, rsqrt);
  }

  double gain(size_t i) const { return normact::effective_weight(weight[i], weight_offset); }

  // The scalar sum(dy * y), whose gradient the backward formula gives.
  double loss(const Row& x, const Row& dy) const {
    double mean, rstd, total = 0;
    statistics(x, &mean, &rstd);
    for (size_t i = 0; i < x.size(); ++i) {
      total += dy[i] * normact::affine(normact::normalized(x[i], mean, rstd), gain(i), bias[i]);
    }
    return total;
  }

  Row gradient(const Row& x, const Row& dy) const {
    double mean, rstd, c1 = 0, c2 = 0;
    statistics(x, &mean, &rstd);
    const auto n = static_cast<double>(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double g = dy[i] * gain(i);
      if (centers) c1 += rstd * g / n;
      c2 += rstd * g * normact::normalized(x[i], mean, rstd) / n;
    }
    Row dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      dx[i] = normact::input_gradient(dy[i] * gain(i), normact::normalized(x[i], mean, rstd), rstd, c1, c2);
    }
    return dx;
  }
};

Row uniform(std::mt19937& random, size_t count) {
  std::uniform_real_distribution<double> distribution(-2.0, 2.0);
  Row values(count);
  for (double& value : values) value = distribution(random);
  return values;
}

TEST(gradient_agrees_with_differences) {
  std::mt19937 random(11);
  for (bool centers : {true, false}) {
    for (size_t cols : {size_t{1}, size_t{2}, size_t{5}, size_t{31}}) {
      const Norm norm{centers, 1e-3, 1.0, uniform(random, cols), uniform(random, cols)};
      const Row x = uniform(random, cols), dy = uniform(random, cols);
      const Row dx = norm.gradient(x, dy);
      const double step = 1e-5;
      for (size_t i = 0; i < cols; ++i) {
        Row above = x, below = x;
        above[i] += step;
        below[i] -= step;
        CHECK_NEAR(dx[i], (norm.loss(above, dy) - norm.loss(below, dy)) / (2 * step), 1e-6);
      }
    }
  }
}

TEST(affine_normalizes) {
  CHECK_EQ(normact::normalized(5.0, 3.0, 0.5), 1.0);
  CHECK_EQ(normact::affine(2.0, 3.0, 1.0), 7.0);
  CHECK_EQ(normact::effective_weight(0.25, 1.0), 1.25);
}

}  // namespace
