/* SPDX-License-Identifier: Apache-2.0
 *
 * Layer norm of a small array in host memory, from C. Prints what goes in, the statistics of each row before and
 * after, and ends with 0 if the result is as it should be.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "normact/normact.h"

enum { kRows = 4, kCols = 6 };

/* A contiguous fp32 tensor in host memory. */
static normact_tensor host_tensor(float* data, int32_t ndim, int64_t* shape) {
  normact_tensor tensor = {0};
  tensor.data = data;
  tensor.device_type = NORMACT_DEVICE_CPU;
  tensor.ndim = ndim;
  tensor.dtype_code = NORMACT_DTYPE_FLOAT;
  tensor.dtype_bits = 32;
  tensor.dtype_lanes = 1;
  tensor.shape = shape; /* strides stay NULL: row-major */
  return tensor;
}

/* Prints a row's mean and standard deviation; returns how far they are from 0 and 1. */
static double describe(const char* name, const float* row) {
  double mean = 0, squares = 0;
  for (int col = 0; col < kCols; ++col) mean += row[col] / kCols;
  for (int col = 0; col < kCols; ++col) squares += (row[col] - mean) * (row[col] - mean);
  const double deviation = sqrt(squares / kCols);
  printf("  %s: mean %8.3f, deviation %7.3f", name, mean, deviation);
  return fmax(fabs(mean), fabs(deviation - 1));
}

int main(void) {
  float x[kRows][kCols], y[kRows][kCols], mean[kRows], rstd[kRows];
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) x[row][col] = (float)(100 * row + (row + 1) * col * col);
  }

  int64_t shape[] = {kRows, kCols}, rows[] = {kRows}, axis = -1;
  const normact_tensor x_tensor = host_tensor(&x[0][0], 2, shape), y_tensor = host_tensor(&y[0][0], 2, shape);
  const normact_tensor mean_tensor = host_tensor(mean, 1, rows), rstd_tensor = host_tensor(rstd, 1, rows);

  /* Fields that are not named are 0 or NULL: no weight, no bias, no residual. */
  const normact_norm_desc desc = {
      .struct_size = sizeof desc, .kind = NORMACT_NORM_LAYER, .num_axes = 1, .axes = &axis, .eps = 1e-5};
  const normact_norm_forward_args args = {
      .struct_size = sizeof args, .x = &x_tensor, .y = &y_tensor, .mean = &mean_tensor, .rstd = &rstd_tensor};
  if (normact_norm_forward(&desc, &args, NULL) != NORMACT_OK) {
    fprintf(stderr, "%s\n", normact_last_error());
    return EXIT_FAILURE;
  }

  printf("normact %s (%s)\n", normact_build_info("version"), normact_build_info("cpu_isa"));
  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    printf("row %d", row);
    describe("x", x[row]);
    worst = fmax(worst, describe("y", y[row]));
    printf("   saved mean %8.3f, rstd %.5f\n", (double)mean[row], (double)rstd[row]);
  }
  printf("largest distance of y from mean 0 and deviation 1: %.1e\n", worst);
  return worst < 1e-4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
