// SPDX-License-Identifier: Apache-2.0
// Packs of 16-bit elements beside packs of fp32, for mixed problems: as many elements, in 8 bytes. A kernel of such a
// problem is that of fp32 (T), whose tensors of 16 bits (X) move in these; where X is T, all here is about packs of T.
// Halves of packs of 16 bits (row_tile.cuh) move in them, too.
#pragma once

#include "cuda/numeric.cuh"

namespace normact::cuda {

/// As many elements of a 16-bit type as a pack of fp32 has.
template <class X>
using NarrowPack = Pack<X, kPackBytes / 2>;

/// As many elements of X as a pack of T has.
template <class X, class T>
using PackBeside = std::conditional_t<std::is_same_v<X, T>, Pack<X>, NarrowPack<X>>;

/// Bytes of such a pack.
template <class X, class T>
constexpr int kBytesBeside = static_cast<int>(sizeof(PackBeside<X, T>));

/// Rounded to X.
template <class X, class T, class A>
__device__ __forceinline__ PackBeside<X, T> to_pack_beside(const A (&value)[kPackSize<T>]) {
  if constexpr (std::is_same_v<X, T>) {
    return to_pack<T>(value);
  } else {
    return {convert_pair<X>(value[0], value[1]), convert_pair<X>(value[2], value[3])};
  }
}

template <class X>
__device__ __forceinline__ NarrowPack<X> load_narrow_pack(const X* from) {
  NarrowPack<X> pack;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(pack.word[0]), "=r"(pack.word[1]) : "l"(from));
  return pack;
}

template <class X>
__device__ __forceinline__ void store_pack(X* to, const NarrowPack<X>& pack) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(pack.word[0]), "r"(pack.word[1]) : "memory");
}

template <class X>
__device__ __forceinline__ NarrowPack<X> load_shared_narrow_pack(unsigned from) {
  NarrowPack<X> pack;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(pack.word[0]), "=r"(pack.word[1]) : "r"(from) : "memory");
  return pack;
}

/// Through the read-only path.
template <class X>
__device__ __forceinline__ NarrowPack<X> load_constant_narrow_pack(const X* from) {
  const uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
  return {bits.x, bits.y};
}

}  // namespace normact::cuda
