// SPDX-License-Identifier: Apache-2.0
#include "cpu/scratch.h"

#include <cstdlib>

namespace normact::cpu {
namespace {

struct Buffer {
  ~Buffer() { std::free(data); }
  char* data = nullptr;
  int64_t size = 0;
};

thread_local Buffer buffer;

}  // namespace

char* thread_buffer(int64_t bytes) {
  if (bytes > buffer.size || !buffer.data) {
    std::free(buffer.data);
    buffer.size = align_up(bytes > 4096 ? bytes : 4096);
    buffer.data = static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(buffer.size)));
    if (!buffer.data) buffer.size = 0;
  }
  return buffer.data;
}

}  // namespace normact::cpu
