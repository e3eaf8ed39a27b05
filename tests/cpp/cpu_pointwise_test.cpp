// SPDX-License-Identifier: Apache-2.0
// Activations on every instruction set: values, gradients and the sums of gradients, in every layout.
#include "cpu_pointwise_problem.h"

namespace {

using namespace fixture;

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

/// What the formulas promise for results of this dtype (cpp/math), and what one rounding of an accumulator costs.
double unit_of(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : 0x1p-20; }

/// The errors that cpp/math states stay below 8 units; slopes that cross 0 have 3 units of 1 near it.
constexpr double kUnits = 10, kUnitsNearZero = 4;

double in_accumulator(double value, DType dtype) {
  return dtype == DType::f64 ? value : static_cast<double>(static_cast<float>(value));
}

/// What one element of a problem should give.
struct Element {
  long double y, dx, dup;
  double y_unit, dx_unit, dup_unit;  // sizes that the allowed errors are in proportion to
};

Element element(const Problem& p, int64_t i, double x_value, double up_value, double dy) {
  const Options& o = p.o;
  const int64_t c = o.bias_dim >= 0 ? p.channel(i) : 0;
  const bool biased = o.bias_dim >= 0 && o.slope == Slope::from_x;
  const double s = in_accumulator(x_value + (biased ? p.bias.get(c) : 0), o.dtype);
  const auto act = expected_at(o, o.gated ? std::fmin(s, o.limit) : s);
  const auto value = static_cast<double>(act.value), slope = static_cast<double>(act.slope);
  const double slope_unit = kUnits * std::fabs(slope) + kUnitsNearZero;
  if (!o.gated) {
    return {act.value, dy * act.slope, 0, kUnits * std::fabs(value), std::fabs(dy) * slope_unit, 0};
  }
  const double u = in_accumulator(up_value + (biased ? p.up_bias.get(c) : 0), o.dtype);
  const double factor = std::fmin(std::fmax(u, -o.limit), o.limit) + o.up_offset;
  const double size = std::fabs(factor) + 1;
  Element e{};
  e.y = act.value * factor;
  e.y_unit = kUnits * std::fabs(value) * size;
  if (!(s > o.limit)) e.dx = dy * factor * act.slope;
  e.dx_unit = std::fabs(dy) * size * slope_unit;
  if (!(std::fabs(u) > o.limit)) e.dup = dy * act.value;
  e.dup_unit = kUnits * std::fabs(dy * value);
  return e;
}

double excess(double found, long double expected, double size, DType dtype) {
  const double allowed = half_ulp(static_cast<double>(expected), dtype) * 1.01 + unit_of(dtype) * size;
  const auto error = static_cast<double>(std::fabs(found - expected));
  return error <= allowed ? 0 : error / allowed;
}

std::vector<double> values(const Array& a) {
  std::vector<double> result;
  for (int64_t i = 0; a.exists() && i < a.size(); ++i) result.push_back(a.get(i));
  return result;
}

void check_mask(const Problem& p, const std::vector<double>& x) {
  for (int64_t i = 0; i < p.o.size() + (8 - p.o.size() % 8) % 8; ++i) {
    const auto at = static_cast<size_t>(i);
    const double bias = p.o.bias_dim >= 0 ? p.bias.get(p.channel(i)) : 0;
    const bool expected = i < p.o.size() && x[at] + bias > 0;
    CHECK_EQ((p.mask[at / 8] >> (at % 8)) & 1, expected ? 1 : 0);
  }
  CHECK_EQ(p.mask[static_cast<size_t>((p.o.size() + 7) / 8)], 0xab);
}

/// The sums over the other dimensions, of gradients before rounding.
void check_sums(const Problem& p, const Array& found, const std::vector<Element>& e, long double Element::* gradient,
                double Element::* unit) {
  const auto channels = static_cast<size_t>(p.channels());
  std::vector<long double> sum(channels), size(channels), units(channels);
  for (int64_t i = 0; i < p.o.size(); ++i) {
    const auto c = static_cast<size_t>(p.channel(i)), at = static_cast<size_t>(i);
    sum[c] += e[at].*gradient;
    size[c] += std::fabs(e[at].*gradient);
    units[c] += e[at].*unit;
  }
  // Blocks of 64 additions, few levels: each costs at most 64 roundings of a number no larger than size.
  const double rounding = p.o.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  for (size_t c = 0; c < channels; ++c) {
    const double allowed = half_ulp(static_cast<double>(sum[c]), p.o.bias_dtype) * 1.01 +
                           64 * rounding * static_cast<double>(size[c]) +
                           unit_of(p.o.dtype) * static_cast<double>(units[c]);
    CHECK_NEAR(found.get(static_cast<int64_t>(c)), static_cast<double>(sum[c]), allowed);
  }
}

void check_both(const Options& o) {
  const int before = check::failures;
  Problem p(o);
  const std::vector<double> x = values(p.x), up = values(p.up), dy = values(p.dy);
  Problem::forward(p.forward_problem());
  double worst = 0;
  const Array& y = o.in_place ? p.x : p.y;
  if (o.slope == Slope::from_x || o.bias_dim < 0) {
    for (int64_t i = 0; i < o.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      const Element e = element(p, i, x[at], up[at], 0);
      worst = std::fmax(worst, excess(y.get(i), e.y, e.y_unit, o.dtype));
    }
  }
  CHECK_EQ(worst, 0.0);
  if (o.mask) check_mask(p, x);
  for (int64_t i = 0; o.in_place && i < o.size(); ++i) p.x.set(i, x[static_cast<size_t>(i)]);

  std::vector<Element> elements;
  if (o.slope == Slope::from_x) {
    for (int64_t i = 0; i < o.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      elements.push_back(element(p, i, x[at], up[at], dy[at]));
    }
  } else {  // from what y or the mask say of the input
    for (int64_t i = 0; i < o.size(); ++i) {
      const double found = y.get(i), d = dy[static_cast<size_t>(i)];
      long double slope = 0;
      if (o.slope == Slope::from_mask) slope = p.mask[static_cast<size_t>(i / 8)] >> (i % 8) & 1;
      switch (o.slope == Slope::from_mask ? -1 : o.kind) {
        case NORMACT_ACTIVATION_IDENTITY: slope = 1; break;
        case NORMACT_ACTIVATION_RELU: slope = found > 0; break;
        case NORMACT_ACTIVATION_RELU6: slope = found > 0 && found < 6; break;
        case NORMACT_ACTIVATION_LEAKY_RELU: slope = found > 0 ? 1 : Problem::kAlpha; break;
        case NORMACT_ACTIVATION_ELU: slope = found > 0 ? 1 : found + Problem::kAlpha; break;
        case NORMACT_ACTIVATION_SIGMOID: slope = found * (1 - static_cast<long double>(found)); break;
        case NORMACT_ACTIVATION_TANH: slope = 1 - static_cast<long double>(found) * found; break;
        default: break;
      }
      const double size = std::fabs(d) * kUnitsNearZero;
      elements.push_back({0, d * slope, 0, 0, size, 0});
    }
  }
  Problem::backward(p.backward_problem());
  const Array &dx = o.in_place ? p.dy : p.dx, &dup = o.in_place ? p.x : p.dup;
  for (int64_t i = 0; i < o.size(); ++i) {
    const Element& e = elements[static_cast<size_t>(i)];
    worst = std::fmax(worst, excess(dx.get(i), e.dx, e.dx_unit, o.dtype));
    if (o.gated) worst = std::fmax(worst, excess(dup.get(i), e.dup, e.dup_unit, o.dtype));
  }
  CHECK_EQ(worst, 0.0);
  if (o.bias_dim >= 0) {
    check_sums(p, p.dbias, elements, &Element::dx, &Element::dx_unit);
    if (o.gated) check_sums(p, p.dup_bias, elements, &Element::dup, &Element::dup_unit);
  }
  if (check::failures != before) {
    std::cerr << "  kind " << o.kind << " " << name_of(o.dtype) << " layout " << int(o.layout) << " bias_dim "
              << o.bias_dim << " gated " << o.gated << " slope " << int(o.slope) << " in place " << o.in_place
              << " shape";
    for (int64_t n : o.shape) std::cerr << " " << n;
    std::cerr << "\n";
  }
}

TEST(every_kind_and_dtype_in_every_direction) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      for (int kind = 0; kind < kKinds; ++kind) {
        for (int64_t size : {1, 7, 8, 9, 63, 1000}) {
          Options o;
          o.kind = kind, o.dtype = o.bias_dtype = dtype, o.shape = {size};
          check_both(o);
          o.gated = true;
          check_both(o);
          o.gated = false;
          if (!kReferences[kind].from_output) continue;
          o.slope = Slope::from_y;
          check_both(o);
        }
      }
    }
  });
}

TEST(every_layout_and_bias) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      const DType other = dtype == DType::f64 ? DType::f64 : DType::f32;
      for (Layout layout :
           {Layout::contiguous, Layout::padded, Layout::stepped, Layout::transposed, Layout::broadcast}) {
        for (int bias_dim : {-1, 0, 1, 2}) {
          for (const auto& shape : {std::vector<int64_t>{3, 5, 7}, {2, 4, 150}, {70, 3, 4}, {5, 9, 49}, {1, 2, 1100}}) {
            Options o;
            o.dtype = dtype, o.bias_dtype = bias_dim == 1 ? other : dtype, o.layout = layout, o.bias_dim = bias_dim;
            o.shape = shape, o.kind = NORMACT_ACTIVATION_SILU;
            check_both(o);
            o.gated = true, o.limit = 1.5, o.up_offset = 1;
            check_both(o);
          }
        }
      }
    }
  });
}

TEST(outputs_may_be_inputs) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      for (Layout layout : {Layout::contiguous, Layout::padded, Layout::stepped}) {
        for (int bias_dim : {-1, 1}) {
          for (const auto& shape : {std::vector<int64_t>{3, 7}, {7, 1100}}) {
            for (bool gated : {false, true}) {
              Options o;
              o.dtype = o.bias_dtype = dtype, o.layout = layout, o.bias_dim = bias_dim, o.shape = shape;
              o.in_place = true, o.gated = gated;
              check_both(o);
            }
          }
        }
      }
    }
  });
}

TEST(masks_follow_the_index_space) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      for (Layout layout : {Layout::contiguous, Layout::padded, Layout::stepped, Layout::transposed}) {
        for (int bias_dim : {-1, 0, 1, 2}) {
          for (const auto& shape : {std::vector<int64_t>{3, 5, 7}, {2, 4, 150}, {1, 3, 1104}, {1, 1, 9}, {5, 9, 49}}) {
            for (bool in_place : {false, true}) {
              Options o;
              o.kind = NORMACT_ACTIVATION_RELU, o.dtype = o.bias_dtype = dtype, o.layout = layout, o.shape = shape;
              o.bias_dim = bias_dim, o.mask = true;
              o.in_place = in_place && layout != Layout::transposed;
              check_both(o);
              o.slope = Slope::from_mask;
              check_both(o);
            }
          }
        }
      }
    }
  });
}

/// gate and up in turn in one tensor, and so their gradients.
void check_interleaved(DType dtype, const std::vector<int64_t>& shape, bool in_place) {
  Options o;
  o.dtype = dtype, o.shape = shape, o.gated = true, o.kind = NORMACT_ACTIVATION_SILU;
  Problem apart(o), together(o);
  std::vector<int64_t> packed_shape = shape;
  packed_shape.back() *= 2;
  Array packed(dtype, packed_shape, strides(packed_shape)), gradients(dtype, packed_shape, strides(packed_shape));
  for (int64_t i = 0; i < o.size(); ++i) {
    packed.set(2 * i, apart.x.get(i));
    packed.set(2 * i + 1, apart.up.get(i));
  }
  Problem::forward(apart.forward_problem());
  Problem::backward(apart.backward_problem());
  const auto interleave = [&](View& gate, View& up, Array& from) {
    gate = from.view(), up = from.view(1);
    for (View* view : {&gate, &up}) {
      const auto stride = strides(shape, 2);
      std::copy(stride.begin(), stride.end(), view->stride);
    }
  };
  auto forward = together.forward_problem();
  interleave(forward.x, forward.up, packed);
  Problem::forward(forward);
  CHECK(together.y.same_bits(apart.y));
  auto backward = together.backward_problem();
  interleave(backward.x, backward.up, packed);
  Array& target = in_place ? packed : gradients;
  interleave(backward.dx, backward.dup, target);
  Problem::backward(backward);
  for (int64_t i = 0; i < o.size(); ++i) {
    CHECK_EQ(target.get(2 * i), apart.dx.get(i));
    CHECK_EQ(target.get(2 * i + 1), apart.dup.get(i));
  }
}

TEST(interleaved_gives_the_bits_of_separate) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      for (bool in_place : {false, true}) {
        for (int64_t size : {1, 2, 15, 16, 17, 31, 33, 64, 100, 1000, 3001}) check_interleaved(dtype, {size}, in_place);
        check_interleaved(dtype, {3, 50}, in_place);
      }
    }
  });
}

TEST(threads_move_no_bits) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const auto& shape :
           {std::vector<int64_t>{100003}, {300, 250}, {40, 37, 49}, {13000, 5}, {3, 25000}, {1, 70000}, {4, 7, 3136}}) {
        for (int bias_dim = -1; bias_dim < static_cast<int>(shape.size()); ++bias_dim) {
          for (int variant = 0; variant < 3; ++variant) {
            Options o;
            o.dtype = dtype, o.bias_dtype = dtype, o.shape = shape, o.bias_dim = bias_dim, o.gated = variant == 1;
            o.mask = variant == 2, o.kind = variant == 2 ? NORMACT_ACTIVATION_RELU : NORMACT_ACTIVATION_GELU_TANH;
            if (bias_dim == 0 && shape.size() == 1) continue;
            Problem one(o), four(o);
            for (auto [threads, p] : {std::pair{1, &one}, {4, &four}}) {
              normact::cpu::set_num_threads(threads);
              Problem::forward(p->forward_problem());
              Problem::backward(p->backward_problem());
            }
            CHECK(one.y.same_bits(four.y));
            CHECK(one.dx.same_bits(four.dx));
            if (o.mask) CHECK(one.mask == four.mask);
            if (o.gated) CHECK(one.dup.same_bits(four.dup));
            if (bias_dim >= 0) CHECK(one.dbias.same_bits(four.dbias));
            if (bias_dim >= 0 && o.gated) CHECK(one.dup_bias.same_bits(four.dup_bias));
          }
        }
      }
    }
  });
}

TEST(sums_of_many_keep_their_digits) {
  for_each_isa([] {
    for (auto [shape, bias_dim] : {std::pair<std::vector<int64_t>, int>{{100000, 3}, 1},
                                   {{3, 100000}, 0},
                                   {{500, 3, 200}, 1},
                                   {{2000, 3, 20}, 1},
                                   {{4000, 30}, 1},
                                   {{1, 300000}, 0}}) {
      Options o;
      o.shape = shape, o.bias_dim = bias_dim, o.kind = NORMACT_ACTIVATION_IDENTITY;
      Problem p(o);
      for (int64_t i = 0; i < o.size(); ++i) p.dy.set(i, 0.1);  // the same rounding every time, if sums were plain
      Problem::backward(p.backward_problem());
      const double expected = p.dy.get(0) * static_cast<double>(o.size() / p.channels());
      for (int64_t c = 0; c < p.channels(); ++c) CHECK_NEAR(p.dbias.get(c) / expected, 1, 2e-6);
    }
  });
}

TEST(no_elements_give_zero_gradients) {
  for_each_isa([] {
    Options o;
    o.shape = {4, 37}, o.bias_dim = 1, o.gated = true;
    Problem p(o);
    auto problem = p.backward_problem();
    p.dbias.set(5, 3), p.dup_bias.set(6, 3);
    problem.geometry.size = problem.geometry.shape[0] = 0;
    Problem::backward(problem);
    for (int64_t c = 0; c < 37; ++c) {
      CHECK_EQ(p.dbias.get(c), 0.0);
      CHECK_EQ(p.dup_bias.get(c), 0.0);
    }
  });
}

}  // namespace
