// SPDX-License-Identifier: Apache-2.0
// Which tensors are copied because no fast kernel serves them as they lie, and where their elements go: without a GPU.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "core/channel_copies.h"
#include "core/layout_copy.h"
#include "core/pointwise_copies.h"
#include "core/row_copies.h"

namespace {

using normact::ChannelBackward;
using normact::ChannelCopies;
using normact::ChannelForward;
using normact::ChannelSet;
using normact::ChannelView;
using normact::CopyDim;
using normact::DType;
using normact::LayoutCopy;
using normact::PointwiseBackward;
using normact::PointwiseForward;
using normact::RowBackward;
using normact::RowForward;

constexpr normact::DeviceInfo kHopper{90, 132, 227 * 1024 - 4096, {132, 66, 30, 14, 7}, 60 << 20};
alignas(16) char memory[64];

// ---- Single copies ----

/// Carries the copy out: unit i of the array is where the dimensions, fastest first, lead in the tensor.
void carry_out(const LayoutCopy& copy) {
  int64_t size = 1;
  for (int d = 0; d < copy.ndim; ++d) size *= copy.shape[d];
  for (int64_t unit = 0; unit < size; ++unit) {
    int64_t rest = unit, place = 0;
    for (int d = 0; d < copy.ndim; ++d) {
      place += rest % copy.shape[d] * copy.stride[d];
      rest /= copy.shape[d];
    }
    const auto bytes = static_cast<size_t>(copy.unit_bytes);
    std::memcpy(static_cast<char*>(copy.array) + unit * copy.unit_bytes,
                static_cast<char*>(copy.tensor) + place * copy.unit_bytes, bytes);
  }
}

TEST(copies_reach_every_element) {
  std::mt19937 random(7);
  const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 500; ++round) {
    const int ndim = 1 + static_cast<int>(below(4));
    CopyDim dims[4];
    int order[4];
    std::iota(order, order + ndim, 0);
    for (CopyDim& dim : dims) dim.size = 1 + below(round % 2 == 0 ? 5 : 9);
    // The array in one order, the tensor in another, with gaps.
    int64_t stride = 1;
    std::shuffle(order, order + ndim, random);
    for (int i = 0; i < ndim; ++i) dims[order[i]].in_array = std::exchange(stride, stride * dims[order[i]].size);
    const int64_t size = stride;
    if (round % 3 != 0) std::shuffle(order, order + ndim, random);
    stride = 1 + below(2);
    for (int i = 0; i < ndim; ++i) {
      dims[order[i]].in_tensor = std::exchange(stride, stride * (dims[order[i]].size + below(2) * 8));
    }
    std::vector<uint16_t> tensor(static_cast<size_t>(stride) + 8), array(static_cast<size_t>(size) + 8);
    std::iota(tensor.begin(), tensor.end(), uint16_t{1});
    LayoutCopy copy;
    CHECK(normact::plan_layout_copy(ndim, dims, 2, &copy));
    copy.tensor = tensor.data() + below(8);
    copy.array = array.data() + below(8);
    if (copy.across == 0) normact::widen_units(&copy);
    CHECK(reinterpret_cast<uintptr_t>(copy.tensor) % static_cast<uintptr_t>(copy.unit_bytes) == 0);
    CHECK(reinterpret_cast<uintptr_t>(copy.array) % static_cast<uintptr_t>(copy.unit_bytes) == 0);
    carry_out(copy);
    const auto* from = static_cast<const uint16_t*>(copy.tensor);
    const auto* to = static_cast<const uint16_t*>(copy.array);
    for (int64_t element = 0; element < size; ++element) {
      int64_t in_tensor = 0;
      for (int d = 0; d < ndim; ++d) in_tensor += element / dims[d].in_array % dims[d].size * dims[d].in_tensor;
      CHECK_EQ(to[element], from[in_tensor]);
    }
  }
}

LayoutCopy copy_of(std::initializer_list<CopyDim> dims) {
  LayoutCopy copy{};
  CHECK(normact::plan_layout_copy(static_cast<int>(dims.size()), dims.begin(), 2, &copy));
  copy.tensor = copy.array = memory;
  return copy;
}

TEST(copies_move_what_lies_side_by_side) {
  LayoutCopy half = copy_of({{4, 1600, 800}, {100, 8, 8}, {8, 1, 1}});  // half of the channels
  CHECK_EQ(half.ndim, 2);
  normact::widen_units(&half);
  CHECK_EQ(half.unit_bytes, 16);
  CHECK_EQ(half.shape[0], 100);
  CHECK_EQ(half.stride[1], 200);
  LayoutCopy crop = copy_of({{7, 9, 7}, {7, 1, 1}});
  normact::widen_units(&crop);
  CHECK_EQ(crop.unit_bytes, 2);
  CHECK_EQ(crop.across, 0);
  const LayoutCopy turned = copy_of({{64, 1, 32}, {32, 64, 1}});
  CHECK_EQ(turned.across, 1);
  CHECK_EQ(copy_of({{64, 1, 4}, {4, 64, 1}}).across, 0);   // too narrow for tiles
  CHECK_EQ(copy_of({{64, 0, 32}, {32, 0, 1}}).across, 0);  // expanded
  LayoutCopy copy;
  const CopyDim far[] = {{2, int64_t{1} << 32, 8}, {8, 1, 1}};
  CHECK(!normact::plan_layout_copy(2, far, 2, &copy));
}

// ---- Batch, group and instance norm ----

ChannelView view(int64_t sample, int64_t channel, std::initializer_list<int64_t> places) {
  ChannelView v{memory, DType::bf16, sample, channel, {}};
  std::copy(places.begin(), places.end(), v.place_stride);
  return v;
}

ChannelForward images(const ChannelView& x, const ChannelView& y) {
  ChannelForward p{};
  p.geometry = {8, 16, 4, 30, 30, 2, {5, 6}};
  p.set = ChannelSet::group;
  p.dtype = DType::bf16;
  p.x = x;
  p.y = y;
  return p;
}

ChannelCopies cheapest(ChannelForward p) {
  ChannelCopies ways[normact::kMostLayouts];
  CHECK(normact::ways_to_copy(p, normact::operands_of(p), ways) > 0);
  return ways[0];
}

constexpr unsigned kY = 1, kX = 2;

TEST(what_lies_like_the_output_is_not_copied) {
  const ChannelView planes = view(480, 30, {6, 1}), rows = view(480, 1, {96, 16});
  CHECK_EQ(cheapest(images(planes, planes)).count, 0);
  CHECK_EQ(cheapest(images(rows, rows)).count, 0);
  const ChannelCopies half = cheapest(images(view(960, 30, {6, 1}), planes));
  CHECK_EQ(half.copied, kX);
  CHECK_EQ(half.layout.channel_stride, 30);
  CHECK_EQ(half.bytes(), size_t{8 * 16 * 30 * 2});
  const ChannelCopies cropped = cheapest(images(view(16 * 70, 1, {160, 16}), rows));
  CHECK_EQ(cropped.copied, kX);
  CHECK_EQ(cropped.layout.channel_stride, 1);
  CHECK_EQ(cheapest(images(planes, view(960, 30, {6, 1}))).copied, kY);
  // In place, with gaps: both, as neighbours remain neighbours.
  const ChannelView gaps = view(16 * 70, 70, {10, 1});
  const ChannelCopies both = cheapest(images(gaps, gaps));
  CHECK_EQ(both.copied, kX | kY);
  CHECK_EQ(both.layout.place_stride, 1);
}

TEST(tensors_that_lie_alike) {
  const ChannelView gaps = view(16 * 70, 70, {10, 1}), rows = view(480, 1, {96, 16}), apart = view(1, 8, {768, 128});
  const auto alike = [](const ChannelView& x, const ChannelView& y) {
    ChannelForward p = images(x, y);
    return normact::lie_alike(p.geometry, normact::operands_of(p));
  };
  CHECK(alike(gaps, gaps) && alike(rows, rows));
  CHECK(!alike(gaps, rows) && !alike(apart, apart));  // neighbours of the last are of several samples
}

TEST(a_backward_copies_what_differs) {
  ChannelBackward p{};
  p.geometry = {8, 16, 16, 30, 30, 2, {5, 6}};
  p.dtype = DType::bf16;
  p.x = p.dx = view(480, 30, {6, 1});
  p.dy = view(0, 0, {0, 0});  // the gradient of a sum
  const normact::ChannelOperands operands = normact::operands_of(p);
  CHECK_EQ(operands.count, 3);
  ChannelCopies ways[normact::kMostLayouts];
  CHECK(normact::ways_to_copy(p, operands, ways) > 0);
  CHECK_EQ(ways[0].count, 1);
  CHECK(ways[0].has(2) && operands.at[2].view == &p.dy && !operands.at[2].output);
}

// ---- Activations ----

normact::View tensor(std::initializer_list<int64_t> strides) {
  normact::View v{memory, DType::bf16, {}};
  std::copy(strides.begin(), strides.end(), v.stride);
  return v;
}

template <class Problem>
Problem activation(std::initializer_list<int64_t> shape, int bias_dim) {
  Problem p{};
  p.dtype = DType::bf16;
  p.geometry.ndim = static_cast<int>(shape.size());
  p.geometry.bias_dim = bias_dim;
  std::copy(shape.begin(), shape.end(), p.geometry.shape);
  p.geometry.size = 1;
  for (const int64_t size : shape) p.geometry.size *= size;
  return p;
}

TEST(a_crop_goes_into_y) {
  PointwiseForward p = activation<PointwiseForward>({12800, 7, 7}, -1);
  p.y = tensor({49, 7, 1});
  p.y.data = memory + 16;
  p.x = tensor({81, 9, 1});
  const normact::GatheredInputs inputs = normact::gather_inputs(&p, nullptr);
  CHECK_EQ(inputs.count, 1);
  CHECK_EQ(inputs.workspace_bytes, size_t{0});
  CHECK(inputs.copies[0].tensor == memory && inputs.copies[0].array == p.y.data && p.x.data == p.y.data);
  CHECK_EQ(p.geometry.ndim, 1);
  p.x = p.y = tensor({1});
  CHECK_EQ(normact::gather_inputs(&p, nullptr).count, 0);
  p = activation<PointwiseForward>({10, 7, 7}, -1);  // little
  p.y = tensor({49, 7, 1});
  p.x = tensor({81, 9, 1});
  CHECK_EQ(normact::gather_inputs(&p, nullptr).count, 0);
}

TEST(long_rows_of_a_forward_stay) {
  PointwiseForward p = activation<PointwiseForward>({6400, 30, 64}, -1);
  p.y = tensor({30 * 64, 64, 1});
  p.x = tensor({32 * 66, 66, 1});
  CHECK_EQ(normact::gather_inputs(&p, nullptr).count, 0);
  p.geometry.bias_dim = 1;  // packs find biases faster
  p.bias = tensor({0, 1, 0});
  CHECK_EQ(normact::gather_inputs(&p, nullptr).count, 1);
}

TEST(gates_that_alternate_stay) {
  PointwiseForward p = activation<PointwiseForward>({300000, 32}, -1);
  p.gated = true;
  p.y = tensor({32, 1});
  p.x = p.up = tensor({72, 2});
  p.up.data = memory + 2;
  CHECK(normact::plan_pointwise(p).access == normact::PointwiseAccess::interleaved);
  CHECK_EQ(normact::gather_inputs(&p, nullptr).count, 0);
}

TEST(windows_of_one_array_are_no_alternating_gates) {
  PointwiseForward p = activation<PointwiseForward>({60000, 3, 4}, -1);
  p.dtype = DType::f32;
  p.gated = true;
  p.y = p.x = p.up = tensor({12, 4, 1});
  p.y.dtype = p.x.dtype = p.up.dtype = DType::f32;
  p.x.stride[0] = p.up.stride[0] = 32;
  p.x.stride[1] = p.up.stride[1] = 8;
  p.y.data = memory + 64;
  PointwiseForward query = p, call = p;
  call.up.data = memory + 4;
  alignas(256) static char workspace[256];
  CHECK_EQ(normact::gather_inputs(&query, workspace).workspace_bytes,
           normact::gather_inputs(&call, workspace).workspace_bytes);
}

TEST(a_gate_is_not_copied_over_up) {
  alignas(256) static char workspace[256];
  PointwiseForward p = activation<PointwiseForward>({12800, 7, 7}, -1);
  p.gated = true;
  p.x = tensor({81, 9, 1});
  p.up = tensor({49, 7, 1});
  p.up.data = memory + 16;
  p.y = p.up;
  PointwiseForward over_up = p;
  CHECK_EQ(normact::gather_inputs(&over_up, workspace).workspace_bytes, size_t{12800 * 49 * 2});
  CHECK(over_up.x.data == workspace && over_up.up.data == over_up.y.data);
  p.y.data = memory + 32;
  PointwiseForward beside = p;
  CHECK_EQ(normact::gather_inputs(&beside, nullptr).workspace_bytes, size_t{0});
  CHECK(beside.x.data == p.y.data && beside.up.data == p.up.data);
  p.up = p.x;
  CHECK_EQ(normact::gather_inputs(&p, workspace).count, 2);
  CHECK(p.x.data == p.y.data && p.up.data == workspace);
}

TEST(a_backward_copies_to_the_workspace) {
  PointwiseBackward p = activation<PointwiseBackward>({64, 40, 784}, 1);
  p.x = p.dx = tensor({31360, 784, 1});
  p.dy = tensor({0, 0, 0});
  p.bias = p.dbias = tensor({0, 3, 0});
  alignas(256) static char workspace[256];
  const normact::GatheredInputs inputs = normact::gather_inputs(&p, kHopper, 0, workspace);
  CHECK_EQ(inputs.count, 1);
  CHECK_EQ(inputs.workspace_bytes, size_t{64 * 31360 * 2});
  CHECK(p.dy.data == workspace && p.dx.data == memory);
  CHECK_EQ(p.geometry.ndim, 3);
  CHECK_EQ(p.bias.stride[1], 3);
  CHECK_EQ(p.dy.stride[1], 784);
}

TEST(rows_that_are_no_packs_go_together) {
  PointwiseBackward p = activation<PointwiseBackward>({4096, 28}, 1);
  p.x = p.dx = p.dy = tensor({28, 1});
  p.bias = p.dbias = tensor({0, 1});
  const normact::BiasPlan plan = normact::plan_bias_gradient(p, kHopper, 0);
  CHECK(plan.sum == normact::BiasSum::columns);
  CHECK_EQ(plan.fold, 2);
  CHECK_EQ(plan.width, 8);
  CHECK_EQ(plan.partials, 28);
  CHECK(!plan.single());
  CHECK_EQ(plan.workspace_bytes, static_cast<size_t>(plan.parts * 2 * 28 * 4));
  p.geometry.shape[0] = 4095;  // not a multiple of two
  p.geometry.size = 4095 * 28;
  CHECK_EQ(normact::plan_bias_gradient(p, kHopper, 0).fold, 1);
}

// ---- Row norms ----

normact::Operand operand(std::initializer_list<int64_t> rows, std::initializer_list<int64_t> cols) {
  normact::Operand o{memory, DType::bf16, {}, {}};
  std::copy(rows.begin(), rows.end(), o.row_stride);
  std::copy(cols.begin(), cols.end(), o.col_stride);
  return o;
}

/// Over axis 1 of (64, 32, 28, 28).
template <class Problem>
Problem over_channels(std::initializer_list<int64_t> row_shape) {
  Problem p{};
  p.geometry = {64 * 784, 32, static_cast<int>(row_shape.size()), 1, {}, {32}};
  std::copy(row_shape.begin(), row_shape.end(), p.geometry.row_shape);
  p.dtype = p.io_dtype = DType::bf16;
  p.weight = operand({0}, {1});
  return p;
}

TEST(rows_go_into_y) {
  RowForward p = over_channels<RowForward>({64, 28, 28});
  p.x = operand({32 * 28 * 56, 56, 2}, {28 * 56});  // every second column
  p.y = operand({32 * 784, 28, 1}, {784});
  p.y.data = memory + 16;
  p.mean = p.rstd = operand({784, 28, 1}, {0});
  const normact::GatheredInputs rows = normact::gather_rows(&p, kHopper);
  CHECK_EQ(rows.count, 1);
  CHECK(p.x.data == p.y.data && p.adjacent && !p.contiguous);
  CHECK_EQ(p.geometry.row_ndim, 2);  // samples, and places that are one dimension now
  CHECK_EQ(p.geometry.row_shape[1], 784);
  CHECK_EQ(p.mean.row_stride[1], 1);
  CHECK_EQ(p.x.row_stride[0], 32 * 784);
  RowForward alike = p;
  CHECK_EQ(normact::gather_rows(&alike, kHopper).count, 0);
  alike = over_channels<RowForward>({64, 28, 28});
  alike.x = operand({32 * 28 * 56, 56, 2}, {28 * 56});
  alike.y = alike.residual = alike.residual_out = operand({32 * 784, 28, 1}, {784});
  CHECK_EQ(normact::gather_rows(&alike, kHopper).count, 0);  // y is written while the residual is still to be read
}

TEST(rows_of_columns_that_are_near_stay_on_chip) {
  const auto copies = [](int64_t cols) {
    RowForward p{};
    p.geometry = {4096, cols, 1, 1, {4096}, {cols}};
    p.dtype = p.io_dtype = DType::bf16;
    p.x = operand({2 * cols}, {2});
    p.y = operand({cols}, {1});
    return normact::gather_rows(&p, kHopper).count;
  };
  CHECK_EQ(copies(4096), 0);
  CHECK_EQ(copies(32768), 1);
  CHECK_EQ(copies(1 << 24), 0);  // streamed as packs, too
}

TEST(rows_of_a_gradient_in_another_format) {
  RowBackward p = over_channels<RowBackward>({64, 784});
  p.x = p.dx = operand({32 * 784, 1}, {784});
  p.dy = operand({32 * 784, 32}, {1});
  p.rstd = operand({784, 1}, {0});
  alignas(256) static char workspace[256];
  const normact::GatheredInputs rows = normact::gather_rows(&p, kHopper, workspace);
  CHECK_EQ(rows.count, 1);
  CHECK(rows.copies[0].across != 0);
  CHECK(p.dy.data == workspace && p.dy.col_stride[0] == 784);
  CHECK_EQ(rows.workspace_bytes, size_t{64 * 784 * 32 * 2});
}

}  // namespace
