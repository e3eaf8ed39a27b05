// SPDX-License-Identifier: Apache-2.0
// The arithmetic of some elements that are arrays, the same by planes and by rows: what differs is whether the factors
// are numbers or arrays too.
#pragma once

#include "cpu/channel_access.h"
#include "cpu/channel_factors.h"
#include "cpu/simd_math.h"
#include "cpu/simd_pair.h"
#include "cpu/simd_stream.h"
#include "math/activation.h"
#include "math/channel.h"

namespace normact::cpu::NORMACT_ISA {

// Values of 16 bits lie on a grid so coarse that sums of a block keep it in fp32. Their distances from a centre off the
// grid do not lie on any: these, their squares and the partial sums of both would each be rounded in one direction.

/// Whether the sum of a block is as good as one that is corrected by the deviations from its mean.
template <class T>
constexpr bool kExactSums = sizeof(T) == 2;

/// Centres for deviations of elements of type T, near the given ones.
template <class T>
NORMACT_SIMD Vec<T> on_grid(Vec<T> centre) {
  return rounded<T>(centre);
}

/// Whether vectors from here on, which the caches are not to keep, can be stored past them.
template <class T>
NORMACT_SIMD bool streams_to(const ChannelFactors& factors, const T* to, const T* beside = nullptr) {
  return factors.streams && elements_to_vector(to) == 0 && elements_to_vector(beside) == 0;
}

/// A buffer of kPiece with room for what is past it.
constexpr int64_t kPadded = kPiece + kActivationStep;

/// Activations run over whole steps: what is past the elements must be numbers too.
template <class N>
NORMACT_SIMD void clear_past(N* h, int64_t count) {
  for (int64_t j = 0; j < kActivationStep; j += kLanes<N>) store(h + count + j, Vec<N>{}, All{});
}

/// body(element, lanes) for a piece of elements of type T, and of arrays of type Beside, by factors F.
template <class T, class Beside, class F, class Body>
NORMACT_SIMD void for_piece(int64_t count, Body body) {
  if constexpr (F::kPairs && std::is_same_v<T, Beside>) {
    for_pairs<T>(count, body);
  } else {
    for_vectors<T>(count, body);
  }
}

// ---- Forward --------------------------------------------------------------------------------------------------------

enum class Fused { none, relu };

/// The affine norm of some x, plus an addend.
template <class T, bool kAddend, class F, class Lanes>
NORMACT_SIMD auto affine_vector(const F& f, const T* x, const T* addend, int64_t j, Lanes lanes) {
  const auto h = channel_affine(load(x + j, lanes), f.mean(j, lanes), f.scale(j, lanes), f.bias(j, lanes));
  if constexpr (kAddend) {
    return h + load(addend + j, lanes);
  } else {
    return h;
  }
}

/// Of a vector or a pair.
template <class T, class V>
NORMACT_SIMD auto relu(V h) {
  using M = std::conditional_t<std::is_same_v<V, Vec<T>>, Math<T>, PairMath<Math<T>>>;
  return Relu<M>::at(h, ActivationScalars<V>{});
}

/// out = h, or relu(h), h = the affine norm of x + addend. Out: T, or its accumulator for values that are not rounded.
template <class T, Fused kFused, bool kAddend, Storing kStoring = Storing::usual, class F, class Out>
NORMACT_SIMD void affine_piece(const F& f, const T* x, const T* addend, Out* out, int64_t count) {
  for_piece<T, Out, F>(count, [&](int64_t j, auto lanes) {
    auto h = affine_vector<T, kAddend>(f, x, addend, j, lanes);
    if constexpr (kFused == Fused::relu) h = relu<T>(h).value;
    store<kStoring>(out + j, h, lanes);
  });
}

template <class T, Fused kFused, Storing kStoring = Storing::usual, class F, class Out>
NORMACT_SIMD void affine_piece(const F& f, const T* x, const T* addend, Out* out, int64_t count) {
  if (addend) return affine_piece<T, kFused, true, kStoring>(f, x, addend, out, count);
  affine_piece<T, kFused, false, kStoring>(f, x, addend, out, count);
}

/// Whether a forward's results go through a buffer: those of an activation other than relu.
NORMACT_SIMD bool is_buffered(const ChannelForward& p) {
  return !is_identity(p.activation) && p.activation.kind != NORMACT_ACTIVATION_RELU;
}

/// y = relu(h), and the bits of h > 0.
template <class T, bool kAddend, Storing kStoring, class F>
NORMACT_SIMD void marked_piece(const F& f, const T* x, const T* addend, T* y, int64_t count, BitWriter& bits) {
  BitWriter here = bits;  // in registers
  for_piece<T, T, F>(count, [&](int64_t j, auto lanes) {
    const auto h = affine_vector<T, kAddend>(f, x, addend, j, lanes);
    here.push(bits_of(keep(h, lanes) > spread(Vec<T>{}, lanes)), number_of<T>(lanes));
    store<kStoring>(y + j, relu<T>(h).value, lanes);
  });
  bits = here;
}

/// Whether y is relu of the affine norm, and where the bits of its mask go; null: none is written.
struct Direct {
  bool relu;
  BitWriter* bits;
};

/// y of a piece without a buffer.
template <class T, Storing kStoring, class F>
NORMACT_SIMD void direct_piece(Direct of, const F& f, const T* x, const T* addend, T* y, int64_t count) {
  if (of.bits) {
    if (addend) return marked_piece<T, true, kStoring>(f, x, addend, y, count, *of.bits);
    return marked_piece<T, false, kStoring>(f, x, addend, y, count, *of.bits);
  }
  if (of.relu) return affine_piece<T, Fused::relu, kStoring>(f, x, addend, y, count);
  affine_piece<T, Fused::none, kStoring>(f, x, addend, y, count);
}
template <class T, class F>
NORMACT_SIMD void direct_piece(bool streams, Direct of, const F& f, const T* x, const T* addend, T* y, int64_t count) {
  if (streams) return direct_piece<T, Storing::past>(of, f, x, addend, y, count);
  direct_piece<T, Storing::usual>(of, f, x, addend, y, count);
}

/// The same from a buffer.
template <class T>
NORMACT_SIMD void round_piece(bool streams, const Accumulator<T>* h, T* y, int64_t count) {
  if (streams) {
    for_vectors<T>(count, [&](int64_t j, auto lanes) { store<Storing::past>(y + j, load(h + j, lanes), lanes); });
  } else {
    for_vectors<T>(count, [&](int64_t j, auto lanes) { store(y + j, load(h + j, lanes), lanes); });
  }
}

// ---- Backward -------------------------------------------------------------------------------------------------------

/// The pass over dh that is at work: it may leave dh behind, or find it.
enum class Pass { sums, gradients };

/// Where the slope comes from; again: from x. Those of relu take no loop of their own.
enum class SlopeSource { one, bits, output, again, relu_again };

NORMACT_SIMD SlopeSource slope_source(const ChannelBackward& p) {
  if (is_identity(p.activation)) return SlopeSource::one;
  if (p.mask) return SlopeSource::bits;
  if (p.y.data) return SlopeSource::output;
  return p.activation.kind == NORMACT_ACTIVATION_RELU ? SlopeSource::relu_again : SlopeSource::again;
}

/// Whether slopes are computed, in a loop of their own.
NORMACT_SIMD bool computes_slopes(SlopeSource source) {
  return source == SlopeSource::output || source == SlopeSource::again;
}

/// dh of relu from the bits of a mask, of which the first is this one. D: T or its accumulator.
template <class T, class D>
NORMACT_SIMD void bits_piece(const uint8_t* mask, int64_t first, const T* dy, D* dh, int64_t count) {
  const Vec<T> one = broadcast(Accumulator<T>(1));
  const auto body = [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    store_exact(dh + j, mask_where<T>(mask, first + j, one, lanes, count - j) * load(dy + j, lanes), lanes);
  };
  if constexpr (std::is_same_v<T, D>) return for_pairs<T>(count, body);
  for_vectors<T>(count, body);
}

/// dh of relu from x. D: T or its accumulator.
template <class T, bool kAddend, class F, class D>
NORMACT_SIMD void relu_piece(const F& f, const T* x, const T* addend, const T* dy, D* dh, int64_t count) {
  for_piece<T, D, F>(count, [&](int64_t j, auto lanes) {
    const auto h = affine_vector<T, kAddend>(f, x, addend, j, lanes);
    store_exact(dh + j, relu<T>(h).slope * load(dy + j, lanes), lanes);
  });
}
template <class T, class F, class D>
NORMACT_SIMD void relu_piece(const F& f, const T* x, const T* addend, const T* dy, D* dh, int64_t count) {
  addend ? relu_piece<T, true>(f, x, addend, dy, dh, count) : relu_piece<T, false>(f, x, addend, dy, dh, count);
}

/// dh = g * dy; dh may be g.
template <class T>
NORMACT_SIMD void multiply_piece(const T* dy, const Accumulator<T>* g, Accumulator<T>* dh, int64_t count) {
  for_vectors<T>(count, [&](int64_t j, auto lanes) { store(dh + j, load(g + j, lanes) * load(dy + j, lanes), lanes); });
}

/// dx and daddend of a piece from dh; D: T or its accumulator. Either output may be an input.
template <class T, bool kFrozen, bool kAddend, Storing kStoring, class F, class D>
NORMACT_SIMD void gradient_piece(const F& f, const D* dh, const T* x, T* dx, T* daddend, int64_t count) {
  for_piece<T, D, F>(count, [&](int64_t j, auto lanes) {
    const auto d = load(dh + j, lanes);
    const auto scale = f.scale(j, lanes);
    auto value = d * scale;
    if constexpr (!kFrozen) {
      const auto xhat = normalized(load(x + j, lanes), f.mean(j, lanes), f.rstd(j, lanes));
      value = channel_input_gradient(d, xhat, scale, f.c1(j, lanes), f.c2(j, lanes));
    }
    if constexpr (kAddend) store<kStoring>(daddend + j, d, lanes);
    store<kStoring>(dx + j, value, lanes);
  });
}

template <class T, bool kFrozen, bool kAddend, class F, class D>
NORMACT_SIMD void gradient_piece(bool streams, const F& f, const D* dh, const T* x, T* dx, T* daddend, int64_t count) {
  if (streams) return gradient_piece<T, kFrozen, kAddend, Storing::past>(f, dh, x, dx, daddend, count);
  gradient_piece<T, kFrozen, kAddend, Storing::usual>(f, dh, x, dx, daddend, count);
}

template <class T, class F, class D>
NORMACT_SIMD void gradient_piece(bool streams, bool frozen, const F& f, const D* dh, const T* x, T* dx, T* daddend,
                                 int64_t count) {
  if (frozen && daddend) return gradient_piece<T, true, true>(streams, f, dh, x, dx, daddend, count);
  if (frozen) return gradient_piece<T, true, false>(streams, f, dh, x, dx, daddend, count);
  if (daddend) return gradient_piece<T, false, true>(streams, f, dh, x, dx, daddend, count);
  gradient_piece<T, false, false>(streams, f, dh, x, dx, daddend, count);
}

}  // namespace normact::cpu::NORMACT_ISA
