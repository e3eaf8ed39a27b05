/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch, group and instance norm. A part of normact.h, which includes it; not to be included alone.
 */
#ifndef NORMACT_CHANNEL_NORMS_H_
#define NORMACT_CHANNEL_NORMS_H_

#ifndef NORMACT_NORMACT_H_
#error "include normact/normact.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Batch norm ------------------------------------------------------------------------------------------------- */

/* Every channel c is normalised over all other axes. With the mean E taken over these, n elements each:
 *   training   mean = E[x],  var = E[(x - mean)^2]
 *   inference  mean = running_mean,  var = running_var
 *   rstd = 1 / sqrt(var + eps)
 *   y = act((x - mean) * rstd * weight + bias + addend)
 * Training also updates what is given of
 *   running_mean = (1 - f) * running_mean + f * mean
 *   running_var  = (1 - f) * running_var  + f * var * n / (n - 1)
 *   num_batches_tracked = num_batches_tracked + 1
 * with f = momentum, or with cumulative = 1 / num_batches_tracked after its update. Without elements nothing is
 * updated, mean is 0 and rstd 1 / sqrt(eps); on CUDA these two are then NOT_SUPPORTED. One value a channel (n = 1) is
 * an error in training. Source: Ioffe, Szegedy 2015. */
typedef struct normact_batch_norm_desc {
  size_t struct_size;
  int32_t channel_axis; /* of x; negative ones count from the end */
  int32_t training;     /* 1: batch statistics, 0: running ones. The split functions below ignore it. */
  double eps;           /* >= 0, finite */
  double momentum;      /* finite; ignored with cumulative, and in inference */
  int32_t cumulative;   /* 1: running statistics are plain means over all batches; needs num_batches_tracked */
  int32_t activation;   /* normact_activation_kind; 0 (identity): none */
  double alpha;         /* as in normact_activation_desc, as are the next two */
  double beta;
  double threshold;
} normact_batch_norm_desc;

/* Shapes: x, addend, y: any, the same, with at least two axes. weight, bias, running_mean, running_var, mean, rstd:
 * (C,), C = x.shape[channel_axis]. num_batches_tracked: () or (1,). mask as in normact_activation_forward_args, or
 * (ceil(number of x's elements / 8), 1): with this shape the last of x's axes is the channels' where bits are counted,
 * as it is in the memory of a channels-last x, beside which only such a mask costs little. A workspace query has to
 * be told the same shape as the call.
 * Dtypes: x, addend, y one of fp64, fp32, fp16, bf16, the same; weight and bias that dtype or fp32 (fp64 with fp64);
 * running_mean, running_var, mean, rstd fp32 (fp64 with fp64); num_batches_tracked int64; mask uint8.
 * y may be x or addend; on CUDA not beside a mask that takes a pass of its own (NOT_SUPPORTED): of fp64, of fp32 that
 * is not channels last, or with bits in another order than the elements have in memory. */
typedef struct normact_batch_norm_forward_args {
  size_t struct_size;
  const normact_tensor* x;
  const normact_tensor* weight;              /* NULL: 1 */
  const normact_tensor* bias;                /* NULL: 0 */
  const normact_tensor* addend;              /* NULL: 0 */
  const normact_tensor* running_mean;        /* in training in and out, NULL: not kept; in inference needed */
  const normact_tensor* running_var;         /* the same; both or none */
  const normact_tensor* num_batches_tracked; /* training, in and out, NULL: not kept */
  const normact_tensor* y;                   /* out */
  const normact_tensor* mean;                /* out, NULL: not wanted */
  const normact_tensor* rstd;                /* out, NULL: not wanted */
  const normact_tensor* mask;                /* out, relu only, NULL: not wanted */
} normact_batch_norm_forward_args;

/* With h the activation's argument, xhat = (x - mean) * rstd, dh = dy * act'(h), sums over all axes but the channels':
 *   training   dx = rstd * weight * (dh - E[dh] - xhat * E[dh * xhat])
 *   inference  dx = rstd * weight * dh                         (the statistics are constants)
 *   dweight = sum of dh * xhat,  dbias = sum of dh,  daddend = dh
 * act'(h) comes from y (kinds whose slope follows from their output) or from mask (relu) if one is given, else from h
 * computed again from x, mean, rstd, weight, bias and addend. Shapes and dtypes as in the forward; dweight and dbias
 * have x's dtype or fp32, each for itself. dx may be dy or x; daddend may be dy or addend. */
typedef struct normact_batch_norm_backward_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* x;
  const normact_tensor* weight;  /* NULL: 1 */
  const normact_tensor* bias;    /* NULL: 0; looked at only where h is computed again */
  const normact_tensor* addend;  /* the same */
  const normact_tensor* mean;    /* from the forward */
  const normact_tensor* rstd;    /* from the forward */
  const normact_tensor* y;       /* NULL: none; not with mask */
  const normact_tensor* mask;    /* NULL: none */
  const normact_tensor* dx;      /* out */
  const normact_tensor* dweight; /* out, NULL: not wanted */
  const normact_tensor* dbias;   /* out, NULL: not wanted */
  const normact_tensor* daddend; /* out, NULL: not wanted */
} normact_batch_norm_backward_args;

/* Errors as for normact_norm_forward. */
NORMACT_API normact_status normact_batch_norm_forward(const normact_batch_norm_desc* desc,
                                                      const normact_batch_norm_forward_args* args,
                                                      const normact_exec* exec);
NORMACT_API normact_status normact_batch_norm_forward_workspace(const normact_batch_norm_desc* desc,
                                                                const normact_batch_norm_forward_args* args,
                                                                const normact_exec* exec, size_t* bytes);

/* Gradients of normact_batch_norm_forward, summed in a fixed order (deterministic). */
NORMACT_API normact_status normact_batch_norm_backward(const normact_batch_norm_desc* desc,
                                                       const normact_batch_norm_backward_args* args,
                                                       const normact_exec* exec);
NORMACT_API normact_status normact_batch_norm_backward_workspace(const normact_batch_norm_desc* desc,
                                                                 const normact_batch_norm_backward_args* args,
                                                                 const normact_exec* exec, size_t* bytes);

/* ---- Batch norm in parts, for statistics over several processes -------------------------------------------------
 *
 * forward   statistics on every process -> gather the moments of all K -> merge -> apply
 * backward  reduce on every process -> add up the sums of all -> input_gradient
 * The communication is the caller's. Processes may have different numbers of elements, or none. */

/* moments: (3, C), fp32 (fp64 for fp64): the rows mean, sum of (x - mean)^2, number of elements of each channel. */
typedef struct normact_batch_norm_statistics_args {
  size_t struct_size;
  const normact_tensor* x;       /* may have no elements: the moments are then 0 */
  const normact_tensor* moments; /* out */
} normact_batch_norm_statistics_args;

NORMACT_API normact_status normact_batch_norm_statistics(const normact_batch_norm_desc* desc,
                                                         const normact_batch_norm_statistics_args* args,
                                                         const normact_exec* exec);
NORMACT_API normact_status normact_batch_norm_statistics_workspace(const normact_batch_norm_desc* desc,
                                                                   const normact_batch_norm_statistics_args* args,
                                                                   const normact_exec* exec, size_t* bytes);

/* Merges K sets of moments in their order (Chan et al. 1979), and updates running statistics as training does, with
 * var * n / (n - 1) = 0 for n = 1. Where all counts are 0, mean is 0, rstd 1 / sqrt(eps), and nothing is updated. */
typedef struct normact_batch_norm_merge_args {
  size_t struct_size;
  const normact_tensor* moments;             /* (K, 3, C), K >= 1 */
  const normact_tensor* running_mean;        /* in and out, NULL: not kept */
  const normact_tensor* running_var;         /* the same; both or none */
  const normact_tensor* num_batches_tracked; /* in and out, NULL: not kept */
  const normact_tensor* mean;                /* out (C,) */
  const normact_tensor* rstd;                /* out (C,) */
} normact_batch_norm_merge_args;

NORMACT_API normact_status normact_batch_norm_merge(const normact_batch_norm_desc* desc,
                                                    const normact_batch_norm_merge_args* args,
                                                    const normact_exec* exec);

/* y from given statistics: normact_batch_norm_forward without computing any. */
typedef struct normact_batch_norm_apply_args {
  size_t struct_size;
  const normact_tensor* x;
  const normact_tensor* weight; /* NULL: 1 */
  const normact_tensor* bias;   /* NULL: 0 */
  const normact_tensor* addend; /* NULL: 0 */
  const normact_tensor* mean;
  const normact_tensor* rstd;
  const normact_tensor* y;    /* out; may be x or addend */
  const normact_tensor* mask; /* out, relu only, NULL: not wanted */
} normact_batch_norm_apply_args;

NORMACT_API normact_status normact_batch_norm_apply(const normact_batch_norm_desc* desc,
                                                    const normact_batch_norm_apply_args* args,
                                                    const normact_exec* exec);

/* The sums of this process: sums (2, C), fp32 (fp64 for fp64): the rows sum of dh * xhat (this process's dweight) and
 * sum of dh (its dbias). The other arguments are those of normact_batch_norm_backward_args. */
typedef struct normact_batch_norm_reduce_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* x;
  const normact_tensor* weight;
  const normact_tensor* bias;
  const normact_tensor* addend;
  const normact_tensor* mean;
  const normact_tensor* rstd;
  const normact_tensor* y;
  const normact_tensor* mask;
  const normact_tensor* sums; /* out; 0 without elements */
} normact_batch_norm_reduce_args;

NORMACT_API normact_status normact_batch_norm_reduce(const normact_batch_norm_desc* desc,
                                                     const normact_batch_norm_reduce_args* args,
                                                     const normact_exec* exec);
NORMACT_API normact_status normact_batch_norm_reduce_workspace(const normact_batch_norm_desc* desc,
                                                               const normact_batch_norm_reduce_args* args,
                                                               const normact_exec* exec, size_t* bytes);

/* dx and daddend from sums over all processes. */
typedef struct normact_batch_norm_input_gradient_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* x;
  const normact_tensor* weight;
  const normact_tensor* bias;
  const normact_tensor* addend;
  const normact_tensor* mean;
  const normact_tensor* rstd;
  const normact_tensor* y;
  const normact_tensor* mask;
  const normact_tensor* sums;    /* (2, C), added up over the processes */
  const normact_tensor* count;   /* () or (1,) or (C,), the dtype of sums: elements a channel, over all processes */
  const normact_tensor* dx;      /* out */
  const normact_tensor* daddend; /* out, NULL: not wanted */
} normact_batch_norm_input_gradient_args;

NORMACT_API normact_status normact_batch_norm_input_gradient(const normact_batch_norm_desc* desc,
                                                             const normact_batch_norm_input_gradient_args* args,
                                                             const normact_exec* exec);

/* ---- Group and instance norm ------------------------------------------------------------------------------------ */

/* Axis 0 counts samples. The channels of each sample are divided into num_groups runs of C / num_groups; each run is
 * normalised over its channels and all axes but 0. With E the mean over these:
 *   mean = E[x],  rstd = 1 / sqrt(E[(x - mean)^2] + eps),  y = act((x - mean) * rstd * weight + bias)
 * num_groups = C is instance norm. It alone may keep running statistics: the means over the samples of mean and of
 * var * n / (n - 1), n elements a channel of a sample, enter them as in normact_batch_norm_desc.
 * Sources: Wu, He 2018 (group norm); Ulyanov, Vedaldi, Lempitsky 2016 (instance norm). */
typedef struct normact_group_norm_desc {
  size_t struct_size;
  int32_t channel_axis; /* of x, not axis 0; negative ones count from the end */
  int32_t activation;   /* normact_activation_kind; 0 (identity): none */
  int64_t num_groups;   /* >= 1, divides C = x.shape[channel_axis] */
  double eps;           /* >= 0, finite */
  double momentum;      /* finite; of running statistics */
  double alpha;         /* as in normact_activation_desc, as are the next two */
  double beta;
  double threshold;
} normact_group_norm_desc;

/* Shapes: x, y: any, the same, with at least two axes; N = x.shape[0]. weight, bias, running_mean, running_var: (C,).
 * mean, rstd: (N, num_groups). Dtypes as in normact_batch_norm_forward_args. y may be x. Beside running statistics one
 * value a channel of a sample is INVALID_ARGUMENT. Of an x without elements mean is 0 and rstd 1 / sqrt(eps), running
 * statistics stay, and on CUDA mean and rstd are NOT_SUPPORTED. */
typedef struct normact_group_norm_forward_args {
  size_t struct_size;
  const normact_tensor* x;
  const normact_tensor* weight;       /* NULL: 1 */
  const normact_tensor* bias;         /* NULL: 0 */
  const normact_tensor* running_mean; /* num_groups = C: in and out, NULL: not kept */
  const normact_tensor* running_var;  /* the same; both or none */
  const normact_tensor* y;            /* out */
  const normact_tensor* mean;         /* out, NULL: not wanted */
  const normact_tensor* rstd;         /* out, NULL: not wanted */
} normact_group_norm_forward_args;

/* With h, xhat, dh as for batch norm, g = dh * weight and E over the group:
 *   dx = rstd * (g - E[g] - xhat * E[g * xhat])
 *   dweight = sum of dh * xhat,  dbias = sum of dh, each over all axes but the channels'
 * Shapes and dtypes as in the forward; dweight and dbias have x's dtype or fp32, each for itself. dx may be dy or x. */
typedef struct normact_group_norm_backward_args {
  size_t struct_size;
  const normact_tensor* dy;
  const normact_tensor* x;
  const normact_tensor* weight;  /* NULL: 1 */
  const normact_tensor* bias;    /* NULL: 0; looked at only with an activation */
  const normact_tensor* mean;    /* from the forward */
  const normact_tensor* rstd;    /* from the forward */
  const normact_tensor* dx;      /* out */
  const normact_tensor* dweight; /* out, NULL: not wanted */
  const normact_tensor* dbias;   /* out, NULL: not wanted */
} normact_group_norm_backward_args;

/* Errors as for normact_norm_forward. */
NORMACT_API normact_status normact_group_norm_forward(const normact_group_norm_desc* desc,
                                                      const normact_group_norm_forward_args* args,
                                                      const normact_exec* exec);
NORMACT_API normact_status normact_group_norm_forward_workspace(const normact_group_norm_desc* desc,
                                                                const normact_group_norm_forward_args* args,
                                                                const normact_exec* exec, size_t* bytes);

/* Gradients of normact_group_norm_forward, summed in a fixed order (deterministic). */
NORMACT_API normact_status normact_group_norm_backward(const normact_group_norm_desc* desc,
                                                       const normact_group_norm_backward_args* args,
                                                       const normact_exec* exec);
NORMACT_API normact_status normact_group_norm_backward_workspace(const normact_group_norm_desc* desc,
                                                                 const normact_group_norm_backward_args* args,
                                                                 const normact_exec* exec, size_t* bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NORMACT_CHANNEL_NORMS_H_ */
