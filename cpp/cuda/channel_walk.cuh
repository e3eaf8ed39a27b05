// SPDX-License-Identifier: Apache-2.0
// Which elements of an item a thread owns. A walk gives them out in accesses of kWidth neighbours:
//
//   PlaneWalk    neighbours are places of one channel. The `lanes` threads of a team share a segment of a plane; a team
//                keeps its channel and goes from segment to segment, `lines` teams of a channel in turn. Accesses are
//                at multiples of 16 bytes, so the first and last of a plane may hold elements of its neighbours;
//                kWhole: none does, which is half of the code.
//   RowWalk      neighbours are channels of one place. A thread keeps its kWidth channels and goes down the rows,
//                `lines` threads of a column in turn. With kWidth 1, units have any strides.
#pragma once

#include "cuda/channel_space.cuh"
#include "cuda/numeric.cuh"

namespace normact::cuda {

/// Streaming stores leave the cache to what is read again.
template <class T>
__device__ __forceinline__ void store_pack_streaming(T* to, const Pack<T>& pack) {
  const uint4 bits = to_bits(pack);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z),
               "r"(bits.w)
               : "memory");
}

template <class T, bool kWhole>
class PlaneWalk {
 public:
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>;
  static constexpr int kOwned = 1;  // channels of a thread
  static constexpr bool kPlanes = true;
  static constexpr int owner(int) { return 0; }
  using Access = Pack<T>;

  struct Spot {
    int place;  // of the access's first element, which may lie before the plane
    bool valid;
    int sample;
    int64_t plane;  // offset of its first place
  };

  /// All tensors of x's shape have x's strides, and begin at the same element of a pack.
  __device__ __forceinline__ PlaneWalk(const ChannelSpace& space, const ChannelTile& tile, const ChannelView& x)
      : s(space), x_(x) {
    lane_ = threadIdx.x & (s.lanes - 1);
    const int team = static_cast<int>(threadIdx.x) >> s.lane_bits;
    column_ = team & (s.tile - 1);
    line_ = team >> s.tile_bits;
    channel_ = tile.first + column_;
    first_sample_ = s.samples_a_batch == 1 ? static_cast<int>(tile.batch) : 0;
    unit_ = static_cast<int>(tile.begin) + line_;
    end_ = column_ < tile.channels ? static_cast<int>(tile.end) : 0;
    enter();
  }

  __device__ __forceinline__ bool works() const { return end_ > 0; }
  __device__ __forceinline__ int column() const { return column_; }  // of the tile: of the first owned channel
  __device__ __forceinline__ int line() const { return line_; }
  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ bool more() const { return unit_ < end_; }

  /// The accesses from here on, as far as the segment goes.
  template <int kBlock>
  __device__ __forceinline__ void look(Spot (&spot)[kBlock]) const {
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
      spot[k].place = place_ + k * s.lanes * kWidth;
      spot[k].valid = spot[k].place < stop_;
      spot[k].sample = sample_;
      spot[k].plane = offset_;
    }
  }
  template <int kBlock>
  __device__ __forceinline__ void advance() {
    place_ += kBlock * s.lanes * kWidth;
    if (place_ - lane_ * kWidth < stop_) return;
    unit_ += s.lines;
    enter();
  }

  __device__ __forceinline__ int64_t offset(const ChannelView&, const Spot& spot) const {
    return spot.plane + spot.place;
  }
  __device__ __forceinline__ bool whole(const Spot& spot) const {
    return kWhole || (spot.place >= 0 && spot.place + kWidth <= places());
  }
  __device__ __forceinline__ bool inside(const Spot& spot, int j) const {
    return kWhole || static_cast<unsigned>(spot.place + j) < static_cast<unsigned>(places());
  }
  __device__ __forceinline__ int count(const Spot& spot) const {
    return kWhole ? kWidth : min(spot.place + kWidth, places()) - max(spot.place, 0);
  }
  __device__ __forceinline__ int64_t number(const Spot& spot, int j) const {
    return s.number_of<true>(spot.sample, channel_, spot.place + j);
  }

  __device__ __forceinline__ Access load(const ChannelView& view, const Spot& spot) const {
    const int64_t at = offset(view, spot);
    const T* from = static_cast<const T*>(view.data) + at;
    if constexpr (!kWhole) {  // what a tensor's first and last access would read beyond it belongs to others
      if (at < s.low || at + kWidth > s.high) return load_pack_elements(from, [&](int j) { return inside(spot, j); });
    }
    return load_pack(from);
  }
  __device__ __forceinline__ void get(const Access& access, A (&value)[kWidth]) const { unpack(access, value); }
  __device__ __forceinline__ void store(const ChannelView& view, const Spot& spot, const A (&value)[kWidth]) const {
    T* to = static_cast<T*>(view.data) + offset(view, spot);
    if (whole(spot)) {
      store_pack_streaming(to, to_pack<T>(value));
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (inside(spot, j)) to[j] = convert<T>(value[j]);
      }
    }
  }

 private:
  __device__ __forceinline__ int places() const { return static_cast<int>(s.places); }
  /// Goes to the first access of this thread in unit_.
  __device__ __forceinline__ void enter() {
    if (unit_ >= end_) return;
    const int sample = s.samples_a_batch == 1 ? 0 : static_cast<int>(s.segments.quotient(unit_));
    const int segment = unit_ - sample * static_cast<int>(s.segments.size);
    sample_ = first_sample_ + sample;
    offset_ = channel_ * x_.channel_stride + sample_ * x_.sample_stride;
    const int phase = static_cast<int>(reinterpret_cast<uintptr_t>(x_.data) / sizeof(T));
    const int shift = kWhole ? 0 : (phase + static_cast<int>(offset_)) & (kWidth - 1);
    const int begin = segment * s.segment_places - shift;
    place_ = begin + lane_ * kWidth;
    stop_ = segment + 1 == static_cast<int>(s.segments.size) ? places() : min(begin + s.segment_places, places());
  }

  const ChannelSpace& s;
  const ChannelView& x_;
  int lane_, column_, line_, channel_, first_sample_, unit_, end_;
  int sample_, place_, stop_;
  int64_t offset_;
};

template <class T, int kElements>
class RowWalk {
 public:
  using A = Accumulator<T>;
  static constexpr int kWidth = kElements;
  static constexpr int kOwned = kElements;
  static constexpr bool kPlanes = false;
  static constexpr int owner(int j) { return j; }
  struct Single {
    T value;
  };
  using Access = std::conditional_t<kWidth == 1, Single, Pack<T>>;
  using Unit = std::conditional_t<kWidth == 1, int64_t, int>;

  struct Spot {
    Unit unit;
    bool valid;
  };

  __device__ __forceinline__ RowWalk(const ChannelSpace& space, const ChannelTile& tile, const ChannelView& x)
      : s(space), x_(x), batch_(static_cast<Unit>(tile.batch)) {
    line_ = static_cast<int>(s.by_lanes.quotient(threadIdx.x));
    column_ = (static_cast<int>(threadIdx.x) - line_ * s.lanes) * kWidth;
    channel_ = tile.first + column_;
    unit_ = static_cast<Unit>(tile.begin) + line_;
    end_ = column_ < tile.channels && line_ < s.lines ? static_cast<Unit>(tile.end) : 0;
    base_ = batch_ * x.sample_stride + channel_;
  }

  __device__ __forceinline__ bool works() const { return end_ > 0; }
  __device__ __forceinline__ int column() const { return column_; }
  __device__ __forceinline__ int line() const { return line_; }
  __device__ __forceinline__ int lane() const { return 0; }
  __device__ __forceinline__ bool more() const { return unit_ < end_; }

  template <int kBlock>
  __device__ __forceinline__ void look(Spot (&spot)[kBlock]) const {
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
      spot[k].unit = unit_ + k * s.lines;
      spot[k].valid = spot[k].unit < end_;
    }
  }
  template <int kBlock>
  __device__ __forceinline__ void advance() {
    unit_ += kBlock * s.lines;
  }

  __device__ __forceinline__ int64_t offset(const ChannelView& view, const Spot& spot) const {
    if constexpr (kWidth > 1) {  // all tensors have x's strides; samples of a batch follow each other as places do
      return base_ + static_cast<int64_t>(spot.unit) * static_cast<int>(x_.place_stride[0]);
    } else {
      const int64_t sample = spot.unit / s.places, place = spot.unit - sample * s.places;
      return (batch_ + sample) * view.sample_stride + channel_ * view.channel_stride +
             strided_offset(place, s.place_ndim, s.place_shape, view.place_stride);
    }
  }
  __device__ __forceinline__ bool whole(const Spot&) const { return true; }
  __device__ __forceinline__ bool inside(const Spot&, int) const { return true; }
  __device__ __forceinline__ int count(const Spot&) const { return 1; }
  __device__ __forceinline__ int64_t number(const Spot& spot, int j) const {
    const int64_t sample = kWidth > 1 ? s.by_places.quotient(static_cast<unsigned>(spot.unit)) : spot.unit / s.places;
    return s.number_of<(kWidth > 1)>(batch_ + sample, channel_ + j, spot.unit - sample * s.places);
  }

  __device__ __forceinline__ Access load(const ChannelView& view, const Spot& spot) const {
    const T* from = static_cast<const T*>(view.data) + offset(view, spot);
    if constexpr (kWidth > 1) {
      return load_pack(from);
    } else {
      return {*from};
    }
  }
  __device__ __forceinline__ void get(const Access& access, A (&value)[kWidth]) const {
    if constexpr (kWidth > 1) {
      unpack(access, value);
    } else {
      value[0] = convert<A>(access.value);
    }
  }
  __device__ __forceinline__ void store(const ChannelView& view, const Spot& spot, const A (&value)[kWidth]) const {
    T* to = static_cast<T*>(view.data) + offset(view, spot);
    if constexpr (kWidth > 1) {
      store_pack_streaming(to, to_pack<T>(value));
    } else {
      *to = convert<T>(value[0]);
    }
  }

 private:
  const ChannelSpace& s;
  const ChannelView& x_;
  int column_, line_, channel_;
  Unit batch_, unit_, end_;
  int64_t base_;
};

/// Until the walk is at its end: load(spots, &in), then use(spots, in), kBlock accesses at a time. kAhead: what is used
/// next is loaded before.
template <int kBlock, bool kAhead, class In, class Walk, class Load, class Use>
__device__ __forceinline__ void for_each_block(Walk& walk, Load load, Use use) {
  using Spot = typename Walk::Spot;
  if constexpr (!kAhead) {
#pragma unroll 1
    while (walk.more()) {
      Spot spot[kBlock];
      In in;
      walk.look(spot);
      load(spot, &in);
      use(spot, in);
      walk.template advance<kBlock>();
    }
  } else {
    if (!walk.more()) return;
    Spot here[kBlock];
    In in;
    walk.look(here);
    load(here, &in);
#pragma unroll 1
    for (;;) {
      Spot next[kBlock];
      In coming;
      walk.template advance<kBlock>();
      const bool more = walk.more();
      if (more) {
        walk.look(next);
        load(next, &coming);
      }
      use(here, in);
      if (!more) return;
#pragma unroll
      for (int k = 0; k < kBlock; ++k) here[k] = next[k];
      in = coming;
    }
  }
}

}  // namespace normact::cuda
