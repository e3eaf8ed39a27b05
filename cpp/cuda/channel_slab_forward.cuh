// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward of slabs in the shared memory of a cluster (channel_slab.cuh).
#pragma once

#include "cuda/channel_slab.cuh"

namespace normact::cuda {

/// The next packs of an addend, which are on their way while those before them are used: loads do not pass the stores
/// before them.
template <class T>
struct SlabAddend {
  static constexpr int kTogether = 4;
  Pack<T> pack[kTogether];

  /// The thread's packs from `begin` on.
  __device__ __forceinline__ void fetch(const ChannelView& addend, const SlabShare<T>& share, int begin) {
    const T* const from = static_cast<const T*>(addend.data) + share.offset;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i < share.count) pack[i] = load_pack(from + (begin + i) * share.step());
    }
  }
};

/// y of the thread's packs, once the results of groups are there. The first packs of an addend have been asked for.
template <class T, class Act, class A = Accumulator<T>>
__device__ __forceinline__ void write_slab(const ForwardProblem<A>& p, const SlabShare<T>& share,
                                           const SlabMemory<T, NumberPair<A>>& memory, SlabAddend<T>& next) {
  constexpr int kWidth = kPackSize<T>;
  A mean[kWidth], scale[kWidth], bias[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const NumberPair<A> of = memory.results[share.group_of(share.column + j)];
    const NumberPair<A> own = memory.parameters[share.column + j];
    mean[j] = of.first;
    scale[j] = channel_scale(of.second, own.first);
    bias[j] = own.second;
  }
  const auto write = [&](auto adds, auto marks) {
    constexpr int kTogether = SlabAddend<T>::kTogether;
#pragma unroll 1
    for (int begin = 0; begin < share.count; begin += kTogether) {
      const SlabAddend<T> addend = next;
      if constexpr (adds) next.fetch(p.addend, share, begin + kTogether);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int k = begin + i;
        if (k >= share.count) break;
        A h[kWidth];
        unpack(load_shared_pack<T>(share.at(0, k)), h);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], mean[j], scale[j], bias[j]);
        if constexpr (adds) {
          A value[kWidth];
          unpack(addend.pack[i], value);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) h[j] += value[j];
        }
        if constexpr (marks) store_bits<kWidth>(p.mask, share.number(k), relu_bits<T>(h, p));
        apply_activation<T, Act>(h, p);
        store_pack_streaming(static_cast<T*>(p.y.data) + share.offset + k * share.step(), to_pack<T>(h));
      }
    }
  };
  const std::true_type yes;
  const std::false_type no;
  const bool adds = p.addend.data != nullptr;
  if constexpr (kRelu<T, Act>) {
    if (p.mask != nullptr) return adds ? write(yes, yes) : write(no, yes);
  }
  adds ? write(yes, no) : write(no, no);
}

/// Work     a cluster a slab.
/// Bytes    each element of x (and addend) is read once, each of y written once.
/// Barriers four of the block, three more where it sums once more; two of the cluster, where it has several blocks.
template <class T, class Act>
__global__ void __launch_bounds__(kChannelThreads, 2)
    slab_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                        const __grid_constant__ SlabSpace space, MomentsEntry<Accumulator<T>>* entries) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const SlabShare<T> share(space);
  const SlabMemory<T, NumberPair<A>> memory(space);
  const SlabSpace& s = space;
  begin_cluster(s.blocks);
  start_after_previous();
  share.copy(p.x, 0);
  share.prefetch(&p.addend);
  for (int c = threadIdx.x; c < s.channels; c += kChannelThreads) {
    const int64_t index = share.parameter_of(c);
    memory.parameters[c] = {entry_or<T>(p.weight, index, A(1)), entry_or<T>(p.bias, index, A(0))};
  }
  // Groups of a slab are no more than threads.
  const int mine = static_cast<int>(threadIdx.x);
  if (mine < s.groups) {
    const A middle = share.middle(p.x, mine * static_cast<int>(s.by_group.size));
    memory.results[mine] = {middle, middle};
  }
  const bool leaves = share.rank == 0 && mine < s.groups;
  const RunningEntry<A> before = leaves ? running_of_set(p, share.first_group + mine) : RunningEntry<A>();
  __syncthreads();
  wait_all_copies();

  // The moments of the block's part of each group, about the middle, from which means are told, too. Where that proves
  // to be so far from the mean that digits are lost, once more about the mean.
  const A elements = static_cast<A>(share.rows_of(share.rank)) * static_cast<A>(s.by_group.size);
  const A reciprocal = quick_reciprocal(elements);
  NumberPair<A>* const own = memory.entries + share.rank * s.channels;
  const auto were_far = [&](const NumberPair<A>& moments, A centre) {
    return is_far(Moments<A>{moments.first, moments.second, elements}, centre);
  };
  for (bool first = true;; first = false) {
    A centre[kWidth], sum[kWidth] = {}, square[kWidth] = {};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centre[j] = memory.results[share.group_of(share.column + j)].first;
#pragma unroll 4
    for (int k = 0; k < share.count; ++k) {
      A value[kWidth];
      unpack(load_shared_pack<T>(share.at(0, k)), value);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[j] -= centre[j];
        sum[j] += value[j];
        square[j] += value[j] * value[j];
      }
    }
    memory.leave(s, share.line, share.column, 0, s.folds, sum);
    memory.leave(s, share.line, share.column, 1, s.folds, square);
    __syncthreads();
    bool far = false;
    const auto leave = [&](int group, int lane, int, const A(&total)[2]) {
      const A about = memory.results[group].first - memory.results[group].second;
      const Moments<A> m = moments_about(about, total[0], total[1], elements, reciprocal);
      const NumberPair<A> found{m.mean, m.m2 < A(0) ? A(0) : m.m2};  // max() would lose NaN
      far = far || were_far(found, about);
      if (lane == 0) own[group] = found;
    };
    memory.template for_each_range<2>(s, s.groups, s.by_share, s.folds, leave);
    if (!__syncthreads_or(first && far)) break;
    if (mine < s.groups) {
      NumberPair<A>& of = memory.results[mine];
      if (were_far(own[mine], of.first - of.second)) of.first = own[mine].first + of.second;
    }
    __syncthreads();
  }
  SlabAddend<T> addend;
  if (p.addend.data != nullptr) addend.fetch(p.addend, share, 0);
  exchange_entries(s, memory, share.rank, s.groups);
  if (mine < s.groups) {
    const NumberPair<A> of = memory.entries[mine];
    Moments<A> m{of.first, of.second, elements};
    if (s.blocks > 1) {
      m = moments_of_sets(1, finite_or_zero(of.first), [&](auto visit) {
        for (int block = 0; block < s.blocks; ++block) {
          const NumberPair<A> part = memory.entries[block * s.channels + mine];
          visit(Moments<A>{part.first, part.second,
                           static_cast<A>(share.rows_of(block)) * static_cast<A>(s.by_group.size)});
        }
      });
    }
    m.mean += memory.results[mine].second;
    const A rstd = rstd_of(variance(m), p.eps);
    memory.results[mine] = {m.mean, rstd};
    if (leaves) {
      const int64_t set = share.batch * p.geometry.groups + share.first_group + mine;
      leave_statistics(p, share.batch, share.first_group + mine, m, rstd, entries + set, before);
      if (set == 0) count_batch(p.running);
    }
  }
  __syncthreads();
  write_slab<T, Act>(p, share, memory, addend);
}

}  // namespace normact::cuda
