// SPDX-License-Identifier: Apache-2.0
// Marks a function that the host and the device compiler both build.
#pragma once

#if defined(__CUDACC__)
#define NORMACT_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
// The CPU kernels are built once per instruction set; inlining keeps each copy inside its own build.
#define NORMACT_HD inline __attribute__((always_inline))
#else
#define NORMACT_HD inline
#endif
