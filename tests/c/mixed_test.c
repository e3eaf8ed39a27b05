/* SPDX-License-Identifier: Apache-2.0
 *
 * A residual stream of float32 beside tensors of bfloat16, called from strict C11: the float32 results are those of the
 * same numbers in float32 alone, bit for bit, and the others these, rounded.
 */
#include "check.h"

enum { kRows = 5, kCols = 40, kSize = kRows * kCols };

typedef struct problem {
  uint16_t x[kSize], y[kSize], dy[kSize], dx[kSize];
  float residual[kSize], sum[kSize], dresidual[kSize], daddend[kSize], weight[kCols], dweight[kCols];
  float rstd[kRows], wide_x[kSize], wide_y[kSize], wide_dy[kSize], wide_dx[kSize], wide_dweight[kCols];
  int64_t shape[2], col_shape[1], row_shape[1], axes[1];
  normact_norm_desc desc;
} problem;

static normact_tensor narrow(uint16_t* data, int64_t* shape) {
  normact_tensor t = {data, NORMACT_DEVICE_CPU, 0, 2, NORMACT_DTYPE_BFLOAT, 16, 1, shape, NULL, 0};
  return t;
}

static float widened(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

/* To nearest, ties to even; of finite numbers. */
static uint16_t rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static void setup(problem* p) {
  memset(p, 0, sizeof *p);
  fill(p->wide_x, kSize);
  fill(p->wide_dy, kSize);
  fill(p->residual, kSize);
  fill(p->dresidual, kSize);
  fill(p->weight, kCols);
  for (int i = 0; i < kSize; ++i) {
    p->x[i] = rounded(p->wide_x[i]), p->wide_x[i] = widened(p->x[i]);
    p->dy[i] = rounded(p->wide_dy[i]), p->wide_dy[i] = widened(p->dy[i]);
  }
  p->shape[0] = p->row_shape[0] = kRows;
  p->shape[1] = p->col_shape[0] = kCols;
  p->axes[0] = 1;
  p->desc.struct_size = sizeof p->desc;
  p->desc.kind = NORMACT_NORM_RMS;
  p->desc.num_axes = 1;
  p->desc.axes = p->axes;
  p->desc.eps = 1e-5;
}

/* y, the sum, and what the same in float32 gives. */
static void test_forward(problem* p) {
  const normact_tensor x = narrow(p->x, p->shape), y = narrow(p->y, p->shape),
                       weight = tensor(p->weight, 1, p->col_shape);
  const normact_tensor residual = tensor(p->residual, 2, p->shape), sum = tensor(p->sum, 2, p->shape);
  const normact_tensor rstd = tensor(p->rstd, 1, p->row_shape);
  const normact_norm_forward_args args = {sizeof args, &x, &residual, &weight, NULL, &y, &sum, NULL, &rstd};
  CHECK(normact_norm_forward(&p->desc, &args, NULL) == NORMACT_OK);
  for (int i = 0; i < kSize; ++i) CHECK(p->sum[i] == p->wide_x[i] + p->residual[i]);
  const normact_tensor wide_y = tensor(p->wide_y, 2, p->shape);
  const normact_norm_forward_args wide = {sizeof wide, &sum, NULL, &weight, NULL, &wide_y, NULL, NULL, NULL};
  CHECK(normact_norm_forward(&p->desc, &wide, NULL) == NORMACT_OK);
  for (int i = 0; i < kSize; ++i) CHECK(p->y[i] == rounded(p->wide_y[i]));
}

/* dx, daddend and dweight; daddend is not asked for by NULL, and not by a caller of the version that had none. */
static void test_backward(problem* p) {
  const normact_tensor dy = narrow(p->dy, p->shape), dx = narrow(p->dx, p->shape), sum = tensor(p->sum, 2, p->shape);
  const normact_tensor weight = tensor(p->weight, 1, p->col_shape), rstd = tensor(p->rstd, 1, p->row_shape);
  const normact_tensor dresidual = tensor(p->dresidual, 2, p->shape), daddend = tensor(p->daddend, 2, p->shape);
  const normact_tensor dweight = tensor(p->dweight, 1, p->col_shape);
  const normact_tensor wide_dy = tensor(p->wide_dy, 2, p->shape), wide_dx = tensor(p->wide_dx, 2, p->shape);
  const normact_tensor wide_dweight = tensor(p->wide_dweight, 1, p->col_shape);
  const normact_norm_backward_args wide = {sizeof wide, &wide_dy, &sum,          &weight, NULL, &rstd,
                                           &dresidual,  &wide_dx, &wide_dweight, NULL,    NULL, NULL};
  RUN_WITH_WORKSPACE(normact_norm_backward, &p->desc, &wide);
  normact_norm_backward_args args = {sizeof args, &dy, &sum,     &weight, NULL, &rstd,
                                     &dresidual,  &dx, &dweight, NULL,    NULL, &daddend};
  RUN_WITH_WORKSPACE(normact_norm_backward, &p->desc, &args);
  for (int i = 0; i < kSize; ++i) CHECK(p->daddend[i] == p->wide_dx[i] && p->dx[i] == rounded(p->wide_dx[i]));
  for (int c = 0; c < kCols; ++c) CHECK(p->dweight[c] == p->wide_dweight[c]);

  memset(p->daddend, 0, sizeof p->daddend);
  for (int version = 0; version < 2; ++version) {
    memset(p->dx, 0, sizeof p->dx);
    if (version == 0) args.daddend = NULL;
    if (version == 1) args.daddend = &daddend, args.struct_size = offsetof(normact_norm_backward_args, daddend);
    RUN_WITH_WORKSPACE(normact_norm_backward, &p->desc, &args);
    for (int i = 0; i < kSize; ++i) CHECK(p->daddend[i] == 0.0f && p->dx[i] == rounded(p->wide_dx[i]));
  }
}

static void refused(const normact_norm_desc* desc, const normact_norm_backward_args* args, const char* sentence) {
  CHECK(normact_norm_backward(desc, args, NULL) == NORMACT_INVALID_ARGUMENT);
  CHECK(strstr(normact_last_error(), sentence) != NULL);
}

static void test_errors(problem* p) {
  const normact_tensor low = narrow(p->dy, p->shape), out = narrow(p->dx, p->shape), sum = tensor(p->sum, 2, p->shape);
  const normact_tensor rstd = tensor(p->rstd, 1, p->row_shape), daddend = tensor(p->daddend, 2, p->shape);
  const normact_tensor high = tensor(p->wide_dy, 2, p->shape), wide_out = tensor(p->wide_dx, 2, p->shape);
  normact_norm_backward_args args = {sizeof args, &high,     &sum, NULL, NULL, &rstd,
                                     NULL,        &wide_out, NULL, NULL, NULL, &daddend};
  refused(&p->desc, &args, "daddend is given; expected NULL, as dx is the gradient of both");
  args.dy = &low;
  refused(&p->desc, &args, "dx has dtype float32; expected bfloat16 as dy has dtype bfloat16");
  args.dx = &out;
  args.daddend = &low;
  refused(&p->desc, &args, "daddend has dtype bfloat16; expected float32 as x has dtype float32");
  args.daddend = &high;  // whose memory is its own
  args.dresidual = &low;
  refused(&p->desc, &args, "dresidual has dtype bfloat16; expected float32");
}

int main(void) {
  problem p;
  setup(&p);
  test_forward(&p);
  test_backward(&p);
  test_errors(&p);
  return finish();
}
