// SPDX-License-Identifier: Apache-2.0
// The backward of rows that lie side by side: what a thread needs of the rows of its packs.
#pragma once

#include "cuda/numeric.cuh"
#include "math/normalize.h"

namespace normact::cuda {

/// What input_gradient() needs of a thread's rows. c2 is that of x - mean instead of xhat. In 16 bits, where x - mean
/// is not needed for anything else, it is that of x, and c1 takes in -mean * c2: an operation less for each element.
/// That loses 2^-24 of mean * c2, and where a mean is more than some thousand deviations, x of 16 bits hardly has any,
/// and c2 is next to 0.
template <class T, bool kCentred = sizeof(T) != 2>
struct RowFactors {
  using A = Accumulator<T>;
  static constexpr int kSize = kPackSize<T>;
  static constexpr bool kOfCentred = kCentred;
  A rstd[kSize], c1[kSize], c2[kSize];

  template <class Statistics, int kSums>
  __device__ __forceinline__ void find(const Statistics& rows, A reciprocal_cols, const A (&sum)[kSums][kSize]) {
    rows.get_rstd(rstd);
    A shift[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) shift[j] = A(0);
    if constexpr (!kOfCentred && kSums > 1) rows.centre(shift);  // -mean
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      of_row<(kSums > 1)>(-shift[j], rstd[j], reciprocal_cols, sum[0][j], sum[kSums - 1][j], &c1[j], &c2[j]);
    }
  }
  /// Of a row, from the sums of g * xhat and of g; not kLayer: of an rms norm, which has neither a mean nor the latter.
  template <bool kLayer>
  static __device__ __forceinline__ void of_row(A mean, A rstd, A reciprocal_cols, A product, A gradient, A* c1,
                                                A* c2) {
    *c2 = product * reciprocal_cols * rstd * rstd;
    *c1 = kLayer ? gradient * reciprocal_cols * rstd : A(0);
    if constexpr (!kOfCentred && kLayer) *c1 -= mean * *c2;
  }
};

}  // namespace normact::cuda
