// SPDX-License-Identifier: Apache-2.0
// Batch, group and instance norm backward of sets of planes that go through the shared memory of teams of blocks
// (channel_ring.cuh).
#pragma once

#include "cuda/channel_ring.cuh"
#include "cuda/channel_slopes.cuh"

namespace normact::cuda {

#if __CUDA_ARCH__ >= 900

/// The sums over a warp of each of kCount numbers, a power of two: together, as one takes 5 shuffles.
template <int kCount, class A>
__device__ __forceinline__ void warp_sums(A (&of)[kCount]) {
  int lanes = kWarp;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    lanes /= 2;
    const bool upper = (threadIdx.x & lanes) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const A given = upper ? of[i] : of[i + half], kept = upper ? of[i + half] : of[i];
      of[i] = kept + __shfl_xor_sync(kFullWarp, given, lanes);
    }
  }
  for (lanes /= 2; lanes > 0; lanes /= 2) of[0] += __shfl_xor_sync(kFullWarp, of[0], lanes);
#pragma unroll
  for (int i = kCount - 1; i >= 0; --i) of[i] = __shfl_sync(kFullWarp, of[0], i * (kWarp / kCount));
}

/// Answers c1 and c2.
template <class A>
using BackwardRingExchange = WarpExchange<A, A, kRingDepth>;

/// A working thread: its packs of every set of its team. kSeveral: sets have several channels, of whole rounds of a
/// warp.
template <class T, class Act, bool kSeveral, SlopeFrom kSlope>
struct RingBackwardWorker {
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>, kBatch = 2;
  static constexpr bool kActs = !kIdentity<T, Act>;
  /// dh takes dy's place, where rounding it to T changes nothing.
  static constexpr bool kKeeps = kActs && (std::is_same_v<T, A> || kRelu<T, Act>);

  /// What belongs to a set: of several channels without their weights and biases.
  struct Constants {
    A mean, scale, bias;
  };

  const BackwardProblem<A>& p;
  const RingShare<T, 3, kSeveral>& share;
  BackwardRingExchange<A>& exchange;

  A total = A(0), product = A(0);                              // of the set whose sums are taken
  Constants of_sums{}, own{};                                  // of the same, and of the set that is written
  SumPair<A> c{};                                              // of the latter
  PlanePart<T> summed = share.set(0), written = share.set(0);  // these
  int turn_of_sums = 0;
  const NumberPair<A>* table_of_sums = nullptr;  // of several channels: weights and biases by planes
  const NumberPair<A>* table = nullptr;

  __device__ __forceinline__ Constants constants(int turn, const NumberPair<A>* by_plane) const {
    const NumberPair<A> statistics = *share.statistics(turn);
    if constexpr (kSeveral) return {statistics.first, statistics.second, A(0)};
    return {statistics.first, channel_scale(statistics.second, by_plane->first), by_plane->second};
  }

  __device__ __forceinline__ void begin(int turn) {
    total = product = A(0);
    turn_of_sums = turn;
    summed = share.set(turn);
    table_of_sums = share.parameters_of_planes(turn);
    of_sums = constants(turn, table_of_sums);
  }
  /// Of the channel of a pack.
  __device__ __forceinline__ Constants constants_of(const Constants& of, const NumberPair<A>* by_plane,
                                                    unsigned number) const {
    if constexpr (!kSeveral) return of;
    const NumberPair<A> own = by_plane[share.s.by_run.quotient(number)];
    return {of.mean, channel_scale(of.scale, own.first), own.second};
  }

  template <int kCount>
  struct Loaded {
    Pack<T> x[kCount], dy[kCount], third[kSlope == SlopeFrom::third ? kCount : 1];
    unsigned bits[kSlope == SlopeFrom::mask ? kCount : 1];
  };

  template <bool kAgain, int kCount>
  __device__ __forceinline__ Loaded<kCount> load(const PlanePart<T>& from, const RingSlot& of, int k) const {
    Loaded<kCount> in;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      in.x[i] = load_shared_pack<T>(share.at(of, 0, k + i));
      in.dy[i] = load_shared_pack<T>(share.at(of, 1, k + i));
      if constexpr (kActs && !(kAgain && kKeeps)) {
        if constexpr (kSlope == SlopeFrom::third) in.third[i] = load_shared_pack<T>(share.at(of, 2, k + i));
        if constexpr (kSlope == SlopeFrom::mask) {
          const int64_t number = from.element_number(share.number(of.chunk, k + i));
          in.bits[i] = p.mask[number / 8] >> (number % 8);
        }
      }
    }
    return in;
  }

  /// dh and x - mean. kAgain: after sum().
  template <bool kAgain, class In>
  __device__ __forceinline__ void differentiate(const In& in, int i, const Constants& of, A (&dh)[kWidth],
                                                A (&centred)[kWidth]) const {
    unpack(in.x[i], centred);
    unpack(in.dy[i], dh);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) centred[j] -= of.mean;
    if constexpr (kActs && !(kAgain && kKeeps)) {
      if constexpr (kSlope == SlopeFrom::mask) {
        multiply_by_bits(in.bits[i], dh);
      } else {
        constexpr bool kThird = kSlope == SlopeFrom::third;
        const A scales[1] = {of.scale}, biases[1] = {of.bias};
        multiply_by_slopes<kThird, T, Act, PlaneWalk<T, true>>(
            p, dh, centred, scales, biases, [&](A(&value)[kWidth]) { unpack(in.third[kThird ? i : 0], value); });
      }
    }
  }

  __device__ __forceinline__ void sum(const RingSlot& of) {
    share.template for_each_of_chunk<kBatch>(of.chunk, [&](int k, auto n) {
      constexpr int kCount = decltype(n)::value;
      const auto in = load<false, kCount>(summed, of, k);
      [[maybe_unused]] A sums[2 * kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        A dh[kWidth], centred[kWidth];
        const unsigned number = share.number(of.chunk, k + i);
        differentiate<false>(in, i, kActs ? constants_of(of_sums, table_of_sums, number) : of_sums, dh, centred);
        if constexpr (kKeeps) store_shared_pack(share.at(of, 1, k + i), to_pack<T>(dh));
        if constexpr (kSeveral) total = product = A(0);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          total += dh[j];
          product += dh[j] * centred[j];
        }
        sums[2 * i] = total;
        sums[2 * i + 1] = product;
      }
      if constexpr (kSeveral) {
        warp_sums(sums);
        SumPair<A>* const to =
            share.round_sums(turn_of_sums) + (of.chunk * share.d.rounds_a_chunk + k) * share.warps + share.warp;
#pragma unroll
        for (int i = 0; i < kCount && share.lane == 0; ++i) to[i * share.warps] = {sums[2 * i], sums[2 * i + 1]};
      }
    });
  }

  __device__ __forceinline__ void contribute(int turn) {
    SumPair<A> sums{};  // of several channels those of rounds are there
    if constexpr (!kSeveral) sums = {warp_sum(total), warp_sum(product)};
    exchange.contribute(turn, share.warp, sums);
  }

  __device__ __forceinline__ void receive(int turn) {
    c = exchange.answer(turn);
    written = share.set(turn);
    table = share.parameters_of_planes(turn);
    own = constants(turn, table);
  }

  /// dx and daddend of a chunk.
  __device__ __forceinline__ void write(const RingSlot& of) {
    share.template for_each_of_chunk<kBatch>(of.chunk, [&](int k, auto n) {
      constexpr int kCount = decltype(n)::value;
      const auto in = load<true, kCount>(written, of, k);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const unsigned number = share.number(of.chunk, k + i);
        const Constants of_pack = constants_of(own, table, number);
        A dh[kWidth], centred[kWidth];
        differentiate<true>(in, i, of_pack, dh, centred);
        const int64_t at = written.place(number).offset;
        if (p.daddend.data != nullptr) store_pack_streaming(static_cast<T*>(p.daddend.data) + at, to_pack<T>(dh));
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          dh[j] = normact::channel_input_gradient(dh[j], centred[j], of_pack.scale, c.first, c.second);
        }
        store_pack_streaming(static_cast<T*>(p.dx.data) + at, to_pack<T>(dh));
      }
    });
    share.release(of, kKeeps);
  }
};

/// The warps of a block that exchange sums, all sets of its team: merge_warps(turn, pair a lane) makes the block's, and
/// use(turn, sums) is given those of the team. All for all lanes.
template <class Share, class A, class MergeWarps, class Use>
__device__ __forceinline__ void serve_ring_sums(const Share& share, BackwardRingExchange<A>& exchange, void* places,
                                                MergeWarps merge_warps, Use use) {
  const auto sum = [](const SumPair<A>& part) { return SumPair<A>{warp_sum(part.first), warp_sum(part.second)}; };
  const TeamPlaces<A> team{static_cast<SumPair<A>*>(places), share.blocks, share.rank};
  for (int turn = 0; turn < share.turns; ++turn) {
    if (share.d.clusters) {
      const auto of_block = [&](const SumPair<A>& part) { return merge_warps(turn, part); };
      use(turn, exchange.merge(turn, share.warps, share.blocks, share.rank, of_block, sum));
    } else if (share.serves()) {
      team.give(share.set(turn).number, merge_warps(turn, exchange.of_warps(turn, share.warps)));
      exchange.given(turn);
    } else {
      SumPair<A> parts[TeamPlaces<A>::kParts], lane{};
      exchange.wait_until_given(turn);
      team.take(share.set(turn).number, parts);
#pragma unroll
      for (const SumPair<A>& part : parts) {
        lane.first += part.first;
        lane.second += part.second;
      }
      use(turn, sum(lane));
    }
  }
}

/// The same: answer with c1 and c2 (of x - mean) of each of the team's sets.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ void serve_ring_backward(const BackwardProblem<A>& p, const RingShare<T, 3, false>& share,
                                                    BackwardRingExchange<A>& exchange, NumberPair<A>* entries,
                                                    void* places) {
  const A reciprocal = A(1) / (static_cast<A>(share.s.packs) * static_cast<A>(kPackSize<T>));
  const auto merge_warps = [](int, const SumPair<A>& part) {
    return SumPair<A>{warp_sum(part.first), warp_sum(part.second)};
  };
  serve_ring_sums(share, exchange, places, merge_warps, [&](int turn, const SumPair<A>& total) {
    if (share.lane != 0) return;
    const A rstd = share.statistics(turn)->second, weight = share.parameters(turn)->first;
    const NumberPair<A> sums{total.first, total.second * rstd};
    const NumberPair<A> c = correction_of(p, channel_scale(rstd, weight) * reciprocal, sums);
    exchange.publish(turn, {c.first, c.second * rstd});
    if (share.rank != turn % share.blocks) return;
    const PlanePart<T> set = share.set(turn);
    if (p.set == ChannelSet::group) {
      hand(entries + set.number, sums);
    } else {
      store_gradients<T>(p, set.channel, sums);
    }
  });
}

/// What a block's part of a set of several channels adds to the sums of its group: those of rounds by their weights.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ SumPair<A> weighted_sums(const RingShare<T, 3, true>& share, int turn) {
  const SumPair<A>* const sums = share.round_sums(turn);
  const NumberPair<A>* const table = share.parameters_of_planes(turn);
  SumPair<A> group{A(0), A(0)};
#pragma unroll 4
  for (int i = share.lane; i < share.count / kWarp; i += kWarp) {
    const A weight = table[share.s.by_run.quotient(static_cast<unsigned>(share.first + i * kWarp))].first;
    const SumPair<A> round = sums[i];
    group.first += weight * round.first;
    group.second += weight * round.second;
  }
  return {warp_sum(group.first), warp_sum(group.second)};
}

/// Leaves the sums of each channel of a block's part of a set as entries.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ void leave_channel_sums(const RingShare<T, 3, true>& share, int turn,
                                                   const PlanePart<T>& set, A rstd, NumberPair<A>* entries) {
  const int run = static_cast<int>(share.s.by_run.size), rounds = run / kWarp;  // of a channel
  const int begin = share.first / kWarp, end = (share.first + share.count) / kWarp, parts = share.d.parts;
  const SumPair<A>* const from = share.round_sums(turn) - begin;
  const int lanes = min(kWarp, 1 << (32 - __clz(rounds - 1)));
  for (int first = 0; first < share.planes; first += kWarp / lanes) {
    const int plane = share.first_plane + first + share.lane / lanes;
    const bool exists = plane < share.first_plane + share.planes;
    const int stop = exists ? min(end, (plane + 1) * rounds) : 0;
    SumPair<A> sum{A(0), A(0)};
    for (int i = max(begin, plane * rounds) + share.lane % lanes; i < stop; i += lanes) {
      sum.first += from[i].first;
      sum.second += from[i].second;
    }
    join(1, lanes, [&](int offset) {
      sum.first += __shfl_xor_sync(kFullWarp, sum.first, offset);
      sum.second += __shfl_xor_sync(kFullWarp, sum.second, offset);
    });
    if (!exists || share.lane % lanes != 0) continue;
    // The blocks that a channel lies in leave an entry each, one behind the other; the last one also those that remain.
    int part = parts == 1 ? 0 : share.rank - plane * run / share.d.packs_a_block;
    NumberPair<A>* const to = entries + (set.batch * share.s.all_channels + set.channel + plane) * parts;
    hand(to + part, NumberPair<A>{sum.first, sum.second * rstd});
    if ((plane + 1) * rounds > end) continue;
    while (++part < parts) hand(to + part, NumberPair<A>{A(0), A(0)});
  }
}

/// The same for sets of several channels.
template <class T, class A = Accumulator<T>>
__device__ __forceinline__ void serve_ring_backward(const BackwardProblem<A>&, const RingShare<T, 3, true>& share,
                                                    BackwardRingExchange<A>& exchange, NumberPair<A>* entries,
                                                    void* places) {
  const A reciprocal = A(1) / (static_cast<A>(share.s.packs) * static_cast<A>(kPackSize<T>));
  const auto of_rounds = [&](int turn, const SumPair<A>&) { return weighted_sums(share, turn); };
  serve_ring_sums(share, exchange, places, of_rounds, [&](int turn, const SumPair<A>& total) {
    const A rstd = share.statistics(turn)->second, factor = rstd * reciprocal;
    __syncwarp();
    if (share.lane == 0) exchange.publish(turn, {factor * total.first, factor * rstd * rstd * total.second});
    __syncwarp();
    leave_channel_sums(share, turn, share.set(turn), rstd, entries);
  });
}

#endif

/// Work     persistent teams of blocks, one block a multiprocessor.
/// Bytes    each element of x and dy (and y, addend, mask, where the slope needs them) is read once, each of dx and
///          daddend written once.
/// Barriers, memory as forward.
template <class T, class Act, bool kSeveral>
__global__ void __launch_bounds__(kChannelRingThreads, 1)
    ring_backward_kernel(const __grid_constant__ BackwardProblem<Accumulator<T>> p,
                         const __grid_constant__ PlaneSpace space, const __grid_constant__ RingDivision division,
                         NumberPair<Accumulator<T>>* entries, void* places, void* end) {
#if __CUDA_ARCH__ >= 900
  using A = Accumulator<T>;
  struct BlockMemory {
    BackwardRingExchange<A> exchange;
    ChannelRingBarriers barriers;
  };
  static_assert(sizeof(BlockMemory) <= kStaticSharedReserve);
  __shared__ BlockMemory block_memory;
  auto& [exchange, barriers] = at_known_address(block_memory);
  const ChannelView* const third = kSeveral || kIdentity<T, Act> ? nullptr : slope_view(p);
  // A plane of several is whole rounds of a warp (plan_channel_rings.cpp), and so is what a block has of a set.
  const RingShare<T, 3, kSeveral> share(space, division, barriers, third != nullptr ? 3 : 2, kSeveral);
  if (share.serves()) exchange.init(share.warps, share.givers());
  if (share.fetches() && share.lane == 0) share.init_barriers();
  start_after_previous();
  const RingSource<T, 3> source{{static_cast<const T*>(p.x.data), static_cast<const T*>(p.dy.data),
                                 third != nullptr ? static_cast<const T*>(third->data) : nullptr},
                                p.weight,
                                p.bias,
                                &p.mean,
                                &p.rstd};
  RingFetcher<T, 3, kSeveral> fetcher(share, source);
  begin_ring(share, fetcher, places, end);
  if (share.serves() || share.takes()) {
    serve_ring_backward<T>(p, share, exchange, entries, places);
  } else if (!share.fetches()) {
    const auto run = [&, &of = exchange](auto from) {
      RingBackwardWorker<T, Act, kSeveral, decltype(from)::value> worker{p, share, of};
      run_ring(worker, share);
    };
    if constexpr (kSeveral) {
      run(std::integral_constant<SlopeFrom, kIdentity<T, Act> ? SlopeFrom::nothing : SlopeFrom::x>());
    } else {
      with_slope<T, Act, kRelu<T, Act>>(p, run);
    }
  }
  end_ring(share);
#endif
}

}  // namespace normact::cuda
