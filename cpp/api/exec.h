// SPDX-License-Identifier: Apache-2.0
// What every public call does with its exec.
#pragma once

#include "core/array.h"
#include "core/status.h"
#include "cuda/backend.h"
#include "normact/normact.h"

namespace normact::api {

Status read_exec(const normact_exec* given, normact_exec* exec);

/// For problems that no row kernel works on.
Status check_no_variant(const normact_exec& exec, const char* why);

inline Workspace workspace_of(const normact_exec& exec) { return {exec.workspace, exec.workspace_bytes}; }

inline cuda::Launch launch_of(const normact_exec& exec, Device device) {
  return {device.id, exec.stream, workspace_of(exec), static_cast<normact_row_variant>(exec.row_variant),
          exec.sm_margin};
}

}  // namespace normact::api
