// SPDX-License-Identifier: Apache-2.0
// Row norm backward of images that are read twice: variant image (row_image.cuh), in two kernels and
// parameter_sum.cuh.
//
// Work     sums: a block leaves the two sums of its slice's part of each row in the workspace, and the parameter
//          gradients of its columns, of all its images together. gradients: it adds up the sums of all slices, for all
//          rows, and writes its slice of dx. Persistent grids: a block has the same slice of one image after the other.
// Bytes    x and dy are read twice, the second time from the L2 cache as far as that has them, dresidual once, dx is
//          written once; a pair of numbers for each slice and row, a row of parameter sums for each range of images.
// Pipeline as soon as a pack has been used, what the next image has in its place is on its way. gradients begins with
//          the last images, which are surest to be in the L2 cache.
// Barriers of the block: sums four an image (rms: three) and one for every kColumnTurns packs of a thread; gradients
//          two.
#pragma once

#include "cuda/row_backward_image.cuh"

namespace normact::cuda {

template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMostTwiceThreads, 2)
    row_image_sums_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                          const __grid_constant__ ImageSplit s, SumPair<Accumulator<T>>* __restrict__ sums,
                          void* partials) {
  using A = Accumulator<T>;
  const ImageShare<T> share(s);
  const bool gradients = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const int step = s.image_step(), part = s.first_image();
  // Of this image and of the next.
  const auto means_of = [&](int parity) { return BandNumbers<A>(s, 2 * parity); };
  const auto rstds_of = [&](int parity) { return BandNumbers<A>(s, 2 * parity + 1); };
  start_after_previous();
  int image = part, parity = 0;
  copy_statistics(p, s, image, means_of(0), rstds_of(0));
  const auto x_of = [&](int of) { return image_in<const T>(p.x, p.geometry, of); };
  const auto dy_of = [&](int of) { return image_in<const T>(p.dy, p.geometry, of); };
  ImageRing<T, 2> packs(share, {x_of(image), dy_of(image)});
  packs.start();
  const A* const weights = keep_weights(p, scalars, s, share);
  const ImageColumns<T> columns(s);
  for (; image < s.images; image += step, parity ^= 1) {
    const int next = image + step;
    packs.next[0] = next < s.images ? x_of(next) : nullptr;
    packs.next[1] = dy_of(next);
    packs.wait();
    __syncthreads();
    if (next < s.images) copy_statistics(p, s, next, means_of(parity ^ 1), rstds_of(parity ^ 1));
    ImageSums<T, kKind> own;
    const int together = kColumnTurns * s.lines;
    for (int band = 0, turn = 0; band < s.slice_bands; band += together, ++turn) {
      const int first = turn * kColumnTurns, at = turn % 2 * together * s.band_sums();
      own.add(share, means_of(parity), rstds_of(parity), weights, packs, first, min(first + kColumnTurns, share.count),
              [&](auto cut, int k, const SumPair<A>(&of)[2]) {
                if (gradients) columns.put(s, share, at, cut, k - first, of);
                packs.used(k);
              });
      if (!gradients) continue;
      __syncthreads();
      columns.add_up(s, share, at, band, together);
    }
    packs.finish();
    if (gradients) __syncthreads();
    own.leave(s, share, rstds_of(parity), s.entries_of(sums, image, share.slice));
  }
  if (gradients) columns.leave(s, share, Partials<A>(p, partials, step, part));
}

template <class T, NormKind kKind>
__global__ void __launch_bounds__(kMostTwiceThreads, 2)
    row_image_gradients_kernel(const __grid_constant__ RowBackward p, const Scalars<Accumulator<T>> scalars,
                               const __grid_constant__ ImageSplit s, const SumPair<Accumulator<T>>* sums) {
  using A = Accumulator<T>;
  const ImageShare<T> share(s);
  const int step = s.image_step(), last = p.geometry.row_ndim - 1;
  const ImageFactors<T, kKind> factors{BandNumbers<A>(s), BandNumbers<A>(s, 1), BandNumbers<A>(s, 2),
                                       BandNumbers<A>(s, 3)};
  int image = s.images - 1 - s.first_image();
  const auto x_of = [&](int of) { return image_in<const T>(p.x, p.geometry, of); };
  const auto dy_of = [&](int of) { return image_in<const T>(p.dy, p.geometry, of); };
  ImageRing<T, 2> packs(share, {x_of(image), dy_of(image)});
  packs.start();  // what the other kernel has not written is there before that ends
  const A* const weights = keep_weights(p, scalars, s, share);
  start_after_previous();
  for (; image >= 0; image -= step) {
    const A* const mean = image_in<const A>(p.mean, p.geometry, image);
    const A* const rstd = image_in<const A>(p.rstd, p.geometry, image);
    const SumPair<A>* const of_image = s.entries_of(sums, image, 0);
    for (int row = threadIdx.x; row < s.places; row += s.threads) {
      SumPair<A> sum{A(0), A(0)};
#pragma unroll 4
      for (int slice = 0; slice < s.slices; ++slice) {
        const SumPair<A> of = of_image[slice * s.places + row];
        sum = {sum.first + of.first, sum.second + of.second};
      }
      factors.put(s, row, p.mean.data != nullptr ? mean[row * p.mean.row_stride[last]] : A(0),
                  rstd[row * p.rstd.row_stride[last]], scalars.reciprocal_cols, sum);
    }
    packs.next[0] = image >= step ? x_of(image - step) : nullptr;
    packs.next[1] = dy_of(image - step);
    __syncthreads();
    factors.write(p, share, weights, image, packs);
    packs.finish();
    __syncthreads();  // nobody reads the factors of this image any more
  }
}

}  // namespace normact::cuda
