// SPDX-License-Identifier: Apache-2.0
// Rows that are read twice: where they lie side by side, neighbouring lanes have neighbouring rows.
#include <cstdint>

#include "core/plan_common.h"
#include "plan_cases.h"

namespace {

using namespace normact;

constexpr int64_t kWarps = kElementThreads / kWarp;

/// Rows of a matrix over axis 0.
RowRequest beside(int64_t rows, int64_t cols, DType dtype = DType::bf16) {
  RowRequest r = request(rows, cols, dtype, RowAccess::lines);
  r.beside = r.near = true;
  r.variant = NORMACT_ROW_STREAM;
  return r;
}

/// The same from addresses, which are never touched: operands of x's shape with these strides of rows and columns.
RowForward matrix(int64_t x_row, int64_t x_col, int64_t y_row, int64_t y_col) {
  RowForward p{};
  p.geometry = {100, 20000, 1, 1, {100}, {20000}};
  p.kind = NormKind::layer;
  p.dtype = p.io_dtype = DType::f32;
  p.x = {reinterpret_cast<void*>(uintptr_t{1} << 40), DType::f32, {x_row}, {x_col}};
  p.y = {reinterpret_cast<void*>(uintptr_t{2} << 40), DType::f32, {y_row}, {y_col}};
  return p;
}

}  // namespace

TEST(rows_side_by_side_share_warps) {
  const RowPlan plan = forward(beside(1024, 20000));
  CHECK(plan.elements && plan.variant == NORMACT_ROW_STREAM);
  CHECK_EQ(plan.cluster, 8);
  CHECK_EQ(plan.rows_per_block, 32);
  CHECK_EQ(plan.threads_per_row, 8 * kWarps);
  CHECK_EQ(plan.blocks, 1024 / 32 * 8);
  CHECK_EQ(backward(beside(1024, 20000)).apply_rows, 32);
  CHECK_EQ(forward(beside(1024, 600)).cluster, 1);
  CHECK_EQ(forward(beside(1024, 1024)).cluster, 2);
  CHECK_EQ(forward(beside(4, 1 << 20)).rows_per_block, 1);
  CHECK_EQ(backward(beside(4, 1 << 20)).apply_rows, 4);
  RowRequest pairs = beside(20000, 20000);
  pairs.geometry.row_ndim = 2;
  pairs.geometry.row_shape[0] = 10000;
  pairs.geometry.row_shape[1] = 2;
  CHECK(forward(pairs).rows_per_block == 4 && backward(pairs).apply_rows == 2);  // a row has eight strands in a warp
  CHECK_EQ(forward(beside(4, 600)).rows_per_block,
           16);  // a warp sums a row in two strands, and has no more lanes for it
}

TEST(rows_of_columns_that_are_nearer_have_warps_of_their_own) {
  RowRequest r = beside(1024, 20000);
  r.access = RowAccess::strided;
  r.beside = false;
  const RowPlan plan = forward(r);
  CHECK(plan.elements && plan.rows_per_block == 1 && plan.cluster == 1);
  CHECK_EQ(plan.threads_per_row, kWarp * kWarps);
  CHECK_EQ(plan.blocks, 1024);
  CHECK_EQ(backward(r).apply_rows, 1);
  r.geometry.cols = 100;
  CHECK(forward(r).rows_per_block == 16 && backward(r).apply_rows == 16);
}

TEST(warps_cover_every_row) {
  for (const bool rows_are_nearer : {true, false}) {
    for (const int64_t rows : {1, 2, 3, 31, 32, 33, 1000, 1 << 20}) {
      for (const int64_t cols : {1, 2, 33, 700, 2048, 20000, 1 << 18}) {
        RowRequest r = beside(rows, cols);
        r.beside = rows_are_nearer;
        for (const RowPlan& plan : {forward(r), backward(r)}) {
          const int64_t strands = plan.threads_per_row / kWarps;
          CHECK(plan.rows_per_block <= kWarp && strands <= kWarp);
          CHECK(plan.rows_per_block * strands >= kWarp);  // the lanes of a row have a strand each at least
          CHECK_EQ(plan.blocks, ceil_div(rows, plan.rows_per_block) * plan.cluster);
        }
        const RowPlan plan = backward(r);
        CHECK(plan.apply_rows >= 1 && plan.apply_rows <= kWarp && plan.parts >= 1 && plan.parts <= rows);
      }
    }
  }
}

TEST(how_elements_of_a_row_are_summed_does_not_depend_on_the_number_of_rows) {
  for (const bool rows_are_nearer : {true, false}) {
    for (const int64_t cols : {5, 700, 2048, 20000, 1 << 18}) {
      RowRequest r = beside(2, cols);
      r.beside = rows_are_nearer;
      const RowPlan one = forward(r), one_back = backward(r);
      for (const int64_t rows : {3, 7, 32, 33, 1 << 20}) {
        r.geometry.rows = r.geometry.row_shape[0] = rows;
        const RowPlan many = forward(r), many_back = backward(r);
        CHECK(many.elements && many.threads_per_row == one.threads_per_row && many.cluster == one.cluster);
        CHECK(many_back.threads_per_row == one_back.threads_per_row && many_back.cluster == one_back.cluster);
      }
    }
  }
}

TEST(what_is_no_single_elements_near_each_other) {
  RowRequest far = beside(100, 20000), pieces = far, dense = far;
  far.near = false;
  pieces.access = RowAccess::packed_pieces;
  dense.access = RowAccess::strided;  // parameters of two dtypes
  dense.contiguous = true;
  for (const RowRequest& r : {far, pieces, dense}) {
    CHECK(!forward(r).elements && !backward(r).elements);
    CHECK_EQ(forward(r).blocks, 100);
  }
}

TEST(without_clusters_long_rows_have_warps_of_their_own) {
  const RowPlan plan = forward(beside(100, 20000), kAmpere), of_short = forward(beside(5000, 1000), kAmpere);
  CHECK(plan.elements && plan.cluster == 1 && plan.rows_per_block == 1);
  CHECK(of_short.elements && of_short.cluster == 1 && of_short.rows_per_block == 32);
}

TEST(rows_are_beside_each_other_where_they_are_nearer_than_columns_in_every_tensor) {
  const auto is_beside = [](const RowForward& p) { return request_of(p, NORMACT_ROW_AUTO, 0).beside; };
  CHECK(is_beside(matrix(2, 200, 2, 200)));
  CHECK(is_beside(matrix(-2, 200, 1, 100)));
  CHECK(!is_beside(matrix(2, 200, 20000, 1)));
  CHECK(is_beside(matrix(2, 200, 0, 0)) && !is_beside(matrix(200, 2, 0, 0)));  // what is expanded lies anywhere
  CHECK(!is_beside(matrix(40000, 2, 40000, 2)));
  RowForward lines = matrix(1, 100, 1, 100);
  lines.adjacent = true;
  CHECK(is_beside(lines));
}

TEST(long_rows_are_cut_into_slices_that_do_not_depend_on_their_number) {
  const auto streamed = [](int64_t rows, int64_t cols, DType dtype) {
    RowRequest r = request(rows, cols, dtype);
    r.variant = NORMACT_ROW_STREAM;
    return r;
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    CHECK_EQ(backward(streamed(2, 65528, dtype)).slices, 1);
    CHECK_EQ(backward(streamed(2, 65536, dtype)).slices, 4);
    CHECK(forward(streamed(2, 131064, dtype)).slices == 1 && forward(streamed(2, 131064, dtype)).workspace_bytes == 0);
    CHECK_EQ(forward(streamed(2, 131072, dtype)).slices, 8);
    for (const int64_t rows : {1, 2, 300, 1 << 20}) {
      const RowRequest r = streamed(rows, int64_t{1} << 21, dtype);
      for (const RowPlan& plan : {forward(r), backward(r)}) CHECK(plan.slices == 128 && plan.blocks == 128 * rows);
      CHECK_EQ(forward(r).workspace_bytes, static_cast<size_t>(rows * 128 * 24));
      CHECK(backward(r).workspace_bytes >= static_cast<size_t>(rows * 129 * 2 * accumulator_bytes(dtype)));
    }
  }
  CHECK(forward(beside(3, 1 << 21)).slices == 1 && backward(beside(3, 1 << 21)).slices == 1);  // these have clusters
}

TEST(blocks_that_have_all_rows_of_their_columns_leave_no_partial_sums) {
  RowRequest r = request(64, int64_t{1} << 20, DType::bf16);
  r.variant = NORMACT_ROW_STREAM;
  CHECK(backward(r).parts == 1 && backward(r).workspace_bytes < (1 << 20));
  r.geometry.rows = r.geometry.row_shape[0] = 100000;
  r.geometry.cols = r.geometry.col_shape[0] = 4096;
  CHECK(backward(r).parts > 1);
}
