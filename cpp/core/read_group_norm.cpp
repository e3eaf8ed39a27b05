// SPDX-License-Identifier: Apache-2.0
#include "core/read_group_norm.h"

#include <cstddef>

#include "core/channel_arguments.h"
#include "core/channel_desc.h"
#include "core/versioned.h"

namespace normact {
namespace {

// The ends of the structs of their first version, which every caller has.
constexpr size_t kForwardSize = offsetof(normact_group_norm_forward_args, rstd) + sizeof(void*);
constexpr size_t kBackwardSize = offsetof(normact_group_norm_backward_args, dbias) + sizeof(void*);

// Only instance norm keeps running statistics, and their variance is that of more than one value.
Status check_running(const ChannelForward& problem, const normact_tensor& x) {
  const ChannelGeometry& geometry = problem.geometry;
  if (problem.running.mean.data == nullptr) return {};
  if (geometry.groups != geometry.channels) {
    return invalid("running_mean is given with desc->num_groups ", geometry.groups, " for ", geometry.channels,
                   " channels; expected NULL, as only instance norm, a group a channel, keeps running statistics");
  }
  if (geometry.places != 1 || geometry.samples == 0 || geometry.channels == 0) return {};
  return invalid("x has shape ", tuple_text(x.ndim, x.shape),
                 ", one value a channel of a sample; expected more than one where running statistics are kept");
}

}  // namespace

Status read_group_norm_forward(const normact_group_norm_desc* desc, const normact_group_norm_forward_args* given,
                               Purpose purpose, ChannelForward* problem, Device* device) {
  *problem = {};
  normact_group_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_group_norm_forward_args args;
  NORMACT_TRY(read_struct(given, kForwardSize, "args", &args));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.y, "y"));
  NORMACT_TRY(check_both_or_none(args.running_mean, "running_mean", args.running_var, "running_var"));
  if (args.running_mean != nullptr) NORMACT_TRY(check_momentum(what.momentum));

  enum : uint64_t { kX };  // places in the table
  ChannelForward& p = *problem;
  p.source = StatisticsSource::batch;
  p.running.momentum = what.momentum;
  const ChannelArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x},
      {{"weight", args.weight, Role::parameter, false, 0}, &p.weight},
      {{"bias", args.bias, Role::parameter, false, 0}, &p.bias},
      {{"running_mean", args.running_mean, Role::running, true, 0}, &p.running.mean},
      {{"running_var", args.running_var, Role::running, true, 0}, &p.running.variance},
      {{"y", args.y, Role::element, true, bit(kX)}, &p.y},
      {{"mean", args.mean, Role::statistic, true, 0}, &p.mean},
      {{"rstd", args.rstd, Role::statistic, true, 0}, &p.rstd},
  };
  const ChannelAxes axes = {ChannelSet::group, what.channel_axis, what.num_groups};
  NORMACT_TRY(read_channel_arguments(table, axes, purpose, problem, device));
  return check_running(p, *args.x);
}

Status read_group_norm_backward(const normact_group_norm_desc* desc, const normact_group_norm_backward_args* given,
                                Purpose purpose, ChannelBackward* problem, Device* device) {
  *problem = {};
  normact_group_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_group_norm_backward_args args;
  NORMACT_TRY(read_struct(given, kBackwardSize, "args", &args));
  NORMACT_TRY(require(args.dy, "dy"));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.mean, "mean"));
  NORMACT_TRY(require(args.rstd, "rstd"));
  NORMACT_TRY(require(args.dx, "dx"));

  enum : uint64_t { kX, kDy };  // places in the table
  ChannelBackward& p = *problem;
  const ChannelArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x},
      {{"dy", args.dy, Role::element, false, 0}, &p.dy},
      {{"weight", args.weight, Role::parameter, false, 0}, &p.weight},
      {{"bias", args.bias, Role::parameter, false, 0}, is_identity(p.activation) ? nullptr : &p.bias},
      {{"mean", args.mean, Role::statistic, false, 0}, &p.mean},
      {{"rstd", args.rstd, Role::statistic, false, 0}, &p.rstd},
      {{"dx", args.dx, Role::element, true, bit(kX) | bit(kDy)}, &p.dx},
      {{"dweight", args.dweight, Role::parameter, true, 0}, &p.dweight},
      {{"dbias", args.dbias, Role::parameter, true, 0}, &p.dbias},
  };
  return read_channel_arguments(table, {ChannelSet::group, what.channel_axis, what.num_groups}, purpose, problem,
                                device);
}

}  // namespace normact
