// SPDX-License-Identifier: Apache-2.0
// Plans of row norms with an activation.
#include "core/run_layout.h"
#include "plan_cases.h"

namespace {

using namespace normact;

TEST(an_activation_leaves_rows_where_they_are) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (int64_t cols : {64, 768, 4096, 16384, 65536}) {
      RowRequest r = request(8192, cols, dtype);
      const RowPlan bare = forward(r), bare_backward = backward(r);
      r.activated = true;
      const RowPlan activated = forward(r), activated_backward = backward(r);
      CHECK_EQ(static_cast<int>(activated.variant), static_cast<int>(bare.variant));
      CHECK_EQ(activated.shared_bytes, bare.shared_bytes);
      CHECK_EQ(static_cast<int>(activated_backward.variant), static_cast<int>(bare_backward.variant));
      if (bare_backward.variant == NORMACT_ROW_BLOCK) {
        CHECK_EQ(activated_backward.vectors * (16 / size_of(dtype)),
                 dtype == DType::f64 ? 8 : 16);  // elements a thread
      } else {
        CHECK_EQ(activated_backward.threads_per_row, bare_backward.threads_per_row);
      }
      CHECK(activated_backward.shared_bytes <= kShared);
    }
  }
}

/// Backward, weights and biases lie in shared memory.
TEST(an_activation_leaves_runs_where_they_are) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (int64_t cols : {1, 3, 33, 100, 1000, 2668, 4097}) {
      RowRequest r = request(8192, cols, dtype, RowAccess::runs);
      r.dense = true;
      const RowPlan bare = forward(r), bare_backward = backward(r);
      r.activated = true;
      const RowPlan activated = forward(r), activated_backward = backward(r);
      CHECK_EQ(static_cast<int>(activated.variant), static_cast<int>(bare.variant));
      CHECK_EQ(activated.threads_per_row, bare.threads_per_row);
      CHECK_EQ(activated.vectors, bare.vectors);
      CHECK_EQ(static_cast<int>(activated_backward.variant), static_cast<int>(bare_backward.variant));
      CHECK(activated_backward.threads <= kBackwardRunThreads);
      CHECK(activated_backward.shared_bytes <= kShared);
      const int64_t elements =
          activated_backward.threads_per_row * activated_backward.vectors * int64_t{backward_run(size_of(dtype))};
      if (activated_backward.variant == NORMACT_ROW_STREAM) continue;
      CHECK(activated_backward.shared_bytes >= 2 * elements * size_of(accumulator_of(dtype)));
    }
  }
}

/// Rows leave the block where that was faster: forward of fp32 sooner with an activation, backward later.
TEST(an_activation_moves_the_longest_row_of_a_block) {
  RowRequest forwards = request(8192, 8192, DType::f32), backwards = request(8192, 6144, DType::bf16);
  CHECK_EQ(static_cast<int>(forward(forwards).variant), static_cast<int>(NORMACT_ROW_BLOCK));
  CHECK_EQ(static_cast<int>(backward(backwards).variant), static_cast<int>(NORMACT_ROW_CLUSTER));
  forwards.activated = backwards.activated = true;
  CHECK_EQ(static_cast<int>(forward(forwards).variant), static_cast<int>(NORMACT_ROW_CLUSTER));
  CHECK_EQ(static_cast<int>(backward(backwards).variant), static_cast<int>(NORMACT_ROW_BLOCK));
}

/// A block keeps the bias beside the weight, in the accumulator type.
TEST(an_activation_stages_the_bias) {
  RowRequest r = request(8192, 1024, DType::bf16);
  const RowPlan bare = backward(r);
  r.activated = true;
  const RowPlan activated = backward(r);
  CHECK_EQ(activated.stages, bare.stages);
  CHECK_EQ(activated.shared_bytes, bare.shared_bytes + 1024 * 4);
}

/// So does a cluster's of 16 bits, beside rows of x, dy and what dy becomes; wider types have no room for it.
TEST(an_activation_stages_the_bias_of_a_cluster) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
    RowRequest r = request(8192, 16384, dtype);
    r.activated = true;
    const RowPlan plan = backward(r);
    const int packs = plan.packs_per_block;
    const bool narrow = size_of(dtype) == 2;
    CHECK_EQ(static_cast<int>(plan.variant), static_cast<int>(NORMACT_ROW_CLUSTER));
    CHECK_EQ(plan.shared_bytes, plan.stages * (narrow ? 3 : 2) * packs * 16 + (narrow ? packs * 8 * 4 : 0));
  }
}

}  // namespace
