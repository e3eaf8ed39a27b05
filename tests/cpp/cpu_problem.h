// SPDX-License-Identifier: Apache-2.0
// A whole norm problem with its tensors, the call, and the reference in long double.
#pragma once

#include "cpu_fixture.h"

namespace fixture {

using normact::NormKind;

/// Where tensors lie.
struct Placement {
  int64_t col_stride = 1;
  int64_t offset = 0;  // elements from a 64-byte boundary
};

struct Options {
  NormKind kind = NormKind::layer;
  DType dtype = DType::f32;
  bool mixed = false;  // sums are float32 beside a dtype of 16 bits
  int64_t rows = 1, cols = 1;
  bool weight = true, bias = true, residual = false;
  DType weight_dtype = DType::f32, bias_dtype = DType::f32;
  double weight_offset = 0, eps = 1e-5, mean = 0, deviation = 1;
  normact_activation_kind activation = NORMACT_ACTIVATION_IDENTITY;
  Placement place = {};

  DType sums() const { return mixed ? DType::f32 : dtype; }
};

inline normact::RowProblem base_problem(const Options& o) {
  normact::RowProblem p{};
  p.geometry = {o.rows, o.cols, 1, 1, {o.rows}, {o.cols}};
  p.kind = o.kind;
  p.dtype = o.sums();
  p.io_dtype = o.dtype;
  p.contiguous = o.place.col_stride == 1;
  p.eps = o.eps;
  p.weight_offset = o.weight_offset;
  p.activation = {o.activation, 0.25, 1, 20};
  return p;
}

/// All tensors of a forward and a backward. The forward's outputs are inputs of the backward.
struct Problem {
  explicit Problem(const Options& options, unsigned seed = 1) : o(options) {
    std::mt19937 random(seed);
    const DType statistics = accumulator_of(o.dtype);
    for (Tensor* t : {&x, &y, &dy, &dx}) *t = matrix(o.dtype);
    if (o.mixed) daddend = matrix(DType::f32);
    mean = Tensor(statistics, o.rows, 1, 1);
    rstd = Tensor(statistics, o.rows, 1, 1);
    if (o.residual) {
      for (Tensor* t : {&residual, &residual_out, &dresidual}) *t = matrix(o.sums());
      residual.fill(random, 0, o.deviation);
      dresidual.fill(random, 0, 1);
    }
    if (o.weight) {
      for (Tensor* t : {&weight, &dweight}) *t = vector(o.weight_dtype);
      weight.fill(random, 1, 0.5);
    }
    if (o.bias) {
      for (Tensor* t : {&bias, &dbias}) *t = vector(o.bias_dtype);
      bias.fill(random, 0, 1);
    }
    x.fill(random, o.mean, o.deviation);
    dy.fill(random, 0.1, 1);
  }

  Tensor matrix(DType dtype) const {
    return Tensor(dtype, o.rows, o.cols, o.cols * o.place.col_stride + 3, o.place.col_stride, o.place.offset);
  }
  Tensor vector(DType dtype) const { return Tensor(dtype, 1, o.cols, 0, o.place.col_stride, o.place.offset); }

  normact::RowForward forward_problem() {
    normact::RowForward p{};
    static_cast<normact::RowProblem&>(p) = base_problem(o);
    p.x = x.operand(), p.residual = residual.operand(), p.weight = weight.operand(), p.bias = bias.operand();
    p.y = y.operand(), p.residual_out = residual_out.operand(), p.rstd = rstd.operand();
    if (o.kind == NormKind::layer) p.mean = mean.operand();
    return p;
  }

  normact::RowBackward backward_problem() {
    normact::RowBackward p{};
    static_cast<normact::RowProblem&>(p) = base_problem(o);
    p.dy = dy.operand(), p.x = s().operand(), p.weight = weight.operand(), p.dresidual = dresidual.operand();
    p.rstd = rstd.operand();
    if (o.kind == NormKind::layer) p.mean = mean.operand();
    if (!is_identity(p.activation)) p.bias = bias.operand();
    p.dx = dx.operand(), p.dweight = dweight.operand(), p.dbias = dbias.operand();
    p.daddend = daddend.operand();
    return p;
  }

  void forward() { forward(forward_problem()); }
  static void forward(const normact::RowForward& p) { CHECK(normact::cpu::row_norm_forward(p).ok()); }

  void backward() { backward(backward_problem()); }
  static void backward(const normact::RowBackward& p) {
    const size_t bytes = normact::cpu::row_norm_backward_workspace(p);
    std::vector<char> workspace(bytes + 64, '\x7f');  // as floats 3.4e38: a sum that is not cleared shows
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    CHECK(normact::cpu::row_norm_backward(p, workspace.data() + (64 - address % 64) % 64).ok());
  }

  /// The input of the norm.
  Tensor& s() { return o.residual ? residual_out : x; }
  double weight_at(int64_t col) const { return o.weight ? o.weight_offset + weight.get(0, col) : 1; }
  double bias_at(int64_t col) const { return o.bias ? bias.get(0, col) : 0; }
  double mean_at(int64_t row) const { return o.kind == NormKind::layer ? mean.get(row, 0) : 0; }

  Options o;
  Tensor x, residual, weight, bias, y, residual_out, mean, rstd;
  Tensor dy, dresidual, dx, dweight, dbias, daddend;
};

/// Mean and 1/std of a row in long double.
struct RowReference {
  long double mean = 0, rstd = 0;
};

inline RowReference reference(Problem& p, int64_t row) {
  RowReference result;
  const auto cols = static_cast<long double>(p.o.cols);
  long double squares = 0;
  if (p.o.kind == NormKind::layer) {
    for (int64_t c = 0; c < p.o.cols; ++c) result.mean += p.s().get(row, c);
    result.mean /= cols;
  }
  for (int64_t c = 0; c < p.o.cols; ++c) {
    const long double d = p.s().get(row, c) - result.mean;
    squares += d * d;
  }
  result.rstd = 1 / std::sqrt(squares / cols + static_cast<long double>(p.o.eps));
  return result;
}

}  // namespace fixture
