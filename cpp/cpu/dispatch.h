// SPDX-License-Identifier: Apache-2.0
// Which instruction set runs: the best that the processor has, or what NORMACT_CPU_ISA asks for.
#pragma once

#include "core/dtype.h"
#include "core/status.h"
#include "cpu/row_kernels.h"

namespace normact::cpu {

/// The kernels for a problem or a dtype. An error if NORMACT_CPU_ISA names no instruction set that this build and
/// processor have.
Status find_row_kernels(const RowProblem& problem, const RowKernels** kernels);
Status find_row_kernels(DType dtype, const RowKernels** kernels);
Status find_pointwise_kernels(DType dtype, const PointwiseKernels** kernels);
Status find_channel_kernels(DType dtype, const ChannelKernels** kernels);

/// An activation inside another kernel for results of this dtype: *found is storage, filled, or null for identity.
Status find_array_activation(DType dtype, const Activation& activation, ArrayActivation* storage,
                             const ArrayActivation** found);

}  // namespace normact::cpu
