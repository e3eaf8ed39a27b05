/* SPDX-License-Identifier: Apache-2.0
 *
 * normact: fused forward and backward normalization and activation kernels, on NVIDIA GPUs and on the CPU.
 * This header is the whole public interface. It is valid C11 and includes nothing but the C standard library.
 *
 * Shape of a call
 *   desc   what to compute: kind, axes, eps ...
 *   args   on which tensors; NULL means absent
 *   exec   where and how: stream, workspace, options; NULL means all defaults
 * Each struct begins with struct_size = sizeof(the struct), so that it can grow without breaking callers: a shorter
 * struct of an older version is completed with zeros; a longer one is accepted if what is past our end is zero.
 *
 * Promises
 *   - No call throws, prints, aborts, allocates device memory or synchronises. Work on a GPU is asynchronous on the
 *     given stream and may be captured into a CUDA graph. Work on the CPU is done when the call returns.
 *   - Any thread may call. The device of the tensors is made current for the call and restored after it.
 *   - Bad arguments give a status and a sentence (normact_last_error) and nothing is written.
 *   - The same inputs on the same device with the same version give the same bits; there are no float atomics. A row's
 *     results do not depend on the number of rows or on its place. CPU results do not depend on the thread count.
 *   - Statistics and arithmetic are fp32 (fp64 for fp64 tensors), with one rounding at each output.
 *
 * Aliasing: an output may be the very same tensor (data, shape, strides) as an input of the same dtype: y = x,
 * residual_out = residual or x, dx = dy or x or dresidual. Any other overlap of an output is an error.
 */
#ifndef NORMACT_NORMACT_H_
#define NORMACT_NORMACT_H_

#include <stddef.h>
#include <stdint.h>

#include "normact/lists.h"

#define NORMACT_VERSION_MAJOR 0
#define NORMACT_VERSION_MINOR 1
#define NORMACT_VERSION_PATCH 0
#define NORMACT_VERSION (NORMACT_VERSION_MAJOR * 10000 + NORMACT_VERSION_MINOR * 100 + NORMACT_VERSION_PATCH)

#if defined(_WIN32)
#if defined(NORMACT_BUILDING)
#define NORMACT_API __declspec(dllexport)
#else
#define NORMACT_API __declspec(dllimport)
#endif
#else
#define NORMACT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types ------------------------------------------------------------------------------------------------------ */

typedef enum normact_status {
#define NORMACT_ENUM_ROW(symbol, value, text) NORMACT_##symbol = value,
  NORMACT_STATUS_LIST(NORMACT_ENUM_ROW)
#undef NORMACT_ENUM_ROW
} normact_status;

typedef enum normact_norm_kind {
#define NORMACT_ENUM_ROW(symbol, value, name) NORMACT_NORM_##symbol = value,
  NORMACT_NORM_LIST(NORMACT_ENUM_ROW)
#undef NORMACT_ENUM_ROW
} normact_norm_kind;

/* Which row kernel runs. NORMACT_ROW_AUTO is right for every use; the others exist for tests and measurements, and a
 * kernel that cannot serve the problem is refused with NORMACT_NOT_SUPPORTED, never silently replaced. */
typedef enum normact_row_variant {
#define NORMACT_ENUM_ROW(symbol, value, name) NORMACT_ROW_##symbol = value,
  NORMACT_ROW_VARIANT_LIST(NORMACT_ENUM_ROW)
#undef NORMACT_ENUM_ROW
} normact_row_variant;

/* The numbers are DLPack's. */
enum {
  NORMACT_DEVICE_CPU = 1,
  NORMACT_DEVICE_CUDA = 2,
  NORMACT_DEVICE_CUDA_HOST = 3,    /* pinned host memory: worked on by the CPU */
  NORMACT_DEVICE_CUDA_MANAGED = 13 /* managed memory: worked on by the GPU */
};
enum { NORMACT_DTYPE_FLOAT = 2, NORMACT_DTYPE_BFLOAT = 4 };

/* A tensor in memory that the caller owns. The layout is exactly that of DLPack's DLTensor (see normact/dlpack.h), so
 * a `const DLTensor*` may be passed where a `const normact_tensor*` is asked for.
 *   data         device or host pointer; may be NULL only if the tensor has no elements
 *   dtype        code FLOAT with 64, 32 or 16 bits, or BFLOAT with 16 bits; lanes = 1
 *   shape        ndim sizes, each >= 0; zero-size tensors are legal
 *   strides      ndim strides in elements, NULL for row-major contiguous; any value is legal for an input
 *   byte_offset  added to data */
typedef struct normact_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} normact_tensor;

/* How to run a call. NULL in its place means: legacy default stream, no workspace, no options. */
typedef struct normact_exec {
  size_t struct_size;
  void* stream;           /* cudaStream_t; NULL is the legacy default stream; ignored on the CPU */
  void* workspace;        /* on the tensors' device, 256-byte aligned; free for reuse once the call's work is done */
  size_t workspace_bytes; /* at least what the ..._workspace query says */
  int32_t row_variant;    /* normact_row_variant */
  int32_t sm_margin;      /* multiprocessors that persistent kernels leave free for other work, >= 0 */
} normact_exec;

/* ---- Row norms: layer norm and RMS norm ------------------------------------------------------------------------- */

/* With s = x, or round(x + residual), and the mean E taken over the normalised axes:
 *   layer  mean = E[s],  rstd = 1 / sqrt(E[(s - mean)^2] + eps)
 *   rms    mean = 0,     rstd = 1 / sqrt(E[s^2] + eps)
 *   y = (s - mean) * rstd * (weight_offset + weight) + bias        (without a weight: y = (s - mean) * rstd + bias)
 * Sources: Ba, Kiros, Hinton 2016 (layer norm); Zhang, Sennrich 2019 (RMS norm); weight_offset = 1 is Gemma's form. */
typedef struct normact_norm_desc {
  size_t struct_size;
  int32_t kind;         /* normact_norm_kind */
  int32_t num_axes;     /* >= 1 */
  const int64_t* axes;  /* num_axes distinct axes of x, any order, negative ones count from the end. This version
                           normalises over trailing axes; others give NORMACT_NOT_SUPPORTED. */
  double eps;           /* >= 0, finite */
  double weight_offset; /* finite; added to the weight in fp32. Needs a weight unless it is 0. */
} normact_norm_desc;

/* Shapes: x, residual, y, residual_out: any shape, all the same. weight, bias: x.shape over the normalised axes, in
 * x's order. mean, rstd: x.shape without the normalised axes.
 * Dtypes: x, residual, y, residual_out one of fp64, fp32, fp16, bf16, all the same; weight, bias that dtype or fp32
 * (fp64 with fp64); mean, rstd fp32 (fp64 with fp64). */
typedef struct normact_norm_forward_args {
  size_t struct_size;
  const normact_tensor* x;
  const normact_tensor* residual;     /* NULL: none. Needs residual_out. */
  const normact_tensor* weight;       /* NULL: 1 */
  const normact_tensor* bias;         /* NULL: 0 */
  const normact_tensor* y;            /* out */
  const normact_tensor* residual_out; /* out: s; needs residual */
  const normact_tensor* mean;         /* out, NULL: not wanted; must be NULL for rms */
  const normact_tensor* rstd;         /* out, NULL: not wanted */
} normact_norm_forward_args;

/* With xhat = (x - mean) * rstd, g = dy * (weight_offset + weight), c1 = E[g] (0 for rms), c2 = E[g * xhat]:
 *   dx = rstd * (g - c1 - xhat * c2) + dresidual
 *   dweight = sum over rows of dy * xhat,    dbias = sum over rows of dy
 * After a forward with a residual, x is residual_out, dresidual the gradient that reached residual_out, and dx the
 * gradient of both x and the residual.
 * Shapes and dtypes as in the forward; dy, dresidual, dx like x; dweight and dbias have the shape of the weight and,
 * each for itself, x's dtype or fp32. With no rows dweight and dbias are set to 0. */
typedef struct normact_norm_backward_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* x;
  const normact_tensor* weight;    /* NULL: 1 */
  const normact_tensor* mean;      /* from the forward; NULL for rms */
  const normact_tensor* rstd;      /* from the forward */
  const normact_tensor* dresidual; /* NULL: none */
  const normact_tensor* dx;        /* out */
  const normact_tensor* dweight;   /* out, NULL: not wanted */
  const normact_tensor* dbias;     /* out, NULL: not wanted */
} normact_norm_backward_args;

/* Normalises every row: y, and where asked for residual_out, mean and rstd.
 * Errors: INVALID_ARGUMENT for a wrong rank, shape, dtype, device, eps, overlap; NOT_SUPPORTED for axes that are not
 * trailing or a build without CUDA; WORKSPACE_TOO_SMALL; CUDA_ERROR. normact_last_error() tells which and why. */
NORMACT_API normact_status normact_norm_forward(const normact_norm_desc* desc, const normact_norm_forward_args* args,
                                                const normact_exec* exec);

/* Bytes of workspace that normact_norm_forward needs for these arguments; data pointers are not looked at. */
NORMACT_API normact_status normact_norm_forward_workspace(const normact_norm_desc* desc,
                                                          const normact_norm_forward_args* args,
                                                          const normact_exec* exec, size_t* bytes);

/* Gradients of normact_norm_forward. Parameter gradients are summed in two stages in a fixed order (deterministic).
 * Errors as for normact_norm_forward. */
NORMACT_API normact_status normact_norm_backward(const normact_norm_desc* desc, const normact_norm_backward_args* args,
                                                 const normact_exec* exec);

/* Bytes of workspace that normact_norm_backward needs for these arguments; data pointers are not looked at. */
NORMACT_API normact_status normact_norm_backward_workspace(const normact_norm_desc* desc,
                                                           const normact_norm_backward_args* args,
                                                           const normact_exec* exec, size_t* bytes);

/* ---- Library ---------------------------------------------------------------------------------------------------- */

/* NORMACT_VERSION of the library that is loaded. */
NORMACT_API int normact_version(void);

/* The status in words; never NULL. */
NORMACT_API const char* normact_status_string(normact_status status);

/* What went wrong in this thread's last failing call: function, argument, found, expected, in one sentence. Empty if
 * no call has failed in this thread. Valid until this thread's next failing call. */
NORMACT_API const char* normact_last_error(void);

/* A fact about the build, by name: "version", "cuda" (toolkit version, "" if built without), "cuda_architectures",
 * "compiler", "cpu_isa" (the instruction set in use: "baseline", "avx2", "avx512", "neon"). NULL for other names.
 * The environment variable NORMACT_CPU_ISA, read at the first call, forces a lower instruction set. */
NORMACT_API const char* normact_build_info(const char* name);

/* Threads that CPU work is spread over (default: the processors this process may run on). Results do not depend on
 * it. count >= 1; INVALID_ARGUMENT otherwise. */
NORMACT_API normact_status normact_set_num_threads(int count);
NORMACT_API int normact_get_num_threads(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NORMACT_NORMACT_H_ */
