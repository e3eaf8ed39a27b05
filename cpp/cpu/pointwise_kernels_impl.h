// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set; included by pointwise_<name>.cpp, which defines NORMACT_ISA.
#pragma once

#include "cpu/array_activation_impl.h"
#include "cpu/pointwise_biases.h"
#include "cpu/pointwise_blocks.h"
#include "cpu/pointwise_lines.h"
#include "cpu/pointwise_pieces.h"

namespace normact::cpu {
namespace NORMACT_ISA {

template <class T>
constexpr int64_t kPiece = kPieceBytes / int64_t{sizeof(Accumulator<T>)};

/// Room for a piece of an operand. Left as it is: only what is gathered touches it.
template <class E, class T>
struct Buffer {
  alignas(64) E data[kPiece<T>];
};

template <class T>
void forward(const PointwiseForward& p, const PieceRule& rule, Range elements) {
  if (rule.lines) return forward_by_lines<T>(p, rule, elements);
  using N = Accumulator<T>;
  Buffer<T, T> x_buffer, up_buffer, y_buffer;
  Buffer<N, T> bias_buffer, up_bias_buffer;
  const BiasDims dims = bias_dims(p.geometry);
  const PiecesOfTwo<T> inputs(p.geometry, rule, p.x, p.up, x_buffer.data, up_buffer.data);
  const Pieces<T> y(p.geometry, rule, p.y, y_buffer.data);
  Biases<T> bias(p, rule, dims, p.bias, bias_buffer.data), up_bias(p, rule, dims, p.up_bias, up_bias_buffer.data);
  const BlockKernel<T> kernel = block_of<T>(p);
  const BlockScalars<T> scalars = scalars_of<T>(p);
  const bool streams = rule.streams && y.direct(), asks = rule.streams && inputs.direct();
  for_pieces(p.geometry, rule, elements, [&](const Position& at, int64_t begin, int64_t count) {
    Block<T> block{};
    block.count = count;
    inputs.read(at, count, block.x, block.up);
    block.bias = bias.read(begin, count);
    block.up_bias = up_bias.read(begin, count);
    block.out = y.target(at);
    block.mask_bit = begin;
    block.streams = streams;
    block.asks = asks;
    if (p.mask) mask_block(block, p.mask);  // first: y may be x
    run_block(kernel, block, scalars);
    y.write(at, count);
  });
  if (streams) stream_fence();
}

/// What the ranges of a backward have in common.
template <class T>
class Backward {
 public:
  using N = Accumulator<T>;

  NORMACT_SIMD Backward(const PointwiseBackward& p, const PieceRule& rule, const BiasDims& dims)
      : p_(p),
        rule_(rule),
        dy_(p.geometry, rule, p.dy, dy_buffer_.data),
        inputs_(p.geometry, rule, p.y.data ? p.y : p.x, p.up, x_buffer_.data, up_buffer_.data),
        outputs_(p.geometry, rule, p.dx, p.dup, dx_buffer_.data, dup_buffer_.data),
        bias_(p, rule, dims, p.bias, bias_buffer_.data),
        up_bias_(p, rule, dims, p.up_bias, up_bias_buffer_.data),
        kernel_(block_of<T>(p)),
        scalars_(scalars_of<T>(p)),
        streams_(rule.streams && outputs_.direct()),
        asks_(rule.streams && inputs_.direct() && dy_.direct()) {}

  NORMACT_SIMD void run(Range elements, Sums<T>* sums, Sums<T>* up_sums) {
    for_pieces(p_.geometry, rule_, elements, [&](const Position& at, int64_t begin, int64_t count) {
      Block<T> block{};
      block.count = count;
      inputs_.read(at, count, block.x, block.up);
      block.dy = dy_.read(at, count);
      if (!p_.y.data && !p_.mask) {  // else the values of biases are not looked at
        block.bias = bias_.read(begin, count);
        block.up_bias = up_bias_.read(begin, count);
      }
      outputs_.target(at, block.out, block.up_out);
      block.mask = p_.mask;
      block.mask_bit = begin;
      block.streams = streams_;
      block.asks = asks_;
      if (sums) {
        block.sums = sums->target(begin, count);
        block.up_sums = up_sums->target(begin, count);
      }
      run_block(kernel_, block, scalars_);
      outputs_.write(at, count);
      if (sums) {
        sums->add(begin, count);
        up_sums->add(begin, count);
      }
    });
    if (streams_) stream_fence();
  }

 private:
  const PointwiseBackward& p_;
  const PieceRule& rule_;
  Buffer<T, T> dy_buffer_, x_buffer_, up_buffer_, dx_buffer_, dup_buffer_;
  Buffer<N, T> bias_buffer_, up_bias_buffer_;
  Pieces<T> dy_;
  PiecesOfTwo<T> inputs_, outputs_;
  Biases<T> bias_, up_bias_;
  BlockKernel<T> kernel_;
  BlockScalars<T> scalars_;
  bool streams_, asks_;
};

template <class T>
void backward(const PointwiseBackward& p, const PieceRule& rule, Range elements) {
  Backward<T>(p, rule, bias_dims(p.geometry)).run(elements, nullptr, nullptr);
}

/// visit(range) for the ranges of a box's rows [begin, end).
template <class Visit>
NORMACT_SIMD void for_box_rows(const BiasDims& dims, const Box& box, int64_t begin, int64_t end, Visit visit) {
  const int64_t row = dims.channels * dims.inner;
  if (box.channel_end - box.channel_begin == dims.channels && box.inner_end - box.inner_begin == dims.inner) {
    return visit(Range{begin * row, end * row});
  }
  for (int64_t outer = begin; outer < end; ++outer) {
    if (box.inner_end - box.inner_begin == dims.inner) {
      visit(Range{outer * row + box.channel_begin * dims.inner, outer * row + box.channel_end * dims.inner});
      continue;
    }
    for (int64_t channel = box.channel_begin; channel < box.channel_end; ++channel) {
      const int64_t start = outer * row + channel * dims.inner;
      visit(Range{start + box.inner_begin, start + box.inner_end});
    }
  }
}

template <class T>
void backward_box(const PointwiseBackward& p, const PieceRule& rule, const BiasDims& dims, const Box& box, BoxSums sums,
                  BoxSums scratch) {
  using N = Accumulator<T>;
  Buffer<N, T> buffer, up_buffer;
  const int64_t rows = flush_rows(rule, dims);
  Sums<T> bias(rule, dims, box, sums.bias, scratch.bias, buffer.data);
  Sums<T> up_bias(rule, dims, box, sums.up_bias, scratch.up_bias, up_buffer.data);
  Backward<T> call(p, rule, dims);
  for (int64_t begin = box.outer_begin; begin < box.outer_end; begin += rows) {
    const int64_t end = begin + rows < box.outer_end ? begin + rows : box.outer_end;
    for_box_rows(dims, box, begin, end, [&](Range elements) { call.run(elements, &bias, &up_bias); });
    bias.flush();
    up_bias.flush();
  }
}

template <class T>
constexpr PointwiseKernels pointwise_for() {
  return {forward<T>, takes_lines<T>, backward<T>, backward_box<T>, kArrayActivations<Math<T>, Accumulator<T>>};
}

}  // namespace NORMACT_ISA

#if defined(__AVX512F__)
#define NORMACT_POINTWISE_TABLE kAvx512Pointwise
#elif defined(__AVX2__)
#define NORMACT_POINTWISE_TABLE kAvx2Pointwise
#elif defined(__aarch64__)
#define NORMACT_POINTWISE_TABLE kNeonPointwise
#else
#define NORMACT_POINTWISE_TABLE kBaselinePointwise
#endif

const PointwiseKernels NORMACT_POINTWISE_TABLE[4] = {
    NORMACT_ISA::pointwise_for<double>(), NORMACT_ISA::pointwise_for<float>(), NORMACT_ISA::pointwise_for<Half>(),
    NORMACT_ISA::pointwise_for<BFloat>()};

}  // namespace normact::cpu
