/* SPDX-License-Identifier: Apache-2.0
 *
 * What the test programs in C share.
 */
#ifndef NORMACT_TESTS_C_CHECK_H_
#define NORMACT_TESTS_C_CHECK_H_

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "normact/normact.h"

static int failures = 0;

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, normact_last_error()); \
      ++failures;                                                                                            \
    }                                                                                                        \
  } while (0)

/* Contiguous float32 on the CPU. */
static inline normact_tensor tensor(float* data, int32_t ndim, int64_t* shape) {
  normact_tensor t = {data, NORMACT_DEVICE_CPU, 0, ndim, NORMACT_DTYPE_FLOAT, 32, 1, shape, NULL, 0};
  return t;
}

/* Random numbers from -2 to 2. */
static inline void fill(float* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = (float)rand() / (float)RAND_MAX * 4.0f - 2.0f;
}

static inline void near(double found, double expected, double tolerance, const char* name, int index) {
  if (fabs(found - expected) <= tolerance * (1.0 + fabs(expected))) return;
  fprintf(stderr, "%s[%d] is %.9g, expected %.9g\n", name, index, found, expected);
  ++failures;
}

/* Runs call(desc, args, exec) with the workspace that its query asks for. */
#define RUN_WITH_WORKSPACE(call, desc, args)                                      \
  do {                                                                            \
    size_t bytes_ = 12345;                                                        \
    CHECK(call##_workspace(desc, args, NULL, &bytes_) == NORMACT_OK);             \
    normact_exec exec_ = {sizeof exec_, NULL, NULL, bytes_, NORMACT_ROW_AUTO, 0}; \
    exec_.workspace = aligned_alloc(256, (bytes_ + 511) / 256 * 256);             \
    CHECK(call(desc, args, &exec_) == NORMACT_OK);                                \
    free(exec_.workspace);                                                        \
  } while (0)

static inline int finish(void) {
  printf("%s\n", failures == 0 ? "ok" : "FAILED");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif /* NORMACT_TESTS_C_CHECK_H_ */
