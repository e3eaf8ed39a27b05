// SPDX-License-Identifier: Apache-2.0
// What both passes of a norm's backward do with packs in shared memory (ChannelOrder::slabs).
#pragma once

#include "cuda/channel_slab.cuh"

namespace normact::cuda {

/// dh and x - mean of a thread's packs; Walk tells which elements of a pack are of which of its channels, Share where
/// packs are. kKeeps: dh takes the places of dy and of one more tensor in between.
template <class T, class Act, class Walk, class Share, bool kKeeps>
struct SlabSlopes {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>, kOwned = Walk::kOwned;
  static constexpr bool kActs = !kIdentity<T, Act>;
  /// Where rounding dh to T changes nothing it takes dy's place.
  static constexpr bool kExact = std::is_same_v<T, A> || kRelu<T, Act>;
  static constexpr int kParts = kWidth / kPackSize<A>;

  const BackwardProblem<A>& p;
  const Share& share;
  bool third;  // whether there is a slope_view
  A mean[kOwned], scale[kOwned], bias[kActs ? kOwned : 1];

  __device__ __forceinline__ SlabSlopes(const BackwardProblem<A>& problem, const Share& of)
      : p(problem), share(of), third(kActs && slope_view(problem) != nullptr) {}

  /// What belongs to an owned channel.
  __device__ __forceinline__ void set(int owned, A own_mean, A own_scale, A own_bias) {
    mean[owned] = own_mean;
    scale[owned] = own_scale;
    if constexpr (kActs) bias[owned] = own_bias;
  }

  /// dh and x - mean of pack k, which begins at element `at`. kAgain: in the second pass.
  template <bool kAgain>
  __device__ __forceinline__ void differentiate(int k, int64_t at, A (&dh)[kWidth], A (&centred)[kWidth]) const {
    unpack(load_shared_pack<T>(share.at(0, k)), centred);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[j] -= mean[Walk::owner(j)];
    if constexpr (kKeeps && kAgain) {
#pragma unroll
      for (int h = 0; h < kParts; ++h) unpack(load_shared_pack<A>(share.at(1 + h, k)), dh + h * kPackSize<A>);
      return;
    }
    unpack(load_shared_pack<T>(share.at(1, k)), dh);
    if constexpr (kRelu<T, Act> && Share::kBeside && !kAgain) {
      if (p.mask != nullptr) {
        multiply_by_bits(share.bits(k), dh);
        keep(k, dh);
        return;
      }
    }
    if constexpr (kActs && !(kExact && kAgain)) {
      if constexpr (Share::kBeside) {
        multiply_by_any_slopes<T, Act, Walk>(p, third, dh, centred, scale, bias, [&](A(&value)[kWidth]) {
          unpack(load_pack(static_cast<const T*>(slope_view(p)->data) + at), value);
        });
      } else {
        multiply_by_slopes<false, T, Act, Walk>(p, dh, centred, scale, bias, [](A(&)[kWidth]) {});
      }
    }
    if constexpr (kActs && !kAgain) keep(k, dh);
  }

 private:
  __device__ __forceinline__ void keep(int k, const A (&dh)[kWidth]) const {
    if constexpr (kKeeps) {
#pragma unroll
      for (int h = 0; h < kParts; ++h) {
        Pack<A> pack;
#pragma unroll
        for (int j = 0; j < kPackSize<A>; ++j) pack.word[j] = dh[h * kPackSize<A> + j];
        store_shared_pack(share.at(1 + h, k), pack);
      }
    } else if constexpr (kExact) {
      store_shared_pack(share.at(1, k), to_pack<T>(dh));
    }
  }
};

/// What a slope adds to the work of adding up a pack.
template <class T, class Act>
constexpr SlabWork kSlopeWork = kIdentity<T, Act> || kRelu<T, Act> ? SlabWork::little : SlabWork::much;

/// Starts copying a thread's packs of x and dy, in halves, and has what the slope is told from on its way.
template <class T, class Act, class Share, class A = Accumulator<T>>
__device__ __forceinline__ void copy_for_slopes(const BackwardProblem<A>& p, const Share& share) {
  const int half = share.template half<kSlopeWork<T, Act>>();
  const auto copy = [&] {
    share.copy(p.x, 0, 0, half);
    share.copy(p.dy, 1, 0, half);
    commit_copies();
    share.copy(p.x, 0, half, share.count);
    share.copy(p.dy, 1, half, share.count);
    commit_copies();
    if constexpr (!kIdentity<T, Act>) share.prefetch(slope_view(p));
  };
  if (kRelu<T, Act> && p.mask != nullptr) {
    share.keep_bits(p.mask, copy);
  } else {
    copy();
  }
}

/// The sums of dh and of dh * (x - mean) of a thread's packs, of each of their elements.
template <class T, class Act, class Share, class Slopes, class A = Accumulator<T>>
__device__ __forceinline__ void add_up_slopes(const Share& share, const Slopes& slopes, A (&sum)[kPackSize<T>],
                                              A (&product)[kPackSize<T>]) {
  constexpr int kWidth = kPackSize<T>;
  add_up_halves<0, kSlopeWork<T, Act>>(share, [&](int begin, int end) {
#pragma unroll 2
    for (int k = begin; k < end; ++k) {
      A dh[kWidth], centred[kWidth];
      slopes.template differentiate<false>(k, share.element(k), dh, centred);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum[j] += dh[j];
        product[j] += dh[j] * centred[j];
      }
    }
  });
}

/// dx and daddend of a thread's packs, of which each has the same channels, once the corrections of these are there.
template <class T, class Share, class Slopes, class A = Accumulator<T>>
__device__ __forceinline__ void write_gradients(const BackwardProblem<A>& p, const Share& share, const Slopes& slopes,
                                                const A (&c1)[kPackSize<T>], const A (&c2)[kPackSize<T>]) {
  constexpr int kWidth = kPackSize<T>;
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    const int64_t at = share.element(k);
    A dh[kWidth], centred[kWidth];
    slopes.template differentiate<true>(k, at, dh, centred);
    if (p.daddend.data != nullptr) store_pack_streaming(static_cast<T*>(p.daddend.data) + at, to_pack<T>(dh));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dh[j] = normact::channel_input_gradient(dh[j], centred[j], slopes.scale[j], c1[j], c2[j]);
    }
    store_pack_streaming(static_cast<T*>(p.dx.data) + at, to_pack<T>(dh));
  }
}

}  // namespace normact::cuda
