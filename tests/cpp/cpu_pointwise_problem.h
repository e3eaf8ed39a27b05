// SPDX-License-Identifier: Apache-2.0
// A whole pointwise problem with its tensors in any layout, the calls, and the reference from the standard library.
#pragma once

#include <initializer_list>
#include <numeric>

#include "activation_reference.h"
#include "core/pointwise.h"
#include "cpu_fixture.h"

namespace fixture {

using normact::View;

struct KindReference {
  activation_math::Expected<double> (*in_double)(double, const activation_math::Scalars&);
  activation_math::Expected<long double> (*in_long)(long double, const activation_math::Scalars&);
  bool from_output;
};

#define NORMACT_BOTH(kind) activation_math::kind<double>, activation_math::kind<long double>
/// By normact_activation_kind.
constexpr KindReference kReferences[] = {
    {NORMACT_BOTH(identity), true},      {NORMACT_BOTH(relu), true},       {NORMACT_BOTH(relu6), true},
    {NORMACT_BOTH(squared_relu), false}, {NORMACT_BOTH(leaky_relu), true}, {NORMACT_BOTH(elu), true},
    {NORMACT_BOTH(gelu), false},         {NORMACT_BOTH(gelu_tanh), false}, {NORMACT_BOTH(quick_gelu), false},
    {NORMACT_BOTH(silu), false},         {NORMACT_BOTH(sigmoid), true},    {NORMACT_BOTH(tanh), true},
    {NORMACT_BOTH(softplus), false},     {NORMACT_BOTH(mish), false},      {NORMACT_BOTH(hardswish), false},
    {NORMACT_BOTH(hardsigmoid), false}};
#undef NORMACT_BOTH
constexpr int kKinds = static_cast<int>(std::size(kReferences));

/// How tensors of the problem's shape lie in memory.
enum class Layout { contiguous, padded, stepped, transposed, broadcast, interleaved };
enum class Slope { from_x, from_y, from_mask };

struct Options {
  int kind = NORMACT_ACTIVATION_GELU;
  DType dtype = DType::f32;
  DType bias_dtype = DType::f32;
  std::vector<int64_t> shape = {1};
  int bias_dim = -1;
  Layout layout = Layout::contiguous;
  bool gated = false, mask = false, in_place = false;
  Slope slope = Slope::from_x;
  double limit = INFINITY, up_offset = 0;

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
  }
};

/// A tensor of any shape and strides; elements by their number in the index space.
class Array {
 public:
  Array() = default;
  Array(DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride, int64_t offset = 0)
      : shape_(shape), stride_(stride) {
    int64_t span = 1;
    for (size_t d = 0; d < shape.size(); ++d) span += (shape[d] - 1) * stride[d];
    memory_ = Tensor(dtype, 1, span, 0, 1, offset);
  }

  bool exists() const { return memory_.exists(); }
  double get(int64_t i) const { return memory_.get(0, offset(i)); }
  void set(int64_t i, double value) { memory_.set(0, offset(i), value); }
  Tensor& memory() { return memory_; }
  int64_t size() const {
    return std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
  }
  void fill(std::mt19937& random, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t i = 0; i < size(); ++i) set(i, normal(random));
  }
  bool same_bits(const Array& other) const { return memory_.same_bits(other.memory_); }

  View view(int64_t shift = 0) {
    View v{};
    if (!exists()) return v;
    v.dtype = memory_.dtype();
    v.data = static_cast<char*>(memory_.operand().data) + shift * size_of(v.dtype);
    std::copy(stride_.begin(), stride_.end(), v.stride);
    return v;
  }

 private:
  int64_t offset(int64_t i) const {
    return normact::strided_offset(i, static_cast<int>(shape_.size()), shape_.data(), stride_.data());
  }

  std::vector<int64_t> shape_, stride_;
  Tensor memory_;
};

/// Strides of a tensor of this shape; step: of the innermost dimension; pad: elements after each of its runs.
inline std::vector<int64_t> strides(const std::vector<int64_t>& shape, int64_t step = 1, int64_t pad = 0) {
  std::vector<int64_t> result(shape.size());
  int64_t stride = step;
  for (size_t d = shape.size(); d-- > 0;) {
    result[d] = stride;
    stride *= shape[d];
    if (d + 1 == shape.size()) stride += pad;
  }
  return result;
}

inline std::vector<int64_t> transposed(const std::vector<int64_t>& shape) {
  std::vector<int64_t> result(shape.size());
  int64_t stride = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    result[d] = stride;
    stride *= shape[d];
  }
  return result;
}

/// All tensors of a forward and a backward; the backward's y and mask are the forward's.
struct Problem {
  explicit Problem(const Options& options, unsigned seed = 1) : o(options) {
    std::mt19937 random(seed);
    for (Array* a : {&x, &up, &dy}) *a = tensor(true);
    for (Array* a : {&y, &dx, &dup}) *a = tensor(false);
    if (o.bias_dim >= 0) {
      for (Array* a : {&bias, &up_bias, &dbias, &dup_bias}) {
        std::vector<int64_t> stride(o.shape.size(), 0);
        stride[static_cast<size_t>(o.bias_dim)] = o.layout == Layout::stepped ? 2 : 1;
        std::vector<int64_t> shape(o.shape.size(), 1);
        shape[static_cast<size_t>(o.bias_dim)] = channels();
        *a = Array(o.bias_dtype, shape, stride);
      }
      bias.fill(random, 0.3, 1);
      up_bias.fill(random, 0, 1);
    }
    x.fill(random, 0, 2.5);
    up.fill(random, 0, 2);
    dy.fill(random, 0.1, 1);
    mask.assign(static_cast<size_t>(o.size() / 8 + 2), 0xab);
  }

  Array tensor(bool input) const {
    switch (o.layout) {
      case Layout::contiguous: return Array(o.dtype, o.shape, strides(o.shape));
      case Layout::padded: return Array(o.dtype, o.shape, strides(o.shape, 1, 5), 1);
      case Layout::stepped: return Array(o.dtype, o.shape, strides(o.shape, 2));
      case Layout::transposed: return Array(o.dtype, o.shape, input ? strides(o.shape) : transposed(o.shape));
      case Layout::interleaved: return Array(o.dtype, o.shape, strides(o.shape));
      case Layout::broadcast: break;
    }
    auto stride = strides(o.shape);
    if (input) stride[stride.size() > 1 ? 1 : 0] = 0;
    return Array(o.dtype, o.shape, stride);
  }

  int64_t channels() const { return o.shape[static_cast<size_t>(o.bias_dim)]; }
  int64_t channel(int64_t i) const {
    int64_t inner = 1;
    for (size_t d = static_cast<size_t>(o.bias_dim) + 1; d < o.shape.size(); ++d) inner *= o.shape[d];
    return i / inner % channels();
  }

  void describe(normact::PointwiseProblem& p) const {
    p.geometry = {o.size(), static_cast<int>(o.shape.size()), o.bias_dim, {}};
    std::copy(o.shape.begin(), o.shape.end(), p.geometry.shape);
    p.activation = {static_cast<normact_activation_kind>(o.kind), kAlpha, kBeta, kThreshold};
    p.dtype = o.dtype;
    p.gated = o.gated;
    p.limit = o.limit;
    p.up_offset = o.up_offset;
  }

  normact::PointwiseForward forward_problem() {
    normact::PointwiseForward p{};
    describe(p);
    p.x = x.view(), p.bias = bias.view();
    if (o.gated) p.up = up.view(), p.up_bias = up_bias.view();
    p.y = o.in_place ? p.x : y.view();
    p.mask = o.mask ? mask.data() : nullptr;
    return p;
  }

  normact::PointwiseBackward backward_problem() {
    normact::PointwiseBackward p{};
    describe(p);
    p.dy = dy.view(), p.bias = bias.view(), p.dbias = dbias.view();
    if (o.slope == Slope::from_x) p.x = x.view();
    if (o.slope == Slope::from_y) p.y = y.view();
    if (o.slope == Slope::from_mask) p.mask = mask.data();
    p.dx = o.in_place ? p.dy : dx.view();
    if (o.gated) {
      p.up = up.view(), p.up_bias = up_bias.view(), p.dup_bias = dup_bias.view();
      p.dup = o.in_place ? p.x : dup.view();
    }
    return p;
  }

  static void forward(const normact::PointwiseForward& p) { CHECK(normact::cpu::pointwise_forward(p).ok()); }
  static void backward(const normact::PointwiseBackward& p) {
    const size_t bytes = normact::cpu::pointwise_backward_workspace(p);
    std::vector<char> workspace(bytes + 64, '\x7f');  // as floats 3.4e38: a sum that is not cleared shows
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    CHECK(normact::cpu::pointwise_backward(p, workspace.data() + (64 - address % 64) % 64).ok());
  }

  static constexpr double kAlpha = 0.75, kBeta = 1.5, kThreshold = 6;

  Options o;
  Array x, up, bias, up_bias, y, dy, dx, dup, dbias, dup_bias;
  std::vector<uint8_t> mask;
};

/// Value and slope; fp64 problems need a better reference than double.
inline activation_math::Expected<long double> expected_at(const Options& o, double at) {
  const activation_math::Scalars scalars{Problem::kAlpha, Problem::kBeta, Problem::kThreshold};
  const KindReference& kind = kReferences[o.kind];
  if (o.dtype == DType::f64) return kind.in_long(at, scalars);
  const auto e = kind.in_double(at, scalars);
  return {e.value, e.slope};
}

}  // namespace fixture
