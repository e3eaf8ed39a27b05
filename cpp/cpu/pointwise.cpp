// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <initializer_list>

#include "cpu/backend.h"
#include "cpu/dispatch.h"
#include "cpu/parameters.h"
#include "cpu/partition.h"
#include "cpu/scratch.h"

namespace normact::cpu {
namespace {

// ---- Pieces ---------------------------------------------------------------------------------------------------------

// Shorter runs are taken together: of an array, or gathered, where that costs less than to begin with each.
constexpr int64_t kMinRun = 256;
constexpr int64_t kMinDirectRunBytes = 384;

bool is_direct(const PointwiseGeometry& geometry, const View& view) { return view.stride[geometry.ndim - 1] == 1; }

/// Whether the kernels read biases straight from memory, where pieces are runs.
bool is_plain(const PointwiseProblem& p, const View& bias) {
  const int last = p.geometry.ndim - 1;
  return p.geometry.bias_dim == last && bias.stride[last] == 1 && bias.dtype == accumulator_of(p.dtype);
}

/// biases: how gradients and values lie along bias_dim; sums: whether there are gradients.
PieceRule piece_rule(const PointwiseProblem& p, std::initializer_list<const View*> tensors,
                     std::initializer_list<const View*> biases, bool sums, bool writes_mask) {
  const PointwiseGeometry& geometry = p.geometry;
  const int64_t last = geometry.shape[geometry.ndim - 1], size = piece_size(p.dtype);
  bool flat = true, direct = true, plain = true, biased = sums;
  for (const View* view : tensors) {
    if (!view->data) continue;
    flat = flat && is_dense(*view, geometry);
    direct = direct && is_direct(geometry, *view);
  }
  for (const View* bias : biases) {
    if (!bias->data) continue;
    biased = true;
    plain = plain && is_plain(p, *bias);
  }
  if (sums) plain = plain && geometry.bias_dim == geometry.ndim - 1;
  if (flat && !biased) return {false, kUnlimited, 0};
  // What is gathered in any case costs no more in longer pieces.
  const int64_t min_run = flat ? kMinRun : direct ? kMinDirectRunBytes / size_of(p.dtype) : size;
  const int64_t unit = writes_mask ? 8 : 1;  // lines whose bits are whole bytes
  if (last >= min_run && last % unit == 0) return {true, direct && plain ? kUnlimited : size, 0};
  if (unit * last > size) return {false, size, 0};
  const int64_t lines = size / (unit * last) * (unit * last);
  return {false, lines, geometry.bias_dim == geometry.ndim - 1 ? lines : 0};
}

bool wants_sums(const PointwiseBackward& p) { return p.dbias.data || p.dup_bias.data; }

int tensors_of(const PointwiseForward& p) { return p.gated ? 3 : 2; }
int tensors_of(const PointwiseBackward& p) { return p.gated ? 5 : p.mask ? 2 : 3; }

/// Not in place, where the lines that are written have been read.
template <class Problem>
bool streams_outputs(const Problem& p, std::initializer_list<const View*> inputs, const View& first,
                     const View& second) {
  for (const View* in : inputs) {
    if (in->data && (in->data == first.data || in->data == second.data)) return false;
  }
  return streams(p.geometry.size * tensors_of(p) * size_of(p.dtype));
}

/// Whether the lines of x and y are pieces where they are.
bool in_lines(const PointwiseForward& p, const PointwiseKernels& kernels) {
  const PointwiseGeometry& geometry = p.geometry;
  if (p.gated || p.bias.data || p.mask || is_identity(p.activation) || geometry.ndim < 2) return false;
  if (!is_direct(geometry, p.x) || !is_direct(geometry, p.y)) return false;
  return !(is_dense(p.x, geometry) && is_dense(p.y, geometry)) &&
         kernels.takes_lines(p.activation.kind, geometry.shape[geometry.ndim - 1]);
}

PieceRule piece_rule(const PointwiseForward& p, const PointwiseKernels& kernels) {
  const bool streams = streams_outputs(p, {&p.x, &p.up}, p.y, p.y);
  if (!streams && in_lines(p, kernels)) {
    const int64_t line = p.geometry.shape[p.geometry.ndim - 1];
    return {.runs = false, .limit = kLinesPiece / line * line, .period = 0, .lines = true};
  }
  PieceRule rule = piece_rule(p, {&p.x, &p.up, &p.y}, {&p.bias, &p.up_bias}, false, p.mask != nullptr);
  rule.streams = streams;
  return rule;
}

PieceRule piece_rule(const PointwiseBackward& p) {
  PieceRule rule =
      piece_rule(p, {&p.dy, &p.x, &p.up, &p.y, &p.dx, &p.dup}, {&p.bias, &p.up_bias}, wants_sums(p), false);
  rule.streams = streams_outputs(p, {&p.dy, &p.x, &p.up, &p.y}, p.dx, p.dup);
  return rule;
}

/// body(Range, lane) for parts of the index space that begin where the rule and masks let them.
template <class Body>
void parallel_elements(const PointwiseProblem& p, const PieceRule& rule, int tensors, Body&& body) {
  const int64_t size = p.geometry.size;
  const int64_t unit = rule.limit < kUnlimited ? rule.limit : piece_size(p.dtype);
  const int64_t bytes = tensors * size_of(p.dtype);
  const int threads = threads_for(size * bytes, num_threads());
  if (threads == 1) return body(Range{0, size}, 0);
  parallel_ranges(threads, ceil_div(size, unit), unit * bytes, [&](Range units, int lane) {
    body(Range{units.begin * unit, std::min(size, units.end * unit)}, lane);
  });
}

// ---- Gradients of biases --------------------------------------------------------------------------------------------

constexpr int64_t kMaxParts = 64;
constexpr int64_t kMaxPartRows = 4096;  // even if there are more parts then: see kMaxBlockRows
constexpr int64_t kMinPartElements = 16 * 1024;
constexpr int64_t kMinPartRow = 2048;  // elements of a part between two jumps
constexpr int64_t kMinSummands = 16;   // so that partial sums are small beside the tensors

/// How the index space is cut into boxes, by the problem alone. Boxes that differ in channels share an array of sums.
struct Boxes {
  BiasDims dims;
  int64_t outer, outer_count;
  int64_t channels, channel_count;
  int64_t inner, inner_count;

  int64_t arrays() const { return outer_count * inner_count; }
  int64_t count() const { return arrays() * channel_count; }

  Box box(int64_t index, int64_t* array) const {
    const int64_t channel = index % channel_count * channels;
    *array = index / channel_count;
    const int64_t o = *array / inner_count * outer, i = *array % inner_count * inner;
    return {o, std::min(o + outer, dims.outer), channel, std::min(channel + channels, dims.channels),
            i, std::min(i + inner, dims.inner)};
  }
};

Boxes boxes_of(const PointwiseGeometry& geometry) {
  Boxes b{};
  b.dims = bias_dims(geometry);
  const BiasDims& s = b.dims;
  if (geometry.size == 0) return b;
  b.outer = std::max({ceil_div(kMinSummands, s.inner), ceil_div(kMinPartElements, s.channels * s.inner),
                      std::min(ceil_div(s.outer, kMaxParts), kMaxPartRows)});
  b.outer_count = ceil_div(s.outer, b.outer);
  b.inner = std::max(kMinPartElements, ceil_div(s.inner, std::max<int64_t>(kMaxParts / b.outer_count, 1)));
  b.inner_count = ceil_div(s.inner, b.inner);
  const int64_t parts = std::max<int64_t>(kMaxParts / b.arrays(), 1);
  b.channels = std::max(ceil_div(kMinPartRow, s.inner), ceil_div(s.channels, parts));
  b.channel_count = ceil_div(s.channels, b.channels);
  return b;
}

int sum_count(const PointwiseBackward& p) { return (p.dbias.data ? 1 : 0) + (p.dup_bias.data ? 1 : 0); }

/// An array of sums.
int64_t sums_bytes(const PointwiseBackward& p, const Boxes& boxes) {
  return align_up(boxes.dims.channels * size_of(accumulator_of(p.dtype)));
}

/// Arrays of sums side by side: dbias's, then dup_bias's.
BoxSums sums_at(const PointwiseBackward& p, char* memory, int64_t bytes) {
  BoxSums sums{};
  if (p.dbias.data) sums.bias = memory;
  if (p.dup_bias.data) sums.up_bias = memory + (p.dbias.data ? bytes : 0);
  return sums;
}

/// The sum of the boxes' arrays, rounded to where it belongs.
void finish_sums(const PointwiseBackward& p, const RowKernels& kernels, const Boxes& boxes, char* memory, int threads) {
  const int64_t bytes = sums_bytes(p, boxes), channels = boxes.dims.channels;
  const int64_t stride = sum_count(p) * bytes / size_of(accumulator_of(p.dtype));
  const BoxSums sums = sums_at(p, memory, bytes);
  RowGeometry geometry{1, channels, 1, 1, {1}, {channels}};
  const auto finish = [&](const View& view, const void* partials) {
    if (!view.data) return;
    const Operand gradient{view.data, view.dtype, {}, {view.stride[p.geometry.bias_dim]}};
    parallel_ranges(threads, channels, 4 * (boxes.arrays() + 1), [&](Range columns, int) {
      kernels.reduce_parameter(gradient, geometry, partials, stride, boxes.arrays(), columns);
    });
  };
  finish(p.dbias, sums.bias);
  finish(p.dup_bias, sums.up_bias);
}

Status backward_with_sums(const PointwiseBackward& p, const PointwiseKernels& kernels, int tensors, char* workspace) {
  const RowKernels* row_kernels;
  NORMACT_TRY(find_row_kernels(p.dtype, &row_kernels));
  const PieceRule rule = piece_rule(p);
  const Boxes boxes = boxes_of(p.geometry);
  const int threads = threads_for(p.geometry.size * tensors * size_of(p.dtype), num_threads());
  const int64_t bytes = sums_bytes(p, boxes), array = sum_count(p) * bytes;
  const bool has_short_sums = rule.period == 0 && boxes.outer > flush_rows(rule, boxes.dims);
  char* const lanes = has_short_sums ? thread_buffer(threads * array) : nullptr;
  if (has_short_sums && !lanes) return out_of_memory(threads * array);
  parallel_for(threads, boxes.count(), [&](int64_t index, int lane) {
    int64_t at;
    const Box box = boxes.box(index, &at);
    const BoxSums sums = sums_at(p, workspace + at * array, bytes);
    const BoxSums scratch = has_short_sums ? sums_at(p, lanes + lane * array, bytes) : sums;
    kernels.backward_box(p, rule, boxes.dims, box, sums, scratch);
  });
  finish_sums(p, *row_kernels, boxes, workspace, threads);
  return Status();
}

}  // namespace

Status pointwise_forward(const PointwiseForward& problem) {
  const PointwiseKernels* kernels;
  NORMACT_TRY(find_pointwise_kernels(problem.dtype, &kernels));
  const PieceRule rule = piece_rule(problem, *kernels);
  parallel_elements(problem, rule, tensors_of(problem),
                    [&](Range elements, int) { kernels->forward(problem, rule, elements); });
  return Status();
}

size_t pointwise_backward_workspace(const PointwiseBackward& problem) {
  if (!wants_sums(problem)) return 0;
  const Boxes boxes = boxes_of(problem.geometry);
  return static_cast<size_t>(boxes.arrays() * sum_count(problem) * sums_bytes(problem, boxes));
}

Status pointwise_backward(const PointwiseBackward& problem, void* workspace) {
  const PointwiseKernels* kernels;
  NORMACT_TRY(find_pointwise_kernels(problem.dtype, &kernels));
  const int tensors = tensors_of(problem);
  if (wants_sums(problem)) return backward_with_sums(problem, *kernels, tensors, static_cast<char*>(workspace));
  if (problem.geometry.size == 0) return Status();
  const PieceRule rule = piece_rule(problem);
  parallel_elements(problem, rule, tensors, [&](Range elements, int) { kernels->backward(problem, rule, elements); });
  return Status();
}

}  // namespace normact::cpu
