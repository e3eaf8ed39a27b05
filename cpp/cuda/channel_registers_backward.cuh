// SPDX-License-Identifier: Apache-2.0
// Group and instance norm backward of small sets in the registers of a few threads (channel_registers.cuh).
#pragma once

#include "cuda/channel_registers.cuh"

namespace normact::cuda {

/// Leaves entries of sums of dh and dh * xhat. All threads.
template <class Share, class A>
__device__ __forceinline__ void leave_gradients(const Share& share, const RegisterSpace& space,
                                                const ChannelGeometry& g,
                                                const NumberPair<A> (&gradients)[Share::kSetElements],
                                                NumberPair<A>* entries) {
  const auto threads = static_cast<int>(blockDim.x), places = static_cast<int>(space.by_places.size);
  auto* const left = reinterpret_cast<NumberPair<A>*>(channel_shared);
#pragma unroll
  for (int i = 0; i < Share::kSetElements; ++i) left[i * threads + threadIdx.x] = gradients[i];
  __syncthreads();
  leave_entries(space, g.groups, share.first_group(), space.lines * places, entries + share.part() * g.channels,
                [&](int group, int channel, int i) {
                  const auto line = static_cast<int>(space.by_places.quotient(i));
                  const int place = i - line * places;
                  const int element = space.place_major ? place * space.channels + channel : channel * places + place;
                  const NumberPair<int> owner = share.owner_of(line * space.tile + group, element);
                  return owner.second * threads + owner.first;
                });
}

/// Work     a block the sets of some groups of the samples of a part, several at a time.
/// Bytes    each element of x and dy is read once, each of dx is written once.
/// Barriers none; one a turn where sets have several warps; one where gradients of parameters are wanted.
template <class T, class Act, int kWidth, int kAccesses, bool kAlike, int kThreads>
__global__ void __launch_bounds__(kThreads, register_blocks(kThreads, kWidth))
    register_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                             const __grid_constant__ RegisterSpace space, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  using Share = RegisterShare<T, kWidth, kAccesses, kAlike>;
  constexpr int kSamples = Share::kSamples, kElements = Share::kSetElements;
  constexpr bool kActs = !kIdentity<T, Act>;
  start_after_previous();
  const Share share(space, p.geometry.groups, p.x);
  typename Share::Sum sum(space.lanes);
  const A reciprocal = A(1) / static_cast<A>(space.elements);
  A weight[kElements], bias[kActs ? kElements : 1];
  share.parameters(p.weight, A(1), weight);
  if constexpr (kActs) share.parameters(p.bias, A(0), bias);
  NumberPair<A> gradients[kElements] = {};
#pragma unroll 1
  for (int turn = 0; turn < share.turns(); ++turn) {
    typename Share::Values x, dh;
    share.load(p.x, turn, x);
    share.load(p.dy, turn, dh);
    A rstd[kSamples];
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      const int64_t sample = share.sample(turn, q);
      const bool there = share.has(turn, q);
      const A mean = there ? *statistic_at<A>(p.mean, sample, share.group()) : A(0);
      rstd[q] = there ? *statistic_at<A>(p.rstd, sample, share.group()) : A(0);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[q][i] = normalized(x[q][i], mean, rstd[q]);
    }
    if constexpr (kActs) {
      typename Share::Values h;
#pragma unroll
      for (int q = 0; q < kSamples; ++q) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) h[q][i] = affine(x[q][i], weight[i], bias[i]);
      }
      apply_slopes<T, Act>(reinterpret_cast<A(&)[kRegisterElements]>(dh),
                           reinterpret_cast<const A(&)[kRegisterElements]>(h), p);
    }
    A total[2 * kSamples] = {};
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (!share.has_access(i / kWidth) || !share.has(turn, q)) continue;
        const A product = dh[q][i] * x[q][i];
        gradients[i].first += dh[q][i];
        gradients[i].second += product;
        total[2 * q] += weight[i] * dh[q][i];
        total[2 * q + 1] += weight[i] * product;
      }
    }
    sum.run(total);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      const A share_of_set = rstd[q] * reciprocal, c1 = share_of_set * total[2 * q],
              c2 = share_of_set * total[2 * q + 1];
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        x[q][i] = channel_input_gradient(dh[q][i], x[q][i], channel_scale(rstd[q], weight[i]), c1, c2);
      }
    }
    share.store(p.dx, turn, x);
  }
  if (entries != nullptr) leave_gradients(share, space, p.geometry, gradients, entries);
}

}  // namespace normact::cuda
