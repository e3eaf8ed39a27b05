/* SPDX-License-Identifier: Apache-2.0
 *
 * For callers that have DLPack's own header: the proof that normact_tensor and DLTensor are the same struct, and the
 * cast between them. Needs <dlpack/dlpack.h> on the include path; normact itself does not.
 */
#ifndef NORMACT_DLPACK_H_
#define NORMACT_DLPACK_H_

#include <assert.h>
#include <dlpack/dlpack.h>
#include <stddef.h>

#include "normact/normact.h"

#ifdef __cplusplus
#define NORMACT_STATIC_ASSERT static_assert
#else
#define NORMACT_STATIC_ASSERT _Static_assert
#endif

NORMACT_STATIC_ASSERT(sizeof(normact_tensor) == sizeof(DLTensor), "normact_tensor must have DLTensor's size");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, data) == offsetof(DLTensor, data), "data");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, device_type) == offsetof(DLTensor, device), "device");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, ndim) == offsetof(DLTensor, ndim), "ndim");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, dtype_code) == offsetof(DLTensor, dtype), "dtype");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, shape) == offsetof(DLTensor, shape), "shape");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, strides) == offsetof(DLTensor, strides), "strides");
NORMACT_STATIC_ASSERT(offsetof(normact_tensor, byte_offset) == offsetof(DLTensor, byte_offset), "byte_offset");
#undef NORMACT_STATIC_ASSERT

/* The same tensor, seen as normact's struct. */
static inline const normact_tensor* normact_from_dlpack(const DLTensor* tensor) {
  return (const normact_tensor*)(const void*)tensor;
}

#endif /* NORMACT_DLPACK_H_ */
