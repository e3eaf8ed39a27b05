// SPDX-License-Identifier: Apache-2.0
#include "core/read_activation.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "core/pointwise_arguments.h"
#include "core/versioned.h"

namespace normact {
namespace {

// The ends of the structs of their first version, which every caller has.
constexpr size_t kDescSize = offsetof(normact_activation_desc, threshold) + sizeof(double);
constexpr size_t kForwardSize = offsetof(normact_activation_forward_args, mask) + sizeof(void*);
constexpr size_t kBackwardSize = offsetof(normact_activation_backward_args, dbias) + sizeof(void*);

const char* name_of(int32_t kind) {
  switch (kind) {
#define NORMACT_CASE(symbol, value, name, formula) \
  case NORMACT_ACTIVATION_##symbol: return name;
    NORMACT_ACTIVATION_LIST(NORMACT_CASE)
#undef NORMACT_CASE
    default: return nullptr;
  }
}

#define NORMACT_NAME(symbol, value, name, formula) ", " name " " #value
constexpr char kAllNames[] = NORMACT_ACTIVATION_LIST(NORMACT_NAME);
#undef NORMACT_NAME

Status read_desc(const normact_activation_desc* given, normact_activation_desc* desc, PointwiseProblem* problem) {
  NORMACT_TRY(read_struct(given, kDescSize, "desc", desc));
  problem->limit = std::numeric_limits<double>::infinity();
  return read_kind(desc->kind, desc->alpha, desc->beta, desc->threshold, &problem->activation);
}

// Exactly one of x, y and mask is given.
Status check_source(const normact_activation_backward_args& args) {
  const bool x = args.x != nullptr, y = args.y != nullptr, mask = args.mask != nullptr;
  if (x + y + mask == 1) return {};
  const char* found = !x && !y && !mask ? "x, y and mask are NULL"
                      : x && y && mask  ? "x, y and mask are given"
                      : !mask           ? "x and y are given"
                      : x               ? "x and mask are given"
                                        : "y and mask are given";
  return invalid(found, "; expected exactly one of x, y and mask, which the slope comes from");
}

}  // namespace

Status read_kind(int32_t kind, double alpha, double beta, double threshold, Activation* activation, const char* field) {
  if (name_of(kind) == nullptr) return invalid(field, " is ", kind, "; expected one of ", &kAllNames[2]);
  *activation = {static_cast<normact_activation_kind>(kind), alpha, beta, threshold};
  const bool has_alpha = kind == NORMACT_ACTIVATION_LEAKY_RELU || kind == NORMACT_ACTIVATION_ELU;
  if (has_alpha && !std::isfinite(alpha)) [[unlikely]] {
    return invalid("desc->alpha is ", alpha, "; expected a finite number for ", name_of(kind));
  }
  if (kind != NORMACT_ACTIVATION_SOFTPLUS) return {};
  if (!std::isfinite(beta) || beta <= 0) [[unlikely]] {
    return invalid("desc->beta is ", beta, "; expected a finite number greater than 0 for softplus");
  }
  if (std::isnan(threshold)) [[unlikely]]
    return invalid("desc->threshold is ", threshold, "; expected a number for softplus");
  return {};
}

Status check_mask(const Activation& activation, const normact_tensor* mask, const char* field) {
  if (mask == nullptr || activation.kind == NORMACT_ACTIVATION_RELU) return {};
  return invalid("mask is given with ", field, " ", name_of(activation.kind),
                 "; expected NULL, as only relu has a mask");
}

Status check_slope_from_output(const Activation& activation, const char* field, const char* instead) {
  switch (activation.kind) {
    case NORMACT_ACTIVATION_IDENTITY:
    case NORMACT_ACTIVATION_RELU:
    case NORMACT_ACTIVATION_RELU6:
    case NORMACT_ACTIVATION_SIGMOID:
    case NORMACT_ACTIVATION_TANH: return {};
    case NORMACT_ACTIVATION_LEAKY_RELU:
    case NORMACT_ACTIVATION_ELU:
      if (activation.alpha >= 0) return {};
      return invalid("y is given with ", field, " ", name_of(activation.kind), " and desc->alpha ", activation.alpha,
                     ", whose output does not tell the slope; expected ", instead, ", or an alpha that is at least 0");
    default: break;
  }
  return invalid("y is given with ", field, " ", name_of(activation.kind),
                 ", whose output does not tell the slope; expected ", instead,
                 " (the output does for identity, relu, relu6, leaky_relu, elu, sigmoid and tanh)");
}

Status read_activation_forward(const normact_activation_desc* desc, const normact_activation_forward_args* given,
                               Purpose purpose, PointwiseForward* problem, Device* device) {
  *problem = {};
  normact_activation_desc what;
  NORMACT_TRY(read_desc(desc, &what, problem));
  normact_activation_forward_args args;
  NORMACT_TRY(read_struct(given, kForwardSize, "args", &args));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.y, "y"));
  NORMACT_TRY(check_mask(problem->activation, args.mask));

  enum : uint64_t { kX };  // places in the table
  PointwiseForward& p = *problem;
  View mask{};
  const PointwiseArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x, nullptr},
      {{"bias", args.bias, Role::parameter, false, 0}, &p.bias, nullptr},
      {{"y", args.y, Role::element, true, bit(kX)}, &p.y, nullptr},
      {{"mask", args.mask, Role::bits, true, 0}, &mask, nullptr},
  };
  NORMACT_TRY(read_pointwise_arguments(table, NORMACT_GATE_SEPARATE, what.axis, purpose, problem, device));
  p.mask = static_cast<uint8_t*>(mask.data);
  return {};
}

Status read_activation_backward(const normact_activation_desc* desc, const normact_activation_backward_args* given,
                                Purpose purpose, PointwiseBackward* problem, Device* device) {
  *problem = {};
  normact_activation_desc what;
  NORMACT_TRY(read_desc(desc, &what, problem));
  normact_activation_backward_args args;
  NORMACT_TRY(read_struct(given, kBackwardSize, "args", &args));
  NORMACT_TRY(require(args.dy, "dy"));
  NORMACT_TRY(require(args.dx, "dx"));
  NORMACT_TRY(check_mask(problem->activation, args.mask));
  NORMACT_TRY(check_source(args));
  if (args.y != nullptr) NORMACT_TRY(check_slope_from_output(problem->activation));

  enum : uint64_t { kX, kY, kDy };  // places in the table
  PointwiseBackward& p = *problem;
  View mask{};
  View* bias = args.x != nullptr ? &p.bias : nullptr;  // y and mask have it in them
  const PointwiseArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x, nullptr},
      {{"y", args.y, Role::element, false, 0}, &p.y, nullptr},
      {{"dy", args.dy, Role::element, false, 0}, &p.dy, nullptr},
      {{"bias", args.bias, Role::parameter, false, 0}, bias, nullptr},
      {{"mask", args.mask, Role::bits, false, 0}, &mask, nullptr},
      {{"dx", args.dx, Role::element, true, bit(kX) | bit(kY) | bit(kDy)}, &p.dx, nullptr},
      {{"dbias", args.dbias, Role::parameter, true, 0}, &p.dbias, nullptr},
  };
  NORMACT_TRY(read_pointwise_arguments(table, NORMACT_GATE_SEPARATE, what.axis, purpose, problem, device));
  p.mask = static_cast<const uint8_t*>(mask.data);
  return {};
}

}  // namespace normact
