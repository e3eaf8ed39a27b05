/* SPDX-License-Identifier: Apache-2.0
 *
 * Every function for activations and gated activations, called from strict C11. The results are compared with plain
 * formulas in double precision that share nothing with the library; slopes with differences of these.
 */
#include "check.h"

enum { kRows = 5, kCols = 37, kSize = kRows * kCols, kMaskBytes = (kSize + 7) / 8, kKinds = 16 };

static const double kAlpha = 0.25, kBeta = 1.5, kThreshold = 20.0;

/* A few roundings to fp32, and sums of a few terms. */
static const double kTolerance = 4e-6;

static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double clamp(double x, double low, double high) { return fmin(fmax(x, low), high); }

static double value(int kind, double x) {
  switch (kind) {
    case NORMACT_ACTIVATION_IDENTITY: return x;
    case NORMACT_ACTIVATION_RELU: return fmax(x, 0);
    case NORMACT_ACTIVATION_RELU6: return clamp(x, 0, 6);
    case NORMACT_ACTIVATION_SQUARED_RELU: return fmax(x, 0) * fmax(x, 0);
    case NORMACT_ACTIVATION_LEAKY_RELU: return x > 0 ? x : kAlpha * x;
    case NORMACT_ACTIVATION_ELU: return x > 0 ? x : kAlpha * expm1(x);
    case NORMACT_ACTIVATION_GELU: return x / 2 * erfc(-x / sqrt(2.0));
    case NORMACT_ACTIVATION_GELU_TANH: return x / 2 * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case NORMACT_ACTIVATION_QUICK_GELU: return x * logistic(1.702 * x);
    case NORMACT_ACTIVATION_SILU: return x * logistic(x);
    case NORMACT_ACTIVATION_SIGMOID: return logistic(x);
    case NORMACT_ACTIVATION_TANH: return tanh(x);
    case NORMACT_ACTIVATION_SOFTPLUS: return kBeta * x > kThreshold ? x : log1p(exp(kBeta * x)) / kBeta;
    case NORMACT_ACTIVATION_MISH: return x * tanh(log1p(exp(x)));
    case NORMACT_ACTIVATION_HARDSWISH: return x * clamp(x + 3, 0, 6) / 6;
    default: return clamp(x + 3, 0, 6) / 6;
  }
}

static double slope(int kind, double x) {
  const double h = 1e-6; /* its error is far below the tolerance; no input is so near to a kink */
  return (value(kind, x + h) - value(kind, x - h)) / (2 * h);
}

static normact_activation_desc desc_of(int kind) {
  normact_activation_desc desc = {sizeof desc, kind, -1, kAlpha, kBeta, kThreshold};
  return desc;
}

static void test_activation(int kind) {
  float x[kSize], bias[kCols], y[kSize], dy[kSize], dx[kSize], dbias[kCols];
  int64_t shape[2] = {kRows, kCols}, cols[1] = {kCols};
  fill(x, kSize);
  fill(dy, kSize);
  fill(bias, kCols);
  const normact_tensor tx = tensor(x, 2, shape), tbias = tensor(bias, 1, cols), ty = tensor(y, 2, shape);
  const normact_tensor tdy = tensor(dy, 2, shape), tdx = tensor(dx, 2, shape), tdbias = tensor(dbias, 1, cols);
  const normact_activation_desc desc = desc_of(kind);
  const normact_activation_forward_args forward = {sizeof forward, &tx, &tbias, &ty, NULL};
  const normact_activation_backward_args backward = {sizeof backward, &tdy, &tx, &tbias, NULL, NULL, &tdx, &tdbias};
  RUN_WITH_WORKSPACE(normact_activation_forward, &desc, &forward);
  RUN_WITH_WORKSPACE(normact_activation_backward, &desc, &backward);
  double sums[kCols] = {0};
  for (int i = 0; i < kSize; ++i) {
    const double at = (double)x[i] + bias[i % kCols];
    near(y[i], value(kind, at), kTolerance, "y", i);
    near(dx[i], dy[i] * slope(kind, at), kTolerance, "dx", i);
    sums[i % kCols] += dy[i] * slope(kind, at);
  }
  for (int c = 0; c < kCols; ++c) near(dbias[c], sums[c], kTolerance, "dbias", c);
}

/* The slope of relu is the same from the input, the output and the mask; dx may be dy. */
static void test_sources_of_the_slope(void) {
  float x[kSize], y[kSize], dy[kSize], from_x[kSize], from_y[kSize];
  uint8_t bits[kMaskBytes];
  int64_t shape[2] = {kRows, kCols}, bytes[1] = {kMaskBytes};
  fill(x, kSize);
  fill(dy, kSize);
  const normact_tensor tx = tensor(x, 2, shape), ty = tensor(y, 2, shape), tdy = tensor(dy, 2, shape);
  const normact_tensor tfrom_x = tensor(from_x, 2, shape), tfrom_y = tensor(from_y, 2, shape);
  const normact_tensor mask = {bits, NORMACT_DEVICE_CPU, 0, 1, NORMACT_DTYPE_UINT, 8, 1, bytes, NULL, 0};
  const normact_activation_desc desc = desc_of(NORMACT_ACTIVATION_RELU);
  const normact_activation_forward_args forward = {sizeof forward, &tx, NULL, &ty, &mask};
  RUN_WITH_WORKSPACE(normact_activation_forward, &desc, &forward);
  for (int i = 0; i < 8 * kMaskBytes; ++i) CHECK((bits[i / 8] >> i % 8 & 1) == (i < kSize && x[i] > 0));
  const normact_activation_backward_args with_x = {sizeof with_x, &tdy, &tx, NULL, NULL, NULL, &tfrom_x, NULL};
  const normact_activation_backward_args with_y = {sizeof with_y, &tdy, NULL, NULL, &ty, NULL, &tfrom_y, NULL};
  const normact_activation_backward_args with_mask = {sizeof with_mask, &tdy, NULL, NULL, NULL, &mask, &tdy, NULL};
  RUN_WITH_WORKSPACE(normact_activation_backward, &desc, &with_x);
  RUN_WITH_WORKSPACE(normact_activation_backward, &desc, &with_y);
  RUN_WITH_WORKSPACE(normact_activation_backward, &desc, &with_mask);
  for (int i = 0; i < kSize; ++i) CHECK(from_x[i] == from_y[i] && from_x[i] == dy[i]);
}

/* With no elements dbias is set to zero, and nothing else is to do. */
static void test_empty(void) {
  float dbias[kCols];
  int64_t none[2] = {0, kCols}, cols[1] = {kCols};
  memset(dbias, 0xff, sizeof dbias);
  const normact_tensor x = tensor(NULL, 2, none), tdbias = tensor(dbias, 1, cols);
  const normact_activation_desc desc = desc_of(NORMACT_ACTIVATION_GELU);
  const normact_activation_forward_args forward = {sizeof forward, &x, NULL, &x, NULL};
  const normact_activation_backward_args backward = {sizeof backward, &x, &x, NULL, NULL, NULL, &x, &tdbias};
  RUN_WITH_WORKSPACE(normact_activation_forward, &desc, &forward);
  RUN_WITH_WORKSPACE(normact_activation_backward, &desc, &backward);
  for (int c = 0; c < kCols; ++c) CHECK(dbias[c] == 0.0f);
}

/* ---- Gated: GPT-OSS's form, whose limit some of the numbers exceed ---- */

static const double kLimit = 1.5, kUpOffset = 1.0;

typedef struct gated {
  float gate[kSize], up[kSize], gate_bias[kCols], up_bias[kCols], dy[kSize];
  float y[kSize], dgate[kSize], dup[kSize], dgate_bias[kCols], dup_bias[kCols];
} gated;

static void check_gated(const gated* p) {
  double gate_sums[kCols] = {0}, up_sums[kCols] = {0};
  const int kind = NORMACT_ACTIVATION_QUICK_GELU;
  for (int i = 0; i < kSize; ++i) {
    const double gate = (double)p->gate[i] + p->gate_bias[i % kCols], up = (double)p->up[i] + p->up_bias[i % kCols];
    const double g = fmin(gate, kLimit), u = clamp(up, -kLimit, kLimit);
    const double dgate = gate > kLimit ? 0 : p->dy[i] * (u + kUpOffset) * slope(kind, g);
    const double dup = fabs(up) > kLimit ? 0 : p->dy[i] * value(kind, g);
    near(p->y[i], value(kind, g) * (u + kUpOffset), kTolerance, "y", i);
    near(p->dgate[i], dgate, kTolerance, "dgate", i);
    near(p->dup[i], dup, kTolerance, "dup", i);
    gate_sums[i % kCols] += dgate;
    up_sums[i % kCols] += dup;
  }
  for (int c = 0; c < kCols; ++c) near(p->dgate_bias[c], gate_sums[c], kTolerance, "dgate_bias", c);
  for (int c = 0; c < kCols; ++c) near(p->dup_bias[c], up_sums[c], kTolerance, "dup_bias", c);
}

/* Where the gate of column c lies in a packed row of 2 * kCols; the up is half a row or one place further on. */
static int place_of(int layout, int c) { return layout == NORMACT_GATE_SPLIT ? c : 2 * c; }
static int to_up(int layout) { return layout == NORMACT_GATE_SPLIT ? kCols : 1; }

static void pack(int layout, int rows, const float* gate, const float* up, float* packed) {
  for (int i = 0; i < rows * kCols; ++i) {
    float* at = packed + i / kCols * 2 * kCols + place_of(layout, i % kCols);
    at[0] = gate[i];
    at[to_up(layout)] = up[i];
  }
}

static void unpack(int layout, int rows, const float* packed, float* gate, float* up) {
  for (int i = 0; i < rows * kCols; ++i) {
    const float* at = packed + i / kCols * 2 * kCols + place_of(layout, i % kCols);
    gate[i] = at[0];
    up[i] = at[to_up(layout)];
  }
}

static void test_gated(int layout) {
  gated p;
  float gate[2 * kSize], bias[2 * kCols], dgate[2 * kSize], dbias[2 * kCols];
  int64_t shape[2] = {kRows, kCols}, wide[2] = {kRows, 2 * kCols}, cols[1] = {kCols}, wide_cols[1] = {2 * kCols};
  const normact_gated_desc desc = {sizeof desc, NORMACT_ACTIVATION_QUICK_GELU, layout, 1, 0, 0, 0, 0, kLimit,
                                   kUpOffset};
  fill(p.gate, kSize);
  fill(p.up, kSize);
  fill(p.dy, kSize);
  fill(p.gate_bias, kCols);
  fill(p.up_bias, kCols);
  const normact_tensor y = tensor(p.y, 2, shape), dy = tensor(p.dy, 2, shape);
  if (layout == NORMACT_GATE_SEPARATE) {
    const normact_tensor g = tensor(p.gate, 2, shape), u = tensor(p.up, 2, shape), gb = tensor(p.gate_bias, 1, cols);
    const normact_tensor ub = tensor(p.up_bias, 1, cols), dg = tensor(p.dgate, 2, shape), du = tensor(p.dup, 2, shape);
    const normact_tensor dgb = tensor(p.dgate_bias, 1, cols), dub = tensor(p.dup_bias, 1, cols);
    const normact_gated_forward_args forward = {sizeof forward, &g, &u, &gb, &ub, &y};
    const normact_gated_backward_args backward = {sizeof backward, &dy, &g, &u, &gb, &ub, &dg, &du, &dgb, &dub};
    RUN_WITH_WORKSPACE(normact_gated_forward, &desc, &forward);
    RUN_WITH_WORKSPACE(normact_gated_backward, &desc, &backward);
  } else {
    pack(layout, kRows, p.gate, p.up, gate);
    pack(layout, 1, p.gate_bias, p.up_bias, bias);
    const normact_tensor g = tensor(gate, 2, wide), gb = tensor(bias, 1, wide_cols);
    const normact_tensor dg = tensor(dgate, 2, wide), dgb = tensor(dbias, 1, wide_cols);
    const normact_gated_forward_args forward = {sizeof forward, &g, NULL, &gb, NULL, &y};
    const normact_gated_backward_args backward = {sizeof backward, &dy, &g, NULL, &gb, NULL, &dg, NULL, &dgb, NULL};
    RUN_WITH_WORKSPACE(normact_gated_forward, &desc, &forward);
    RUN_WITH_WORKSPACE(normact_gated_backward, &desc, &backward);
    unpack(layout, kRows, dgate, p.dgate, p.dup);
    unpack(layout, 1, dbias, p.dgate_bias, p.dup_bias);
  }
  check_gated(&p);
}

int main(void) {
  for (int kind = 0; kind < kKinds; ++kind) test_activation(kind);
  test_sources_of_the_slope();
  test_empty();
  test_gated(NORMACT_GATE_SEPARATE);
  test_gated(NORMACT_GATE_SPLIT);
  test_gated(NORMACT_GATE_INTERLEAVED);
  return finish();
}
