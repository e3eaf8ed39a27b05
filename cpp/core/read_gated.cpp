// SPDX-License-Identifier: Apache-2.0
#include "core/read_gated.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "core/pointwise_arguments.h"
#include "core/read_activation.h"
#include "core/versioned.h"

namespace normact {
namespace {

// The ends of the structs of their first version, which every caller has.
constexpr size_t kDescSize = offsetof(normact_gated_desc, up_offset) + sizeof(double);
constexpr size_t kForwardSize = offsetof(normact_gated_forward_args, y) + sizeof(void*);
constexpr size_t kBackwardSize = offsetof(normact_gated_backward_args, dup_bias) + sizeof(void*);

const char* name_of(normact_gate_layout layout) {
  switch (layout) {
#define NORMACT_CASE(symbol, value, name) \
  case NORMACT_GATE_##symbol: return name;
    NORMACT_GATE_LAYOUT_LIST(NORMACT_CASE)
#undef NORMACT_CASE
  }
  return "?";
}

#define NORMACT_NAME(symbol, value, name) ", " name " " #value
constexpr char kAllNames[] = NORMACT_GATE_LAYOUT_LIST(NORMACT_NAME);
#undef NORMACT_NAME

Status read_layout(int32_t given, normact_gate_layout* layout) {
  *layout = static_cast<normact_gate_layout>(given);
  switch (given) {
#define NORMACT_CASE(symbol, value, name) case NORMACT_GATE_##symbol:
    NORMACT_GATE_LAYOUT_LIST(NORMACT_CASE) return {};
#undef NORMACT_CASE
    default: break;
  }
  return invalid("desc->layout is ", given, "; expected one of ", &kAllNames[2]);
}

Status read_desc(const normact_gated_desc* given, normact_gated_desc* desc, normact_gate_layout* layout,
                 PointwiseProblem* problem) {
  NORMACT_TRY(read_struct(given, kDescSize, "desc", desc));
  NORMACT_TRY(read_kind(desc->kind, desc->alpha, desc->beta, desc->threshold, &problem->activation));
  NORMACT_TRY(read_layout(desc->layout, layout));
  if (desc->reserved != 0) return invalid("desc->reserved is ", desc->reserved, "; expected 0");
  if (!(desc->limit >= 0)) [[unlikely]]
    return invalid("desc->limit is ", desc->limit, "; expected a number greater than 0, or 0 for none");
  if (!std::isfinite(desc->up_offset)) [[unlikely]]
    return invalid("desc->up_offset is ", desc->up_offset, "; expected a finite number");
  problem->gated = true;
  problem->limit = desc->limit == 0 ? std::numeric_limits<double>::infinity() : desc->limit;
  problem->up_offset = desc->up_offset == 0 ? -0.0 : desc->up_offset;  // adding which leaves the sign of a zero
  return {};
}

// What belongs to up is in the gate's tensor where that is packed.
Status check_absent(const normact_tensor* tensor, const char* name, const char* packed, normact_gate_layout layout) {
  if (tensor == nullptr || layout == NORMACT_GATE_SEPARATE) return {};
  return invalid(name, " is given with layout ", name_of(layout), "; expected NULL, as ", packed, " holds both halves");
}

Status check_present(const normact_tensor* tensor, const char* name, normact_gate_layout layout) {
  if (tensor != nullptr || layout != NORMACT_GATE_SEPARATE) return {};
  return invalid(name, " is NULL; expected a tensor, as desc->layout is separate");
}

}  // namespace

Status read_gated_forward(const normact_gated_desc* desc, const normact_gated_forward_args* given, Purpose purpose,
                          PointwiseForward* problem, Device* device) {
  *problem = {};
  normact_gated_desc what;
  normact_gate_layout layout;
  NORMACT_TRY(read_desc(desc, &what, &layout, problem));
  normact_gated_forward_args args;
  NORMACT_TRY(read_struct(given, kForwardSize, "args", &args));
  NORMACT_TRY(require(args.gate, "gate"));
  NORMACT_TRY(check_present(args.up, "up", layout));
  NORMACT_TRY(require(args.y, "y"));
  NORMACT_TRY(check_absent(args.up, "up", "gate", layout));
  NORMACT_TRY(check_absent(args.up_bias, "up_bias", "gate_bias", layout));

  enum : uint64_t { kGate, kUp };  // places in the table
  PointwiseForward& p = *problem;
  const bool packed = layout != NORMACT_GATE_SEPARATE;
  const PointwiseArgument table[] = {
      {{"gate", args.gate, Role::element, false, 0}, &p.x, packed ? &p.up : nullptr},
      {{"up", args.up, Role::element, false, 0}, &p.up, nullptr},
      {{"gate_bias", args.gate_bias, Role::parameter, false, 0}, &p.bias, packed ? &p.up_bias : nullptr},
      {{"up_bias", args.up_bias, Role::parameter, false, 0}, &p.up_bias, nullptr},
      {{"y", args.y, Role::element, true, packed ? 0 : bit(kGate) | bit(kUp)}, &p.y, nullptr},
  };
  return read_pointwise_arguments(table, layout, what.axis, purpose, problem, device);
}

Status read_gated_backward(const normact_gated_desc* desc, const normact_gated_backward_args* given, Purpose purpose,
                           PointwiseBackward* problem, Device* device) {
  *problem = {};
  normact_gated_desc what;
  normact_gate_layout layout;
  NORMACT_TRY(read_desc(desc, &what, &layout, problem));
  normact_gated_backward_args args;
  NORMACT_TRY(read_struct(given, kBackwardSize, "args", &args));
  NORMACT_TRY(require(args.dy, "dy"));
  NORMACT_TRY(require(args.gate, "gate"));
  NORMACT_TRY(check_present(args.up, "up", layout));
  NORMACT_TRY(require(args.dgate, "dgate"));
  NORMACT_TRY(check_present(args.dup, "dup", layout));
  NORMACT_TRY(check_absent(args.up, "up", "gate", layout));
  NORMACT_TRY(check_absent(args.up_bias, "up_bias", "gate_bias", layout));
  NORMACT_TRY(check_absent(args.dup, "dup", "dgate", layout));
  NORMACT_TRY(check_absent(args.dup_bias, "dup_bias", "dgate_bias", layout));

  enum : uint64_t { kGate, kUp, kDy };  // places in the table
  PointwiseBackward& p = *problem;
  const bool packed = layout != NORMACT_GATE_SEPARATE;
  const uint64_t inputs = packed ? bit(kGate) : bit(kGate) | bit(kUp) | bit(kDy);
  const PointwiseArgument table[] = {
      {{"gate", args.gate, Role::element, false, 0}, &p.x, packed ? &p.up : nullptr},
      {{"up", args.up, Role::element, false, 0}, &p.up, nullptr},
      {{"dy", args.dy, Role::element, false, 0}, &p.dy, nullptr},
      {{"gate_bias", args.gate_bias, Role::parameter, false, 0}, &p.bias, packed ? &p.up_bias : nullptr},
      {{"up_bias", args.up_bias, Role::parameter, false, 0}, &p.up_bias, nullptr},
      {{"dgate", args.dgate, Role::element, true, inputs}, &p.dx, packed ? &p.dup : nullptr},
      {{"dup", args.dup, Role::element, true, inputs}, &p.dup, nullptr},
      {{"dgate_bias", args.dgate_bias, Role::parameter, true, 0}, &p.dbias, packed ? &p.dup_bias : nullptr},
      {{"dup_bias", args.dup_bias, Role::parameter, true, 0}, &p.dup_bias, nullptr},
  };
  return read_pointwise_arguments(table, layout, what.axis, purpose, problem, device);
}

}  // namespace normact
