// SPDX-License-Identifier: Apache-2.0
#include "core/read_norm.h"

#include <cmath>
#include <cstddef>

#include "core/message.h"
#include "core/norm_desc.h"
#include "core/read_activation.h"
#include "core/row_arguments.h"
#include "core/versioned.h"

namespace normact {
namespace {

// The ends of the structs of version 0.1, which every caller has.
constexpr size_t kDescSize = offsetof(normact_norm_desc, weight_offset) + sizeof(double);
constexpr size_t kForwardSize = offsetof(normact_norm_forward_args, rstd) + sizeof(void*);
constexpr size_t kBackwardSize = offsetof(normact_norm_backward_args, dbias) + sizeof(void*);

Status read_desc(const normact_norm_desc* given, normact_norm_desc* desc, RowProblem* problem) {
  NORMACT_TRY(read_struct(given, kDescSize, "desc", desc));
  switch (desc->kind) {
    case NORMACT_NORM_LAYER: problem->kind = NormKind::layer; break;
    case NORMACT_NORM_RMS: problem->kind = NormKind::rms; break;
    default: return invalid("desc->kind is ", desc->kind, "; expected a normact_norm_kind");
  }
  NORMACT_TRY(check_eps(desc->eps));
  if (!std::isfinite(desc->weight_offset)) [[unlikely]] {
    return invalid("desc->weight_offset is ", desc->weight_offset, "; expected a finite number");
  }
  if (desc->reserved != 0) return invalid("desc->reserved is ", desc->reserved, "; expected 0");
  problem->eps = desc->eps;
  problem->weight_offset = desc->weight_offset;
  return read_kind(desc->activation, desc->alpha, desc->beta, desc->threshold, &problem->activation,
                   "desc->activation");
}

Status check_weight_offset(const RowProblem& problem, const normact_tensor* weight) {
  if (problem.weight_offset == 0 || weight != nullptr) return {};
  return invalid("desc->weight_offset is ", problem.weight_offset,
                 " but weight is NULL; expected a weight to add it to");
}

// Tensors of 16 bits go with sums of float32. What neither is, the table below refuses.
bool is_mixed(const normact_tensor& narrow, const normact_tensor* wide) {
  return wide != nullptr && narrow.dtype_bits == 16 && wide->dtype_bits == 32;
}

Status check_daddend(const normact_norm_backward_args& args) {
  if (args.daddend == nullptr || is_mixed(*args.dy, args.x)) return {};
  return invalid(
      "daddend is given; expected NULL, as dx is the gradient of both, unless dy has 16 bits and x is float32");
}

Status check_mean(const RowProblem& problem, const normact_tensor* mean) {
  if (problem.kind == NormKind::layer || mean == nullptr) return {};
  return invalid("mean is given; expected NULL, as rms_norm has no mean");
}

}  // namespace

Status read_norm_forward(const normact_norm_desc* desc, const normact_norm_forward_args* given, Purpose purpose,
                         RowForward* problem, Device* device) {
  *problem = {};
  normact_norm_desc what;
  NORMACT_TRY(read_desc(desc, &what, problem));
  normact_norm_forward_args args;
  NORMACT_TRY(read_struct(given, kForwardSize, "args", &args));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.y, "y"));
  if (args.residual != nullptr) NORMACT_TRY(require(args.residual_out, "residual_out (needed with residual)"));
  if (args.residual_out != nullptr) NORMACT_TRY(require(args.residual, "residual (needed with residual_out)"));
  NORMACT_TRY(check_weight_offset(*problem, args.weight));
  NORMACT_TRY(check_mean(*problem, args.mean));

  enum : uint64_t { kX, kResidual };  // places in the table
  const uint64_t sum = is_mixed(*args.x, args.residual) ? kResidual : kX;
  RowForward& p = *problem;
  const RowArgument table[] = {
      {"x", args.x, Role::element, false, 0, &p.x},
      {"residual", args.residual, Role::sum, false, 0, &p.residual},
      {"weight", args.weight, Role::parameter, false, 0, &p.weight},
      {"bias", args.bias, Role::parameter, false, 0, &p.bias},
      {"y", args.y, Role::element, true, bit(kX), &p.y},
      {"residual_out", args.residual_out, Role::element, true, bit(kX) | bit(kResidual), &p.residual_out, sum},
      {"mean", args.mean, Role::statistic, true, 0, &p.mean},
      {"rstd", args.rstd, Role::statistic, true, 0, &p.rstd},
  };
  NORMACT_TRY(read_row_arguments(table, what.num_axes, what.axes, purpose, problem, device));
  p.io_dtype = p.x.dtype;
  p.dtype = args.residual != nullptr ? p.residual.dtype : p.x.dtype;
  return {};
}

Status read_norm_backward(const normact_norm_desc* desc, const normact_norm_backward_args* given, Purpose purpose,
                          RowBackward* problem, Device* device) {
  *problem = {};
  normact_norm_desc what;
  NORMACT_TRY(read_desc(desc, &what, problem));
  normact_norm_backward_args args;
  NORMACT_TRY(read_struct(given, kBackwardSize, "args", &args));
  NORMACT_TRY(require(args.dy, "dy"));
  NORMACT_TRY(require(args.x, "x"));
  if (problem->kind == NormKind::layer) NORMACT_TRY(require(args.mean, "mean"));
  NORMACT_TRY(require(args.rstd, "rstd"));
  NORMACT_TRY(require(args.dx, "dx"));
  NORMACT_TRY(check_daddend(args));
  NORMACT_TRY(check_weight_offset(*problem, args.weight));
  NORMACT_TRY(check_mean(*problem, args.mean));

  enum : uint64_t { kX, kDy, kDresidual };  // places in the table
  const uint64_t io = is_mixed(*args.dy, args.x) ? kDy : kX;
  RowBackward& p = *problem;
  const RowArgument table[] = {
      {"x", args.x, Role::element, false, 0, &p.x},
      {"dy", args.dy, Role::gradient, false, 0, &p.dy},
      {"dresidual", args.dresidual, Role::element, false, 0, &p.dresidual},
      {"weight", args.weight, Role::parameter, false, 0, &p.weight, io},
      {"mean", args.mean, Role::statistic, false, 0, &p.mean},
      {"rstd", args.rstd, Role::statistic, false, 0, &p.rstd},
      {"dx", args.dx, Role::element, true, bit(kDy) | bit(kX) | bit(kDresidual), &p.dx, io},
      {"dweight", args.dweight, Role::parameter, true, 0, &p.dweight, io},
      {"dbias", args.dbias, Role::parameter, true, 0, &p.dbias, io},
      {"daddend", args.daddend, Role::element, true, bit(kX) | bit(kDresidual), &p.daddend},
      {"bias", args.bias, Role::parameter, false, 0, is_identity(p.activation) ? nullptr : &p.bias, io},
  };
  NORMACT_TRY(read_row_arguments(table, what.num_axes, what.axes, purpose, problem, device));
  p.io_dtype = p.dy.dtype;
  p.dtype = p.x.dtype;
  return {};
}

}  // namespace normact
