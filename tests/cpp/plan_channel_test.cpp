// SPDX-License-Identifier: Apache-2.0
// How batch, group and instance norms are accessed, divided and ordered: tested here without a GPU.
#include "core/plan_channel.h"

#include "core/plan_common.h"

#include "check.h"

namespace {

using normact::ceil_div;
using normact::ChannelAccess;
using normact::ChannelBackward;
using normact::ChannelForward;
using normact::ChannelMask;
using normact::ChannelOrder;
using normact::ChannelPasses;
using normact::ChannelPlan;
using normact::ChannelRequest;
using normact::ChannelSet;
using normact::ChannelTuning;
using normact::ChannelView;
using normact::DeviceInfo;
using normact::DType;
using normact::StatisticsSource;

constexpr DeviceInfo kHopper{90, 132, 227 * 1024 - 4096, {}};
alignas(16) char memory[64];

enum class Layout : uint8_t { planes, rows };

/// groups 0: batch norm.
ChannelForward forward(Layout layout, int64_t samples, int64_t channels, int64_t places, int64_t groups,
                       DType dtype = DType::bf16, int offset = 0) {
  ChannelForward p{};
  p.geometry = {samples, channels, groups != 0 ? groups : channels, places, places, 1, {places}};
  p.set = groups != 0 ? ChannelSet::group : ChannelSet::channel;
  p.dtype = dtype;
  p.source = StatisticsSource::batch;
  const bool planes = layout == Layout::planes;
  p.x = {memory + offset, dtype, channels * places, planes ? places : 1, {planes ? 1 : channels}};
  p.y = p.x;
  return p;
}

ChannelPlan plan_of(const ChannelForward& p, int sm_margin = 0) {
  return plan_channel(request_of(p, sm_margin), kHopper, ChannelTuning{});
}

ChannelAccess access_of(const ChannelForward& p) { return request_of(p, 0).access; }

/// Two blocks fit a multiprocessor, a thread's accesses its memory, the items of a slab the blocks that run at once.
void check_kept(const ChannelForward& p, const ChannelPlan& plan) {
  constexpr int kStatic = 2304;  // of the kernels, at most, beside a KiB that each block takes
  const int shared = plan.scratch_bytes + plan.parameter_bytes + plan.bits_bytes + plan.kept_bytes;
  CHECK(2 * (shared + kStatic + 1024) <= 228 * 1024);
  CHECK(plan.items_a_slab() <= 2 * 132 && plan.blocks <= 2 * 132);
  const int64_t accesses = plan.access == ChannelAccess::planes ? ceil_div(plan.segment_packs, plan.lanes) : 1;
  const int64_t turns = ceil_div(std::min(plan.units_a_part, plan.units), plan.lines);
  CHECK(accesses * turns * plan.tiles_an_item <= plan.accesses);
  CHECK_EQ(plan.kept_bytes, plan.accesses * normact::kChannelThreads * 16);
  if (plan.access == ChannelAccess::rows) CHECK(p.geometry.channels * size_of(p.dtype) % 16 == 0);
}

/// Every pack of a set is in a part, and its entries have room.
void check_cut(const normact::PlaneDivision& d) {
  CHECK(d.parts >= 1 && d.packs_a_part * d.parts >= d.packs && d.packs_a_part * (d.parts - 1) < d.packs);
  CHECK(d.team == normact::kChannelThreads || (d.team <= 32 && (d.team & (d.team - 1)) == 0 && d.parts == 1));
  CHECK(d.blocks() * normact::kChannelThreads >= d.numbers() * d.team);
}

void check_launches(const ChannelRequest& r, const ChannelPlan& plan) {
  check_cut(plan.reduce);
  check_cut(plan.apply);
  CHECK(plan.whole && !plan.waits_together() && plan.counter_bytes == 0);
  CHECK_EQ(plan.apply.sets, plan.batches * plan.groups);
  CHECK_EQ(plan.apply.sets * plan.apply.packs, plan.reduce.sets * plan.reduce.packs);
  CHECK_EQ(plan.apply.sets * plan.apply.packs * 16,
           r.geometry.samples * r.geometry.channels * r.geometry.places * size_of(r.dtype));
  const int64_t entries = r.passes == ChannelPasses::apply ? 0 : plan.reduce.numbers() * r.entry_bytes;
  CHECK(plan.workspace_bytes >= static_cast<size_t>(entries));
}

/// Every channel is in a tile, every unit in a part, every group in one slab, and the wave has its slabs.
void check_division(const ChannelForward& p) {
  const ChannelPlan plan = plan_of(p);
  if (plan.order == ChannelOrder::launches) {
    check_launches(request_of(p, 0), plan);
    return;
  }
  const normact::ChannelGeometry g =
      plan.access == ChannelAccess::columns ? normact::columns_of(p.geometry) : p.geometry;
  const int64_t channels = g.channels, per_group = channels / plan.groups;
  CHECK_EQ(plan.groups, g.groups);
  CHECK(plan.tile * plan.tiles >= channels && plan.tile * (plan.tiles - 1) < channels);
  CHECK(plan.units_a_part * plan.parts >= plan.units && plan.units_a_part * (plan.parts - 1) < plan.units);
  const int64_t slabs_a_batch = plan.slabs / plan.batches;
  CHECK_EQ(slabs_a_batch * plan.batches, plan.slabs);
  CHECK(slabs_a_batch * plan.tiles_a_slab >= plan.tiles);
  CHECK(slabs_a_batch == 1 || plan.tiles_a_slab * plan.tile % per_group == 0);
  CHECK(plan.stacks_a_slab() * plan.tiles_an_item >= plan.tiles_a_slab);
  CHECK(plan.slabs_a_wave >= 1 && plan.blocks >= 1);
  CHECK(plan.lanes * plan.lines <= normact::kChannelThreads);
  if (plan.order == ChannelOrder::kept) check_kept(p, plan);
}

}  // namespace

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
  const ChannelPlan plan = plan_of(forward(Layout::planes, 64, 256, 3136, 0));
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
  const ChannelPlan plan = plan_of(forward(Layout::rows, 64, 512, 784, 0));
  CHECK(plan.order == ChannelOrder::kept);
  CHECK_EQ(plan.lanes, 8);  // 128 bytes
  CHECK_EQ(plan.tile, 64);
  CHECK_EQ(plan.lines, 32);
  CHECK_EQ(plan.units, 50176);
  CHECK_EQ(plan.slabs, 8);
}

TEST(batch_norm_of_small_planes_goes_by_columns) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const int64_t width = 16 / size_of(dtype);
    const ChannelPlan plan = plan_of(forward(Layout::planes, 32, 2048, 49, 0, dtype));
    CHECK(plan.access == ChannelAccess::columns && plan.order == ChannelOrder::kept);
    CHECK_EQ(plan.tile % (width * 49), 0);  // whole channels of whole packs
    CHECK_EQ(plan.lanes * width, plan.tile);
    CHECK_EQ(plan.groups_an_item * 49, plan.tile);
    CHECK_EQ(plan.groups, 2048);
    CHECK_EQ(plan.units, 32);
  }
  CHECK_EQ(plan_of(forward(Layout::planes, 32, 1024, 196, 0)).tile % 392, 0);  // two channels, at least
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
  CHECK(goes(p) && plan_of(p).order == ChannelOrder::single);
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
  CHECK(plan.order == ChannelOrder::waves);
  CHECK_EQ(plan.tile, 256);
  CHECK_EQ(plan.kept_bytes, normact::kLargeRingAccesses * normact::kChannelThreads * 16);
  CHECK_EQ(plan.unit_step, plan.lines * plan.parts);  // blocks go through x side by side
  CHECK(plan.slabs_a_wave == plan.slabs && plan.parts <= 2 * plan.blocks);
  const ChannelPlan one = plan_of(forward(Layout::planes, 1, 1, 1 << 28, 0));
  CHECK(one.order == ChannelOrder::waves && one.counter_bytes > 0 && !one.waits_together());
}

ChannelPlan plan_with_mask(Layout layout, int64_t samples, int64_t channels, int64_t places) {
  static uint8_t mask;
  ChannelForward p = forward(layout, samples, channels, places, 0);
  p.mask = &mask;
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
          CHECK(planes.mask == ChannelMask::together && samples > 3 && places < 361);
        } else {
          CHECK(planes.mask == ChannelMask::edged && planes.bits_bytes > 0);
          CHECK(planes.tile * places % 8 == 0 && channels % planes.tile == 0 && planes.segments == 1);
        }
        const ChannelPlan rows = plan_with_mask(Layout::rows, samples, channels, places);
        CHECK(rows.mask == ChannelMask::turned && rows.units_a_part % places == 0);
      }
    }
  }
  CHECK(plan_with_mask(Layout::planes, 64, 64, 784).mask == ChannelMask::together);
  CHECK(plan_with_mask(Layout::planes, 4, 20, 49).mask == ChannelMask::apart);     // samples share bytes
  CHECK(plan_with_mask(Layout::planes, 2, 64, 20001).mask == ChannelMask::apart);  // so do parts of planes
  CHECK(plan_with_mask(Layout::rows, 2, 16, 9999).mask == ChannelMask::apart);     // samples in parts
  const ChannelPlan streamed = plan_with_mask(Layout::rows, 256, 256, 3136);
  CHECK(streamed.mask == ChannelMask::turned && streamed.unit_step == streamed.lines);
}

TEST(small_groups_need_nobody_else) {
  const ChannelPlan plan = plan_of(forward(Layout::rows, 32, 512, 256, 32));
  CHECK(plan.order == ChannelOrder::kept);
  CHECK_EQ(plan.items_a_slab(), 1);
  CHECK_EQ(plan.counter_bytes, size_t{0});
  CHECK(plan_of(forward(Layout::planes, 2, 128, 262144, 32)).waits_together());
}

ChannelBackward backward(const ChannelForward& p) {
  ChannelBackward b{};
  static_cast<normact::ChannelProblem&>(b) = p;
  b.x = b.dy = b.dx = p.x;
  b.mean.data = b.rstd.data = memory;
  return b;
}

ChannelPlan plan_of(const ChannelBackward& p) {
  const ChannelRequest request = request_of(p, ChannelPasses::both, 0);
  const ChannelPlan plan = plan_channel(request, kHopper, ChannelTuning{});
  if (plan.order == ChannelOrder::launches) check_launches(request, plan);
  return plan;
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

TEST(teams_are_whole) {
  for (const int64_t places : {3136, 784, 1000, 4096}) {
    for (const int64_t samples : {16, 61, 200}) {
      const ChannelPlan plan = plan_of(forward(Layout::planes, samples, 256, places, 0));
      if (plan.order == ChannelOrder::kept) CHECK_EQ(plan.blocks % plan.items_a_slab(), 0);
    }
  }
}

TEST(entries_of_groups) {
  ChannelPlan plan = plan_of(forward(Layout::rows, 8, 320, 4096, 32));  // tiles of 80 channels, 8 groups
  CHECK_EQ(plan.tile, 80);
  CHECK_EQ(plan.groups_an_item, 8);
  CHECK_EQ(plan.group_entries_at, 0);
  plan = plan_of(forward(Layout::rows, 3, 640, 900, 1));  // a group of ten tiles
  CHECK_EQ(plan.groups_an_item, 1);
  CHECK_EQ(plan_of(forward(Layout::planes, 64, 256, 3136, 0)).groups_an_item, 0);
}

TEST(what_fits_the_device_at_once_is_one_item_a_block) {
  const ChannelPlan plan = plan_of(forward(Layout::rows, 8, 320, 4096, 32));
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
  CHECK(plan_of(p).order == ChannelOrder::single);
}

TEST(sm_margin_leaves_multiprocessors) {
  const ChannelForward p = forward(Layout::planes, 64, 256, 3136, 0);
  CHECK_EQ(plan_of(p, 100).blocks * 132, plan_of(p).blocks * 32);
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
