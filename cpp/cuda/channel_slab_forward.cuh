// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm forward of slabs in the shared memory of some blocks (channel_slab.cuh).
#pragma once

#include "cuda/channel_slab.cuh"

namespace normact::cuda {

/// The next packs of an addend, which are on their way while those before them are used: loads do not pass the stores
/// before them.
template <class T>
struct SlabAddend {
  static constexpr int kTogether = 4;
  Pack<T> pack[kTogether];

  /// Of the thread's packs from `begin` on.
  __device__ __forceinline__ void fetch(const ChannelView& addend, const SlabShare<T>& share, int begin) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i < share.count) pack[i] = load_pack(static_cast<const T*>(addend.data) + share.element(begin + i));
    }
  }
};

/// y of pack k, of whose elements these are mean, scale and bias. kAdds: there is an addend; kMarks: a mask is wanted.
template <class T, class Act, bool kAdds, bool kMarks, class A = Accumulator<T>>
__device__ __forceinline__ void write_pack(const ForwardProblem<A>& p, const SlabShare<T>& share, int k,
                                           const A (&mean)[kPackSize<T>], const A (&scale)[kPackSize<T>],
                                           const A (&bias)[kPackSize<T>], const Pack<T>& addend) {
  constexpr int kWidth = kPackSize<T>;
  A h[kWidth];
  unpack(load_shared_pack<T>(share.at(0, k)), h);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) h[j] = channel_affine(h[j], mean[j], scale[j], bias[j]);
  if constexpr (kAdds) {
    A value[kWidth];
    unpack(addend, value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) h[j] += value[j];
  }
  if constexpr (kMarks) store_bits<kWidth>(p.mask, share.number(k), relu_bits<T>(h, p));
  apply_activation<T, Act>(h, p);
  store_pack_streaming(static_cast<T*>(p.y.data) + share.element(k), to_pack<T>(h));
}

/// write(adds, marks), constants, as the problem says.
template <class T, class Act, class A, class Write>
__device__ __forceinline__ void with_extras(const ForwardProblem<A>& p, Write write) {
  const std::true_type yes;
  const std::false_type no;
  const bool adds = p.addend.data != nullptr;
  if constexpr (kRelu<T, Act>) {
    if (p.mask != nullptr) return adds ? write(yes, yes) : write(no, yes);
  }
  adds ? write(yes, no) : write(no, no);
}

/// The sums of x - centre and of its squares of a thread's packs, of each of their elements. kOthers: groups of copies
/// behind those of x; kTogether: packs at a time.
template <int kOthers, int kTogether, class T, class A = Accumulator<T>>
__device__ __forceinline__ void add_up_squares(const SlabShare<T>& share, const A (&centre)[kPackSize<T>],
                                               A (&sum)[kPackSize<T>], A (&square)[kPackSize<T>]) {
  constexpr int kWidth = kPackSize<T>;
  add_up_halves<kOthers>(share, [&](int begin, int end) {
#pragma unroll kTogether
    for (int k = begin; k < end; ++k) {
      A value[kWidth];
      unpack(load_shared_pack<T>(share.at(0, k)), value);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[j] -= centre[j];
        sum[j] += value[j];
        square[j] += value[j] * value[j];
      }
    }
  });
}

/// The moments of a group from those of its slab's blocks, which so many helpers share: all lanes of a warp take part.
template <class T, class Memory, class A = Accumulator<T>>
__device__ __forceinline__ Moments<A> moments_of_blocks(const SlabShare<T>& share, const Memory& memory, int group,
                                                        int helper, int helpers) {
  const SlabSpace& s = share.s;
  const auto moments = [&](const NumberPair<A>& of, int block) {
    return Moments<A>{of.first, of.second, static_cast<A>(share.rows_of(block)) * static_cast<A>(s.by_group.size)};
  };
  const NumberPair<A> own = memory.own[group];
  if (s.blocks == 1) return moments(own, 0);
  const NumberPair<A>* const parts = memory.entries + group;
  return moments_of_sets(helpers, finite_or_zero(parts->first), [&](auto visit) {
    for (int block = helper; block < s.blocks; block += helpers) visit(moments(parts[block * s.groups], block));
  });
}

/// Work     some blocks a slab.
/// Bytes    each element of x (and addend) is read once, each of y written once.
/// Barriers four of the block, three more where it sums once more; and those of clusters or teams.
template <class T, class Act, bool kTeam>
__global__ void __launch_bounds__(kChannelThreads, 2)
    slab_forward_kernel(const __grid_constant__ ForwardProblem<Accumulator<T>> p,
                        const __grid_constant__ SlabSpace space, MomentsEntry<Accumulator<T>>* entries,
                        NumberPair<Accumulator<T>>* handed_over) {
  using A = Accumulator<T>;
  constexpr int kWidth = kPackSize<T>;
  const SlabShare<T> share(space);
  const SlabMemory<T, NumberPair<A>, kTeam> memory(space, share.rank);
  const SlabSpace& s = space;
  if constexpr (!kTeam) begin_cluster(s.blocks);
  start_after_previous();
  share.copy(p.x, 0, 0, share.half());
  commit_copies();
  share.copy(p.x, 0, share.half(), share.count);
  commit_copies();
  SlabExchange<A, kTeam> exchange(s, handed_over);
  share.prefetch(&p.addend);
  for (int c = threadIdx.x; c < s.channels; c += kChannelThreads) {
    const int64_t index = share.parameter_of(c);
    memory.parameters[c] = {entry_or<T>(p.weight, index, A(1)), entry_or<T>(p.bias, index, A(0))};
  }
  // Groups of a slab are no more than threads. Those of a team have many parts, which threads share.
  const int helpers = kTeam ? memory.lanes_for(s.groups) : 1, helper = static_cast<int>(threadIdx.x) & (helpers - 1);
  const int mine = static_cast<int>(threadIdx.x) / helpers;
  const bool leads = helper == 0 && mine < s.groups, leaves = leads && share.rank == 0;
  if (leads) {
    const A middle = share.middle(p.x, mine * static_cast<int>(s.by_group.size));
    memory.results[mine] = {middle, middle};
  }
  const RunningEntry<A> before = leaves ? running_of_set(p, share.first_group + mine) : RunningEntry<A>();
  __syncthreads();

  // The moments of the block's part of each group, about the middle, from which means are told, too. Where that proves
  // to be so far from the mean that digits are lost, once more about the mean.
  const A elements = static_cast<A>(share.rows_of(share.rank)) * static_cast<A>(s.by_group.size);
  const A reciprocal = quick_reciprocal(elements);
  const auto were_far = [&](const NumberPair<A>& moments, A centre) {
    return is_far(Moments<A>{moments.first, moments.second, elements}, centre);
  };
  for (bool first = true;; first = false) {
    A centre[kWidth], sum[kWidth] = {}, square[kWidth] = {};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centre[j] = memory.results[share.group_of(share.column + j)].first;
    add_up_squares<0, 4>(share, centre, sum, square);
    memory.leave(s, share.line, share.column, 0, s.folds, sum);
    memory.leave(s, share.line, share.column, 1, s.folds, square);
    __syncthreads();
    bool far = false;
    const auto leave = [&](int group, int lane, int, const A(&total)[2]) {
      const A about = memory.results[group].first - memory.results[group].second;
      const Moments<A> m = moments_about(about, total[0], total[1], elements, reciprocal);
      const NumberPair<A> found{m.mean, m.m2 < A(0) ? A(0) : m.m2};  // max() would lose NaN
      far = far || were_far(found, about);
      if (lane == 0) memory.own[group] = found;
    };
    memory.template for_each_range<2>(s, s.groups, s.by_share, s.folds, leave);
    if (!__syncthreads_or(first && far)) break;
    if (leads) {
      NumberPair<A>& of = memory.results[mine];
      const NumberPair<A> found = memory.own[mine];
      if (were_far(found, of.first - of.second)) of.first = found.first + of.second;
    }
    __syncthreads();
  }
  SlabAddend<T> addend;
  if (p.addend.data != nullptr) addend.fetch(p.addend, share, 0);
  exchange.run(share, memory);
  Moments<A> m = moments_of_blocks(share, memory, min(mine, s.groups - 1), helper, helpers);
  if (leads) {
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
  A mean[kWidth], scale[kWidth], bias[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const NumberPair<A> of = memory.results[share.group_of(share.column + j)];
    const NumberPair<A> channel = memory.parameters[share.column + j];
    mean[j] = of.first;
    scale[j] = channel_scale(of.second, channel.first);
    bias[j] = channel.second;
  }
  with_extras<T, Act>(p, [&](auto adds, auto marks) {
    constexpr int kTogether = SlabAddend<T>::kTogether;
#pragma unroll 1
    for (int begin = 0; begin < share.count; begin += kTogether) {
      const SlabAddend<T> own_addend = addend;
      if constexpr (adds) addend.fetch(p.addend, share, begin + kTogether);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (begin + i >= share.count) break;
        write_pack<T, Act, adds, marks>(p, share, begin + i, mean, scale, bias, own_addend.pack[i]);
      }
    }
  });
}

}  // namespace normact::cuda
