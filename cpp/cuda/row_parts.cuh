// SPDX-License-Identifier: Apache-2.0
// Moments of a row of several warps behind one barrier: each warp takes deviations, and their squares, about a centre
// of its own that is near its mean, and leaves their sums as its part of the row. Two passes over the row would take
// two.
#pragma once

#include "cuda/reduce.cuh"
#include "math/moments.h"

namespace normact::cuda {

/// What a warp knows of its part of a row: sums of the deviations from `centre`, which is near its mean, and of the
/// squares of these. The deviations are few units of the centre's last place, and without them merging would cost as
/// many digits as the mean has before the deviations' own.
template <class A>
struct alignas(4 * sizeof(A)) RowPart {
  A centre, deviations, squares, unused;
};

/// Mean of a row, told from the centre of its first warp, and the sum of the squares about it.
template <class A>
struct MergedParts {
  A from, mean, squares;
};

/// Merges the parts of a row's warps, of which lane w takes that of warp w: of `count` values, 0 where there is no such
/// warp, share = 1 / count or 0. The whole warp takes part.
template <class A>
__device__ __forceinline__ MergedParts<A> merge_parts(const RowPart<A>* parts, int warps, A count, A share,
                                                      A reciprocal_cols) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const RowPart<A> part = lane < warps ? parts[lane] : RowPart<A>{};
  const A from = parts[0].centre;
  // About the first warp's centre: their distance is exact.
  const Moments<A> own = moments_about(part.centre - from, part.deviations, part.squares, count, share);
  const A mean = warp_sum(own.mean * count) * reciprocal_cols;
  return {from, mean, warp_sum(recentred(own, mean))};
}

}  // namespace normact::cuda
