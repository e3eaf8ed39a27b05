// SPDX-License-Identifier: Apache-2.0
// Layer norm and RMS norm: read, hand over to the back end.
#include <cstdint>
#include <limits>

#include "api/guard.h"
#include "core/message.h"
#include "core/read_norm.h"
#include "core/versioned.h"
#include "core/workspace.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

namespace normact::api {
namespace {

constexpr size_t kExecSize = offsetof(normact_exec, sm_margin) + sizeof(int32_t);  // of version 0.1

Status read_exec(const normact_exec* given, normact_exec* exec) {
  *exec = {};
  if (given == nullptr) return {};
  NORMACT_TRY(read_struct(given, kExecSize, "exec", exec));
  if (exec->sm_margin < 0) [[unlikely]] {
    return invalid("exec->sm_margin is ", exec->sm_margin, "; expected at least 0");
  }
  switch (exec->row_variant) {
#define NORMACT_CASE(symbol, value, name) case NORMACT_ROW_##symbol:
    NORMACT_ROW_VARIANT_LIST(NORMACT_CASE) return {};
#undef NORMACT_CASE
    default: break;
  }
  return invalid("exec->row_variant is ", exec->row_variant, "; expected a normact_row_variant");
}

Status check_cpu_exec(const normact_exec& exec) {
  if (exec.row_variant == NORMACT_ROW_AUTO) return {};
  return not_supported("exec->row_variant is ", exec.row_variant,
                       ", which names a CUDA kernel, but x is on the CPU; "
                       "expected NORMACT_ROW_AUTO");
}

cuda::Launch launch_of(const normact_exec& exec, Device device) {
  return {device.id,
          exec.stream,
          {exec.workspace, exec.workspace_bytes},
          static_cast<normact_row_variant>(exec.row_variant),
          exec.sm_margin};
}

bool is_empty(const RowForward& problem) { return problem.geometry.rows == 0 || problem.geometry.cols == 0; }

// With no rows the parameter gradients are still to be set to zero; with no columns there is nothing to write.
bool is_empty(const RowBackward& problem) {
  const bool sums = problem.dweight.data != nullptr || problem.dbias.data != nullptr;
  return problem.geometry.cols == 0 || (problem.geometry.rows == 0 && !sums);
}

// Workspace queries of the back ends by problem; the CPU's forward needs none.
Status workspace_of(const RowForward& problem, Device device, const normact_exec& exec, size_t* bytes) {
  if (device.cuda) return cuda::row_norm_forward_workspace(problem, launch_of(exec, device), bytes);
  *bytes = 0;
  return check_cpu_exec(exec);
}

Status workspace_of(const RowBackward& problem, Device device, const normact_exec& exec, size_t* bytes) {
  if (device.cuda) return cuda::row_norm_backward_workspace(problem, launch_of(exec, device), bytes);
  *bytes = cpu::row_norm_backward_workspace(problem);
  return check_cpu_exec(exec);
}

Status run(const RowForward& problem, Device device, const normact_exec& exec) {
  if (device.cuda) return cuda::row_norm_forward(problem, launch_of(exec, device));
  NORMACT_TRY(check_cpu_exec(exec));
  return cpu::row_norm_forward(problem);
}

Status run(const RowBackward& problem, Device device, const normact_exec& exec) {
  if (device.cuda) return cuda::row_norm_backward(problem, launch_of(exec, device));
  NORMACT_TRY(check_cpu_exec(exec));
  NORMACT_TRY(check_workspace({exec.workspace, exec.workspace_bytes}, cpu::row_norm_backward_workspace(problem)));
  return cpu::row_norm_backward(problem, exec.workspace);
}

void fill(const Operand& statistic, const RowGeometry& geometry, double value) {
  for (int64_t row = 0; row < geometry.rows; ++row) {
    const int64_t offset = strided_offset(row, geometry.row_ndim, geometry.row_shape, statistic.row_stride);
    if (statistic.dtype == DType::f64) {
      static_cast<double*>(statistic.data)[offset] = value;
    } else {
      static_cast<float*>(statistic.data)[offset] = static_cast<float>(value);
    }
  }
}

// The statistics of rows without columns, as PyTorch has them: mean 0, rstd NaN.
Status finish_empty(const RowForward& problem, Device device) {
  const bool statistics = problem.mean.data != nullptr || problem.rstd.data != nullptr;
  if (problem.geometry.rows == 0 || !statistics) return {};
  if (device.cuda) {
    return not_supported(problem.rstd.data != nullptr ? "rstd" : "mean", " of ", problem.geometry.rows,
                         " rows without columns is not computed on CUDA; expected NULL or at least one column");
  }
  if (problem.mean.data != nullptr) fill(problem.mean, problem.geometry, 0);
  if (problem.rstd.data != nullptr) fill(problem.rstd, problem.geometry, std::numeric_limits<double>::quiet_NaN());
  return {};
}

Status finish_empty(const RowBackward&, Device) { return {}; }

template <class Problem, class Args, class Reader>
Status run_norm(Reader read, const normact_norm_desc* desc, const Args* args, const normact_exec* given) {
  normact_exec exec;
  NORMACT_TRY(read_exec(given, &exec));
  Problem problem;
  Device device;
  NORMACT_TRY(read(desc, args, Purpose::run, &problem, &device));
  if (is_empty(problem)) return finish_empty(problem, device);
  return run(problem, device, exec);
}

template <class Problem, class Args, class Reader>
Status query_norm(Reader read, const normact_norm_desc* desc, const Args* args, const normact_exec* given,
                  size_t* bytes) {
  if (bytes == nullptr) return invalid("bytes is NULL; expected where to write the size");
  normact_exec exec;
  NORMACT_TRY(read_exec(given, &exec));
  Problem problem;
  Device device;
  NORMACT_TRY(read(desc, args, Purpose::query, &problem, &device));
  size_t needed = 0;
  if (!is_empty(problem)) NORMACT_TRY(workspace_of(problem, device, exec, &needed));
  *bytes = needed;
  return {};
}

}  // namespace
}  // namespace normact::api

using namespace normact;
using namespace normact::api;

normact_status normact_norm_forward(const normact_norm_desc* desc, const normact_norm_forward_args* args,
                                    const normact_exec* exec) {
  return guarded(__func__, [=] { return run_norm<RowForward>(read_norm_forward, desc, args, exec); });
}

normact_status normact_norm_forward_workspace(const normact_norm_desc* desc, const normact_norm_forward_args* args,
                                              const normact_exec* exec, size_t* bytes) {
  return guarded(__func__, [=] { return query_norm<RowForward>(read_norm_forward, desc, args, exec, bytes); });
}

normact_status normact_norm_backward(const normact_norm_desc* desc, const normact_norm_backward_args* args,
                                     const normact_exec* exec) {
  return guarded(__func__, [=] { return run_norm<RowBackward>(read_norm_backward, desc, args, exec); });
}

normact_status normact_norm_backward_workspace(const normact_norm_desc* desc, const normact_norm_backward_args* args,
                                               const normact_exec* exec, size_t* bytes) {
  return guarded(__func__, [=] { return query_norm<RowBackward>(read_norm_backward, desc, args, exec, bytes); });
}
