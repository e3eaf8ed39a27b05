// SPDX-License-Identifier: Apache-2.0
// Calls of the pointwise readers whose parts a test can change. Memory is at addresses that are never touched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/message.h"
#include "core/read_activation.h"
#include "core/read_gated.h"

namespace pointwise_calls {

using Ints = std::vector<int64_t>;

inline uintptr_t slot(uintptr_t number) { return number << 40; }

/// A tensor that may be absent.
struct Tensor {
  Ints shape = {};
  Ints strides = {};
  uintptr_t address = 0;
  bool present = true;
  normact_tensor raw{};

  const normact_tensor* get() {
    if (!present) return nullptr;
    raw.data = reinterpret_cast<void*>(address);
    raw.ndim = static_cast<int32_t>(shape.size());
    raw.shape = shape.data();
    raw.strides = strides.empty() ? nullptr : strides.data();
    return &raw;
  }
};

inline Tensor tensor(uintptr_t number, Ints shape, Ints strides = {}) {
  Tensor t{std::move(shape), std::move(strides), slot(number)};
  t.raw.device_type = NORMACT_DEVICE_CPU;
  t.raw.dtype_code = NORMACT_DTYPE_FLOAT;
  t.raw.dtype_bits = 32;
  t.raw.dtype_lanes = 1;
  return t;
}

inline Tensor absent(Tensor t) {
  t.present = false;
  return t;
}

inline Tensor mask_of(uintptr_t number, int64_t bytes) {
  Tensor t = tensor(number, {bytes});
  t.raw.dtype_code = NORMACT_DTYPE_UINT;
  t.raw.dtype_bits = 8;
  return t;
}

/// An activation of x, by default with nothing optional; both directions share the tensors.
struct ActivationCall {
  Tensor x, bias, y, mask, dy, dx, dbias;
  normact_activation_desc desc{sizeof desc, NORMACT_ACTIVATION_RELU, -1, 0.5, 1.0, 20.0};
  normact::PointwiseForward forward{};
  normact::PointwiseBackward backward{};
  normact::Device device{};
  normact::Purpose purpose = normact::Purpose::run;

  explicit ActivationCall(const Ints& shape, const Ints& strides = {}) : x(tensor(1, shape, strides)) {
    int64_t size = 1;
    for (const int64_t n : shape) size *= n;
    bias = absent(tensor(2, {shape.empty() ? 1 : shape.back()}));
    y = tensor(3, shape);
    mask = absent(mask_of(4, (size + 7) / 8));
    dy = tensor(5, shape);
    dx = tensor(6, shape);
    dbias = absent(tensor(7, bias.shape));
  }

  /// With a bias along the axis and its gradient.
  ActivationCall& along(int32_t axis) {
    desc.axis = axis;
    const auto ndim = static_cast<int32_t>(x.shape.size());
    bias.shape = dbias.shape = {x.shape[static_cast<size_t>(axis < 0 ? axis + ndim : axis)]};
    bias.present = dbias.present = true;
    return *this;
  }

  normact::Status read_forward() {
    const normact_activation_forward_args args{sizeof args, x.get(), bias.get(), y.get(), mask.get()};
    return normact::read_activation_forward(&desc, &args, purpose, &forward, &device);
  }

  /// From x, where that is present; else from y, unless told otherwise.
  normact::Status read_backward(bool with_y = false) {
    const normact_tensor* output = with_y ? y.get() : nullptr;
    const normact_activation_backward_args args{sizeof args, dy.get(),   x.get(),  bias.get(),
                                                output,      mask.get(), dx.get(), dbias.get()};
    return normact::read_activation_backward(&desc, &args, purpose, &backward, &device);
  }
};

/// A gated activation; `shape` is that of the gate's tensor. With biases and their gradients.
struct GatedCall {
  Tensor gate, up, gate_bias, up_bias, y, dy, dgate, dup, dgate_bias, dup_bias;
  normact_gated_desc desc{sizeof desc, NORMACT_ACTIVATION_SILU, NORMACT_GATE_SEPARATE, -1, 0, 0, 1, 20, 0, 0};
  normact::PointwiseForward forward{};
  normact::PointwiseBackward backward{};
  normact::Device device{};
  normact::Purpose purpose = normact::Purpose::run;

  GatedCall(normact_gate_layout layout, int32_t axis, const Ints& shape, const Ints& strides = {}) {
    desc.layout = layout;
    desc.axis = axis;
    const bool separate = layout == NORMACT_GATE_SEPARATE;
    const auto at = static_cast<size_t>(axis < 0 ? axis + static_cast<int32_t>(shape.size()) : axis);
    const Ints channels = {shape[at]};
    Ints half = shape;
    if (!separate) half[at] /= 2;
    gate = tensor(1, shape, strides);
    up = tensor(2, shape);
    gate_bias = tensor(3, channels);
    up_bias = tensor(4, channels);
    y = tensor(5, half);
    dy = tensor(6, half);
    dgate = tensor(7, shape);
    dup = tensor(8, shape);
    dgate_bias = tensor(9, channels);
    dup_bias = tensor(10, channels);
    up.present = up_bias.present = dup.present = dup_bias.present = separate;
  }

  GatedCall& without_biases() {
    gate_bias.present = up_bias.present = dgate_bias.present = dup_bias.present = false;
    return *this;
  }

  normact::Status read_forward() {
    const normact_gated_forward_args args{sizeof args, gate.get(), up.get(), gate_bias.get(), up_bias.get(), y.get()};
    return normact::read_gated_forward(&desc, &args, purpose, &forward, &device);
  }

  normact::Status read_backward() {
    const normact_gated_backward_args args{sizeof args,   dy.get(),    gate.get(), up.get(),         gate_bias.get(),
                                           up_bias.get(), dgate.get(), dup.get(),  dgate_bias.get(), dup_bias.get()};
    return normact::read_gated_backward(&desc, &args, purpose, &backward, &device);
  }
};

}  // namespace pointwise_calls
