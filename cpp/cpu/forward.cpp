// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.h"
#include "cpu/dispatch.h"
#include "cpu/parameters.h"
#include "cpu/partition.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace normact::cpu {
namespace {

int64_t bytes_of_row(const RowForward& problem) {
  return (problem.residual.data ? 4 : 2) * problem.geometry.cols * size_of(problem.dtype);
}

/// Threads share the rows.
void forward_by_rows(const ForwardWork& work, const RowKernels& kernels, int threads, char* lanes, int64_t lane_bytes) {
  const RowForward& problem = *work.problem;
  parallel_ranges(threads, problem.geometry.rows, bytes_of_row(problem),
                  [&](Range rows, int lane) { kernels.forward_rows(work, rows, lanes + lane * lane_bytes); });
}

/// Threads share each row.
void forward_by_chunks(const ForwardWork& work, const RowKernels& kernels, int threads, char* lanes, int64_t lane_bytes,
                       Moments<double>* moments) {
  const RowGeometry& geometry = work.problem->geometry;
  for (int64_t row = 0; row < geometry.rows; ++row) {
    parallel_chunks(threads, geometry.cols, [&](Range columns, int64_t chunk, int lane) {
      moments[chunk] = kernels.forward_moments(work, row, columns, lanes + lane * lane_bytes);
    });
    const Statistics statistics = kernels.forward_merge(work, row, moments, ceil_div(geometry.cols, kChunk));
    parallel_chunks(threads, geometry.cols, [&](Range columns, int64_t, int lane) {
      kernels.forward_apply(work, row, columns, statistics, lanes + lane * lane_bytes);
    });
  }
}

}  // namespace

Status row_norm_forward(const RowForward& problem) {
  const RowKernels* kernels;
  NORMACT_TRY(find_row_kernels(problem.dtype, &kernels));
  const int64_t cols = problem.geometry.cols;
  const int threads = threads_for(problem.geometry.rows * bytes_of_row(problem), num_threads());
  const bool by_chunks = forward_shares_rows(problem.geometry, threads);
  const bool copy_weight = problem.weight.data && !is_plain(problem, problem.weight, problem.weight_offset);
  const bool copy_bias = problem.bias.data && !is_plain(problem, problem.bias, 0);

  Layout layout;
  const int64_t parameter_bytes = cols * accumulator_size(problem);
  const int64_t weight_at = layout.reserve(copy_weight ? parameter_bytes : 0);
  const int64_t bias_at = layout.reserve(copy_bias ? parameter_bytes : 0);
  const int64_t moments_at = layout.reserve(by_chunks ? ceil_div(cols, kChunk) * int64_t{sizeof(Moments<double>)} : 0);
  const int64_t lane_bytes = align_up(forward_scratch(problem, by_chunks ? kChunk : cols));
  const int64_t lanes_at = layout.reserve(threads * lane_bytes);
  char* const memory = thread_buffer(layout.size());
  if (!memory) return out_of_memory("norm_forward", layout.size());

  ForwardWork work{&problem, nullptr, nullptr};
  if (problem.weight.data) {
    work.weight = load_parameter(problem, *kernels, threads, problem.weight, problem.weight_offset, memory + weight_at);
  }
  if (problem.bias.data) work.bias = load_parameter(problem, *kernels, threads, problem.bias, 0, memory + bias_at);
  if (by_chunks) {
    forward_by_chunks(work, *kernels, threads, memory + lanes_at, lane_bytes,
                      reinterpret_cast<Moments<double>*>(memory + moments_at));
  } else {
    forward_by_rows(work, *kernels, threads, memory + lanes_at, lane_bytes);
  }
  return Status();
}

}  // namespace normact::cpu
