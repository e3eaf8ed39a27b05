// SPDX-License-Identifier: Apache-2.0
// Group and instance norm of small sets, which lie in the registers of a few threads (ChannelOrder::registers).
//
//   set      `lanes` threads have one. Each has some accesses of kWidth neighbours, kSetElements elements at most: of
//            one sample at a time, or of several where sets are small
//   block    the sets of `tile` neighbouring groups of `lines` samples, and of further samples after these. A thread
//            has the same elements of all of them, so weights, biases and the sums of gradients stay with it
//   part     the samples of a block. It leaves an entry a channel, its sums
//
// Elements of a set are counted along memory: places of a channel first, or channels where these lie closer together.
#pragma once

#include "cuda/channel_activation.cuh"
#include "cuda/channel_slopes.cuh"
#include "cuda/channel_sums.cuh"

namespace normact::cuda {

constexpr int kMostRegisterWarps = kMostRegisterThreads / kWarp;

/// Blocks of a multiprocessor that there are registers for. Most have kChannelThreads threads; sets that take more have
/// kMostRegisterThreads. A fourth block costs packs of 16 bits no more than a few bytes that spill (H100, bf16
/// 131072x64 in 8 groups backward: 52 us, and 62 with three), others many (fp32 8192x64x4x4 in 8 groups: 88, and 68
/// with three).
constexpr int register_blocks(int threads, int width) {
  if (threads > kChannelThreads) return 1;
  return width == kRegisterElements ? 4 : 3;
}

struct RegisterSpace {
  int lanes, lane_bits, tile, lines, elements, channels;  // elements, channels: of a set
  unsigned tiles;
  bool place_major;
  bool in_lines;  // places have two strides, the second that of a line
  Divisor by_tiles, by_tile, by_inner, by_places, by_line, by_group;
  int64_t samples, samples_a_part;

  RegisterSpace(const ChannelGeometry& g, const RegisterDivision& d)
      : lanes(d.lanes),
        lane_bits(logarithm(d.lanes)),
        tile(d.tile),
        lines(d.lines),
        elements(static_cast<int>(g.places * (g.channels / g.groups))),
        channels(static_cast<int>(g.channels / g.groups)),
        tiles(static_cast<unsigned>(d.tiles)),
        place_major(d.place_major),
        in_lines(g.place_ndim == 2),
        by_tiles(tiles),
        by_tile(static_cast<unsigned>(d.tile)),
        by_inner(d.place_major ? static_cast<unsigned>(channels) : static_cast<unsigned>(g.places)),
        by_places(static_cast<unsigned>(g.places)),
        by_line(static_cast<unsigned>(g.place_shape[g.place_ndim - 1])),
        by_group(static_cast<unsigned>(channels)),
        samples(g.samples),
        samples_a_part(d.samples_a_part) {}
};

/// Sums of each value over the threads of a set, to all of them. All threads of the block. kSeveralWarps: whether a set
/// may have several.
template <class A, bool kSeveralWarps>
class RegisterSum {
 public:
  __device__ __forceinline__ explicit RegisterSum(int lanes) : lanes_(lanes) {}

  template <int kCount>
  __device__ __forceinline__ void run(A (&value)[kCount]) {
    for (int offset = min(lanes_, kWarp) / 2; offset > 0; offset >>= 1) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) value[i] += __shfl_xor_sync(kFullWarp, value[i], offset);
    }
    if constexpr (kSeveralWarps) {
      if (lanes_ <= kWarp) return;
      __shared__ A sums[2][kCount][kMostRegisterWarps];
      const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = lanes_ / kWarp, first = warp & ~(warps - 1);
      turn_ ^= 1;  // nobody reads what was left two sums ago
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (threadIdx.x % kWarp == 0) sums[turn_][i][warp] = value[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = sums[turn_][i][first];
        for (int w = 1; w < warps; ++w) value[i] += sums[turn_][i][first + w];
      }
    }
  }

 private:
  int lanes_, turn_ = 0;
};

/// A thread's share of the sets of its block. kAlike: all tensors have x's strides within a sample.
template <class T, int kWidth, int kAccesses, bool kAlike>
class RegisterShare {
 public:
  using A = Accumulator<T>;
  static constexpr int kAccessCount = kAccesses, kSetElements = kWidth * kAccesses;
  static constexpr int kSamples = kRegisterElements / kSetElements;  // at a time
  using Values = A[kSamples][kSetElements];
  using Sum = RegisterSum<A, kSamples == 1>;  // several warps have one sample at a time

  __device__ __forceinline__ RegisterShare(const RegisterSpace& space, int64_t groups, const ChannelView& x)
      : s(space) {
    lane_ = static_cast<int>(threadIdx.x) & (s.lanes - 1);
    const int team = static_cast<int>(threadIdx.x) >> s.lane_bits;
    const auto line = static_cast<int>(s.by_tile.quotient(team));
    part_ = s.by_tiles.quotient(blockIdx.x);
    group_ = first_group() + (team - line * s.tile);
    const int64_t begin = static_cast<int64_t>(part_) * s.samples_a_part;
    const auto count = static_cast<int>(min(s.samples_a_part, s.samples - begin));
    first_ = begin + line;
    left_ = line < s.lines && group_ < groups ? count - line : 0;
    turns_ = (count + kSamples * s.lines - 1) / (kSamples * s.lines);
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) offset_[k] = offset_in(x, k);
  }

  __device__ __forceinline__ unsigned part() const { return part_; }
  __device__ __forceinline__ int64_t group() const { return group_; }
  __device__ __forceinline__ int64_t first_group() const {
    return static_cast<int64_t>(blockIdx.x - part_ * s.tiles) * s.tile;
  }
  __device__ __forceinline__ int lane() const { return lane_; }
  /// The thread that has an element of a set of the block, and which one of its elements that is.
  __device__ __forceinline__ NumberPair<int> owner_of(int set, int element) const {
    const int access = element / kWidth, lane = access & (s.lanes - 1);
    return {(set << s.lane_bits) + lane, (access >> s.lane_bits) * kWidth + element % kWidth};
  }
  /// The same for all threads of the block.
  __device__ __forceinline__ int turns() const { return turns_; }
  __device__ __forceinline__ int64_t sample(int turn, int q) const { return first_ + ahead(turn, q); }
  /// Whether the sample is there.
  __device__ __forceinline__ bool has(int turn, int q) const { return ahead(turn, q) < left_; }
  /// Whether access k is of a set's elements. The planner gives a set no more threads than it takes: of all of them
  /// the first half of the accesses is.
  __device__ __forceinline__ bool has_access(int k) const {
    return k < kAccesses / 2 || (k * s.lanes + lane_) * kWidth < s.elements;
  }

  /// The entry of each element's channel.
  __device__ __forceinline__ void parameters(const ChannelVector& vector, A otherwise, A (&value)[kSetElements]) const {
#pragma unroll
    for (int i = 0; i < kSetElements; ++i) {
      const bool there = has_access(i / kWidth) && left_ > 0;
      const int channel = channel_and_place(element(i / kWidth) + i % kWidth).first;
      value[i] = there ? entry_or<T>(vector, group_ * s.channels + channel, otherwise) : A(0);
    }
  }

  /// Elements of samples that are there; zeros in the place of others.
  __device__ __forceinline__ void load(const ChannelView& view, int turn, Values& value) const {
    const T* const first = static_cast<const T*>(view.data) + base(view);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      const T* from = first + ahead(turn, q) * view.sample_stride;
#pragma unroll
      for (int k = 0; k < kAccesses; ++k) {
        A(&to)[kWidth] = reinterpret_cast<A(&)[kWidth]>(value[q][k * kWidth]);
        const bool there = has(turn, q) && has_access(k);
        if constexpr (kWidth > 1) {
          Pack<T> pack{};
          if (there) pack = load_pack(from + offset(view, k));
          unpack(pack, to);
        } else {
          to[0] = there ? convert<A>(from[offset(view, k)]) : A(0);
        }
      }
    }
  }
  __device__ __forceinline__ void store(const ChannelView& view, int turn, const Values& value) const {
    T* const first = static_cast<T*>(view.data) + base(view);
#pragma unroll
    for (int q = 0; q < kSamples; ++q) {
      if (!has(turn, q)) continue;
      T* to = first + ahead(turn, q) * view.sample_stride;
#pragma unroll
      for (int k = 0; k < kAccesses; ++k) {
        if (!has_access(k)) continue;
        if constexpr (kWidth > 1) {
          store_pack(to + offset(view, k), to_pack<T>(reinterpret_cast<const A(&)[kWidth]>(value[q][k * kWidth])));
        } else {
          to[offset(view, k)] = convert<T>(value[q][k]);
        }
      }
    }
  }

 private:
  struct Spot {
    int first, second;
  };
  __device__ __forceinline__ int ahead(int turn, int q) const { return (turn * kSamples + q) * s.lines; }
  __device__ __forceinline__ int element(int k) const { return (k * s.lanes + lane_) * kWidth; }
  __device__ __forceinline__ Spot channel_and_place(int element) const {
    const auto outer = static_cast<int>(s.by_inner.quotient(element));
    const int inner = element - outer * static_cast<int>(s.by_inner.size);
    return s.place_major ? Spot{inner, outer} : Spot{outer, inner};
  }
  /// Of the set in the first sample.
  __device__ __forceinline__ int64_t base(const ChannelView& view) const {
    return first_ * view.sample_stride + group_ * s.channels * view.channel_stride;
  }
  __device__ __forceinline__ int offset_in(const ChannelView& view, int k) const {
    const Spot spot = channel_and_place(element(k));
    const int channel = spot.first * static_cast<int>(view.channel_stride);
    const int stride = static_cast<int>(view.place_stride[0]);
    if (!s.in_lines) return channel + spot.second * stride;
    const auto line = static_cast<int>(s.by_line.quotient(spot.second));
    const int in_line = spot.second - line * static_cast<int>(s.by_line.size);
    return channel + line * stride + in_line * static_cast<int>(view.place_stride[1]);
  }
  __device__ __forceinline__ int offset(const ChannelView& view, int k) const {
    return kAlike ? offset_[k] : offset_in(view, k);
  }

  const RegisterSpace& s;
  int lane_, left_, turns_;  // left_: samples from the first on
  unsigned part_;
  int64_t group_, first_;  // first_: sample
  int offset_[kAccesses];  // of accesses, in x and what is like it
};

/// Adds up pairs that the threads of a block have left in its shared memory, behind a barrier, and leaves an entry of
/// each channel: of its `count` pairs, the one that at(group of the tile, channel of the group, i) tells.
template <class A, class At>
__device__ __forceinline__ void leave_entries(const RegisterSpace& s, int64_t groups, int64_t first_group, int count,
                                              NumberPair<A>* entries, At at) {
  const auto* const left = reinterpret_cast<const NumberPair<A>*>(channel_shared);
  const int channels = static_cast<int>(min(static_cast<int64_t>(s.tile), groups - first_group)) * s.channels;
  int helpers = 1;
  while (helpers < kWarp && 2 * helpers <= count) helpers *= 2;
  const int helper = static_cast<int>(threadIdx.x) & (helpers - 1);
  const int a_warp = kWarp / helpers, step = static_cast<int>(blockDim.x) / helpers;
  const int of_warp = static_cast<int>(threadIdx.x) / kWarp * a_warp;
  for (int first = of_warp; first < channels; first += step) {  // a warp is of one mind
    const int channel = first + static_cast<int>(threadIdx.x % kWarp) / helpers;
    const auto group = static_cast<int>(s.by_group.quotient(channel));
    NumberPair<A> sum{A(0), A(0)};
    for (int i = helper; i < count && channel < channels; i += helpers) {
      const NumberPair<A> of = left[at(group, channel - group * s.channels, i)];
      sum.first += of.first;
      sum.second += of.second;
    }
    sum.first = sum_of_helpers(sum.first, helpers);
    sum.second = sum_of_helpers(sum.second, helpers);
    if (helper == 0 && channel < channels) hand(entries + first_group * s.channels + channel, sum);
  }
}

}  // namespace normact::cuda
