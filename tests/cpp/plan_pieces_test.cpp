// SPDX-License-Identifier: Apache-2.0
// Rows whose columns are pieces: norms over several axes that are not neighbours in memory.
#include <cstdint>

#include "core/plan_common.h"
#include "plan_cases.h"

namespace {

using namespace normact;

// NCHW, normalised over C and W: rows (N, H), columns (C, W). Addresses are never touched.
struct Pieces {
  int64_t samples = 4, channels = 6, lines = 5, line = 64;
  DType dtype = DType::bf16, bias = DType::bf16;
  int64_t line_stride = line;
  uintptr_t offset = 0;  // of x, in bytes

  Operand image(uintptr_t slot, uintptr_t bytes) const {
    const int64_t plane = lines * line_stride;
    return {reinterpret_cast<void*>((slot << 40) + bytes), dtype, {channels * plane, line_stride}, {plane, 1}};
  }
  Operand parameter(uintptr_t slot, DType of) const {
    return {reinterpret_cast<void*>(slot << 40), of, {0, 0}, {line, 1}};
  }
  RowForward forward() const {
    RowForward p{};
    p.geometry = {samples * lines, channels * line, 2, 2, {samples, lines}, {channels, line}};
    p.kind = NormKind::layer;
    p.dtype = p.io_dtype = dtype;
    p.x = image(1, offset);
    p.y = image(2, 0);
    p.weight = parameter(3, dtype);
    p.bias = parameter(4, bias);
    return p;
  }
  RowAccess access() const { return request_of(forward(), NORMACT_ROW_AUTO, 0).access; }
};

}  // namespace

TEST(pieces_of_whole_packs_are_read_by_packs) {
  CHECK(Pieces{}.access() == RowAccess::packed_pieces);
  Pieces mixed;
  mixed.bias = DType::f32;
  CHECK(mixed.access() == RowAccess::packed_pieces);  // each parameter is read for itself
  for (const int64_t line : {60, 63}) {               // bf16 takes eight, fp32 four
    Pieces p;
    p.line = p.line_stride = line;
    CHECK(p.access() == RowAccess::strided);
    p.dtype = p.bias = DType::f32;
    CHECK(p.access() == (line == 60 ? RowAccess::packed_pieces : RowAccess::strided));
  }
  Pieces apart;
  apart.line_stride = 68;
  CHECK(apart.access() == RowAccess::strided);
  apart.line_stride = 72;
  CHECK(apart.access() == RowAccess::packed_pieces);
  for (const uintptr_t offset : {2, 8, 16}) {
    Pieces p;
    p.offset = offset;
    CHECK(p.access() == (offset == 16 ? RowAccess::packed_pieces : RowAccess::strided));
  }
}

TEST(contiguous_columns_of_rows_in_many_dimensions_are_packs) {
  RowForward p = Pieces{}.forward();
  p.geometry = {24, 64, 3, 1, {2, 3, 4}, {64}};
  for (Operand* operand : {&p.x, &p.y}) *operand = {operand->data, DType::bf16, {64, 1024, 128}, {1}};
  for (Operand* operand : {&p.weight, &p.bias}) *operand = {operand->data, DType::bf16, {0, 0, 0}, {1}};
  p.contiguous = true;
  CHECK(request_of(p, NORMACT_ROW_AUTO, 0).access == RowAccess::packed_pieces);
}

TEST(pieces_that_are_far_apart_are_streamed) {
  RowRequest r = request(20, 6 * 64, DType::bf16, RowAccess::packed_pieces);
  CHECK(!r.near);
  CHECK_EQ(static_cast<int>(forward(r).variant), static_cast<int>(NORMACT_ROW_STREAM));
  CHECK_EQ(static_cast<int>(backward(r).variant), static_cast<int>(NORMACT_ROW_STREAM));
  CHECK_EQ(forward(r).threads, 32);  // 48 packs, four a thread
  CHECK(!forward(r).near && !backward(r).near);
  r.access = RowAccess::strided;
  CHECK_EQ(forward(r).threads, 96);
  r.geometry.cols = r.geometry.col_shape[0] = 2048;
  CHECK_EQ(forward(r).threads, 128);
  CHECK_EQ(backward(r).threads, 128);
  r.near = true;
  r.variant = NORMACT_ROW_STREAM;
  CHECK(forward(r).near && backward(r).near);
  r.contiguous = true;
  CHECK_EQ(forward(r).threads, 512);
}

TEST(rows_and_columns_are_near_where_no_operand_has_them_2_31_elements_apart) {
  CHECK(request_of(Pieces{}.forward(), NORMACT_ROW_AUTO, 0).near);
  for (const int64_t stride : {int64_t{INT32_MAX} / 5 - 63, int64_t{INT32_MAX} / 5 + 1, INT64_MAX / 8, INT64_MIN / 8}) {
    RowForward p = Pieces{}.forward();
    p.y.col_stride[0] = stride;  // of six channels
    CHECK(request_of(p, NORMACT_ROW_AUTO, 0).near == (stride == INT32_MAX / 5 - 63));
  }
  RowForward p = Pieces{}.forward();
  p.geometry.col_shape[0] = int64_t{1} << 32;
  CHECK(!request_of(p, NORMACT_ROW_AUTO, 0).near);
  for (const int64_t stride : {int64_t{INT32_MAX}, int64_t{1} << 31, -(int64_t{1} << 31)}) {
    RowForward q = Pieces{}.forward();
    q.x.row_stride[0] = stride;
    CHECK(request_of(q, NORMACT_ROW_AUTO, 0).near == (stride == INT32_MAX));
  }
}
