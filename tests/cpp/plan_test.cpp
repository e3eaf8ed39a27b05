// SPDX-License-Identifier: Apache-2.0
// Plans are pure functions: what runs on a GPU is tested here without one.
#include <algorithm>
#include <vector>

#include "core/run_layout.h"
#include "plan_cases.h"

namespace {

using namespace normact;

struct Golden {
  int64_t cols;
  DType dtype;
  RowAccess access;
  int forward_variant, forward_lanes, forward_vectors, forward_cluster;
  int backward_variant, backward_lanes, backward_vectors, backward_cluster;
};

/// Two rows of a cluster are worked on at the same time, and of a thread's runs the last alone may be cut.
void check_slices(const RowPlan& plan, int64_t cols, int run, const DeviceInfo& device) {
  CHECK(plan.shared_bytes <= device.shared_memory_block);
  if (plan.variant != NORMACT_ROW_CLUSTER) return;
  CHECK(plan.stages >= 2 && plan.parts >= 1 && plan.blocks == plan.parts * plan.cluster);
  const int64_t last = cols - (plan.cluster - 1) * run_slice(cols, plan.cluster);
  CHECK(last >= int64_t{plan.threads_per_row} * (plan.vectors - 1) * run);
}

}  // namespace

TEST(plans_of_an_h200) {
  constexpr RowAccess kPacks = RowAccess::packs, kRuns = RowAccess::runs, kStrided = RowAccess::strided;
  const std::vector<Golden> table = {
      {64, DType::bf16, kPacks, NORMACT_ROW_WARP, 4, 2, 1, NORMACT_ROW_WARP, 4, 2, 1},
      {768, DType::bf16, kPacks, NORMACT_ROW_WARP, 32, 3, 1, NORMACT_ROW_WARP, 32, 3, 1},
      {768, DType::f32, kPacks, NORMACT_ROW_BLOCK, 64, 3, 1, NORMACT_ROW_BLOCK, 64, 4, 1},
      {12288, DType::f32, kPacks, NORMACT_ROW_BLOCK, 768, 4, 1, NORMACT_ROW_CLUSTER, 384, 4, 2},
      {10240, DType::bf16, kPacks, NORMACT_ROW_BLOCK, 320, 4, 1, NORMACT_ROW_CLUSTER, 320, 2, 2},
      {1024, DType::f32, kPacks, NORMACT_ROW_BLOCK, 64, 4, 1, NORMACT_ROW_BLOCK, 64, 4, 1},
      {1280, DType::bf16, kPacks, NORMACT_ROW_BLOCK, 32, 5, 1, NORMACT_ROW_BLOCK, 96, 2, 1},
      {4096, DType::bf16, kPacks, NORMACT_ROW_BLOCK, 128, 4, 1, NORMACT_ROW_BLOCK, 256, 2, 1},
      {6144, DType::bf16, kPacks, NORMACT_ROW_BLOCK, 128, 6, 1, NORMACT_ROW_CLUSTER, 384, 2, 1},
      {16384, DType::bf16, kPacks, NORMACT_ROW_CLUSTER, 512, 4, 1, NORMACT_ROW_CLUSTER, 512, 2, 2},
      {65536, DType::bf16, kPacks, NORMACT_ROW_CLUSTER, 512, 4, 4, NORMACT_ROW_CLUSTER, 512, 2, 8},
      {262144, DType::bf16, kPacks, NORMACT_ROW_CLUSTER, 512, 4, 16, NORMACT_ROW_CLUSTER, 512, 4, 16},
      {131072, DType::f32, kPacks, NORMACT_ROW_CLUSTER, 512, 4, 16, NORMACT_ROW_CLUSTER, 512, 4, 16},
      {131076, DType::f32, kPacks, NORMACT_ROW_CLUSTER, 288, 8, 16, NORMACT_ROW_CLUSTER, 288, 8, 16},
      {262144, DType::f32, kPacks, NORMACT_ROW_CLUSTER, 512, 8, 16, NORMACT_ROW_CLUSTER, 512, 8, 16},
      {262148, DType::f32, kPacks, NORMACT_ROW_STREAM, 512, 0, 1, NORMACT_ROW_STREAM, 512, 0, 0},
      {131072, DType::f64, kPacks, NORMACT_ROW_CLUSTER, 512, 8, 16, NORMACT_ROW_STREAM, 512, 0, 0},
      {33, DType::bf16, kRuns, NORMACT_ROW_WARP, 2, 3, 1, NORMACT_ROW_WARP, 2, 3, 1},
      {257, DType::f32, kRuns, NORMACT_ROW_WARP, 16, 2, 1, NORMACT_ROW_WARP, 16, 2, 1},
      {4097, DType::bf16, kRuns, NORMACT_ROW_BLOCK, 256, 3, 1, NORMACT_ROW_BLOCK, 256, 3, 1},
      {12289, DType::bf16, kRuns, NORMACT_ROW_CLUSTER, 352, 3, 2, NORMACT_ROW_CLUSTER, 352, 3, 2},
      {50257, DType::bf16, kRuns, NORMACT_ROW_CLUSTER, 352, 3, 8, NORMACT_ROW_CLUSTER, 352, 3, 8},
      {12289, DType::f32, kRuns, NORMACT_ROW_CLUSTER, 352, 2, 2, NORMACT_ROW_CLUSTER, 352, 2, 2},
      {30001, DType::f32, kRuns, NORMACT_ROW_CLUSTER, 224, 2, 8, NORMACT_ROW_CLUSTER, 224, 2, 8},
      {12289, DType::f64, kRuns, NORMACT_ROW_STREAM, 512, 0, 1, NORMACT_ROW_STREAM, 512, 0, 0},
      {8191, DType::f32, kRuns, NORMACT_ROW_BLOCK, 480, 2, 1, NORMACT_ROW_BLOCK, 480, 2, 1},
      {4096, DType::f32, kStrided, NORMACT_ROW_STREAM, 128, 0, 1, NORMACT_ROW_STREAM, 128, 0, 1},
      {4194304, DType::f32, kPacks, NORMACT_ROW_STREAM, 512, 0, 1, NORMACT_ROW_STREAM, 512, 0, 0},
  };
  for (const Golden& g : table) {
    const RowRequest r = request(8192, g.cols, g.dtype, g.access);
    const RowPlan f = forward(r);
    CHECK_EQ(static_cast<int>(f.variant), g.forward_variant);
    CHECK_EQ(f.threads_per_row, g.forward_lanes);
    CHECK_EQ(f.vectors, g.forward_vectors);
    CHECK_EQ(f.cluster, g.forward_cluster);
    const RowPlan b = backward(r);
    CHECK_EQ(static_cast<int>(b.variant), g.backward_variant);
    CHECK_EQ(b.threads_per_row, g.backward_lanes);
    CHECK_EQ(b.vectors, g.backward_vectors);
    if (g.backward_cluster > 0) CHECK_EQ(b.cluster, g.backward_cluster);
    if (g.access == kRuns && b.variant == NORMACT_ROW_CLUSTER) CHECK_EQ(f.parts, b.parts);  // all that run at once
  }
}

TEST(threads_of_many_rows_have_places_for_their_sums) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const int64_t cols : {8, 768, 4096, 16384, 65536, 33, 4097, 12289}) {
      const RowAccess access = cols % 8 == 0 ? RowAccess::packs : RowAccess::runs;
      for (const int64_t rows : {1 << 10, 1 << 14, 1 << 18, 1 << 24}) {
        RowRequest r = request(rows, cols, dtype, access);
        const RowPlan plan = backward(r);
        const int values =
            plan.vectors * (access == RowAccess::packs ? 16 / size_of(dtype) : backward_run(size_of(dtype)));
        const bool many = rows > kTilesASum * plan.parts * plan.rows_per_block;
        CHECK_EQ(plan.places, many ? static_cast<size_t>(plan.blocks * plan.threads * 2 * values) * sizeof(double) : 0);
        if (many) CHECK_EQ(plan.workspace_bytes % 256, plan.places % 256);
        CHECK(plan.workspace_bytes >= plan.places + static_cast<size_t>(2 * plan.parts * cols * 4));
        r.parameter_gradients = false;
        CHECK_EQ(backward(r).workspace_bytes, size_t{0});
      }
    }
  }
  CHECK(backward(request(1 << 24, 768, DType::bf16)).places > 0);
  CHECK_EQ(backward(request(1 << 24, 768, DType::f32, RowAccess::strided)).places, size_t{0});
}

/// Rows side by side: NCHW, normalised over C.
RowRequest lines(int64_t images, int64_t cols, int64_t pixels, DType dtype,
                 RowAccess access = RowAccess::packed_lines) {
  RowRequest r = request(images * pixels, cols, dtype, access);
  r.geometry.row_ndim = 2;
  r.geometry.row_shape[0] = images;
  r.geometry.row_shape[1] = pixels;
  return r;
}

struct GoldenTile {
  RowRequest request;
  int forward_threads, forward_groups, forward_rows, forward_bytes;
  int64_t forward_blocks;
  int backward_threads, backward_groups, backward_rows, backward_bytes;
  int64_t backward_blocks;
};

TEST(tiles_of_an_h200) {
  const RowAccess kLines = RowAccess::lines;
  const GoldenTile table[] = {
      {lines(64, 256, 56 * 56, DType::bf16), 256, 32, 64, 37120, 3136, 256, 32, 64, 89600, 264},
      {lines(64, 256, 56 * 56, DType::f32), 256, 32, 32, 35968, 6272, 256, 32, 32, 86784, 264},
      {lines(32, 96, 224 * 224, DType::bf16), 96, 12, 64, 14080, 25088, 96, 12, 64, 34560, 792},
      {lines(8, 384, 14 * 14, DType::bf16, kLines), 384, 48, 64, 55552, 25, 320, 40, 64, 111104, 25},
      {lines(8, 1536, 7 * 7, DType::bf16, kLines), 512, 128, 32, 112768, 14, 320, 160, 16, 136832, 28},
      {lines(2, 4096, 64, DType::f16), 512, 256, 16, 164928, 8, 320, 320, 8, 197440, 16},
      {lines(2, 4800, 64, DType::f16), 512, 256, 16, 193088, 8, 320, 320, 8, 0, 0},
      {lines(2, 3, 64, DType::bf16), 32, 4, 64, 920, 2, 32, 4, 64, 3032, 2},
  };
  for (const GoldenTile& g : table) {
    const RowPlan f = forward(g.request);
    CHECK_EQ(static_cast<int>(f.variant), static_cast<int>(NORMACT_ROW_TILE));
    CHECK_EQ(f.threads, g.forward_threads);
    CHECK_EQ(f.threads_per_row, g.forward_groups);
    CHECK_EQ(f.rows_per_block, g.forward_rows);
    CHECK_EQ(f.shared_bytes, g.forward_bytes);
    CHECK_EQ(f.blocks, g.forward_blocks);
    const RowPlan b = backward(g.request);
    if (g.backward_blocks == 0) {  // too many columns for x and dy
      CHECK_EQ(static_cast<int>(b.variant), static_cast<int>(NORMACT_ROW_STREAM));
      continue;
    }
    CHECK_EQ(static_cast<int>(b.variant), static_cast<int>(NORMACT_ROW_TILE));
    CHECK_EQ(b.threads, g.backward_threads);
    CHECK_EQ(b.threads_per_row, g.backward_groups);
    CHECK_EQ(b.rows_per_block, g.backward_rows);
    CHECK_EQ(b.shared_bytes, g.backward_bytes);
    CHECK_EQ(b.blocks, g.backward_blocks);
    CHECK_EQ(b.workspace_bytes, static_cast<size_t>(2 * b.parts * g.request.geometry.cols * 4));
  }
}

TEST(tiles_have_no_places_for_sums) { CHECK_EQ(backward(lines(1 << 13, 256, 56 * 56, DType::bf16)).places, size_t{0}); }

TEST(every_tile_fits_the_device_whatever_the_rows_and_the_alignment) {
  for (const DeviceInfo& device : {kHopper, kAmpere, kTuring}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t cols = 1; cols < 20000; cols += 1 + cols / 9) {
        const RowPlan one = forward(lines(1, cols, 8, dtype), device);
        const RowPlan one_back = backward(lines(1, cols, 8, dtype), device);
        for (const RowAccess access : {RowAccess::packed_lines, RowAccess::half_packed_lines, RowAccess::lines}) {
          const RowRequest r = lines(100, cols, 4096, dtype, access);
          const RowPlan f = forward(r, device), b = backward(r, device);
          CHECK(f.variant == one.variant && f.threads_per_row == one.threads_per_row);
          CHECK(b.variant == one_back.variant && b.threads_per_row == one_back.threads_per_row);
          for (const RowPlan& plan : {f, b}) {
            if (plan.variant != NORMACT_ROW_TILE) continue;
            const int lanes = plan.threads / plan.threads_per_row;
            CHECK(plan.shared_bytes <= device.shared_memory_block);
            CHECK(plan.threads % 32 == 0 && plan.threads <= normact::kTileForwardThreads);
            CHECK(lanes == 1 || lanes == 2 || lanes == 4 || lanes == 8);
            CHECK(plan.threads_per_row * lanes == plan.threads && plan.blocks >= 1);
            CHECK_EQ(plan.rows_per_block, lanes * 16 / size_of(dtype));
            CHECK(plan.lanes_a_sum >= 1 && lanes % plan.lanes_a_sum == 0);
          }
        }
      }
    }
  }
}

TEST(what_tiles_leave_to_stream) {
  RowRequest many_cols = lines(4, 64, 64, DType::bf16), many_lines = many_cols, r;
  many_cols.geometry.col_ndim = 3;
  many_lines.geometry.row_shape[3] = 64;
  many_lines.geometry.row_ndim = 4;
  for (const RowRequest& each : {lines(4, 64, 64, DType::f64), many_cols, many_lines}) {
    CHECK(forward(each).variant == NORMACT_ROW_STREAM && backward(each).variant == NORMACT_ROW_STREAM);
  }
  r = lines(4, 64, 64, DType::bf16);
  RowPlan plan{};
  for (const normact_row_variant variant : {NORMACT_ROW_WARP, NORMACT_ROW_BLOCK, NORMACT_ROW_CLUSTER}) {
    r.variant = variant;
    CHECK(!plan_row_forward(r, kHopper, &plan).ok() && !plan_row_backward(r, kHopper, &plan).ok());
  }
  r = request(64, 64, DType::bf16);
  r.variant = NORMACT_ROW_TILE;
  CHECK(!plan_row_forward(r, kHopper, &plan).ok() && !plan_row_backward(r, kHopper, &plan).ok());
}

TEST(how_a_row_is_summed_does_not_depend_on_the_number_of_rows) {
  for (const int64_t cols : {8, 64, 768, 1000, 4096, 12289, 16384, 65536, 1 << 20}) {
    for (const RowAccess access : {RowAccess::packs, RowAccess::runs, RowAccess::strided}) {
      const RowPlan one = forward(request(1, cols, DType::bf16, access));
      const RowPlan one_back = backward(request(1, cols, DType::bf16, access));
      for (const int64_t rows : {2, 131, 132, 133, 65536, 1 << 24}) {
        const RowPlan many = forward(request(rows, cols, DType::bf16, access));
        CHECK(many.variant == one.variant && many.threads_per_row == one.threads_per_row);
        CHECK(many.vectors == one.vectors && many.cluster == one.cluster);
        const RowPlan many_back = backward(request(rows, cols, DType::bf16, access));
        CHECK(many_back.variant == one_back.variant && many_back.threads_per_row == one_back.threads_per_row);
        CHECK(many_back.vectors == one_back.vectors && many_back.cluster == one_back.cluster);
      }
    }
  }
}

TEST(every_plan_covers_its_row_and_fits_the_device) {
  for (const DeviceInfo& device : {kHopper, kAmpere, kTuring}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const int pack = 16 / size_of(dtype);
      for (int64_t cols = 1; cols < 300000; cols += 1 + cols / 7) {
        for (const bool residual : {false, true}) {
          const RowAccess access = cols % pack == 0 ? RowAccess::packs : RowAccess::runs;
          RowRequest r = request(5000, cols, dtype, access);
          r.residual = residual;
          const int64_t packs = (cols + pack - 1) / pack;
          for (const RowPlan& plan : {forward(r, device), backward(r, device)}) {
            CHECK(plan.shared_bytes <= device.shared_memory_block);
            CHECK(plan.threads >= 32 && plan.threads <= 768 && plan.threads % 32 == 0);
            CHECK(plan.blocks >= 1);
            if (plan.variant == NORMACT_ROW_STREAM) continue;
            // Runs of at least three elements; the launchers know how long they are.
            const int64_t held = int64_t{plan.threads_per_row} * plan.vectors * plan.cluster;
            CHECK(access == RowAccess::packs ? held >= packs : held * 9 >= cols);
            CHECK(plan.cluster == 1 || device.compute_capability >= 90);
          }
        }
      }
    }
  }
}

TEST(a_forced_backward_block_has_a_barrier_for_each_group) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (int64_t cols = 8; cols < 9000; cols += 8) {
      RowRequest r = request(100000, cols, dtype);
      r.variant = NORMACT_ROW_BLOCK;
      RowPlan plan{};
      if (!plan_row_backward(r, kHopper, &plan).ok()) continue;
      CHECK(plan.threads_per_row >= 64 && plan.rows_per_block <= 15);
    }
  }
}

TEST(how_a_row_is_summed_does_not_depend_on_a_residual) {
  for (const DeviceInfo& device : {kHopper, kAmpere}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (int64_t cols = 8; cols < 600000; cols += 8 * (1 + cols / 500)) {
        RowRequest with = request(5000, cols, dtype), without = with;
        with.residual = true;
        const RowPlan a = forward(with, device), b = forward(without, device);
        const RowPlan c = backward(with, device), d = backward(without, device);
        CHECK(a.variant == b.variant && a.threads_per_row == b.threads_per_row && a.vectors == b.vectors);
        CHECK(c.variant == d.variant && c.threads_per_row == d.threads_per_row && c.vectors == d.vectors);
      }
    }
  }
}

TEST(how_a_wide_row_in_runs_is_summed_does_not_depend_on_others) {
  const DeviceInfo small{120, 170, 99 * 1024 - 4096, {170, 85, 42, 21, 0}, 96 << 20};
  const auto alike = [](const RowPlan& a, const RowPlan& b) {
    return a.variant == b.variant && a.access == b.access && a.threads_per_row == b.threads_per_row &&
           a.vectors == b.vectors && a.cluster == b.cluster;
  };
  for (const DeviceInfo& device : {kHopper, small}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool activated : {false, true}) {
        for (int64_t cols = 8001; cols < 160'000; cols += cols / 97) {
          RowRequest r = request(1, cols, dtype, RowAccess::runs);
          r.near = r.contiguous = r.dense = true;
          r.activated = activated;
          const RowPlan alone = forward(r, device), alone_back = backward(r, device);
          r.residual = true;
          r.dense = false;
          for (const int64_t rows : {2, 1000, 1 << 24}) {
            r.geometry.rows = r.geometry.row_shape[0] = rows;
            r.sm_margin = rows == 1000 ? 5000 : 0;
            const RowPlan among = forward(r, device), among_back = backward(r, device);
            CHECK(alike(alone, among) && alike(alone_back, among_back));
            check_slices(among, cols, forward_run(size_of(dtype)), device);
            check_slices(among_back, cols, backward_run(size_of(dtype)), device);
          }
        }
      }
    }
  }
}

TEST(the_widest_rows_of_a_cluster_come_one_at_a_time_beside_a_residual) {
  RowRequest r = request(256, 262144, DType::f32);
  CHECK(forward(r).stages >= 2);
  r.residual = true;
  CHECK_EQ(forward(r).stages, 1);
  CHECK(forward(r).shared_bytes <= kShared);
}

/// Of fp32, in the backward, where two rows in flight do not fit: the same with an activation, for which nothing is
/// kept beside the rows.
TEST(the_widest_rows_of_a_backward_cluster_come_in_halves) {
  constexpr int kExchange = normact::kExchangeDepth * 16 * 8;  // bytes a warp
  for (const bool activated : {false, true}) {
    RowRequest r = request(128, 262144, DType::f32);
    r.activated = activated;
    const RowPlan bare = backward(r);
    CHECK(bare.variant == NORMACT_ROW_CLUSTER && bare.cluster == 16 && bare.vectors == 8);
    CHECK_EQ(bare.threads, 512);  // none to exchange sums or to bring in rows
    CHECK_EQ(bare.stages, 3);     // the first half of the next row is there during an exchange
    CHECK_EQ(bare.shared_bytes, 3 * 65536 + 16 * kExchange);
    r.residual = true;
    CHECK_EQ(backward(r).stages, 2);
    CHECK_EQ(backward(r).shared_bytes, 3 * 65536 + 16 * kExchange);
    r = request(128, 131076, DType::f32);  // 9 warps of 228 packs
    r.activated = activated;
    CHECK_EQ(backward(r).stages, 4);
    CHECK_EQ(backward(r).shared_bytes, 4 * 2 * 9 * 128 * 16 + 9 * kExchange);
  }
}

TEST(the_widest_rows_of_a_backward_cluster_are_summed_alike_in_any_batch) {
  for (int64_t cols = 131076; cols <= 262144; cols += 4 * 509) {
    const RowPlan one = backward(request(1, cols, DType::f32));
    CHECK(one.variant == NORMACT_ROW_CLUSTER && one.blocks == 16 && one.parts == 1);
    for (const int64_t rows : {2, 7, 8, 128, 4096}) {
      for (const int margin : {0, 20, 1000}) {
        RowRequest r = request(rows, cols, DType::f32);
        r.sm_margin = margin;
        const RowPlan many = backward(r);
        CHECK(many.variant == one.variant && many.threads_per_row == one.threads_per_row);
        CHECK(many.vectors == one.vectors && many.cluster == one.cluster);
        CHECK(many.packs_per_block == one.packs_per_block);
        CHECK(many.parts >= 1 && many.parts <= rows && many.blocks <= std::max(16, 132 - margin));
      }
    }
  }
}

/// Half as wide rows then take what the widest take of clusters of 16.
TEST(without_clusters_of_sixteen_the_widest_rows_are_streamed) {
  DeviceInfo device = kHopper;
  device.active_clusters[4] = 0;
  CHECK_EQ(static_cast<int>(backward(request(128, 131076, DType::f32), device).variant),
           static_cast<int>(NORMACT_ROW_STREAM));
  const RowPlan half = backward(request(128, 131072, DType::f32), device);
  CHECK(half.variant == NORMACT_ROW_CLUSTER && half.cluster == 8 && half.vectors == 8 && half.stages == 3);
  device.shared_memory_block = kAmpere.shared_memory_block;  // room for a row, but not beside a residual
  CHECK_EQ(static_cast<int>(backward(request(128, 131072, DType::f32), device).variant),
           static_cast<int>(NORMACT_ROW_STREAM));
}

TEST(a_forced_variant_that_cannot_serve_is_refused) {
  RowRequest r = request(16, 4096, DType::f32, RowAccess::strided);
  RowPlan plan{};
  for (const normact_row_variant variant : {NORMACT_ROW_WARP, NORMACT_ROW_BLOCK, NORMACT_ROW_CLUSTER}) {
    r.variant = variant;
    CHECK_EQ(static_cast<int>(plan_row_forward(r, kHopper, &plan).code()), static_cast<int>(NORMACT_NOT_SUPPORTED));
    CHECK_EQ(static_cast<int>(plan_row_backward(r, kHopper, &plan).code()), static_cast<int>(NORMACT_NOT_SUPPORTED));
  }
  r = request(16, 4096, DType::f32);
  r.variant = NORMACT_ROW_CLUSTER;
  CHECK_EQ(static_cast<int>(plan_row_forward(r, kAmpere, &plan).code()), static_cast<int>(NORMACT_NOT_SUPPORTED));
}

TEST(multiprocessors_can_be_left_free) {
  RowRequest r = request(100000, 1024, DType::bf16);
  CHECK_EQ(backward(r).blocks, 132);
  r.sm_margin = 20;
  CHECK_EQ(backward(r).blocks, 112);
  r.sm_margin = 1000;
  CHECK_EQ(backward(r).blocks, 1);
}
