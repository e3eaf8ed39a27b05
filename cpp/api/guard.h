// SPDX-License-Identifier: Apache-2.0
// The boundary that no exception crosses: every public function that can fail runs its body in guarded().
#pragma once

#include <exception>
#include <new>
#include <string>

#include "core/status.h"
#include "normact/normact.h"

namespace normact::api {

/// Remembers "function: message" as this thread's last error and returns the code. Never throws.
normact_status remember(const char* function, normact_status code, const char* message) noexcept;

/// Runs a body that returns a Status.
template <class Body>
normact_status guarded(const char* function, Body body) noexcept {
  try {
    const Status status = body();
    return status.ok() ? NORMACT_OK : remember(function, status.code(), status.message().c_str());
  } catch (const std::bad_alloc&) {
    return remember(function, NORMACT_OUT_OF_MEMORY, "host memory could not be allocated");
  } catch (const std::exception& error) {
    return remember(function, NORMACT_INTERNAL, error.what());
  } catch (...) {
    return remember(function, NORMACT_INTERNAL, "an unknown exception was thrown");
  }
}

}  // namespace normact::api
