// SPDX-License-Identifier: Apache-2.0
// Moves a tensor of any strides into an array without gaps, or back.
#include "cuda/layout_copy.h"

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/row_index.cuh"

namespace normact::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSide = 64;  // of a tile, in elements

/// Where the units of the array lie in the tensor. Counts in 32 bits.
struct CopySpace {
  void* tensor;
  void* array;
  unsigned size;
  int ndim;
  Divisor by_size[kCopyDims];
  int stride[kCopyDims];  // of the tensor

  /// visit(d, the unit's index in dimension d) for each dimension.
  template <class Visit>
  __device__ __forceinline__ void for_each_index(unsigned unit, Visit visit) const {
#pragma unroll
    for (int d = 0; d < kCopyDims; ++d) {
      if (d >= ndim) break;
      if (d + 1 == ndim) return visit(d, static_cast<int64_t>(static_cast<int>(unit)));
      const unsigned next = by_size[d].quotient(unit);
      visit(d, static_cast<int64_t>(static_cast<int>(unit - next * by_size[d].size)));
      unit = next;
    }
  }
  __device__ __forceinline__ int64_t in_tensor(unsigned unit) const {
    int64_t offset = 0;
    for_each_index(unit, [&](int d, int64_t index) { offset += index * stride[d]; });
    return offset;
  }
};

/// Work     a thread moves kCount units, a block's width apart in the array, all loads first.
/// Bytes    each unit is read and written once; neighbours in the array on neighbouring threads.
/// Barriers none.
template <class Unit, bool kGathers>
__global__ void __launch_bounds__(kThreads) layout_copy_kernel(const __grid_constant__ CopySpace space) {
  constexpr int kCount = sizeof(Unit) == 16 ? 4 : 8;
  const unsigned first = blockIdx.x * (kThreads * kCount) + threadIdx.x;
  auto* tensor = static_cast<Unit*>(space.tensor);
  auto* array = static_cast<Unit*>(space.array);
  Unit value[kCount];
  int64_t place[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const unsigned unit = first + i * kThreads;
    if (unit >= space.size) continue;
    place[i] = space.in_tensor(unit);
    value[i] = kGathers ? tensor[place[i]] : array[unit];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const unsigned unit = first + i * kThreads;
    if (unit >= space.size) continue;
    (kGathers ? array[unit] : tensor[place[i]]) = value[i];
  }
}

/// Two dimensions of which one has neighbours in the array, the other in the tensor, and the rest.
struct TurnSpace {
  CopySpace rest;  // its units: the places of the two dimensions' planes
  int64_t rest_in_array[kCopyDims];
  int along, across;                // sizes: of the array's neighbours, of the tensor's
  int along_stride, across_stride;  // the first in the tensor, the second in the tensor, too
  int64_t across_in_array;
  Divisor along_tiles, across_tiles;
};

/// Owner    a block has a tile of kSide x kSide elements.
/// Bytes    each element is read and written once, neighbours in either on neighbouring threads; in between the tile is
///          in shared memory, whose rows are an odd number of words.
/// Barriers one.
template <class T, bool kGathers>
__global__ void __launch_bounds__(kThreads) layout_turn_kernel(const __grid_constant__ TurnSpace space) {
  constexpr int kLines = kThreads / kSide;
  __shared__ T tile[kSide][kSide + (sizeof(T) == 2 ? 2 : 1)];  // [along][across]
  const unsigned row = space.along_tiles.quotient(blockIdx.x);
  const unsigned plane = space.across_tiles.quotient(row);
  const int along_first = static_cast<int>(blockIdx.x - row * space.along_tiles.size) * kSide;
  const int across_first = static_cast<int>(row - plane * space.across_tiles.size) * kSide;
  int64_t in_tensor = 0, in_array = 0;
  space.rest.for_each_index(plane, [&](int d, int64_t index) {
    in_tensor += index * space.rest.stride[d];
    in_array += index * space.rest_in_array[d];
  });
  auto* tensor = static_cast<T*>(space.rest.tensor) + in_tensor;
  auto* array = static_cast<T*>(space.rest.array) + in_array;
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  // The side that is read, and the side that is written: neighbours are along one and lines along the other.
  const auto for_tensor = [&](auto use) {
#pragma unroll
    for (int i = 0; i < kSide; i += kLines) {
      const int along = along_first + y + i, across = across_first + x;
      if (along >= space.along || across >= space.across) continue;
      use(tensor[int64_t{along} * space.along_stride + int64_t{across} * space.across_stride], tile[y + i][x]);
    }
  };
  const auto for_array = [&](auto use) {
#pragma unroll
    for (int i = 0; i < kSide; i += kLines) {
      const int along = along_first + x, across = across_first + y + i;
      if (along >= space.along || across >= space.across) continue;
      use(array[along + across * space.across_in_array], tile[x][y + i]);
    }
  };
  const auto load = [](T& memory, T& shared) { shared = memory; };
  const auto store = [](T& memory, T& shared) { memory = shared; };
  if constexpr (kGathers) {
    for_tensor(load);
    __syncthreads();
    for_array(store);
  } else {
    for_array(load);
    __syncthreads();
    for_tensor(store);
  }
}

constexpr const char* kName = "layout copy kernel launch";

/// Of `slow` indices of the last dimension from `from` on.
CopySpace space_of(const LayoutCopy& copy, int64_t from, int64_t slow) {
  const int last = copy.ndim - 1;
  CopySpace space{};
  space.ndim = copy.ndim;
  for (int d = 0; d < copy.ndim; ++d) {
    space.by_size[d] = Divisor(static_cast<unsigned>(copy.shape[d]));
    space.stride[d] = static_cast<int>(copy.stride[d]);
  }
  int64_t apart = 1;  // in the array, of the last dimension's indices
  for (int d = 0; d < last; ++d) apart *= copy.shape[d];
  space.size = static_cast<unsigned>(slow * apart);
  space.tensor = static_cast<char*>(copy.tensor) + from * copy.stride[last] * copy.unit_bytes;
  space.array = static_cast<char*>(copy.array) + from * apart * copy.unit_bytes;
  return space;
}

template <class Unit>
Status launch_units(const LayoutCopy& copy, const Launch& launch) {
  constexpr int64_t kMost = 2147483647, kUnits = kThreads * (sizeof(Unit) == 16 ? 4 : 8);
  const int64_t slow = copy.shape[copy.ndim - 1];
  int64_t apart = 1;
  for (int d = 0; d + 1 < copy.ndim; ++d) apart *= copy.shape[d];
  const int64_t most = std::max<int64_t>(1, kMost / apart);
  for (int64_t from = 0; from < slow; from += most) {
    const CopySpace space = space_of(copy, from, std::min(most, slow - from));
    const LaunchShape shape{dim3(static_cast<unsigned>((space.size + kUnits - 1) / kUnits)), dim3(kThreads)};
    NORMACT_TRY((copy.gathers ? launch_kernel<layout_copy_kernel<Unit, true>>(kName, shape, launch, space)
                              : launch_kernel<layout_copy_kernel<Unit, false>>(kName, shape, launch, space)));
  }
  return {};
}

template <class T>
Status launch_turn(const LayoutCopy& copy, const Launch& launch) {
  TurnSpace space{};
  space.rest.tensor = copy.tensor;
  space.rest.array = copy.array;
  int64_t in_array = 1, planes = 1;
  for (int d = 0; d < copy.ndim; ++d) {
    if (d == copy.across) {
      space.across_in_array = in_array;
    } else if (d > 0) {
      const int to = space.rest.ndim++;
      space.rest.by_size[to] = Divisor(static_cast<unsigned>(copy.shape[d]));
      space.rest.stride[to] = static_cast<int>(copy.stride[d]);
      space.rest_in_array[to] = in_array;
      planes *= copy.shape[d];
    }
    in_array *= copy.shape[d];
  }
  const auto tiles = [](int64_t size) { return (size + kSide - 1) / kSide; };
  space.along = static_cast<int>(copy.shape[0]);
  space.across = static_cast<int>(copy.shape[copy.across]);
  space.along_stride = static_cast<int>(copy.stride[0]);
  space.across_stride = static_cast<int>(copy.stride[copy.across]);
  space.along_tiles = Divisor(static_cast<unsigned>(tiles(space.along)));
  space.across_tiles = Divisor(static_cast<unsigned>(tiles(space.across)));
  const int64_t blocks = tiles(space.along) * tiles(space.across) * planes;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
  return copy.gathers ? launch_kernel<layout_turn_kernel<T, true>>(kName, shape, launch, space)
                      : launch_kernel<layout_turn_kernel<T, false>>(kName, shape, launch, space);
}

}  // namespace

Status launch_layout_copy(const LayoutCopy& given, const Launch& launch) {
  LayoutCopy copy = given;
  if (copy.across != 0) {
    return copy.unit_bytes == 2 ? launch_turn<uint16_t>(copy, launch) : launch_turn<uint32_t>(copy, launch);
  }
  widen_units(&copy);
  switch (copy.unit_bytes) {
    case 2: return launch_units<uint16_t>(copy, launch);
    case 4: return launch_units<uint32_t>(copy, launch);
    case 8: return launch_units<uint2>(copy, launch);
    default: return launch_units<uint4>(copy, launch);
  }
}

}  // namespace normact::cuda
