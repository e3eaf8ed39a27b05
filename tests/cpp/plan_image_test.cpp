// SPDX-License-Identifier: Apache-2.0
// Plans of variant image: rows side by side whose samples, but not lines, are whole packs.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/image_layout.h"

#include "plan_cases.h"

using namespace normact;

namespace {

/// NCHW without gaps, normalised over C.
RowRequest images(int64_t count, int64_t cols, int64_t places, DType dtype) {
  RowRequest r{};
  r.geometry.rows = count * places;
  r.geometry.cols = cols;
  r.geometry.row_ndim = 2;
  r.geometry.col_ndim = 1;
  r.geometry.row_shape[0] = count;
  r.geometry.row_shape[1] = places;
  r.geometry.col_shape[0] = cols;
  r.dtype = dtype;
  const int64_t line = places * size_of(dtype);
  r.access = line % 16 == 0 ? RowAccess::packed_lines : line % 8 == 0 ? RowAccess::half_packed_lines : RowAccess::lines;
  r.images = cols * line % 16 == 0;
  r.parameter_gradients = true;
  return r;
}

RowRequest images_like(RowRequest r, int64_t count) {
  r.geometry.row_shape[0] = count;
  r.geometry.rows = count * r.geometry.row_shape[1];
  return r;
}

RowPlan plan_of(const RowRequest& r, bool forward, const DeviceInfo& device = kHopper) {
  RowPlan plan{};
  CHECK((forward ? plan_row_forward(r, device, &plan) : plan_row_backward(r, device, &plan)).ok());
  return plan;
}

ImageLayout layout_of(const RowRequest& r, const RowPlan& plan, bool forward) {
  return image_layout(static_cast<int>(r.geometry.cols), plan.rows_per_block, r.dtype, plan.cluster, plan.threads,
                      forward ? ImageUse::kept_forward : ImageUse::kept_backward);
}

TEST(images_of_convnext) {
  struct Golden {
    int64_t cols, places;
    DType dtype;
    int forward_cluster, forward_lines, backward_cluster, backward_lines;  // bands of 49 packs; 0: read twice
  };
  for (const Golden& g : std::vector<Golden>{{1536, 49, DType::bf16, 2, 9, 2, 15},
                                             {768, 49, DType::bf16, 1, 9, 2, 15},
                                             {768, 196, DType::bf16, 2, 18, 0, 6},
                                             {384, 196, DType::f16, 2, 9, 2, 15},
                                             {768, 49, DType::f32, 2, 9, 2, 15},
                                             {2048, 49, DType::f32, 2, 18, 0, 7},
                                             {1024, 196, DType::bf16, 0, 6, 0, 6}}) {
    const RowRequest r = images(64, g.cols, g.places, g.dtype);
    for (const bool forward : {true, false}) {
      const RowPlan plan = plan_of(r, forward);
      const int cluster = forward ? g.forward_cluster : g.backward_cluster;
      CHECK_EQ(static_cast<int>(plan.variant), static_cast<int>(NORMACT_ROW_IMAGE));
      CHECK_EQ(plan.rows_per_block, g.places);
      CHECK_EQ(plan.slices > 0, cluster == 0);
      CHECK_EQ(plan.cluster, cluster > 0 ? cluster : 1);
      CHECK_EQ(plan.threads_per_row, forward ? g.forward_lines : g.backward_lines);
      CHECK_EQ(plan.places, size_t{0});
      if (plan.slices > 0) continue;
      CHECK_EQ(plan.blocks, plan.parts * plan.cluster);
      const bool alone = plan.threads > image_threads(true, false);
      CHECK((alone ? 1 : 2) * (plan.shared_bytes + 1024) <= kShared + 1024);
      CHECK_EQ(plan.workspace_bytes, forward ? 0 : static_cast<size_t>(2 * plan.parts * g.cols * 4));
    }
  }
}

/// Threads have every pack of a band once, as the kernels number them (ImageShare in cuda/row_image.cuh).
void check_threads(const ImageLayout& s, DType dtype) {
  const int apart = s.packs_apart(), together = s.band_packs - apart;
  CHECK(s.lines >= 1 && s.lines <= 18 && s.lines * s.band_packs <= s.threads);
  CHECK(apart == 0 || (s.lines * together <= s.apart_at && s.apart_at + s.lines <= s.threads));
  CHECK(apart == 0 || s.places / (16 / size_of(dtype)) < s.band_packs);
  CHECK_EQ(s.band_packs * 16, s.places * size_of(dtype) << s.band_log);
}

/// Both kernels have every band once, and room for what they keep.
void check_read_twice(const RowRequest& r, const RowPlan& plan, bool forward, const DeviceInfo& device) {
  const auto cols = static_cast<int>(r.geometry.cols), slices = static_cast<int>(plan.slices);
  const int places = plan.rows_per_block;
  const int64_t images = r.geometry.rows / places;
  const ImageLayout s = image_twice_layout(cols, places, r.dtype, forward);
  CHECK(s.slices == slices && s.threads == plan.threads && s.shared_bytes == plan.shared_bytes);
  CHECK(s.threads >= kLeastTwiceThreads && s.threads <= kMostTwiceThreads && s.threads % 32 == 0);
  check_threads(s, r.dtype);
  CHECK_EQ(int64_t{s.bands} * s.band_packs * 16, int64_t{cols} * places * size_of(r.dtype));
  CHECK(s.slice_bands * slices >= s.bands && s.slice_bands * (slices - 1) < s.bands);
  CHECK(s.slice_bands <= image_turns(forward) * s.lines);
  // What lies where: packs, sums, numbers of rows, of columns.
  const int there = std::min(s.slice_bands, image_ring(forward) * s.lines);
  CHECK(s.part_bytes == there * s.band_packs * 16 && s.scratch_at == s.part_bytes * (forward ? 1 : 2));
  const int of_rows = s.lines * s.number_bytes;
  const int of_columns = forward ? 0 : 2 * kColumnTurns * s.lines * s.band_sums() * 8;
  CHECK(s.numbers_at - s.scratch_at >= std::max(of_rows, of_columns) && s.numbers_at % 16 == 0);
  CHECK(s.number_bytes == (places << s.band_log) * 4 && s.weights_at - s.numbers_at == 4 * s.number_bytes);
  CHECK(s.totals_at - s.weights_at >= (s.slice_cols() + 1) * (forward ? 8 : 4) && s.totals_at % 16 == 0);
  CHECK(s.shared_bytes - s.totals_at == (forward ? 0 : s.slice_cols() * 16));
  CHECK(s.shared_bytes <= device.shared_memory_block);
  CHECK(plan.blocks == plan.parts * slices && plan.parts <= images);
  CHECK(plan.parts == 1 || plan.blocks <= 2 * device.multiprocessors);
  CHECK(plan.workspace_bytes >= static_cast<size_t>(r.geometry.rows * slices) * (forward ? 12 : 8) +
                                    static_cast<size_t>(forward ? 0 : plan.parts * cols * 8));
  CHECK_EQ(plan.places, size_t{0});
  const RowPlan one = plan_of(images_like(r, 1), forward, device);
  const RowPlan many = plan_of(images_like(r, 100000), forward, device);
  for (const RowPlan& other : {one, many}) {  // how a row is summed does not depend on how many there are
    CHECK(other.threads == plan.threads && other.slices == plan.slices);
  }
  CHECK_EQ(one.parts, 1);
}

TEST(every_image_is_divided_and_fits) {
  int taken = 0, twice = 0;
  for (const DeviceInfo& device : {kHopper, kAmpere, kTuring}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (int64_t cols = 1; cols < 6000; cols += 1 + cols / 12) {
        for (const int64_t places : {4, 7, 9, 25, 36, 49, 100, 121, 169, 196, 225, 361, 380, 382, 384, 900, 2044}) {
          for (const bool forward : {true, false}) {
            const RowRequest r = images(70, cols, places, dtype);
            const RowPlan plan = plan_of(r, forward, device);
            if (plan.variant != NORMACT_ROW_IMAGE) continue;
            ++taken;
            CHECK(places >= 16 / size_of(dtype));  // an access has elements of two columns at most
            if (plan.slices > 0) {
              check_read_twice(r, plan, forward, device);
              ++twice;
              continue;
            }
            const ImageLayout s = layout_of(r, plan, forward);
            CHECK(plan.cluster == 1 || device.compute_capability >= 90);
            CHECK_EQ(int64_t{s.bands} * s.band_packs * 16, cols * places * size_of(dtype));
            CHECK(s.slice_bands * plan.cluster >= s.bands && s.slice_bands * (plan.cluster - 1) < s.bands);
            check_threads(s, dtype);
            CHECK(s.threads == image_threads(forward, false) || s.threads == image_threads(forward, true));
            CHECK(s.threads == plan.threads && s.shared_bytes == plan.shared_bytes);
            CHECK(s.shared_bytes <= device.shared_memory_block);
            // What lies behind the packs, in this order.
            CHECK_EQ(s.scratch_at, (forward ? 1 : 2) * s.slice_bands * s.band_packs * 16);
            const int of_columns = forward ? 0 : s.slice_bands * s.band_sums() * 8;
            CHECK(s.entries_at - s.scratch_at >=
                  std::max(s.lines * s.band_packs * 16 / size_of(dtype) * 4, of_columns));
            CHECK(s.numbers_at - s.entries_at >= plan.cluster * places * (forward ? 12 : 8) && s.numbers_at % 16 == 0);
            CHECK(s.weights_at - s.numbers_at >= (forward ? 2 : 6) * (places << s.band_log) * 4);
            CHECK(s.totals_at - s.weights_at >= (s.slice_cols() + 1) * (forward ? 8 : 4) && s.totals_at % 16 == 0);
            CHECK_EQ(s.shared_bytes - s.totals_at, forward ? 0 : s.slice_cols() * 16);
            // How a row is summed does not depend on how many there are.
            const RowPlan one = plan_of(images(1, cols, places, dtype), forward, device);
            CHECK(one.variant == plan.variant && one.cluster == plan.cluster && one.threads == plan.threads);
            CHECK_EQ(one.parts, 1);
          }
        }
      }
    }
  }
  CHECK(taken > 1000 && twice > 100);
}

TEST(large_images_are_read_twice) {
  const auto slices = [](int64_t count, int64_t cols, int64_t places, DType dtype, bool forward) {
    const RowPlan plan = plan_of(images(count, cols, places, dtype), forward);
    return plan.variant == NORMACT_ROW_IMAGE ? plan.slices : -1;
  };
  CHECK_EQ(slices(256, 1024, 196, DType::bf16, true), 4);  // 512 bands, 128 a block
  CHECK_EQ(slices(256, 1024, 196, DType::bf16, false), 6);
  CHECK_EQ(slices(64, 768, 196, DType::bf16, true), 0);
  CHECK_EQ(slices(256, 1024, 196, DType::f32, false), 10);
  CHECK_EQ(slices(256, 1024, 196, DType::f32, true), -1);  // tiles
  CHECK_EQ(slices(256, 768, 196, DType::f32, false), -1);
  CHECK_EQ(slices(256, 1024, 256, DType::f32, false), -1);
  CHECK_EQ(slices(8, 1000000, 49, DType::bf16, true), -1);  // too many slices
  for (const bool forward : {true, false}) {
    CHECK(slices(64, 768, 289, DType::bf16, forward) > 0 && slices(64, 768, 289, DType::f32, forward) > 0);
    CHECK(slices(8, 60000, 49, DType::bf16, forward) > 0);
  }
}

TEST(what_images_leave_to_others) {
  const RowRequest image = images(8, 64, 49, DType::bf16);
  CHECK(plan_of(image, true).variant == NORMACT_ROW_IMAGE);
  RowRequest gaps = image, activated = image;
  gaps.images = false;
  activated.activated = true;
  for (const RowRequest& r :
       {gaps, activated, images(8, 64, 49, DType::f64), images(8, 63, 49, DType::bf16), images(8, 64, 7, DType::bf16),
        images(8, 64, 64, DType::bf16), images(8, 64, 4099, DType::bf16), images(8, 64, 9, DType::bf16),
        images(8, 1000000, 49, DType::bf16)}) {
    for (const bool forward : {true, false}) CHECK(plan_of(r, forward).variant != NORMACT_ROW_IMAGE);
  }
  RowRequest packs = images(8, 64, 256, DType::bf16);  // tiles are for these, but it can be asked for
  packs.variant = NORMACT_ROW_IMAGE;
  CHECK(plan_of(packs, true).variant == NORMACT_ROW_IMAGE && plan_of(packs, false).variant == NORMACT_ROW_IMAGE);
  RowPlan plan{};
  gaps.variant = NORMACT_ROW_IMAGE;
  CHECK(!plan_row_forward(gaps, kHopper, &plan).ok() && !plan_row_backward(gaps, kHopper, &plan).ok());
}

TEST(images_lie_without_gaps) {
  RowForward p{};
  p.geometry = {8 * 49, 64, 2, 1, {8, 49}, {64}};
  p.dtype = p.io_dtype = DType::bf16;
  p.adjacent = true;
  const auto at = [](uintptr_t address, int64_t sample, int64_t col) {
    return Operand{reinterpret_cast<void*>(address), DType::bf16, {sample, 1}, {col}};
  };
  const auto takes = [&](const Operand& x) {
    p.x = x;
    p.y = at(1 << 20, 64 * 49, 49);
    return request_of(p, NORMACT_ROW_AUTO, 0).images;
  };
  CHECK(takes(at(4096, 64 * 49, 49)));
  CHECK(takes(at(4096, 80 * 49, 49)));             // of a larger tensor
  CHECK(!takes(at(4096, 64 * 49 + 4, 49)));        // samples at multiples of 8 bytes
  CHECK(!takes(at(4096 + 8, 64 * 49, 49)));        // an address that is
  CHECK(!takes(at(4096, 64 * 50, 50)));            // gaps between lines
  p.geometry.cols = p.geometry.col_shape[0] = 63;  // no whole packs
  CHECK(!takes(at(4096, 64 * 49, 49)));
}

}  // namespace
