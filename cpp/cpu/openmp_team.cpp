// SPDX-License-Identifier: Apache-2.0
#include "cpu/openmp_team.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace normact::cpu {
namespace {

/// What a `#pragma omp parallel` is compiled to, by GCC; LLVM's and Intel's runtimes have these, too.
struct Runtime {
  void (*parallel)(void (*body)(void*), void* context, unsigned threads, unsigned flags);
  int (*thread)();
  int (*max_threads)();
  int (*in_parallel)();
};

/// Whether this process was forked and has executed no program since, as far as Linux says so; true if it does not.
bool is_forked_copy() {
  constexpr unsigned kForkedNotExecuted = 0x40;  // PF_FORKNOEXEC
  char text[512];
  const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  const char* const rest = std::strrchr(text, ')');  // behind the program's name, which may be anything
  unsigned flags = 0;
  return !rest || std::sscanf(rest, ") %*c %*d %*d %*d %*d %*d %u", &flags) != 1 || (flags & kForkedNotExecuted) != 0;
}

/// A runtime's threads do not come along into a forked child, and it would wait for them for ever.
std::atomic<bool> forked{is_forked_copy()};
const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

bool is_first_thread() {
  static thread_local const bool is_first = syscall(SYS_gettid) == getpid();  // a forked child does not ask
  return is_first;
}

/// Threads of the process; 0 if that cannot be told.
int count_threads() {
  struct stat tasks;
  return stat("/proc/self/task", &tasks) == 0 ? static_cast<int>(tasks.st_nlink) - 2 : 0;
}

/// Finds a function that is in the same library as those found before.
template <class Function>
bool find(const char* name, const void** library, Function* function) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  Dl_info info;
  if (!found || dladdr(found, &info) == 0 || (*library && *library != info.dli_fbase)) return false;
  *library = info.dli_fbase;
  *function = reinterpret_cast<Function>(found);
  return true;
}

/// Null as long as there is none that has threads: a framework may be imported at any time, and threads that nobody has
/// started are in nobody's way. Not to find one takes 0.2 us.
const Runtime* runtime(int lanes, int own_threads) {
  static std::atomic<const Runtime*> ready{nullptr};
  if (const Runtime* known = ready.load(std::memory_order_acquire)) return known;
  const void* library = nullptr;
  Runtime now{};
  if (!find("GOMP_parallel", &library, &now.parallel) || !find("omp_get_thread_num", &library, &now.thread) ||
      !find("omp_get_max_threads", &library, &now.max_threads) ||
      !find("omp_in_parallel", &library, &now.in_parallel) || now.max_threads() < lanes ||
      count_threads() <= 1 + own_threads) {
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

bool run_on_openmp_team(int lanes, int own_threads, void (*body)(void* context, int lane), void* context) noexcept {
  if (registered != 0 || forked.load(std::memory_order_relaxed) || !is_first_thread()) return false;
  const Runtime* const openmp = runtime(lanes, own_threads);
  if (!openmp || openmp->max_threads() < lanes || openmp->in_parallel() != 0) return false;
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
