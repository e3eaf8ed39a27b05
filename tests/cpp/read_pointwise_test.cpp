// SPDX-License-Identifier: Apache-2.0
// Golden problems: what becomes of shapes and strides. Errors: read_pointwise_errors_test.cpp.
#include <cmath>
#include <cstdint>
#include <string>

#include "check.h"
#include "core/pointwise.h"
#include "pointwise_calls.h"

namespace {

using namespace pointwise_calls;
using normact::PointwiseGeometry;
using normact::text;
using normact::View;

std::string join(int count, const int64_t* values) {
  std::string line;
  for (int i = 0; i < count; ++i) line += text(i > 0 ? "," : "", values[i]);
  return line;
}

// "24: 2,12 bias 1": the size, the dimensions after merging, and which of them biases run along.
std::string geometry_text(const PointwiseGeometry& g) {
  return text(g.size, ": ", join(g.ndim, g.shape), g.bias_dim < 0 ? "" : text(" bias ", g.bias_dim));
}

// "slot 1 + 3: 12,1": where a view begins, in elements of its slot of memory, and its strides.
std::string view_text(const PointwiseGeometry& g, const View& view) {
  if (view.data == nullptr) return "absent";
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  const uintptr_t offset = address % slot(1) / static_cast<uintptr_t>(size_of(view.dtype));
  return text("slot ", address / slot(1), offset > 0 ? text(" + ", offset) : "", ": ", join(g.ndim, view.stride));
}

void expect_text(const std::string& found, const std::string& expected, int line) {
  if (found != expected) check::fail(__FILE__, line, text("found ", found, ", expected ", expected));
}
#define EXPECT_TEXT(found, expected) expect_text(found, expected, __LINE__)

void expect_ok(const normact::Status& status, int line) {
  if (!status.ok()) check::fail(__FILE__, line, status.message());
}
#define EXPECT_OK(status) expect_ok(status, __LINE__)

struct Golden {
  Ints shape, x_strides, y_strides;
  const char* geometry;
  const char* x;
  const char* y;
};

TEST(orders_and_merges_dimensions) {
  const Golden rows[] = {
      {{6, 4}, {}, {}, "24: 24", "1", "1"},
      {{2, 3, 4, 5}, {}, {}, "120: 120", "1", "1"},
      {{}, {}, {}, "1: 1", "1", "1"},
      {{1, 1}, {7, 9}, {5, 3}, "1: 1", "1", "1"},
      {{6, 1, 4}, {4, 99, 1}, {}, "24: 24", "1", "1"},
      // Transposed and channels_last tensors are as good as contiguous ones.
      {{6, 4}, {1, 6}, {1, 6}, "24: 24", "1", "1"},
      {{2, 3, 4, 5}, {60, 1, 15, 3}, {60, 1, 15, 3}, "120: 120", "1", "1"},
      {{2, 3, 4}, {1, 8, 2}, {1, 8, 2}, "24: 24", "1", "1"},
      // x sets the order, y follows.
      {{6, 4}, {1, 6}, {}, "24: 4,6", "6,1", "1,4"},
      {{6, 4}, {}, {1, 6}, "24: 6,4", "4,1", "1,6"},
      {{2, 3, 4}, {12, 4, 1}, {4, 8, 1}, "24: 2,3,4", "12,4,1", "4,8,1"},
      // Gaps and negative strides stay; the dimensions on either side of a gap merge.
      {{6, 4}, {9, 1}, {}, "24: 6,4", "9,1", "4,1"},
      {{2, 3, 4}, {27, 9, 1}, {}, "24: 6,4", "9,1", "4,1"},
      {{24}, {-1}, {}, "24: 24", "-1", "1"},
      {{6, 4}, {-4, -1}, {}, "24: 24", "-1", "1"},
      {{6, 4}, {4, -1}, {}, "24: 6,4", "4,-1", "4,1"},
      // An expanded x leaves the order to y.
      {{6, 4}, {0, 1}, {}, "24: 6,4", "0,1", "4,1"},
      {{6, 4}, {1, 0}, {}, "24: 6,4", "1,0", "4,1"},
      {{6, 4}, {0, 1}, {1, 6}, "24: 4,6", "1,0", "6,1"},
      {{2, 3, 4}, {0, 0, 1}, {}, "24: 6,4", "0,1", "4,1"},
      {{2, 3, 4}, {0, 0, 0}, {}, "24: 24", "0", "1"},
      // Nothing.
      {{0}, {}, {}, "0: 0", "1", "1"},
      {{3, 0, 5}, {77, 0, -5}, {}, "0: 0", "1", "1"},
  };
  for (const Golden& row : rows) {
    ActivationCall call(row.shape, row.x_strides);
    call.y.strides = row.y_strides;
    for (Tensor* tensor : {&call.x, &call.y}) tensor->address += slot(1) / 2;
    EXPECT_OK(call.read_forward());
    const PointwiseGeometry& g = call.forward.geometry;
    const std::string where = text("x of shape (", join(static_cast<int>(row.shape.size()), row.shape.data()), "): ");
    EXPECT_TEXT(where + geometry_text(g), where + row.geometry);
    EXPECT_TEXT(where + join(g.ndim, call.forward.x.stride), where + row.x);
    EXPECT_TEXT(where + join(g.ndim, call.forward.y.stride), where + row.y);
  }
}

struct BiasGolden {
  Ints shape, strides;
  int32_t axis;
  const char* geometry;
  const char* x;
  const char* bias;
};

TEST(keeps_the_bias_dimension_apart) {
  const BiasGolden rows[] = {
      {{6, 4}, {}, -1, "24: 6,4 bias 1", "4,1", "0,1"},
      {{2, 3, 4}, {}, 2, "24: 6,4 bias 1", "4,1", "0,1"},
      {{2, 3, 4}, {}, 0, "24: 2,12 bias 0", "12,1", "1,0"},
      {{2, 3, 4, 5}, {}, 1, "120: 2,3,20 bias 1", "60,20,1", "0,1,0"},
      {{2, 3, 4, 5}, {60, 1, 15, 3}, 1, "120: 40,3 bias 1", "3,1", "0,1"},
      {{1, 3, 4, 5}, {}, -3, "60: 3,20 bias 0", "20,1", "1,0"},
      {{2, 3, 1, 1}, {}, 1, "6: 2,3 bias 1", "3,1", "0,1"},
      {{5}, {}, 0, "5: 5 bias 0", "1", "1"},
      {{6, 4}, {0, 1}, 1, "24: 6,4 bias 1", "0,1", "0,1"},
      // One channel goes first and keeps nothing apart, whatever its stride.
      {{2, 1, 4, 5}, {}, 1, "40: 1,40 bias 0", "0,1", "1,0"},
      {{2, 1, 4, 5}, {20, 77, 5, 1}, 1, "40: 1,40 bias 0", "0,1", "1,0"},
      {{6, 1}, {}, 1, "6: 1,6 bias 0", "0,1", "1,0"},
      {{1}, {}, 0, "1: 1 bias 0", "1", "1"},
      // Biases of an empty x have elements, or none.
      {{0, 4}, {}, 1, "0: 0,4 bias 1", "0,1", "0,1"},
      {{0, 4, 5}, {}, 1, "0: 0,4 bias 1", "0,1", "0,1"},
      {{4, 0}, {1, 1}, 0, "0: 0,4 bias 1", "0,1", "0,1"},
      {{4, 0}, {}, 1, "0: 0,0 bias 1", "0,1", "0,1"},
  };
  for (const BiasGolden& row : rows) {
    ActivationCall call(row.shape, row.strides);
    call.along(row.axis);
    for (Tensor* tensor : {&call.y, &call.dy, &call.dx}) tensor->strides = row.strides;
    if (row.strides == Ints{0, 1}) call.y.strides = call.dx.strides = {};
    EXPECT_OK(call.read_forward());
    EXPECT_OK(call.read_backward());
    const std::string where = text("x of shape (", join(static_cast<int>(row.shape.size()), row.shape.data()), "): ");
    for (const PointwiseGeometry* g : {&call.forward.geometry, &call.backward.geometry}) {
      EXPECT_TEXT(where + geometry_text(*g), where + row.geometry);
    }
    const int ndim = call.forward.geometry.ndim;
    EXPECT_TEXT(where + join(ndim, call.forward.x.stride), where + row.x);
    EXPECT_TEXT(where + join(ndim, call.forward.bias.stride), where + row.bias);
    EXPECT_TEXT(where + join(ndim, call.backward.dbias.stride), where + row.bias);
  }
}

TEST(biases_have_their_own_strides) {
  ActivationCall call({2, 3, 4});
  call.along(1);
  call.bias.strides = {-2};
  call.bias.address += 64;
  call.dbias.strides = {5};
  EXPECT_OK(call.read_backward());
  EXPECT_TEXT(view_text(call.backward.geometry, call.backward.bias), "slot 2 + 16: 0,-2,0");
  EXPECT_TEXT(view_text(call.backward.geometry, call.backward.dbias), "slot 7: 0,5,0");
  call.bias.strides = {0};  // expanded: still a dimension of its own
  EXPECT_OK(call.read_forward());
  EXPECT_TEXT(geometry_text(call.forward.geometry), "24: 2,3,4 bias 1");
}

TEST(masks_keep_the_order_of_the_caller) {
  ActivationCall call({6, 4}, {1, 6});
  call.y.strides = {1, 6};
  call.mask.present = true;
  EXPECT_OK(call.read_forward());
  EXPECT_TEXT(geometry_text(call.forward.geometry), "24: 6,4");
  EXPECT_TEXT(join(2, call.forward.x.stride), "1,6");
  CHECK(reinterpret_cast<uintptr_t>(call.forward.mask) == slot(4));
  ActivationCall odd({3, 1, 3});
  odd.along(1).mask.present = true;
  odd.x.present = false;
  EXPECT_OK(odd.read_backward());
  EXPECT_TEXT(geometry_text(odd.backward.geometry), "9: 1,9 bias 0");
  CHECK(reinterpret_cast<uintptr_t>(odd.backward.mask) == slot(4));
  CHECK(odd.backward.x.data == nullptr && odd.backward.y.data == nullptr);
  ActivationCall empty({0, 3});
  empty.mask.present = true;
  empty.mask.address = 0;
  EXPECT_OK(empty.read_forward());
}

TEST(the_output_stands_for_x_and_bias) {
  ActivationCall call({2, 3}, {1, 2});
  call.along(-1);
  call.x.present = false;
  call.y.strides = {1, 2};
  call.dbias.present = false;
  EXPECT_OK(call.read_backward(true));
  EXPECT_TEXT(geometry_text(call.backward.geometry), "6: 3,2");  // y sets the order, dy and dx follow
  CHECK(call.backward.bias.data == nullptr && call.backward.x.data == nullptr);
  EXPECT_TEXT(view_text(call.backward.geometry, call.backward.y), "slot 3: 2,1");
}

struct PackedGolden {
  normact_gate_layout layout;
  Ints shape, strides;
  int32_t axis;
  const char *geometry, *gate, *up, *gate_bias, *up_bias, *y;
};
const PackedGolden kPackedRows[] = {
    {NORMACT_GATE_SPLIT,
     {6, 8},
     {},
     -1,
     "24: 6,4 bias 1",
     "slot 1: 8,1",
     "slot 1 + 4: 8,1",
     "slot 3: 0,1",
     "slot 3 + 4: 0,1",
     "slot 5: 4,1"},
    {NORMACT_GATE_SPLIT,
     {2, 6, 5},
     {},
     1,
     "30: 2,3,5 bias 1",
     "slot 1: 30,5,1",
     "slot 1 + 15: 30,5,1",
     "slot 3: 0,1,0",
     "slot 3 + 3: 0,1,0",
     "slot 5: 15,5,1"},
    {NORMACT_GATE_SPLIT,
     {6, 5},
     {},
     0,
     "15: 3,5 bias 0",
     "slot 1: 5,1",
     "slot 1 + 15: 5,1",
     "slot 3: 1,0",
     "slot 3 + 3: 1,0",
     "slot 5: 5,1"},
    {NORMACT_GATE_INTERLEAVED,
     {6, 8},
     {},
     1,
     "24: 6,4 bias 1",
     "slot 1: 8,2",
     "slot 1 + 1: 8,2",
     "slot 3: 0,2",
     "slot 3 + 1: 0,2",
     "slot 5: 4,1"},
    {NORMACT_GATE_INTERLEAVED,
     {2, 6, 5},
     {},
     1,
     "30: 2,3,5 bias 1",
     "slot 1: 30,10,1",
     "slot 1 + 5: 30,10,1",
     "slot 3: 0,2,0",
     "slot 3 + 1: 0,2,0",
     "slot 5: 15,5,1"},
    {NORMACT_GATE_SPLIT,
     {6, 2},
     {},
     1,
     "6: 1,6 bias 0",
     "slot 1: 0,2",
     "slot 1 + 1: 0,2",
     "slot 3: 1,0",
     "slot 3 + 1: 1,0",
     "slot 5: 0,1"},
    {NORMACT_GATE_INTERLEAVED,
     {6, 8},
     {1, 6},
     1,
     "24: 4,6 bias 0",
     "slot 1: 12,1",
     "slot 1 + 6: 12,1",
     "slot 3: 2,0",
     "slot 3 + 1: 2,0",
     "slot 5: 1,4"},
    {NORMACT_GATE_SPLIT,
     {0, 8},
     {},
     1,
     "0: 0,4 bias 1",
     "slot 1: 0,1",
     "slot 1: 0,1",
     "slot 3: 0,1",
     "slot 3 + 4: 0,1",
     "slot 5: 0,1"},
};

TEST(packed_tensors_become_two_views) {
  for (const PackedGolden& row : kPackedRows) {
    GatedCall call(row.layout, row.axis, row.shape, row.strides);
    call.dgate.strides = row.strides;
    EXPECT_OK(call.read_forward());
    EXPECT_OK(call.read_backward());
    const normact::PointwiseForward& f = call.forward;
    const normact::PointwiseBackward& b = call.backward;
    EXPECT_TEXT(geometry_text(f.geometry), row.geometry);
    EXPECT_TEXT(view_text(f.geometry, f.x), row.gate);
    EXPECT_TEXT(view_text(f.geometry, f.up), row.up);
    EXPECT_TEXT(view_text(f.geometry, f.bias), row.gate_bias);
    EXPECT_TEXT(view_text(f.geometry, f.up_bias), row.up_bias);
    EXPECT_TEXT(view_text(f.geometry, f.y), row.y);
    EXPECT_TEXT(geometry_text(b.geometry), row.geometry);
    const auto moved = [](const char* view, int to) { return text("slot ", to, view + 6); };
    EXPECT_TEXT(view_text(b.geometry, b.dx), moved(row.gate, 7));
    EXPECT_TEXT(view_text(b.geometry, b.dup), moved(row.up, 7));
    EXPECT_TEXT(view_text(b.geometry, b.dbias), moved(row.gate_bias, 9));
    EXPECT_TEXT(view_text(b.geometry, b.dup_bias), moved(row.up_bias, 9));
  }
}

TEST(packed_tensors_without_biases_merge) {
  GatedCall split = GatedCall(NORMACT_GATE_SPLIT, 0, {6, 5}).without_biases();
  EXPECT_OK(split.read_forward());
  EXPECT_TEXT(geometry_text(split.forward.geometry), "15: 15");
  GatedCall last = GatedCall(NORMACT_GATE_INTERLEAVED, -1, {2, 6, 8}).without_biases();
  EXPECT_OK(last.read_backward());
  EXPECT_TEXT(geometry_text(last.backward.geometry), "48: 48");
  EXPECT_TEXT(view_text(last.backward.geometry, last.backward.dup), "slot 7 + 1: 2");
  EXPECT_TEXT(view_text(last.backward.geometry, last.backward.dup_bias), "absent");
}

TEST(a_query_knows_what_alternates) {
  GatedCall call = GatedCall(NORMACT_GATE_INTERLEAVED, -1, {6, 8}).without_biases();
  call.purpose = normact::Purpose::query;
  EXPECT_OK(call.read_forward());
  const auto address = [](const normact::View& view) { return reinterpret_cast<uintptr_t>(view.data); };
  CHECK_EQ(address(call.forward.up), address(call.forward.x) + sizeof(float));
}

TEST(separate_gates) {
  GatedCall call(NORMACT_GATE_SEPARATE, 1, {2, 3, 4});
  call.up.strides = {24, 8, 2};
  call.desc.limit = 7;
  call.desc.up_offset = 1;
  EXPECT_OK(call.read_backward());
  const normact::PointwiseBackward& b = call.backward;
  EXPECT_TEXT(geometry_text(b.geometry), "24: 2,3,4 bias 1");
  EXPECT_TEXT(view_text(b.geometry, b.up), "slot 2: 24,8,2");
  EXPECT_TEXT(view_text(b.geometry, b.up_bias), "slot 4: 0,1,0");
  EXPECT_TEXT(view_text(b.geometry, b.dup_bias), "slot 10: 0,1,0");
  CHECK(b.gated);
  CHECK_EQ(b.limit, 7.0);
  CHECK_EQ(b.up_offset, 1.0);
  call.desc.limit = 0;
  call.without_biases().desc.axis = 99;  // unused
  EXPECT_OK(call.read_forward());
  CHECK(std::isinf(call.forward.limit));
  EXPECT_TEXT(geometry_text(call.forward.geometry), "24: 24");
}

TEST(dimension_limits) {
  // Strides fall by four where the sizes are two, so that nothing merges.
  const Ints strides = {4096, 1024, 256, 64, 16, 4, 1};
  ActivationCall seven({2, 2, 2, 2, 2, 2, 2}, strides);
  const normact::Status status = seven.read_forward();
  CHECK(status.code() == NORMACT_NOT_SUPPORTED);
  EXPECT_TEXT(status.message(),
              "x has shape (2, 2, 2, 2, 2, 2, 2), of which more than 6 dimensions remain after merging those that lie "
              "evenly in memory; make the tensors contiguous");
  ActivationCall six({2, 2, 2, 2, 2, 2}, {strides.begin() + 1, strides.end()});
  EXPECT_OK(six.along(0).read_forward());
  CHECK_EQ(six.forward.geometry.ndim, 6);
  ActivationCall channel({1, 2, 2, 2, 2, 2, 2}, strides);
  EXPECT_OK(channel.read_forward());
  CHECK(channel.along(0).read_forward().code() == NORMACT_NOT_SUPPORTED);
  ActivationCall many(Ints(64, 1));
  EXPECT_OK(many.along(63).read_forward());
  EXPECT_TEXT(geometry_text(many.forward.geometry), "1: 1 bias 0");
}

TEST(the_rest_of_the_problem) {
  ActivationCall call({6, 4});
  call.desc.kind = NORMACT_ACTIVATION_SOFTPLUS;
  call.desc.beta = 2;
  EXPECT_OK(call.read_forward());
  CHECK(!call.forward.gated && call.forward.mask == nullptr && call.forward.bias.data == nullptr);
  CHECK(call.forward.dtype == normact::DType::f32);
  CHECK(call.forward.activation.kind == NORMACT_ACTIVATION_SOFTPLUS);
  CHECK_EQ(call.forward.activation.beta, 2.0);
  CHECK_EQ(call.forward.activation.threshold, 20.0);
  call.purpose = normact::Purpose::query;  // looks at no address
  for (Tensor* tensor : {&call.x, &call.y, &call.dy, &call.dx}) tensor->address = 0;
  EXPECT_OK(call.read_backward());
  CHECK(call.backward.dx.data != nullptr);
}

}  // namespace
