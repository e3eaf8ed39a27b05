// SPDX-License-Identifier: Apache-2.0
// What a query says of row norms on a GPU, beside what the call needs: read from tensors, without a GPU.
#include "core/row_workspace.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "core/read_norm.h"
#include "core/row_copies.h"
#include "plan_cases.h"
#include "untouched_tensor.h"

namespace {

using namespace normact;

/// A layer norm over one axis of x, which lies in a larger tensor. Tensors are at addresses that are never touched.
struct Norm {
  Ints shape, around;  // `around`: the larger tensor's shape
  int64_t axis;
  int64_t step = 1;  // of the last dimension
  int bits = 16;
  int64_t offset = 0;   // bytes that x lies behind a multiple of 256
  bool like_x = false;  // whether y lies as x does

  [[nodiscard]] UntouchedTensor like_x_at(uintptr_t slot) const {
    Ints strides = dense_strides(around);
    strides.back() *= step;
    return {slot, shape, strides, bits, slot == 1 ? offset : 0};
  }
  [[nodiscard]] UntouchedTensor output(uintptr_t slot) const {
    return like_x ? like_x_at(slot) : UntouchedTensor(slot, shape, dense_strides(shape), bits);
  }
  [[nodiscard]] UntouchedTensor parameter(uintptr_t slot) const {
    return {slot, {shape[static_cast<size_t>(axis)]}, {1}, bits};
  }
  [[nodiscard]] UntouchedTensor statistic(uintptr_t slot) const {
    Ints rows = shape;
    rows.erase(rows.begin() + axis);
    return {slot, rows, dense_strides(rows), std::max(bits, 32)};
  }
  [[nodiscard]] normact_norm_desc desc() const {
    return {sizeof(normact_norm_desc), NORMACT_NORM_LAYER, 1, &axis, 1e-5, 0.0, 0, 0, 0, 0, 0};
  }

  [[nodiscard]] RowForward forward(Purpose purpose) const {
    UntouchedTensor x = like_x_at(1), y = output(2), weight = parameter(3), rstd = statistic(4);
    const normact_norm_desc d = desc();
    const normact_norm_forward_args args{sizeof args, x.get(), nullptr, weight.get(), nullptr,
                                         y.get(),     nullptr, nullptr, rstd.get()};
    RowForward problem{};
    Device device;
    CHECK(read_norm_forward(&d, &args, purpose, &problem, &device).ok());
    return problem;
  }

  [[nodiscard]] RowBackward backward(Purpose purpose) const {
    UntouchedTensor x = like_x_at(1), dy = output(2), weight = parameter(3), mean = statistic(4), rstd = statistic(5),
                    dx = output(6), dweight = parameter(7);
    const normact_norm_desc d = desc();
    normact_norm_backward_args args{};
    args.struct_size = sizeof args;
    args.dy = dy.get();
    args.x = x.get();
    args.weight = weight.get();
    args.mean = mean.get();
    args.rstd = rstd.get();
    args.dx = dx.get();
    args.dweight = dweight.get();
    RowBackward problem{};
    Device device;
    CHECK(read_norm_backward(&d, &args, purpose, &problem, &device).ok());
    return problem;
  }
};

size_t needs(const Norm& norm, bool forward, normact_row_variant variant = NORMACT_ROW_AUTO) {
  RowPlan plan{};
  GatheredInputs inputs;
  Status status;
  if (forward) {
    RowForward p = norm.forward(Purpose::run);
    if (may_gather(p, variant)) inputs = gather_rows(&p, kHopper);
    status = plan_row_forward(request_of(p, variant, 0), kHopper, &plan);
  } else {
    RowBackward p = norm.backward(Purpose::run);
    if (may_gather(p, variant)) inputs = gather_rows(&p, kHopper, query_address());
    status = plan_row_backward(request_of(p, variant, 0), kHopper, &plan);
  }
  return status.ok() ? inputs.workspace_bytes + plan.workspace_bytes : 0;
}

size_t query(const Norm& norm, bool forward, normact_row_variant variant = NORMACT_ROW_AUTO) {
  size_t bytes = 0;
  const Status status = forward ? most_workspace(norm.forward(Purpose::query), kHopper, variant, 0, &bytes)
                                : most_workspace(norm.backward(Purpose::query), kHopper, variant, 0, &bytes);
  return status.ok() ? bytes : 0;
}

TEST(a_forward_of_images_has_a_workspace_if_they_are_read_twice) {
  const Ints read_twice{256, 1024, 14, 14}, kept{64, 384, 14, 14}, tiles{64, 1024, 56, 56};
  CHECK(needs({read_twice, read_twice, 1}, true) > 0);
  CHECK_EQ(query({read_twice, read_twice, 1}, true), needs({read_twice, read_twice, 1}, true));
  CHECK_EQ(query({kept, kept, 1}, true), size_t{0});
  CHECK_EQ(query({tiles, tiles, 1}, true), size_t{0});
}

TEST(a_forward_of_what_becomes_images_by_a_copy_has_one_too) {
  const Ints shape{256, 1024, 14, 14};
  for (const Norm& norm : {Norm{shape, {256, 1024, 16, 16}, 1}, Norm{shape, {256, 1024, 14, 28}, 1, 2}}) {
    CHECK_EQ(query(norm, true), needs({shape, shape, 1}, true));
    CHECK_EQ(query(norm, true), needs(norm, true));
  }
}

TEST(contiguous_rows_have_one_in_slices) {
  const auto bytes = [](int64_t rows, int64_t cols) { return query({{rows, cols}, {rows, cols}, 1}, true); };
  CHECK_EQ(bytes(3, int64_t{1} << 21), size_t{3 * 128 * 24});
  CHECK_EQ(bytes(1 << 20, 131071), size_t{0});
  CHECK_EQ(bytes(0, int64_t{1} << 21), size_t{0});
}

TEST(a_query_says_what_any_call_needs) {
  std::mt19937 random(3);
  const auto one_of = [&random](const Ints& values) { return values[random() % values.size()]; };
  int needed = 0;
  for (int round = 0; round < 10000; ++round) {
    const int64_t height = one_of({1, 3, 7, 14, 56}), width = one_of({1, 7, 14, 16, 17, 56});
    const Ints shape{one_of({1, 5, 70}), one_of({1, 7, 64, 1024, 4096, 50000}), height, width};
    Norm norm{shape, shape, one_of({0, 1, 1, 2, 3})};
    const int64_t layout = one_of({0, 1, 2});
    if (layout == 1) norm.around = {shape[0], shape[1], height + 2, width + 2};
    if (layout == 2) norm.around = {shape[0], shape[1], height, (norm.step = 2) * width};
    norm.bits = static_cast<int>(one_of({16, 32, 64}));
    norm.offset = one_of({0, 8});
    norm.like_x = random() % 2 == 0;
    for (const bool forward : {true, false}) {
      for (const normact_row_variant variant : {NORMACT_ROW_AUTO, NORMACT_ROW_IMAGE, NORMACT_ROW_STREAM}) {
        const size_t needs_bytes = needs(norm, forward, variant);
        needed += needs_bytes > 0 ? 1 : 0;
        CHECK(query(norm, forward, variant) >= needs_bytes);
      }
    }
  }
  CHECK(needed > 1000);
}

}  // namespace
