// SPDX-License-Identifier: Apache-2.0
#include "cpu/scratch.h"

#include <cstdlib>

namespace normact::cpu {
namespace {

// Of types without destructors, which are there as long as their thread: a call may come from where those of others run
// (an exit handler, a static object, a thread key).
thread_local char* buffer = nullptr;
thread_local int64_t size = 0;

struct Release {
  ~Release() {
    std::free(buffer);
    buffer = nullptr;
    size = 0;
  }
};

}  // namespace

char* thread_buffer(int64_t bytes) {
  if (bytes > size || buffer == nullptr) {
    thread_local const Release release;
    static_cast<void>(release);
    std::free(buffer);
    size = align_up(bytes > 4096 ? bytes : 4096);
    buffer = static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(size)));
    if (buffer == nullptr) size = 0;
  }
  return buffer;
}

}  // namespace normact::cpu
