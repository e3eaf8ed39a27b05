// SPDX-License-Identifier: Apache-2.0
#include "math/moments.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

namespace {

using normact::merge;
using normact::Moments;

// Two passes in long double.
template <class N>
Moments<long double> reference(const std::vector<N>& values) {
  long double sum = 0, squares = 0;
  for (N value : values) sum += value;
  const long double mean = sum / static_cast<long double>(values.size());
  for (N value : values) squares += (value - mean) * (value - mean);
  return {mean, squares, static_cast<long double>(values.size())};
}

template <class N>
std::vector<N> normal_values(int count, double mean, double deviation) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<N> values(static_cast<size_t>(count));
  for (N& value : values) value = static_cast<N>(normal(random));
  return values;
}

// Merges a binary tree of single values, as the kernels do.
template <class N>
Moments<N> tree(const std::vector<N>& values, size_t first, size_t count) {
  if (count == 0) return {0, 0, 0};
  if (count == 1) return {values[first], 0, 1};
  const size_t half = count / 2;
  return merge(tree(values, first, half), tree(values, first + half, count - half));
}

TEST(merging_agrees_with_two_passes) {
  for (double ratio : {0.0, 1.0, 1e2, 1e4}) {  // mean / deviation
    for (int count : {1, 2, 3, 100, 4097}) {
      const auto values = normal_values<float>(count, ratio, 1.0);
      const auto expected = reference(values);
      const Moments<float> found = tree(values, 0, values.size());
      const double mean = static_cast<double>(expected.mean), m2 = static_cast<double>(expected.m2);
      CHECK_EQ(found.count, static_cast<float>(count));
      // Some roundings of the mean at each of log2(count) levels; the deviations inherit its absolute error.
      const double ulp = std::ldexp(std::fmax(std::fabs(mean), 1.0), -23);
      CHECK_NEAR(static_cast<double>(found.mean), mean, 13 * ulp);
      CHECK_NEAR(static_cast<double>(found.m2), m2, 1e-5 * m2 + 13 * ulp * std::sqrt(m2 * count));
    }
  }
}

TEST(an_empty_set_is_neutral) {
  const Moments<double> some{3.0, 5.0, 4.0}, none{0.0, 0.0, 0.0};
  for (const auto& merged : {merge(some, none), merge(none, some)}) {
    CHECK_EQ(merged.mean, 3.0);
    CHECK_EQ(merged.m2, 5.0);
    CHECK_EQ(merged.count, 4.0);
  }
  CHECK_EQ(merge(none, none).count, 0.0);
  CHECK_EQ(merge(none, none).mean, 0.0);
}

TEST(nan_propagates) {
  const Moments<float> some{1, 2, 3}, bad{NAN, 0, 1};
  CHECK(std::isnan(merge(some, bad).mean) && std::isnan(merge(some, bad).m2));
  CHECK(std::isnan(merge(bad, some).mean) && std::isnan(merge(bad, some).m2));
}

TEST(reciprocal_std_adds_eps) {
  const auto rsqrt = [](double v) { return 1 / std::sqrt(v); };
  CHECK_NEAR(normact::reciprocal_std(4.0, 0.25, rsqrt), 1 / std::sqrt(4.25), 1e-16);
  CHECK(std::isinf(normact::reciprocal_std(0.0, 0.0, rsqrt)));
}

}  // namespace
