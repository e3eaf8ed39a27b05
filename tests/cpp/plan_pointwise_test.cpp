// SPDX-License-Identifier: Apache-2.0
// Which kernel runs for which layout, and how bias gradients are divided: tested here without a GPU.
#include "core/plan_pointwise.h"

#include <initializer_list>

#include "check.h"

namespace {

using normact::BiasAccess;
using normact::BiasPlan;
using normact::BiasSum;
using normact::DeviceInfo;
using normact::DType;
using normact::PointwiseAccess;
using normact::PointwiseBackward;
using normact::PointwiseForward;
using normact::PointwiseGeometry;
using normact::PointwisePlan;
using normact::View;

constexpr DeviceInfo kHopper{90, 132, 0, {}, 0};
alignas(16) char memory[64];

using Sizes = std::initializer_list<int64_t>;

PointwiseGeometry geometry(Sizes shape, int bias_dim = -1) {
  PointwiseGeometry g{};
  g.size = 1;
  g.bias_dim = bias_dim;
  for (const int64_t n : shape) {
    g.shape[g.ndim++] = n;
    g.size *= n;
  }
  return g;
}

View view(DType dtype, Sizes strides, int offset = 0) {
  View v{};
  v.data = memory + offset;
  v.dtype = dtype;
  int d = 0;
  for (const int64_t stride : strides) v.stride[d++] = stride;
  return v;
}

PointwiseForward forward(DType dtype, const PointwiseGeometry& g, Sizes strides, int offset = 0) {
  PointwiseForward p{};
  p.geometry = g;
  p.dtype = dtype;
  p.x = p.y = view(dtype, strides, offset);
  return p;
}

PointwiseBackward backward(DType dtype, const PointwiseGeometry& g, Sizes strides) {
  PointwiseBackward p{};
  p.geometry = g;
  p.dtype = dtype;
  p.dy = p.x = p.dx = view(dtype, strides);
  p.dbias.data = memory;
  p.dbias.dtype = dtype;
  p.dbias.stride[g.bias_dim] = 1;
  return p;
}

PointwiseAccess access_with_bias(const PointwiseGeometry& g, Sizes strides, BiasAccess* bias = nullptr) {
  PointwiseForward p = forward(DType::bf16, g, strides);
  p.bias.data = memory;
  p.bias.dtype = DType::bf16;
  p.bias.stride[g.bias_dim] = 1;
  const PointwisePlan plan = plan_pointwise(p);
  if (bias != nullptr) *bias = plan.bias;
  return plan.access;
}

}  // namespace

TEST(access_without_a_bias) {
  CHECK(plan_pointwise(forward(DType::bf16, geometry({1000}), {1})).access == PointwiseAccess::flat);
  CHECK(plan_pointwise(forward(DType::f32, geometry({7}), {1})).access == PointwiseAccess::flat);  // a tail alone
  CHECK(plan_pointwise(forward(DType::bf16, geometry({1000}), {1}, 2)).access == PointwiseAccess::rows);
  CHECK(plan_pointwise(forward(DType::f64, geometry({1000}), {1})).access == PointwiseAccess::rows);
  CHECK(plan_pointwise(forward(DType::bf16, geometry({10, 64}), {128, 1})).access == PointwiseAccess::tile);
  CHECK(plan_pointwise(forward(DType::bf16, geometry({10, 64}), {129, 1})).access == PointwiseAccess::rows);
  CHECK(plan_pointwise(forward(DType::bf16, geometry({10, 63}), {64, 1})).access == PointwiseAccess::rows);
  CHECK(plan_pointwise(forward(DType::bf16, geometry({3, 10, 64}), {4000, 128, 1})).access == PointwiseAccess::tile);
  CHECK(plan_pointwise(forward(DType::bf16, geometry({70000, 10, 64}), {4000, 128, 1})).access ==
        PointwiseAccess::rows);  // more layers than a grid has
  PointwiseForward interleaved = forward(DType::bf16, geometry({10, 64}), {128, 2});
  CHECK(plan_pointwise(interleaved).access == PointwiseAccess::rows);
}

/// The last two dimensions are divided so that a block's threads find elements.
TEST(rows_of_single_elements) {
  const auto plan = [](std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides, DType dtype) {
    return plan_pointwise(forward(dtype, geometry(shape), strides));
  };
  PointwisePlan p = plan({100000}, {2}, DType::f32);
  CHECK(p.access == PointwiseAccess::rows && p.lanes == 256 && !p.down);
  p = plan({60000, 56}, {57, 1}, DType::bf16);  // one row of eight for each of four lines
  CHECK(p.access == PointwiseAccess::rows && p.lanes == 64 && p.down);
  p = plan({4, 3000}, {3001, 1}, DType::bf16);
  CHECK(p.access == PointwiseAccess::rows && p.lanes == 128 && !p.down);
  p = plan({100000, 3}, {7, 2}, DType::f64);
  CHECK(p.access == PointwiseAccess::rows && p.lanes == 4 && p.down);
  CHECK(plan({100000, 3, 2}, {70, 7, 2}, DType::f32).access == PointwiseAccess::elements);  // six of 2048
  CHECK(plan({3, 2}, {70, 2}, DType::f32).access == PointwiseAccess::rows);                 // in any case one block
}

TEST(access_of_gates_that_alternate) {
  PointwiseForward p = forward(DType::bf16, geometry({10, 64}), {128, 2});
  p.gated = true;
  p.up = p.x;
  p.up.data = memory + 2;
  p.y = view(DType::bf16, {64, 1});
  CHECK(plan_pointwise(p).access == PointwiseAccess::interleaved);
  p.up.data = memory + 4;
  CHECK(plan_pointwise(p).access == PointwiseAccess::rows);
  p.up.data = memory + 2;
  p.y = view(DType::bf16, {64, 1}, 2);
  CHECK(plan_pointwise(p).access == PointwiseAccess::rows);
}

TEST(access_with_a_mask) {
  PointwiseForward p = forward(DType::f32, geometry({64}), {1});
  p.mask = reinterpret_cast<uint8_t*>(memory);
  CHECK(plan_pointwise(p).access == PointwiseAccess::flat);
  p.geometry = geometry({60});
  CHECK(plan_pointwise(p).access == PointwiseAccess::elements);  // the last byte would be shared
}

TEST(access_with_a_bias) {
  BiasAccess bias;
  CHECK(access_with_bias(geometry({100, 768}, 1), {768, 1}) == PointwiseAccess::tile);
  CHECK(access_with_bias(geometry({100, 1001}, 1), {1001, 1}, &bias) == PointwiseAccess::biased);
  CHECK(bias == BiasAccess::columns);
  CHECK(access_with_bias(geometry({8, 64, 3136}, 1), {64 * 3136, 3136, 1}, &bias) == PointwiseAccess::biased);
  CHECK(bias == BiasAccess::rows);
  CHECK(access_with_bias(geometry({8, 64, 49}, 1), {64 * 49, 49, 1}, &bias) == PointwiseAccess::biased);
  CHECK(bias == BiasAccess::straddled);
  CHECK(access_with_bias(geometry({8, 64, 5}, 1), {64 * 5, 5, 1}) == PointwiseAccess::biased);
  CHECK(access_with_bias(geometry({64, 3136}, 0), {3136, 1}, &bias) == PointwiseAccess::biased);
  CHECK(bias == BiasAccess::rows);
}

TEST(tiles_leave_few_threads_idle) {
  CHECK_EQ(plan_pointwise(forward(DType::bf16, geometry({10, 3072}), {6144, 1})).lanes, 128);
  CHECK_EQ(plan_pointwise(forward(DType::bf16, geometry({10, 4096}), {8192, 1})).lanes, 256);
  CHECK_EQ(plan_pointwise(forward(DType::bf16, geometry({10, 5504}), {11008, 1})).lanes, 64);
  CHECK_EQ(plan_pointwise(forward(DType::bf16, geometry({10, 64}), {128, 1})).lanes, 8);
}

TEST(bias_gradients) {
  const auto plan = [](const PointwiseBackward& p) { return plan_bias_gradient(p, kHopper, 0); };
  BiasPlan wide = plan(backward(DType::bf16, geometry({16384, 3072}, 1), {3072, 1}));
  CHECK(wide.sum == BiasSum::columns);
  CHECK_EQ(wide.width, 8);
  CHECK_EQ(wide.lanes, 32);
  CHECK_EQ(wide.parts, 44);  // 12 column groups: 528 blocks, which all run at once
  CHECK_EQ(wide.workspace_bytes, size_t{44 * 3072 * 4});

  // 64 column groups: 8 parts are 512 blocks, a ninth would be more than run at once.
  CHECK_EQ(plan(backward(DType::bf16, geometry({8192, 16384}, 1), {16384, 1})).parts, 8);

  BiasPlan odd = plan(backward(DType::bf16, geometry({16384, 3073}, 1), {3073, 1}));
  CHECK(odd.sum == BiasSum::columns);
  CHECK_EQ(odd.width, 8);
  CHECK_EQ(odd.fold, 8);  // eight rows are whole packs
  CHECK_EQ(odd.partials, 3073);
  odd = plan(backward(DType::bf16, geometry({16383, 3073}, 1), {3073, 1}));
  CHECK_EQ(odd.width, 1);
  CHECK_EQ(odd.fold, 1);

  BiasPlan image = plan(backward(DType::bf16, geometry({64, 256, 3136}, 1), {256 * 3136, 3136, 1}));
  CHECK(image.sum == BiasSum::channels);
  CHECK_EQ(image.width, 8);

  BiasPlan small_image = plan(backward(DType::bf16, geometry({64, 2048, 49}, 1), {2048 * 49, 49, 1}));
  CHECK(small_image.sum == BiasSum::columns);
  CHECK_EQ(small_image.width, 8);
  CHECK_EQ(small_image.partials, 2048 * 49);

  BiasPlan few = plan(backward(DType::f32, geometry({2, 3}, 1), {3, 1}));
  CHECK_EQ(few.parts, 1);

  PointwiseBackward empty = backward(DType::f32, geometry({0, 5}, 1), {5, 1});
  CHECK_EQ(plan(empty).workspace_bytes, size_t{0});
  CHECK_EQ(plan(empty).channels, 5);
}

TEST(the_workspace_does_not_depend_on_alignment) {
  PointwiseBackward p = backward(DType::f16, geometry({100, 2048}, 1), {2048, 1});
  const BiasPlan aligned = plan_bias_gradient(p, kHopper, 0);
  p.dx.data = memory + 2;
  const BiasPlan misaligned = plan_bias_gradient(p, kHopper, 0);
  CHECK_EQ(misaligned.width, 1);
  CHECK_EQ(misaligned.parts, aligned.parts);
  CHECK_EQ(misaligned.workspace_bytes, aligned.workspace_bytes);
}
