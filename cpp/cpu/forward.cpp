// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.h"
#include "cpu/dispatch.h"
#include "cpu/parameters.h"
#include "cpu/partition.h"
#include "cpu/row_tiles.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace normact::cpu {
namespace {

int64_t bytes_of_row(const RowForward& problem) {
  const int64_t sums = problem.residual.data ? size_of(problem.dtype) : 0;
  return 2 * problem.geometry.cols * (size_of(problem.io_dtype) + sums);
}

// Bytes: of shorter rows that go through a buffer, what it costs to begin is more than it gains.
constexpr int64_t kMinStreamedRow = 4096;

/// Not where y is written in place, whose lines have been read.
bool streams_output(const RowForward& p) {
  const int64_t row = p.geometry.cols * size_of(p.io_dtype);
  if (!p.contiguous || (row < kMinStreamedRow && !are_lines(p.y.data, row))) return false;
  return p.y.data != p.x.data && p.y.data != p.residual.data && streams(p.geometry.rows * bytes_of_row(p));
}

/// The same of the sum with a residual.
bool streams_sum(const RowForward& p) {
  if (!p.contiguous || !p.residual.data || p.residual_out.data == p.x.data) return false;
  return p.residual_out.data != p.residual.data && are_lines(p.residual_out.data, p.geometry.cols * size_of(p.dtype)) &&
         streams(p.geometry.rows * bytes_of_row(p));
}

/// Everything that the steps of one call share.
struct Call {
  const RowForward& problem;
  const RowKernels& kernels;
  const ArrayActivation* activation;  // null: none
  bool streams;                       // y goes past the caches
  bool streams_sum;                   // and the sum with a residual
  int threads;
  char* weight;  // where a copy of the weight goes; null: the operand's own memory will do
  char* bias;
  char* lanes;  // per thread: scratch of the kernels; by chunks, then one chunk of weight and one of bias
  int64_t lane_bytes;
  int64_t parameters_at;

  char* lane(int index) const { return lanes + index * lane_bytes; }
};

/// Threads share the rows, or their tiles.
void forward_by_rows(const Call& call) {
  const RowForward& p = call.problem;
  ForwardWork work{&p, p.weight.data, p.bias.data, 0, call.activation, call.streams, call.streams_sum, row_tiles(p)};
  if (call.weight) work.weight = copy_parameter(p, call.kernels, call.threads, p.weight, p.weight_offset, call.weight);
  if (call.bias) work.bias = copy_parameter(p, call.kernels, call.threads, p.bias, 0, call.bias);
  if (in_tiles(p)) {
    parallel_ranges(call.threads, work.tiles.count, work.tiles.rows * bytes_of_row(p),
                    [&](Range range, int lane) { call.kernels.forward_tiles(work, range, call.lane(lane)); });
    return;
  }
  parallel_ranges(call.threads, p.geometry.rows, bytes_of_row(p),
                  [&](Range rows, int lane) { call.kernels.forward_rows(work, rows, call.lane(lane)); });
}

/// y of one chunk of a row. Parameters that need a copy are copied for this chunk alone, which stays in the cache.
void apply_chunk(const Call& call, int64_t row, Range columns, Statistics statistics, char* lane) {
  const RowForward& p = call.problem;
  ForwardWork work{&p, p.weight.data, p.bias.data, 0, call.activation, call.streams, false, {}};
  if (call.weight || call.bias) {
    work.parameters_from = columns.begin;
    work.weight = chunk_of_parameter(p, call.kernels, p.weight, p.weight_offset, columns, lane + call.parameters_at);
    work.bias = chunk_of_parameter(p, call.kernels, p.bias, 0, columns,
                                   lane + call.parameters_at + kChunk * accumulator_size(p));
  }
  call.kernels.forward_apply(work, row, columns, statistics, lane);
}

/// Threads share each row.
void forward_by_chunks(const Call& call, Moments<double>* moments) {
  const RowGeometry& geometry = call.problem.geometry;
  const ForwardWork work{&call.problem, nullptr, nullptr, 0, nullptr, false, false, {}};
  for (int64_t row = 0; row < geometry.rows; ++row) {
    parallel_chunks(call.threads, geometry.cols, [&](Range columns, int64_t chunk, int lane) {
      moments[chunk] = call.kernels.forward_moments(work, row, columns, call.lane(lane));
    });
    const Statistics statistics = call.kernels.forward_merge(work, row, moments, ceil_div(geometry.cols, kChunk));
    parallel_chunks(call.threads, geometry.cols, [&](Range columns, int64_t, int lane) {
      apply_chunk(call, row, columns, statistics, call.lane(lane));
    });
  }
}

}  // namespace

Status row_norm_forward(const RowForward& problem) {
  const RowKernels* kernels;
  NORMACT_TRY(find_row_kernels(problem, &kernels));
  ArrayActivation activation;
  const ArrayActivation* activated;
  NORMACT_TRY(find_array_activation(problem.io_dtype, problem.activation, &activation, &activated));
  const int64_t cols = problem.geometry.cols;
  const int threads = threads_for(problem.geometry.rows * bytes_of_row(problem), num_threads());
  const bool by_tiles = in_tiles(problem);
  const bool by_chunks = !by_tiles && forward_by_chunks_is_better(problem.geometry, threads);
  const bool copy_weight = problem.weight.data && !is_plain(problem, problem.weight, problem.weight_offset);
  const bool copy_bias = problem.bias.data && !is_plain(problem, problem.bias, 0);

  Layout layout, lane;
  lane.reserve(by_tiles ? tile_scratch(problem, row_tiles(problem), 1)
                        : forward_scratch(problem, by_chunks ? kChunk : cols));
  const int64_t parameters_at = lane.reserve(by_chunks ? 2 * kChunk * accumulator_size(problem) : 0);
  const int64_t copy_bytes = by_chunks ? 0 : cols * accumulator_size(problem);
  const int64_t weight_at = layout.reserve(copy_weight ? copy_bytes : 0);
  const int64_t bias_at = layout.reserve(copy_bias ? copy_bytes : 0);
  const int64_t moments_at = layout.reserve(by_chunks ? ceil_div(cols, kChunk) * int64_t{sizeof(Moments<double>)} : 0);
  const int64_t lanes_at = layout.reserve(threads * lane.size());
  char* const memory = thread_buffer(layout.size());
  if (!memory) return out_of_memory(layout.size());

  const Call call{problem,
                  *kernels,
                  activated,
                  streams_output(problem),
                  streams_sum(problem),
                  threads,
                  copy_weight ? memory + weight_at : nullptr,
                  copy_bias ? memory + bias_at : nullptr,
                  memory + lanes_at,
                  lane.size(),
                  parameters_at};
  if (by_chunks) {
    forward_by_chunks(call, reinterpret_cast<Moments<double>*>(memory + moments_at));
  } else {
    forward_by_rows(call);
  }
  return Status();
}

}  // namespace normact::cpu
