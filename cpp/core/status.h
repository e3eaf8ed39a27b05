// SPDX-License-Identifier: Apache-2.0
// What a fallible internal function returns: a public status code and the sentence that explains it.
#pragma once

#include <string>
#include <utility>

#include "normact/normact.h"

namespace normact {

class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(normact_status code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == NORMACT_OK; }
  normact_status code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  normact_status code_ = NORMACT_OK;
  std::string message_;  // no allocation while empty, so success costs nothing
};

}  // namespace normact

/// Returns from the calling function with the status of `expression` unless it is success.
#define NORMACT_TRY(expression)                                    \
  do {                                                             \
    if (::normact::Status status_ = (expression); !status_.ok()) { \
      return status_;                                              \
    }                                                              \
  } while (false)
