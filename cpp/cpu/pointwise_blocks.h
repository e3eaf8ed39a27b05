// SPDX-License-Identifier: Apache-2.0
// The inner loops: an activation over plain arrays, per kind and direction.
#pragma once

#include "cpu/mask_bits.h"
#include "cpu/simd_element.h"
#include "cpu/simd_math.h"
#include "cpu/simd_pair.h"
#include "cpu/simd_stream.h"
#include "cpu/strided_copy.h"
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
  bool streams;      // outputs go past the caches, and begin where a vector does
  bool asks;         // what is read lies in the tensors and comes from memory
};

template <class T>
struct BlockScalars {
  ActivationScalars<Accumulator<T>> activation;
  GateScalars<Accumulator<T>> gate;
};

template <class T>
using BlockKernel = void (*)(const Block<T>&, const BlockScalars<T>&);

/// What the loops compute in.
template <class T>
using GroupMath = PairMath<Math<T>>;
template <class T>
using Group = typename GroupMath<T>::Number;
template <class T>
constexpr int kGroup = kPairLanes<T>;

template <class T>
NORMACT_SIMD auto group_scalars(const BlockScalars<T>& s) {
  return map_scalars<Group<T>>(s.activation,
                               [](Accumulator<T> n) __attribute__((always_inline)) { return broadcast_pair(n); });
}
template <class T>
NORMACT_SIMD GateScalars<Group<T>> group_gate_scalars(const BlockScalars<T>& s) {
  return {broadcast_pair(s.gate.limit), broadcast_pair(s.gate.up_offset)};
}

template <class T>
NORMACT_SIMD Group<T> load_biased(const T* x, const Accumulator<T>* bias, int64_t j) {
  Group<T> value = load_pair(x + j);
  if (bias) value = value + load_beside<T>(bias + j);
  return value;
}

template <class T>
NORMACT_SIMD void store_output(T* target, Group<T> value, bool streams) {
  if (streams) [[unlikely]] {
    store_pair(target, value, Streamed{});
  } else {
    store_pair(target, value);
  }
}

/// Stores a gradient, and adds it to sums if these are wanted.
template <class T>
NORMACT_SIMD void store_gradient(const Block<T>& b, T* target, Accumulator<T>* sums, Group<T> value, int64_t j) {
  store_output(target + j, value, b.streams);
  if (sums) store_beside<T>(sums + j, load_beside<T>(sums + j) + value);
}

template <template <class> class Act, template <class> class... Kinds>
constexpr bool kIsOneOf = (std::is_same_v<Act<GroupMath<float>>, Kinds<GroupMath<float>>> || ...);

/// Whether results are copies, but for biases and sums.
template <template <class> class Act>
constexpr bool kCopies = kIsOneOf<Act, Identity>;

template <class T>
NORMACT_SIMD void copy_block(const T* from, const Block<T>& b) {
  if (b.streams) return stream<T>(from, b.out, b.count);
  if (from != b.out) __builtin_memcpy(b.out, from, size_t(b.count) * sizeof(T));
}

/// Kinds of few operations; the others take tens.
template <template <class> class Act>
constexpr bool kShort = kIsOneOf<Act, Identity, Relu, Relu6, SquaredRelu, LeakyRelu, Hardswish, Hardsigmoid>;

/// Long loops over 16 bits compute all the time; short ones over two arrays of 32 bits and more are looked ahead in.
template <class T, bool kIsShort>
constexpr bool kAsksForward = kIsShort || sizeof(T) > 2;
template <class T, bool kIsShort>
constexpr bool kAsksBackward = kIsShort == (sizeof(T) == 2);

/// Whether a block is no more than arrays in the caches.
template <class T>
NORMACT_SIMD bool is_plain(const Block<T>& b) {
  return !b.bias && !b.sums && !b.streams && !b.asks;
}

/// loop(block) of a kind. Short ones have a copy of their loop for plain blocks, in which to ask for what is not there
/// would be half of the instructions.
template <class T, bool kIsShort, class Loop>
NORMACT_SIMD void with_block(const Block<T>& block, Loop loop) {
  Block<T> b = block;
  if (kIsShort && is_plain(b)) {
    b.bias = nullptr, b.sums = nullptr, b.streams = b.asks = false;  // for the compiler
    return loop(b);
  }
  loop(b);
}

/// body(j) for the groups of a block; what it reads of these arrays is asked for.
template <class T, class Body, class... Arrays>
NORMACT_SIMD void for_groups(int64_t count, bool asks, Body body, const Arrays*... arrays) {
  for (int64_t j = 0; j < count; j += kGroup<T>) {
    if (asks) (ask_ahead<kGroup<T>>(arrays + j), ...);
    body(j);
  }
}

// The loops are for counts that are multiples of kGroup.

template <class T, template <class> class Act>
void forward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = group_scalars<T>(scalars);
  if (kCopies<Act> && !block.bias) return copy_block(block.x, block);
  with_block<T, kShort<Act>>(block, [&](const Block<T>& b) __attribute__((always_inline)) {
    const auto group = [&](int64_t j) __attribute__((always_inline)) {
      store_output(b.out + j, Act<GroupMath<T>>::at(load_biased(b.x, b.bias, j), s).value, b.streams);
    };
    for_groups<T>(b.count, b.asks && kAsksForward<T, kShort<Act>>, group, b.x);
  });
}

template <class T, template <class> class Act>
void backward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = group_scalars<T>(scalars);
  if (kCopies<Act> && !block.sums) return copy_block(block.dy, block);
  with_block<T, kShort<Act>>(block, [&](const Block<T>& b) __attribute__((always_inline)) {
    const auto group = [&](int64_t j) __attribute__((always_inline)) {
      const Group<T> slope = Act<GroupMath<T>>::at(load_biased(b.x, b.bias, j), s).slope;
      store_gradient(b, b.out, b.sums, load_pair(b.dy + j) * slope, j);
    };
    for_groups<T>(b.count, b.asks && (kAsksBackward<T, kShort<Act>> || b.sums), group, b.x, b.dy);
  });
}

template <class T, template <class> class Act>
void backward_from_output_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  if constexpr (Act<GroupMath<T>>::kSlopeFromOutput) {
    const auto s = group_scalars<T>(scalars);
    if (kCopies<Act> && !block.sums) return copy_block(block.dy, block);
    with_block<T, true>(block, [&](const Block<T>& b) __attribute__((always_inline)) {
      const auto group = [&](int64_t j) __attribute__((always_inline)) {
        const Group<T> slope = Act<GroupMath<T>>::slope_from_output(load_pair(b.x + j), s);
        store_gradient(b, b.out, b.sums, load_pair(b.dy + j) * slope, j);
      };
      for_groups<T>(b.count, b.asks && (kAsksBackward<T, true> || b.sums), group, b.x, b.dy);
    });
  }
}

template <class T, template <class> class Act>
void gated_forward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = group_scalars<T>(scalars);
  const auto g = group_gate_scalars<T>(scalars);
  const Block<T> b = block;
  const auto group = [&](int64_t j) __attribute__((always_inline)) {
    const Group<T> gate = load_biased(b.x, b.bias, j), up = load_biased(b.up, b.up_bias, j);
    store_output(b.out + j, Gated<Act<GroupMath<T>>>::value(gate, up, s, g), b.streams);
  };
  for_groups<T>(b.count, b.asks, group, b.x, b.up);
}

template <class T, template <class> class Act>
void gated_backward_block(const Block<T>& block, const BlockScalars<T>& scalars) {
  const auto s = group_scalars<T>(scalars);
  const auto g = group_gate_scalars<T>(scalars);
  const Block<T> b = block;
  const auto group = [&](int64_t j) __attribute__((always_inline)) {
    const Group<T> gate = load_biased(b.x, b.bias, j), up = load_biased(b.up, b.up_bias, j);
    const auto gradients = Gated<Act<GroupMath<T>>>::gradients(load_pair(b.dy + j), gate, up, s, g);
    store_gradient(b, b.out, b.sums, gradients.gate, j);
    store_gradient(b, b.up_out, b.up_sums, gradients.up, j);
  };
  for_groups<T>(b.count, b.asks, group, b.dy, b.x, b.up);
}

// ---- Masks: relu alone ----------------------------------------------------------------------------------------------

/// The bits of x + bias > 0; mask_bit is a multiple of 8. Writes whole bytes.
template <class T>
void mask_block(const Block<T>& b, uint8_t* mask) {
  constexpr int kStep = kLanes<T> > 8 ? kLanes<T> : 8;
  const Vec<T> zero = {};
  for (int64_t begin = 0; begin < b.count; begin += kStep) {
    uint32_t bits = 0;
    const int64_t end = begin + kStep < b.count ? begin + kStep : b.count;
    for_vectors<T>(end - begin, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      Vec<T> x = load(b.x + begin + j, lanes);
      if (b.bias) x += load(b.bias + begin + j, lanes);
      bits |= bits_of(keep(x, lanes) > zero) << unsigned(j);
    });
    uint8_t* const target = mask + (b.mask_bit + begin) / 8;
    target[0] = uint8_t(bits);
    if (end - begin > 8) target[1] = uint8_t(bits >> 8U);
  }
}

template <class T>
void backward_from_mask_block(const Block<T>& block, const BlockScalars<T>&) {
  const Block<T> b = block;
  const Vec<T> one = broadcast(Accumulator<T>(1));
  const auto group = [&](int64_t j) __attribute__((always_inline)) {
    const Group<T> slope = mask_where<T>(b.mask, b.mask_bit + j, one, Two{}, kGroup<T>);
    store_gradient(b, b.out, b.sums, load_pair(b.dy + j) * slope, j);
  };
  for_groups<T>(b.count, b.asks, group, b.dy);
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

/// The last elements of a piece in arrays of a whole group.
template <class T>
struct Rest {
  using N = Accumulator<T>;
  T dy[kGroup<T>], x[kGroup<T>], up[kGroup<T>], out[kGroup<T>], up_out[kGroup<T>];
  N bias[kGroup<T>], up_bias[kGroup<T>], sums[kGroup<T>], up_sums[kGroup<T>];
  uint8_t mask[kGroup<T> / 8 + 4];
};

template <class T>
__attribute__((noinline)) void run_rest(BlockKernel<T> kernel, const Block<T>& block, const BlockScalars<T>& scalars) {
  const size_t count = size_t(block.count);
  Rest<T> rest{};
  Block<T> b = block;
  b.count = kGroup<T>;
  const auto bring = [&](auto* target, auto& source) __attribute__((always_inline)) {
    if (!source) return;
    __builtin_memcpy(target, source, count * sizeof *target);
    source = target;
  };
  const auto bring_back = [&](const auto* source, auto* target) __attribute__((always_inline)) {
    if (target) __builtin_memcpy(target, source, count * sizeof *source);
  };
  bring(rest.dy, b.dy), bring(rest.x, b.x), bring(rest.up, b.up);
  bring(rest.bias, b.bias), bring(rest.up_bias, b.up_bias), bring(rest.sums, b.sums), bring(rest.up_sums, b.up_sums);
  b.out = rest.out, b.up_out = rest.up_out;
  b.streams = b.asks = false;
  if (block.mask) {
    const int64_t first = block.mask_bit, last = first + block.count - 1;
    __builtin_memcpy(rest.mask, block.mask + first / 8, size_t(last / 8 - first / 8 + 1));
    b.mask = rest.mask;
    b.mask_bit = first % 8;
  }
  kernel(b, scalars);
  bring_back(rest.out, block.out), bring_back(rest.up_out, block.up_out);
  bring_back(rest.sums, block.sums), bring_back(rest.up_sums, block.up_sums);
}

/// The piece without its first elements.
template <class T>
NORMACT_SIMD Block<T> without_first(Block<T> b, int64_t count) {
  const auto skip = [&](auto*& array) __attribute__((always_inline)) {
    if (array) array += count;
  };
  skip(b.dy), skip(b.x), skip(b.up), skip(b.bias), skip(b.up_bias);
  skip(b.out), skip(b.up_out), skip(b.sums), skip(b.up_sums);
  b.mask_bit += count;
  b.count -= count;
  return b;
}

/// What the last group of a piece reads, of which the loop before it may overwrite a part.
template <class T>
struct LastGroup {
  using N = Accumulator<T>;
  alignas(64) T dy[kGroup<T>], x[kGroup<T>], up[kGroup<T>];
  alignas(64) N sums[kGroup<T>], up_sums[kGroup<T>];
};

/// Runs a loop over a piece of a group and more that is not whole groups. The last group takes some elements again,
/// from what they were before: the same results come to the same places, and nothing but that has to be moved.
template <class T>
NORMACT_SIMD void run_overlapping(BlockKernel<T> kernel, const Block<T>& block, const BlockScalars<T>& scalars) {
  LastGroup<T> kept;
  Block<T> last = without_first(block, block.count - kGroup<T>);
  last.streams = last.asks = false;
  const auto keep = [](auto* target, auto& source) __attribute__((always_inline)) {
    if (!source) return;
    copy_array(&source[0], kGroup<T>, target);
    source = target;
  };
  keep(kept.dy, last.dy), keep(kept.x, last.x), keep(kept.up, last.up);
  keep(kept.sums, last.sums), keep(kept.up_sums, last.up_sums);
  Block<T> first = block;
  first.count = block.count / kGroup<T> * kGroup<T>;
  kernel(first, scalars);
  kernel(last, scalars);
  const int64_t at = block.count - kGroup<T>;
  if (block.sums) copy_array(kept.sums, kGroup<T>, block.sums + at);
  if (block.up_sums) copy_array(kept.up_sums, kGroup<T>, block.up_sums + at);
}

/// Runs a loop over a piece of any length.
template <class T>
NORMACT_SIMD void run_block(BlockKernel<T> kernel, const Block<T>& block, const BlockScalars<T>& scalars) {
  Block<T> b = block;
  if (b.streams) {
    Block<T> first = b;
    first.count = elements_to_vector(b.out);
    b.streams = first.count < b.count && (!b.up_out || elements_to_vector(b.up_out) == first.count);
    if (b.streams && first.count > 0) {
      run_rest(kernel, first, scalars);
      b = without_first(b, first.count);
    }
  }
  if (b.count % kGroup<T> == 0) {
    if (b.count > 0) kernel(b, scalars);
  } else if (b.count > kGroup<T>) {
    run_overlapping(kernel, b, scalars);
  } else {
    run_rest(kernel, b, scalars);
  }
}

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
