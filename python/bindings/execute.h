// SPDX-License-Identifier: Apache-2.0
// What every operation does once its arguments are read: numbers, workspace, the call without the GIL, its status.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "bindings/error.h"
#include "bindings/tensor_arg.h"
#include "normact/normact.h"

namespace normact::python {

/// A number from any object that converts to float.
double number(nb::handle object, const char* name, const Call& call);

/// An int; `expected` says what else the argument may be, for the message.
int64_t integer(nb::handle object, const char* name, const char* expected, const Call& call);

/// One of the few ints that an axis may be; which ones, the library says.
int32_t one_axis(nb::handle object, const char* name, const Call& call);

/// An activation of a norm: None, or its number, alpha, beta and threshold.
struct NormActivation {
  NormActivation(nb::handle object, const Call& call);
  int32_t kind = NORMACT_ACTIVATION_IDENTITY;
  double alpha = 0, beta = 0, threshold = 0;
};

/// The row kernel that this thread's calls are forced to; AUTO if none is.
int32_t& row_variant();

/// The multiprocessors that persistent kernels leave free, of all calls. The process's and not a thread's: PyTorch's
/// backwards have their own.
std::atomic<int32_t>& sm_margin();

constexpr size_t kWorkspaceAlignment = 256;

/// Scratch memory where an array lives: on a GPU an array that the caller's framework allocates (so that its allocator
/// orders the reuse, also while a CUDA graph is captured), on the CPU plain memory, of which each thread keeps some.
class Workspace {
 public:
  ~Workspace();
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Makes the memory that the thread keeps the workspace, if that is on the device of the array: most calls on CPU
  /// arrays need no more, and are spared the question.
  void take_room(const TensorArg& like);

  void allocate(size_t bytes, const TensorArg& like, nb::handle like_object, Call& call);
  void describe(normact_exec* exec) const;

 private:
  size_t bytes_ = 0;
  void* data_ = nullptr;
  void* host_ = nullptr;
  nb::object array_;
  TensorArg view_;
};

/// The array beside which a workspace is made, and who makes it.
struct WorkspaceSource {
  const TensorArg& like;
  nb::handle like_object;
  bool ask_first;  // whether a call on a GPU is known to need a workspace; all others are tried first
};

/// Lets other threads of Python run meanwhile.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const ThreadEnd&) {
      wait_for_the_end();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

inline void check(normact_status status, const Call& call) {
  if (status != NORMACT_OK) raise_status(status, call.function);
}

/// run(exec) with the workspace that query(exec, bytes) asks for, on the stream of the call. Raises what goes wrong.
template <class Query, class Run>
void execute(Call& call, const WorkspaceSource& source, Query query, Run run) {
  normact_exec exec{sizeof exec, call.stream.handle(), nullptr, 0, row_variant(), sm_margin()};
  const auto run_without_gil = [&] {
    const GilRelease release;
    return run(&exec);
  };
  Workspace workspace;
  workspace.take_room(source.like);
  workspace.describe(&exec);
  normact_status status = NORMACT_WORKSPACE_TOO_SMALL;
  if (!source.ask_first || !source.like.on_cuda()) status = run_without_gil();
  if (status == NORMACT_WORKSPACE_TOO_SMALL) {  // nothing was written
    size_t bytes = 0;
    check(query(&exec, &bytes), call);
    workspace.allocate(bytes, source.like, source.like_object, call);
    workspace.describe(&exec);
    status = run_without_gil();
  }
  check(status, call);
  call.stream.wait_for_strangers();
  call.tell_autograd();
}

/// run(exec) of an operation that needs no workspace.
template <class Run>
void execute(Call& call, Run run) {
  const normact_exec exec{sizeof exec, call.stream.handle(), nullptr, 0, row_variant(), sm_margin()};
  const normact_status status = [&] {
    const GilRelease release;
    return run(&exec);
  }();
  check(status, call);
  call.stream.wait_for_strangers();
  call.tell_autograd();
}

}  // namespace normact::python
