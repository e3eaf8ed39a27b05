// SPDX-License-Identifier: Apache-2.0
// The scratch memory that a caller lends to one call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/message.h"
#include "core/status.h"

namespace normact {

struct Workspace {
  void* data;
  size_t bytes;
};

constexpr uintptr_t kWorkspaceAlignment = 256;

/// WORKSPACE_TOO_SMALL unless the workspace has so many bytes, aligned.
inline Status check_workspace(const Workspace& given, size_t needed) {
  if (needed == 0) return {};
  const auto fail = [needed](const auto&... parts) -> Status {
    return {NORMACT_WORKSPACE_TOO_SMALL,
            text(parts..., "; expected ", needed, " bytes, ", kWorkspaceAlignment, "-byte aligned")};
  };
  if (given.data == nullptr) return fail("exec->workspace is NULL");
  if (given.bytes < needed) return fail("exec->workspace_bytes is ", given.bytes);
  if (reinterpret_cast<uintptr_t>(given.data) % kWorkspaceAlignment != 0) return fail("exec->workspace is misaligned");
  return {};
}

/// Stands for memory that a query has not: not null, aligned to everything.
inline void* query_address() { return reinterpret_cast<void*>(uintptr_t{4096}); }

/// `bytes` behind an address, which may be null.
inline void* behind(void* data, size_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) + bytes);
}

/// What is left behind the first `bytes`, a multiple of the alignment.
inline Workspace after(const Workspace& workspace, size_t bytes) {
  return bytes == 0 ? workspace : Workspace{behind(workspace.data, bytes), workspace.bytes - bytes};
}

}  // namespace normact
