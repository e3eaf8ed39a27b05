// SPDX-License-Identifier: Apache-2.0
// Which group and instance norms go through registers, and how entries of many samples are added up: tested here
// without a GPU.
#include "plan_channel_cases.h"

TEST(small_sets_lie_in_registers) {
  const auto goes = [](const ChannelForward& of) {
    const bool back = plan_of(backward(of)).order == ChannelOrder::registers;
    CHECK_EQ(plan_of(of).order == ChannelOrder::registers, back);
    return back;
  };
  for (const int64_t channels : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{64}, int64_t{1000}, int64_t{8192}}) {
    for (const int64_t samples : {int64_t{1}, int64_t{3}, int64_t{1000}, int64_t{1000000}}) {
      for (const int64_t places : {int64_t{1}, int64_t{3}, int64_t{49}}) {
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
          check_division(forward(Layout::planes, samples, channels, places, 1, dtype));
          check_division(forward(Layout::rows, samples, channels, places, channels, dtype));
        }
      }
    }
  }
  CHECK(goes(forward(Layout::planes, 1000000, 2, 1, 1)));
  CHECK(goes(forward(Layout::rows, 100000, 64, 1, 8)));
  CHECK(goes(forward(Layout::planes, 943, 58, 49, 1)));
  CHECK(goes(forward(Layout::planes, 5000, 58, 49, 58, DType::f64)));
  CHECK(goes(forward(Layout::planes, 300000, 4, 8, 4)));    // tiny planes
  CHECK(!goes(forward(Layout::planes, 3000, 4, 784, 4)));   // whole planes
  CHECK(!goes(forward(Layout::planes, 92, 32, 2842, 32)));  // large samples
  CHECK(!goes(forward(Layout::planes, 100, 8200, 1, 1)));   // sets of more than a block has registers for
  CHECK(!goes(forward(Layout::planes, 100000, 64, 1, 0)));  // of all samples
  CHECK(goes(forward(Layout::rows, 4000, 64, 16, 4)));      // packs
  CHECK(!goes(forward(Layout::rows, 2000, 128, 49, 64)));   // two channels of a place are no pack
  CHECK(!goes(forward(Layout::rows, 256, 512, 256, 32)));   // large samples, kept
  CHECK(plan_of(forward(Layout::rows, 100000, 64, 1, 8)).registers.width == 8);
  CHECK(plan_of(forward(Layout::rows, 100000, 64, 1, 8, DType::bf16, 2)).registers.width == 1);
  ChannelForward reversed = forward(Layout::rows, 1000, 16, 4, 2);
  CHECK(plan_of(reversed).registers.width == 8);
  reversed.x.place_stride[0] = reversed.y.place_stride[0] = -16;
  CHECK(plan_of(reversed).registers.width == 1);
  const ChannelForward large = forward(Layout::planes, 1000, 5000, 1, 1, DType::f64);
  const ChannelRequest back = request_of(backward(large), ChannelPasses::both, 0);
  DeviceInfo smaller = kAmpere;
  smaller.shared_memory_block = 95 * 1024;
  CHECK(plan_channel(back, kAmpere, ChannelTuning{}).order == ChannelOrder::registers);
  CHECK(plan_channel(back, smaller, ChannelTuning{}).order != ChannelOrder::registers);
  ChannelForward apart = forward(Layout::planes, 1000, 6, 4, 3);
  apart.geometry.place_ndim = 3;
  CHECK(!goes(apart));
  apart.geometry.place_ndim = 1;
  apart.y.place_stride[0] = int64_t{1} << 30;
  CHECK(plan_of(apart).order != ChannelOrder::registers);
}

/// A crop of larger planes.
TEST(small_sets_in_lines_lie_in_registers) {
  ChannelForward p = forward(Layout::planes, 3000, 6, 196, 3);
  p.geometry.place_ndim = 2;
  p.geometry.place_shape[0] = p.geometry.place_shape[1] = 14;
  p.x.place_stride[0] = 16;
  p.x.place_stride[1] = p.y.place_stride[1] = 1;
  p.y.place_stride[0] = 14;
  CHECK(plan_of(p).order == ChannelOrder::registers);
  CHECK_EQ(plan_of(p).registers.width, 1);
  CHECK(plan_of(backward(p)).order == ChannelOrder::registers);
  p.x.place_stride[0] = int64_t{1} << 30;
  CHECK(plan_of(p).order != ChannelOrder::registers);
}

TEST(entries_of_many_samples_are_added_up_in_chunks) {
  ChannelForward p = forward(Layout::planes, 100000, 4, 784, 4);
  CHECK_EQ(plan_of(p).chunks, 0);
  CHECK(plan_of(backward(p)).chunks > 0);
  p.running.mean.data = memory;
  CHECK(plan_of(p).chunks > 0);
  CHECK_EQ(plan_of(backward(forward(Layout::planes, 1000, 4, 784, 4))).chunks, 0);
  CHECK_EQ(plan_of(backward(forward(Layout::planes, 100000, 4, 784, 0))).chunks, 0);
}

TEST(a_query_covers_small_sets) {
  for (const int64_t samples : {int64_t{1000}, int64_t{100000}, int64_t{10000000}}) {
    const ChannelForward p = forward(Layout::rows, samples, 64, 1, 8);
    const ChannelRequest request = request_of(backward(p), ChannelPasses::both, 0);
    const size_t most = largest_channel_workspace(request, kHopper, ChannelTuning{});
    CHECK(most >= plan_of(backward(p)).workspace_bytes);
    CHECK(most >= plan_of(backward(forward(Layout::rows, samples, 64, 1, 8, DType::bf16, 2))).workspace_bytes);
  }
}
