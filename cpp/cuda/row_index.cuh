// SPDX-License-Identifier: Apache-2.0
// Where a row of a row problem begins: its index in the merged dimensions, without a 64-bit division.
#pragma once

#include "core/problem.h"

namespace normact::cuda {

/// Divides numbers below 2^31 by one that is known on the host, without a division (Granlund, Montgomery 1994, figure
/// 4.1).
struct Divisor {
  unsigned size = 1;
  unsigned magic = 1;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(unsigned divisor) : size(divisor) {
    while ((uint64_t{1} << shift) < size) ++shift;
    magic = static_cast<unsigned>((((uint64_t{1} << shift) - size) << 32) / size + 1);
  }
  __device__ __forceinline__ unsigned quotient(unsigned value) const {
    return (__umulhi(value, magic) + value) >> shift;
  }
};

/// Divides row indices by the number of inner rows. Rows in two dimensions are fewer than 2^31 (the planner sees to
/// that).
struct RowDivisor : Divisor {
  bool flat;  // rows in one dimension: all are outer rows

  explicit RowDivisor(const RowGeometry& g)
      : Divisor(g.row_ndim > 1 ? static_cast<unsigned>(g.row_shape[1]) : 1), flat(g.row_ndim == 1) {}
};

/// A row's index in at most two merged dimensions, which is what the register kernels serve.
struct RowIndex {
  int64_t outer;
  unsigned inner;  // 0 in one dimension

  __device__ __forceinline__ RowIndex(const RowDivisor& divisor, int64_t row) {
    const unsigned quotient = divisor.quotient(static_cast<unsigned>(row));
    outer = divisor.flat ? row : quotient;
    inner = divisor.flat ? 0 : static_cast<unsigned>(row) - quotient * divisor.size;
  }
};

/// Where a row of this operand starts.
template <class T>
__device__ __forceinline__ T* row_pointer(const Operand& operand, const RowIndex& row) {
  return static_cast<T*>(operand.data) + (row.outer * operand.row_stride[0] + row.inner * operand.row_stride[1]);
}

/// Writes the statistics of a row that are wanted.
template <class A>
__device__ __forceinline__ void store_statistics(const RowForward& p, const RowIndex& row, A mean, A rstd) {
  if (p.mean.data != nullptr) *row_pointer<A>(p.mean, row) = mean;
  if (p.rstd.data != nullptr) *row_pointer<A>(p.rstd, row) = rstd;
}

/// Where a row in any number of dimensions starts in each of some operands, in elements. quotient(row, d) divides by
/// the size of dimension d. One division a dimension for all of them: inlined one by one, they make kernels of
/// thousands of instructions, which are fetched even to be skipped.
template <class Index, int kCount, class Quotient>
__device__ __forceinline__ void row_offsets(Index row, const RowGeometry& g, const Operand* const (&operands)[kCount],
                                            int64_t (&offset)[kCount], Quotient quotient) {
#pragma unroll
  for (int64_t& of : offset) of = 0;
#pragma unroll 1
  for (int d = g.row_ndim - 1; d > 0; --d) {
    const Index outer = quotient(row, d), inner = row - outer * static_cast<Index>(g.row_shape[d]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) offset[i] += inner * operands[i]->row_stride[d];
    row = outer;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) offset[i] += row * operands[i]->row_stride[0];
}
template <int kCount>
__device__ __forceinline__ void row_offsets(int64_t row, const RowGeometry& g, const Operand* const (&operands)[kCount],
                                            int64_t (&offset)[kCount]) {
  row_offsets(row, g, operands, offset, [&](int64_t of, int d) { return of / g.row_shape[d]; });
}

}  // namespace normact::cuda
