// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set; included by kernels_<name>.cpp, which defines NORMACT_ISA.
#pragma once

#include "cpu/backward_kernels.h"
#include "cpu/channel_kernels.h"
#include "cpu/forward_kernels.h"
#include "cpu/parameter_kernels.h"
#include "cpu/tile_backward.h"
#include "cpu/tile_forward.h"

#define NORMACT_STRING_OF(name) #name
#define NORMACT_NAME_OF(name) NORMACT_STRING_OF(name)

namespace normact::cpu {
namespace NORMACT_ISA {

template <class T, class X = T>
constexpr RowKernels kernels_for() {
  using N = Accumulator<T>;
  return {forward_rows<T, X>,   forward_moments<T, X>, forward_merge<T, X>,  forward_apply<T, X>,
          backward_rows<T, X>,  backward_sums<T, X>,   backward_apply<T, X>, forward_tiles<T, X>,
          backward_tiles<T, X>, load_parameter<N>,     reduce_parameter<N>,  add<N>};
}

constexpr Isa isa(const PointwiseKernels* pointwise, const ChannelKernels* channel) {
  return {NORMACT_NAME_OF(NORMACT_ISA),
          {kernels_for<double>(), kernels_for<float>(), kernels_for<Half>(), kernels_for<BFloat>()},
          {kernels_for<float, Half>(), kernels_for<float, BFloat>()},
          pointwise,
          channel};
}

}  // namespace NORMACT_ISA

#if defined(__AVX512F__)
const Isa kAvx512Isa = NORMACT_ISA::isa(kAvx512Pointwise, kAvx512Channel);
#elif defined(__AVX2__)
const Isa kAvx2Isa = NORMACT_ISA::isa(kAvx2Pointwise, kAvx2Channel);
#elif defined(__aarch64__)
const Isa kNeonIsa = NORMACT_ISA::isa(kNeonPointwise, kNeonChannel);
#else
const Isa kBaselineIsa = NORMACT_ISA::isa(kBaselinePointwise, kBaselineChannel);
#endif

}  // namespace normact::cpu
