// SPDX-License-Identifier: Apache-2.0
#include "core/read_batch_norm.h"

#include <cstddef>

#include "core/channel_arguments.h"
#include "core/channel_desc.h"
#include "core/read_activation.h"
#include "core/versioned.h"

namespace normact {
namespace {

// The ends of the structs of their first version, which every caller has.
constexpr size_t kForwardSize = offsetof(normact_batch_norm_forward_args, mask) + sizeof(void*);
constexpr size_t kBackwardSize = offsetof(normact_batch_norm_backward_args, daddend) + sizeof(void*);

Status read_running_inputs(const normact_batch_norm_desc& desc, const normact_batch_norm_forward_args& args,
                           ChannelForward* problem) {
  if (desc.training != 0) {
    return read_running(desc, args.running_mean, args.running_var, args.num_batches_tracked, &problem->running);
  }
  NORMACT_TRY(require(args.running_mean, "running_mean (needed in inference)"));
  return require(args.running_var, "running_var (needed in inference)");
}

// As PyTorch has it: the variance of one value is 0, and nothing of x is left in y.
Status check_values(const ChannelForward& problem, const normact_tensor& x) {
  const ChannelGeometry& geometry = problem.geometry;
  if (problem.source != StatisticsSource::batch || geometry.channels == 0) return {};
  if (geometry.samples * geometry.places != 1) return {};
  return invalid("x has shape ", tuple_text(x.ndim, x.shape),
                 ", one value a channel; expected more than one value a channel in training");
}

}  // namespace

Status read_batch_norm_forward(const normact_batch_norm_desc* desc, const normact_batch_norm_forward_args* given,
                               Purpose purpose, ChannelForward* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  NORMACT_TRY(check_flag("desc->training", what.training));
  normact_batch_norm_forward_args args;
  NORMACT_TRY(read_struct(given, kForwardSize, "args", &args));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.y, "y"));
  NORMACT_TRY(read_running_inputs(what, args, problem));
  NORMACT_TRY(check_mask(problem->activation, args.mask, "desc->activation"));

  enum : uint64_t { kX, kAddend };  // places in the table
  ChannelForward& p = *problem;
  const bool training = what.training != 0;
  p.source = training ? StatisticsSource::batch : StatisticsSource::running;
  void *batches = nullptr, *mask = nullptr;
  const ChannelArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x},
      {{"addend", args.addend, Role::element, false, 0}, &p.addend},
      {{"weight", args.weight, Role::parameter, false, 0}, &p.weight},
      {{"bias", args.bias, Role::parameter, false, 0}, &p.bias},
      {{"running_mean", args.running_mean, Role::running, training, 0}, &p.running.mean},
      {{"running_var", args.running_var, Role::running, training, 0}, &p.running.variance},
      {{"num_batches_tracked", args.num_batches_tracked, Role::counter, training, 0}, &batches},
      {{"y", args.y, Role::element, true, bit(kX) | bit(kAddend)}, &p.y},
      {{"mean", args.mean, Role::statistic, true, 0}, &p.mean},
      {{"rstd", args.rstd, Role::statistic, true, 0}, &p.rstd},
      {{"mask", args.mask, Role::bits, true, 0}, &mask},
  };
  NORMACT_TRY(read_channel_arguments(table, {ChannelSet::channel, what.channel_axis, 0}, purpose, problem, device));
  p.running.batches = training ? static_cast<int64_t*>(batches) : nullptr;
  p.mask = static_cast<uint8_t*>(mask);
  return check_values(p, *args.x);
}

Status read_batch_norm_backward(const normact_batch_norm_desc* desc, const normact_batch_norm_backward_args* given,
                                Purpose purpose, ChannelBackward* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  NORMACT_TRY(check_flag("desc->training", what.training));
  normact_batch_norm_backward_args args;
  NORMACT_TRY(read_struct(given, kBackwardSize, "args", &args));
  NORMACT_TRY(require(args.dy, "dy"));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.mean, "mean"));
  NORMACT_TRY(require(args.rstd, "rstd"));
  NORMACT_TRY(require(args.dx, "dx"));
  NORMACT_TRY(check_slope_source(problem->activation, args.y, args.mask));

  enum : uint64_t { kX, kDy, kAddend };  // places in the table
  ChannelBackward& p = *problem;
  p.frozen = what.training == 0;
  const bool again = computes_again(p.activation, args.y, args.mask);
  void* mask = nullptr;
  const ChannelArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x},
      {{"dy", args.dy, Role::element, false, 0}, &p.dy},
      {{"addend", args.addend, Role::element, false, 0}, again ? &p.addend : nullptr},
      {{"y", args.y, Role::element, false, 0}, is_identity(p.activation) ? nullptr : &p.y},
      {{"weight", args.weight, Role::parameter, false, 0}, &p.weight},
      {{"bias", args.bias, Role::parameter, false, 0}, again ? &p.bias : nullptr},
      {{"mean", args.mean, Role::statistic, false, 0}, &p.mean},
      {{"rstd", args.rstd, Role::statistic, false, 0}, &p.rstd},
      {{"mask", args.mask, Role::bits, false, 0}, &mask},
      {{"dx", args.dx, Role::element, true, bit(kX) | bit(kDy)}, &p.dx},
      {{"dweight", args.dweight, Role::parameter, true, 0}, &p.dweight},
      {{"dbias", args.dbias, Role::parameter, true, 0}, &p.dbias},
      {{"daddend", args.daddend, Role::element, true, bit(kDy) | bit(kAddend)}, &p.daddend},
  };
  NORMACT_TRY(read_channel_arguments(table, {ChannelSet::channel, what.channel_axis, 0}, purpose, problem, device));
  p.mask = static_cast<const uint8_t*>(mask);
  return {};
}

}  // namespace normact
