// SPDX-License-Identifier: Apache-2.0
// Row norm forward of images that are read twice: variant image (row_image.cuh), in two kernels.
//
// Work     moments: a block leaves the moments of its slice's part of each row in the workspace. results: it merges
//          those of all slices, for all rows, and writes its slice of y. Persistent grids: a block has the same slice
//          of one image after the other.
// Bytes    x is read twice, the second time from the L2 cache as far as that has it; with a residual, which is read
//          once, residual_out is read instead then. Each of y is written once; three numbers for each slice and row.
// Pipeline as soon as a pack has been used, what the next image has in its place is on its way. results begins with the
//          last images, which are surest to be in the L2 cache.
// Barriers of the block: moments layer six, rms two an image, more in the rare one whose moments are summed again;
//          results one.
// Sums     as in row_forward_image.cuh, about numbers near the means of x alone where a residual is yet to be added.
#pragma once

#include "cuda/row_forward_image.cuh"

namespace normact::cuda {

/// Adds the residual to pack k of x, and writes the sum.
template <class T>
__device__ __forceinline__ void add_residual(const RowForward& p, const ImageShare<T>& share, int image, int k,
                                             Pack<T>& pack) {
  constexpr int kSize = kPackSize<T>;
  Accumulator<T> value[kSize], addend[kSize];
  unpack(pack, value);
  unpack(load_pack(share.in(image_in<const T>(p.residual, p.geometry, image), k)), addend);
#pragma unroll
  for (int j = 0; j < kSize; ++j) value[j] += addend[j];
  pack = to_pack<T>(value);
  store_pack(share.in(image_in<T>(p.residual_out, p.geometry, image), k), pack);
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMostTwiceThreads, 2)
    row_image_moments_kernel(const __grid_constant__ RowForward p, const __grid_constant__ ImageSplit s,
                             SliceMoments<Accumulator<T>>* __restrict__ moments) {
  const ImageShare<T> share(s);
  const int step = s.image_step();
  const bool added = p.residual.data != nullptr;
  start_after_previous();
  constexpr int kTogether = ImageRing<T, 1>::kRing / 2;
  ImageRing<T, 1> packs(share, {image_in<const T>(p.x, p.geometry, s.first_image())});
  packs.start();
  for (int image = s.first_image(); image < s.images; image += step) {
    packs.next[0] = image + step < s.images ? image_in<const T>(p.x, p.geometry, image + step) : nullptr;
    const T* const x = image_in<const T>(added ? p.residual_out : p.x, p.geometry, image);
    packs.template wait<kTogether>();
    __syncthreads();
    find_moments<T, kKind>(
        s, share, min(kTogether * s.lines, share.bands_of(share.slice)), s.entries_of(moments, image, share.slice),
        [&](int k) {
          Pack<T> pack[1];
          packs.fetch(k, pack);
          packs.used(k);
          if (added) add_residual(p, share, image, k, pack[0]);
          return pack[0];
        },
        [&](int k) { return load_pack(share.in(x, k)); });
    packs.finish();
  }
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMostTwiceThreads, 2)
    row_image_results_kernel(const __grid_constant__ RowForward p, const Scalars<Accumulator<T>> scalars,
                             const __grid_constant__ ImageSplit s, const SliceMoments<Accumulator<T>>* moments) {
  using A = Accumulator<T>;
  const ImageShare<T> share(s);
  const int step = s.image_step();
  const bool added = p.residual.data != nullptr;
  const auto x_of = [&](int image) { return image_in<const T>(added ? p.residual_out : p.x, p.geometry, image); };
  int image = s.images - 1 - s.first_image();
  ImageRing<T, 1> packs(share, {x_of(image)});
  // What the other kernel has not written is there before that ends.
  if (!added) packs.start();
  const SumPair<A>* const parameters = keep_parameters(p, scalars, s, share);
  start_after_previous();
  if (added) packs.start();
  for (int parity = 0; image >= 0; image -= step, parity ^= 1) {
    const BandNumbers<A> means(s, 2 * parity), rstds(s, 2 * parity + 1);  // the others may still be read
    packs.next[0] = image >= step ? x_of(image - step) : nullptr;
    const SliceMoments<A>* const parts = s.entries_of(moments, image, 0);
    settle_moments<T, kKind>(p, scalars, s, share, image, means, rstds,
                             [&](int row, int slice) { return parts[slice * s.places + row]; });
    __syncthreads();
    write_image<T, kKind>(share, means, rstds, parameters, image_in<T>(p.y, p.geometry, image), packs);
    packs.finish();
  }
}

}  // namespace normact::cuda
