// SPDX-License-Identifier: Apache-2.0
// Reads a public struct that begins with struct_size and may come from a caller built against another version.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/message.h"

namespace normact {

constexpr size_t kMaxStructSize = 4096;  // beyond this, struct_size cannot have been set on purpose

/// Copies *given into *out. A shorter struct (an older caller's) is completed with zeros, but it has at least the
/// fields of the first version; a longer one is accepted if what we do not know is zero.
template <class T>
Status read_struct(const T* given, size_t first_version_size, const char* name, T* out) {
  if (given == nullptr) return invalid(name, " is NULL; expected a pointer to its struct");
  size_t size;
  std::memcpy(&size, given, sizeof size);
  if (size < first_version_size || size > kMaxStructSize) [[unlikely]] {
    return invalid(name, "->struct_size is ", size, "; expected ", sizeof(T), ", the size of the struct");
  }
  if (size < sizeof(T)) *out = T{};
  std::memcpy(out, given, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return not_supported(name, "->struct_size is ", size, " and a field past byte ", sizeof(T),
                           " is set; this version knows only the first ", sizeof(T), " bytes");
    }
  }
  return {};
}

}  // namespace normact
