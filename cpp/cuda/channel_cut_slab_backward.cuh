// SPDX-License-Identifier: Apache-2.0
// Group norm backward of sets of cut planes in the shared memory of a cluster (channel_plane_slab.cuh). Planes are
// added up by words, as no pack need be of one channel; dx is written by packs.
#pragma once

#include "cuda/channel_plane_slab.cuh"
#include "cuda/channel_slopes.cuh"

namespace normact::cuda {

/// dh of some elements, of which x - mean is given, from dy.
template <class T, class Act, int kCount, class A = Accumulator<T>>
__device__ __forceinline__ void cut_slopes(const BackwardProblem<A>& p, const A (&centred)[kCount],
                                           const A (&scale)[kCount], const A (&bias)[kCount], A (&dh)[kCount]) {
  if constexpr (!kIdentity<T, Act>) {
    A h[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) h[j] = affine(centred[j], scale[j], bias[j]);
    apply_slopes<T, Act>(dh, h, p);
  }
}

/// The elements of a plane in shared memory, by words of 32 bits, of which two planes may share one.
template <class T>
struct CutPlane {
  static constexpr int kPair = 4 / static_cast<int>(sizeof(T));  // elements of a word
  int first, end;                                                // words
  int first_shared, last_shared;                                 // those that hold an element of another plane, or -1

  __device__ __forceinline__ CutPlane(int plane, int places) {
    const int begin = plane * places, behind = begin + places;
    first = begin / kPair;
    end = (behind + kPair - 1) / kPair;
    first_shared = begin % kPair != 0 ? first : -1;
    last_shared = behind % kPair != 0 ? end - 1 : -1;
  }
  /// The elements of a word of the plane; zeros in the place of those that are not its own, or beyond its end.
  template <class A>
  __device__ __forceinline__ void load(const char* tensor, int word, A* value) const {
    const unsigned bits = word < end ? reinterpret_cast<const unsigned*>(tensor)[word] : 0;
    if constexpr (kPair == 1) {
      value[0] = __uint_as_float(bits);
    } else {
      const unsigned mask = word == first_shared ? 0xffff0000u : word == last_shared ? 0xffffu : ~0u, own = bits & mask;
      const T* const pair = reinterpret_cast<const T*>(&own);
      value[0] = convert<A>(pair[0]);
      value[1] = convert<A>(pair[1]);
    }
  }
};

/// sum(w dh) and sum(w dh xhat) of what this thread leads of the block's planes: `lanes` threads have one, some of its
/// words each. What each channel has for itself goes to `entries`. Behind a barrier; all threads.
template <class T, class Act, class A = Accumulator<T>>
__device__ __forceinline__ NumberPair<A> sum_of_cut_planes(const BackwardProblem<A>& p,
                                                           const PlaneSlabShare<T, true>& share,
                                                           const PlaneSlabMemory<A>& memory, A mean, A rstd,
                                                           NumberPair<A>* entries) {
  constexpr int kPair = CutPlane<T>::kPair, kWords = 4 / kPair, kTogether = kWords * kPair;
  const PlaneSlabSpace& s = share.s;
  const char *const x = channel_shared, *const dy = channel_shared + s.kept_stride;
  const int lanes = s.lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int team = static_cast<int>(threadIdx.x) / lanes, teams = static_cast<int>(blockDim.x) / lanes;
  const int planes = share.planes();
  NumberPair<A> total{A(0), A(0)};
  for (int turn = 0; turn < planes; turn += teams) {
    const int plane = min(turn + team, planes - 1);
    const CutPlane<T> of(plane, static_cast<int>(s.by_run.size));
    const NumberPair<A> own = memory.parameters[plane];
    A scale[kTogether], bias[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      scale[j] = channel_scale(rstd, own.first);
      bias[j] = own.second;
    }
    NumberPair<A> sum{A(0), A(0)};
    for (int first = of.first + lane; first < of.end; first += kWords * lanes) {
      A centred[kTogether], dh[kTogether];
#pragma unroll
      for (int u = 0; u < kWords; ++u) {
        of.load(x, first + u * lanes, centred + u * kPair);
        of.load(dy, first + u * lanes, dh + u * kPair);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) centred[j] -= mean;  // where dh is 0 any number will do
      cut_slopes<T, Act>(p, centred, scale, bias, dh);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        sum.first += dh[j];
        sum.second += dh[j] * centred[j];
      }
    }
    sum = {sum_of_helpers(sum.first, lanes), rstd * sum_of_helpers(sum.second, lanes)};
    if (lane != 0 || turn + team >= planes) continue;
    hand(entries + share.first_plane() + plane, sum);
    total.first += own.first * sum.first;
    total.second += own.first * sum.second;
  }
  return total;
}

/// Work     a cluster a set.
/// Bytes    each element of x and dy is read once, each of dx is written once.
/// Barriers two of the block, and two of the cluster, where it has several blocks.
template <class T, class Act>
__global__ void __launch_bounds__(kMostPlaneSlabThreads, 2)
    cut_slab_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                             const __grid_constant__ PlaneSlabSpace space, NumberPair<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const PlaneSlabShare<T, true> share(space);
  const PlaneSlabMemory<A> memory(space);
  begin_cluster(space.blocks);
  start_after_previous();
  share.copy(p.x, 0);
  share.copy(p.dy, 1);
  keep_parameters(share, memory, p.weight, p.bias);
  const A mean = *statistic_at<A>(p.mean, share.batch, share.group),
          rstd = *statistic_at<A>(p.rstd, share.batch, share.group);
  wait_all_copies();
  __syncthreads();  // planes are added up by others than those that copied them
  NumberPair<A>* const own_entries = entries + share.batch * p.geometry.channels + share.channel;
  NumberPair<A> total = sum_of_warps(memory, sum_of_cut_planes<T, Act>(p, share, memory, mean, rstd, own_entries));
  if (space.blocks > 1) total = sum_of_cluster(space, share.rank, total);
  const A factor = rstd / (static_cast<A>(space.packs) * static_cast<A>(kWidth));
  const A c1 = factor * total.first, c2 = factor * total.second * rstd;  // of x - mean instead of xhat
  const int first_plane = share.first_plane();
#pragma unroll 2
  for (int k = 0; k < share.count; ++k) {
    const int plane = share.plane(k);
    A scale[kWidth], bias[kWidth], dh[kWidth], centred[kWidth];
    cut_parameters(memory.parameters + plane - first_plane, share.elements_before_cut(k, plane), rstd, scale, bias);
    unpack(load_shared_pack<T>(share.at(0, k)), centred);
    unpack(load_shared_pack<T>(share.at(1, k)), dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[j] -= mean;
    cut_slopes<T, Act>(p, centred, scale, bias, dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dh[j] = normact::channel_input_gradient(dh[j], centred[j], scale[j], c1, c2);
    }
    store_pack_streaming(static_cast<T*>(p.dx.data) + share.element(k, plane), to_pack<T>(dh));
  }
}

}  // namespace normact::cuda
