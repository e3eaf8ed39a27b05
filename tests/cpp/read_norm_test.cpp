// SPDX-License-Identifier: Apache-2.0
// Golden rows: what becomes of shapes and strides. Errors are tested through the C API.
#include "core/read_norm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "core/message.h"

namespace {

using normact::Operand;
using normact::RowForward;
using normact::text;

using Ints = std::vector<int64_t>;

std::string join(int count, const int64_t* values) {
  std::string line;
  for (int i = 0; i < count; ++i) line += text(i > 0 ? "," : "", values[i]);
  return line;
}

// "rows 6: 6 cols 4: 4": the two index spaces after merging.
std::string geometry_text(const normact::RowGeometry& g) {
  return text("rows ", g.rows, ": ", join(g.row_ndim, g.row_shape), " cols ", g.cols, ": ",
              join(g.col_ndim, g.col_shape));
}

std::string stride_text(const normact::RowGeometry& g, const Operand& operand) {
  return text(join(g.row_ndim, operand.row_stride), " | ", join(g.col_ndim, operand.col_stride));
}

normact_tensor tensor(void* data, Ints& shape, Ints& strides) {
  return {data,
          1,
          0,
          static_cast<int32_t>(shape.size()),
          2,
          32,
          1,
          shape.data(),
          strides.empty() ? nullptr : strides.data(),
          0};
}

// Memory at addresses that are never touched, far apart.
void* memory(uintptr_t slot) { return reinterpret_cast<void*>(slot << 40); }

// Reads a layer norm of x with weight, statistics and y.
struct Problem {
  Ints x, x_strides, axes;
  Ints weight_strides = {}, y_strides = {}, mean_strides = {};
  RowForward problem{};

  normact::Status read() {
    Ints weight, mean, dense;
    for (size_t d = 0; d < x.size(); ++d) {
      const bool normalised = std::any_of(axes.begin(), axes.end(), [&](int64_t axis) {
        return axis == static_cast<int64_t>(d) || axis + static_cast<int64_t>(x.size()) == static_cast<int64_t>(d);
      });
      (normalised ? weight : mean).push_back(x[d]);
    }
    const normact_tensor tx = tensor(memory(1), x, x_strides), ty = tensor(memory(2), x, y_strides),
                         tw = tensor(memory(3), weight, weight_strides), tm = tensor(memory(4), mean, mean_strides),
                         tr = tensor(memory(5), mean, dense);
    const normact_norm_desc desc{
        sizeof desc, NORMACT_NORM_LAYER, static_cast<int32_t>(axes.size()), axes.data(), 1e-5, 0.0, 0, 0, 0, 0, 0};
    const normact_norm_forward_args args{sizeof args, &tx, nullptr, &tw, nullptr, &ty, nullptr, &tm, &tr};
    normact::Device device;
    return normact::read_norm_forward(&desc, &args, normact::Purpose::run, &problem, &device);
  }
};

void expect(const Problem& p, const std::string& found, const char* expected) {
  const std::string where = text("x of shape (", join(static_cast<int>(p.x.size()), p.x.data()), ")");
  if (found != expected) check::fail(__FILE__, __LINE__, text(where, ": found ", found, ", expected ", expected));
}

struct Golden {
  Problem p;
  const char* geometry;
  const char* x;
  const char* weight;
  const char* mean;
  bool contiguous;
};

TEST(merges_dimensions) {
  Golden rows[] = {
      {{{6, 4}, {}, {-1}}, "rows 6: 6 cols 4: 4", "4 | 1", "0 | 1", "1 | 0", true},
      {{{2, 3, 4}, {}, {-1}}, "rows 6: 6 cols 4: 4", "4 | 1", "0 | 1", "1 | 0", true},
      {{{2, 3, 4}, {}, {1, 2}}, "rows 2: 2 cols 12: 12", "12 | 1", "0 | 1", "1 | 0", true},
      {{{2, 3, 4}, {}, {-1, 1}}, "rows 2: 2 cols 12: 12", "12 | 1", "0 | 1", "1 | 0", true},
      {{{2, 3, 4}, {}, {2, 0, 1}}, "rows 1: 1 cols 24: 24", "0 | 1", "0 | 1", "0 | 0", true},
      {{{1, 5}, {}, {1}}, "rows 1: 1 cols 5: 5", "0 | 1", "0 | 1", "0 | 0", true},
      {{{5, 1}, {}, {1}}, "rows 5: 5 cols 1: 1", "1 | 1", "0 | 1", "1 | 0", true},
      {{{5, 1}, {7, 9}, {1}}, "rows 5: 5 cols 1: 1", "7 | 1", "0 | 1", "1 | 0", true},
      // Row-strided, an expanded batch, transposed batch dimensions (in x's order of memory), and one that only x
      // cannot merge.
      {{{6, 4}, {9, 1}, {1}}, "rows 6: 6 cols 4: 4", "9 | 1", "0 | 1", "1 | 0", true},
      {{{6, 4}, {0, 1}, {1}}, "rows 6: 6 cols 4: 4", "0 | 1", "0 | 1", "1 | 0", true},
      {{{2, 3, 4}, {4, 8, 1}, {2}}, "rows 6: 3,2 cols 4: 4", "8,4 | 1", "0,0 | 1", "1,3 | 0", true},
      {{{2, 3, 1, 4}, {40, 8, 3, 1}, {3}}, "rows 6: 2,3 cols 4: 4", "40,8 | 1", "0,0 | 1", "3,1 | 0", true},
      {{{2, 3, 4}, {24, 8, 1}, {2}}, "rows 6: 6 cols 4: 4", "8 | 1", "0 | 1", "1 | 0", true},
      // Columns that are strided, reversed, expanded, or in two pieces.
      {{{6, 4}, {8, 2}, {1}}, "rows 6: 6 cols 4: 4", "8 | 2", "0 | 1", "1 | 0", false},
      {{{6, 4}, {4, -1}, {1}}, "rows 6: 6 cols 4: 4", "4 | -1", "0 | 1", "1 | 0", false},
      {{{6, 4}, {1, 0}, {1}}, "rows 6: 6 cols 4: 4", "1 | 0", "0 | 1", "1 | 0", false},
      {{{2, 3, 4}, {30, 5, 1}, {1, 2}}, "rows 2: 2 cols 12: 3,4", "30 | 5,1", "0 | 4,1", "1 | 0,0", false},
      // A strided weight splits the columns of everyone.
      {{{2, 3, 4}, {}, {1, 2}, {8, 2}}, "rows 2: 2 cols 12: 12", "12 | 1", "0 | 2", "1 | 0", false},
      {{{2, 3, 4}, {}, {1, 2}, {9, 1}}, "rows 2: 2 cols 12: 3,4", "12 | 4,1", "0 | 9,1", "1 | 0,0", false},
      // Statistics with their own strides split the rows.
      {{{2, 3, 4}, {}, {2}, {}, {}, {1, 2}}, "rows 6: 2,3 cols 4: 4", "12,4 | 1", "0,0 | 1", "1,2 | 0", true},
      // Empty on either side.
      {{{0, 4}, {}, {1}}, "rows 0: 0 cols 4: 4", "0 | 1", "0 | 1", "0 | 0", true},
      {{{3, 0}, {}, {1}}, "rows 3: 3 cols 0: 0", "0 | 1", "0 | 1", "1 | 0", true},
  };
  for (Golden& row : rows) {
    const normact::Status status = row.p.read();
    if (!status.ok()) check::fail(__FILE__, __LINE__, status.message());
    const normact::RowGeometry& g = row.p.problem.geometry;
    expect(row.p, geometry_text(g), row.geometry);
    expect(row.p, stride_text(g, row.p.problem.x), row.x);
    expect(row.p, stride_text(g, row.p.problem.weight), row.weight);
    expect(row.p, stride_text(g, row.p.problem.mean), row.mean);
    CHECK_EQ(row.p.problem.contiguous, row.contiguous);
  }
}

struct AnyAxes {
  Problem p;
  const char* geometry;
  const char* x;
  const char* weight;
  const char* mean;
  bool contiguous, adjacent;
};

TEST(axes_that_are_not_trailing) {
  AnyAxes rows[] = {
      // NCHW, the same channels last, a matrix by columns, and one with gaps between its rows.
      {{{2, 12, 3, 4}, {}, {1}}, "rows 24: 2,12 cols 12: 12", "144,1 | 12", "0,0 | 1", "12,1 | 0", false, true},
      {{{2, 12, 3, 4}, {144, 1, 48, 12}, {1}, {}, {144, 1, 48, 12}},
       "rows 24: 24 cols 12: 12",
       "12 | 1",
       "0 | 1",
       "1 | 0",
       true,
       false},
      {{{6, 4}, {}, {0}}, "rows 4: 4 cols 6: 6", "1 | 4", "0 | 1", "1 | 0", false, true},
      {{{6, 4}, {1, 6}, {0}, {}, {1, 6}}, "rows 4: 4 cols 6: 6", "6 | 1", "0 | 1", "1 | 0", true, false},
      {{{2, 12, 3, 4}, {288, 24, 8, 2}, {1}},
       "rows 24: 2,12 cols 12: 12",
       "288,2 | 24",
       "0,0 | 1",
       "12,1 | 0",
       false,
       false},
      {{{2, 12, 3, 4}, {}, {1}, {}, {144, 1, 48, 12}},
       "rows 24: 2,12 cols 12: 12",
       "144,1 | 12",
       "0,0 | 1",
       "12,1 | 0",
       false,
       false},
      // Several axes, in any order; weight over them in x's order.
      {{{2, 12, 3, 2}, {}, {3, 1, 2}}, "rows 2: 2 cols 72: 72", "72 | 1", "0 | 1", "1 | 0", true, false},
      {{{2, 12, 3, 2}, {}, {2, 0}}, "rows 24: 12,2 cols 6: 2,3", "6,1 | 72,2", "0,0 | 3,1", "2,1 | 0,0", false, true},
      {{{2, 12, 3, 2}, {}, {-1, 1}}, "rows 6: 2,3 cols 24: 12,2", "72,2 | 6,1", "0,0 | 2,1", "3,1 | 0,0", false, false},
      {{{5, 1, 3}, {}, {1}}, "rows 15: 15 cols 1: 1", "1 | 1", "0 | 1", "1 | 0", true, false},
      {{{3, 5, 1}, {}, {0}}, "rows 5: 5 cols 3: 3", "1 | 5", "0 | 1", "1 | 0", false, true},
      {{{0, 4, 2}, {}, {1}}, "rows 0: 0 cols 4: 4", "0 | 2", "0 | 1", "0 | 0", false, false},
  };
  for (AnyAxes& row : rows) {
    const normact::Status status = row.p.read();
    if (!status.ok()) check::fail(__FILE__, __LINE__, status.message());
    const normact::RowGeometry& g = row.p.problem.geometry;
    expect(row.p, geometry_text(g), row.geometry);
    expect(row.p, stride_text(g, row.p.problem.x), row.x);
    expect(row.p, stride_text(g, row.p.problem.weight), row.weight);
    expect(row.p, stride_text(g, row.p.problem.mean), row.mean);
    CHECK_EQ(row.p.problem.contiguous, row.contiguous);
    CHECK_EQ(row.p.problem.adjacent, row.adjacent);
  }
}

TEST(dimension_limits) {
  // Seven row dimensions that cannot merge, as their strides fall by four where the sizes are two.
  Problem seven{{2, 2, 2, 2, 2, 2, 2, 8}, {131072, 32768, 8192, 2048, 512, 128, 32, 1}, {7}};
  const normact::Status status = seven.read();
  CHECK(status.code() == NORMACT_NOT_SUPPORTED);
  CHECK(status.message().find("x has shape (2, 2, 2, 2, 2, 2, 2, 8)") == 0);
  Problem six{{2, 2, 2, 2, 2, 2, 8}, {32768, 8192, 2048, 512, 128, 32, 1}, {6}};
  CHECK(six.read().ok());
  CHECK_EQ(six.problem.geometry.row_ndim, 6);
  Problem many{Ints(64, 1), {}, {63}};
  CHECK(many.read().ok());
  CHECK_EQ(many.problem.geometry.rows, 1);
}

TEST(absent_operands_are_null) {
  Problem p{{6, 4}, {}, {1}};
  CHECK(p.read().ok());
  CHECK(p.problem.residual.data == nullptr && p.problem.bias.data == nullptr && p.problem.residual_out.data == nullptr);
  CHECK(p.problem.x.data == memory(1) && p.problem.y.data == memory(2) && p.problem.rstd.data == memory(5));
  CHECK_EQ(p.problem.eps, 1e-5);
}

}  // namespace
