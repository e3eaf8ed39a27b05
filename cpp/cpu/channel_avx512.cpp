// SPDX-License-Identifier: Apache-2.0
// The channel kernels for one instruction set; sources.cmake has its compiler flags.
#define NORMACT_ISA avx512
#include "cpu/channel_kernels_impl.h"
