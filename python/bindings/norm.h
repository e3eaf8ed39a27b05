// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace normact::python {

/// "layer_norm" or "rms_norm".
const char* norm_name(int kind);

/// What a forward is given.
struct NormForward {
  int kind;
  nanobind::handle x, weight, bias, residual, axis, eps, weight_offset, activation;
};

/// What is made of tensors of PyTorch. statistics: rstd, or of a layer norm mean and rstd joined.
struct NormResults {
  nanobind::object y, residual, statistics;
};

/// Of plain tensors of PyTorch, on its current stream; with statistics for the backward or without. What calls it has
/// asked torch_way, so that no tensor has a gradient to record here.
NormResults torch_norm_forward(const NormForward& problem, bool statistics);

/// A backward of the kind, as normact/norm_calls.py calls it: a NormGrads.
nanobind::any norm_backward(int kind, nanobind::handle dy, nanobind::handle x, nanobind::handle weight,
                            nanobind::handle bias, nanobind::handle mean, nanobind::handle rstd,
                            nanobind::handle dresidual, nanobind::handle axis, nanobind::handle weight_offset,
                            nanobind::handle activation, nanobind::handle out, nanobind::handle wanted,
                            nanobind::handle stream);

/// Adds norm_forward, norm_backward and what belongs to them.
void bind_norm(nanobind::module_& module);

}  // namespace normact::python
