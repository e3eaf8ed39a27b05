// SPDX-License-Identifier: Apache-2.0
// What the library tells about itself, and the CPU threads.
#include <cstring>
#include <string>

#include "api/guard.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

namespace {

#define NORMACT_TEXT(x) #x
#define NORMACT_EXPAND(x) NORMACT_TEXT(x)
constexpr const char* kVersion = NORMACT_EXPAND(NORMACT_VERSION_MAJOR) "." NORMACT_EXPAND(
    NORMACT_VERSION_MINOR) "." NORMACT_EXPAND(NORMACT_VERSION_PATCH);

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "GCC " __VERSION__;
#else
constexpr const char* kCompiler = "unknown";
#endif

}  // namespace

int normact_version(void) { return NORMACT_VERSION; }

const char* normact_build_info(const char* name) {
  if (name == nullptr) return nullptr;
  if (std::strcmp(name, "version") == 0) return kVersion;
  if (std::strcmp(name, "cuda") == 0) return normact::cuda::toolkit_version();
  if (std::strcmp(name, "cuda_architectures") == 0) return normact::cuda::architectures();
  if (std::strcmp(name, "compiler") == 0) return kCompiler;
  if (std::strcmp(name, "cpu_isa") == 0) return normact::cpu::isa_name();
  return nullptr;
}

normact_status normact_set_num_threads(int count) {
  return normact::api::guarded("normact_set_num_threads", [count]() -> normact::Status {
    if (count < 1) {
      return {NORMACT_INVALID_ARGUMENT, "count is " + std::to_string(count) + "; expected at least 1"};
    }
    normact::cpu::set_num_threads(count);
    return {};
  });
}

int normact_get_num_threads(void) { return normact::cpu::num_threads(); }
