// SPDX-License-Identifier: Apache-2.0
// The inner loops: an activation over plain arrays, per kind and direction.
#pragma once

#include "cpu/mask_bits.h"
#include "cpu/simd_element.h"
#include "cpu/simd_math.h"
#include "math/gate.h"

namespace normact::cpu::NORMACT_ISA {

/// The arrays of a piece. Outputs may be inputs. Biases and sums are accumulators; null: absent.
template <class T>
struct Block {
  using N = Accumulator<T>;
  int64_t count;
  const T *dy, *x, *up;  // x: or y, where the slope comes from that
  const N *bias, *up_bias;
  T *out, *up_out;    // y or dx; dup
  N *sums, *up_sums;  // dx and dup, unrounded, are added
  const uint8_t* mask;
  int64_t mask_bit;  // which bit of the mask belongs to the first element
};

template <class T>
struct BlockScalars {
  ActivationScalars<Accumulator<T>> activation;
  GateScalars<Accumulator<T>> gate;
};

template <class T>
using BlockKernel = void (*)(const Block<T>&, const BlockScalars<T>&);

template <class T, class Lanes>
NORMACT_SIMD Vec<T> load_biased(const T* x, const Accumulator<T>* bias, int64_t j, Lanes lanes) {
  Vec<T> value = load(x + j, lanes);
  if (bias) value += load(bias + j, lanes);
  return value;
}

/// Stores a gradient, and adds it to sums if these are wanted.
template <class T, class Lanes>
NORMACT_SIMD void store_gradient(T* target, Accumulator<T>* sums, Vec<T> value, int64_t j, Lanes lanes) {
  store(target + j, value, lanes);
  if (sums) store(sums + j, load(sums + j, lanes) + value, lanes);
}

template <class T, template <class> class Act>
void forward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = broadcast_scalars<T>(scalars.activation);
  const Block<T> b = block;
  for_vectors<T>(b.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    store(b.out + j, Act<Math<T>>::at(load_biased(b.x, b.bias, j, lanes), s).value, lanes);
  });
}

template <class T, template <class> class Act>
void backward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = broadcast_scalars<T>(scalars.activation);
  const Block<T> b = block;
  for_vectors<T>(b.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const Vec<T> slope = Act<Math<T>>::at(load_biased(b.x, b.bias, j, lanes), s).slope;
    store_gradient(b.out, b.sums, load(b.dy + j, lanes) * slope, j, lanes);
  });
}

template <class T, template <class> class Act>
void backward_from_output_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  if constexpr (Act<Math<T>>::kSlopeFromOutput) {
    const auto s = broadcast_scalars<T>(scalars.activation);
    const Block<T> b = block;
    for_vectors<T>(b.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      const Vec<T> slope = Act<Math<T>>::slope_from_output(load(b.x + j, lanes), s);
      store_gradient(b.out, b.sums, load(b.dy + j, lanes) * slope, j, lanes);
    });
  }
}

template <class T, template <class> class Act>
void gated_forward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = broadcast_scalars<T>(scalars.activation);
  const GateScalars<Vec<T>> g = {broadcast(scalars.gate.limit), broadcast(scalars.gate.up_offset)};
  const Block<T> b = block;
  for_vectors<T>(b.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const Vec<T> gate = load_biased(b.x, b.bias, j, lanes), up = load_biased(b.up, b.up_bias, j, lanes);
    store(b.out + j, Gated<Act<Math<T>>>::value(gate, up, s, g), lanes);
  });
}

template <class T, template <class> class Act>
void gated_backward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = broadcast_scalars<T>(scalars.activation);
  const GateScalars<Vec<T>> g = {broadcast(scalars.gate.limit), broadcast(scalars.gate.up_offset)};
  const Block<T> b = block;
  for_vectors<T>(b.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const Vec<T> gate = load_biased(b.x, b.bias, j, lanes), up = load_biased(b.up, b.up_bias, j, lanes);
    const auto gradients = Gated<Act<Math<T>>>::gradients(load(b.dy + j, lanes), gate, up, s, g);
    store_gradient(b.out, b.sums, gradients.gate, j, lanes);
    store_gradient(b.up_out, b.up_sums, gradients.up, j, lanes);
  });
}

// ---- Masks: relu alone ----------------------------------------------------------------------------------------------

/// The bits of x + bias > 0; mask_bit is a multiple of 8. Writes whole bytes.
template <class T>
void mask_block(const Block<T>& b, uint8_t* mask) {
  constexpr int kGroup = kLanes<T> > 8 ? kLanes<T> : 8;
  const Vec<T> zero = {};
  for (int64_t begin = 0; begin < b.count; begin += kGroup) {
    uint32_t bits = 0;
    const int64_t end = begin + kGroup < b.count ? begin + kGroup : b.count;
    for (int64_t j = begin; j < end; j += kLanes<T>) {
      const First some{int(end - j)};
      const bool whole = j + kLanes<T> <= end;
      const Vec<T> x = whole ? load_biased(b.x, b.bias, j, All{}) : load_biased(b.x, b.bias, j, some);
      const uint32_t lanes = whole ? ~0U : (1U << unsigned(some.count)) - 1;
      bits |= (bits_of(x > zero) & lanes) << unsigned(j - begin);
    }
    uint8_t* const target = mask + (b.mask_bit + begin) / 8;
    target[0] = uint8_t(bits);
    if (end - begin > 8) target[1] = uint8_t(bits >> 8U);
  }
}

template <class T>
void backward_from_mask_block(const Block<T>& block, const BlockScalars<T>&) {
  const Block<T> b = block;
  const Vec<T> one = broadcast(Accumulator<T>(1));
  for_vectors<T>(b.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const Vec<T> slope = where_bits(read_bits(b.mask, b.mask_bit + j, lane_count<T>(lanes)), one);
    store_gradient(b.out, b.sums, load(b.dy + j, lanes) * slope, j, lanes);
  });
}

// ---- By kind --------------------------------------------------------------------------------------------------------

#define NORMACT_COUNT_ROW(symbol, value, name, Struct) +1
constexpr int kKinds = 0 NORMACT_ACTIVATION_LIST(NORMACT_COUNT_ROW);
#undef NORMACT_COUNT_ROW

/// The five loops of an element type, by kind.
template <class T>
struct BlockTable {
  BlockKernel<T> forward[kKinds], backward[kKinds], backward_from_output[kKinds];
  BlockKernel<T> gated_forward[kKinds], gated_backward[kKinds];
};

template <class T>
constexpr BlockTable<T> make_block_table() {
  BlockTable<T> table{};
#define NORMACT_TABLE_ROW(symbol, value, name, Struct)                       \
  table.forward[value] = forward_block<T, Struct>;                           \
  table.backward[value] = backward_block<T, Struct>;                         \
  table.backward_from_output[value] = backward_from_output_block<T, Struct>; \
  table.gated_forward[value] = gated_forward_block<T, Struct>;               \
  table.gated_backward[value] = gated_backward_block<T, Struct>;
  NORMACT_ACTIVATION_LIST(NORMACT_TABLE_ROW)
#undef NORMACT_TABLE_ROW
  return table;
}

template <class T>
inline constexpr BlockTable<T> kBlocks = make_block_table<T>();

template <class T>
NORMACT_SIMD BlockKernel<T> block_of(const PointwiseForward& p) {
  return (p.gated ? kBlocks<T>.gated_forward : kBlocks<T>.forward)[p.activation.kind];
}

template <class T>
NORMACT_SIMD BlockKernel<T> block_of(const PointwiseBackward& p) {
  if (p.gated) return kBlocks<T>.gated_backward[p.activation.kind];
  if (p.mask) return backward_from_mask_block<T>;
  return (p.y.data ? kBlocks<T>.backward_from_output : kBlocks<T>.backward)[p.activation.kind];
}

template <class T>
NORMACT_SIMD BlockScalars<T> scalars_of(const PointwiseProblem& p) {
  using N = Accumulator<T>;
  return {activation_scalars<N>(p.activation.alpha, p.activation.beta, p.activation.threshold),
          {N(p.limit), N(p.up_offset)}};
}

}  // namespace normact::cpu::NORMACT_ISA
