// SPDX-License-Identifier: Apache-2.0
// Every instruction set against a reference in long double: values, gradients, statistics.
#include "cpu_problem.h"

namespace {

using namespace fixture;

constexpr double unit_of(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

/// y may be wrong by its own rounding and by some roundings of the steps before.
void check_forward(Problem& p) {
  const double unit = unit_of(p.o.dtype);
  double worst = 0;
  for (int64_t r = 0; r < p.o.rows; ++r) {
    const RowReference e = reference(p, r);
    const auto mean = static_cast<double>(e.mean), rstd = static_cast<double>(e.rstd);
    if (p.o.kind == NormKind::layer) CHECK_NEAR(p.mean.get(r, 0), mean, 2 * unit * std::fabs(mean) + unit / rstd);
    CHECK_NEAR(p.rstd.get(r, 0), rstd, 5 * unit * rstd);
    for (int64_t c = 0; c < p.o.cols; ++c) {
      const double s = p.s().get(r, c);
      if (p.o.residual) CHECK_EQ(s, round_to(p.x.get(r, c) + p.residual.get(r, c), p.o.sums()));
      const double xhat = static_cast<double>((s - e.mean) * e.rstd);
      const double expected = xhat * p.weight_at(c) + p.bias_at(c);
      const double size = std::fabs(xhat) + (std::fabs(s) + std::fabs(mean)) * rstd;
      const double allowed = half_ulp(expected, p.o.dtype) * 1.001 +
                             unit * ((8 * size + 1) * std::fabs(p.weight_at(c)) + 2 * std::fabs(p.bias_at(c)));
      worst = std::fmax(worst, std::fabs(p.y.get(r, c) - expected) / allowed);
    }
  }
  CHECK(worst <= 1);
}

/// dx, dweight and dbias from the statistics that the forward gave.
void check_backward(Problem& p) {
  const double unit = unit_of(p.o.dtype);
  const auto cols = static_cast<double>(p.o.cols);
  std::vector<double> dweight(static_cast<size_t>(p.o.cols)), dbias(dweight), dweight_size(dweight),
      dbias_size(dweight);
  double worst = 0;
  for (int64_t r = 0; r < p.o.rows; ++r) {
    const double mean = p.mean_at(r), rstd = p.rstd.get(r, 0);
    long double c1 = 0, c2 = 0, c1_size = 0, c2_size = 0;
    for (int64_t c = 0; c < p.o.cols; ++c) {
      const double dy = p.dy.get(r, c), g = dy * p.weight_at(c), xhat = (p.s().get(r, c) - mean) * rstd;
      c1 += g, c2 += g * xhat, c1_size += std::fabs(g), c2_size += std::fabs(g * xhat);
      const auto i = static_cast<size_t>(c);
      dweight[i] += dy * xhat, dbias[i] += dy, dweight_size[i] += std::fabs(dy * xhat), dbias_size[i] += std::fabs(dy);
    }
    if (p.o.kind == NormKind::rms) c1 = c1_size = 0;
    for (int64_t c = 0; c < p.o.cols; ++c) {
      const double g = p.dy.get(r, c) * p.weight_at(c), xhat = (p.s().get(r, c) - mean) * rstd;
      const double extra = p.o.residual ? p.dresidual.get(r, c) : 0;
      const double expected =
          rstd * (g - static_cast<double>(c1) / cols - xhat * static_cast<double>(c2) / cols) + extra;
      const double size =
          std::fabs(g) + static_cast<double>(c1_size) / cols + std::fabs(xhat) * static_cast<double>(c2_size) / cols;
      const double computed = unit * (12 * rstd * size + 2 * std::fabs(extra));
      const auto check = [&](const Tensor& found, DType dtype) {
        const double allowed = half_ulp(expected, dtype) * 1.001 + computed;
        worst = std::fmax(worst, std::fabs(found.get(r, c) - expected) / allowed);
      };
      check(p.dx, p.o.dtype);
      if (p.o.mixed) check(p.daddend, DType::f32);
    }
  }
  for (int64_t c = 0; c < p.o.cols; ++c) {
    const auto i = static_cast<size_t>(c);
    const auto allowed = [&](double expected, double size, DType dtype) {
      return half_ulp(expected, dtype) * 1.001 + 12 * unit * size;
    };
    if (p.o.weight) {
      const double limit = allowed(dweight[i], dweight_size[i], p.o.weight_dtype);
      worst = std::fmax(worst, std::fabs(p.dweight.get(0, c) - dweight[i]) / limit);
    }
    if (p.o.bias) {
      const double limit = allowed(dbias[i], dbias_size[i], p.o.bias_dtype);
      worst = std::fmax(worst, std::fabs(p.dbias.get(0, c) - dbias[i]) / limit);
    }
  }
  CHECK(worst <= 1);
}

void check_both(const Options& options) {
  const int before = check::failures;
  Problem p(options);
  p.forward();
  check_forward(p);
  p.backward();
  check_backward(p);
  if (check::failures != before) {
    std::cerr << "  " << name_of(options.dtype) << (options.kind == NormKind::rms ? " rms " : " layer ") << options.rows
              << "x" << options.cols << "\n";
  }
}

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

TEST(every_size_matches_the_reference) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      for (NormKind kind : {NormKind::layer, NormKind::rms}) {
        for (int64_t cols :
             {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 100, 127, 255, 257, 1000, 1025, 4097}) {
          Options o;
          o.kind = kind, o.dtype = dtype, o.rows = 7, o.cols = cols;
          o.weight_dtype = o.bias_dtype = dtype;
          check_both(o);
        }
      }
    }
  });
}

TEST(every_option_matches_the_reference) {
  for_each_isa([] {
    for (DType dtype : kDTypes) {
      const DType other = dtype == DType::f64 ? DType::f64 : DType::f32;
      for (int bits = 0; bits < 64; ++bits) {
        Options o;
        o.dtype = dtype, o.rows = 19, o.cols = 77;
        o.kind = bits & 1 ? NormKind::rms : NormKind::layer;
        o.weight = bits & 2, o.bias = bits & 4, o.residual = bits & 8;
        o.weight_dtype = bits & 16 ? dtype : other, o.bias_dtype = bits & 16 ? other : dtype;
        o.weight_offset = o.weight ? 1 : 0;
        o.place.col_stride = bits & 32 ? 3 : 1;
        check_both(o);
      }
    }
  });
}

TEST(float32_sums_beside_16_bits_match_the_reference) {
  for_each_isa([] {
    for (DType dtype : {DType::f16, DType::bf16}) {
      for (int64_t cols : {1, 5, 16, 33, 64, 77, 300, 1025}) {
        for (int bits = 0; bits < 32; ++bits) {
          Options o;
          o.dtype = dtype, o.mixed = o.residual = true, o.rows = 19, o.cols = cols;
          o.kind = bits & 1 ? NormKind::rms : NormKind::layer;
          o.weight = bits & 2, o.bias = bits & 4;
          o.weight_dtype = bits & 8 ? dtype : DType::f32, o.bias_dtype = bits & 8 ? DType::f32 : dtype;
          o.weight_offset = o.weight ? 1 : 0;
          o.place.col_stride = bits & 16 ? 3 : 1;
          check_both(o);
        }
      }
      for (int threads : {1, 3}) {  // shared rows, streamed outputs, flushed sums
        normact::cpu::set_num_threads(threads);
        for (auto [rows, cols] : {std::pair<int64_t, int64_t>{2, 70001}, {40, 9000}, {3000, 3}, {300, 20000}}) {
          Options o;
          o.dtype = dtype, o.mixed = o.residual = true, o.rows = rows, o.cols = cols;
          check_both(o);
        }
      }
    }
  });
}

TEST(long_rows_and_many_rows_match_the_reference) {
  for_each_isa([] {
    for (int threads : {1, 3}) {
      normact::cpu::set_num_threads(threads);
      for (DType dtype : {DType::f32, DType::bf16}) {
        for (NormKind kind : {NormKind::layer, NormKind::rms}) {
          for (auto [rows, cols] : {std::pair<int64_t, int64_t>{2, 70001}, {40, 9000}, {3000, 3}, {300, 2100}}) {
            Options o;
            o.kind = kind, o.dtype = dtype, o.rows = rows, o.cols = cols, o.residual = true;
            o.weight_dtype = o.bias_dtype = dtype;
            check_both(o);
          }
        }
      }
    }
  });
}

TEST(statistics_keep_their_digits_far_from_zero) {
  for_each_isa([] {
    for (double mean : {0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0}) {
      for (int64_t cols : {33, 768, 4096, 65536, 300000}) {
        Options o;
        o.rows = 2, o.cols = cols, o.mean = mean, o.eps = 0;
        Problem p(o);
        p.forward();
        for (int64_t r = 0; r < o.rows; ++r) {
          const RowReference e = reference(p, r);
          CHECK_NEAR(p.rstd.get(r, 0) / static_cast<double>(e.rstd), 1, 3e-7);
          CHECK_NEAR(p.mean.get(r, 0), static_cast<double>(e.mean), half_ulp(mean, DType::f32) * 1.1 + 3e-8);
        }
      }
    }
  });
}

TEST(sums_over_many_rows_keep_their_digits) {
  for_each_isa([] {
    Options o;
    o.rows = 200000, o.cols = 5;
    Problem p(o);
    for (int64_t r = 0; r < o.rows; ++r) {
      for (int64_t c = 0; c < o.cols; ++c) p.dy.set(r, c, 0.1);  // the same rounding every time, if sums were plain
    }
    p.forward();
    p.backward();
    const double dy = p.dy.get(0, 0), expected = dy * static_cast<double>(o.rows);
    for (int64_t c = 0; c < o.cols; ++c) CHECK_NEAR(p.dbias.get(0, c) / expected, 1, 2e-6);
  });
}

TEST(no_rows_give_zero_gradients) {
  for_each_isa([] {
    Options o;
    o.cols = 37, o.bias_dtype = DType::f32;
    Problem p(o);
    auto problem = p.backward_problem();
    p.dweight.set(0, 5, 3), p.dbias.set(0, 6, 3);
    problem.geometry.rows = problem.geometry.row_shape[0] = 0;
    Problem::backward(problem);
    for (int64_t c = 0; c < o.cols; ++c) {
      CHECK_EQ(p.dweight.get(0, c), 0.0);
      CHECK_EQ(p.dbias.get(0, c), 0.0);
    }
  });
}

TEST(not_a_number_stays_in_its_row) {
  for_each_isa([] {
    for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      Options o;
      o.rows = 9, o.cols = 130, o.dtype = DType::bf16;
      Problem p(o);
      p.x.set(4, 129, bad);
      p.forward();
      for (int64_t r = 0; r < o.rows; ++r) {
        CHECK_EQ(std::isnan(p.y.get(r, 129)), r == 4);
        CHECK_EQ(std::isnan(p.rstd.get(r, 0)), r == 4);
      }
      CHECK(std::isnan(bad) ? std::isnan(p.mean.get(4, 0)) : std::isinf(p.mean.get(4, 0)));
    }
  });
}

TEST(an_unknown_instruction_set_is_an_error) {
  in_child("avx1024", [] {
    Options o;
    Problem p(o);
    const normact::Status status = normact::cpu::row_norm_forward(p.forward_problem());
    CHECK_EQ(status.code(), NORMACT_INVALID_ARGUMENT);
    CHECK(status.message().find("avx1024") != std::string::npos);
    CHECK(std::string(normact::cpu::isa_name()).find("none") == 0);
  });
}

}  // namespace
