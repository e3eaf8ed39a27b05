/* SPDX-License-Identifier: Apache-2.0
 *
 * normact/dlpack.h against DLPack's own header: its assertions compile, and a DLTensor is taken as it is.
 */
#include "normact/dlpack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  float x[2][3] = {{1, 2, 3}, {2, 4, 6}}, y[3][2];
  int64_t shape[2] = {2, 3}, transposed[2] = {1, 2}, axis = 1;
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType fp32 = {kDLFloat, 32, 1};
  DLTensor in = {x, cpu, 2, fp32, shape, NULL, 0};
  DLTensor out = {y, cpu, 2, fp32, shape, transposed, 0};
  const normact_norm_desc desc = {sizeof desc, NORMACT_NORM_LAYER, 1, &axis, 0.0, 0.0, 0, 0, 0, 0, 0};
  const normact_norm_forward_args args = {
      sizeof args, normact_from_dlpack(&in), NULL, NULL, NULL, normact_from_dlpack(&out), NULL, NULL, NULL};
  if (normact_norm_forward(&desc, &args, NULL) != NORMACT_OK) {
    fprintf(stderr, "%s\n", normact_last_error());
    return EXIT_FAILURE;
  }
  const float step = sqrtf(1.5f); /* (1, 2, 3) has deviation sqrt(2/3); so has any multiple of it, once normalised */
  for (int row = 0; row < 2; ++row) {
    for (int col = 0; col < 3; ++col) {
      if (fabsf(y[col][row] - step * (float)(col - 1)) > 1e-6f) {
        fprintf(stderr, "y[%d][%d] is %g\n", row, col, (double)y[col][row]);
        return EXIT_FAILURE;
      }
    }
  }
  printf("ok\n");
  return EXIT_SUCCESS;
}
