// SPDX-License-Identifier: Apache-2.0
// Plans of mixed row problems: tensors of 16 bits beside sums of float32.
#include <cstdint>

#include "core/plan_common.h"

#include "plan_cases.h"

namespace {

using namespace normact;

// A problem whose tensors follow each other at aligned addresses that are never touched.
struct Mixed {
  int64_t rows = 8192, cols = 4096;
  DType io = DType::bf16, parameters = DType::f32;
  bool activated = false, residual = true;

  Operand matrix(DType dtype, uintptr_t slot) const {
    return {reinterpret_cast<void*>(slot << 40), dtype, {cols}, {1}};
  }
  Operand vector(DType dtype, uintptr_t slot) const { return {reinterpret_cast<void*>(slot << 40), dtype, {0}, {1}}; }
  void describe(RowProblem& p) const {
    p.geometry = {rows, cols, 1, 1, {rows}, {cols}};
    p.kind = NormKind::layer;
    p.dtype = DType::f32;
    p.io_dtype = io;
    p.contiguous = true;
    p.activation.kind = activated ? NORMACT_ACTIVATION_SILU : NORMACT_ACTIVATION_IDENTITY;
  }
  RowForward forward() const {
    RowForward p{};
    describe(p);
    p.x = matrix(io, 1), p.y = matrix(io, 2), p.residual = matrix(DType::f32, 3),
    p.residual_out = matrix(DType::f32, 4);
    p.weight = vector(parameters, 5);
    return p;
  }
  RowBackward backward() const {
    RowBackward p{};
    describe(p);
    p.dy = matrix(io, 1), p.dx = matrix(io, 2), p.x = matrix(DType::f32, 3), p.daddend = matrix(DType::f32, 4);
    if (residual) p.dresidual = matrix(DType::f32, 5);
    p.weight = vector(parameters, 6), p.dweight = vector(parameters, 7);
    return p;
  }
};

RowPlan plan(const RowForward& p, const DeviceInfo& device = kHopper, normact_row_variant variant = NORMACT_ROW_AUTO) {
  RowPlan found{};
  CHECK(plan_row_forward(request_of(p, variant, 0), device, &found).ok());
  return found;
}

RowPlan plan(const RowBackward& p, const DeviceInfo& device = kHopper, normact_row_variant variant = NORMACT_ROW_AUTO) {
  RowPlan found{};
  CHECK(plan_row_backward(request_of(p, variant, 0), device, &found).ok());
  return found;
}

struct Golden {
  int64_t cols;
  bool activated;
  int forward_variant, forward_lanes, forward_vectors;
  int backward_variant, backward_lanes, backward_vectors;
};

}  // namespace

// What launch_row_forward_mixed_kind and its like have kernels for.
TEST(plans_of_an_h200) {
  const Golden table[] = {
      {8, false, NORMACT_ROW_WARP, 32, 2, NORMACT_ROW_WARP, 32, 4},
      {256, false, NORMACT_ROW_WARP, 32, 2, NORMACT_ROW_WARP, 32, 4},
      {264, false, NORMACT_ROW_WARP, 32, 4, NORMACT_ROW_WARP, 32, 4},
      {512, true, NORMACT_ROW_WARP, 32, 4, NORMACT_ROW_WARP, 32, 4},
      {768, false, NORMACT_ROW_BLOCK, 64, 3, NORMACT_ROW_BLOCK, 64, 4},
      {1280, false, NORMACT_ROW_BLOCK, 96, 4, NORMACT_ROW_BLOCK, 96, 4},
      {2048, false, NORMACT_ROW_BLOCK, 128, 4, NORMACT_ROW_BLOCK, 128, 4},
      {4096, false, NORMACT_ROW_BLOCK, 256, 4, NORMACT_ROW_BLOCK, 192, 6},
      {4096, true, NORMACT_ROW_BLOCK, 256, 4, NORMACT_ROW_BLOCK, 256, 4},
      {5120, true, NORMACT_ROW_BLOCK, 320, 4, NORMACT_ROW_BLOCK, 320, 4},
      {6144, false, NORMACT_ROW_BLOCK, 384, 4, NORMACT_ROW_BLOCK, 384, 4},
      {6152, true, NORMACT_ROW_BLOCK, 416, 4, NORMACT_ROW_STREAM, 416, 0},
      {8192, false, NORMACT_ROW_BLOCK, 512, 4, NORMACT_ROW_BLOCK, 352, 6},
      {9216, false, NORMACT_ROW_BLOCK, 576, 4, NORMACT_ROW_BLOCK, 384, 6},
      {9224, false, NORMACT_ROW_BLOCK, 608, 4, NORMACT_ROW_STREAM, 512, 0},
      {12288, true, NORMACT_ROW_BLOCK, 768, 4, NORMACT_ROW_STREAM, 512, 0},
      {12296, false, NORMACT_ROW_STREAM, 512, 0, NORMACT_ROW_STREAM, 512, 0},
      {4100, false, NORMACT_ROW_STREAM, 512, 0, NORMACT_ROW_STREAM, 512, 0},  // rows of 16 bits are not whole packs
  };
  for (const Golden& g : table) {
    Mixed m;
    m.cols = g.cols, m.activated = g.activated;
    const RowPlan f = plan(m.forward());
    CHECK_EQ(static_cast<int>(f.variant), g.forward_variant);
    CHECK_EQ(f.threads_per_row, g.forward_lanes);
    CHECK_EQ(f.vectors, g.forward_vectors);
    const RowPlan b = plan(m.backward());
    CHECK_EQ(static_cast<int>(b.variant), g.backward_variant);
    CHECK_EQ(b.threads_per_row, g.backward_lanes);
    CHECK_EQ(b.vectors, g.backward_vectors);
  }
}

// How a row is summed depends on its columns, dtypes and alignment, not on rows, dresidual or what is wanted.
TEST(rows_are_batch_invariant) {
  for (int64_t cols : {64, 520, 768, 2048, 4096, 5120, 7168, 8192, 9216, 16384, 1001}) {
    Mixed m;
    m.cols = cols;
    const RowPlan f = plan(m.forward()), b = plan(m.backward());
    for (int64_t rows : {1, 2, 7, 131, 132, 1000, 100000}) {
      for (bool residual : {false, true}) {
        m.rows = rows, m.residual = residual;
        const RowPlan forward = plan(m.forward()), backward = plan(m.backward());
        CHECK(forward.variant == f.variant && forward.vectors == f.vectors);
        CHECK_EQ(forward.threads_per_row, f.threads_per_row);
        CHECK_EQ(forward.cluster, f.cluster);
        CHECK(backward.variant == b.variant && backward.vectors == b.vectors);
        CHECK_EQ(backward.threads_per_row, b.threads_per_row);
      }
    }
  }
}

TEST(a_ring_has_half_of_dy) {
  Mixed m;
  const RowPlan with = plan(m.backward());
  m.residual = false;
  const RowPlan without = plan(m.backward());
  const int row = 4096 * 4;
  CHECK_EQ(with.rows_per_block, 2);
  CHECK_EQ(with.stages, 2);
  CHECK_EQ(with.shared_bytes, row + with.stages * 2 * (2 * row + row / 2));
  CHECK_EQ(without.stages, 4);
  CHECK_EQ(without.shared_bytes, row + without.stages * 2 * (row + row / 2));
}

TEST(every_tensor_is_aligned_for_packs) {
  Mixed m;
  const auto move = [](Operand& operand, int bytes) { operand.data = static_cast<char*>(operand.data) + bytes; };
  CHECK(plan(m.backward()).access == RowAccess::packs);
  for (Operand RowBackward::* tensor : {&RowBackward::dy, &RowBackward::dx, &RowBackward::x, &RowBackward::daddend,
                                        &RowBackward::dresidual, &RowBackward::weight}) {
    RowBackward p = m.backward();
    move(p.*tensor, 8);  // whole packs of 16 bits for a thread, but not for a copy
    CHECK(plan(p).access == RowAccess::strided);
  }
  RowForward p = m.forward();
  p.y.row_stride[0] += 4;
  CHECK(plan(p).access == RowAccess::strided);
  p = m.forward();
  p.adjacent = true;
  p.contiguous = false;
  CHECK(plan(p).variant == NORMACT_ROW_STREAM);
}

TEST(variants_without_a_kernel_refuse) {
  Mixed m;
  RowPlan found{};
  for (int64_t cols : {64, 4096, 16384, 4097}) {
    m.cols = cols;
    for (const normact_row_variant variant : {NORMACT_ROW_CLUSTER, NORMACT_ROW_TILE}) {
      CHECK(plan_row_forward(request_of(m.forward(), variant, 0), kHopper, &found).code() == NORMACT_NOT_SUPPORTED);
      CHECK(plan_row_backward(request_of(m.backward(), variant, 0), kHopper, &found).code() == NORMACT_NOT_SUPPORTED);
    }
    CHECK(plan(m.forward(), kHopper, NORMACT_ROW_STREAM).variant == NORMACT_ROW_STREAM);
    CHECK(plan(m.backward(), kHopper, NORMACT_ROW_STREAM).variant == NORMACT_ROW_STREAM);
  }
}

TEST(older_devices_have_less_shared_memory) {
  Mixed m;
  for (int64_t cols : {512, 768, 2048, 4096, 8192}) {
    m.cols = cols;
    CHECK(plan(m.backward(), kTuring).shared_bytes <= kTuring.shared_memory_block);
    CHECK_EQ(plan(m.forward(), kTuring).cluster, 1);
  }
}
