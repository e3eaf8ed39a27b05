// SPDX-License-Identifier: Apache-2.0
// From a problem to what the planners look at.
#include <algorithm>
#include <initializer_list>

#include "core/merge_dims.h"
#include "core/plan_common.h"

namespace normact {
namespace {

bool pack_aligned(const Operand& operand, const RowGeometry& g) {
  if (operand.data == nullptr) return true;
  if (reinterpret_cast<uintptr_t>(operand.data) % kPackBytes != 0) return false;
  for (int d = 0; d < g.row_ndim; ++d) {
    if (g.row_shape[d] > 1 && operand.row_stride[d] * size_of(operand.dtype) % kPackBytes != 0) return false;
  }
  return true;
}

/// The same of the samples of rows that lie side by side.
bool pack_aligned_samples(const Operand& operand, const RowGeometry& g) {
  return reinterpret_cast<uintptr_t>(operand.data) % kPackBytes == 0 &&
         (g.row_ndim == 1 || operand.row_stride[0] * size_of(operand.dtype) % kPackBytes == 0);
}

/// Whether the lines of an operand whose rows lie side by side are multiples of so many bytes, at multiples of these.
bool lines_divide(const Operand& operand, const RowGeometry& g, int bytes) {
  if (operand.data == nullptr) return true;
  const int64_t size = size_of(operand.dtype);
  if (reinterpret_cast<uintptr_t>(operand.data) % bytes != 0) return false;
  if (g.row_shape[g.row_ndim - 1] * size % bytes != 0) return false;
  for (int d = 0; d < g.row_ndim - 1; ++d) {
    if (operand.row_stride[d] * size % bytes != 0) return false;
  }
  for (int d = 0; d < g.col_ndim; ++d) {
    if (g.col_shape[d] > 1 && operand.col_stride[d] * size % bytes != 0) return false;
  }
  return true;
}

/// Whether an operand's columns are in pieces of whole packs of so many elements, at multiples of these.
bool pieces_divide(const Operand& operand, const RowGeometry& g, int elements) {
  if (operand.data == nullptr) return true;
  const int64_t size = size_of(operand.dtype), unit = std::min<int64_t>(kPackBytes, elements * size);
  const auto divides = [&](int64_t extent, int64_t stride) { return extent == 1 || stride * size % unit == 0; };
  const int last = g.col_ndim - 1;
  bool all = reinterpret_cast<uintptr_t>(operand.data) % unit == 0 && operand.col_stride[last] == 1;
  for (int d = 0; d < last; ++d) all = all && divides(g.col_shape[d], operand.col_stride[d]);
  for (int d = 0; d < g.row_ndim; ++d) all = all && divides(g.row_shape[d], operand.row_stride[d]);
  return all;
}

RowAccess pieces_or_strided(const RowProblem& problem, std::initializer_list<const Operand*> like_x,
                            std::initializer_list<const Operand*> parameters) {
  const RowGeometry& g = problem.geometry;
  if (!may_be_pieces(problem)) return RowAccess::strided;
  const int elements = kPackBytes / size_of(problem.dtype);
  const auto divide = [&](const Operand* operand) { return pieces_divide(*operand, g, elements); };
  const bool all =
      std::all_of(like_x.begin(), like_x.end(), divide) && std::all_of(parameters.begin(), parameters.end(), divide);
  return all ? RowAccess::packed_pieces : RowAccess::strided;
}

/// Whether the rows of a sample and all their columns are one piece of whole packs in each of these operands.
bool are_images(const RowProblem& problem, std::initializer_list<const Operand*> like_x) {
  const RowGeometry& g = problem.geometry;
  if (!may_be_images(problem)) return false;
  const int64_t places = g.row_shape[g.row_ndim - 1];
  return std::all_of(like_x.begin(), like_x.end(), [&](const Operand* operand) {
    return operand->data == nullptr || (operand->col_stride[0] == places && pack_aligned_samples(*operand, g));
  });
}

/// How operands of x's shape and parameters can be accessed.
RowAccess access_of(const RowProblem& problem, std::initializer_list<const Operand*> like_x,
                    std::initializer_list<const Operand*> parameters) {
  const RowGeometry& g = problem.geometry;
  if (problem.adjacent && !is_mixed(problem)) {
    bool packs = true, halves = size_of(problem.dtype) == 2;
    for (const Operand* operand : like_x) {
      packs = packs && lines_divide(*operand, g, kPackBytes);
      halves = halves && lines_divide(*operand, g, kPackBytes / 2);
    }
    return packs ? RowAccess::packed_lines : halves ? RowAccess::half_packed_lines : RowAccess::lines;
  }
  if (!problem.contiguous || g.row_ndim > 2 || (g.row_ndim == 2 && g.rows > kMaxDivisibleRows))
    return pieces_or_strided(problem, like_x, parameters);
  bool packs = g.cols * size_of(problem.io_dtype) % kPackBytes == 0;
  for (const Operand* operand : like_x) packs = packs && pack_aligned(*operand, g);
  const Operand* first = nullptr;
  for (const Operand* operand : parameters) {
    if (operand->data == nullptr) continue;
    packs = packs && pack_aligned(*operand, g);
    if (first != nullptr && first->dtype != operand->dtype) return pieces_or_strided(problem, like_x, parameters);
    first = operand;
  }
  return packs ? RowAccess::packs : is_mixed(problem) ? RowAccess::strided : RowAccess::runs;
}

/// Whether the rows of all these operands follow each other without gaps.
bool rows_are_dense(const RowGeometry& g, std::initializer_list<const Operand*> like_x) {
  if (g.rows == 1) return true;
  bool dense = g.row_ndim == 1;
  for (const Operand* operand : like_x) dense = dense && (operand->data == nullptr || operand->row_stride[0] == g.cols);
  return dense;
}

/// Whether in each of these operands less than 2^31 elements are between a row's columns, and from a row to the next.
bool is_near(const RowGeometry& g, std::initializer_list<const Operand*> operands) {
  return std::all_of(operands.begin(), operands.end(), [&](const Operand* operand) {
    if (operand->data == nullptr) return true;
    uint64_t span = 0;
    for (int d = 0; d < g.col_ndim; ++d) {
      const auto steps = static_cast<uint64_t>(g.col_shape[d] - 1);
      if (steps > INT32_MAX || (steps > 0 && magnitude(operand->col_stride[d]) > INT32_MAX)) return false;
      span += steps * magnitude(operand->col_stride[d]);
      if (span > INT32_MAX) return false;
    }
    bool near = true;
    for (int d = 0; d < g.row_ndim; ++d) {
      near = near && (g.row_shape[d] == 1 || magnitude(operand->row_stride[d]) <= INT32_MAX);
    }
    return near;
  });
}

/// Whether rows are nearer to each other than columns in all these operands.
bool are_beside(const RowProblem& problem, std::initializer_list<const Operand*> like_x) {
  const RowGeometry& g = problem.geometry;
  if (problem.adjacent || g.row_shape[g.row_ndim - 1] == 1) return problem.adjacent;
  return std::all_of(like_x.begin(), like_x.end(), [&](const Operand* operand) {
    const uint64_t of_rows = magnitude(operand->row_stride[g.row_ndim - 1]);
    const uint64_t of_columns = magnitude(operand->col_stride[g.col_ndim - 1]);
    const bool anywhere = of_rows == 0 && of_columns == 0;  // one element, as of a sum's gradient
    return operand->data == nullptr || anywhere || of_rows < of_columns;
  });
}

RowRequest request_for(const RowProblem& problem, RowAccess access, bool residual, normact_row_variant variant,
                       int sm_margin) {
  RowRequest r{};
  r.geometry = problem.geometry;
  r.dtype = problem.dtype;
  r.activated = !is_identity(problem.activation);
  r.mixed = is_mixed(problem);
  r.access = access;
  r.contiguous = problem.contiguous;
  r.residual = residual;
  r.variant = variant;
  r.sm_margin = sm_margin;
  return r;
}

}  // namespace

bool may_be_images(const RowProblem& problem) {
  const RowGeometry& g = problem.geometry;
  return problem.adjacent && !is_mixed(problem) && g.row_ndim <= 2 && g.col_ndim == 1 &&
         g.cols * g.row_shape[g.row_ndim - 1] * size_of(problem.dtype) % kPackBytes == 0;
}

bool may_be_pieces(const RowProblem& problem) {
  const RowGeometry& g = problem.geometry;
  const int64_t elements = kPackBytes / size_of(problem.dtype);
  return g.col_shape[g.col_ndim - 1] % elements == 0 && g.cols <= INT32_MAX;
}

RowRequest request_of(const RowForward& p, normact_row_variant variant, int sm_margin) {
  const RowAccess access = access_of(p, {&p.x, &p.residual, &p.y, &p.residual_out}, {&p.weight, &p.bias});
  RowRequest r = request_for(p, access, p.residual.data != nullptr, variant, sm_margin);
  r.dense = rows_are_dense(p.geometry, {&p.x, &p.residual, &p.y, &p.residual_out});
  r.near = is_near(p.geometry, {&p.x, &p.residual, &p.y, &p.residual_out, &p.weight, &p.bias, &p.mean, &p.rstd});
  r.beside = are_beside(p, {&p.x, &p.residual, &p.y, &p.residual_out});
  r.images = are_images(p, {&p.x, &p.residual, &p.y, &p.residual_out});
  return r;
}

RowRequest request_of(const RowBackward& p, normact_row_variant variant, int sm_margin) {
  const RowAccess access = access_of(p, {&p.x, &p.dy, &p.dresidual, &p.dx, &p.daddend}, {&p.weight, &p.bias});
  RowRequest r = request_for(p, access, p.dresidual.data != nullptr, variant, sm_margin);
  r.dense = rows_are_dense(p.geometry, {&p.x, &p.dy, &p.dresidual, &p.dx});
  r.near = is_near(p.geometry, {&p.x, &p.dy, &p.dresidual, &p.dx, &p.daddend, &p.weight, &p.bias, &p.mean, &p.rstd});
  r.beside = are_beside(p, {&p.x, &p.dy, &p.dresidual, &p.dx, &p.daddend});
  r.images = are_images(p, {&p.x, &p.dy, &p.dresidual, &p.dx});
  r.parameter_gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  return r;
}

}  // namespace normact
