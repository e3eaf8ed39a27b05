/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch, group and instance norm through every public function: numbers, the parts against the whole, empty tensors.
 */
#include "check.h"

enum { kN = 4, kC = 3, kP = 5, kSize = kN * kC * kP };

static float x[kSize], dy[kSize], y[kSize], dx[kSize], weight[kC], bias[kC], dweight[kC], dbias[kC];
static float mean[kN * kC], rstd[kN * kC], running_mean[kC], running_var[kC];
static int64_t shape[3] = {kN, kC, kP}, channels[1] = {kC}, sets[2] = {kN, kC}, batches;
static normact_tensor tx, tdy, ty, tdx, tweight, tbias, tdweight, tdbias, tmean, trstd, trunning_mean, trunning_var;
static normact_tensor tbatches = {&batches, NORMACT_DEVICE_CPU, 0, 0, NORMACT_DTYPE_INT, 64, 1, NULL, NULL, 0};
static normact_batch_norm_desc batch;
static normact_group_norm_desc group;

static void setup(void) {
  fill(x, kSize);
  fill(dy, kSize);
  fill(weight, kC);
  fill(bias, kC);
  for (int c = 0; c < kC; ++c) running_mean[c] = 0.5f, running_var[c] = 2.0f;
  batches = 7;
  tx = tensor(x, 3, shape);
  tdy = tensor(dy, 3, shape);
  ty = tensor(y, 3, shape);
  tdx = tensor(dx, 3, shape);
  tweight = tensor(weight, 1, channels);
  tbias = tensor(bias, 1, channels);
  tdweight = tensor(dweight, 1, channels);
  tdbias = tensor(dbias, 1, channels);
  tmean = tensor(mean, 1, channels);
  trstd = tensor(rstd, 1, channels);
  trunning_mean = tensor(running_mean, 1, channels);
  trunning_var = tensor(running_var, 1, channels);
  batch = (normact_batch_norm_desc){sizeof batch, 1, 1, 1e-5, 0.1, 0, NORMACT_ACTIVATION_RELU, 0, 0, 0};
  group = (normact_group_norm_desc){sizeof group, 1, NORMACT_ACTIVATION_SILU, kC, 1e-5, 0.1, 0, 0, 0};
}

/* Mean and variance of some planes, in double. */
static void reference(int first_n, int last_n, int c, double* mean_out, double* var_out) {
  double sum = 0, squares = 0;
  const int count = (last_n - first_n) * kP;
  for (int n = first_n; n < last_n; ++n) {
    for (int p = 0; p < kP; ++p) sum += (double)x[(n * kC + c) * kP + p];
  }
  *mean_out = sum / count;
  for (int n = first_n; n < last_n; ++n) {
    for (int p = 0; p < kP; ++p) squares += pow((double)x[(n * kC + c) * kP + p] - *mean_out, 2);
  }
  *var_out = squares / count;
}

static void test_batch_norm(void) {
  setup();
  const normact_batch_norm_forward_args args = {sizeof args,   &tx,       &tweight, &tbias, NULL,   &trunning_mean,
                                                &trunning_var, &tbatches, &ty,      &tmean, &trstd, NULL};
  RUN_WITH_WORKSPACE(normact_batch_norm_forward, &batch, &args);
  for (int c = 0; c < kC; ++c) {
    double m, var;
    reference(0, kN, c, &m, &var);
    near(mean[c], m, 1e-6, "mean", c);
    near(rstd[c], 1 / sqrt(var + 1e-5), 1e-6, "rstd", c);
    near(running_mean[c], 0.9 * 0.5 + 0.1 * m, 1e-6, "running_mean", c);
    near(running_var[c], 0.9 * 2 + 0.1 * var * (kN * kP) / (kN * kP - 1), 1e-6, "running_var", c);
    for (int n = 0; n < kN; ++n) {
      for (int p = 0; p < kP; ++p) {
        const int i = (n * kC + c) * kP + p;
        const double h = ((double)x[i] - m) / sqrt(var + 1e-5) * (double)weight[c] + (double)bias[c];
        near(y[i], fmax(h, 0), 1e-5, "y", i);
      }
    }
  }
  CHECK(batches == 8);
  batch.training = 0;
  batch.eps = 0;
  running_var[0] = 4;
  running_mean[0] = 1;
  CHECK(normact_batch_norm_forward(&batch, &args, NULL) == NORMACT_OK);
  CHECK(batches == 8 && running_var[0] == 4);
  near(y[0], fmax(((double)x[0] - 1) / 2 * (double)weight[0] + (double)bias[0], 0), 1e-6, "y in inference", 0);
}

static normact_batch_norm_backward_args backward_args(void) {
  const normact_batch_norm_backward_args args = {sizeof args, &tdy, &tx,  &tweight, &tbias,    NULL,    &tmean,
                                                 &trstd,      NULL, NULL, &tdx,     &tdweight, &tdbias, NULL};
  return args;
}

/* What two processes with two samples each have. */
static float moments[2][3][kC], sums[2][2][kC], merged_mean[kC], merged_rstd[kC];
static int64_t half[3] = {kN / 2, kC, kP};
static normact_tensor tmerged_mean, tmerged_rstd;

/* Turns to the tensors of a process. */
static void turn_to(int k) {
  tx = tensor(x + k * kSize / 2, 3, half);
  ty = tensor(y + k * kSize / 2, 3, half);
  tdy = tensor(dy + k * kSize / 2, 3, half);
  tdx = tensor(dx + k * kSize / 2, 3, half);
}

static void merged_statistics(void) {
  int64_t moments_shape[2] = {3, kC}, all_shape[3] = {2, 3, kC};
  for (int k = 0; k < 2; ++k) {
    normact_tensor part = tensor(&moments[k][0][0], 2, moments_shape);
    turn_to(k);
    const normact_batch_norm_statistics_args args = {sizeof args, &tx, &part};
    RUN_WITH_WORKSPACE(normact_batch_norm_statistics, &batch, &args);
    CHECK(moments[k][2][0] == kN / 2 * kP);
  }
  normact_tensor all = tensor(&moments[0][0][0], 3, all_shape);
  tmerged_mean = tensor(merged_mean, 1, channels);
  tmerged_rstd = tensor(merged_rstd, 1, channels);
  batch.cumulative = 1;
  const normact_batch_norm_merge_args args = {sizeof args, &all,          &trunning_mean, &trunning_var,
                                              &tbatches,   &tmerged_mean, &tmerged_rstd};
  CHECK(normact_batch_norm_merge(&batch, &args, NULL) == NORMACT_OK);
  CHECK(batches == 8);
  for (int c = 0; c < kC; ++c) {
    near(merged_mean[c], (double)mean[c], 1e-6, "merged mean", c);
    near(merged_rstd[c], (double)rstd[c], 1e-6, "merged rstd", c);
    near(running_mean[c], 0.5 * 7 / 8 + (double)mean[c] / 8, 1e-6, "merged running_mean", c);
  }
}

static void gradients_of_parts(void) {
  float total[2][kC], count = kN * kP;
  int64_t sums_shape[2] = {2, kC};
  normact_tensor tsums = tensor(&total[0][0], 2, sums_shape), tcount = tensor(&count, 0, NULL);
  for (int k = 0; k < 2; ++k) {
    normact_tensor part = tensor(&sums[k][0][0], 2, sums_shape);
    turn_to(k);
    const normact_batch_norm_reduce_args reduce = {sizeof reduce, &tdy,          &tx,  &tweight, &tbias, NULL,
                                                   &tmerged_mean, &tmerged_rstd, NULL, NULL,     &part};
    RUN_WITH_WORKSPACE(normact_batch_norm_reduce, &batch, &reduce);
  }
  for (int c = 0; c < kC; ++c) {
    for (int row = 0; row < 2; ++row) total[row][c] = sums[0][row][c] + sums[1][row][c];
    near(total[0][c], (double)dweight[c], 1e-5, "dweight of parts", c);
    near(total[1][c], (double)dbias[c], 1e-5, "dbias of parts", c);
  }
  for (int k = 0; k < 2; ++k) {
    turn_to(k);
    const normact_batch_norm_input_gradient_args args = {sizeof args, &tdy,          &tx,           &tweight, &tbias,
                                                         NULL,        &tmerged_mean, &tmerged_rstd, NULL,     NULL,
                                                         &tsums,      &tcount,       &tdx,          NULL};
    CHECK(normact_batch_norm_input_gradient(&batch, &args, NULL) == NORMACT_OK);
  }
}

static void test_parts(void) {
  float whole[kSize], whole_dx[kSize];
  setup();
  const normact_batch_norm_forward_args forward = {sizeof forward, &tx,  &tweight, &tbias, NULL,   NULL,
                                                   NULL,           NULL, &ty,      &tmean, &trstd, NULL};
  const normact_batch_norm_backward_args backward = backward_args();
  RUN_WITH_WORKSPACE(normact_batch_norm_forward, &batch, &forward);
  RUN_WITH_WORKSPACE(normact_batch_norm_backward, &batch, &backward);
  memcpy(whole, y, sizeof whole);
  memcpy(whole_dx, dx, sizeof whole_dx);
  merged_statistics();
  for (int k = 0; k < 2; ++k) {
    turn_to(k);
    const normact_batch_norm_apply_args apply = {sizeof apply,  &tx,           &tweight, &tbias, NULL,
                                                 &tmerged_mean, &tmerged_rstd, &ty,      NULL};
    CHECK(normact_batch_norm_apply(&batch, &apply, NULL) == NORMACT_OK);
  }
  gradients_of_parts();
  for (int i = 0; i < kSize; ++i) {
    near(y[i], (double)whole[i], 1e-5, "y of parts", i);
    near(dx[i], (double)whole_dx[i], 1e-5, "dx of parts", i);
  }
}

static void test_instance_norm(void) {
  setup();
  tmean = tensor(mean, 2, sets);
  trstd = tensor(rstd, 2, sets);
  const normact_group_norm_forward_args args = {sizeof args,   &tx, &tweight, &tbias, &trunning_mean,
                                                &trunning_var, &ty, &tmean,   &trstd};
  RUN_WITH_WORKSPACE(normact_group_norm_forward, &group, &args);
  for (int c = 0; c < kC; ++c) {
    double mean_of_means = 0, mean_of_vars = 0;
    for (int n = 0; n < kN; ++n) {
      double m, var;
      reference(n, n + 1, c, &m, &var);
      near(mean[n * kC + c], m, 1e-6, "mean", n);
      near(rstd[n * kC + c], 1 / sqrt(var + 1e-5), 1e-6, "rstd", n);
      mean_of_means += m / kN;
      mean_of_vars += var * kP / (kP - 1) / kN;
    }
    near(running_mean[c], 0.9 * 0.5 + 0.1 * mean_of_means, 1e-6, "running_mean", c);
    near(running_var[c], 0.9 * 2 + 0.1 * mean_of_vars, 1e-6, "running_var", c);
  }
  const normact_group_norm_backward_args backward = {sizeof backward, &tdy,   &tx,  &tweight,  &tbias,
                                                     &tmean,          &trstd, &tdx, &tdweight, &tdbias};
  RUN_WITH_WORKSPACE(normact_group_norm_backward, &group, &backward);
  for (int set = 0; set < kN * kC; ++set) { /* dx is orthogonal to what a norm takes away */
    double sum = 0, product = 0;
    for (int p = 0; p < kP; ++p) {
      sum += (double)dx[set * kP + p];
      product += (double)dx[set * kP + p] * (double)x[set * kP + p];
    }
    near(sum, 0, 1e-5, "sum of dx", set);
    near(product, 0, 1e-4, "dx times x", set);
  }
}

static void test_no_elements(void) {
  setup();
  shape[0] = 0;
  float nothing[3 * kC] = {9, 9, 9, 9, 9, 9, 9, 9, 9};
  int64_t moments_shape[2] = {3, kC}, all_shape[3] = {1, 3, kC};
  normact_tensor tmoments = tensor(nothing, 2, moments_shape), all = tensor(nothing, 3, all_shape);
  const normact_batch_norm_forward_args forward = {sizeof forward, &tx,       &tweight, &tbias, NULL,   &trunning_mean,
                                                   &trunning_var,  &tbatches, &ty,      &tmean, &trstd, NULL};
  RUN_WITH_WORKSPACE(normact_batch_norm_forward, &batch, &forward);
  CHECK(batches == 7 && running_mean[1] == 0.5f && running_var[1] == 2.0f);
  near(mean[1], 0, 0, "mean of nothing", 1);
  near(rstd[1], 1 / sqrt(1e-5), 1e-6, "rstd of nothing", 1);
  const normact_batch_norm_backward_args backward = backward_args();
  dweight[2] = dbias[2] = 5;
  RUN_WITH_WORKSPACE(normact_batch_norm_backward, &batch, &backward);
  CHECK(dweight[2] == 0 && dbias[2] == 0);
  const normact_batch_norm_statistics_args statistics = {sizeof statistics, &tx, &tmoments};
  RUN_WITH_WORKSPACE(normact_batch_norm_statistics, &batch, &statistics);
  for (int i = 0; i < 3 * kC; ++i) CHECK(nothing[i] == 0);
  const normact_batch_norm_merge_args merge = {sizeof merge, &all,   &trunning_mean, &trunning_var,
                                               &tbatches,    &tmean, &trstd};
  CHECK(normact_batch_norm_merge(&batch, &merge, NULL) == NORMACT_OK);
  CHECK(batches == 7 && running_mean[1] == 0.5f && running_var[1] == 2.0f);
  shape[0] = kN;
}

int main(void) {
  test_batch_norm();
  test_parts();
  test_instance_norm();
  test_no_elements();
  return finish();
}
