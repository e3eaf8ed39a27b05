/* SPDX-License-Identifier: Apache-2.0
 *
 * Malformed calls of batch, group and instance norm: status, the sentence, and nothing written.
 */
#include "check.h"

enum { kN = 2, kC = 4, kP = 3, kSize = kN * kC * kP, kMaskBytes = kSize / 8 };

typedef struct outputs {
  float y[kSize], dx[kSize], daddend[kSize], mean[kN * kC], rstd[kN * kC], dweight[kC], dbias[kC];
  float running_mean[kC], running_var[kC], moments[3 * kC], sums[2 * kC];
  int64_t batches;
  unsigned char mask[kMaskBytes];
} outputs;

typedef struct call {
  float x[kSize], dy[kSize], weight[kC], bias[kC], addend[kSize], all_moments[2 * 3 * kC], count[kC];
  outputs out;
  int64_t shape[3], channels[1], sets[2], moments_shape[2], all_shape[3], sums_shape[2], bytes[1], one[1];
  normact_tensor tx, tdy, ty, tdx, taddend, tdaddend, tweight, tbias, tdweight, tdbias, tmean, trstd;
  normact_tensor trunning_mean, trunning_var, tbatches, tmask, tmoments, tall, tsums, tcount;
  normact_batch_norm_desc desc;
  normact_group_norm_desc group;
  normact_batch_norm_forward_args forward;
  normact_batch_norm_backward_args backward;
  normact_batch_norm_statistics_args statistics;
  normact_batch_norm_merge_args merge;
  normact_batch_norm_apply_args apply;
  normact_batch_norm_reduce_args reduce;
  normact_batch_norm_input_gradient_args input_gradient;
  normact_group_norm_forward_args group_forward;
  normact_group_norm_backward_args group_backward;
  normact_exec exec;
} call;

static int cases = 0;
static call c;

static normact_tensor typed(void* data, int32_t ndim, int64_t* shape, uint8_t code, uint8_t bits) {
  normact_tensor t = {data, NORMACT_DEVICE_CPU, 0, ndim, code, bits, 1, shape, NULL, 0};
  return t;
}

static void setup_tensors(void) {
  c.shape[0] = c.sets[0] = kN;
  c.shape[1] = c.sets[1] = c.channels[0] = kC;
  c.shape[2] = kP;
  c.moments_shape[0] = c.all_shape[1] = 3;
  c.all_shape[0] = c.sums_shape[0] = 2;
  c.moments_shape[1] = c.all_shape[2] = c.sums_shape[1] = kC;
  c.bytes[0] = kMaskBytes;
  c.one[0] = 1;
  c.tx = tensor(c.x, 3, c.shape);
  c.tdy = tensor(c.dy, 3, c.shape);
  c.ty = tensor(c.out.y, 3, c.shape);
  c.tdx = tensor(c.out.dx, 3, c.shape);
  c.taddend = tensor(c.addend, 3, c.shape);
  c.tdaddend = tensor(c.out.daddend, 3, c.shape);
  c.tweight = tensor(c.weight, 1, c.channels);
  c.tbias = tensor(c.bias, 1, c.channels);
  c.tdweight = tensor(c.out.dweight, 1, c.channels);
  c.tdbias = tensor(c.out.dbias, 1, c.channels);
  c.tmean = tensor(c.out.mean, 1, c.channels);
  c.trstd = tensor(c.out.rstd, 1, c.channels);
  c.trunning_mean = tensor(c.out.running_mean, 1, c.channels);
  c.trunning_var = tensor(c.out.running_var, 1, c.channels);
  c.tbatches = typed(&c.out.batches, 0, NULL, NORMACT_DTYPE_INT, 64);
  c.tmask = typed(c.out.mask, 1, c.bytes, NORMACT_DTYPE_UINT, 8);
  c.tmoments = tensor(c.out.moments, 2, c.moments_shape);
  c.tall = tensor(c.all_moments, 3, c.all_shape);
  c.tsums = tensor(c.out.sums, 2, c.sums_shape);
  c.tcount = tensor(c.count, 1, c.one);
}

static void setup(void) {
  memset(&c, 0, sizeof c);
  memset(&c.out, 0xa5, sizeof c.out);
  setup_tensors();
  c.desc = (normact_batch_norm_desc){sizeof c.desc, 1, 1, 1e-5, 0.1, 0, NORMACT_ACTIVATION_RELU, 0, 0, 0};
  c.group = (normact_group_norm_desc){sizeof c.group, 1, NORMACT_ACTIVATION_SILU, 2, 1e-5, 0.1, 0, 0, 0};
  c.forward = (normact_batch_norm_forward_args){sizeof c.forward, &c.tx,           &c.tweight,  &c.tbias, &c.taddend,
                                                &c.trunning_mean, &c.trunning_var, &c.tbatches, &c.ty,    &c.tmean,
                                                &c.trstd,         &c.tmask};
  c.backward = (normact_batch_norm_backward_args){
      sizeof c.backward, &c.tdy, &c.tx, &c.tweight, &c.tbias,    &c.taddend, &c.tmean,
      &c.trstd,          NULL,   NULL,  &c.tdx,     &c.tdweight, &c.tdbias,  &c.tdaddend};
  c.statistics = (normact_batch_norm_statistics_args){sizeof c.statistics, &c.tx, &c.tmoments};
  c.merge = (normact_batch_norm_merge_args){sizeof c.merge, &c.tall,  &c.trunning_mean, &c.trunning_var,
                                            &c.tbatches,    &c.tmean, &c.trstd};
  c.apply = (normact_batch_norm_apply_args){sizeof c.apply, &c.tx,    &c.tweight, &c.tbias, &c.taddend,
                                            &c.tmean,       &c.trstd, &c.ty,      &c.tmask};
  c.reduce = (normact_batch_norm_reduce_args){sizeof c.reduce, &c.tdy,   &c.tx, &c.tweight, &c.tbias, &c.taddend,
                                              &c.tmean,        &c.trstd, NULL,  NULL,       &c.tsums};
  c.input_gradient = (normact_batch_norm_input_gradient_args){sizeof c.input_gradient,
                                                              &c.tdy,
                                                              &c.tx,
                                                              &c.tweight,
                                                              &c.tbias,
                                                              &c.taddend,
                                                              &c.tmean,
                                                              &c.trstd,
                                                              NULL,
                                                              &c.tmask,
                                                              &c.tsums,
                                                              &c.tcount,
                                                              &c.tdx,
                                                              &c.tdaddend};
  c.group_forward = (normact_group_norm_forward_args){
      sizeof c.group_forward, &c.tx, &c.tweight, &c.tbias, NULL, NULL, &c.ty, NULL, NULL};
  c.group_backward = (normact_group_norm_backward_args){
      sizeof c.group_backward, &c.tdy, &c.tx, &c.tweight, &c.tbias, &c.tmean, &c.trstd, &c.tdx, &c.tdweight, &c.tdbias};
  c.exec = (normact_exec){sizeof c.exec, NULL, NULL, 0, NORMACT_ROW_AUTO, 0};
}

/* A group norm's statistics. */
static void grouped(void) {
  c.sets[1] = 2;
  c.tmean = tensor(c.out.mean, 2, c.sets);
  c.trstd = tensor(c.out.rstd, 2, c.sets);
}

typedef normact_status (*function)(void);

#define FUNCTION(name, args, desc) \
  static normact_status name(void) { return normact_##name(&c.desc, &c.args, &c.exec); }
FUNCTION(batch_norm_forward, forward, desc)
FUNCTION(batch_norm_backward, backward, desc)
FUNCTION(batch_norm_statistics, statistics, desc)
FUNCTION(batch_norm_merge, merge, desc)
FUNCTION(batch_norm_apply, apply, desc)
FUNCTION(batch_norm_reduce, reduce, desc)
FUNCTION(batch_norm_input_gradient, input_gradient, desc)
FUNCTION(group_norm_forward, group_forward, group)
FUNCTION(group_norm_backward, group_backward, group)

static void expect(function run, normact_status status, const char* sentence, int line) {
  const outputs before = c.out;
  const normact_status found = run();
  ++cases;
  if (found == status && strcmp(normact_last_error(), sentence) == 0 && memcmp(&before, &c.out, sizeof before) == 0) {
    return;
  }
  ++failures;
  fprintf(stderr, "%s:%d: wanted status %d, '%s' and untouched outputs; got status %d, '%s'\n", __FILE__, line, status,
          sentence, found, normact_last_error());
}

#define CASE(run, sentence, change)                                                 \
  do {                                                                              \
    setup();                                                                        \
    change;                                                                         \
    expect(run, NORMACT_INVALID_ARGUMENT, "normact_" #run ": " sentence, __LINE__); \
  } while (0)

static void test_descs(void) {
  CASE(batch_norm_forward, "desc->struct_size is 8; expected 64, the size of the struct", c.desc.struct_size = 8);
  CASE(batch_norm_forward, "desc->eps is -1; expected a finite number that is at least 0", c.desc.eps = -1);
  CASE(batch_norm_backward, "desc->eps is nan; expected a finite number that is at least 0", c.desc.eps = NAN);
  CASE(batch_norm_forward, "desc->momentum is inf; expected a finite number", c.desc.momentum = INFINITY);
  CASE(batch_norm_merge, "desc->momentum is nan; expected a finite number", c.desc.momentum = NAN);
  CASE(batch_norm_forward, "desc->training is 2; expected 0 or 1", c.desc.training = 2);
  CASE(batch_norm_forward, "desc->cumulative is -1; expected 0 or 1", c.desc.cumulative = -1);
  CASE(batch_norm_forward,
       "desc->cumulative is 1 but num_batches_tracked is NULL; expected the number of batches so far",
       (c.desc.cumulative = 1, c.forward.num_batches_tracked = NULL));
  CASE(batch_norm_forward, "desc->channel_axis is 3; expected an axis of x, which has 3 dimensions",
       c.desc.channel_axis = 3);
  CASE(group_norm_forward, "desc->channel_axis is -3, axis 0 of x, which counts samples; expected another axis",
       c.group.channel_axis = -3);
  CASE(group_norm_forward, "desc->num_groups is 0; expected at least 1", c.group.num_groups = 0);
  CASE(group_norm_forward, "desc->num_groups is 3; expected a divisor of 4, x's size along axis 1",
       c.group.num_groups = 3);
  CASE(group_norm_forward, "desc->eps is inf; expected a finite number that is at least 0", c.group.eps = INFINITY);
}

static void test_sources(void) {
  CASE(batch_norm_forward, "mask is given with desc->activation silu; expected NULL, as only relu has a mask",
       c.desc.activation = NORMACT_ACTIVATION_SILU);
  CASE(batch_norm_backward, "y and mask are given; expected at most one of them, which the slope comes from",
       (c.backward.y = &c.ty, c.backward.mask = &c.tmask));
  CASE(batch_norm_reduce,
       "y is given with desc->activation silu, whose output does not tell the slope; expected NULL (the output does "
       "for identity, relu, relu6, leaky_relu, elu, sigmoid and tanh)",
       (c.desc.activation = NORMACT_ACTIVATION_SILU, c.reduce.y = &c.ty));
  CASE(batch_norm_forward, "running_mean (needed in inference) is NULL; expected a tensor",
       (c.desc.training = 0, c.forward.running_mean = NULL));
  CASE(batch_norm_forward, "running_mean is given but running_var is NULL; expected both or none",
       c.forward.running_var = NULL);
  CASE(group_norm_forward, "running_var is given but running_mean is NULL; expected both or none",
       c.group_forward.running_var = &c.trunning_var);
  CASE(group_norm_forward,
       "running_mean is given with desc->num_groups 2 for 4 channels; expected NULL, as only instance norm, a group a "
       "channel, keeps running statistics",
       (c.group_forward.running_var = &c.trunning_var, c.group_forward.running_mean = &c.trunning_mean));
  CASE(group_norm_forward,
       "x has shape (2, 4, 1), one value a channel of a sample; expected more than one where running statistics are "
       "kept",
       (c.shape[2] = 1, c.group.num_groups = 4, c.group_forward.running_var = &c.trunning_var,
        c.group_forward.running_mean = &c.trunning_mean));
  CASE(batch_norm_forward,
       "x has shape (1, 4, 1), one value a channel; expected more than one value a channel in training",
       (c.shape[0] = c.shape[2] = 1, c.forward.mask = NULL));
}

static void test_tensors(void) {
  CASE(batch_norm_forward, "x has shape (4,); expected at least 2 axes", c.tx = tensor(c.x, 1, c.channels));
  CASE(batch_norm_forward, "y is NULL; expected a tensor", c.forward.y = NULL);
  CASE(batch_norm_forward, "weight has shape (2, 4); expected (4,), an entry a channel",
       c.tweight = tensor(c.x, 2, c.sums_shape));
  CASE(batch_norm_forward, "addend has shape (2, 3, 4); expected (2, 4, 3), x's shape",
       c.taddend = tensor(c.addend, 3, c.all_shape));
  CASE(batch_norm_forward, "running_mean has dtype float64; expected float32 as x has dtype float32",
       c.trunning_mean.dtype_bits = 64);
  CASE(batch_norm_forward, "num_batches_tracked has dtype code 0 with 32 bits; expected int64",
       c.tbatches.dtype_bits = 32);
  CASE(batch_norm_forward, "num_batches_tracked has shape (4,); expected () or (1,)",
       c.tbatches = typed(&c.out.batches, 1, c.channels, NORMACT_DTYPE_INT, 64));
  CASE(batch_norm_forward, "mask has shape (2,); expected (3,) or (3, 1), a bit for each of x's 24 elements",
       c.bytes[0] = 2);
  CASE(batch_norm_forward,
       "y overlaps x without being the same tensor; expected separate memory or the very same data, "
       "shape and strides",
       c.ty.data = c.x + 1);
  CASE(batch_norm_forward, "running_mean overlaps running_var; expected separate memory",
       c.trunning_mean.data = c.out.running_var);
  CASE(batch_norm_backward, "dx overlaps daddend; expected separate memory", c.tdx.data = c.out.daddend);
  CASE(batch_norm_backward, "rstd is NULL; expected a tensor", c.backward.rstd = NULL);
  CASE(batch_norm_statistics, "moments has shape (2, 4); expected (3, 4), 3 rows of an entry a channel",
       c.moments_shape[0] = 2);
  CASE(batch_norm_statistics, "moments is NULL; expected a tensor", c.statistics.moments = NULL);
  CASE(batch_norm_merge, "moments has shape (2, 2, 4); expected (parts, 3, channels) with at least one part",
       c.all_shape[1] = 2);
  CASE(batch_norm_merge, "moments has dtype float16; expected float32 or float64", c.tall.dtype_bits = 16);
  CASE(batch_norm_merge, "rstd has shape (4,); expected (3,), an entry a channel", c.all_shape[2] = 3;
       c.trunning_mean.shape = c.trunning_var.shape = c.tmean.shape = &c.all_shape[2]);
  CASE(batch_norm_apply, "mean is NULL; expected a tensor", c.apply.mean = NULL);
  CASE(batch_norm_reduce, "sums has shape (3, 4); expected (2, 4), 2 rows of an entry a channel", c.sums_shape[0] = 3);
  CASE(batch_norm_input_gradient,
       "count has shape (2, 4); expected (), (1,) or (4,), an entry for all channels or one each",
       c.tcount = tensor(c.x, 2, c.sums_shape));
  CASE(batch_norm_input_gradient, "count is NULL; expected a tensor", c.input_gradient.count = NULL);
  CASE(group_norm_backward, "mean has shape (4,); expected (2, 2), an entry a group of each sample", (void)0);
  CASE(group_norm_backward, "dy has dtype float16; expected float32 as x has dtype float32",
       (grouped(), c.tdy.dtype_bits = 16));
  CASE(group_norm_forward, "y is on CUDA device 0; expected the CPU, where x is", c.ty.device_type = 2);
}

static void test_exec(void) {
  setup();
  c.exec.row_variant = NORMACT_ROW_WARP;
  expect(batch_norm_forward, NORMACT_NOT_SUPPORTED,
         "normact_batch_norm_forward: exec->row_variant is 1, which names a row kernel, but this is no row norm; "
         "expected NORMACT_ROW_AUTO",
         __LINE__);
  setup();
  grouped();
  CHECK(group_norm_backward() == NORMACT_OK);
}

int main(void) {
  test_descs();
  test_sources();
  test_tensors();
  test_exec();
  printf("%d cases\n", cases);
  return finish();
}
