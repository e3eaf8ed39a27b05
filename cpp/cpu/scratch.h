// SPDX-License-Identifier: Apache-2.0
// Host memory that a call works in: one buffer per calling thread, grown when a call needs more and then kept.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace normact::cpu {

constexpr int64_t kAlignment = 64;

constexpr int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// The calling thread's buffer of at least this many bytes, 64-byte aligned; null if there is no memory. Valid until
/// the thread asks again.
char* thread_buffer(int64_t bytes);

/// What a call that asked for so much of it returns then.
inline Status out_of_memory(int64_t bytes) {
  return Status(NORMACT_OUT_OF_MEMORY, std::to_string(bytes) + " bytes of host memory could not be allocated");
}

/// Adds up the parts of a buffer: reserve() says where each will lie.
class Layout {
 public:
  int64_t reserve(int64_t bytes) {
    const int64_t offset = size_;
    size_ += align_up(bytes);
    return offset;
  }
  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0;
};

}  // namespace normact::cpu
