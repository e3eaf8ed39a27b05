// SPDX-License-Identifier: Apache-2.0
// One pool of worker threads for the whole process. It starts with the first parallel call, and again in a forked
// child.
#pragma once

#include <cstdint>

namespace normact::cpu {

/// body(context, task, lane): lane < lanes tells concurrent tasks apart, for scratch memory.
using TaskBody = void (*)(void* context, int64_t task, int lane);

/// Runs the tasks 0 .. tasks-1 on the caller and up to lanes-1 workers; returns when all are done. Runs them all on the
/// caller (lane 0) if the pool is busy with another caller's tasks or this is called from inside a task.
void run_tasks(int lanes, int64_t tasks, TaskBody body, void* context);

/// run_tasks with a callable body(task, lane), which must not throw.
template <class Body>
void parallel_for(int lanes, int64_t tasks, Body&& body) {
  if (lanes <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  run_tasks(
      lanes, tasks, [](void* context, int64_t task, int lane) { (*static_cast<Body*>(context))(task, lane); }, &body);
}

}  // namespace normact::cpu
