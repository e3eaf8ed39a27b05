// SPDX-License-Identifier: Apache-2.0
#include "api/exec.h"

#include <cstddef>

#include "core/message.h"
#include "core/versioned.h"

namespace normact::api {
namespace {

constexpr size_t kExecSize = offsetof(normact_exec, sm_margin) + sizeof(int32_t);  // of version 0.1

}  // namespace

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

Status check_no_variant(const normact_exec& exec, const char* why) {
  if (exec.row_variant == NORMACT_ROW_AUTO) return {};
  return not_supported("exec->row_variant is ", exec.row_variant, why, "; expected NORMACT_ROW_AUTO");
}

}  // namespace normact::api
