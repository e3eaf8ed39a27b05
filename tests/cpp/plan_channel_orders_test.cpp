// SPDX-License-Identifier: Apache-2.0
// Which problems of batch, group and instance norm go by slabs or launches of their own: tested here without a GPU.
#include "plan_channel_cases.h"

TEST(what_fits_few_blocks_is_kept_by_clusters) {
  ChannelForward p = forward(Layout::rows, 8, 1280, 256, 32);  // groups of 40 channels
  ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::slabs);
  CHECK_EQ(plan.tile, 80);  // two groups: a block for each of 128 slabs
  CHECK_EQ(plan.cluster, 1);
  CHECK_EQ(plan.workspace_bytes, size_t{0});
  plan = plan_of(backward(p));  // sums of the channels of each sample
  CHECK(plan.order == ChannelOrder::slabs);
  CHECK(plan.workspace_bytes >= 8 * 1280 * 8);
  CHECK(!plan.keeps_slopes);
  ChannelBackward activated = backward(p);
  activated.activation.kind = NORMACT_ACTIVATION_SILU;
  CHECK(plan_of(activated).keeps_slopes);
  activated.activation.kind = NORMACT_ACTIVATION_RELU;  // whose slope has no digits
  CHECK(!plan_of(activated).keeps_slopes);
  plan = plan_of(forward(Layout::rows, 2, 512, 4096, 32));
  CHECK(plan.order == ChannelOrder::slabs && plan.cluster == 2);
  const auto goes = [](const ChannelForward& of) { return plan_of(of).order == ChannelOrder::slabs; };
  CHECK(goes(forward(Layout::rows, 32, 2048, 49, 0)));
  CHECK(goes(forward(Layout::rows, 32, 2048, 49, 0, DType::f32)));
  CHECK(goes(forward(Layout::planes, 32, 2048, 49, 0)));  // columns
  CHECK(!goes(forward(Layout::rows, 32, 2048, 49, 0, DType::f64)));
  CHECK(!goes(forward(Layout::rows, 256, 2048, 49, 0)));  // too many turns
  CHECK(!goes(forward(Layout::rows, 2, 60, 49, 0)));      // no packs
  p = forward(Layout::rows, 32, 2048, 49, 0);
  p.addend = p.x;
  CHECK(goes(p));
  uint8_t mask = 0;
  p.mask = &mask;
  CHECK(!goes(p));
  p = forward(Layout::rows, 8, 256, 4096, 256);
  CHECK(goes(p));
  p.running.mean.data = memory;  // moments are left for these
  CHECK(goes(p) && plan_of(p).workspace_bytes >= 8 * 256 * 16);
  p.source = StatisticsSource::running;
  CHECK(plan_of(p).order == ChannelOrder::single);
  constexpr DeviceInfo kAmpere{80, 108, 163 * 1024 - 4096, {}};  // without clusters
  const auto on_ampere = [&](const ChannelForward& of) {
    return plan_channel(request_of(of, 0), kAmpere, ChannelTuning{});
  };
  CHECK(on_ampere(forward(Layout::rows, 8, 1280, 256, 32)).cluster == 1);
  CHECK(on_ampere(forward(Layout::rows, 2, 512, 65536, 32)).order != ChannelOrder::slabs);
}

TEST(whole_planes_go_by_launches) {
  ChannelForward p = forward(Layout::planes, 64, 512, 784, 0);
  ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::launches);
  CHECK_EQ(plan.reduce.sets, 512);
  CHECK_EQ(plan.reduce.packs, 64 * 98);
  check_launches(request_of(p, 0), plan);
  plan = plan_of(forward(Layout::planes, 8, 320, 4096, 32));  // groups of ten channels
  CHECK(plan.order == ChannelOrder::launches && plan.reduce.parts == 1);
  CHECK_EQ(plan.apply.packs, 10 * 512);
  plan = plan_of(backward(forward(Layout::planes, 8, 320, 4096, 32)));  // sums of each channel
  CHECK_EQ(plan.reduce.sets, 8 * 320);
  CHECK_EQ(plan.reduce.team, 32);
  CHECK_EQ(plan.apply.sets, 8 * 32);
  CHECK_EQ(plan.apply.team, normact::kChannelThreads);
  const auto goes = [](const ChannelForward& of) { return plan_of(of).order == ChannelOrder::launches; };
  CHECK(goes(forward(Layout::planes, 64, 512, 784, 0, DType::f32)));
  CHECK(!goes(forward(Layout::planes, 64, 512, 784, 0, DType::bf16, 2)));  // no whole packs
  CHECK(!goes(forward(Layout::planes, 64, 512, 788, 0)));
  CHECK(!goes(forward(Layout::planes, 64, 512, 784, 0, DType::f64)));
  CHECK(!goes(forward(Layout::planes, 64, 256, 3136, 0)));  // large planes are kept,
  p = forward(Layout::planes, 64, 256, 3136, 0);
  p.addend = p.x;
  CHECK(goes(p));                                             // if nothing else is read,
  CHECK(goes(forward(Layout::planes, 1, 128, 1310720, 32)));  // and sets are not
  CHECK(goes(forward(Layout::planes, 2, 150, 16, 1)));
  CHECK(!goes(forward(Layout::planes, 1024, 64, 16, 32)));  // groups of four packs
  CHECK(!goes(forward(Layout::planes, 2, 2304, 8, 1)));     // parts of more channels than threads
  uint8_t mask = 0;
  p = forward(Layout::planes, 64, 512, 784, 0);
  p.mask = &mask;
  CHECK(goes(p));
  p.geometry.places_after = 1;  // bits in another order than the elements
  CHECK(!goes(p));
  p = forward(Layout::planes, 64, 512, 784, 0, DType::f32);
  p.mask = &mask;  // a byte is two packs
  CHECK(!goes(p));
  CHECK(plan_of(backward(forward(Layout::planes, 64, 256, 3136, 0))).order == ChannelOrder::kept);
}
