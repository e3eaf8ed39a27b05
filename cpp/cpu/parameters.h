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

/// The operand, or its copy in `memory` (cols accumulators; not used if the operand is plain).
inline const void* load_parameter(const RowProblem& problem, const RowKernels& kernels, int threads,
                                  const Operand& operand, double offset, void* memory) {
  if (is_plain(problem, operand, offset)) return operand.data;
  parallel_ranges(threads, problem.geometry.cols, 2 * accumulator_size(problem), [&](Range columns, int) {
    kernels.load_parameter(operand, problem.geometry, offset, columns, memory);
  });
  return memory;
}

inline Status out_of_memory(const char* function, int64_t bytes) {
  return Status(NORMACT_OUT_OF_MEMORY,
                std::string(function) + ": " + std::to_string(bytes) + " bytes of host memory could not be allocated");
}

}  // namespace normact::cpu
