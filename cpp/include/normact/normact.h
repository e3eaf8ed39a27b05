/* SPDX-License-Identifier: Apache-2.0
 *
 * normact: fused forward and backward normalization and activation kernels, on NVIDIA GPUs and on the CPU.
 * This header, with those that it includes, is the whole public interface: valid C11 that needs nothing but the C
 * standard library.
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
 *     results do not depend on the number of rows or on its place, as long as the tensors keep their alignment to 16
 *     bytes (where columns lie apart, or rows are in several dimensions of memory, a slice that leaves one place of
 *     such a dimension may differ in its last bits). CPU results do not depend on the thread count.
 *   - Statistics and arithmetic are fp32 (fp64 for fp64 tensors), with one rounding at each output.
 *
 * Aliasing: an output may be the very same tensor (data, shape, strides) as an input of the same dtype: y = x,
 * residual_out = residual or x, dx = dy or x or dresidual, daddend = x or dresidual; further ones stand beside the
 * argument. Any other overlap of an output is an error.
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

typedef enum normact_activation_kind {
#define NORMACT_ENUM_ROW(symbol, value, name, formula) NORMACT_ACTIVATION_##symbol = value,
  NORMACT_ACTIVATION_LIST(NORMACT_ENUM_ROW)
#undef NORMACT_ENUM_ROW
} normact_activation_kind;

typedef enum normact_gate_layout {
#define NORMACT_ENUM_ROW(symbol, value, name) NORMACT_GATE_##symbol = value,
  NORMACT_GATE_LAYOUT_LIST(NORMACT_ENUM_ROW)
#undef NORMACT_ENUM_ROW
} normact_gate_layout;

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
enum { NORMACT_DTYPE_INT = 0, NORMACT_DTYPE_UINT = 1, NORMACT_DTYPE_FLOAT = 2, NORMACT_DTYPE_BFLOAT = 4 };

/* A tensor in memory that the caller owns. The layout is exactly that of DLPack's DLTensor (see normact/dlpack.h), so
 * a `const DLTensor*` may be passed where a `const normact_tensor*` is asked for.
 *   data         device or host pointer; may be NULL only if the tensor has no elements
 *   dtype        code FLOAT with 64, 32 or 16 bits, or BFLOAT with 16 bits; for masks UINT with 8 bits, for
 *                num_batches_tracked INT with 64 bits; lanes = 1
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

/* With s = x, or round(x + residual), rounded to the dtype of the residual, and the mean E taken over the normalised
 * axes:
 *   layer  mean = E[s],  rstd = 1 / sqrt(E[(s - mean)^2] + eps)
 *   rms    mean = 0,     rstd = 1 / sqrt(E[s^2] + eps)
 *   h = (s - mean) * rstd * (weight_offset + weight) + bias        (without a weight: h = (s - mean) * rstd + bias)
 *   y = act(h), which is h without an activation; h is not rounded
 * Sources: Ba, Kiros, Hinton 2016 (layer norm); Zhang, Sennrich 2019 (RMS norm); weight_offset = 1 is Gemma's form. */
typedef struct normact_norm_desc {
  size_t struct_size;
  int32_t kind;         /* normact_norm_kind */
  int32_t num_axes;     /* >= 1 */
  const int64_t* axes;  /* num_axes distinct axes of x: any of them, in any order; negative ones count from the end */
  double eps;           /* >= 0, finite */
  double weight_offset; /* finite; added to the weight in fp32. Needs a weight unless it is 0. */
  int32_t activation;   /* normact_activation_kind; 0 (identity): none */
  int32_t reserved;     /* 0 */
  double alpha;         /* as in normact_activation_desc, as are the next two */
  double beta;
  double threshold;
} normact_norm_desc;

/* Shapes: x, residual, y, residual_out: any shape, all the same. weight, bias: x.shape over the normalised axes, in
 * x's order. mean, rstd: x.shape without the normalised axes.
 * Dtypes: x, y one of fp64, fp32, fp16, bf16, the same; residual, residual_out that dtype or fp32 (fp64 with fp64), the
 * same: a residual stream in fp32 beside x in 16 bits is added and normalised without a rounding. weight, bias x's
 * dtype or fp32 (fp64 with fp64); mean, rstd fp32 (fp64 with fp64). */
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

/* With xhat = (x - mean) * rstd, dh = dy * act'(h) (dy without an activation), g = dh * (weight_offset + weight),
 * c1 = E[g] (0 for rms), c2 = E[g * xhat]:
 *   dx = rstd * (g - c1 - xhat * c2) + dresidual,    daddend = the same, rounded to its own dtype
 *   dweight = sum over rows of dh * xhat,    dbias = sum over rows of dh
 * After a forward with a residual, x is residual_out, dresidual the gradient that reached residual_out, and dx the
 * gradient of both x and the residual.
 * Shapes and dtypes as in the forward; dy, dresidual, dx like x; dweight and dbias have the shape of the weight and,
 * each for itself, x's dtype or fp32. With no rows dweight and dbias are set to 0.
 * After a forward with x in 16 bits and the residual in fp32, x, which is the sum, and dresidual are fp32; dy and dx
 * have the forward's dtype of x, as weight, bias, dweight and dbias may; daddend, in fp32, is the residual's gradient.
 */
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
  const normact_tensor* bias;      /* the forward's, NULL: 0; values are read only for an activation's h */
  const normact_tensor* daddend;   /* out, NULL: not wanted; fp32, only where dy has 16 bits and x is fp32 */
} normact_norm_backward_args;

/* Normalises every row: y, and where asked for residual_out, mean and rstd. Needs a workspace on a GPU alone, for rows
 * of 131072 columns and more, and over axis 1 of large images; normact_norm_forward_workspace tells how much. Errors:
 * INVALID_ARGUMENT for a wrong rank, shape, dtype, device, eps, overlap; NOT_SUPPORTED for a build without CUDA, or for
 * more rows than a GPU's grid has blocks for (some 2^31, of rows that are not contiguous); WORKSPACE_TOO_SMALL;
 * CUDA_ERROR. normact_last_error() tells which and why. */
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

/* ---- Activations ------------------------------------------------------------------------------------------------- */

/* relu max(x, 0); relu6 min(max(x, 0), 6); squared_relu max(x, 0)^2; leaky_relu x > 0 ? x : alpha x;
 * elu x > 0 ? x : alpha (exp(x) - 1); gelu x Phi(x), Phi the normal distribution; gelu_tanh its approximation
 * x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); quick_gelu x sigmoid(1.702 x); silu x sigmoid(x);
 * softplus beta x > threshold ? x : log(1 + exp(beta x)) / beta; mish x tanh(log(1 + exp(x)));
 * hardsigmoid min(max(x + 3, 0), 6) / 6; hardswish x hardsigmoid(x).
 * The largest error of each is stated beside its formula, in the sources (cpp/math/activation_*.h). NaN gives NaN. */
typedef struct normact_activation_desc {
  size_t struct_size;
  int32_t kind;     /* normact_activation_kind */
  int32_t axis;     /* of x, that bias and dbias run along; negative ones count from the end; unused without them */
  double alpha;     /* leaky_relu, elu: finite; others ignore it */
  double beta;      /* softplus: finite, > 0; others ignore it */
  double threshold; /* softplus: not NaN; others ignore it */
} normact_activation_desc;

/* Shapes: x, y: any, the same. bias: (x.shape[axis],). mask: (ceil(number of x's elements / 8),).
 * Dtypes: x, y one of fp64, fp32, fp16, bf16, the same; bias that dtype or fp32 (fp64 with fp64); mask uint8. */
typedef struct normact_activation_forward_args {
  size_t struct_size;
  const normact_tensor* x;
  const normact_tensor* bias; /* NULL: 0 */
  const normact_tensor* y;    /* out: act(x + bias) */
  const normact_tensor*
      mask; /* out, relu only, NULL: not wanted: bit i % 8 of byte i / 8 tells x + bias > 0 for element
               i, counted in row-major order of x's indices; bits past the end are 0. Contiguous. */
} normact_activation_forward_args;

/* dx = dy * act'(x + bias), dbias = sum of dx over all other axes.
 * The slope comes from exactly one of x, y and mask: the forward's input; its output (relu, relu6, leaky_relu and elu
 * with alpha >= 0, sigmoid, tanh, identity), or its mask (relu). With y or mask the values of bias are not looked at.
 * Shapes and dtypes as in the forward; dy, dx like x; dbias has x's dtype or fp32. An empty x gives dbias 0. */
typedef struct normact_activation_backward_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* x;
  const normact_tensor* bias; /* NULL: 0 */
  const normact_tensor* y;
  const normact_tensor* mask;
  const normact_tensor* dx;    /* out; may be dy, x or y */
  const normact_tensor* dbias; /* out, NULL: not wanted */
} normact_activation_backward_args;

/* y = act(x + bias), and the mask where asked for. Errors as for normact_norm_forward. Needs no workspace. */
NORMACT_API normact_status normact_activation_forward(const normact_activation_desc* desc,
                                                      const normact_activation_forward_args* args,
                                                      const normact_exec* exec);
NORMACT_API normact_status normact_activation_forward_workspace(const normact_activation_desc* desc,
                                                                const normact_activation_forward_args* args,
                                                                const normact_exec* exec, size_t* bytes);

/* Gradients of normact_activation_forward. dbias is summed in two stages in a fixed order (deterministic). */
NORMACT_API normact_status normact_activation_backward(const normact_activation_desc* desc,
                                                       const normact_activation_backward_args* args,
                                                       const normact_exec* exec);
NORMACT_API normact_status normact_activation_backward_workspace(const normact_activation_desc* desc,
                                                                 const normact_activation_backward_args* args,
                                                                 const normact_exec* exec, size_t* bytes);

/* ---- Gated activations ------------------------------------------------------------------------------------------- */

/* y = act(g) * (u + up_offset) with g = min(gate + gate_bias, limit), u = min(max(up + up_bias, -limit), limit).
 * glu: kind sigmoid, swiglu: silu, geglu: gelu or gelu_tanh, reglu: relu. GPT-OSS: kind quick_gelu, limit 7,
 * up_offset 1. Sources: Dauphin et al. 2017 (glu); Shazeer 2020 (the others). */
typedef struct normact_gated_desc {
  size_t struct_size;
  int32_t kind;     /* normact_activation_kind, of the gate */
  int32_t layout;   /* normact_gate_layout */
  int32_t axis;     /* that biases run along, and that gate and up are packed along; negative ones count from the end */
  int32_t reserved; /* 0 */
  double alpha;     /* as in normact_activation_desc, as are the next two */
  double beta;
  double threshold;
  double limit;     /* > 0; 0 or infinity: none */
  double up_offset; /* finite */
} normact_gated_desc;

/* Layout SEPARATE: gate, up and y have one shape; each has its own strides. gate_bias, up_bias: (y.shape[axis],).
 * SPLIT: gate is one tensor with 2 * y.shape[axis] along axis, the gates in its first half; up is NULL.
 * INTERLEAVED: the same with gates at even and ups at odd places of the axis. Packed layouts have a packed gate_bias of
 * (2 * y.shape[axis],), laid out like the axis, and up_bias NULL.
 * Dtypes: gate, up, y the same; biases that dtype or fp32 (fp64 with fp64). */
typedef struct normact_gated_forward_args {
  size_t struct_size;
  const normact_tensor* gate;
  const normact_tensor* up;
  const normact_tensor* gate_bias; /* NULL: 0 */
  const normact_tensor* up_bias;   /* NULL: 0 */
  const normact_tensor* y;         /* out; may be gate or up where these are separate */
} normact_gated_forward_args;

/* dgate = dy * (u + up_offset) * act'(g), 0 where gate + gate_bias > limit;  dup = dy * act(g), 0 where |up + up_bias|
 * > limit; biases: their sums over all other axes. Shapes and dtypes as in the forward; packed layouts have a packed
 * dgate (and dgate_bias), dup (and dup_bias) NULL. */
typedef struct normact_gated_backward_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* gate;
  const normact_tensor* up;
  const normact_tensor* gate_bias;  /* NULL: 0 */
  const normact_tensor* up_bias;    /* NULL: 0 */
  const normact_tensor* dgate;      /* out; may be dy, gate or up; packed: gate */
  const normact_tensor* dup;        /* out; may be dy, gate or up */
  const normact_tensor* dgate_bias; /* out, NULL: not wanted */
  const normact_tensor* dup_bias;   /* out, NULL: not wanted */
} normact_gated_backward_args;

/* Errors as for normact_norm_forward. Needs a workspace on a GPU where gate and up both lie in single elements, or one
 * does and y is the other. */
NORMACT_API normact_status normact_gated_forward(const normact_gated_desc* desc, const normact_gated_forward_args* args,
                                                 const normact_exec* exec);
NORMACT_API normact_status normact_gated_forward_workspace(const normact_gated_desc* desc,
                                                           const normact_gated_forward_args* args,
                                                           const normact_exec* exec, size_t* bytes);

/* Gradients of normact_gated_forward, both in one pass, from its inputs. Deterministic. */
NORMACT_API normact_status normact_gated_backward(const normact_gated_desc* desc,
                                                  const normact_gated_backward_args* args, const normact_exec* exec);
NORMACT_API normact_status normact_gated_backward_workspace(const normact_gated_desc* desc,
                                                            const normact_gated_backward_args* args,
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
 * The environment variable NORMACT_CPU_ISA, read at the first call, forces a lower instruction set; of a name that this
 * processor does not run, "cpu_isa" says so, and calls on the CPU are INVALID_ARGUMENT. */
NORMACT_API const char* normact_build_info(const char* name);

/* Threads that CPU work is spread over (default: the processors this process may run on). Results do not depend on
 * it. Calls of the process's first thread use those of an OpenMP runtime that is there, if it has as many; else they
 * are the library's own. count >= 1; INVALID_ARGUMENT otherwise. */
NORMACT_API normact_status normact_set_num_threads(int count);
NORMACT_API int normact_get_num_threads(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "normact/channel_norms.h" /* batch, group and instance norm */

#endif /* NORMACT_NORMACT_H_ */
