// SPDX-License-Identifier: Apache-2.0
// How batch, group and instance norms are accessed, divided and ordered: tested here without a GPU.
#include "plan_channel_cases.h"

TEST(access) {
  CHECK(access_of(forward(Layout::planes, 8, 64, 196, 0)) == ChannelAccess::planes);
  CHECK(access_of(forward(Layout::planes, 8, 64, 49, 0)) == ChannelAccess::planes);
  CHECK(access_of(forward(Layout::planes, 8, 64, 49, 0, DType::bf16, 2)) == ChannelAccess::planes);
  CHECK(access_of(forward(Layout::planes, 8, 64, 4, 0)) == ChannelAccess::elements);  // less than a pack
  CHECK(access_of(forward(Layout::rows, 8, 64, 49, 0)) == ChannelAccess::rows);
  CHECK(access_of(forward(Layout::rows, 8, 60, 49, 0)) == ChannelAccess::elements);  // rows are not whole packs
  CHECK(access_of(forward(Layout::rows, 8, 60, 49, 0, DType::f32)) == ChannelAccess::rows);
  CHECK(access_of(forward(Layout::rows, 8, 64, 49, 0, DType::bf16, 2)) == ChannelAccess::elements);
  CHECK(access_of(forward(Layout::rows, 8, 64, 49, 0, DType::f64)) == ChannelAccess::elements);
  ChannelForward p = forward(Layout::planes, 8, 64, 196, 0);
  p.y.channel_stride = 200;  // not x's
  CHECK(access_of(p) == ChannelAccess::elements);
  p = forward(Layout::planes, 8, 64, 196, 0);
  p.y.data = memory + 2;  // begins elsewhere in its 16 bytes than x
  CHECK(access_of(p) == ChannelAccess::elements);
}

TEST(batch_norm_of_planes) {
  const ChannelPlan plan = on_ampere(forward(Layout::planes, 64, 256, 3136, 0));
  CHECK(plan.order == ChannelOrder::kept);
  CHECK_EQ(plan.lanes, 32);
  CHECK_EQ(plan.tile, 1);
  CHECK_EQ(plan.lines, 8);
  CHECK_EQ(plan.slabs, 256);
  CHECK(plan.waits_together());
  CHECK_EQ(plan.counter_bytes, size_t{0});  // blocks look for each other's sums
  CHECK_EQ(plan.blocks % plan.items_a_slab(), 0);
  CHECK(plan.delay > 0);
}

TEST(batch_norm_of_rows) {
  const ChannelForward p = forward(Layout::rows, 64, 512, 784, 0);
  ChannelTuning kept_tuning;
  kept_tuning.row_rounds = 2;
  const ChannelPlan kept = plan_channel(request_of(p, 0), kHopper, kept_tuning);
  CHECK(kept.order == ChannelOrder::kept);
  CHECK_EQ(kept.lanes, 8);  // 128 bytes
  CHECK_EQ(kept.tile, 64);
  CHECK_EQ(kept.lines, 32);
  CHECK_EQ(kept.units, 50176);
  CHECK_EQ(kept.slabs, 8);
  const ChannelPlan twice = plan_of(p);
  CHECK(twice.order == ChannelOrder::launches);
  CHECK_EQ(twice.lanes, 16);  // 256 bytes
}

TEST(what_a_first_pass_leaves_in_the_cache) {
  const auto read_again = [](int64_t samples, const DeviceInfo& device) {
    const ChannelForward p = forward(Layout::rows, samples, 256, 3136, 0);
    const ChannelPlan plan = plan_channel(request_of(p, 0), device, ChannelTuning{});
    CHECK(plan.order == ChannelOrder::launches);
    return plan.cached;
  };
  CHECK(read_again(32, kHopper));  // 49 MiB of 60
  CHECK(!read_again(64, kHopper));
  CHECK(!read_again(32, kAmpere));  // of 40
  const auto backward_cached = [](int64_t samples) {
    return plan_of(backward(forward(Layout::rows, samples, 256, 3136, 0))).cached;
  };
  CHECK(backward_cached(16));  // x and dy
  CHECK(!backward_cached(32));
  ChannelForward running = forward(Layout::rows, 32, 256, 3136, 0);
  running.source = StatisticsSource::running;  // a single pass leaves nothing to read again
  CHECK(!plan_of(running).cached);
}

TEST(batch_norm_of_small_planes_goes_by_columns) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const int64_t width = 16 / size_of(dtype);
    const ChannelPlan kept = plan_of(forward(Layout::planes, dtype == DType::f32 ? 3000 : 4000, 64, 49, 0, dtype));
    CHECK(kept.access == ChannelAccess::columns && kept.order == ChannelOrder::kept);
    CHECK_EQ(kept.tile % (width * 49), 0);  // whole channels of whole packs
    CHECK_EQ(kept.groups_an_item * 49, kept.tile);
    const ChannelPlan twice = plan_of(forward(Layout::planes, 1400, 2048, 49, 0, dtype));
    CHECK(twice.access == ChannelAccess::columns && twice.order == ChannelOrder::launches);
    CHECK(twice.groups_an_item * 49 >= twice.tile);  // parts of channels, too
    for (const ChannelPlan& plan : {kept, twice}) CHECK_EQ(plan.lanes * width, plan.tile);
    CHECK_EQ(twice.groups, 2048);
    CHECK_EQ(twice.units, 1400);
  }
  const ChannelForward large = forward(Layout::planes, 1400, 2048, 49, 0);
  CHECK(plan_of(backward(large)).access == ChannelAccess::columns);
  CHECK(plan_channel(request_of(backward(large), ChannelPasses::reduce, 0), kHopper, ChannelTuning{}).access ==
        ChannelAccess::planes);  // whose sums are of channels
  const auto goes = [](ChannelForward p) { return plan_of(p).access == ChannelAccess::columns; };
  CHECK(goes(forward(Layout::planes, 8, 64, 4, 0)));                     // planes of less than a pack
  CHECK(!goes(forward(Layout::planes, 32, 64, 64, 0)));                  // planes are whole packs
  CHECK(!goes(forward(Layout::planes, 4, 64, 49, 0)));                   // few samples
  CHECK(!goes(forward(Layout::planes, 32, 20, 49, 0)));                  // samples are not whole packs
  CHECK(!goes(forward(Layout::planes, 32, 64, 49, 0, DType::bf16, 2)));  // nor begin at one
  CHECK(!goes(forward(Layout::planes, 32, 64, 3136, 0)));                // large planes
  CHECK(!goes(forward(Layout::planes, 32, 64, 49, 32)));                 // groups of a sample
  CHECK(!goes(forward(Layout::planes, 32, 64, 49, 0, DType::f64)));
  ChannelForward p = forward(Layout::planes, 32, 64, 49, 0);
  p.source = StatisticsSource::running;
  CHECK(goes(p) && plan_of(p).order == ChannelOrder::launches);
  p = forward(Layout::planes, 32, 64, 49, 0);
  p.x.channel_stride = p.y.channel_stride = 56;
  CHECK(!goes(p));
  p = forward(Layout::planes, 32, 64, 49, 0);
  p.geometry.places_after = 1;  // NHWC whose memory is NCHW
  CHECK(goes(p));
  uint8_t mask = 0;
  p.mask = &mask;  // its bits are those of NHWC
  CHECK(!goes(p));
}

TEST(larger_than_the_device_is_read_twice) {
  const ChannelPlan plan = plan_of(forward(Layout::rows, 256, 256, 3136, 0));
  CHECK(plan.order == ChannelOrder::launches);
  CHECK_EQ(plan.tile, 128);
  CHECK_EQ(plan.unit_step, plan.lines * plan.parts);  // blocks go through x side by side
  CHECK(plan.apply_parts > plan.parts);
  const ChannelPlan one = plan_of(forward(Layout::planes, 1, 1, 1 << 28, 0));
  CHECK(one.order == ChannelOrder::waves && one.counter_bytes > 0 && !one.waits_together());
}

// All that a block asks for fits the shared memory of one, whatever the device, the channels and the passes.
TEST(shared_memory_fits_every_device) {
  constexpr DeviceInfo kDevices[] = {{75, 40, 64 * 1024 - 4096, {}, 4 << 20},
                                     kAmpere,
                                     {86, 84, 99 * 1024 - 4096, {}, 4 << 20},
                                     kHopper,
                                     {120, 170, 99 * 1024 - 4096, {170, 85, 42, 21, 0}, 96 << 20}};
  uint8_t mask = 0;
  const auto check = [](const ChannelRequest& r, const DeviceInfo& device) {
    const ChannelPlan plan = plan_channel(r, device, ChannelTuning{});
    CHECK(plan.scratch_bytes + plan.parameter_bytes + plan.bits_bytes + plan.kept_bytes <= device.shared_memory_block);
  };
  for (const DeviceInfo& device : kDevices) {
    for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
      for (int64_t channels = 8; channels < 10000; channels += channels < 600 ? 8 : 8 * (channels / 64)) {
        for (const int64_t places : {int64_t{49}, int64_t{400}, int64_t{12544}}) {
          for (const Layout layout : {Layout::rows, Layout::planes}) {
            ChannelForward p = forward(layout, 40, channels, places, 0, dtype);
            check(request_of(p, 0), device);
            check(request_of(backward(p), ChannelPasses::both, 0), device);
            check(request_of(backward(p), ChannelPasses::apply, 0), device);
            p.source = StatisticsSource::running;
            check(request_of(p, 0), device);
            p.source = StatisticsSource::batch;
            p.addend = p.x;
            p.mask = &mask;
            if (layout == Layout::rows) p.geometry.places_after = 1;
            check(request_of(p, 0), device);
            check(request_of(forward(layout, 3, channels, places, channels / 8, dtype), 0), device);
            normact::ChannelMoments moments{};
            static_cast<normact::ChannelProblem&>(moments) = forward(layout, 40, channels, places, 0, dtype);
            moments.x = p.x;
            check(request_of(moments, 0), device);
          }
        }
      }
    }
  }
}

// The shapes of tests/python/test_channel_rows.py.
TEST(rows_that_are_read_twice_go_by_launches) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const ChannelForward sets[] = {forward(Layout::rows, 10, 72, 14400, 0, dtype),
                                   forward(Layout::rows, 1, 40, 360000, 5, dtype),
                                   forward(Layout::rows, 2, 24, 420000, 24, dtype)};
    for (const ChannelForward& p : sets) {
      CHECK(plan_of(p).order == ChannelOrder::launches && plan_of(backward(p)).order == ChannelOrder::launches);
      check_division(p);
    }
    const bool wide = dtype == DType::f32;
    CHECK(plan_of(sets[0]).cached && plan_of(backward(sets[0])).cached == !wide);  // both ways are tested
    CHECK(!plan_of(backward(sets[2])).cached);
    CHECK(!plan_of(forward(Layout::rows, 3, 1032, 9025, 0, dtype)).cached);
    const ChannelPlan plan = plan_of(backward(forward(Layout::rows, 3, 1032, 9025, 0, dtype)));
    CHECK(plan.order == ChannelOrder::launches && plan.slabs > 1 && plan.tile < 1032);
    CHECK_EQ(plan.parameter_bytes, normact::kTileNumbers * plan.tile * 4);
    const ChannelForward small = forward(Layout::planes, 300, 104, 225, 0, dtype);
    const ChannelPlan columns = plan_of(backward(small));
    CHECK(columns.order == ChannelOrder::launches && columns.access == ChannelAccess::columns);
    CHECK(columns.tile % 225 != 0);
    check_division(small);
  }
}

ChannelPlan plan_with_mask(Layout layout, int64_t samples, int64_t channels, int64_t places) {
  static uint8_t mask;
  ChannelForward p = forward(layout, samples, channels, places, 0);
  p.mask = &mask;
  if (layout == Layout::rows) p.geometry.places_after = 1;
  const ChannelPlan plan = plan_of(p);
  if (plan.order == ChannelOrder::kept) check_kept(p, plan);
  return plan;
}

TEST(masks_are_written_with_the_output) {
  for (const int64_t samples : {int64_t{1}, int64_t{3}, int64_t{32}, int64_t{256}}) {
    for (const int64_t places : {int64_t{9}, int64_t{49}, int64_t{196}, int64_t{361}}) {
      for (const int64_t channels : {int64_t{64}, int64_t{72}, int64_t{2048}}) {
        const ChannelPlan planes = plan_with_mask(Layout::planes, samples, channels, places);
        if (planes.access == ChannelAccess::columns) {
          CHECK(planes.mask == ChannelMask::together && samples > 3 && places < 361 && planes.mask_with_y);
        } else {
          CHECK(planes.mask == ChannelMask::edged && planes.bits_bytes > 0 && planes.mask_with_y);
          CHECK(planes.tile * places % 8 == 0 && channels % planes.tile == 0 && planes.segments == 1);
        }
        const ChannelPlan rows = plan_with_mask(Layout::rows, samples, channels, places);
        CHECK(rows.mask == ChannelMask::together && rows.mask_with_y);
      }
    }
  }
  const ChannelPlan whole = plan_with_mask(Layout::planes, 64, 64, 784);
  CHECK(whole.mask == ChannelMask::together && whole.mask_with_y);
  CHECK(plan_with_mask(Layout::planes, 4, 20, 49).mask == ChannelMask::apart);     // samples share bytes
  CHECK(plan_with_mask(Layout::planes, 2, 64, 20001).mask == ChannelMask::apart);  // so do parts of planes
  CHECK(!plan_with_mask(Layout::planes, 2, 64, 20001).mask_with_y);
  ChannelForward p = forward(Layout::rows, 2, 16, 9999, 0);
  uint8_t mask = 0;
  p.mask = &mask;
  CHECK(plan_of(p).mask == ChannelMask::apart);  // bits in row-major order, elements with channels last
}

TEST(bits_of_two_packs_are_on_neighbouring_threads) {
  for (const int64_t channels : {int64_t{1032}, int64_t{2040}, int64_t{2056}, int64_t{2072}, int64_t{4104}}) {
    ChannelForward p = forward(Layout::rows, 256, channels, 3136, 0, DType::f32);
    uint8_t mask = 0;
    p.mask = &mask;
    p.geometry.places_after = 1;
    const ChannelPlan plan = plan_of(p);
    CHECK(plan.order == ChannelOrder::launches && plan.lanes % 2 == 0 && plan.mask_with_y);
    check_division(p);
  }
}

TEST(small_groups_need_nobody_else) {
  ChannelForward p = forward(Layout::rows, 256, 512, 256, 32);
  const ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::kept);
  CHECK_EQ(plan.items_a_slab(), 1);
  CHECK_EQ(plan.counter_bytes, size_t{0});
  CHECK(plan_of(forward(Layout::planes, 2, 128, 262144, 32, DType::f32)).waits_together());
}

TEST(teams_are_whole) {
  for (const int64_t places : {3136, 784, 1000, 4096}) {
    for (const int64_t samples : {16, 61, 200}) {
      const ChannelPlan plan = plan_of(forward(Layout::planes, samples, 256, places, 0));
      if (plan.order == ChannelOrder::kept) CHECK_EQ(plan.blocks % plan.items_a_slab(), 0);
    }
  }
}

TEST(entries_of_groups) {
  ChannelPlan plan = plan_of(forward(Layout::rows, 32, 320, 4096, 32));  // groups of ten channels
  CHECK_EQ(plan.tile, 112);
  CHECK_EQ(plan.groups_an_item, 13);  // of which the first and the last may begin in another tile
  CHECK_EQ(plan.group_entries_at, 0);
  plan = plan_of(forward(Layout::rows, 3, 640, 9000, 1));  // a group of ten tiles
  CHECK_EQ(plan.groups_an_item, 1);
  CHECK_EQ(plan_of(forward(Layout::planes, 64, 256, 3136, 0)).groups_an_item, 0);
}

TEST(what_fits_the_device_at_once_is_one_item_a_block) {
  const ChannelPlan plan = plan_of(forward(Layout::rows, 64, 64, 784, 0));
  CHECK(plan.order == ChannelOrder::kept);
  CHECK_EQ(plan.slabs * plan.items_a_slab(), plan.blocks);
  CHECK_EQ(plan.delay, 0);
}

TEST(averages_of_moments_are_settled_once) {
  ChannelForward p = forward(Layout::planes, 8, 64, 65537, 64);
  CHECK(plan_of(p).items_a_slab() > 1 && !plan_of(p).settles_apart);
  p.y.data = p.x.data;  // in place: the sums bring along what is needed of x
  CHECK(!plan_of(p).settles_apart);
  p.running.mean.data = memory;  // settling leaves moments in the workspace for these
  CHECK(plan_of(p).settles_apart);
}

TEST(elements_are_not_kept) {
  CHECK(plan_of(forward(Layout::rows, 2, 60, 49, 0)).order == ChannelOrder::solo);
  CHECK(plan_of(forward(Layout::rows, 64, 64, 3136, 0, DType::f64)).order == ChannelOrder::waves);
}

TEST(one_pass_alone_waits_for_nothing) {
  ChannelForward p = forward(Layout::planes, 64, 256, 3136, 0);
  p.source = StatisticsSource::given;
  const ChannelPlan plan = plan_of(p);
  CHECK(plan.order == ChannelOrder::launches);
  CHECK_EQ(plan.workspace_bytes, size_t{0});
  p = forward(Layout::rows, 64, 256, 3136, 0);
  p.source = StatisticsSource::given;
  CHECK(plan_of(p).order == ChannelOrder::launches);
}

TEST(sm_margin_leaves_multiprocessors) {
  const ChannelForward p = forward(Layout::planes, 64, 256, 3136, 0);
  CHECK(on_ampere(p, 81).blocks <= 2 * 27 && on_ampere(p).blocks > 2 * 81);
  for (const int margin : {1, 20, 100, 117, 125, 131}) {
    const ChannelPlan plan = plan_of(p, margin);
    CHECK(plan.order != ChannelOrder::rings || plan.blocks <= 132 - margin);
  }
}

TEST(divisions_are_whole) {
  for (const Layout layout : {Layout::planes, Layout::rows}) {
    for (const int64_t samples : {int64_t{1}, int64_t{3}, int64_t{64}}) {
      for (const int64_t places :
           {int64_t{1}, int64_t{2}, int64_t{49}, int64_t{196}, int64_t{3136}, int64_t{1000000}}) {
        for (const int64_t channels : {int64_t{1}, int64_t{30}, int64_t{64}, int64_t{320}, int64_t{2048}}) {
          check_division(forward(layout, samples, channels, places, 0));
          check_division(forward(layout, samples, channels, places, 1));
          check_division(forward(layout, samples, channels, places, channels));
          if (channels % 10 == 0) check_division(forward(layout, samples, channels, places, channels / 10));
        }
      }
    }
  }
}

TEST(a_query_covers_every_layout) {
  const ChannelForward p = forward(Layout::rows, 8, 64, 784, 0);
  const ChannelRequest request = request_of(p, 0);
  const size_t most = largest_channel_workspace(request, kHopper, ChannelTuning{});
  CHECK(most >= plan_of(p).workspace_bytes);
  CHECK(most >= plan_of(forward(Layout::planes, 8, 64, 784, 0)).workspace_bytes);
  CHECK(most >= plan_of(forward(Layout::rows, 8, 64, 784, 0, DType::bf16, 2)).workspace_bytes);
  const ChannelRequest small = request_of(forward(Layout::rows, 256, 2048, 49, 0), 0);
  CHECK(largest_channel_workspace(small, kHopper, ChannelTuning{}) >=
        plan_of(forward(Layout::planes, 256, 2048, 49, 0)).workspace_bytes);
}
