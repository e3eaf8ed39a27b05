// SPDX-License-Identifier: Apache-2.0
// The functions of normact.h as handlers that XLA calls: a line of a table for each. They never touch Python: XLA calls
// them on threads of its own.
#include "bindings/xla_handlers.h"

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "bindings/execute.h"
#include "bindings/xla_call.h"

namespace normact::python {
namespace {

namespace nb = nanobind;
using xla::Options;
using xla::Platform;

// ---- Options: the members of a description by their names --------------------------------------------------------

template <class Desc>
void read_activation(const Options& options, Desc* desc) {
  desc->alpha = options.number("alpha");
  desc->beta = options.number("beta");
  desc->threshold = options.number("threshold");
}

int32_t small(const Options& options, const char* name) { return static_cast<int32_t>(options.integer(name)); }

void read(const Options& options, normact_norm_desc* desc) {
  const xla::Array& axes = options.integers("axes");
  desc->kind = small(options, "kind");
  desc->num_axes = static_cast<int32_t>(axes.size);
  desc->axes = static_cast<const int64_t*>(axes.data);
  desc->eps = options.number("eps");
  desc->weight_offset = options.number("weight_offset");
  desc->activation = small(options, "activation");
  read_activation(options, desc);
}

void read(const Options& options, normact_activation_desc* desc) {
  desc->kind = small(options, "kind");
  desc->axis = small(options, "axis");
  read_activation(options, desc);
}

void read(const Options& options, normact_gated_desc* desc) {
  desc->kind = small(options, "kind");
  desc->layout = small(options, "layout");
  desc->axis = small(options, "axis");
  desc->limit = options.number("limit");
  desc->up_offset = options.number("up_offset");
  read_activation(options, desc);
}

void read(const Options& options, normact_batch_norm_desc* desc) {
  desc->channel_axis = small(options, "channel_axis");
  desc->training = small(options, "training");
  desc->eps = options.number("eps");
  desc->momentum = options.number("momentum");
  desc->activation = small(options, "activation");
  read_activation(options, desc);
}

void read(const Options& options, normact_group_norm_desc* desc) {
  desc->channel_axis = small(options, "channel_axis");
  desc->num_groups = options.integer("num_groups");
  desc->eps = options.number("eps");
  desc->momentum = options.number("momentum");
  desc->activation = small(options, "activation");
  read_activation(options, desc);
}

// ---- The functions -----------------------------------------------------------------------------------------------

template <class DescType, class ArgsType>
struct Function {
  using Desc = DescType;
  using Args = ArgsType;
  static constexpr size_t kTensors = (sizeof(Args) - sizeof(size_t)) / sizeof(const normact_tensor*);
  static_assert(kTensors <= xla::kMaxTensors);

  const char* name;
  const char* fields[kTensors];  // the members of Args behind struct_size, which all are tensors
  normact_status (*run)(const Desc*, const Args*, const normact_exec*);
  normact_status (*query)(const Desc*, const Args*, const normact_exec*, size_t*);  // null: needs no workspace
};

#define NORMACT_FUNCTION(symbol, name, desc, query, ...)                   \
  constexpr Function<normact_##desc##_desc, normact_##name##_args> symbol{ \
      #name, {__VA_ARGS__}, normact_##name, query};                        \
  static_assert(symbol.fields[symbol.kTensors - 1] != nullptr, #name);
NORMACT_FUNCTION(kNormForward, norm_forward, norm, normact_norm_forward_workspace, "x", "residual", "weight", "bias",
                 "y", "residual_out", "mean", "rstd")
NORMACT_FUNCTION(kNormBackward, norm_backward, norm, normact_norm_backward_workspace, "dy", "x", "weight", "mean",
                 "rstd", "dresidual", "dx", "dweight", "dbias", "bias", "daddend")
NORMACT_FUNCTION(kActivationForward, activation_forward, activation, normact_activation_forward_workspace, "x", "bias",
                 "y", "mask")
NORMACT_FUNCTION(kActivationBackward, activation_backward, activation, normact_activation_backward_workspace, "dy", "x",
                 "bias", "y", "mask", "dx", "dbias")
NORMACT_FUNCTION(kGatedForward, gated_forward, gated, normact_gated_forward_workspace, "gate", "up", "gate_bias",
                 "up_bias", "y")
NORMACT_FUNCTION(kGatedBackward, gated_backward, gated, normact_gated_backward_workspace, "dy", "gate", "up",
                 "gate_bias", "up_bias", "dgate", "dup", "dgate_bias", "dup_bias")
NORMACT_FUNCTION(kGroupNormForward, group_norm_forward, group_norm, normact_group_norm_forward_workspace, "x", "weight",
                 "bias", "running_mean", "running_var", "y", "mean", "rstd")
NORMACT_FUNCTION(kGroupNormBackward, group_norm_backward, group_norm, normact_group_norm_backward_workspace, "dy", "x",
                 "weight", "bias", "mean", "rstd", "dx", "dweight", "dbias")
NORMACT_FUNCTION(kBatchNormForward, batch_norm_forward, batch_norm, normact_batch_norm_forward_workspace, "x", "weight",
                 "bias", "addend", "running_mean", "running_var", "num_batches_tracked", "y", "mean", "rstd", "mask")
NORMACT_FUNCTION(kBatchNormBackward, batch_norm_backward, batch_norm, normact_batch_norm_backward_workspace, "dy", "x",
                 "weight", "bias", "addend", "mean", "rstd", "y", "mask", "dx", "dweight", "dbias", "daddend")
NORMACT_FUNCTION(kBatchNormStatistics, batch_norm_statistics, batch_norm, normact_batch_norm_statistics_workspace, "x",
                 "moments")
NORMACT_FUNCTION(kBatchNormMerge, batch_norm_merge, batch_norm, nullptr, "moments", "running_mean", "running_var",
                 "num_batches_tracked", "mean", "rstd")
NORMACT_FUNCTION(kBatchNormApply, batch_norm_apply, batch_norm, nullptr, "x", "weight", "bias", "addend", "mean",
                 "rstd", "y", "mask")
NORMACT_FUNCTION(kBatchNormReduce, batch_norm_reduce, batch_norm, normact_batch_norm_reduce_workspace, "dy", "x",
                 "weight", "bias", "addend", "mean", "rstd", "y", "mask", "sums")
NORMACT_FUNCTION(kBatchNormInputGradient, batch_norm_input_gradient, batch_norm, nullptr, "dy", "x", "weight", "bias",
                 "addend", "mean", "rstd", "y", "mask", "sums", "count", "dx", "daddend")
#undef NORMACT_FUNCTION

// ---- A handler of a function on a platform -----------------------------------------------------------------------

template <const auto& kFunction, Platform kPlatform>
void run(const xla::Frame& frame) {
  using Type = std::remove_cvref_t<decltype(kFunction)>;
  const Options options(frame.attributes);
  typename Type::Desc desc{};
  desc.struct_size = sizeof desc;
  read(options, &desc);
  normact_exec exec{sizeof exec, nullptr, nullptr, 0, NORMACT_ROW_AUTO, sm_margin()};
  int32_t device_type = NORMACT_DEVICE_CPU, device_id = 0;
  if constexpr (kPlatform == Platform::cuda) {
    exec.stream = xla::stream_of(frame);
    device_type = NORMACT_DEVICE_CUDA;
    device_id = xla::device_of(frame);
  }
  const xla::Tensors tensors(frame, options, Type::kTensors, device_type, device_id);
  typename Type::Args args{};
  args.struct_size = sizeof args;
  std::memcpy(reinterpret_cast<char*>(&args) + sizeof args.struct_size, static_cast<const void*>(tensors.pointers()),
              sizeof args - sizeof args.struct_size);
  if (kFunction.query != nullptr)
    xla::check_status(kFunction.query(&desc, &args, &exec, &exec.workspace_bytes), options);
  const xla::Scratch scratch(frame, kPlatform, exec.workspace_bytes);
  exec.workspace = scratch.data();
  xla::check_status(kFunction.run(&desc, &args, &exec), options);
}

template <const auto& kFunction, Platform kPlatform>
xla::Error* handle(xla::Frame* frame) noexcept {
  if (xla::answer_metadata(*frame) || frame->stage != xla::kExecute) return nullptr;
  try {
    run<kFunction, kPlatform>(*frame);
    return nullptr;
  } catch (const xla::Failure& failure) {
    return xla::make_error(*frame, failure);
  } catch (const std::bad_alloc&) {
    return xla::make_error(*frame, {xla::kResourceExhausted, "normact: host memory could not be allocated"});
  } catch (const std::exception& error) {
    return xla::make_error(*frame, {xla::kInternal, std::string("normact: ") + error.what() + "; please report it"});
  }
}

// ---- For Python --------------------------------------------------------------------------------------------------

nb::capsule capsule_of(xla::Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

template <const auto& kFunction>
void add(nb::dict& found) {
  nb::list fields;
  for (const char* field : kFunction.fields) fields.append(field);
  nb::dict platforms;
  platforms["cpu"] = capsule_of(&handle<kFunction, Platform::cpu>);
  // Also in a build without CUDA, whose library says so in a sentence. XLA's own would not say why there is no handler.
  platforms["CUDA"] = capsule_of(&handle<kFunction, Platform::cuda>);
  found[kFunction.name] = nb::make_tuple(nb::tuple(fields), platforms);
}

template <const auto&... kFunctions>
nb::dict handlers() {
  nb::dict found;
  (add<kFunctions>(found), ...);
  return found;
}

}  // namespace

void bind_xla_handlers(nb::module_& module) {
  module.attr("XLA_FFI_VERSION") = nb::make_tuple(xla::kMajorVersion, xla::kMinorVersion);
  module.def(
      "xla_handlers",
      &handlers<kNormForward, kNormBackward, kActivationForward, kActivationBackward, kGatedForward, kGatedBackward,
                kGroupNormForward, kGroupNormBackward, kBatchNormForward, kBatchNormBackward, kBatchNormStatistics,
                kBatchNormMerge, kBatchNormApply, kBatchNormReduce, kBatchNormInputGradient>,
      nb::sig("def xla_handlers() -> dict[str, tuple[tuple[str, ...], dict[str, object]]]"),
      "The functions of the library as XLA handlers: by name the names of their tensors, and a capsule for each "
      "platform.");
}

}  // namespace normact::python
