// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "api/guard.h"

namespace normact::api {
namespace {

// A fixed buffer: recording that memory has run out must not need memory.
constexpr size_t kMaxSentence = 1024;
thread_local char last_error[kMaxSentence] = "";

}  // namespace

normact_status remember(const char* function, normact_status code, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s: %s", function, message);
  return code;
}

}  // namespace normact::api

const char* normact_last_error(void) { return normact::api::last_error; }

const char* normact_status_string(normact_status status) {
  switch (status) {
#define NORMACT_CASE(symbol, value, text) \
  case NORMACT_##symbol: return text;
    NORMACT_STATUS_LIST(NORMACT_CASE)
#undef NORMACT_CASE
  }
  return "not a normact_status";
}
