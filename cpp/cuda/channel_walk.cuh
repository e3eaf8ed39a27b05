// SPDX-License-Identifier: Apache-2.0
// Which elements of an item a thread owns. A walk gives them out in accesses of kWidth neighbours:
//
//   PlaneWalk    neighbours are places of one channel. The `lanes` threads of a team share a segment of a plane; a team
//                keeps its channel and goes from segment to segment, `lines` teams of a channel in turn. Accesses are
//                at multiples of 16 bytes, so the first and last of a plane may hold elements of its neighbours;
//                kWhole: none does, which is half of the code.
//   RowWalk      neighbours are channels of one place, or columns (ChannelAccess). A thread keeps its kWidth channels
//                and goes down the rows, `lines` threads of a column in turn. With kWidth 1, units have one stride in
//                each tensor, or, kStrided, any strides.
#pragma once

#include "cuda/channel_kept.cuh"
#include "cuda/numeric.cuh"

namespace normact::cuda {

/// A pack from the L2 cache, where all agree on memory: for what is read once, and before a kernel has waited for those
/// that the stream ran before it (reduce.cuh).
template <class T>
__device__ __forceinline__ Pack<T> load_pack_once(const T* from) {
  uint4 bits;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return to_pack<T>(bits);
}

/// Streaming stores leave the cache to what is read again.
template <class T>
__device__ __forceinline__ void store_pack_streaming(T* to, const Pack<T>& pack) {
  const uint4 bits = to_bits(pack);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z),
               "r"(bits.w)
               : "memory");
}

/// Has 32 bytes on their way to the L2 cache, if they begin here.
__device__ __forceinline__ void prefetch_sector(const void* at) {
  constexpr uintptr_t kSector = 32;
  if (reinterpret_cast<uintptr_t>(at) % kSector == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

template <class T, bool kWhole>
class PlaneWalk {
 public:
  using Element = T;
  using A = Accumulator<T>;
  static constexpr int kWidth = kPackSize<T>;
  static constexpr int kWidthBits = kWidth == 8 ? 3 : kWidth == 4 ? 2 : 1;
  static constexpr int kOwned = 1;  // channels of a thread
  static constexpr bool kPlanes = true, kEdges = !kWhole, kSingles = false;
  static constexpr int owner(int) { return 0; }
  using Access = Pack<T>;

  struct Spot {
    int place;  // of the access's first element, which may lie before the plane
    bool valid;
    int sample;
    int64_t plane;  // offset of its first place
  };
  struct Run {
    int count;  // of accesses
    Spot first;
  };

  /// All tensors of x's shape have x's strides, and begin at the same element of a pack.
  __device__ __forceinline__ PlaneWalk(const ChannelSpace& space, const ChannelTile& tile, const ChannelView& x)
      : s(space), x_(x) {
    lane_ = threadIdx.x & (s.lanes - 1);
    const int team = static_cast<int>(threadIdx.x) >> s.lane_bits;
    column_ = team & (s.tile - 1);
    line_ = team >> s.tile_bits;
    begin(tile);
  }
  /// Goes to another tile.
  __device__ __forceinline__ void begin(const ChannelTile& tile) {
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

  /// The accesses in unit_, which it goes beyond; false at the end.
  __device__ __forceinline__ bool next(Run* run) {
    if (unit_ >= end_) return false;
    const int step_bits = s.lane_bits + kWidthBits;
    run->count = (stop_ - place_ + (1 << step_bits) - 1) >> step_bits;  // 0 or less: none
    run->first = {place_, true, sample_, offset_};
    unit_ += s.lines;
    enter();
    return true;
  }
  __device__ __forceinline__ Spot spot(const Run& run, int index) const {
    return {run.first.place + (index << (s.lane_bits + kWidthBits)), true, run.first.sample, run.first.plane};
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
  /// Whether the elements of an access have numbers first_number + j; they need not all be inside.
  __device__ __forceinline__ bool numbers_evenly() const { return s.places_after == s.places; }
  __device__ __forceinline__ int64_t first_number(const Spot& spot) const {
    return s.number_of<true>(spot.sample, channel_, 0) + spot.place;
  }

  __device__ __forceinline__ Access load(const ChannelView& view, const Spot& spot) const {
    const int64_t at = offset(view, spot);
    const T* from = static_cast<const T*>(view.data) + at;
    if (beyond(at)) return load_pack_elements(from, [&](int j) { return inside(spot, j); });
    return load_pack(from);
  }
  /// Starts copying an access to shared memory.
  __device__ __forceinline__ void copy(const ChannelView& view, const Spot& spot, SharedAddress to) const {
    const int64_t at = offset(view, spot);
    if (beyond(at)) {
      store_shared_pack(to, load(view, spot));
    } else {
      copy_async(to, static_cast<const T*>(view.data) + at);
    }
  }
  __device__ __forceinline__ void prefetch(const ChannelView& view, const Spot& spot) const {
    prefetch_sector(static_cast<const T*>(view.data) + offset(view, spot));
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
  /// Whether a pack there ends or begins outside the tensor: that memory belongs to others.
  __device__ __forceinline__ bool beyond(int64_t at) const { return !kWhole && (at < s.low || at + kWidth > s.high); }
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

template <class T, int kElements, bool kStrided = false>
class RowWalk {
 public:
  using Element = T;
  using A = Accumulator<T>;
  static constexpr int kWidth = kElements;
  static constexpr int kOwned = kElements;
  static constexpr bool kPlanes = false, kEdges = false;
  static constexpr bool kSingles = kElements == 1;  // of which many are under way
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
  struct Run {
    int count;  // of accesses
    Spot first;
  };

  __device__ __forceinline__ RowWalk(const ChannelSpace& space, const ChannelTile& tile, const ChannelView& x)
      : s(space), x_(x) {
    line_ = static_cast<int>(s.by_lanes.quotient(threadIdx.x));
    column_ = (static_cast<int>(threadIdx.x) - line_ * s.lanes) * kWidth;
    begin(tile);
  }
  /// Goes to another tile.
  __device__ __forceinline__ void begin(const ChannelTile& tile) {
    batch_ = static_cast<Unit>(tile.batch);
    channel_ = tile.first + column_;
    unit_ = static_cast<Unit>(tile.begin) + line_;
    end_ = column_ < tile.channels && line_ < s.lines ? static_cast<Unit>(tile.end) : 0;
    base_ = batch_ * x_.sample_stride + channel_;
  }

  __device__ __forceinline__ bool works() const { return end_ > 0; }
  __device__ __forceinline__ int column() const { return column_; }
  __device__ __forceinline__ int line() const { return line_; }
  __device__ __forceinline__ int lane() const { return 0; }

  /// All accesses; false at the end.
  __device__ __forceinline__ bool next(Run* run) {
    if (unit_ >= end_) return false;
    run->count = static_cast<int>(s.by_step.quotient(static_cast<unsigned>(end_ - unit_ + s.unit_step - 1)));
    run->first = {unit_, true};
    unit_ = end_;
    return true;
  }
  __device__ __forceinline__ Spot spot(const Run& run, int index) const {
    return {run.first.unit + static_cast<Unit>(index) * s.unit_step, true};
  }
  __device__ __forceinline__ int64_t offset(const ChannelView& view, const Spot& spot) const {
    if constexpr (kWidth > 1) {  // all tensors have x's strides; samples of a batch follow each other as places do
      return base_ + static_cast<int64_t>(spot.unit) * static_cast<int>(x_.place_stride[0]);
    } else {
      const int64_t at = batch_ * view.sample_stride + channel_ * view.channel_stride;
      if constexpr (!kStrided) return at + spot.unit * unit_stride(s.places, view);
      const int64_t sample = sample_of(spot.unit);
      return at + sample * view.sample_stride + s.place_offset(view, spot.unit - sample * s.places);
    }
  }
  __device__ __forceinline__ bool whole(const Spot&) const { return true; }
  __device__ __forceinline__ bool inside(const Spot&, int) const { return true; }
  __device__ __forceinline__ int count(const Spot&) const { return 1; }
  __device__ __forceinline__ int64_t number(const Spot& spot, int j) const {
    const int64_t sample = sample_of(spot.unit);
    return s.number_of<(kWidth > 1)>(batch_ + sample, channel_ + j, spot.unit - sample * s.places);
  }
  __device__ __forceinline__ bool numbers_evenly() const { return s.places_after == 1; }
  __device__ __forceinline__ int64_t first_number(const Spot& spot) const {
    return (batch_ * s.places + spot.unit) * s.channels + channel_;
  }

  __device__ __forceinline__ Access load(const ChannelView& view, const Spot& spot) const {
    const T* from = static_cast<const T*>(view.data) + offset(view, spot);
    if constexpr (kWidth > 1) {
      return load_pack_once(from);
    } else {
      return {*from};
    }
  }
  __device__ __forceinline__ void copy(const ChannelView& view, const Spot& spot, SharedAddress to) const {
    copy_async(to, static_cast<const T*>(view.data) + offset(view, spot));
  }
  __device__ __forceinline__ void prefetch(const ChannelView& view, const Spot& spot) const {
    prefetch_sector(static_cast<const T*>(view.data) + offset(view, spot));
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
  /// Of a batch. Numbers below 2^31 take no 64-bit division, which is as much work as all else on an element.
  __device__ __forceinline__ int64_t sample_of(Unit unit) const {
    if (kWidth > 1 || s.few_units) return s.by_places.quotient(static_cast<unsigned>(unit));
    return unit / s.places;
  }

  const ChannelSpace& s;
  const ChannelView& x_;
  int column_, line_, channel_;
  Unit batch_, unit_, end_;
  int64_t base_;
};

/// load(spots, packs, &in), then use(spots, in), of all accesses of a walk, `kBlock` or one of them at a time. They are
/// in shared memory, at `packs`, which goes along: loads take no time.
template <int kBlock, template <int> class In, class Walk, class Load, class Use>
__device__ __forceinline__ void for_each_kept(Walk& walk, KeptPacks& packs, Load load, Use use) {
  typename Walk::Run run;
  const auto step = [&](int first, auto size) {
    typename Walk::Spot spot[decltype(size)::value];
    In<decltype(size)::value> in;
#pragma unroll
    for (int k = 0; k < decltype(size)::value; ++k) spot[k] = walk.spot(run, first + k);
    load(spot, packs, &in);
    packs.pass(spot);
    use(spot, in);
  };
#pragma unroll 1
  while (walk.next(&run)) {
    int index = 0;
#pragma unroll 1
    for (; index + kBlock <= run.count; index += kBlock) step(index, std::integral_constant<int, kBlock>{});
#pragma unroll 1
    for (; index < run.count; ++index) step(index, std::integral_constant<int, 1>{});
  }
}

/// The same where they are in tensors: those that are left over at the end go together, some of them not valid; of
/// single elements, whose places are most of the code, all go as these. kAhead: what is used next is loaded before.
template <int kBlock, bool kAhead, template <int> class In, class Walk, class Load, class Use>
__device__ __forceinline__ void for_each_block(Walk& walk, const KeptPacks& none, Load load, Use use) {
  typename Walk::Run run;
  const auto look = [&](int first, typename Walk::Spot(&spot)[kBlock]) {
#pragma unroll
    for (int k = 0; k < kBlock; ++k) spot[k] = walk.spot(run, first + k);
  };
  const auto step = [&](int first, auto all) {  // all: whether kBlock accesses are left
    typename Walk::Spot spot[kBlock];
    In<kBlock> in;
    look(first, spot);
#pragma unroll
    for (int k = 0; k < kBlock; ++k) spot[k].valid = decltype(all)::value || first + k < run.count;
    load(spot, none, &in);
    use(spot, in);
  };
#pragma unroll 1
  while (walk.next(&run)) {
    int index = 0;
    if constexpr (Walk::kSingles) {
#pragma unroll 1
      for (; index < run.count; index += kBlock) step(index, std::false_type{});
      continue;
    } else if constexpr (!kAhead) {
#pragma unroll 1
      for (; index + kBlock <= run.count; index += kBlock) step(index, std::true_type{});
    } else if (kBlock <= run.count) {
      typename Walk::Spot here[kBlock];
      In<kBlock> in;
      look(0, here);
      load(here, none, &in);
#pragma unroll 1
      for (bool more = true; more; index += kBlock) {
        typename Walk::Spot next[kBlock];
        In<kBlock> coming;
        more = index + 2 * kBlock <= run.count;
        if (more) {
          look(index + kBlock, next);
          load(next, none, &coming);
        }
        look(index, here);
        use(here, in);
        if (more) in = coming;
      }
    }
    if (index < run.count) step(index, std::false_type{});
  }
}

/// Some accesses of a tensor of x's shape: kept ones, or read from it.
template <bool kKept, class Walk, class Spot, int kBlock>
__device__ __forceinline__ void fetch(const Walk& walk, const ChannelView& view, const Spot (&spot)[kBlock],
                                      const KeptPacks& kept, int tensor, typename Walk::Access (&to)[kBlock]) {
#pragma unroll
  for (int k = 0; k < kBlock; ++k) {
    if constexpr (kKept) {
      to[k] = load_shared_pack<typename Walk::Element>(kept.at(tensor, k));
    } else {
      if (spot[k].valid) to[k] = walk.load(view, spot[k]);
    }
  }
}

template <class Element, int kSize>
__device__ __forceinline__ constexpr int size_of_array(const Element (&)[kSize]) {
  return kSize;
}

}  // namespace normact::cuda
