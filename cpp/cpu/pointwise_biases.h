// SPDX-License-Identifier: Apache-2.0
// Biases, and sums for their gradients, beside the pieces: as arrays of accumulators, one for each element.
#pragma once

#include "cpu/pointwise_kernels.h"
#include "cpu/simd_element.h"

namespace normact::cpu::NORMACT_ISA {

/// visit(channel, how many, whether they are of one channel or of consecutive ones) for a piece's elements in order.
template <class Visit>
NORMACT_SIMD void for_channels(const BiasDims& dims, int64_t element, int64_t count, Visit visit) {
  int64_t inner = dims.inner == 1 ? 0 : element % dims.inner;
  int64_t channel = element / dims.inner % dims.channels;
  while (count > 0) {
    const int64_t to_turn = dims.inner == 1 ? dims.channels - channel : dims.inner - inner;
    const int64_t run = to_turn < count ? to_turn : count;
    visit(channel, run, dims.inner == 1 ? 1 : 0);
    channel += dims.inner == 1 ? run : 1;
    if (channel == dims.channels) channel = 0;
    inner = 0;
    count -= run;
  }
}

/// target[i] = bias[i * step * stride], in accumulators.
template <class B, class N>
NORMACT_SIMD void load_bias(const B* bias, int64_t stride, int64_t count, int64_t step, N* target) {
  if (step == 0) {
    N value[1];
    store(value, load(bias, First{1}), First{1});
    for_vectors<N>(count, [&](int64_t j, auto lanes) { store(target + j, broadcast(value[0]), lanes); });
  } else if (stride == 1) {
    for_vectors<B>(count, [&](int64_t j, auto lanes) { store(target + j, load(bias + j, lanes), lanes); });
  } else {
    for (int64_t i = 0; i < count; ++i) store(target + i, load(bias + i * stride, First{1}), First{1});
  }
}

template <class T>
class Biases {
 public:
  using N = Accumulator<T>;

  NORMACT_SIMD Biases(const PointwiseProblem& problem, const PieceRule& rule, const BiasDims& dims, const View& bias,
                      N* buffer)
      : data_(bias.data),
        dims_(dims),
        stride_(bias.data ? bias.stride[problem.geometry.bias_dim] : 0),
        is_element_(bias.dtype == problem.dtype),
        direct_(rule.runs && dims.inner == 1 && stride_ == 1 && bias.dtype == accumulator_of(problem.dtype)),
        buffer_(buffer) {
    if (data_ && rule.period > 0) {
      fill(0, rule.period);
      valid_ = kUnlimited;
    }
  }

  /// The biases of a piece; null if there are none.
  NORMACT_SIMD const N* read(int64_t element, int64_t count) {
    if (!data_) return nullptr;
    if (direct_) return static_cast<const N*>(data_) + element % dims_.channels;
    if (valid_ == kUnlimited) return buffer_;
    // A piece inside one channel is as good as the one before it.
    const int64_t run = dims_.inner == 1 ? 0 : element / dims_.inner;
    const bool inside = dims_.inner > 1 && element % dims_.inner + count <= dims_.inner;
    if (inside && run == run_ && count <= valid_) return buffer_;
    fill(element, count);
    run_ = run;
    valid_ = inside ? count : 0;
    return buffer_;
  }

 private:
  __attribute__((noinline)) void fill(int64_t element, int64_t count) {
    N* target = buffer_;
    for_channels(dims_, element, count, [&](int64_t channel, int64_t run, int64_t step) {
      if (is_element_) {
        load_bias(static_cast<const T*>(data_) + channel * stride_, stride_, run, step, target);
      } else {
        load_bias(static_cast<const N*>(data_) + channel * stride_, stride_, run, step, target);
      }
      target += run;
    });
  }

  const void* data_;
  BiasDims dims_;
  int64_t stride_;
  bool is_element_;
  bool direct_;
  N* buffer_;
  int64_t run_ = -1;
  int64_t valid_ = 0;
};

/// The sum of an array of at most a piece. Four sums of vectors: no number sees more than 64 additions.
template <class N>
NORMACT_SIMD N sum_of(const N* values, int64_t count) {
  Vec<N> part[4] = {};
  int64_t j = 0;
  for (; j + 4 * kLanes<N> <= count; j += 4 * kLanes<N>) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) part[i] += load(values + j + i * kLanes<N>, All{});
  }
  for (; j + kLanes<N> <= count; j += kLanes<N>) part[0] += load(values + j, All{});
  if (j < count) part[1] += load(values + j, First{int(count - j)});
  return sum((part[0] + part[1]) + (part[2] + part[3]));
}

template <class N>
NORMACT_SIMD void clear(N* values, int64_t count) {
  __builtin_memset(values, 0, size_t(count) * sizeof(N));
}

template <class N>
NORMACT_SIMD void add_to(N* target, const N* values, int64_t count) {
  for_vectors<N>(count, [&](int64_t j, auto lanes) {
    store(target + j, load(target + j, lanes) + load(values + j, lanes), lanes);
  });
}

/// Sums gradients per channel.
template <class T>
class Sums {
 public:
  using N = Accumulator<T>;

  /// total, part: `channels` accumulators; part: room for the short sums, or total if there are no long ones.
  NORMACT_SIMD Sums(const PieceRule& rule, const BiasDims& dims, const Box& box, void* total, void* part, N* buffer)
      : total_(static_cast<N*>(total)),
        part_(static_cast<N*>(part)),
        dims_(dims),
        channels_({box.channel_begin, box.channel_end}),
        period_(rule.period),
        direct_(rule.runs && dims.inner == 1),
        buffer_(buffer) {
    if (!total_) return;
    clear(total_ + channels_.begin, channels_.end - channels_.begin);
    begin();
  }

  /// What the kernel adds a piece's gradients to; null: not wanted.
  NORMACT_SIMD N* target(int64_t element, int64_t count) {
    if (!total_) return nullptr;
    if (direct_) return part_ + element % dims_.channels;
    if (period_ == 0) clear(buffer_, count);
    return buffer_;
  }

  /// After the kernel.
  NORMACT_SIMD void add(int64_t element, int64_t count) {
    if (total_ && !direct_ && period_ == 0) add_piece(element, count);
  }

  /// Joins the short sums to the long ones.
  NORMACT_SIMD void flush() {
    if (total_) join();
  }

 private:
  NORMACT_SIMD void begin() {
    if (period_ > 0) clear(buffer_, period_);
    if (part_ != total_) clear(part_ + channels_.begin, channels_.end - channels_.begin);
  }

  __attribute__((noinline)) void add_piece(int64_t element, int64_t count) {
    const N* values = buffer_;
    for_channels(dims_, element, count, [&](int64_t channel, int64_t run, int64_t step) {
      if (step == 1) {
        add_to(part_ + channel, values, run);
      } else {
        if (channel != channel_) end_channel();
        channel_ = channel;
        sum_ += sum_of(values, run);
      }
      values += run;
    });
  }

  /// A long channel's pieces are added up in double first.
  NORMACT_SIMD void end_channel() {
    if (channel_ >= 0) part_[channel_] += N(sum_);
    channel_ = -1;
    sum_ = 0;
  }

  __attribute__((noinline)) void join() {
    end_channel();
    if (period_ > 0) {
      for (int64_t c = 0; c < dims_.channels; ++c) {
        double sum = 0;
        for (int64_t i = c; i < period_; i += dims_.channels) sum += buffer_[i];
        total_[c] += N(sum);
      }
    } else if (part_ != total_) {
      add_to(total_ + channels_.begin, part_ + channels_.begin, channels_.end - channels_.begin);
    }
    begin();
  }

  N* total_;
  N* part_;
  BiasDims dims_;
  Range channels_;
  int64_t period_;
  bool direct_;
  N* buffer_;
  int64_t channel_ = -1;
  double sum_ = 0;
};

}  // namespace normact::cpu::NORMACT_ISA
