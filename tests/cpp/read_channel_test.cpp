// SPDX-License-Identifier: Apache-2.0
// Golden problems of batch, group and instance norm: what becomes of axes and strides. Errors: through the C API.
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "core/message.h"
#include "core/read_batch_norm.h"
#include "core/read_group_norm.h"

namespace {

using normact::ChannelView;
using normact::text;

using Ints = std::vector<int64_t>;

std::string join(int count, const int64_t* values) {
  std::string line;
  for (int i = 0; i < count; ++i) line += text(i > 0 ? "," : "", values[i]);
  return line;
}

std::string geometry_text(const normact::ChannelGeometry& g) {
  return text("n ", g.samples, " c ", g.channels, " groups ", g.groups, " places ", g.places, ": ",
              join(g.place_ndim, g.place_shape), " after ", g.places_after);
}

std::string view_text(const normact::ChannelGeometry& g, const ChannelView& view) {
  return text(view.sample_stride, " ", view.channel_stride, " ", join(g.place_ndim, view.place_stride));
}

void same(const std::string& found, const std::string& expected) {
  if (found == expected) return;
  check::fail(__FILE__, __LINE__, "found '" + found + "', expected '" + expected + "'");
}

normact_tensor tensor(uintptr_t slot, Ints& shape, Ints& strides) {
  // Memory at addresses that are never touched, far apart.
  return {reinterpret_cast<void*>(slot << 40),        1, 0, static_cast<int32_t>(shape.size()), 2, 32, 1, shape.data(),
          strides.empty() ? nullptr : strides.data(), 0};
}

struct Case {
  Ints shape;
  int32_t axis;
  int64_t groups;  // 0: batch norm
  Ints x_strides, y_strides;
  const char* geometry;
  const char* x;
  const char* y;
};

Case golden[] = {
    {{2, 3, 4, 5}, 1, 0, {}, {}, "n 2 c 3 groups 3 places 20: 20 after 20", "60 20 1", "60 20 1"},
    {{2, 3, 4, 5}, -1, 0, {}, {}, "n 2 c 5 groups 5 places 12: 12 after 1", "60 1 5", "60 1 5"},
    {{2, 3, 4, 5}, 2, 2, {}, {}, "n 2 c 4 groups 2 places 15: 3,5 after 5", "60 5 20,1", "60 5 20,1"},
    // To a batch norm samples are places: here (2, 3) are samples, there 2 is the places.
    {{2, 3, 4, 5}, 2, 0, {}, {}, "n 6 c 4 groups 4 places 5: 5 after 5", "20 5 1", "20 5 1"},
    {{2, 3, 4, 5}, 1, 0, {1, 2, 6, 24}, {1, 2, 6, 24}, "n 20 c 3 groups 3 places 2: 2 after 2", "6 2 1", "6 2 1"},
    // Places are in the order of memory.
    {{2, 3, 4, 5},
     1,
     3,
     {60, 20, 1, 4},
     {60, 20, 1, 4},
     "n 2 c 3 groups 3 places 20: 20 after 20",
     "60 20 1",
     "60 20 1"},
    {{2, 3, 4, 5}, 0, 0, {}, {}, "n 1 c 2 groups 2 places 60: 60 after 60", "0 60 1", "0 60 1"},
    {{6, 4}, 1, 0, {}, {}, "n 6 c 4 groups 4 places 1: 1 after 1", "4 1 1", "4 1 1"},
    {{6, 4, 1}, 1, 0, {}, {}, "n 6 c 4 groups 4 places 1: 1 after 1", "4 1 1", "4 1 1"},
    // Channels last in memory, in one tensor and in both.
    {{2, 3, 4, 5}, 1, 0, {60, 1, 15, 3}, {}, "n 2 c 3 groups 3 places 20: 20 after 20", "60 1 3", "60 20 1"},
    {{2, 6, 4, 5},
     1,
     3,
     {120, 1, 30, 6},
     {120, 1, 30, 6},
     "n 2 c 6 groups 3 places 20: 20 after 20",
     "120 1 6",
     "120 1 6"},
    // Gaps keep places apart, in either tensor.
    {{2, 3, 4, 5}, 1, 0, {120, 40, 10, 1}, {}, "n 2 c 3 groups 3 places 20: 4,5 after 20", "120 40 10,1", "60 20 5,1"},
    {{0, 3, 4, 5}, 1, 0, {}, {}, "n 0 c 3 groups 3 places 20: 20 after 20", "60 20 1", "60 20 1"},
    {{2, 3, 0, 5}, 1, 1, {}, {}, "n 2 c 3 groups 1 places 0: 0 after 0", "0 0 1", "0 0 1"},
};

TEST(finds_samples_channels_and_places) {
  for (Case& one : golden) {
    const normact_tensor x = tensor(1, one.shape, one.x_strides), y = tensor(2, one.shape, one.y_strides);
    normact::ChannelForward problem;
    normact::Device device;
    normact::Status status;
    if (one.groups == 0) {
      const normact_batch_norm_desc desc{sizeof desc, one.axis, 1, 1e-5, 0.1, 0, 0, 0, 0, 0};
      normact_batch_norm_forward_args args{};
      args.struct_size = sizeof args, args.x = &x, args.y = &y;
      status = normact::read_batch_norm_forward(&desc, &args, normact::Purpose::run, &problem, &device);
      CHECK(problem.set == normact::ChannelSet::channel);
    } else {
      const normact_group_norm_desc desc{sizeof desc, one.axis, 0, one.groups, 1e-5, 0.1, 0, 0, 0};
      normact_group_norm_forward_args args{};
      args.struct_size = sizeof args, args.x = &x, args.y = &y;
      status = normact::read_group_norm_forward(&desc, &args, normact::Purpose::run, &problem, &device);
      CHECK(problem.set == normact::ChannelSet::group);
    }
    CHECK(status.ok());
    same(geometry_text(problem.geometry), one.geometry);
    same(view_text(problem.geometry, problem.x), one.x);
    same(view_text(problem.geometry, problem.y), one.y);
  }
}

// What plays no part in a backward is checked and left out.
TEST(takes_the_slope_from_one_source) {
  Ints shape{2, 3, 4}, channels{3}, dense, bytes{3};
  const normact_tensor x = tensor(1, shape, dense), dy = tensor(2, shape, dense), dx = tensor(3, shape, dense),
                       addend = tensor(4, shape, dense), y = tensor(5, shape, dense), bias = tensor(6, channels, dense),
                       mean = tensor(7, channels, dense), rstd = tensor(8, channels, dense);
  normact_tensor mask = tensor(9, bytes, dense);
  mask.dtype_code = NORMACT_DTYPE_UINT;
  mask.dtype_bits = 8;
  normact_batch_norm_desc desc{sizeof desc, 1, 0, 1e-5, 0.1, 0, NORMACT_ACTIVATION_RELU, 0, 0, 0};
  normact_batch_norm_backward_args args{};
  args.struct_size = sizeof args;
  args.x = &x, args.dy = &dy, args.dx = &dx, args.addend = &addend, args.bias = &bias;
  args.mean = &mean, args.rstd = &rstd;
  const auto read = [&] {
    normact::ChannelBackward problem;
    normact::Device device;
    CHECK(normact::read_batch_norm_backward(&desc, &args, normact::Purpose::run, &problem, &device).ok());
    CHECK(problem.frozen);
    return text(problem.addend.data != nullptr, problem.bias.data != nullptr, problem.y.data != nullptr,
                problem.mask != nullptr);
  };
  same(read(), "1100");
  args.y = &y;
  same(read(), "0010");
  args.y = nullptr, args.mask = &mask;
  same(read(), "0001");
  args.y = &y, args.mask = nullptr;
  desc.activation = NORMACT_ACTIVATION_IDENTITY;
  same(read(), "0000");
}

TEST(reads_counts_and_tables) {
  Ints shape{2, 3, 4}, channels{3}, table{2, 3}, table_strides{10, 3}, dense, none;
  const normact_tensor x = tensor(1, shape, dense), dy = tensor(2, shape, dense), dx = tensor(3, shape, dense),
                       mean = tensor(4, channels, dense), rstd = tensor(5, channels, dense),
                       sums = tensor(6, table, table_strides), each = tensor(7, channels, dense),
                       one = tensor(8, none, dense);
  const normact_batch_norm_desc desc{sizeof desc, 1, 1, 1e-5, 0.1, 0, 0, 0, 0, 0};
  normact_batch_norm_input_gradient_args args{};
  args.struct_size = sizeof args;
  args.x = &x, args.dy = &dy, args.dx = &dx, args.mean = &mean, args.rstd = &rstd, args.sums = &sums;
  for (const normact_tensor* count : {&each, &one}) {
    args.count = count;
    normact::ChannelInputGradient problem;
    normact::Device device;
    CHECK(normact::read_batch_norm_input_gradient(&desc, &args, normact::Purpose::run, &problem, &device).ok());
    CHECK_EQ(problem.count_stride, count == &each ? 1 : 0);
    CHECK(problem.count == count->data);
    CHECK_EQ(problem.sums.row_stride, 10);
    CHECK_EQ(problem.sums.channel_stride, 3);
    CHECK(!problem.frozen);
  }
}

}  // namespace
