/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists that the enums, the names and the messages are made from. One line here is the only place where a
 * status, a norm kind, an activation or a kernel variant is declared; C, C++ and Python all read these lists.
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

/* X(SYMBOL, value, name, Struct): the activations. Struct is the formula's name in cpp/math/activation.h. */
#define NORMACT_ACTIVATION_LIST(X)                \
  X(IDENTITY, 0, "identity", Identity)            \
  X(RELU, 1, "relu", Relu)                        \
  X(RELU6, 2, "relu6", Relu6)                     \
  X(SQUARED_RELU, 3, "squared_relu", SquaredRelu) \
  X(LEAKY_RELU, 4, "leaky_relu", LeakyRelu)       \
  X(ELU, 5, "elu", Elu)                           \
  X(GELU, 6, "gelu", Gelu)                        \
  X(GELU_TANH, 7, "gelu_tanh", GeluTanh)          \
  X(QUICK_GELU, 8, "quick_gelu", QuickGelu)       \
  X(SILU, 9, "silu", Silu)                        \
  X(SIGMOID, 10, "sigmoid", Sigmoid)              \
  X(TANH, 11, "tanh", Tanh)                       \
  X(SOFTPLUS, 12, "softplus", Softplus)           \
  X(MISH, 13, "mish", Mish)                       \
  X(HARDSWISH, 14, "hardswish", Hardswish)        \
  X(HARDSIGMOID, 15, "hardsigmoid", Hardsigmoid)

/* X(SYMBOL, value, name): where gate and up lie. */
#define NORMACT_GATE_LAYOUT_LIST(X) \
  X(SEPARATE, 0, "separate")        \
  X(SPLIT, 1, "split")              \
  X(INTERLEAVED, 2, "interleaved")

/* X(SYMBOL, value, name): the row kernels, in the order in which the planner tries them. The last is always legal. */
#define NORMACT_ROW_VARIANT_LIST(X) \
  X(AUTO, 0, "auto")                \
  X(WARP, 1, "warp")                \
  X(BLOCK, 2, "block")              \
  X(CLUSTER, 3, "cluster")          \
  X(IMAGE, 4, "image")              \
  X(TILE, 5, "tile")                \
  X(STREAM, 6, "stream")

#endif /* NORMACT_LISTS_H_ */
