// SPDX-License-Identifier: Apache-2.0
// Layer norm and RMS norm: read, hand over to the back end.
#include <cstdint>
#include <limits>

#include "api/call.h"
#include "core/message.h"
#include "core/read_norm.h"
#include "core/workspace.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

namespace normact::api {
namespace {

Status check_cpu_exec(const normact_exec& exec) {
  return check_no_variant(exec, ", which names a CUDA kernel, but x is on the CPU");
}

bool is_empty(const RowForward& problem) { return problem.geometry.rows == 0 || problem.geometry.cols == 0; }

// With no rows the parameter gradients are still to be set to zero; with no columns there is nothing to write.
bool is_empty(const RowBackward& problem) {
  const bool sums = problem.dweight.data != nullptr || problem.dbias.data != nullptr;
  return problem.geometry.cols == 0 || (problem.geometry.rows == 0 && !sums);
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

Status forward(const RowForward& problem, Device device, const normact_exec& exec) {
  if (is_empty(problem)) return finish_empty(problem, device);
  if (device.cuda) return cuda::row_norm_forward(problem, launch_of(exec, device));
  NORMACT_TRY(check_cpu_exec(exec));
  return cpu::row_norm_forward(problem);
}

// The CPU's forward needs none.
Status forward_workspace(const RowForward& problem, Device device, const normact_exec& exec, size_t* bytes) {
  if (is_empty(problem)) return {};
  if (device.cuda) return cuda::row_norm_forward_workspace(problem, launch_of(exec, device), bytes);
  return check_cpu_exec(exec);
}

Status backward(const RowBackward& problem, Device device, const normact_exec& exec) {
  if (is_empty(problem)) return {};
  if (device.cuda) return cuda::row_norm_backward(problem, launch_of(exec, device));
  NORMACT_TRY(check_cpu_exec(exec));
  NORMACT_TRY(check_workspace(workspace_of(exec), cpu::row_norm_backward_workspace(problem)));
  return cpu::row_norm_backward(problem, exec.workspace);
}

Status backward_workspace(const RowBackward& problem, Device device, const normact_exec& exec, size_t* bytes) {
  if (is_empty(problem)) return {};
  if (device.cuda) return cuda::row_norm_backward_workspace(problem, launch_of(exec, device), bytes);
  *bytes = cpu::row_norm_backward_workspace(problem);
  return check_cpu_exec(exec);
}

}  // namespace
}  // namespace normact::api

using namespace normact;
using namespace normact::api;

normact_status normact_norm_forward(const normact_norm_desc* desc, const normact_norm_forward_args* args,
                                    const normact_exec* exec) {
  return run_call<RowForward>(__func__, read_norm_forward, desc, args, exec, forward);
}

normact_status normact_norm_forward_workspace(const normact_norm_desc* desc, const normact_norm_forward_args* args,
                                              const normact_exec* exec, size_t* bytes) {
  return query_call<RowForward>(__func__, read_norm_forward, desc, args, exec, bytes, forward_workspace);
}

normact_status normact_norm_backward(const normact_norm_desc* desc, const normact_norm_backward_args* args,
                                     const normact_exec* exec) {
  return run_call<RowBackward>(__func__, read_norm_backward, desc, args, exec, backward);
}

normact_status normact_norm_backward_workspace(const normact_norm_desc* desc, const normact_norm_backward_args* args,
                                               const normact_exec* exec, size_t* bytes) {
  return query_call<RowBackward>(__func__, read_norm_backward, desc, args, exec, bytes, backward_workspace);
}
