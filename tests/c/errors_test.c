/* SPDX-License-Identifier: Apache-2.0
 *
 * Malformed calls: each gives its status and a sentence that names the argument, and writes nothing. A case takes a
 * call that works and breaks one thing.
 */
#include "check.h"

enum { kRows = 3, kCols = 4, kSize = kRows * kCols, kWorkspace = 1 << 16 };

static int cases = 0;
static _Alignas(256) unsigned char workspace[kWorkspace + 256];

typedef struct outputs {
  float y[kSize + 1], residual_out[kSize], mean[kRows], rstd[kRows], dx[kSize], dweight[kCols], dbias[kCols];
} outputs;

typedef struct call {
  float values[8][kSize + 1]; /* inputs */
  outputs out;
  int64_t shape[2], strides[2], cols[1], rows[1], axes[4];
  normact_tensor x, residual, weight, bias, y, residual_out, mean, rstd, dy, dresidual, dx, dweight, dbias;
  normact_norm_desc desc;
  normact_norm_forward_args forward;
  normact_norm_backward_args backward;
  normact_exec exec;
} call;

static void setup(call* c) {
  memset(c, 0, sizeof *c);
  memset(&c->out, 0xa5, sizeof c->out);
  for (int i = 0; i < 8 * (kSize + 1); ++i) c->values[i / (kSize + 1)][i % (kSize + 1)] = (float)(i % 7) + 1.0f;
  c->shape[0] = c->rows[0] = kRows;
  c->shape[1] = c->cols[0] = c->strides[0] = kCols;
  c->strides[1] = 1;
  c->axes[0] = -1;
  c->x = tensor(c->values[0], 2, c->shape);
  c->residual = tensor(c->values[1], 2, c->shape);
  c->dy = tensor(c->values[2], 2, c->shape);
  c->dresidual = tensor(c->values[3], 2, c->shape);
  c->weight = tensor(c->values[4], 1, c->cols);
  c->bias = tensor(c->values[5], 1, c->cols);
  c->y = tensor(c->out.y, 2, c->shape);
  c->residual_out = tensor(c->out.residual_out, 2, c->shape);
  c->mean = tensor(c->out.mean, 1, c->rows);
  c->rstd = tensor(c->out.rstd, 1, c->rows);
  c->dx = tensor(c->out.dx, 2, c->shape);
  c->dweight = tensor(c->out.dweight, 1, c->cols);
  c->dbias = tensor(c->out.dbias, 1, c->cols);
  c->desc = (normact_norm_desc){sizeof c->desc, NORMACT_NORM_LAYER, 1, c->axes, 1e-5, 0.0, 0, 0, 0, 0, 0};
  c->forward = (normact_norm_forward_args){sizeof c->forward, &c->x,    &c->residual, &c->weight, &c->bias, &c->y,
                                           &c->residual_out,  &c->mean, &c->rstd};
  c->backward = (normact_norm_backward_args){sizeof c->backward, &c->dy, &c->x,       &c->weight, &c->mean, &c->rstd,
                                             &c->dresidual,      &c->dx, &c->dweight, &c->dbias,  NULL,     NULL};
  c->exec = (normact_exec){sizeof c->exec, NULL, workspace, kWorkspace, NORMACT_ROW_AUTO, 0};
}

typedef normact_status (*function)(const call*);

static normact_status forward(const call* c) { return normact_norm_forward(&c->desc, &c->forward, &c->exec); }
static normact_status backward(const call* c) { return normact_norm_backward(&c->desc, &c->backward, &c->exec); }

static void expect(const call* c, function run, normact_status status, const char* function_name, const char* word,
                   int line) {
  outputs before;
  memcpy(&before, &c->out, sizeof before);
  const normact_status found = run(c);
  const char* sentence = normact_last_error();
  const int good = found == status && strstr(sentence, function_name) == sentence && strstr(sentence, word) != NULL &&
                   memcmp(&before, &c->out, sizeof before) == 0;
  ++cases;
  if (good) return;
  ++failures;
  fprintf(stderr, "%s:%d: wanted status %d, '%s' and untouched outputs; got status %d, '%s'\n", __FILE__, line, status,
          word, found, sentence);
}

/* The change, which function then fails, with what status and what word in the sentence. */
#define CASE(run, status, word, change)                                           \
  do {                                                                            \
    setup(&c);                                                                    \
    change;                                                                       \
    expect(&c, run, NORMACT_##status, "normact_norm_" #run ": ", word, __LINE__); \
  } while (0)

static call c;

static void test_it_works_unbroken(void) {
  setup(&c);
  CHECK(forward(&c) == NORMACT_OK);
  CHECK(backward(&c) == NORMACT_OK);
}

static void test_structs(void) {
  static union {
    normact_norm_desc desc;
    unsigned char bytes[8192];
  } longer;
  CASE(forward, INVALID_ARGUMENT, "desc->struct_size is 0", c.desc.struct_size = 0);
  CASE(forward, INVALID_ARGUMENT, "desc->struct_size is 8", c.desc.struct_size = 8);
  CASE(forward, INVALID_ARGUMENT, "desc->struct_size is 5000", c.desc.struct_size = 5000);
  CASE(forward, INVALID_ARGUMENT, "args->struct_size", c.forward.struct_size -= 1);
  CASE(backward, INVALID_ARGUMENT, "args->struct_size", c.backward.struct_size = (size_t)-1);
  CASE(forward, INVALID_ARGUMENT, "exec->struct_size", c.exec.struct_size = 1);
  setup(&c);
  longer.desc = c.desc;
  longer.desc.struct_size = 200;
  CHECK(normact_norm_forward(&longer.desc, &c.forward, &c.exec) == NORMACT_OK);
  longer.bytes[199] = 1;
  CHECK(normact_norm_forward(&longer.desc, &c.forward, &c.exec) == NORMACT_NOT_SUPPORTED);
  CHECK(strstr(normact_last_error(), "desc->struct_size is 200") != NULL);
}

static void test_desc(void) {
  CASE(forward, INVALID_ARGUMENT, "desc->kind is 7", c.desc.kind = 7);
  CASE(forward, INVALID_ARGUMENT, "desc->eps is nan", c.desc.eps = NAN);
  CASE(forward, INVALID_ARGUMENT, "desc->eps is -1", c.desc.eps = -1.0);
  CASE(backward, INVALID_ARGUMENT, "desc->eps is inf", c.desc.eps = INFINITY);
  CASE(forward, INVALID_ARGUMENT, "desc->weight_offset", c.desc.weight_offset = NAN);
  CASE(forward, INVALID_ARGUMENT, "desc->activation is 99; expected one of identity 0,", c.desc.activation = 99);
  CASE(backward, INVALID_ARGUMENT, "desc->activation is -1", c.desc.activation = -1);
  CASE(forward, INVALID_ARGUMENT, "desc->reserved is 1", c.desc.reserved = 1);
  CASE(backward, INVALID_ARGUMENT, "desc->alpha is nan",
       (c.desc.activation = NORMACT_ACTIVATION_ELU, c.desc.alpha = NAN));
  CASE(forward, INVALID_ARGUMENT, "desc->beta is 0", c.desc.activation = NORMACT_ACTIVATION_SOFTPLUS);
  CASE(backward, INVALID_ARGUMENT, "bias", (c.desc.activation = NORMACT_ACTIVATION_GELU, c.backward.bias = &c.x));
  CASE(forward, INVALID_ARGUMENT, "weight is NULL", (c.desc.weight_offset = 1, c.forward.weight = NULL));
  CASE(forward, INVALID_ARGUMENT, "desc->num_axes is 0", c.desc.num_axes = 0);
  CASE(forward, INVALID_ARGUMENT, "desc->axes is NULL", c.desc.axes = NULL);
  CASE(forward, INVALID_ARGUMENT, "desc->axes[0] is 2", c.axes[0] = 2);
  CASE(forward, INVALID_ARGUMENT, "desc->axes[0] is -3", c.axes[0] = -3);
  CASE(forward, INVALID_ARGUMENT, "desc->axes[1] is 1", (c.desc.num_axes = 2, c.axes[1] = 1));
  CASE(forward, INVALID_ARGUMENT, "weight has shape", c.axes[0] = 0);
  CASE(backward, INVALID_ARGUMENT, "x's shape over the normalised axes", c.axes[0] = -2);
}

static void test_presence(void) {
  CASE(forward, INVALID_ARGUMENT, "x is NULL", c.forward.x = NULL);
  CASE(forward, INVALID_ARGUMENT, "y is NULL", c.forward.y = NULL);
  CASE(forward, INVALID_ARGUMENT, "residual_out", c.forward.residual_out = NULL);
  CASE(forward, INVALID_ARGUMENT, "residual (", c.forward.residual = NULL);
  CASE(forward, INVALID_ARGUMENT, "mean is given", c.desc.kind = NORMACT_NORM_RMS);
  CASE(backward, INVALID_ARGUMENT, "mean is given", c.desc.kind = NORMACT_NORM_RMS);
  CASE(backward, INVALID_ARGUMENT, "dy is NULL", c.backward.dy = NULL);
  CASE(backward, INVALID_ARGUMENT, "x is NULL", c.backward.x = NULL);
  CASE(backward, INVALID_ARGUMENT, "mean is NULL", c.backward.mean = NULL);
  CASE(backward, INVALID_ARGUMENT, "rstd is NULL", c.backward.rstd = NULL);
  CASE(backward, INVALID_ARGUMENT, "dx is NULL", c.backward.dx = NULL);
}

static void test_tensors(void) {
  static int64_t huge[2] = {INT64_MAX, 2}, negative[2] = {kRows, -kCols}, other[2] = {kRows + 1, kCols}, one[1] = {1};
  static int64_t far_strides[2] = {INT64_MAX, 1};
  CASE(forward, INVALID_ARGUMENT, "x has NULL data", c.x.data = NULL);
  CASE(forward, INVALID_ARGUMENT, "mean has NULL data", c.mean.data = NULL);
  CASE(backward, INVALID_ARGUMENT, "dbias has NULL data", c.dbias.data = NULL);
  CASE(forward, INVALID_ARGUMENT, "x has size -4 in dimension 1", c.x.shape = negative);
  CASE(forward, INVALID_ARGUMENT, "x has shape (9223372036854775807, 2)", c.x.shape = huge);
  CASE(forward, INVALID_ARGUMENT, "x has strides", c.x.strides = far_strides);
  CASE(forward, INVALID_ARGUMENT, "bias has ndim -1", c.bias.ndim = -1);
  CASE(forward, INVALID_ARGUMENT, "x has a NULL shape", c.x.shape = NULL);
  CASE(forward, INVALID_ARGUMENT, "weight has dtype lanes 4", c.weight.dtype_lanes = 4);
  CASE(forward, INVALID_ARGUMENT, "x has dtype code 0 with 32 bits", c.x.dtype_code = 0);
  CASE(forward, INVALID_ARGUMENT, "y has dtype code 2 with 8 bits", c.y.dtype_bits = 8);
  CASE(forward, INVALID_ARGUMENT, "x has device_type 4", c.x.device_type = 4);
  CASE(forward, INVALID_ARGUMENT, "x has device_id -1", c.x.device_id = -1);
  CASE(forward, INVALID_ARGUMENT, "weight is on CUDA device 1", (c.weight.device_type = 2, c.weight.device_id = 1));
  CASE(backward, INVALID_ARGUMENT, "dx is on CUDA device 0", c.dx.device_type = NORMACT_DEVICE_CUDA_MANAGED);
  CASE(forward, INVALID_ARGUMENT, "x has byte_offset", c.x.byte_offset = UINT64_MAX - 3);
  CASE(forward, INVALID_ARGUMENT, "y has data at an address", c.y.byte_offset = 2);
  CASE(forward, INVALID_ARGUMENT, "y has shape (4, 4); expected (3, 4)", c.y.shape = other);
  CASE(forward, INVALID_ARGUMENT, "weight has shape (3, 4); expected (4,)",
       (c.weight.ndim = 2, c.weight.shape = c.shape));
  CASE(forward, INVALID_ARGUMENT, "weight has shape (1,)", c.weight.shape = one);
  CASE(forward, INVALID_ARGUMENT, "rstd has shape (4,); expected (3,)", c.rstd.shape = c.cols);
  CASE(backward, INVALID_ARGUMENT, "dweight has shape ()", c.dweight.ndim = 0);
  CASE(forward, INVALID_ARGUMENT, "weight has dtype float16; expected float32", c.weight.dtype_bits = 16);
  CASE(forward, INVALID_ARGUMENT, "residual has dtype bfloat16",
       (c.residual.dtype_bits = 16, c.residual.dtype_code = 4));
  CASE(forward, INVALID_ARGUMENT, "mean has dtype float16; expected float32", c.mean.dtype_bits = 16);
}

static void test_overlaps(void) {
  static int64_t expanded[2] = {0, 1}, interleaved[2] = {3, 1}, narrow[2] = {3, 4}, wide[2] = {4, 1};
  CASE(forward, INVALID_ARGUMENT, "y overlaps x", c.x.data = c.out.y + 1);
  CASE(forward, INVALID_ARGUMENT, "y overlaps residual;", c.residual.data = c.out.y);
  CASE(forward, INVALID_ARGUMENT, "y overlaps residual_out", c.residual_out.data = c.out.y);
  CASE(forward, INVALID_ARGUMENT, "y overlaps itself", c.y.strides = expanded);
  CASE(forward, INVALID_ARGUMENT, "y overlaps itself", c.y.strides = interleaved);
  CASE(forward, INVALID_ARGUMENT, "mean overlaps rstd", c.rstd.data = c.out.mean);
  CASE(forward, INVALID_ARGUMENT, "y overlaps bias", c.bias.data = c.out.y + 3);
  CASE(backward, INVALID_ARGUMENT, "dweight overlaps weight", c.weight.data = c.out.dweight);
  CASE(backward, INVALID_ARGUMENT, "dx overlaps dy", (c.dy.data = c.out.dx, c.dy.strides = expanded));
  /* The very same tensor, said with and without strides, is fine; so are separate halves of one buffer. */
  setup(&c);
  c.y = c.x;
  c.y.strides = wide;
  CHECK(forward(&c) == NORMACT_OK);
  static float buffer[kRows * 2 * kCols];
  static int64_t halves[2] = {2 * kCols, 1};
  setup(&c);
  c.x.data = buffer;
  c.y.data = buffer + kCols;
  c.x.strides = c.y.strides = halves;
  c.x.shape = c.y.shape = narrow;
  CHECK(forward(&c) == NORMACT_OK);
}

static void test_exec(void) {
  size_t bytes = 77;
  CASE(forward, INVALID_ARGUMENT, "exec->row_variant is 9", c.exec.row_variant = 9);
  CASE(forward, INVALID_ARGUMENT, "exec->sm_margin is -1", c.exec.sm_margin = -1);
  CASE(forward, NOT_SUPPORTED, "exec->row_variant is 1", c.exec.row_variant = NORMACT_ROW_WARP);
  setup(&c);
  CHECK(normact_norm_backward_workspace(&c.desc, &c.backward, &c.exec, &bytes) == NORMACT_OK);
  CHECK(bytes <= kWorkspace);
  if (bytes > 0) {
    CASE(backward, WORKSPACE_TOO_SMALL, "exec->workspace is NULL", c.exec.workspace = NULL);
    CASE(backward, WORKSPACE_TOO_SMALL, "exec->workspace_bytes", c.exec.workspace_bytes = bytes - 1);
    CASE(backward, WORKSPACE_TOO_SMALL, "exec->workspace is misaligned", c.exec.workspace = workspace + 64);
  }
  CHECK(normact_norm_forward_workspace(&c.desc, &c.forward, NULL, NULL) == NORMACT_INVALID_ARGUMENT);
  CHECK(strstr(normact_last_error(), "bytes is NULL") != NULL);
  CHECK(normact_norm_forward(NULL, &c.forward, NULL) == NORMACT_INVALID_ARGUMENT);
  CHECK(strstr(normact_last_error(), "normact_norm_forward: desc is NULL") != NULL);
  CHECK(normact_norm_backward(&c.desc, NULL, NULL) == NORMACT_INVALID_ARGUMENT);
  CHECK(strstr(normact_last_error(), "normact_norm_backward: args is NULL") != NULL);
}

/* A query looks at no data pointer, and leaves the size alone when it fails. */
static void test_queries(void) {
  size_t bytes = 77;
  setup(&c);
  c.dy.data = c.x.data = c.mean.data = c.rstd.data = c.dx.data = c.dweight.data = c.dbias.data = NULL;
  CHECK(normact_norm_backward_workspace(&c.desc, &c.backward, NULL, &bytes) == NORMACT_OK);
  CHECK(bytes != 77);
  bytes = 77;
  c.x.ndim = -1;
  CHECK(normact_norm_backward_workspace(&c.desc, &c.backward, NULL, &bytes) == NORMACT_INVALID_ARGUMENT);
  CHECK(bytes == 77);
}

int main(void) {
  test_it_works_unbroken();
  test_structs();
  test_desc();
  test_presence();
  test_tensors();
  test_overlaps();
  test_exec();
  test_queries();
  printf("%d cases: ", cases);
  return finish();
}
