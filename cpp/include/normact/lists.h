/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists that the enums, the names and the messages are made from. One line here is the only place where a
 * status, a norm kind or a kernel variant is declared; C, C++ and Python all read these lists.
 */
#ifndef NORMACT_LISTS_H_
#define NORMACT_LISTS_H_

/* X(SYMBOL, value, text) */
#define NORMACT_STATUS_LIST(X)                                                   \
  X(OK, 0, "success")                                                            \
  X(INVALID_ARGUMENT, 1, "an argument is wrong")                                 \
  X(NOT_SUPPORTED, 2, "the arguments are right but this build cannot do that")   \
  X(WORKSPACE_TOO_SMALL, 3, "the workspace is missing, misaligned or too small") \
  X(CUDA_ERROR, 4, "a CUDA call failed")                                         \
  X(OUT_OF_MEMORY, 5, "host memory could not be allocated")                      \
  X(INTERNAL, 6, "an internal error; please report it")

/* X(SYMBOL, value, name) */
#define NORMACT_NORM_LIST(X) \
  X(LAYER, 0, "layer_norm")  \
  X(RMS, 1, "rms_norm")

/* X(SYMBOL, value, name): the row kernels, in the order in which the planner tries them. The last is always legal. */
#define NORMACT_ROW_VARIANT_LIST(X) \
  X(AUTO, 0, "auto")                \
  X(WARP, 1, "warp")                \
  X(BLOCK, 2, "block")              \
  X(CLUSTER, 3, "cluster")          \
  X(STREAM, 4, "stream")

#endif /* NORMACT_LISTS_H_ */
