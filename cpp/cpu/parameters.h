// SPDX-License-Identifier: Apache-2.0
// Weight and bias as the kernels want them: arrays of the accumulator type.
#pragma once

#include "core/problem.h"
#include "cpu/partition.h"
#include "cpu/row_kernels.h"

namespace normact::cpu {

inline int64_t accumulator_size(const RowProblem& problem) { return size_of(accumulator_of(problem.dtype)); }

/// Whether the operand's own memory will do.
inline bool is_plain(const RowProblem& problem, const Operand& operand, double offset) {
  return problem.contiguous && operand.data && operand.dtype == accumulator_of(problem.dtype) && offset == 0;
}

/// Fills `memory` (cols accumulators) with the parameter.
inline const void* copy_parameter(const RowProblem& problem, const RowKernels& kernels, int threads,
                                  const Operand& operand, double offset, char* memory) {
  const int64_t size = accumulator_size(problem);
  parallel_ranges(threads, problem.geometry.cols, 2 * size, [&](Range columns, int) {
    kernels.load_parameter(operand, problem.geometry, offset, columns, memory + columns.begin * size);
  });
  return memory;
}

/// The parameter for these columns: where it is, or copied to `memory`; null if it is absent.
inline const void* chunk_of_parameter(const RowProblem& problem, const RowKernels& kernels, const Operand& operand,
                                      double offset, Range columns, char* memory) {
  if (!operand.data) return nullptr;
  if (is_plain(problem, operand, offset)) {
    return static_cast<const char*>(operand.data) + columns.begin * accumulator_size(problem);
  }
  kernels.load_parameter(operand, problem.geometry, offset, columns, memory);
  return memory;
}

}  // namespace normact::cpu
