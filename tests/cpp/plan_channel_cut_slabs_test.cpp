// SPDX-License-Identifier: Apache-2.0
// Group norm of planes that are not whole packs, whose groups are, in shared memory.
#include "plan_channel_cases.h"

namespace {

bool is_cut_slab(const ChannelPlan& plan) {
  return plan.order == ChannelOrder::slabs && plan.access == ChannelAccess::planes && !plan.whole;
}

/// Plans, and checks what is true of any slab.
bool is_cut_slab(const ChannelForward& p) {
  const ChannelPlan plan = plan_of(p);
  if (plan.order == ChannelOrder::slabs) check_slabs(request_of(p, 0), plan);
  return is_cut_slab(plan);
}
bool is_cut_slab(const ChannelBackward& p) {
  const ChannelPlan plan = plan_of(p);
  if (plan.order == ChannelOrder::slabs) check_slabs(request_of(p, ChannelPasses::both, 0), plan);
  return is_cut_slab(plan);
}

}  // namespace

TEST(groups_of_cut_planes_are_slabs) {
  ChannelForward p = forward(Layout::planes, 64, 2048, 49, 8);  // eight planes are 49 packs
  ChannelPlan plan = plan_of(p);
  CHECK(is_cut_slab(plan) && plan.units == 256 * 49 / 8 && plan.cluster == 1 && plan.workspace_bytes == 0);
  plan = plan_of(backward(p));
  CHECK(is_cut_slab(plan) && plan.workspace_bytes >= 64 * 2048 * 8);
  const auto goes = [](const auto& of) { return is_cut_slab(of); };
  CHECK(goes(forward(Layout::planes, 8, 1280, 196, 32)) && goes(backward(forward(Layout::planes, 8, 1280, 196, 32))));
  CHECK(!goes(forward(Layout::planes, 64, 2048, 49, 8, DType::bf16, 2)));  // not at multiples of 16 bytes
  CHECK(!goes(forward(Layout::planes, 16, 320, 729, 32)));                 // ten planes are no whole packs
  CHECK(!goes(forward(Layout::planes, 64, 2048, 49, 0)));                  // batch norm
  CHECK(!goes(forward(Layout::planes, 64, 2048, 4, 8)));                   // packs of more than two planes
  CHECK(!goes(forward(Layout::planes, 64, 80, 49, 10)));                   // a pack or two for each lane of a warp
  CHECK(!goes(forward(Layout::planes, 64, 512, 784, 32)));                 // whole planes: backward alone
  CHECK(goes(backward(forward(Layout::planes, 64, 512, 784, 32))));
  CHECK(!goes(backward(forward(Layout::planes, 64, 256, 3136, 32))));  // large ones
  CHECK(!goes(backward(forward(Layout::planes, 64, 512, 1024, 32))));  // those that warps add up
  CHECK_EQ(plan_of(backward(forward(Layout::planes, 64, 2048, 49, 8, DType::f32))).lanes, 1);
  CHECK(plan_of(backward(forward(Layout::planes, 300, 128, 64, 2, DType::f32))).lanes >
        1);  // all of a warp in one bank
}

TEST(slabs_of_cut_planes_are_tested_on_a_gpu) {  // test_channel_cut_slabs.py
  struct {
    int64_t samples, channels, places, groups;
    bool forward, backward, wide_forward, wide_backward;
  } const cases[] = {
      {40, 256, 49, 2, true, true, true, true},    {9, 96, 49, 4, true, true, true, true},
      {70, 64, 196, 4, true, true, false, false},  {5, 48, 323, 2, true, true, true, true},
      {33, 320, 9, 5, true, true, true, true},     {3, 16, 11025, 1, true, false, true, false},
      {3, 24, 2401, 1, true, true, true, false},   {1, 144, 8190, 3, true, false, true, false},
      {120, 64, 784, 4, false, true, false, true}, {4, 60, 140, 3, true, true, false, false},
      {600, 8, 183, 1, true, true, true, true},    {140, 64, 961, 1, true, true, true, true},
      {20, 1024, 196, 1, true, true, false, true},
  };
  for (const auto& of : cases) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const bool wide = dtype == DType::f32;
      const ChannelForward p = forward(Layout::planes, of.samples, of.channels, of.places, of.groups, dtype);
      CHECK_EQ(is_cut_slab(p), wide ? of.wide_forward : of.forward);
      CHECK_EQ(is_cut_slab(backward(p)), wide ? of.wide_backward : of.backward);
    }
  }
  const ChannelPlan uneven = plan_of(backward(forward(Layout::planes, 3, 24, 2401, 1)));  // two bundles, and one
  CHECK(uneven.cluster == 2 && uneven.units_a_part == 2 * 2401);
}

TEST(more_sets_than_fit_at_once_have_larger_clusters) {
  const auto cluster_of = [](const auto& of) { return is_cut_slab(of) ? plan_of(of).cluster : 0; };
  const ChannelForward small = forward(Layout::planes, 256, 512, 49, 1);  // one block has room for x and dy
  CHECK(cluster_of(small) == 1 && cluster_of(backward(small)) == 1);
  const ChannelForward wide = forward(Layout::planes, 256, 512, 49, 1, DType::f32);
  CHECK(cluster_of(wide) == 1 && cluster_of(backward(wide)) == 2);
  const ChannelForward large = forward(Layout::planes, 256, 1024, 196, 1);
  CHECK(cluster_of(large) == 8 && cluster_of(backward(large)) == 8);
  CHECK(cluster_of(forward(Layout::planes, 256, 8192, 196, 1)) == 0);  // of no cluster
  // Whole planes: of 16 bits launches are faster.
  CHECK_EQ(cluster_of(backward(forward(Layout::planes, 128, 128, 784, 1))), 0);
  CHECK(cluster_of(backward(forward(Layout::planes, 128, 128, 784, 1, DType::f32))) > 1);
  // However many there are: what a set comes to depends on its batch by the cluster alone.
  CHECK_EQ(cluster_of(forward(Layout::planes, 5000, 1024, 196, 1)), cluster_of(large));
}
