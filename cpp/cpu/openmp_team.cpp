// SPDX-License-Identifier: Apache-2.0
#include "cpu/openmp_team.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <fstream>
#include <string>

namespace normact::cpu {
namespace {

/// What a `#pragma omp parallel` is compiled to, by GCC; LLVM's and Intel's runtimes have these, too.
struct Runtime {
  void (*parallel)(void (*body)(void*), void* context, unsigned threads, unsigned flags);
  int (*thread)();
  int (*max_threads)();
};

std::atomic<bool> forked{false};
const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

/// Threads of the process; 0 if that cannot be told.
int count_threads() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int count = 0;
    if (word == "Threads:" && status >> count) return count;
  }
  return 0;
}

template <class Function>
bool find(const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return *function != nullptr;
}

/// Null as long as there is none with threads: a framework may be imported at any time. Not to find one takes 0.2 us.
/// Threads that nobody has started yet are in nobody's way; and this library may have been loaded in a forked child, to
/// whose runtime they did not come along.
const Runtime* runtime(int own_threads) {
  static std::atomic<const Runtime*> ready{nullptr};
  if (const Runtime* known = ready.load(std::memory_order_acquire)) return known;
  Runtime now{};
  if (!find("GOMP_parallel", &now.parallel) || !find("omp_get_thread_num", &now.thread) ||
      !find("omp_get_max_threads", &now.max_threads) || count_threads() <= 1 + own_threads) {
    return nullptr;
  }
  static const Runtime found = now;
  ready.store(&found, std::memory_order_release);
  return &found;
}

struct Call {
  int lanes;
  void (*body)(void*, int);
  void* context;
  int (*thread)();
};

}  // namespace

bool run_on_openmp_team(int lanes, int own_threads, void (*body)(void* context, int lane), void* context) {
  if (registered != 0 || forked.load(std::memory_order_relaxed)) return false;
  const Runtime* const openmp = runtime(own_threads);
  if (!openmp || openmp->max_threads() < lanes) return false;
  Call call{lanes, body, context, openmp->thread};
  // As many threads as the framework uses: with another number the runtime would end some, or start some.
  openmp->parallel(
      [](void* of) {
        const Call& c = *static_cast<const Call*>(of);
        const int lane = c.thread();
        if (lane < c.lanes) c.body(c.context, lane);
      },
      &call, 0, 0);
  return true;
}

}  // namespace normact::cpu
