// SPDX-License-Identifier: Apache-2.0
// What every public function that works on tensors does: read exec, read the problem, hand it over.
#pragma once

#include <cstddef>

#include "api/exec.h"
#include "api/guard.h"
#include "core/array.h"
#include "core/message.h"

namespace normact::api {

/// `read` is a reader of core, `work` is (problem, device, exec) -> Status; it also finishes empty problems.
template <class Problem, class Desc, class Args, class Reader, class Work>
normact_status run_call(const char* function, Reader read, const Desc* desc, const Args* args,
                        const normact_exec* given, Work work) noexcept {
  return guarded(function, [=]() -> Status {
    normact_exec exec;
    NORMACT_TRY(read_exec(given, &exec));
    Problem problem;
    Device device;
    NORMACT_TRY(read(desc, args, Purpose::run, &problem, &device));
    return work(problem, device, exec);
  });
}

/// `size` is (problem, device, exec, size_t*) -> Status. *bytes is left alone where it fails.
template <class Problem, class Desc, class Args, class Reader, class Size>
normact_status query_call(const char* function, Reader read, const Desc* desc, const Args* args,
                          const normact_exec* given, size_t* bytes, Size size) noexcept {
  return guarded(function, [=]() -> Status {
    if (bytes == nullptr) return invalid("bytes is NULL; expected where to write the size");
    normact_exec exec;
    NORMACT_TRY(read_exec(given, &exec));
    Problem problem;
    Device device;
    NORMACT_TRY(read(desc, args, Purpose::query, &problem, &device));
    size_t needed = 0;
    NORMACT_TRY(size(problem, device, exec, &needed));
    *bytes = needed;
    return {};
  });
}

}  // namespace normact::api
