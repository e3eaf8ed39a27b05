// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set; included by channel_<name>.cpp, which defines NORMACT_ISA.
#pragma once

#include "cpu/channel_fold.h"
#include "cpu/channel_planes.h"

namespace normact::cpu {
namespace NORMACT_ISA {

template <class T>
constexpr ChannelKernels channel_kernels_for() {
  return {plane_moments<T>,   plane_forward<T>,   write_mask<T>,   plane_sums<T>,      plane_backward<T>,
          any_row_moments<T>, any_row_forward<T>, any_row_sums<T>, any_row_backward<T>};
}

}  // namespace NORMACT_ISA

#if defined(__AVX512F__)
#define NORMACT_CHANNEL_TABLE kAvx512Channel
#elif defined(__AVX2__)
#define NORMACT_CHANNEL_TABLE kAvx2Channel
#elif defined(__aarch64__)
#define NORMACT_CHANNEL_TABLE kNeonChannel
#else
#define NORMACT_CHANNEL_TABLE kBaselineChannel
#endif

const ChannelKernels NORMACT_CHANNEL_TABLE[4] = {
    NORMACT_ISA::channel_kernels_for<double>(), NORMACT_ISA::channel_kernels_for<float>(),
    NORMACT_ISA::channel_kernels_for<Half>(), NORMACT_ISA::channel_kernels_for<BFloat>()};

}  // namespace normact::cpu
