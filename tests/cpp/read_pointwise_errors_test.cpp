// SPDX-License-Identifier: Apache-2.0
// Every sentence of the pointwise readers. A case takes a call that works and breaks one thing.
#include <cmath>
#include <limits>
#include <string>

#include "check.h"
#include "pointwise_calls.h"

namespace {

using namespace pointwise_calls;
using normact::Status;
using normact::text;

const double kNan = std::nan("");
const double kInfinity = std::numeric_limits<double>::infinity();

void expect(const Status& status, const std::string& sentence, int line) {
  const bool good = status.code() == NORMACT_INVALID_ARGUMENT && status.message() == sentence;
  if (!good) check::fail(__FILE__, line, text("found '", status.message(), "', expected '", sentence, "'"));
}

// The change, the direction, the sentence.
#define ACTIVATION(direction, change, sentence)     \
  do {                                              \
    ActivationCall c({3, 4});                       \
    change;                                         \
    expect(c.read_##direction, sentence, __LINE__); \
  } while (0)
#define GATED(direction, layout, change, sentence)  \
  do {                                              \
    GatedCall c(NORMACT_GATE_##layout, -1, {3, 8}); \
    change;                                         \
    expect(c.read_##direction, sentence, __LINE__); \
  } while (0)

void drop(Tensor& tensor) { tensor.present = false; }
void add(Tensor& tensor) { tensor.present = true; }

TEST(they_work_unbroken) {
  ActivationCall activation({3, 4});
  CHECK(activation.read_forward().ok() && activation.read_backward().ok());
  CHECK(activation.along(-1).read_forward().ok() && activation.read_backward().ok());
  add(activation.mask);
  CHECK(activation.read_forward().ok());
  for (const normact_gate_layout layout : {NORMACT_GATE_SEPARATE, NORMACT_GATE_SPLIT, NORMACT_GATE_INTERLEAVED}) {
    GatedCall gated(layout, -1, {3, 8});
    CHECK(gated.read_forward().ok() && gated.read_backward().ok());
  }
}

TEST(kinds_and_their_numbers) {
  const char* kinds =
      "; expected one of identity 0, relu 1, relu6 2, squared_relu 3, leaky_relu 4, elu 5, gelu 6, gelu_tanh 7, "
      "quick_gelu 8, silu 9, sigmoid 10, tanh 11, softplus 12, mish 13, hardswish 14, hardsigmoid 15";
  ACTIVATION(forward(), c.desc.kind = 16, text("desc->kind is 16", kinds));
  ACTIVATION(backward(), c.desc.kind = -1, text("desc->kind is -1", kinds));
  GATED(forward(), SPLIT, c.desc.kind = 99, text("desc->kind is 99", kinds));
  ACTIVATION(forward(), (c.desc.kind = NORMACT_ACTIVATION_ELU, c.desc.alpha = kNan),
             "desc->alpha is nan; expected a finite number for elu");
  ACTIVATION(backward(), (c.desc.kind = NORMACT_ACTIVATION_LEAKY_RELU, c.desc.alpha = -kInfinity),
             "desc->alpha is -inf; expected a finite number for leaky_relu");
  GATED(forward(), SEPARATE, (c.desc.kind = NORMACT_ACTIVATION_ELU, c.desc.alpha = kInfinity),
        "desc->alpha is inf; expected a finite number for elu");
  for (const double beta : {0.0, -1.0, kInfinity, kNan}) {
    ACTIVATION(forward(), (c.desc.kind = NORMACT_ACTIVATION_SOFTPLUS, c.desc.beta = beta),
               text("desc->beta is ", beta, "; expected a finite number greater than 0 for softplus"));
  }
  ACTIVATION(forward(), (c.desc.kind = NORMACT_ACTIVATION_SOFTPLUS, c.desc.threshold = kNan),
             "desc->threshold is nan; expected a number for softplus");
  ActivationCall ignored({3, 4});
  ignored.desc.alpha = ignored.desc.beta = ignored.desc.threshold = kNan;
  CHECK(ignored.read_forward().ok());
}

TEST(numbers_of_gates) {
  GATED(forward(), SPLIT, c.desc.layout = 3, "desc->layout is 3; expected one of separate 0, split 1, interleaved 2");
  GATED(backward(), SPLIT, c.desc.reserved = 5, "desc->reserved is 5; expected 0");
  GATED(forward(), SPLIT, c.desc.limit = -1, "desc->limit is -1; expected a number greater than 0, or 0 for none");
  GATED(forward(), SPLIT, c.desc.limit = kNan, "desc->limit is nan; expected a number greater than 0, or 0 for none");
  GATED(backward(), SPLIT, c.desc.up_offset = kInfinity, "desc->up_offset is inf; expected a finite number");
  GatedCall unlimited(NORMACT_GATE_SPLIT, -1, {3, 8});
  unlimited.desc.limit = kInfinity;
  CHECK(unlimited.read_forward().ok());
}

TEST(structs) {
  ACTIVATION(forward(), c.desc.struct_size = 8, "desc->struct_size is 8; expected 40, the size of the struct");
  GATED(forward(), SPLIT, c.desc.struct_size = 8, "desc->struct_size is 8; expected 64, the size of the struct");
  ActivationCall c({3, 4});
  expect(normact::read_activation_forward(nullptr, nullptr, c.purpose, &c.forward, &c.device),
         "desc is NULL; expected a pointer to its struct", __LINE__);
  expect(normact::read_activation_backward(&c.desc, nullptr, c.purpose, &c.backward, &c.device),
         "args is NULL; expected a pointer to its struct", __LINE__);
}

TEST(presence) {
  ACTIVATION(forward(), drop(c.x), "x is NULL; expected a tensor");
  ACTIVATION(forward(), drop(c.y), "y is NULL; expected a tensor");
  ACTIVATION(backward(), drop(c.dy), "dy is NULL; expected a tensor");
  ACTIVATION(backward(), drop(c.dx), "dx is NULL; expected a tensor");
  for (Tensor GatedCall::* tensor : {&GatedCall::gate, &GatedCall::y}) {
    GATED(forward(), SPLIT, drop(c.*tensor),
          tensor == &GatedCall::y ? "y is NULL; expected a tensor" : "gate is NULL; expected a tensor");
  }
  GATED(forward(), SEPARATE, drop(c.up), "up is NULL; expected a tensor, as desc->layout is separate");
  GATED(backward(), SEPARATE, drop(c.up), "up is NULL; expected a tensor, as desc->layout is separate");
  GATED(backward(), SEPARATE, drop(c.dup), "dup is NULL; expected a tensor, as desc->layout is separate");
  GATED(backward(), SPLIT, drop(c.dy), "dy is NULL; expected a tensor");
  GATED(backward(), SPLIT, drop(c.gate), "gate is NULL; expected a tensor");
  GATED(backward(), SPLIT, drop(c.dgate), "dgate is NULL; expected a tensor");
  GATED(forward(), SPLIT, add(c.up), "up is given with layout split; expected NULL, as gate holds both halves");
  GATED(forward(), INTERLEAVED, add(c.up_bias),
        "up_bias is given with layout interleaved; expected NULL, as gate_bias holds both halves");
  GATED(backward(), SPLIT, add(c.up), "up is given with layout split; expected NULL, as gate holds both halves");
  GATED(backward(), SPLIT, add(c.dup), "dup is given with layout split; expected NULL, as dgate holds both halves");
  GATED(backward(), SPLIT, add(c.up_bias),
        "up_bias is given with layout split; expected NULL, as gate_bias holds both halves");
  GATED(backward(), SPLIT, add(c.dup_bias),
        "dup_bias is given with layout split; expected NULL, as dgate_bias holds both halves");
}

TEST(where_the_slope_comes_from) {
  const char* one = "; expected exactly one of x, y and mask, which the slope comes from";
  ACTIVATION(backward(), drop(c.x), text("x, y and mask are NULL", one));
  ACTIVATION(backward(true), , text("x and y are given", one));
  ACTIVATION(backward(), add(c.mask), text("x and mask are given", one));
  ACTIVATION(backward(true), (drop(c.x), add(c.mask)), text("y and mask are given", one));
  ACTIVATION(backward(true), add(c.mask), text("x, y and mask are given", one));
  for (int kind = 0; kind <= NORMACT_ACTIVATION_HARDSIGMOID; ++kind) {
    ActivationCall call({3, 4});
    call.desc.kind = kind;
    drop(call.x);
    const bool known = kind <= NORMACT_ACTIVATION_RELU6 || kind == NORMACT_ACTIVATION_LEAKY_RELU ||
                       kind == NORMACT_ACTIVATION_ELU || kind == NORMACT_ACTIVATION_SIGMOID ||
                       kind == NORMACT_ACTIVATION_TANH;
    CHECK_EQ(call.read_backward(true).ok(), known);
  }
  ACTIVATION(backward(true), (drop(c.x), c.desc.kind = NORMACT_ACTIVATION_GELU),
             "y is given with kind gelu, whose output does not tell the slope; expected x (the output does for "
             "identity, relu, relu6, leaky_relu, elu, sigmoid and tanh)");
  ACTIVATION(backward(true), (drop(c.x), c.desc.kind = NORMACT_ACTIVATION_ELU, c.desc.alpha = -0.25),
             "y is given with kind elu and desc->alpha -0.25, whose output does not tell the slope; expected x, or an "
             "alpha that is at least 0");
  ACTIVATION(forward(), (add(c.mask), c.desc.kind = NORMACT_ACTIVATION_RELU6),
             "mask is given with kind relu6; expected NULL, as only relu has a mask");
  ACTIVATION(backward(), (add(c.mask), drop(c.x), c.desc.kind = NORMACT_ACTIVATION_SILU),
             "mask is given with kind silu; expected NULL, as only relu has a mask");
}

TEST(axes) {
  ACTIVATION(forward(), (add(c.bias), c.desc.axis = 2),
             "desc->axis is 2; expected an axis of x, which has 2 dimensions");
  ACTIVATION(backward(), (add(c.dbias), c.desc.axis = -3),
             "desc->axis is -3; expected an axis of x, which has 2 dimensions");
  ACTIVATION(backward(true), (drop(c.x), add(c.bias), c.desc.axis = 9),
             "desc->axis is 9; expected an axis of y, which has 2 dimensions");
  GATED(forward(), SPLIT, (c.without_biases().desc.axis = 2),
        "desc->axis is 2; expected an axis of gate, which has 2 dimensions");
  GATED(forward(), SEPARATE, c.desc.axis = 2, "desc->axis is 2; expected an axis of gate, which has 2 dimensions");
  GATED(forward(), SPLIT, c.gate.shape[1] = 7, "gate has size 7 along axis -1; expected an even size");
  GATED(backward(), INTERLEAVED, (c.gate.shape[0] = 3, c.desc.axis = 0),
        "gate has size 3 along axis 0; expected an even size");
}

TEST(shapes) {
  ACTIVATION(forward(), c.y.shape[0] = 2, "y has shape (2, 4); expected (3, 4), x's shape");
  ACTIVATION(forward(), (c.along(-1).bias.shape = {3}), "bias has shape (3,); expected (4,), x's size along axis -1");
  ACTIVATION(backward(), (c.along(0).dbias.shape = {1, 3}),
             "dbias has shape (1, 3); expected (3,), x's size along axis 0");
  ACTIVATION(backward(true), (drop(c.x), c.dx.shape = {12}), "dx has shape (12,); expected (3, 4), y's shape");
  ACTIVATION(backward(true), (drop(c.x), c.along(-1).bias.shape = {7}),  // checked, though its values are not used
             "bias has shape (7,); expected (4,), y's size along axis -1");
  ACTIVATION(forward(), (add(c.mask), c.mask.shape = {12}),
             "mask has shape (12,); expected (2,), a bit for each of x's 12 elements");
  ACTIVATION(backward(), (drop(c.x), add(c.mask), c.mask.shape = {1, 2}),
             "mask has shape (1, 2); expected (2,), a bit for each of dy's 12 elements");
  ACTIVATION(forward(), (add(c.mask), c.mask.strides = {2}),
             "mask has strides (2,); expected contiguous memory, strides (1,)");
  GATED(forward(), SEPARATE, c.up.shape[1] = 4, "up has shape (3, 4); expected (3, 8), gate's shape");
  GATED(forward(), SEPARATE, c.up_bias.shape[0] = 4,
        "up_bias has shape (4,); expected (8,), gate's size along axis -1");
  GATED(forward(), SPLIT, c.y.shape[1] = 8,
        "y has shape (3, 8); expected (3, 4), gate's shape with half the size along axis -1");
  GATED(backward(), INTERLEAVED, c.dgate.shape[1] = 4, "dgate has shape (3, 4); expected (3, 8), gate's shape");
  GATED(forward(), SPLIT, c.gate_bias.shape[0] = 4,
        "gate_bias has shape (4,); expected (8,), gate's size along axis -1");
}

TEST(dtypes_and_devices) {
  ACTIVATION(forward(), c.y.raw.dtype_bits = 16, "y has dtype float16; expected float32 as x has dtype float32");
  ACTIVATION(forward(), (c.along(0).bias.raw.dtype_bits = 16),
             "bias has dtype float16; expected float32 as x has dtype float32");
  ACTIVATION(forward(), (c.x.raw.dtype_bits = c.y.raw.dtype_bits = 16, c.along(0).bias.raw.dtype_bits = 64),
             "bias has dtype float64; expected float16 or float32 as x has dtype float16");
  ACTIVATION(forward(), c.x.raw.dtype_code = NORMACT_DTYPE_UINT,
             "x has dtype code 1 with 32 bits; expected float64, float32, float16 or bfloat16");
  ACTIVATION(forward(), (c.x.raw.dtype_code = NORMACT_DTYPE_UINT, c.x.raw.dtype_bits = 8),
             "x has dtype code 1 with 8 bits; expected float64, float32, float16 or bfloat16");
  ACTIVATION(forward(), (add(c.mask), c.mask.raw.dtype_code = NORMACT_DTYPE_FLOAT),
             "mask has dtype code 2 with 8 bits; expected uint8");
  ACTIVATION(forward(), (add(c.mask), c.mask.raw.dtype_bits = 1), "mask has dtype code 1 with 1 bits; expected uint8");
  ACTIVATION(forward(), (add(c.mask), c.mask.raw.dtype_lanes = 8), "mask has dtype lanes 8; expected 1");
  ACTIVATION(forward(), (add(c.mask), c.mask.raw.device_type = NORMACT_DEVICE_CUDA),
             "mask is on CUDA device 0; expected the CPU, where x is");
  ACTIVATION(backward(true), (drop(c.x), c.dy.raw.device_type = NORMACT_DEVICE_CUDA),
             "dy is on CUDA device 0; expected the CPU, where y is");
  GATED(forward(), SEPARATE, c.up.raw.dtype_code = NORMACT_DTYPE_BFLOAT,
        "up has dtype code 4 with 32 bits; expected float64, float32, float16 or bfloat16");
  GATED(forward(), SPLIT, c.y.raw.dtype_bits = 64, "y has dtype float64; expected float32 as gate has dtype float32");
}

TEST(overlaps) {
  const char* itself =
      " overlaps itself: its strides lead to one address from several indices; expected an output whose elements are "
      "apart";
  const char* apart = "; expected separate memory";
  const char* same =
      " without being the same tensor; expected separate memory or the very same data, shape and strides";
  ACTIVATION(forward(), c.y.address = c.x.address + 4, text("y overlaps x", same));
  ACTIVATION(forward(), (c.y.address = c.x.address, c.y.strides = {1, 3}), text("y overlaps x", same));
  ACTIVATION(forward(), (c.y.strides = {0, 1}), text("y", itself));
  ACTIVATION(forward(), (c.along(-1).bias.address = c.y.address + 8), text("y overlaps bias", apart));
  ACTIVATION(forward(), (add(c.mask), c.mask.address = c.y.address + 47), text("y overlaps mask", apart));
  ACTIVATION(forward(), (add(c.mask), c.mask.address = c.x.address), text("mask overlaps x", apart));
  ACTIVATION(backward(), c.dx.address = c.dy.address + 4, text("dx overlaps dy", same));
  ACTIVATION(backward(true), (drop(c.x), c.dx.address = c.y.address - 4), text("dx overlaps y", same));
  ACTIVATION(backward(), (c.along(-1).dbias.strides = {0}), text("dbias", itself));
  ACTIVATION(backward(), (c.along(-1).dbias.address = c.dy.address), text("dbias overlaps dy", apart));
  GATED(forward(), SPLIT, c.y.address = c.gate.address, text("y overlaps gate", apart));
  GATED(forward(), SPLIT, (c.y.address = c.gate.address, c.y.strides = {8, 1}), text("y overlaps gate", apart));
  GATED(forward(), SEPARATE, c.y.address = c.up.address + 8, text("y overlaps up", same));
  GATED(backward(), SEPARATE, c.dup.address = c.dgate.address, text("dgate overlaps dup", apart));
  GATED(backward(), SPLIT, (c.dgate.strides = {4, 1}), text("dgate", itself));
  GATED(backward(), SPLIT, c.dgate.address = c.gate.address + 16, text("dgate overlaps gate", same));
  GATED(backward(), SPLIT, c.dgate.address = c.dy.address, text("dgate overlaps dy", apart));
}

TEST(outputs_may_be_inputs) {
  ActivationCall c({3, 4});
  c.y.address = c.x.address;
  CHECK(c.read_forward().ok());
  for (const Tensor* input : {&c.x, &c.dy}) {
    c.dx.address = input->address;
    CHECK(c.read_backward().ok());
  }
  c.dx.address = c.y.address = slot(3);
  drop(c.x);
  CHECK(c.read_backward(true).ok());
  GatedCall separate(NORMACT_GATE_SEPARATE, -1, {3, 8});
  for (const Tensor* input : {&separate.gate, &separate.up}) {
    separate.y.address = input->address;
    CHECK(separate.read_forward().ok());
  }
  separate.dgate.address = separate.up.address;
  separate.dup.address = separate.gate.address;
  CHECK(separate.read_backward().ok());
  separate.dup.address = separate.dy.address;
  CHECK(separate.read_backward().ok());
  GatedCall packed(NORMACT_GATE_INTERLEAVED, -1, {3, 8});
  packed.dgate.address = packed.gate.address;
  packed.dgate.strides = {8, 1};
  CHECK(packed.read_backward().ok());
  GatedCall beside(NORMACT_GATE_SPLIT, -1, {3, 8});  // y in the gap between the gate's rows
  beside.gate.strides = {12, 1};
  beside.y.strides = {12, 1};
  beside.y.address = beside.gate.address + 8 * 4;
  CHECK(beside.read_forward().ok());
}

}  // namespace
