// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/execute.h"

namespace normact::python {

/// Adds batch_norm_forward and batch_norm_backward, and the functions that these are made of.
void bind_batch_norm(nanobind::module_& module);
void bind_batch_norm_parts(nanobind::module_& module);

/// What the functions of a batch norm must know beside their arrays; each uses some of it.
struct BatchNormOptions {
  int32_t training = 0;
  double eps = 0, momentum = 0;
  int32_t cumulative = 0;
};

/// The momentum and cumulative of the momentum argument, in which None stands for the mean over all batches.
void set_momentum(nb::handle momentum, BatchNormOptions& options, const Call& call);

normact_batch_norm_desc describe_batch_norm(nb::handle channel_axis, nb::handle activation,
                                            const BatchNormOptions& options, const Call& call);

/// The arrays that a backward reads. The parts of a backward read the same.
struct BatchNormBackwardInputs {
  void read(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias, nb::handle addend, nb::handle mean,
            nb::handle rstd, nb::handle y, nb::handle mask, Call& call);
  TensorArg dy, x, weight, bias, addend, mean, rstd, y, mask;
};

}  // namespace normact::python
