// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm on the CPU against a reference in double: layouts, dtypes, options, sizes.
#include "channel_call.h"
#include "core/message.h"

namespace {

using namespace channel;

double unit(DType dtype) { return dtype == DType::f64 ? 0x1p-52 : 0x1p-23; }  // of the accumulator

struct Reference {
  explicit Reference(const Call& call) : mean(sets(call)), var(sets(call)), rstd(sets(call)) {
    const double share = 1 / double(call.per_set());
    call.for_all([&](auto... i) { mean[set(call, i...)] += call.value(call.x, i...) * share; });
    call.for_all([&](auto... i) {
      const double d = call.value(call.x, i...) - mean[set(call, i...)];
      var[set(call, i...)] += d * d * share;
    });
    if (!call.o.training) {
      for (size_t c = 0; c < mean.size(); ++c) mean[c] = call.old_mean[c], var[c] = call.old_var[c];
    }
    for (size_t s = 0; s < mean.size(); ++s) rstd[s] = 1 / std::sqrt(var[s] + call.o.eps);
  }
  static size_t sets(const Call& call) { return static_cast<size_t>(call.sets()); }
  static size_t set(const Call& call, int64_t n, int64_t c, int64_t, int64_t) {
    return static_cast<size_t>(call.set_of(n, c));
  }
  double xhat(const Call& call, int64_t n, int64_t c, int64_t h, int64_t w) const {
    const size_t s = set(call, n, c, h, w);
    return (call.value(call.x, n, c, h, w) - mean[s]) * rstd[s];
  }
  /// The activation's argument.
  double h(const Call& call, int64_t n, int64_t c, int64_t h, int64_t w) const {
    const double scaled = xhat(call, n, c, h, w) * (call.o.weight ? call.weight.get(c) : 1);
    return scaled + (call.o.bias ? call.bias.get(c) : 0) + (call.o.addend ? call.value(call.addend, n, c, h, w) : 0);
  }
  std::vector<double> mean, var, rstd;
};

void check_forward(const Call& call, const Reference& r) {
  const Options& o = call.o;
  const double u = unit(o.dtype), far = 1 + std::fabs(o.mean) / o.deviation;
  for (size_t s = 0; s < r.mean.size(); ++s) {
    const auto i = static_cast<int64_t>(s);
    CHECK_NEAR(call.mean.get(i), r.mean[s], u * std::fabs(r.mean[s]) + 4 * u * o.deviation);
    CHECK_NEAR(call.rstd.get(i), r.rstd[s], 4 * u * r.rstd[s]);
  }
  call.for_all([&](auto... i) {
    const double h = r.h(call, i...), expected = activated(o.activation, h).value;
    const double size = 4 + std::fabs(h) + std::fabs(r.xhat(call, i...)) * 2;
    CHECK_NEAR(call.value(call.y, i...), expected, fixture::half_ulp(expected, o.dtype) * 1.01 + 12 * u * size * far);
    if (o.slope == Slope::mask && std::fabs(h) > 12 * u * size * far) CHECK_EQ(call.bit(i...), h > 0);
  });
}

void check_running(const Call& call, const Reference& r) {
  const Options& o = call.o;
  if (!o.running) return;
  const double f = o.cumulative ? 1.0 / 5 : 0.25;
  for (int64_t c = 0; c < o.c; ++c) {
    const auto i = static_cast<size_t>(c);
    double mean = 0, var = 0;
    const auto samples = static_cast<size_t>(o.groups > 0 ? o.n : 1);
    const double n = double(call.per_set());
    for (size_t s = 0; s < samples; ++s) {
      const size_t set = o.groups > 0 ? s * static_cast<size_t>(o.c) + i : i;
      mean += r.mean[set] / double(samples);
      var += r.var[set] * n / (n - 1) / double(samples);
    }
    const double u = 8 * unit(o.dtype) * (1 + std::fabs(o.mean) / o.deviation);
    const double new_mean = o.training ? (1 - f) * call.old_mean[i] + f * mean : call.old_mean[i];
    const double new_var = o.training ? (1 - f) * call.old_var[i] + f * var : call.old_var[i];
    CHECK_NEAR(call.running_mean.get(c), new_mean, u * (1 + std::fabs(new_mean)));
    CHECK_NEAR(call.running_var.get(c), new_var, u * (1 + new_var));
  }
  CHECK_EQ(call.batches, o.training && o.groups == 0 ? 5 : 4);
}

void check_backward(const Call& call, const Reference& r) {
  const Options& o = call.o;
  const double u = unit(o.dtype), n = double(call.per_set()), far = 1 + std::fabs(o.mean) / o.deviation;
  std::vector<double> g(r.mean.size()), g_xhat(r.mean.size()), dweight(size_t(o.c)), dbias(size_t(o.c)),
      magnitude(size_t(o.c));
  const auto dh = [&](int64_t a, int64_t c, int64_t h, int64_t w) {
    double slope = activated(o.activation, r.h(call, a, c, h, w)).slope;
    if (o.slope == Slope::output) slope = slope_from_output(o.activation, call.value(call.y, a, c, h, w));
    if (o.slope == Slope::mask) slope = call.bit(a, c, h, w);
    return slope * call.value(call.dy, a, c, h, w);
  };
  call.for_all([&](int64_t a, int64_t c, int64_t h, int64_t w) {
    const double d = dh(a, c, h, w), xhat = r.xhat(call, a, c, h, w), weight = o.weight ? call.weight.get(c) : 1;
    const auto s = static_cast<size_t>(call.set_of(a, c));
    g[s] += d * weight / n;
    g_xhat[s] += d * weight * xhat / n;
    dweight[size_t(c)] += d * xhat;
    dbias[size_t(c)] += d;
    magnitude[size_t(c)] += std::fabs(d) * (1 + std::fabs(xhat));
  });
  for (int64_t c = 0; c < o.c; ++c) {
    const double slack = 16 * u * far * (1 + magnitude[size_t(c)]);
    const auto check = [&](const View& v, double expected) {
      if (v.pointer()) CHECK_NEAR(v.get(c), expected, 1.01 * fixture::half_ulp(expected, o.parameter_dtype) + slack);
    };
    check(call.dweight, dweight[size_t(c)]);
    check(call.dbias, dbias[size_t(c)]);
  }
  call.for_all([&](int64_t a, int64_t c, int64_t h, int64_t w) {
    const auto s = static_cast<size_t>(call.set_of(a, c));
    const double d = dh(a, c, h, w), weight = o.weight ? call.weight.get(c) : 1, xhat = r.xhat(call, a, c, h, w);
    const double centred = o.training ? d * weight - g[s] - xhat * g_xhat[s] : d * weight;
    const double expected = r.rstd[s] * centred;
    const double size = r.rstd[s] * (1 + 4 * std::fabs(d)) * (1 + std::fabs(xhat)) * (1 + std::fabs(weight));
    CHECK_NEAR(call.value(call.dx, a, c, h, w), expected,
               1.01 * fixture::half_ulp(expected, o.dtype) + 24 * u * size * far);
    if (o.addend) {
      CHECK_NEAR(call.value(call.daddend, a, c, h, w), d,
                 1.01 * fixture::half_ulp(d, o.dtype) + 24 * u * (1 + std::fabs(d)) * far);
    }
  });
}

void check(const Options& o, unsigned seed = 1) {
  const int before = check::failures;
  Call call(o, seed);
  const Reference reference(call);
  call.forward();
  check_forward(call, reference);
  check_running(call, reference);
  call.backward();
  check_backward(call, reference);
  if (check::failures == before) return;
  std::cerr << "  with layout " << int(o.layout) << " dtype " << name_of(o.dtype) << " shape " << o.n << " " << o.c
            << " " << o.h << " " << o.w << " groups " << o.groups << " activation " << o.activation << " slope "
            << int(o.slope) << " training " << o.training << "\n";
  std::exit(1);
}

template <class Body>
void for_dtypes(Body body) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Options o;
    o.dtype = dtype;
    o.parameter_dtype = accumulator_of(dtype);
    body(o);
  }
}

void layouts_and_dtypes() {
  for_dtypes([](Options o) {
    for (const Layout layout : kLayouts) {
      o.layout = layout;
      for (const int64_t groups : {0, 1, 3, 6}) {
        if (groups > 0 && layout == Layout::first) continue;
        o.groups = groups;
        o.n = 3, o.c = 6, o.h = 5, o.w = 7;
        check(o);
        o.activation = NORMACT_ACTIVATION_SILU;
        check(o, 2);
        o.activation = NORMACT_ACTIVATION_IDENTITY;
        o.c = 66, o.h = 3, o.w = 1;
        check(o, 3);
      }
    }
  });
}

void options() {
  for (const Layout layout : kLayouts) {
    Options o;
    o.layout = layout;
    o.n = 3, o.c = 17, o.h = 4, o.w = 9;
    for (const bool training : {true, false}) {
      o.training = training;
      o.running = true;
      for (const Slope slope : {Slope::again, Slope::output, Slope::mask}) {
        o.slope = slope;
        o.activation = NORMACT_ACTIVATION_RELU;
        for (const bool some : {false, true}) {
          o.addend = some;
          o.weight = some, o.bias = !some;
          o.cumulative = some;
          check(o);
        }
      }
      o.slope = Slope::output;
      for (const auto kind : {NORMACT_ACTIVATION_SIGMOID, NORMACT_ACTIVATION_LEAKY_RELU, NORMACT_ACTIVATION_IDENTITY}) {
        o.activation = kind;
        check(o);
      }
    }
    if (layout == Layout::first) continue;
    o = {};
    o.layout = layout;
    o.c = 10, o.groups = 10, o.running = true;
    check(o);
    o.parameter_dtype = o.dtype = DType::bf16;
    o.groups = 5, o.running = false;
    check(o);
  }
}

// Blocks, chunks and strips of more than one, and their rests.
void sizes() {
  for (const Layout layout : {Layout::nchw, Layout::nhwc, Layout::channels_last, Layout::apart}) {
    const int64_t shapes[][4] = {{1, 2, 1, 20000}, {300, 2, 1, 50}, {2, 2100, 3, 3}, {700, 3, 1, 1},
                                 {2, 40, 33, 31},  {9000, 1, 1, 1}, {4, 1, 64, 64},  {1, 64, 1, 5}};
    for (const auto& s : shapes) {
      Options o;
      o.layout = layout;
      o.n = s[0], o.c = s[1], o.h = s[2], o.w = s[3];
      o.activation = NORMACT_ACTIVATION_RELU;
      o.slope = Slope::mask;
      check(o);
      o.mask_goes_along = false;
      if (layout == Layout::channels_last) check(o);
      o.slope = Slope::again;
      for (const int64_t groups : {int64_t{1}, o.c}) {
        o.groups = groups;
        if (o.n < 100 && o.h * o.w > 1) check(o);
      }
    }
  }
}

void far_mean() {
  for (const Layout layout : kLayouts) {
    Options o;
    o.layout = layout;
    o.mean = 1e4, o.deviation = 1;
    o.n = 4, o.c = 12, o.h = 16, o.w = 15;
    check(o);
    if (layout == Layout::first) continue;
    for (const int64_t groups : {1, 4, 12}) {
      o.groups = groups;
      check(o);
    }
  }
}

TEST(every_layout_and_dtype) { fixture::for_each_isa(layouts_and_dtypes); }
TEST(every_option) { fixture::for_each_isa(options); }
TEST(blocks_and_their_rests) { fixture::for_each_isa(sizes); }
TEST(mean_far_from_zero) { fixture::for_each_isa(far_mean); }

}  // namespace
