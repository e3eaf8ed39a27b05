/* SPDX-License-Identifier: Apache-2.0
 *
 * Malformed calls of activations and gated activations, through the public functions: status, the function's name in
 * the sentence, and nothing written. Every sentence in full: tests/cpp/read_pointwise_errors_test.cpp.
 */
#include "check.h"

enum { kRows = 3, kCols = 4, kSize = kRows * kCols };

typedef struct outputs {
  float y[kSize], dx[kSize], dbias[kCols];
} outputs;

typedef struct call {
  float x[kSize], dy[kSize], bias[kCols];
  outputs out;
  int64_t shape[2], half[2], cols[1];
  normact_tensor tx, tdy, tbias, ty, tdx, tdbias;
  normact_activation_desc desc;
  normact_activation_forward_args forward;
  normact_activation_backward_args backward;
  normact_gated_desc gated_desc; /* x is the packed gate; y and dy are half as wide */
  normact_gated_forward_args gated_forward;
  normact_gated_backward_args gated_backward;
  normact_exec exec;
} call;

static int cases = 0;
static call c;
static _Alignas(256) unsigned char workspace[1 << 16];

static void setup(int gated) {
  memset(&c, 0, sizeof c);
  memset(&c.out, 0xa5, sizeof c.out);
  c.shape[0] = c.half[0] = kRows;
  c.shape[1] = c.cols[0] = kCols;
  c.half[1] = kCols / 2;
  int64_t* narrow = gated ? c.half : c.shape;
  c.tx = tensor(c.x, 2, c.shape);
  c.tdy = tensor(c.dy, 2, narrow);
  c.tbias = tensor(c.bias, 1, c.cols);
  c.ty = tensor(c.out.y, 2, narrow);
  c.tdx = tensor(c.out.dx, 2, c.shape);
  c.tdbias = tensor(c.out.dbias, 1, c.cols);
  c.desc = (normact_activation_desc){sizeof c.desc, NORMACT_ACTIVATION_SILU, 1, 0, 0, 0};
  c.forward = (normact_activation_forward_args){sizeof c.forward, &c.tx, &c.tbias, &c.ty, NULL};
  c.backward =
      (normact_activation_backward_args){sizeof c.backward, &c.tdy, &c.tx, &c.tbias, NULL, NULL, &c.tdx, &c.tdbias};
  c.gated_desc =
      (normact_gated_desc){sizeof c.gated_desc, NORMACT_ACTIVATION_SILU, NORMACT_GATE_SPLIT, 1, 0, 0, 0, 0, 0, 0};
  c.gated_forward = (normact_gated_forward_args){sizeof c.gated_forward, &c.tx, NULL, &c.tbias, NULL, &c.ty};
  c.gated_backward = (normact_gated_backward_args){
      sizeof c.gated_backward, &c.tdy, &c.tx, NULL, &c.tbias, NULL, &c.tdx, NULL, &c.tdbias, NULL};
  c.exec = (normact_exec){sizeof c.exec, NULL, workspace, sizeof workspace, NORMACT_ROW_AUTO, 0};
}

typedef normact_status (*function)(void);

static normact_status activation_forward(void) { return normact_activation_forward(&c.desc, &c.forward, &c.exec); }
static normact_status activation_backward(void) { return normact_activation_backward(&c.desc, &c.backward, &c.exec); }
static normact_status gated_forward(void) { return normact_gated_forward(&c.gated_desc, &c.gated_forward, &c.exec); }
static normact_status gated_backward(void) { return normact_gated_backward(&c.gated_desc, &c.gated_backward, &c.exec); }

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

#define CASE(run, status, sentence, change)                                 \
  do {                                                                      \
    setup(#run[0] == 'g');                                                  \
    change;                                                                 \
    expect(run, NORMACT_##status, "normact_" #run ": " sentence, __LINE__); \
  } while (0)

static void test_they_work_unbroken(void) {
  setup(0);
  CHECK(activation_forward() == NORMACT_OK);
  CHECK(activation_backward() == NORMACT_OK);
  setup(1);
  CHECK(gated_forward() == NORMACT_OK);
  CHECK(gated_backward() == NORMACT_OK);
}

static void test_arguments(void) {
  CASE(activation_forward, INVALID_ARGUMENT, "x is NULL; expected a tensor", c.forward.x = NULL);
  CASE(activation_forward, INVALID_ARGUMENT, "desc->axis is 2; expected an axis of x, which has 2 dimensions",
       c.desc.axis = 2);
  CASE(activation_forward, INVALID_ARGUMENT, "y has dtype float64; expected float32 as x has dtype float32",
       c.ty.dtype_bits = 64);
  CASE(activation_forward, INVALID_ARGUMENT, "mask is given with kind silu; expected NULL, as only relu has a mask",
       c.forward.mask = &c.tx);
  CASE(activation_backward, INVALID_ARGUMENT,
       "x and y are given; expected exactly one of x, y and mask, which the slope comes from", c.backward.y = &c.ty);
  CASE(activation_backward, INVALID_ARGUMENT, "dbias has shape (3, 4); expected (4,), x's size along axis 1",
       (c.tdbias.ndim = 2, c.tdbias.shape = c.shape));
  CASE(gated_forward, INVALID_ARGUMENT, "gate has size 3 along axis 0; expected an even size", c.gated_desc.axis = 0);
  CASE(gated_forward, INVALID_ARGUMENT, "desc->reserved is 1; expected 0", c.gated_desc.reserved = 1);
  CASE(gated_forward, INVALID_ARGUMENT, "up is NULL; expected a tensor, as desc->layout is separate",
       c.gated_desc.layout = NORMACT_GATE_SEPARATE);
  CASE(gated_backward, INVALID_ARGUMENT, "dup is given with layout split; expected NULL, as dgate holds both halves",
       c.gated_backward.dup = &c.tdx);
  CASE(gated_backward, INVALID_ARGUMENT, "dgate overlaps dgate_bias; expected separate memory",
       c.tdbias.data = c.out.dx);
}

static void test_exec(void) {
  CASE(activation_forward, INVALID_ARGUMENT, "exec->sm_margin is -1; expected at least 0", c.exec.sm_margin = -1);
  CASE(activation_forward, NOT_SUPPORTED,
       "exec->row_variant is 2, which names a row kernel, but activations have none; expected NORMACT_ROW_AUTO",
       c.exec.row_variant = NORMACT_ROW_BLOCK);
  CASE(gated_backward, NOT_SUPPORTED,
       "exec->row_variant is 6, which names a row kernel, but activations have none; expected NORMACT_ROW_AUTO",
       c.exec.row_variant = NORMACT_ROW_STREAM);
  setup(1);
  size_t bytes = 77;
  CHECK(normact_gated_backward_workspace(&c.gated_desc, &c.gated_backward, &c.exec, &bytes) == NORMACT_OK);
  CHECK(bytes <= sizeof workspace);
  if (bytes > 0) {
    c.exec.workspace = NULL;
    CHECK(gated_backward() == NORMACT_WORKSPACE_TOO_SMALL);
    CHECK(strstr(normact_last_error(), "normact_gated_backward: exec->workspace is NULL") != NULL);
  }
}

/* A query looks at no data pointer, and leaves the size alone when it fails. */
static void test_queries(void) {
  size_t bytes = 77;
  setup(0);
  c.tx.data = c.ty.data = c.tdy.data = c.tdx.data = c.tbias.data = c.tdbias.data = NULL;
  CHECK(normact_activation_forward_workspace(&c.desc, &c.forward, NULL, &bytes) == NORMACT_OK);
  CHECK(bytes == 0);
  bytes = 77;
  CHECK(normact_activation_backward_workspace(&c.desc, &c.backward, NULL, &bytes) == NORMACT_OK);
  CHECK(bytes != 77);
  bytes = 77;
  c.tx.ndim = -1;
  CHECK(normact_activation_backward_workspace(&c.desc, &c.backward, NULL, &bytes) == NORMACT_INVALID_ARGUMENT);
  CHECK(bytes == 77);
  CHECK(normact_gated_forward_workspace(&c.gated_desc, &c.gated_forward, NULL, NULL) == NORMACT_INVALID_ARGUMENT);
  CHECK(strcmp(normact_last_error(),
               "normact_gated_forward_workspace: bytes is NULL; expected where to write the size") == 0);
}

int main(void) {
  test_they_work_unbroken();
  test_arguments();
  test_exec();
  test_queries();
  printf("%d cases: ", cases);
  return finish();
}
