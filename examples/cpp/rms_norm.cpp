// SPDX-License-Identifier: Apache-2.0
// One step of a pre-norm transformer layer from C++: s = x + residual, y = rms_norm(s) * weight, and back. The gradient
// is checked against a difference quotient of the forward.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "normact/normact.h"

namespace {

constexpr int64_t kRows = 8, kCols = 64;
int64_t shape[] = {kRows, kCols}, cols[] = {kCols}, rows[] = {kRows};
const int64_t last_axis = -1;
const normact_norm_desc desc{sizeof desc, NORMACT_NORM_RMS, 1, &last_axis, 1e-6, 0.0, 0, 0, 0, 0, 0};

using Values = std::vector<double>;

// A view of host memory; the vector keeps owning it. Inputs are const to the library.
template <int ndim>
normact_tensor view(const Values& values, int64_t (&sizes)[ndim]) {
  return {
      const_cast<double*>(values.data()), NORMACT_DEVICE_CPU, 0, ndim, NORMACT_DTYPE_FLOAT, 64, 1, sizes, nullptr, 0};
}

void check(normact_status status) {
  if (status != NORMACT_OK) throw std::runtime_error(normact_last_error());
}

struct Forward {
  Values y = Values(kRows * kCols), sum = Values(kRows * kCols), rstd = Values(kRows);
};

Forward forward(const Values& x, const Values& residual, const Values& weight) {
  Forward out;
  const normact_tensor x_view = view(x, shape), residual_view = view(residual, shape), weight_view = view(weight, cols);
  const normact_tensor y_view = view(out.y, shape), sum_view = view(out.sum, shape), rstd_view = view(out.rstd, rows);
  normact_norm_forward_args args{};
  args.struct_size = sizeof args;
  args.x = &x_view;
  args.residual = &residual_view;
  args.weight = &weight_view;
  args.y = &y_view;
  args.residual_out = &sum_view;
  args.rstd = &rstd_view;
  check(normact_norm_forward(&desc, &args, nullptr));
  return out;
}

struct Gradients {
  Values dx = Values(kRows * kCols), dweight = Values(kCols);
};

Gradients backward(const Values& dy, const Forward& saved, const Values& weight) {
  Gradients out;
  const normact_tensor dy_view = view(dy, shape), sum_view = view(saved.sum, shape), weight_view = view(weight, cols);
  const normact_tensor rstd_view = view(saved.rstd, rows);
  const normact_tensor dx_view = view(out.dx, shape), dweight_view = view(out.dweight, cols);
  normact_norm_backward_args args{};
  args.struct_size = sizeof args;
  args.dy = &dy_view;
  args.x = &sum_view;
  args.weight = &weight_view;
  args.rstd = &rstd_view;
  args.dx = &dx_view;
  args.dweight = &dweight_view;

  normact_exec exec{};
  exec.struct_size = sizeof exec;
  check(normact_norm_backward_workspace(&desc, &args, nullptr, &exec.workspace_bytes));
  struct alignas(256) Block {
    unsigned char bytes[256];
  };
  std::vector<Block> workspace(exec.workspace_bytes / sizeof(Block) + 1);
  exec.workspace = workspace.data();
  check(normact_norm_backward(&desc, &args, &exec));
  return out;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Smooth made-up numbers.
Values wave(int64_t count, double frequency) {
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1 + std::sin(frequency * static_cast<double>(i));
  return values;
}

}  // namespace

int main() try {
  const Values x = wave(kRows * kCols, 0.7), residual = wave(kRows * kCols, 1.3), dy = wave(kRows * kCols, 0.3);
  const Values weight = wave(kCols, 0.2), direction = wave(kRows * kCols, 2.1);

  const Forward saved = forward(x, residual, weight);
  const Gradients gradients = backward(dy, saved, weight);
  std::printf("normact %s (%s)\n", normact_build_info("version"), normact_build_info("cpu_isa"));
  std::printf("row 0: x + residual = %.4f, rstd = %.4f, y = %.4f\n", saved.sum[0], saved.rstd[0], saved.y[0]);

  // How the loss sum(dy * y) changes when x moves along a direction: by the gradient, and by trying it.
  const double step = 1e-5;
  Values above = x, below = x;
  for (size_t i = 0; i < x.size(); ++i) {
    above[i] += step * direction[i];
    below[i] -= step * direction[i];
  }
  const double tried =
      (dot(dy, forward(above, residual, weight).y) - dot(dy, forward(below, residual, weight).y)) / (2 * step);
  const double computed = dot(gradients.dx, direction);
  // y is linear in the weight, so that the loss is the product of the weight and its gradient.
  const double loss = dot(dy, saved.y), linear = dot(gradients.dweight, weight);
  std::printf("slope along a direction of x: %.9f by the gradient, %.9f by difference\n", computed, tried);
  std::printf("loss: %.9f, weight times its gradient: %.9f\n", loss, linear);
  const bool good = std::fabs(computed - tried) < 1e-6 * std::fabs(tried) && std::fabs(loss - linear) < 1e-10 * loss;
  std::printf("%s\n", good ? "the gradients agree" : "the gradients DISAGREE");
  return good ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
