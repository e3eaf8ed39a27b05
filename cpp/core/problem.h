// SPDX-License-Identifier: Apache-2.0
// The validated problems that the back ends work on: plain data, no tensor descriptors, nothing left to check.
//
// A row norm reduces over "columns" and repeats over "rows". Each of the two index spaces is a product of dimensions;
// dimensions that are adjacent in memory in every operand have been merged, size-1 dimensions dropped, so that nearly
// every problem has row_ndim = col_ndim = 1. The general form (any strides on either side) is what lets a norm over
// axes that are not trailing use the same problem: layer norm over axis 1 of an NCHW tensor has rows (N, H * W), which
// lie side by side in memory, and C columns H * W elements apart.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/dtype.h"
#include "math/hd.h"

namespace normact {

constexpr int kMaxDims = 6;  // merged dimensions on each side

/// The two index spaces. rows and cols are the products of row_shape and col_shape; every ndim is >= 1.
struct RowGeometry {
  int64_t rows;
  int64_t cols;
  int row_ndim;
  int col_ndim;
  int64_t row_shape[kMaxDims];  // slowest first
  int64_t col_shape[kMaxDims];  // slowest first
};

/// One tensor of a row problem; absent when data is null (zero-size problems never reach a back end with rows to do).
/// Strides are in elements; those of an index space that the tensor does not have (weight: rows; rstd: columns) are 0.
struct Operand {
  void* data;
  DType dtype;
  int64_t row_stride[kMaxDims];
  int64_t col_stride[kMaxDims];
};

enum class NormKind : uint8_t { layer, rms };

/// What both directions have in common.
struct RowProblem {
  RowGeometry geometry;
  NormKind kind;
  DType dtype;      // of what is normalised: s and what is added to it, forward; x, dresidual and daddend, backward
  bool contiguous;  // col_ndim == 1 and every operand with columns has col_stride 1: the fast kernels' condition
  bool adjacent;    // not so, but in every operand of x's shape neighbouring rows lie side by side: row stride 1 inmost
  DType io_dtype;   // of x and y, of dy and dx: dtype, or 16 bits beside float32 (a mixed problem)
  double eps;
  double weight_offset;
  Activation activation;  // of the affine norm
};

/// Whether tensors of 16 bits go with sums of float32. Forward, there is a residual then.
NORMACT_HD bool is_mixed(const RowProblem& problem) { return problem.io_dtype != problem.dtype; }

/// y = act(norm(s)), s = x or round(x + residual). rows >= 1 and cols >= 1 (the C boundary finishes empty problems
/// itself).
struct RowForward : RowProblem {
  Operand x, residual, weight, bias;    // residual, weight, bias may be absent
  Operand y, residual_out, mean, rstd;  // residual_out is there iff residual is; mean, rstd may be absent
};

/// rows >= 0 and cols >= 1: with rows = 0, dweight and dbias are still to be zeroed.
struct RowBackward : RowProblem {
  Operand dy, x, weight, mean, rstd, dresidual;  // weight, mean (rms), dresidual may be absent
  Operand bias;                                  // the forward's; absent without an activation
  Operand dx, dweight, dbias;                    // dweight, dbias may be absent
  Operand daddend;                               // dx before it is rounded; only of mixed problems, may be absent
};

/// Element offset of a flat index into an index space with these sizes and strides.
NORMACT_HD int64_t strided_offset(int64_t index, int ndim, const int64_t* shape, const int64_t* stride) {
  if (ndim == 1) return index * stride[0];
  int64_t offset = 0;
  for (int d = ndim - 1; d > 0; --d) {
    const int64_t next = index / shape[d];
    offset += (index - next * shape[d]) * stride[d];
    index = next;
  }
  return offset + index * stride[0];
}

}  // namespace normact
