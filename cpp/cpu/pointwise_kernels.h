// SPDX-License-Identifier: Apache-2.0
// What the driver (pointwise.cpp) asks of an instruction set: one table of functions per element type.
//
// Work is cut into ranges of the flat index space, and these into pieces. A piece is a set of plain arrays, one per
// operand: an operand's own memory, where its elements lie without gaps, else a buffer on the stack. So there is one
// inner loop per kind and direction, and strides, biases and their gradients are dealt with around it.
#pragma once

#include <cstdint>

#include "core/pointwise.h"
#include "cpu/array_activation.h"
#include "cpu/range.h"

namespace normact::cpu {

constexpr int64_t kPieceBytes = 4096;  // of one buffer; a backward has up to nine, and they stay in the first cache
constexpr int64_t kUnlimited = int64_t{1} << 62;
constexpr int64_t kFlush = 64;  // numbers that are summed in fp32 before they join a longer sum

/// Elements of a piece that is lines in place, and of the longest such line.
constexpr int64_t kLinesPiece = 8 * 1024;

/// Elements of a buffer.
constexpr int64_t piece_size(DType dtype) { return kPieceBytes / size_of(accumulator_of(dtype)); }

/// Where pieces end.
struct PieceRule {
  bool runs;             // at the end of the innermost dimension too: a piece has one stride in every operand
  int64_t limit;         // after this many elements
  int64_t period;        // > 0: = limit, a multiple of the bias's length; all pieces see the bias alike
  bool streams = false;  // outputs go past the caches
  bool lines = false;  // pieces are whole lines of the innermost dimension, in place; the limit is a multiple of these
};

/// A part of the index space whose gradients are summed apart.
struct Box {
  int64_t outer_begin, outer_end;
  int64_t channel_begin, channel_end;
  int64_t inner_begin, inner_end;
};

/// Where they are summed: arrays of `channels` accumulators; null: not wanted.
struct BoxSums {
  void* bias;
  void* up_bias;
};

struct PointwiseKernels {
  /// y, and the mask, of the elements of a range; ranges begin at a multiple of the rule's limit, and of 8 with a mask.
  void (*forward)(const PointwiseForward& problem, const PieceRule& rule, Range elements);
  /// Whether lines with gaps between them are faster in place than gathered, or than a piece each.
  bool (*takes_lines)(int kind, int64_t length);
  /// dx and dup of a range.
  void (*backward)(const PointwiseBackward& problem, const PieceRule& rule, Range elements);
  /// The same for a box, whose sums are written to `sums`; `scratch` has as
  /// much room, or is `sums` where the box has at most flush_rows(), or the rule a period.
  void (*backward_box)(const PointwiseBackward& problem, const PieceRule& rule, const BiasDims& dims, const Box& box,
                       BoxSums sums, BoxSums scratch);
  /// Activations inside other kernels, by kind.
  const ArrayActivationRow* array_activations;
};

/// Rows (of the outer dimension) whose gradients are summed in fp32 before they join a longer sum.
inline __attribute__((always_inline)) int64_t flush_rows(const PieceRule& rule, const BiasDims& dims) {
  return rule.period > 0 ? kFlush * rule.period / dims.channels : kFlush;
}

/// An instruction set's table, by DType.
#if defined(__x86_64__)
extern const PointwiseKernels kBaselinePointwise[4], kAvx2Pointwise[4], kAvx512Pointwise[4];
#elif defined(__aarch64__)
extern const PointwiseKernels kNeonPointwise[4];
#else
extern const PointwiseKernels kBaselinePointwise[4];
#endif

}  // namespace normact::cpu
