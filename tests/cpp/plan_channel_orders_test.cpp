// SPDX-License-Identifier: Apache-2.0
// Which problems of batch, group and instance norm go by slabs or launches of their own: tested here without a GPU.
#include <array>
#include <set>

#include "plan_channel_cases.h"

TEST(sums_of_slabs_meet_in_no_bank) {
  for (const int channels : {32, 64, 128}) {
    const int rows = normact::kChannelThreads / channels;  // that threads add up side by side
    std::set<int64_t> banks;
    for (int row = 0; row < rows; ++row) {
      for (int c = 0; c < 32 / rows; ++c) banks.insert((row * normact::slab_sum_pitch(channels) + c) % 32);
    }
    CHECK_EQ(banks.size(), size_t{32});
  }
}

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
  CHECK(!goes(p));  // its bits are in another order
  p.geometry.places_after = 1;
  CHECK(goes(p));
  p = forward(Layout::rows, 64, 12, 49, 0, DType::f32);
  CHECK(goes(p));
  p.mask = &mask;
  p.geometry.places_after = 1;
  CHECK(!goes(p));  // bits of two packs are a byte, and rows end between these
  p = forward(Layout::rows, 8, 256, 4096, 256);
  CHECK(goes(p));
  p.running.mean.data = memory;  // moments are left for these
  CHECK(goes(p) && plan_of(p).workspace_bytes >= 8 * 256 * 16);
  p.source = StatisticsSource::running;
  CHECK(plan_of(p).order == ChannelOrder::launches);
  CHECK(on_ampere(forward(Layout::rows, 8, 1280, 256, 32)).cluster == 1);
  CHECK(on_ampere(forward(Layout::rows, 2, 512, 65536, 32)).order != ChannelOrder::slabs);
}

TEST(rows_that_clusters_do_not_fit_go_to_teams) {
  const ChannelForward p = forward(Layout::rows, 8, 320, 4096, 32);
  const ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::slabs && plan.team && plan.waits_together());
  CHECK(plan.cluster > 1 && plan.blocks <= 2 * 132);
  check_division(p);
  const ChannelForward batch = forward(Layout::rows, 64, 1024, 196, 0);
  CHECK(plan_of(batch).team && plan_of(batch).blocks <= 2 * 132);
  const ChannelForward wide = forward(Layout::rows, 4, 640, 4096, 0);
  CHECK(plan_of(wide).team && plan_of(wide).blocks > 2 * (132 - 16));
  CHECK(plan_of(wide, 16).team && plan_of(wide, 16).blocks <= 2 * (132 - 16));  // they wait for each other
  check_division(batch);
  const ChannelForward groups = forward(Layout::rows, 4, 320, 4096, 32);
  CHECK(plan_of(backward(groups)).team);
  CHECK_EQ(plan_of(backward(groups)).parts, plan_of(backward(groups)).cluster);  // sums of channels, of each block
  check_division(groups);
  CHECK(!plan_of(forward(Layout::rows, 8, 40, 4096, 4)).team);  // small
}

TEST(small_planes_of_batch_norm_are_bands) {
  const auto goes = [](const auto& of) { return plan_of(of).bands; };
  ChannelForward p = forward(Layout::planes, 64, 1024, 196, 0);
  ChannelPlan plan = plan_of(p);
  CHECK(plan.bands && plan.order == ChannelOrder::slabs && plan.access == ChannelAccess::columns);
  CHECK_EQ(plan.tile, 2 * 196);
  CHECK_EQ(plan.blocks, 512);
  CHECK_EQ(plan.workspace_bytes, size_t{0});
  CHECK(goes(backward(p)));
  const int kept = plan.kept_bytes;
  p.addend = p.x;
  CHECK(goes(p) && plan_of(p).kept_bytes == 2 * kept);
  check_division(p);
  p = forward(Layout::planes, 256, 2048, 49, 0);  // of more samples than a block has room for
  plan = plan_of(backward(p));
  CHECK(plan.bands && plan.tile == 8 * 49 && plan.cluster > 1);
  check_division(p);
  CHECK(!goes(forward(Layout::planes, 5000, 64, 49, 0)));             // nor a cluster
  CHECK(!goes(forward(Layout::planes, 64, 64, 4, 0)));                // packs of more than two channels
  CHECK(!goes(forward(Layout::planes, 64, 64, 196, 64)));             // instance norm
  CHECK(!goes(forward(Layout::planes, 64, 64, 196, 0, DType::f32)));  // planes are whole packs
}

bool is_plane_slab(const ChannelPlan& plan) {
  return plan.order == ChannelOrder::slabs && plan.access == ChannelAccess::planes;
}

TEST(sets_of_planes_that_fit_few_blocks_are_slabs) {
  ChannelForward p = forward(Layout::planes, 8, 256, 4096, 256);  // 8 KB each
  ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::slabs && plan.access == ChannelAccess::planes);
  CHECK_EQ(plan.blocks, 8 * 256);
  CHECK_EQ(plan.threads, 64);
  CHECK_EQ(plan.workspace_bytes, size_t{0});
  plan = plan_of(backward(p));
  CHECK(plan.order == ChannelOrder::slabs && plan.threads == 128);
  CHECK_EQ(plan.workspace_bytes, size_t{8 * 256 * 8});
  p.running.mean.data = memory;  // moments are left for these
  CHECK(plan_of(p).workspace_bytes >= 8 * 256 * 16);
  p.source = StatisticsSource::running;
  CHECK(plan_of(p).order != ChannelOrder::slabs);
  const auto goes = [](const auto& of) { return is_plane_slab(plan_of(of)); };
  CHECK_EQ(plan_of(forward(Layout::planes, 1, 256, 4096, 256)).threads, 64);  // whatever the batch
  p = forward(Layout::planes, 2, 512, 4096, 32);                              // two blocks for each of 64 sets
  CHECK(goes(p) && plan_of(p).cluster == 2 && plan_of(backward(p)).cluster == 2);
  ChannelBackward activated = backward(p);
  activated.activation.kind = NORMACT_ACTIVATION_SILU;
  CHECK(goes(activated) && plan_of(activated).keeps_slopes);
  CHECK_EQ(on_ampere(p).cluster, 1);
  CHECK(goes(forward(Layout::planes, 6, 160, 9216, 32)));  // five channels of 18 KB: no two blocks have as many
  p = forward(Layout::planes, 32, 512, 784, 0);
  CHECK(goes(p) && goes(backward(p)));
  CHECK_EQ(plan_of(backward(p)).threads, 448);  // 14 warps have as many packs each
  p.addend = p.x;
  CHECK(!goes(p));
  CHECK(!goes(forward(Layout::planes, 64, 512, 784, 0)));             // two of them a multiprocessor
  CHECK(goes(forward(Layout::planes, 40, 96, 576, 8)));               // a warp's packs of two channels:
  CHECK(!goes(backward(forward(Layout::planes, 40, 96, 576, 8))));    // sums would have to tell them apart
  CHECK(!goes(forward(Layout::planes, 32, 512, 256, 512)));           // a pack for each lane of a warp
  CHECK(!goes(backward(forward(Layout::planes, 2, 1280, 256, 32))));  // a launch for sums of channels is half of all
  CHECK(!goes(forward(Layout::planes, 8, 256, 4100, 256)));           // no whole packs
}

/// A shape of test_channel_plane_slabs.py, and which directions go by slabs: of bf16, with SiLU, and of fp32.
struct SlabCase {
  int64_t samples, channels, places, groups;
  bool forward, backward, activated, wide_forward, wide_backward;
};

TEST(slabs_of_planes_are_tested_on_a_gpu) {
  const SlabCase cases[] = {
      {70, 64, 1024, 64, true, true, true, true, true},     {20, 61, 4160, 61, true, true, true, true, true},
      {2, 30, 80000, 30, true, true, true, true, false},    {8, 8, 72000, 8, true, true, true, true, false},
      {40, 70, 4096, 70, true, true, true, true, true},     {33, 20, 256, 0, true, true, true, true, true},
      {17, 130, 960, 0, true, true, true, true, true},      {32, 16, 3136, 0, true, true, true, true, true},
      {9, 3, 10400, 0, true, true, true, true, true},       {64, 600, 256, 0, true, true, true, true, false},
      {5, 48, 64, 2, true, false, false, true, false},      {40, 96, 576, 8, true, false, false, true, true},
      {60, 320, 256, 16, true, true, true, true, true},     {30, 90, 2048, 9, true, true, true, false, false},
      {1, 120, 36864, 8, true, false, false, false, false}, {2, 200, 12288, 10, true, false, false, false, false},
      {2, 512, 4096, 32, true, true, true, true, false},    {2, 256, 4096, 32, true, false, true, true, true},
      {2, 60, 9216, 12, true, false, true, true, false},    {2, 56, 12288, 8, true, false, true, true, false},
  };
  for (const SlabCase& of : cases) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const bool wide = dtype == DType::f32;
      const ChannelForward p = forward(Layout::planes, of.samples, of.channels, of.places, of.groups, dtype);
      ChannelBackward b = backward(p);
      CHECK_EQ(is_plane_slab(plan_of(p)), wide ? of.wide_forward : of.forward);
      CHECK_EQ(is_plane_slab(plan_of(b)), wide ? of.wide_backward : of.backward);
      b.activation.kind = NORMACT_ACTIVATION_SILU;
      if (!wide) CHECK_EQ(is_plane_slab(plan_of(b)), of.activated);
    }
  }
  ChannelBackward b = backward(forward(Layout::planes, 2, 512, 4096, 32));  // a cluster, whose blocks have as much
  CHECK_EQ(plan_of(b).cluster, 2);
  b = backward(forward(Layout::planes, 2, 56, 12288, 8));  // and one whose last block has one plane of two
  b.activation.kind = NORMACT_ACTIVATION_SILU;
  CHECK_EQ(plan_of(b).cluster, 4);
  CHECK_EQ(plan_of(b).units_a_part, 2 * 1536);
}

TEST(whole_planes_go_by_launches) {
  ChannelForward p = forward(Layout::planes, 64, 512, 784, 0);
  ChannelPlan plan = on_ampere(p);
  CHECK(plan.order == ChannelOrder::launches);
  CHECK_EQ(plan.reduce.sets, 512);
  CHECK_EQ(plan.reduce.packs, 64 * 98);
  check_launches(request_of(p, 0), plan);
  plan = on_ampere(forward(Layout::planes, 8, 320, 4096, 32));  // groups of ten channels
  CHECK(plan.order == ChannelOrder::launches && plan.reduce.parts == 1);
  CHECK_EQ(plan.apply.packs, 10 * 512);
  p = forward(Layout::planes, 8, 320, 4096, 32);
  plan = plan_channel(request_of(backward(p), ChannelPasses::both, 0), kAmpere, ChannelTuning{});  // sums of channels
  CHECK_EQ(plan.reduce.sets, 8 * 320);
  CHECK_EQ(plan.reduce.team, 32);
  CHECK_EQ(plan.apply.sets, 8 * 32);
  CHECK_EQ(plan.apply.team, normact::kChannelThreads);
  const auto goes = [](const ChannelForward& of) {
    return plan_of(of).order == ChannelOrder::launches && on_ampere(of).order == ChannelOrder::launches;
  };
  CHECK(goes(forward(Layout::planes, 3, 256, 64, 0)));  // small
  CHECK(goes(forward(Layout::planes, 3, 256, 64, 0, DType::f32)));
  CHECK(!goes(forward(Layout::planes, 3, 256, 784, 0, DType::bf16, 2)));  // no whole packs
  CHECK(!goes(forward(Layout::planes, 8, 256, 788, 0)));
  CHECK(!goes(forward(Layout::planes, 3, 256, 784, 0, DType::f64)));
  CHECK(goes(forward(Layout::planes, 1024, 16, 12544, 0)));  // rings have room for a set and no more
  CHECK(goes(forward(Layout::planes, 1, 128, 1310720, 8)));  // or for none
  CHECK(!goes(forward(Layout::planes, 1024, 64, 16, 32)));   // groups of four packs
  CHECK(plan_of(backward(forward(Layout::planes, 2, 2304, 8, 1))).order ==
        ChannelOrder::kept);  // parts of more channels
                              // than threads
  uint8_t mask = 0;
  p = forward(Layout::planes, 3, 256, 784, 0);
  p.mask = &mask;
  CHECK(goes(p));
  p.geometry.places_after = 1;  // bits in another order than the elements
  CHECK(!goes(p));
  p = forward(Layout::planes, 3, 256, 784, 0, DType::f32);
  p.mask = &mask;  // a byte is two packs
  CHECK(!goes(p));
  p = forward(Layout::planes, 64, 256, 3136, 0);
  CHECK(on_ampere(p).order == ChannelOrder::kept);  // large planes, if nothing else is read
  p.addend = p.x;
  CHECK(on_ampere(p).order == ChannelOrder::launches);
}

TEST(launches_are_tested_on_a_gpu) {  // test_channel_planes.py
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const ChannelForward many = forward(Layout::planes, 1, 4400, 1024, 4, dtype);  // parts of some channels each
    CHECK(plan_of(many).order == ChannelOrder::launches && plan_of(backward(many)).order == ChannelOrder::launches);
    CHECK(plan_of(many).apply.packs_a_part > 2 * 1024 * size_of(dtype) / 16);
  }
  ChannelForward p = forward(Layout::planes, 35, 70, 400, 70, DType::f32);
  p.running.mean.data = memory;
  CHECK(plan_of(p).order == ChannelOrder::launches);
  p = forward(Layout::planes, 5, 60, 43264, 60, DType::f32);
  p.running.mean.data = memory;
  CHECK(plan_of(p).order == ChannelOrder::rings);
}

TEST(backwards_of_narrow_rows_go_by_launches) {
  const auto order_of = [](int64_t samples, int64_t channels, int64_t places, DType dtype) {
    return plan_of(backward(forward(Layout::rows, samples, channels, places, 0, dtype))).order;
  };
  // MobileNet, EfficientNet.
  CHECK(order_of(64, 40, 784, DType::bf16) == ChannelOrder::launches);
  CHECK(order_of(256, 80, 196, DType::bf16) == ChannelOrder::launches);
  CHECK(order_of(256, 112, 196, DType::bf16) == ChannelOrder::launches);
  CHECK(order_of(64, 40, 784, DType::f32) == ChannelOrder::launches);
  CHECK(order_of(64, 80, 196, DType::bf16) == ChannelOrder::slabs);  // which are faster where they fit
  CHECK(plan_of(forward(Layout::rows, 256, 40, 784, 0)).order == ChannelOrder::kept);  // forwards stay
}

TEST(sets_of_planes_go_through_clusters) {
  ChannelForward p = forward(Layout::planes, 64, 256, 3136, 0);
  ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::rings);
  CHECK(plan.cluster == 4 && plan.blocks == 120 && plan.ring.slots == 2 * plan.ring.chunks && plan.ring.lead == 1);
  CHECK_EQ(plan.ring.packs_a_block, 6272);  // 14 warps have as many each
  CHECK_EQ(plan.workspace_bytes, size_t{0});
  CHECK_EQ(plan_of(p, 14).blocks, 104);
  plan = plan_of(backward(p));
  CHECK(plan.order == ChannelOrder::rings && plan.cluster == 8 && plan.workspace_bytes == 0);
  p.addend = p.x;
  plan = plan_of(p);
  CHECK_EQ(plan.kept_bytes, 2 * plan.ring.ring_rounds * plan.ring.threads * 16);
  ChannelBackward again = backward(p);  // h, from x and addend
  again.addend = p.x;
  again.activation.kind = NORMACT_ACTIVATION_SILU;
  CHECK(plan_of(again).order == ChannelOrder::rings);
  CHECK_EQ(request_of(again, ChannelPasses::both, 0).staged, 3);
  uint8_t mask = 0;
  again.activation.kind = NORMACT_ACTIVATION_RELU;
  again.mask = &mask;  // instead of these
  CHECK(plan_of(again).order == ChannelOrder::rings);
  CHECK_EQ(request_of(again, ChannelPasses::both, 0).staged, 2);
  const auto goes = [](const ChannelForward& of) { return plan_of(of).order == ChannelOrder::rings; };
  // The shapes of test_channel_rings.py.
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const auto planes = [&](int64_t samples, int64_t channels, int64_t places, bool instance = false) {
      return forward(Layout::planes, samples, channels, places, instance ? channels : 0, dtype);
    };
    for (const ChannelForward& of : {planes(52, 290, 784), planes(20, 140, 3136), planes(17, 70, 8320),
                                     planes(5, 60, 43264, true), planes(34, 8, 40000, true)}) {
      CHECK(goes(of) && plan_of(backward(of)).order == ChannelOrder::rings);
    }
    const bool wide = dtype == DType::f32;
    CHECK(wide || goes(planes(12, 6, 78400)));
    CHECK(wide || goes(planes(40, 8, 25600)));
    CHECK(wide || goes(planes(1, 7, 1000000)));
    CHECK(wide || goes(planes(3, 5, 1048576, true)));
    CHECK(!wide || goes(planes(5, 60, 19600, true)));
    CHECK(!wide || goes(planes(20, 4, 65536, true)));
  }
  p = forward(Layout::planes, 8, 64, 65536, 64);
  CHECK(goes(p) && plan_of(p).workspace_bytes == 0);
  CHECK(plan_of(backward(p)).workspace_bytes >= 8 * 64 * 8);  // sums of the channels of each sample
  p.running.mean.data = memory;                               // moments are left for these
  CHECK(goes(p) && plan_of(p).workspace_bytes >= 8 * 64 * 16);
  p.source = StatisticsSource::running;
  CHECK(!goes(p));
  p = forward(Layout::planes, 8, 256, 4096, 256);
  p.addend = p.x;                                           // else slabs
  CHECK(!goes(p));                                          // short turns
  CHECK(!goes(forward(Layout::planes, 512, 256, 256, 0)));  // small planes
  CHECK(!goes(forward(Layout::planes, 64, 256, 3132, 0)));  // no whole packs
  CHECK(!goes(forward(Layout::rows, 64, 256, 3136, 0)));
}

TEST(groups_of_planes_go_through_clusters) {
  const auto goes = [](const ChannelForward& of) { return plan_of(of).order == ChannelOrder::rings; };
  const auto goes_back = [](const ChannelForward& of) { return plan_of(backward(of)).order == ChannelOrder::rings; };
  ChannelForward p = forward(Layout::planes, 9, 320, 4096, 32);
  ChannelPlan plan = plan_of(p);
  CHECK(goes(p) && plan.cluster == 2 && plan.ring.slots == 4 * plan.ring.chunks && plan.ring.channels == 5);
  CHECK_EQ(plan.workspace_bytes, size_t{0});
  p = forward(Layout::planes, 8, 320, 4096, 32);
  plan = plan_of(backward(p));
  CHECK(goes_back(p) && plan.cluster == 1 && plan.ring.lead < 0);  // a ring has room for little more than a set
  CHECK_EQ(plan.workspace_bytes, size_t{8 * 320 * 8});
  plan = plan_of(backward(forward(Layout::planes, 22, 24, 32768, 6, DType::f32)));
  CHECK(plan.order == ChannelOrder::rings && plan.cluster > 2 && plan.parts > 1);
  // The shapes of test_channel_rings.py.
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const auto groups = [&](int64_t samples, int64_t channels, int64_t places, int64_t count) {
      return forward(Layout::planes, samples, channels, places, count, dtype);
    };
    for (const ChannelForward& of :
         {groups(9, 320, 4096, 32), groups(54, 25, 9216, 5), groups(22, 24, 32768, 6), groups(68, 20, 9216, 4)}) {
      CHECK(goes(of) && goes_back(of));
    }
    const ChannelForward uneven = groups(18, 96, 5000, 8);  // a warp's packs of two channels
    CHECK(goes(uneven) && !goes_back(uneven));
  }
  CHECK(!goes(forward(Layout::planes, 64, 4096, 64, 32)));  // small planes
  CHECK(!goes(forward(Layout::planes, 2, 8, 131072, 2)));   // few blocks
  CHECK(!goes(forward(Layout::rows, 8, 320, 4096, 32)));
}

TEST(sets_too_large_for_clusters_go_through_teams) {
  const auto goes = [](const ChannelPlan& of) { return of.order == ChannelOrder::rings && !of.ring.clusters; };
  ChannelForward p = forward(Layout::planes, 1, 128, 20 * 65536, 32);
  ChannelPlan plan = plan_of(p);
  CHECK(goes(plan) && plan.cluster == 1 && plan.blocks == plan.ring.blocks && plan.blocks > 120);
  CHECK(plan.waits_together() && plan.ring.lead >= plan.ring.chunks);  // an exchange has the time of a turn
  CHECK(plan.workspace_bytes >= 32 * static_cast<size_t>(plan.blocks) * 16);
  CHECK_EQ(plan_of(p, 100).waits_together(), false);  // 32 blocks have no room for a set
  p = forward(Layout::planes, 256, 64, 12544, 0);
  CHECK(goes(plan_of(p)));
  CHECK(plan_of(p, 12).blocks <= 120);
  plan = plan_of(backward(p));
  CHECK(goes(plan) && plan.blocks / plan.ring.blocks == 2);
  p.addend = p.x;  // less is gained by reading x once
  CHECK(plan_of(p).order == ChannelOrder::launches);
  // The shapes of test_channel_teams.py.
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const auto both = [&](const ChannelForward& of) { return goes(plan_of(of)) && goes(plan_of(backward(of))); };
    CHECK(both(forward(Layout::planes, 7, 14, 512 * 512, 0, dtype)));
    CHECK(both(forward(Layout::planes, 2, 6, 1400 * 1600, 6, dtype)));
    CHECK(both(forward(Layout::planes, 1, 30, 1024 * 800, 10, dtype)));
    // Two sets are summed before the sums of one are asked for; blocks have less at the end of a group.
    const auto leads = [&](const ChannelPlan& of) { return goes(of) && of.ring.lead == 2 * of.ring.chunks; };
    const ChannelForward batch = forward(Layout::planes, 7, 22, 288 * 384, 0, dtype);
    const ChannelForward group = forward(Layout::planes, 37, 7, 256 * 257, 1, dtype);
    CHECK(goes(plan_of(batch)) && leads(plan_of(backward(batch))));
    CHECK(leads(plan_of(backward(group))));
    CHECK(leads(plan_of(forward(Layout::planes, 2, 16, 1280 * 640, 8, dtype))));
    CHECK(plan_of(backward(group)).units % plan_of(backward(group)).ring.packs_a_block != 0);
  }
  CHECK(!goes(plan_of(forward(Layout::planes, 10, 4, 512 * 512, 0))));  // small
}
