// SPDX-License-Identifier: Apache-2.0
// Rows whose columns are in pieces or apart, held in registers.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/gather_layout.h"
#include "core/plan_common.h"
#include "plan_cases.h"

namespace {

using namespace normact;

RowRequest apart(int64_t rows, int64_t cols, DType dtype, RowAccess access) {
  RowRequest r = request(rows, cols, dtype, access);
  r.near = true;
  return r;
}

bool is(const RowPlan& plan, normact_row_variant variant) { return plan.variant == variant; }

bool same_division(const RowPlan& a, const RowPlan& b) {
  return a.variant == b.variant && a.threads_per_row == b.threads_per_row && a.vectors == b.vectors;
}

constexpr RowAccess kAccesses[] = {RowAccess::packed_pieces, RowAccess::strided};

}  // namespace

TEST(every_unit_of_a_row_has_a_thread_and_every_block_fits) {
  for (const RowAccess access : kAccesses) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const int size = access == RowAccess::strided ? 1 : kPackBytes / size_of(dtype);
      for (int64_t cols = size; cols < 60'000; cols += size * (1 + cols / 40)) {
        for (const int64_t rows : {1, 7, 1000, 5'000'000}) {
          const RowRequest r = apart(rows, cols, dtype, access);
          for (const RowPlan& plan : {forward(r), backward(r)}) {
            if (is(plan, NORMACT_ROW_STREAM)) continue;
            CHECK(is(plan, plan.threads_per_row > kWarp ? NORMACT_ROW_BLOCK : NORMACT_ROW_WARP));
            CHECK(int64_t{plan.threads_per_row} * plan.vectors * size >= cols);
            CHECK(plan.threads % kWarp == 0 && plan.threads % plan.threads_per_row == 0 && plan.threads <= 1024);
            CHECK(plan.shared_bytes <= kShared);
          }
        }
      }
    }
  }
}

TEST(how_a_gathered_row_is_summed_does_not_depend_on_how_many_there_are) {
  for (const RowAccess access : kAccesses) {
    for (const int64_t cols : {8, 200, 1000, 5000, 8192, 15'000, 21'504, 40'000}) {
      RowRequest one = apart(1, cols, DType::bf16, access), many = apart(3'000'000, cols, DType::bf16, access);
      CHECK(same_division(forward(one), forward(many)) && same_division(backward(one), backward(many)));
      many.residual = true;
      CHECK(same_division(forward(one), forward(many)) && same_division(backward(one), backward(many)));
    }
  }
}

TEST(rows_that_registers_do_not_hold_are_streamed) {
  const auto longest = [](DType dtype, RowAccess access, bool backwards, bool activated) {
    int64_t most = 0;
    for (int64_t cols = 1024; cols < 60'000; cols += 1024) {
      RowRequest r = apart(100, cols, dtype, access);
      r.activated = activated;
      if (!is(backwards ? backward(r) : forward(r), NORMACT_ROW_STREAM)) most = cols;
    }
    return most;
  };
  CHECK_EQ(longest(DType::bf16, RowAccess::packed_pieces, false, false), 32'768);
  CHECK_EQ(longest(DType::f32, RowAccess::packed_pieces, false, false), 16'384);
  CHECK_EQ(longest(DType::bf16, RowAccess::strided, false, true), 10'240);
  CHECK_EQ(longest(DType::bf16, RowAccess::packed_pieces, true, false), 16'384);
  CHECK_EQ(longest(DType::bf16, RowAccess::packed_pieces, true, true), 8'192);
  CHECK_EQ(longest(DType::f32, RowAccess::packed_pieces, true, false), 8'192);
  CHECK_EQ(longest(DType::f32, RowAccess::strided, true, false), 8'192);
}

TEST(fp64_mixed_and_far_rows_are_not_gathered) {
  for (const RowAccess access : kAccesses) {
    CHECK(is(forward(apart(100, 256, DType::f64, access)), NORMACT_ROW_STREAM));
    RowRequest r = apart(100, 256, DType::f32, access);
    CHECK(is(forward(r), NORMACT_ROW_WARP) && is(backward(r), NORMACT_ROW_WARP));
    r.mixed = true;
    CHECK(is(forward(r), NORMACT_ROW_STREAM) && is(backward(r), NORMACT_ROW_STREAM));
    r.mixed = false;
    r.geometry.rows = r.geometry.row_shape[0] = int64_t{1} << 31;
    r.near = true;
    RowPlan plan;
    CHECK(!plan_row_forward(r, kHopper, &plan).ok() || is(plan, NORMACT_ROW_STREAM));
  }
}

TEST(sums_of_parameter_gradients_of_many_rows_have_places) {
  for (const RowAccess access : kAccesses) {
    const RowPlan few = backward(apart(1000, 256, DType::bf16, access));
    const RowPlan many = backward(apart(10'000'000, 256, DType::bf16, access));
    CHECK_EQ(few.places, size_t{0});
    CHECK_EQ(few.workspace_bytes, static_cast<size_t>(2 * few.parts * 256) * 4);
    const int columns = access == RowAccess::strided ? 8 : 16;
    CHECK_EQ(many.places, static_cast<size_t>(many.blocks) * many.threads * 2 * columns * 8);
  }
}

TEST(one_part_of_a_gathered_row_is_summed_where_its_strides_are_known) {
  RowRequest r = apart(1, 256, DType::bf16, RowAccess::packed_pieces);
  CHECK_EQ(backward(r).parts, 1);
  CHECK_EQ(backward(r).workspace_bytes, size_t{2 * 256 * 4});
}

TEST(a_residual_does_not_choose_between_runs_and_gathered_rows) {
  const DeviceInfo blackwell{120, 170, 99 * 1024 - 4096, {170, 85, 42, 21, 10}, 96 << 20};
  for (const DeviceInfo& device : {kHopper, blackwell}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t cols = 2001; cols < 10'240; cols += 10) {
        RowRequest r = apart(100, cols, dtype, RowAccess::runs);
        for (const bool activated : {false, true}) {
          r.activated = activated;
          r.residual = false;
          r.dense = true;
          const RowPlan without = forward(r, device);
          r.residual = true;
          r.dense = false;
          const RowPlan with = forward(r, device);
          CHECK(with.access == without.access && same_division(with, without));
          CHECK(with.shared_bytes <= device.shared_memory_block);
        }
      }
    }
  }
}

TEST(contiguous_rows_that_no_other_kernel_holds_are_gathered_by_elements) {
  const auto gathered = [](const RowPlan& plan) {
    return !is(plan, NORMACT_ROW_STREAM) && plan.access == RowAccess::strided;
  };
  RowRequest r = apart(1000, 8191, DType::f32, RowAccess::runs);
  CHECK(!gathered(forward(r)) && !gathered(backward(r)));
  CHECK(gathered(forward(r, kAmpere)) && gathered(backward(r, kAmpere)));
  r.activated = true;  // whose weights and biases leave rows in runs no room, but in a cluster
  CHECK(is(backward(r), NORMACT_ROW_CLUSTER));
  DeviceInfo alone = kHopper;
  std::fill(std::begin(alone.active_clusters), std::end(alone.active_clusters), 0);
  CHECK(gathered(backward(r, alone)));
  r.geometry.cols = r.geometry.col_shape[0] = 33;
  CHECK(!gathered(forward(r)) && !gathered(backward(r)));
  CHECK(is(forward(r, kTuring), NORMACT_ROW_WARP) && is(backward(r, kTuring), NORMACT_ROW_WARP));
}
