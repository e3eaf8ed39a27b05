/* SPDX-License-Identifier: Apache-2.0
 *
 * A call from an exit handler, when what threads keep has been given back: it makes what it needs again, and touches no
 * memory of others.
 */
#include "check.h"

enum { kRows = 4, kCols = 1000, kSize = kRows * kCols, kBlocks = 64, kBytes = 4096 };

static uint16_t x[kSize], y[kSize], weight[kCols]; /* a weight of 16 bits is widened in memory that a thread keeps */
static unsigned char* blocks[kBlocks];

static void norm(void) {
  int64_t shape[] = {kRows, kCols}, axes[] = {1}, cols[] = {kCols};
  const normact_tensor of_x = {x, NORMACT_DEVICE_CPU, 0, 2, NORMACT_DTYPE_FLOAT, 16, 1, shape, NULL, 0};
  const normact_tensor of_weight = {weight, NORMACT_DEVICE_CPU, 0, 1, NORMACT_DTYPE_FLOAT, 16, 1, cols, NULL, 0};
  normact_tensor of_y = of_x;
  of_y.data = y;
  const normact_norm_desc desc = {
      sizeof desc, NORMACT_NORM_LAYER, 1, axes, 1e-5, 0, NORMACT_ACTIVATION_IDENTITY, 0, 0, 0, 0};
  const normact_norm_forward_args args = {sizeof args, &of_x, NULL, &of_weight, NULL, &of_y, NULL, NULL, NULL};
  CHECK(normact_norm_forward(&desc, &args, NULL) == NORMACT_OK);
}

static void at_exit(void) {
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = malloc(kBytes);
    if (blocks[i] == NULL) abort();
    memset(blocks[i], 0x5a, kBytes);
  }
  norm();
  for (int i = 0; i < kBlocks; ++i) {
    for (int k = 0; k < kBytes; ++k) CHECK(blocks[i][k] == 0x5a);
  }
  if (failures != 0) abort();
}

int main(void) {
  for (int i = 0; i < kSize; ++i) x[i] = (uint16_t)(0x3c00 + i % 900); /* from 1 on */
  for (int i = 0; i < kCols; ++i) weight[i] = 0x3c00;
  CHECK(atexit(at_exit) == 0);
  norm();
  return finish();
}
