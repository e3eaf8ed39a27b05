// SPDX-License-Identifier: Apache-2.0
// The parts of a batch norm over several processes.
#include <cstddef>

#include "core/channel_arguments.h"
#include "core/channel_desc.h"
#include "core/read_activation.h"
#include "core/read_batch_norm.h"
#include "core/versioned.h"

namespace normact {
namespace {

// The ends of the structs of their first version, which every caller has.
constexpr size_t kStatisticsSize = offsetof(normact_batch_norm_statistics_args, moments) + sizeof(void*);
constexpr size_t kMergeSize = offsetof(normact_batch_norm_merge_args, rstd) + sizeof(void*);
constexpr size_t kApplySize = offsetof(normact_batch_norm_apply_args, mask) + sizeof(void*);
constexpr size_t kReduceSize = offsetof(normact_batch_norm_reduce_args, sums) + sizeof(void*);
constexpr size_t kInputGradientSize = offsetof(normact_batch_norm_input_gradient_args, daddend) + sizeof(void*);

constexpr int64_t kMomentRows = 3;
constexpr int64_t kSumRows = 2;

// What both halves of a backward need.
template <class Args>
Status check_gradient_inputs(const Args& args, const Activation& activation) {
  NORMACT_TRY(require(args.dy, "dy"));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.mean, "mean"));
  NORMACT_TRY(require(args.rstd, "rstd"));
  NORMACT_TRY(require(args.sums, "sums"));
  return check_slope_source(activation, args.y, args.mask);
}

}  // namespace

Status read_batch_norm_statistics(const normact_batch_norm_desc* desc, const normact_batch_norm_statistics_args* given,
                                  Purpose purpose, ChannelMoments* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_batch_norm_statistics_args args;
  NORMACT_TRY(read_struct(given, kStatisticsSize, "args", &args));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.moments, "moments"));
  const ChannelArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &problem->x},
      {{"moments", args.moments, Role::table, true, 0}, &problem->moments, kMomentRows},
  };
  return read_channel_arguments(table, {ChannelSet::channel, what.channel_axis, 0}, purpose, problem, device);
}

Status read_batch_norm_merge(const normact_batch_norm_desc* desc, const normact_batch_norm_merge_args* given,
                             Purpose purpose, ChannelMerge* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_batch_norm_merge_args args;
  NORMACT_TRY(read_struct(given, kMergeSize, "args", &args));
  NORMACT_TRY(require(args.moments, "moments"));
  NORMACT_TRY(require(args.mean, "mean"));
  NORMACT_TRY(require(args.rstd, "rstd"));
  ChannelMerge& p = *problem;
  NORMACT_TRY(read_running(what, args.running_mean, args.running_var, args.num_batches_tracked, &p.running));
  void* batches = nullptr;
  const ChannelArgument table[] = {
      {{"moments", args.moments, Role::table, false, 0}, &p.moments},
      {{"running_mean", args.running_mean, Role::running, true, 0}, &p.running.mean},
      {{"running_var", args.running_var, Role::running, true, 0}, &p.running.variance},
      {{"num_batches_tracked", args.num_batches_tracked, Role::counter, true, 0}, &batches},
      {{"mean", args.mean, Role::statistic, true, 0}, &p.mean},
      {{"rstd", args.rstd, Role::statistic, true, 0}, &p.rstd},
  };
  NORMACT_TRY(read_merge_arguments(table, purpose, problem, device));
  p.running.batches = static_cast<int64_t*>(batches);
  return {};
}

Status read_batch_norm_apply(const normact_batch_norm_desc* desc, const normact_batch_norm_apply_args* given,
                             Purpose purpose, ChannelForward* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_batch_norm_apply_args args;
  NORMACT_TRY(read_struct(given, kApplySize, "args", &args));
  NORMACT_TRY(require(args.x, "x"));
  NORMACT_TRY(require(args.mean, "mean"));
  NORMACT_TRY(require(args.rstd, "rstd"));
  NORMACT_TRY(require(args.y, "y"));
  NORMACT_TRY(check_mask(problem->activation, args.mask, "desc->activation"));

  enum : uint64_t { kX, kAddend };  // places in the table
  ChannelForward& p = *problem;
  p.source = StatisticsSource::given;
  void* mask = nullptr;
  const ChannelArgument table[] = {
      {{"x", args.x, Role::element, false, 0}, &p.x},
      {{"addend", args.addend, Role::element, false, 0}, &p.addend},
      {{"weight", args.weight, Role::parameter, false, 0}, &p.weight},
      {{"bias", args.bias, Role::parameter, false, 0}, &p.bias},
      {{"mean", args.mean, Role::statistic, false, 0}, &p.mean},
      {{"rstd", args.rstd, Role::statistic, false, 0}, &p.rstd},
      {{"y", args.y, Role::element, true, bit(kX) | bit(kAddend)}, &p.y},
      {{"mask", args.mask, Role::bits, true, 0}, &mask},
  };
  NORMACT_TRY(read_channel_arguments(table, {ChannelSet::channel, what.channel_axis, 0}, purpose, problem, device));
  p.mask = static_cast<uint8_t*>(mask);
  return {};
}

Status read_batch_norm_reduce(const normact_batch_norm_desc* desc, const normact_batch_norm_reduce_args* given,
                              Purpose purpose, ChannelReduce* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_batch_norm_reduce_args args;
  NORMACT_TRY(read_struct(given, kReduceSize, "args", &args));
  NORMACT_TRY(check_gradient_inputs(args, problem->activation));
  ChannelReduce& p = *problem;
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
      {{"sums", args.sums, Role::table, true, 0}, &p.sums, kSumRows},
  };
  NORMACT_TRY(read_channel_arguments(table, {ChannelSet::channel, what.channel_axis, 0}, purpose, problem, device));
  p.mask = static_cast<const uint8_t*>(mask);
  return {};
}

Status read_batch_norm_input_gradient(const normact_batch_norm_desc* desc,
                                      const normact_batch_norm_input_gradient_args* given, Purpose purpose,
                                      ChannelInputGradient* problem, Device* device) {
  *problem = {};
  normact_batch_norm_desc what;
  NORMACT_TRY(read_channel_desc(desc, &what, problem));
  normact_batch_norm_input_gradient_args args;
  NORMACT_TRY(read_struct(given, kInputGradientSize, "args", &args));
  NORMACT_TRY(check_gradient_inputs(args, problem->activation));
  NORMACT_TRY(require(args.count, "count"));
  NORMACT_TRY(require(args.dx, "dx"));

  enum : uint64_t { kX, kDy, kAddend };  // places in the table
  ChannelInputGradient& p = *problem;
  const bool again = computes_again(p.activation, args.y, args.mask);
  void* mask = nullptr;
  ChannelVector count{};
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
      {{"sums", args.sums, Role::table, false, 0}, &p.sums, kSumRows},
      {{"count", args.count, Role::count, false, 0}, &count},
      {{"dx", args.dx, Role::element, true, bit(kX) | bit(kDy)}, &p.dx},
      {{"daddend", args.daddend, Role::element, true, bit(kDy) | bit(kAddend)}, &p.daddend},
  };
  NORMACT_TRY(read_channel_arguments(table, {ChannelSet::channel, what.channel_axis, 0}, purpose, problem, device));
  p.mask = static_cast<const uint8_t*>(mask);
  p.count = count.data;
  p.count_stride = count.stride;
  return {};
}

}  // namespace normact
