// SPDX-License-Identifier: Apache-2.0
// Sentences of failing calls. Nothing here runs while calls succeed.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

#include "core/status.h"

namespace normact {

/// The parts, one after the other.
template <class... Parts>
[[gnu::cold, gnu::noinline]] std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <class... Parts>
[[gnu::cold, gnu::noinline]] Status invalid(const Parts&... parts) {
  return {NORMACT_INVALID_ARGUMENT, text(parts...)};
}

template <class... Parts>
[[gnu::cold, gnu::noinline]] Status not_supported(const Parts&... parts) {
  return {NORMACT_NOT_SUPPORTED, text(parts...)};
}

/// "(2, 3)", "(3,)", "()": as Python writes tuples.
[[gnu::cold]] inline std::string tuple_text(int count, const int64_t* values) {
  std::ostringstream stream;
  stream << '(';
  for (int i = 0; i < count; ++i) stream << (i > 0 ? ", " : "") << values[i];
  stream << (count == 1 ? ",)" : ")");
  return stream.str();
}

}  // namespace normact
