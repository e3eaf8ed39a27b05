// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "cpu/backend.h"
#include "cpu/dispatch.h"
#include "cpu/parameters.h"
#include "cpu/partition.h"
#include "cpu/row_tiles.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace normact::cpu {
namespace {

/// Arrays of `cols` sums in the workspace: one of each wanted kind per block.
struct Partials {
  char* dweight;   // null: not wanted
  char* dbias;     // null: not wanted
  int64_t stride;  // bytes from one block's array to the next
};

int64_t bytes_of_row(const RowBackward& problem) {
  const int64_t x_and_daddend = (problem.daddend.data ? 2 : 1) * size_of(problem.dtype);
  return problem.geometry.cols * (2 * size_of(problem.io_dtype) + x_and_daddend);
}

bool wants_sums(const RowBackward& problem) { return problem.dweight.data || problem.dbias.data; }

int64_t array_bytes(const RowProblem& problem) { return align_up(problem.geometry.cols * accumulator_size(problem)); }

/// The kernels sum dbias only beside dweight, so that dweight has a place whenever either is wanted.
Partials partials_in(const RowBackward& problem, int64_t blocks, void* workspace) {
  char* const base = static_cast<char*>(workspace);
  const int64_t stride = array_bytes(problem);
  return {wants_sums(problem) ? base : nullptr, problem.dbias.data ? base + blocks * stride : nullptr, stride};
}

ParameterSums sums_of_block(const Partials& partials, int64_t block) {
  return {partials.dweight ? partials.dweight + block * partials.stride : nullptr,
          partials.dbias ? partials.dbias + block * partials.stride : nullptr};
}

void clear(ParameterSums sums, int64_t offset, int64_t bytes) {
  if (sums.dweight) std::memset(static_cast<char*>(sums.dweight) + offset, 0, static_cast<size_t>(bytes));
  if (sums.dbias) std::memset(static_cast<char*>(sums.dbias) + offset, 0, static_cast<size_t>(bytes));
}

// Bytes: shorter rows that go through a buffer come faster with dx asked for early.
constexpr int64_t kMinStreamedRow = 16384;

/// Not where dx or daddend is written in place, whose lines have been read.
bool streams_output(const RowBackward& p, int64_t bytes) {
  const int64_t cols = p.geometry.cols, row = cols * size_of(p.dtype);
  const bool lines = are_lines(p.dx.data, cols * size_of(p.io_dtype)) && are_lines(p.daddend.data, row);
  if (!p.contiguous || (row < kMinStreamedRow && !lines)) return false;
  if (p.daddend.data && (p.daddend.data == p.x.data || p.daddend.data == p.dresidual.data)) return false;
  return p.dx.data != p.dy.data && p.dx.data != p.x.data && p.dx.data != p.dresidual.data && streams(bytes);
}

/// Everything that the steps of one call share.
struct Call {
  BackwardWork work;
  const RowKernels* kernels;
  RowBlocks blocks;
  int threads;
  Partials partials;
  char* lanes;  // per thread: scratch of the kernels, then two arrays of sums if a block is flushed
  int64_t lane_bytes;
  int64_t flush_at;
  RowSums* chunk_sums;

  const RowBackward& problem() const { return *work.problem; }
  char* lane(int index) const { return lanes + index * lane_bytes; }
};

bool flushes(const RowBackward& problem, const RowBlocks& blocks) {
  return wants_sums(problem) && !in_tiles(problem) && blocks.block_rows > kFlushRows;
}

/// A long block goes through short sums, so that fp32 keeps its digits however many rows there are.
ParameterSums short_sums(const Call& call, char* memory) {
  const int64_t stride = call.partials.stride;
  return {call.partials.dweight ? memory : nullptr, call.partials.dbias ? memory + stride : nullptr};
}

void add_sums(const Call& call, ParameterSums target, ParameterSums source, Range columns) {
  const int64_t offset = columns.begin * accumulator_size(call.problem());
  const auto add = [&](void* to, void* from) {
    if (!to) return;
    call.kernels->add(static_cast<char*>(to) + offset, static_cast<char*>(from) + offset, columns.end - columns.begin);
  };
  add(target.dweight, source.dweight);
  add(target.dbias, source.dbias);
}

void backward_block(const Call& call, int64_t block, char* lane) {
  const RowGeometry& geometry = call.problem().geometry;
  const int64_t bytes = geometry.cols * accumulator_size(call.problem());
  const ParameterSums sums = sums_of_block(call.partials, block);
  clear(sums, 0, bytes);
  const bool tiles = in_tiles(call.problem());
  const int64_t count = tiles ? call.work.tiles.count : geometry.rows;
  const Range rows = {block * call.blocks.block_rows, std::min(count, (block + 1) * call.blocks.block_rows)};
  if (tiles) return call.kernels->backward_tiles(call.work, rows, sums, lane);
  if (!flushes(call.problem(), call.blocks)) return call.kernels->backward_rows(call.work, rows, sums, lane);
  const ParameterSums part = short_sums(call, lane + call.flush_at);
  for (int64_t row = rows.begin; row < rows.end; row += kFlushRows) {
    clear(part, 0, bytes);
    call.kernels->backward_rows(call.work, {row, std::min(rows.end, row + kFlushRows)}, part, lane);
    add_sums(call, sums, part, {0, geometry.cols});
  }
}

/// Threads share each row; one block.
void backward_by_chunks(const Call& call) {
  const RowGeometry& geometry = call.problem().geometry;
  const int64_t size = accumulator_size(call.problem());
  const bool flush = flushes(call.problem(), call.blocks);
  const ParameterSums sums = sums_of_block(call.partials, 0);
  const ParameterSums part = flush ? short_sums(call, call.lane(0) + call.flush_at) : sums;
  if (flush) clear(sums, 0, geometry.cols * size);
  for (int64_t row = 0; row < geometry.rows; ++row) {
    parallel_chunks(call.threads, geometry.cols, [&](Range columns, int64_t chunk, int lane) {
      if (row % kFlushRows == 0) {
        if (flush && row > 0) add_sums(call, sums, part, columns);
        if (flush || row == 0) clear(part, columns.begin * size, (columns.end - columns.begin) * size);
      }
      call.chunk_sums[chunk] = call.kernels->backward_sums(call.work, row, columns, part, call.lane(lane));
    });
    RowSums total = {};
    for (int64_t chunk = 0; chunk < ceil_div(geometry.cols, kChunk); ++chunk) {
      total.g += call.chunk_sums[chunk].g;
      total.g_xhat += call.chunk_sums[chunk].g_xhat;
    }
    parallel_chunks(call.threads, geometry.cols, [&](Range columns, int64_t, int lane) {
      call.kernels->backward_apply(call.work, row, columns, total, call.lane(lane));
    });
  }
  if (flush) add_sums(call, sums, part, {0, geometry.cols});
}

void reduce_partials(const Call& call) {
  const RowBackward& problem = call.problem();
  const int64_t size = accumulator_size(problem);
  const int64_t stride = call.partials.stride / size;
  parallel_ranges(call.threads, problem.geometry.cols, size * (call.blocks.count + 1), [&](Range columns, int) {
    if (problem.dweight.data) {
      call.kernels->reduce_parameter(problem.dweight, problem.geometry, call.partials.dweight, stride,
                                     call.blocks.count, columns);
    }
    if (problem.dbias.data) {
      call.kernels->reduce_parameter(problem.dbias, problem.geometry, call.partials.dbias, stride, call.blocks.count,
                                     columns);
    }
  });
}

}  // namespace

size_t row_norm_backward_workspace(const RowBackward& problem) {
  const int arrays = problem.dbias.data ? 2 : problem.dweight.data ? 1 : 0;
  return static_cast<size_t>(blocks_of(problem).count * arrays * array_bytes(problem));
}

Status row_norm_backward(const RowBackward& problem, void* workspace) {
  Call call = {};
  NORMACT_TRY(find_row_kernels(problem, &call.kernels));
  ArrayActivation activation;
  const ArrayActivation* activated;
  NORMACT_TRY(find_array_activation(problem.dtype, problem.activation, &activation, &activated));
  const int64_t cols = problem.geometry.cols;
  const int64_t traffic = bytes_of_row(problem) * problem.geometry.rows;
  call.blocks = blocks_of(problem);
  call.threads = threads_for(traffic, num_threads());
  call.partials = partials_in(problem, call.blocks.count, workspace);

  Layout layout;
  const int64_t sums_bytes = flushes(problem, call.blocks) ? 2 * array_bytes(problem) : 0;
  const bool copy_weight = !is_plain(problem, problem.weight, problem.weight_offset);  // an absent one becomes ones
  const bool copy_bias = problem.bias.data && !is_plain(problem, problem.bias, 0);
  const int64_t weight_at = layout.reserve(copy_weight ? array_bytes(problem) : 0);
  const int64_t bias_at = layout.reserve(copy_bias ? array_bytes(problem) : 0);
  const int64_t chunks_at =
      layout.reserve(call.blocks.shares_rows ? ceil_div(cols, kChunk) * int64_t{sizeof(RowSums)} : 0);
  call.flush_at = align_up(in_tiles(problem) ? tile_scratch(problem, row_tiles(problem), 2)
                                             : backward_scratch(problem, call.blocks.shares_rows ? kChunk : cols));
  call.lane_bytes = call.flush_at + sums_bytes;
  const int64_t lanes_at = layout.reserve(call.threads * call.lane_bytes);
  char* const memory = thread_buffer(layout.size());
  if (!memory) return out_of_memory(layout.size());
  call.chunk_sums = reinterpret_cast<RowSums*>(memory + chunks_at);
  call.lanes = memory + lanes_at;

  call.work = {&problem,          problem.weight.data, problem.bias.data, activated, streams_output(problem, traffic),
               row_tiles(problem)};
  if (copy_weight) {
    call.work.weight =
        copy_parameter(problem, *call.kernels, call.threads, problem.weight, problem.weight_offset, memory + weight_at);
  }
  if (copy_bias) {
    call.work.bias = copy_parameter(problem, *call.kernels, call.threads, problem.bias, 0, memory + bias_at);
  }
  if (call.blocks.shares_rows) {
    backward_by_chunks(call);
  } else {
    parallel_for(call.threads, call.blocks.count,
                 [&](int64_t block, int lane) { backward_block(call, block, call.lane(lane)); });
  }
  reduce_partials(call);
  return Status();
}

}  // namespace normact::cpu
