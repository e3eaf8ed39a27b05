/* SPDX-License-Identifier: Apache-2.0
 *
 * Every function for norms and of the library, called from strict C11. The results of the norms are compared with plain
 * loops in double precision that share nothing with the library.
 */
#include "check.h"

enum { kRows = 5, kCols = 37, kSize = kRows * kCols };

/* One problem: rows x cols, the tensors that describe it, and what the plain loops say. */
typedef struct problem {
  float x[kSize], residual[kSize], dy[kSize], dresidual[kSize], weight[kCols], bias[kCols];
  float y[kSize], sum[kSize], dx[kSize], mean[kRows], rstd[kRows], dweight[kCols], dbias[kCols];
  int64_t shape[2], col_shape[1], row_shape[1], axes[1];
  normact_norm_desc desc;
} problem;

static void setup(problem* p, int32_t kind, double weight_offset) {
  memset(p, 0, sizeof *p);
  fill(p->x, kSize);
  fill(p->residual, kSize);
  fill(p->dy, kSize);
  fill(p->dresidual, kSize);
  fill(p->weight, kCols);
  fill(p->bias, kCols);
  p->shape[0] = p->row_shape[0] = kRows;
  p->shape[1] = p->col_shape[0] = kCols;
  p->axes[0] = -1;
  p->desc.struct_size = sizeof p->desc;
  p->desc.kind = kind;
  p->desc.num_axes = 1;
  p->desc.axes = p->axes;
  p->desc.eps = 1e-5;
  p->desc.weight_offset = weight_offset;
}

/* A few roundings to fp32, and sums of tens of terms. */
static const double kTolerance = 4e-6;

/* Checks y, sum, mean and rstd of the forward. s = round(x + residual). */
static void check_forward(const problem* p) {
  const int centers = p->desc.kind == NORMACT_NORM_LAYER;
  for (int r = 0; r < kRows; ++r) {
    double mean = 0, squares = 0;
    const float* s = p->sum + r * kCols;
    for (int c = 0; c < kCols; ++c) {
      CHECK(s[c] == p->x[r * kCols + c] + p->residual[r * kCols + c]);
      if (centers) mean += (double)s[c] / kCols;
    }
    for (int c = 0; c < kCols; ++c) squares += (s[c] - mean) * (s[c] - mean);
    const double rstd = 1 / sqrt(squares / kCols + p->desc.eps);
    if (centers) near(p->mean[r], mean, kTolerance, "mean", r);
    near(p->rstd[r], rstd, kTolerance, "rstd", r);
    for (int c = 0; c < kCols; ++c) {
      const double gain = p->desc.weight_offset + p->weight[c];
      near(p->y[r * kCols + c], (s[c] - mean) * rstd * gain + p->bias[c], kTolerance, "y", r * kCols + c);
    }
  }
}

/* Checks dx, dweight and dbias of the backward, whose x is the forward's sum. */
static void check_backward(const problem* p) {
  double dweight[kCols] = {0}, dbias[kCols] = {0};
  const int centers = p->desc.kind == NORMACT_NORM_LAYER;
  for (int r = 0; r < kRows; ++r) {
    const float *s = p->sum + r * kCols, *dy = p->dy + r * kCols;
    const double mean = centers ? p->mean[r] : 0, rstd = p->rstd[r];
    double c1 = 0, c2 = 0;
    for (int c = 0; c < kCols; ++c) {
      const double xhat = (s[c] - mean) * rstd, g = dy[c] * (p->desc.weight_offset + p->weight[c]);
      if (centers) c1 += g / kCols;
      c2 += g * xhat / kCols;
      dweight[c] += dy[c] * xhat;
      dbias[c] += dy[c];
    }
    for (int c = 0; c < kCols; ++c) {
      const double xhat = (s[c] - mean) * rstd, g = dy[c] * (p->desc.weight_offset + p->weight[c]);
      const double expected = rstd * (g - c1 - xhat * c2) + p->dresidual[r * kCols + c];
      near(p->dx[r * kCols + c], expected, kTolerance, "dx", r * kCols + c);
    }
  }
  for (int c = 0; c < kCols; ++c) {
    near(p->dweight[c], dweight[c], kTolerance, "dweight", c);
    near(p->dbias[c], dbias[c], kTolerance, "dbias", c);
  }
}

static void test_norm(int32_t kind, double weight_offset) {
  problem p;
  setup(&p, kind, weight_offset);
  const normact_tensor x = tensor(p.x, 2, p.shape), residual = tensor(p.residual, 2, p.shape);
  const normact_tensor weight = tensor(p.weight, 1, p.col_shape), bias = tensor(p.bias, 1, p.col_shape);
  const normact_tensor y = tensor(p.y, 2, p.shape), sum = tensor(p.sum, 2, p.shape);
  const normact_tensor mean = tensor(p.mean, 1, p.row_shape), rstd = tensor(p.rstd, 1, p.row_shape);
  const normact_tensor* saved_mean = kind == NORMACT_NORM_LAYER ? &mean : NULL;
  const normact_norm_forward_args forward = {sizeof forward, &x,         &residual, &weight, &bias, &y,
                                             &sum,           saved_mean, &rstd};
  size_t bytes = 12345;
  CHECK(normact_norm_forward_workspace(&p.desc, &forward, NULL, &bytes) == NORMACT_OK);
  CHECK(bytes == 0);
  CHECK(normact_norm_forward(&p.desc, &forward, NULL) == NORMACT_OK);
  check_forward(&p);

  const normact_tensor dy = tensor(p.dy, 2, p.shape), dresidual = tensor(p.dresidual, 2, p.shape);
  const normact_tensor dx = tensor(p.dx, 2, p.shape);
  const normact_tensor dweight = tensor(p.dweight, 1, p.col_shape), dbias = tensor(p.dbias, 1, p.col_shape);
  const normact_norm_backward_args backward = {sizeof backward, &dy, &sum,     &weight, saved_mean, &rstd,
                                               &dresidual,      &dx, &dweight, &dbias,  NULL,       NULL};
  RUN_WITH_WORKSPACE(normact_norm_backward, &p.desc, &backward);
  check_backward(&p);
}

/* y and residual_out may be x and residual themselves. */
static void test_in_place(void) {
  problem p, q;
  setup(&p, NORMACT_NORM_LAYER, 0.0);
  q = p;
  const normact_tensor x = tensor(p.x, 2, p.shape), residual = tensor(p.residual, 2, p.shape);
  const normact_tensor y = tensor(p.y, 2, p.shape), sum = tensor(p.sum, 2, p.shape);
  const normact_norm_forward_args apart = {sizeof apart, &x, &residual, NULL, NULL, &y, &sum, NULL, NULL};
  CHECK(normact_norm_forward(&p.desc, &apart, NULL) == NORMACT_OK);
  const normact_tensor qx = tensor(q.x, 2, q.shape), qresidual = tensor(q.residual, 2, q.shape);
  const normact_norm_forward_args in_place = {sizeof in_place, &qx,  &qresidual, NULL, NULL, &qx,
                                              &qresidual,      NULL, NULL};
  CHECK(normact_norm_forward(&q.desc, &in_place, NULL) == NORMACT_OK);
  CHECK(memcmp(p.y, q.x, sizeof p.y) == 0);
  CHECK(memcmp(p.sum, q.residual, sizeof p.sum) == 0);
}

/* y = relu(h): the bare norm's y with its negative numbers replaced, and gradients of what is left. A caller of an
 * older version, whose desc ends before, gets none. */
static void test_activation(int32_t kind) {
  problem p, q;
  setup(&p, kind, 0.0);
  q = p;
  const normact_tensor x = tensor(p.x, 2, p.shape), dy = tensor(p.dy, 2, p.shape);
  const normact_tensor weight = tensor(p.weight, 1, p.col_shape), bias = tensor(p.bias, 1, p.col_shape);
  const normact_tensor mean = tensor(p.mean, 1, p.row_shape), rstd = tensor(p.rstd, 1, p.row_shape);
  const normact_tensor* saved_mean = kind == NORMACT_NORM_LAYER ? &mean : NULL;
  const normact_tensor y = tensor(p.y, 2, p.shape), act = tensor(q.y, 2, q.shape);
  const normact_norm_forward_args bare = {sizeof bare, &x, NULL, &weight, &bias, &y, NULL, saved_mean, &rstd};
  const normact_norm_forward_args activated = {sizeof activated, &x, NULL, &weight, &bias, &act, NULL, NULL, NULL};
  CHECK(normact_norm_forward(&p.desc, &bare, NULL) == NORMACT_OK);
  normact_norm_desc desc = p.desc;
  desc.activation = NORMACT_ACTIVATION_RELU;
  CHECK(normact_norm_forward(&desc, &activated, NULL) == NORMACT_OK);
  for (int i = 0; i < kSize; ++i) CHECK(q.y[i] == (p.y[i] > 0 ? p.y[i] : 0));

  const normact_tensor dx = tensor(p.dx, 2, p.shape), dweight = tensor(p.dweight, 1, p.col_shape);
  const normact_tensor dbias = tensor(p.dbias, 1, p.col_shape);
  const normact_norm_backward_args through = {sizeof through, &dy, &x,       &weight, saved_mean, &rstd,
                                              NULL,           &dx, &dweight, &dbias,  &bias,      NULL};
  RUN_WITH_WORKSPACE(normact_norm_backward, &desc, &through);
  for (int i = 0; i < kSize; ++i) q.dy[i] = p.y[i] > 0 ? p.dy[i] : 0;
  const normact_tensor dh = tensor(q.dy, 2, q.shape), qdx = tensor(q.dx, 2, q.shape);
  const normact_tensor qdweight = tensor(q.dweight, 1, q.col_shape), qdbias = tensor(q.dbias, 1, q.col_shape);
  const normact_norm_backward_args from = {sizeof from, &dh,  &x,        &weight, saved_mean, &rstd,
                                           NULL,        &qdx, &qdweight, &qdbias, NULL,       NULL};
  RUN_WITH_WORKSPACE(normact_norm_backward, &p.desc, &from);
  for (int i = 0; i < kSize; ++i) near(p.dx[i], q.dx[i], kTolerance, "dx", i);
  for (int c = 0; c < kCols; ++c) near(p.dweight[c], q.dweight[c], kTolerance, "dweight", c);
  for (int c = 0; c < kCols; ++c) near(p.dbias[c], q.dbias[c], kTolerance, "dbias", c);

  desc.struct_size = offsetof(normact_norm_desc, activation);
  CHECK(normact_norm_forward(&desc, &activated, NULL) == NORMACT_OK);
  CHECK(memcmp(p.y, q.y, sizeof p.y) == 0);
}

/* Empty problems: zero parameter gradients without rows; statistics as PyTorch's without columns. */
static void test_empty(void) {
  problem p;
  setup(&p, NORMACT_NORM_LAYER, 0.0);
  int64_t no_rows[2] = {0, kCols}, no_cols[2] = {kRows, 0}, none[1] = {0};
  const normact_tensor x = tensor(NULL, 2, no_rows), statistic = tensor(NULL, 1, none);
  memset(p.dweight, 0xff, sizeof p.dweight);
  memset(p.dbias, 0xff, sizeof p.dbias);
  const normact_tensor dweight = tensor(p.dweight, 1, p.col_shape), dbias = tensor(p.dbias, 1, p.col_shape);
  const normact_norm_backward_args backward = {sizeof backward, &x,     &x,   NULL, &statistic, &statistic, NULL, &x,
                                               &dweight,        &dbias, NULL, NULL};
  RUN_WITH_WORKSPACE(normact_norm_backward, &p.desc, &backward);
  for (int c = 0; c < kCols; ++c) CHECK(p.dweight[c] == 0.0f && p.dbias[c] == 0.0f);

  const normact_tensor narrow = tensor(NULL, 2, no_cols);
  const normact_tensor mean = tensor(p.mean, 1, p.row_shape), rstd = tensor(p.rstd, 1, p.row_shape);
  const normact_norm_forward_args forward = {sizeof forward, &narrow, NULL, NULL, NULL, &narrow, NULL, &mean, &rstd};
  CHECK(normact_norm_forward(&p.desc, &forward, NULL) == NORMACT_OK);
  for (int r = 0; r < kRows; ++r) CHECK(p.mean[r] == 0.0f && isnan(p.rstd[r]));
}

static void test_library(void) {
  CHECK(normact_version() == NORMACT_VERSION);
  CHECK(strcmp(normact_status_string(NORMACT_OK), "success") == 0);
  CHECK(strcmp(normact_status_string(NORMACT_INVALID_ARGUMENT), "an argument is wrong") == 0);
  CHECK(normact_status_string((normact_status)99) != NULL);
  const char* names[] = {"version", "cuda", "cuda_architectures", "compiler", "cpu_isa"};
  for (int i = 0; i < 5; ++i) CHECK(normact_build_info(names[i]) != NULL);
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", NORMACT_VERSION_MAJOR, NORMACT_VERSION_MINOR, NORMACT_VERSION_PATCH);
  CHECK(strcmp(normact_build_info("version"), version) == 0);
  CHECK(strlen(normact_build_info("cpu_isa")) > 0);
  CHECK(normact_build_info("no such fact") == NULL);
  CHECK(normact_build_info(NULL) == NULL);
  CHECK(normact_get_num_threads() >= 1);
  CHECK(normact_set_num_threads(3) == NORMACT_OK);
  CHECK(normact_get_num_threads() == 3);
  CHECK(normact_set_num_threads(0) == NORMACT_INVALID_ARGUMENT);
  CHECK(strstr(normact_last_error(), "normact_set_num_threads: count is 0") == normact_last_error());
  CHECK(normact_get_num_threads() == 3);
}

int main(void) {
  CHECK(normact_last_error()[0] == '\0');
  test_norm(NORMACT_NORM_LAYER, 0.0);
  test_norm(NORMACT_NORM_LAYER, 1.0);
  test_norm(NORMACT_NORM_RMS, 0.0);
  test_norm(NORMACT_NORM_RMS, 1.0);
  test_activation(NORMACT_NORM_LAYER);
  test_activation(NORMACT_NORM_RMS);
  test_in_place();
  test_empty();
  test_library();
  return finish();
}
