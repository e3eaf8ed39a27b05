// SPDX-License-Identifier: Apache-2.0
// What every way through batch, group and instance norm backward does with dy, gradients of parameters and given sums.
#pragma once

#include "cuda/channel_statistics.cuh"

namespace normact::cuda {

/// Where sums.data is there, they are sums over all processes, or what the launch is to compute.
template <class A>
using BackwardProblem = ActivatedProblem<ChannelInputGradient, A>;

template <class A>
__device__ __forceinline__ A* table_at(const ChannelTable& table, int64_t row, int64_t channel) {
  return static_cast<A*>(table.data) + row * table.row_stride + channel * table.channel_stride;
}

/// Whether a mask may tell the slope.
template <class T, class Act>
constexpr bool kMasked = (kAny<Act> && !kOther<Act>) || kRelu<T, Act>;

/// What an activation's slope needs beside x: y, or addend where h is computed again; or nothing.
template <class A>
__device__ __forceinline__ const ChannelView* slope_view(const BackwardProblem<A>& p) {
  if (p.mask != nullptr) return nullptr;
  if (p.y.data != nullptr) return &p.y;
  return p.addend.data != nullptr ? &p.addend : nullptr;
}

/// What dh is told from beside dy: nothing where it is dy; the slope's third tensor (slope_view); a mask.
enum class SlopeFrom : uint8_t { nothing, x, third, mask };

/// run(from), a constant, for each launch one of these: loops that know it have registers for the rest. kMask: whether
/// there may be one.
template <class T, class Act, bool kMask, class A, class Run>
__device__ __forceinline__ void with_slope(const BackwardProblem<A>& p, Run run) {
  if constexpr (kIdentity<T, Act>) {
    run(std::integral_constant<SlopeFrom, SlopeFrom::nothing>());
  } else {
    if constexpr (kMask) {
      if (p.mask != nullptr) return run(std::integral_constant<SlopeFrom, SlopeFrom::mask>());
    }
    if (slope_view(p) != nullptr) return run(std::integral_constant<SlopeFrom, SlopeFrom::third>());
    run(std::integral_constant<SlopeFrom, SlopeFrom::x>());
  }
}

/// dh = dy * act'(h) of an access, where no mask tells the slope. kThird: there is a slope_view, of which get(value)
/// gets the access. scale, bias: of the thread's channels.
template <bool kThird, class T, class Act, class Walk, class A, int kWidth, int kOwned, int kBiases, class Get>
__device__ __forceinline__ void multiply_by_slopes(const BackwardProblem<A>& p, A (&dh)[kWidth],
                                                   const A (&centred)[kWidth], const A (&scale)[kOwned],
                                                   const A (&bias)[kBiases], Get get) {
  A third[kWidth], h[kWidth];
  if constexpr (kThird) {
    get(third);
    if (slope_follows_from_output<Act>() && p.y.data != nullptr) {
      apply_slopes_of_output<T, Act>(dh, third, p);
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    h[j] = affine(centred[j], scale[Walk::owner(j)], bias[Walk::owner(j)]);
    if constexpr (kThird) h[j] += third[j];
  }
  apply_slopes<T, Act>(dh, h, p);
}

/// The same where only the launch knows whether there is one: `third`.
template <class T, class Act, class Walk, class A, int kWidth, int kOwned, int kBiases, class Get>
__device__ __forceinline__ void multiply_by_any_slopes(const BackwardProblem<A>& p, bool third, A (&dh)[kWidth],
                                                       const A (&centred)[kWidth], const A (&scale)[kOwned],
                                                       const A (&bias)[kBiases], Get get) {
  if (third) {
    multiply_by_slopes<true, T, Act, Walk>(p, dh, centred, scale, bias, get);
  } else {
    multiply_by_slopes<false, T, Act, Walk>(p, dh, centred, scale, bias, get);
  }
}

/// dh = dy, or 0 where the bit is not set.
template <class A, int kWidth>
__device__ __forceinline__ void multiply_by_bits(unsigned bits, A (&dh)[kWidth]) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) dh[j] *= (bits >> j & 1) != 0 ? A(1) : A(0);
}

/// dweight and dbias of a channel.
template <class T, class A>
__device__ __forceinline__ void store_gradients(const BackwardProblem<A>& p, int64_t channel,
                                                const NumberPair<A>& sum) {
  if (p.dbias.data != nullptr) store_parameter<T>(p.dbias, channel * p.dbias.stride, sum.first);
  if (p.dweight.data != nullptr) store_parameter<T>(p.dweight, channel * p.dweight.stride, sum.second);
}

/// c1 and c2: a share of the sums. Of a frozen norm they are 0 whatever the sums are, which may be no numbers.
template <class A>
__device__ __forceinline__ NumberPair<A> correction_of(const BackwardProblem<A>& p, A share, const NumberPair<A>& sum) {
  return p.frozen ? NumberPair<A>{A(0), A(0)} : NumberPair<A>{share * sum.first, share * sum.second};
}

/// The same, from sums over all processes.
template <class A>
__device__ __forceinline__ NumberPair<A> given_correction(const BackwardProblem<A>& p, int64_t channel, A scale) {
  const A share = scale / static_cast<const A*>(p.count)[channel * p.count_stride];
  return {*table_at<A>(p.sums, 1, channel) * share, *table_at<A>(p.sums, 0, channel) * share};
}

}  // namespace normact::cuda
