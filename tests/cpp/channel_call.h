// SPDX-License-Identifier: Apache-2.0
// A batch, group or instance norm with its tensors in any layout, called through the public functions, and the
// reference in double, which shares nothing with the library.
#pragma once

#include <algorithm>
#include <array>

#include "activation_reference.h"
#include "cpu_fixture.h"
#include "normact/normact.h"

namespace channel {

using fixture::Tensor;
using normact::DType;

/// Where the channels are among the axes, and how memory lies.
enum class Layout {
  nchw,           // (n, c, h, w)
  nhwc,           // (n, h, w, c)
  channels_last,  // (n, c, h, w) in the memory of nhwc
  middle,         // (n, h, c, w)
  first,          // (c, n, h, w): samples are places
  apart,          // (n, c, h, w) with gaps everywhere
};
constexpr Layout kLayouts[] = {Layout::nchw,   Layout::nhwc,  Layout::channels_last,
                               Layout::middle, Layout::first, Layout::apart};

enum class Slope { again, output, mask };

struct Options {
  Layout layout = Layout::nchw;
  DType dtype = DType::f32, parameter_dtype = DType::f32;
  int64_t n = 2, c = 3, h = 4, w = 5;
  int64_t groups = 0;  // 0: batch norm
  bool training = true, weight = true, bias = true, addend = false, running = false, cumulative = false;
  normact_activation_kind activation = NORMACT_ACTIVATION_IDENTITY;
  Slope slope = Slope::again;
  bool mask_goes_along = true;  // its bits are in the order of channels last where x is so in memory
  double mean = 0.5, deviation = 2, eps = 1e-5;
};

/// A normact_tensor with its own shape and strides, over a fixture's memory.
struct View {
  Tensor memory;
  std::vector<int64_t> shape, strides;
  normact_tensor raw{};

  void make(DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> steps = {}) {
    shape = std::move(sizes);
    strides = std::move(steps);
    if (strides.empty()) {
      strides.resize(shape.size());
      int64_t step = 1;
      for (size_t d = shape.size(); d-- > 0; step *= shape[d]) strides[d] = step;
    }
    int64_t span = 1;
    for (size_t d = 0; d < shape.size(); ++d) span += std::max<int64_t>(shape[d] - 1, 0) * strides[d];
    memory = Tensor(dtype, 1, span, 0);
    const bool brain = dtype == DType::bf16;
    raw = {memory.operand().data,
           NORMACT_DEVICE_CPU,
           0,
           static_cast<int32_t>(shape.size()),
           static_cast<uint8_t>(brain ? NORMACT_DTYPE_BFLOAT : NORMACT_DTYPE_FLOAT),
           static_cast<uint8_t>(8 * size_of(dtype)),
           1,
           shape.data(),
           strides.data(),
           0};
  }
  const normact_tensor* pointer() const { return memory.exists() ? &raw : nullptr; }
  double get(int64_t i) const { return memory.get(0, i * (strides.empty() ? 1 : strides.back())); }
};

inline activation_math::Expected<double> activated(normact_activation_kind kind, double h) {
  const activation_math::Scalars scalars{0.25, 1, 20};
  switch (kind) {
    case NORMACT_ACTIVATION_RELU: return activation_math::relu<double>(h, scalars);
    case NORMACT_ACTIVATION_SILU: return activation_math::silu<double>(h, scalars);
    case NORMACT_ACTIVATION_LEAKY_RELU: return activation_math::leaky_relu<double>(h, scalars);
    case NORMACT_ACTIVATION_SIGMOID: return activation_math::sigmoid<double>(h, scalars);
    default: return {h, 1};
  }
}

/// The slope as a function of the output.
inline double slope_from_output(normact_activation_kind kind, double y) {
  switch (kind) {
    case NORMACT_ACTIVATION_RELU: return y > 0;
    case NORMACT_ACTIVATION_LEAKY_RELU: return y > 0 ? 1 : 0.25;
    case NORMACT_ACTIVATION_SIGMOID: return y * (1 - y);
    default: return 1;
  }
}

class Call {
 public:
  explicit Call(const Options& options, unsigned seed = 1) : o(options) {
    std::mt19937 random(seed);
    const DType exact = accumulator_of(o.dtype);
    for (View* v : {&x, &y, &dy, &dx}) element(*v);
    x.memory.fill(random, o.mean, o.deviation);
    dy.memory.fill(random, 0.1, 1);
    if (o.addend) {
      element(addend), element(daddend);
      addend.memory.fill(random, 0, 1);
    }
    if (o.weight) vector(weight, o.parameter_dtype, random, 1), vector(dweight, o.parameter_dtype, random, 0);
    if (o.bias) vector(bias, o.parameter_dtype, random, 0), vector(dbias, o.parameter_dtype, random, 0);
    if (o.running) {
      vector(running_mean, exact, random, 0);
      vector(running_var, exact, random, 3);
      for (int64_t i = 0; i < o.c; ++i) running_var.memory.set(0, i, std::fabs(running_var.get(i)) + 0.5);
      for (int64_t i = 0; i < o.c; ++i) old_mean.push_back(running_mean.get(i)), old_var.push_back(running_var.get(i));
    }
    const std::vector<int64_t> sets = o.groups > 0 ? std::vector<int64_t>{o.n, o.groups} : std::vector<int64_t>{o.c};
    mean.make(exact, sets);
    rstd.make(exact, sets);
    mask.assign(static_cast<size_t>((size() + 7) / 8), 0xff);
    mask_shape[0] = static_cast<int64_t>(mask.size());
    raw_mask = {mask.data(),
                NORMACT_DEVICE_CPU,
                0,
                mask_goes_along() ? 2 : 1,
                NORMACT_DTYPE_UINT,
                8,
                1,
                mask_shape,
                nullptr,
                0};
    raw_batches = {&batches, NORMACT_DEVICE_CPU, 0, 0, NORMACT_DTYPE_INT, 64, 1, nullptr, nullptr, 0};
  }

  int64_t size() const { return o.n * o.c * o.h * o.w; }
  int64_t per_set() const { return o.groups > 0 ? o.c / o.groups * o.h * o.w : o.n * o.h * o.w; }
  int64_t set_of(int64_t n, int64_t c) const { return o.groups > 0 ? n * o.groups + c / (o.c / o.groups) : c; }
  int64_t sets() const { return o.groups > 0 ? o.n * o.groups : o.c; }

  int64_t at(const View& v, int64_t n, int64_t c, int64_t h, int64_t w) const {
    const auto [an, ac, ah, aw] = axes();
    return n * v.strides[an] + c * v.strides[ac] + h * v.strides[ah] + w * v.strides[aw];
  }
  double value(const View& v, int64_t n, int64_t c, int64_t h, int64_t w) const {
    return v.memory.get(0, at(v, n, c, h, w));
  }
  /// Whether its bits are in the order of channels last, as x is in memory.
  bool mask_goes_along() const { return o.layout == Layout::channels_last && o.mask_goes_along; }
  bool bit(int64_t n, int64_t c, int64_t h, int64_t w) const {
    const auto [an, ac, ah, aw] = axes();
    int64_t index[4], i = 0;
    index[an] = n, index[ac] = c, index[ah] = h, index[aw] = w;
    for (size_t d = 0; d < 4; ++d) i = i * x.shape[d] + index[d];
    if (mask_goes_along()) i = ((n * x.shape[ah] + h) * x.shape[aw] + w) * x.shape[ac] + c;
    return mask[static_cast<size_t>(i / 8)] >> (i % 8) & 1;
  }

  int32_t channel_axis() const { return static_cast<int32_t>(axes()[1]); }
  normact_batch_norm_desc batch_desc() const {
    return {sizeof(normact_batch_norm_desc),
            channel_axis(),
            o.training,
            o.eps,
            0.25,
            o.cumulative,
            o.activation,
            0.25,
            1,
            20};
  }
  normact_group_norm_desc group_desc() const {
    return {sizeof(normact_group_norm_desc), channel_axis(), o.activation, o.groups, o.eps, 0.25, 0.25, 1, 20};
  }
  const normact_tensor* mask_pointer() const { return o.slope == Slope::mask ? &raw_mask : nullptr; }
  const normact_tensor* y_pointer() const { return o.slope == Slope::output ? &y.raw : nullptr; }
  const normact_tensor* batches_pointer() const { return o.running ? &raw_batches : nullptr; }

  void forward() {
    if (o.groups > 0) {
      const normact_group_norm_desc desc = group_desc();
      const normact_group_norm_forward_args args{
          sizeof args,           x.pointer(), weight.pointer(), bias.pointer(), running_mean.pointer(),
          running_var.pointer(), y.pointer(), mean.pointer(),   rstd.pointer()};
      return check(normact_group_norm_forward(&desc, &args, nullptr));
    }
    const normact_batch_norm_desc desc = batch_desc();
    const normact_batch_norm_forward_args args{sizeof args,           x.pointer(),       weight.pointer(),
                                               bias.pointer(),        addend.pointer(),  running_mean.pointer(),
                                               running_var.pointer(), batches_pointer(), y.pointer(),
                                               mean.pointer(),        rstd.pointer(),    mask_pointer()};
    check(normact_batch_norm_forward(&desc, &args, nullptr));
  }

  void backward() {
    if (o.groups > 0) {
      const normact_group_norm_desc desc = group_desc();
      const normact_group_norm_backward_args args{sizeof args,       dy.pointer(),   x.pointer(),    weight.pointer(),
                                                  bias.pointer(),    mean.pointer(), rstd.pointer(), dx.pointer(),
                                                  dweight.pointer(), dbias.pointer()};
      return check(normact_group_norm_backward(&desc, &args, nullptr));
    }
    const normact_batch_norm_desc desc = batch_desc();
    const normact_batch_norm_backward_args args{sizeof args,     dy.pointer(),     x.pointer(),    weight.pointer(),
                                                bias.pointer(),  addend.pointer(), mean.pointer(), rstd.pointer(),
                                                y_pointer(),     mask_pointer(),   dx.pointer(),   dweight.pointer(),
                                                dbias.pointer(), daddend.pointer()};
    check(normact_batch_norm_backward(&desc, &args, nullptr));
  }

  static void check(normact_status status) {
    if (status != NORMACT_OK) check::fail(__FILE__, __LINE__, normact_last_error());
  }

  /// body(n, c, h, w) for all elements.
  template <class Body>
  void for_all(Body body) const {
    for (int64_t n = 0; n < o.n; ++n) {
      for (int64_t c = 0; c < o.c; ++c) {
        for (int64_t h = 0; h < o.h; ++h) {
          for (int64_t w = 0; w < o.w; ++w) body(n, c, h, w);
        }
      }
    }
  }

  Options o;
  View x, y, dy, dx, addend, daddend, weight, bias, dweight, dbias, mean, rstd, running_mean, running_var;
  std::vector<double> old_mean, old_var;
  std::vector<uint8_t> mask;
  int64_t mask_shape[2] = {0, 1}, batches = 4;
  normact_tensor raw_mask{}, raw_batches{};

 private:
  /// Which axis of x is n, c, h, w.
  std::array<size_t, 4> axes() const {
    switch (o.layout) {
      case Layout::nhwc: return {0, 3, 1, 2};
      case Layout::middle: return {0, 2, 1, 3};
      case Layout::first: return {1, 0, 2, 3};
      default: return {0, 1, 2, 3};
    }
  }
  void element(View& v) const {
    const auto [an, ac, ah, aw] = axes();
    std::vector<int64_t> shape(4), strides;
    shape[an] = o.n, shape[ac] = o.c, shape[ah] = o.h, shape[aw] = o.w;
    if (o.layout == Layout::channels_last) strides = {o.h * o.w * o.c, 1, o.w * o.c, o.c};
    if (o.layout == Layout::apart) {
      strides = {o.c * (o.h * (2 * o.w + 1) + 3) + 5, o.h * (2 * o.w + 1) + 3, 2 * o.w + 1, 2};
    }
    v.make(o.dtype, shape, strides);
  }
  void vector(View& v, DType dtype, std::mt19937& random, double middle) const {
    v.make(dtype, {o.c});
    v.memory.fill(random, middle, 0.5);
  }
};

}  // namespace channel
