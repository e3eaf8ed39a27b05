// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "cpu/backend.h"
#include "cpu/openmp_team.h"

namespace normact::cpu {
namespace {

constexpr int kSpins = 2000;  // tries before a thread goes to sleep: some 20 to 50 microseconds

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How this thread rounds, and whether it flushes subnormal numbers to zero. <cfenv> would also save the x87's state,
/// in 150 ns.
uint64_t float_mode() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void set_float_mode([[maybe_unused]] uint64_t mode) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

struct Job {
  TaskBody body;
  void* context;
  int64_t tasks;
  int lanes;
  uint64_t float_mode;  // the caller's, in which all threads do its tasks
};

/// The tasks of a job that begin with a lane.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
};

thread_local bool running_here = false;  // this thread is in run()

class ThreadPool {
 public:
  /// False if another caller has the pool, or there is no memory for it.
  bool run(Job job) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    running_here = true;
    const bool done = run_on_team(job) || run_on_workers(job);
    running_here = false;
    busy_.store(false, std::memory_order_release);
    return done;
  }

  /// Ends the workers, after the tasks of whoever has the pool; nobody gets it again.
  void stop() {
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

 private:
  /// On the threads of a runtime that is there anyway.
  bool run_on_team(const Job& job) {
    struct Call {
      ThreadPool* pool;
      const Job& job;
    } call{this, job};
    if (!divide(job)) return false;
    return run_on_openmp_team(
        job.lanes, static_cast<int>(workers_.size()),
        [](void* context, int lane) {
          const Call& of = *static_cast<Call*>(context);
          const uint64_t mode = float_mode();  // the thread is the runtime's, which gets it back as it was
          set_float_mode(of.job.float_mode);
          of.pool->take_tasks(of.job, lane);
          set_float_mode(mode);
        },
        &call);
  }

  bool run_on_workers(Job job) {
    job.lanes = grow(job.lanes);
    if (job.lanes == 0 || !divide(job)) return false;
    {
      std::lock_guard lock(mutex_);
      job_ = job;
      joined_ = 0;
      open_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    for (int i = 1; i < job.lanes; ++i) wake_.notify_one();
    take_tasks(job, 0);
    close();
    return true;
  }

  /// A share for each lane; false if there is no memory for them. No worker looks at shares after close().
  bool divide(const Job& job) {
    const auto lanes = static_cast<size_t>(job.lanes);
    try {
      if (shares_.size() < lanes) shares_ = std::vector<Share>(lanes);
    } catch (const std::exception&) {
      return false;
    }
    for (int lane = 0; lane < job.lanes; ++lane) share(lane).next.store(begin_of(job, lane), std::memory_order_relaxed);
    return true;
  }

  /// Makes as many lanes as are wanted, the caller's among them, or as there can be. Returns how many.
  int grow(int lanes) {
    const auto wanted = static_cast<size_t>(lanes);
    try {
      while (workers_.size() + 1 < wanted) workers_.emplace_back([this] { work(); });
    } catch (const std::exception&) {
      // No more threads to be had: fewer do the work, with the same results.
    }
    return static_cast<int>(std::min(wanted, workers_.size() + 1));
  }

  Share& share(int lane) { return shares_[static_cast<size_t>(lane)]; }
  static int64_t begin_of(const Job& job, int lane) { return job.tasks * lane / job.lanes; }

  /// First the lane's own share, so that what the last call left in the cache of its processor is found there by the
  /// next call on the same tensors; then what others have not begun.
  void take_tasks(const Job& job, int lane) {
    for (int i = 0; i < job.lanes; ++i) {
      const int of = lane + i < job.lanes ? lane + i : lane + i - job.lanes;
      const int64_t end = begin_of(job, of + 1);
      for (int64_t task; (task = share(of).next.fetch_add(1, std::memory_order_relaxed)) < end;) {
        job.body(job.context, task, lane);
      }
    }
  }

  /// No worker may join any more; waits for those that did.
  void close() {
    std::unique_lock lock(mutex_);
    open_ = false;
    if (active_ == 0) return;
    lock.unlock();
    for (int i = 0; i < kSpins && running_.load(std::memory_order_acquire) != 0; ++i) pause();
    lock.lock();
    done_.wait(lock, [this] { return active_ == 0; });
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) pause();
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (stopping_) return;
      if (!open_ || joined_ + 1 >= job_.lanes) continue;
      const Job job = job_;
      const int lane = ++joined_;
      running_.store(++active_, std::memory_order_relaxed);
      lock.unlock();
      set_float_mode(job.float_mode);
      take_tasks(job, lane);
      lock.lock();
      running_.store(--active_, std::memory_order_release);
      if (active_ == 0) done_.notify_one();
    }
  }

  std::atomic<bool> busy_{false};
  std::atomic<uint64_t> generation_{0};  // written under mutex_, read anywhere
  std::atomic<int> running_{0};          // active_, for a look without the lock
  std::mutex mutex_;                     // of everything below
  std::condition_variable wake_, done_;
  Job job_{};
  bool open_ = false;
  bool stopping_ = false;
  int joined_ = 0;                    // workers that have taken a lane of this job
  int active_ = 0;                    // ... and have not finished
  std::vector<std::thread> workers_;  // of the caller that has the pool
  std::vector<Share> shares_;         // by lane, of the job
};

// ---- The process's pool ---------------------------------------------------------------------------------------------

std::mutex pool_mutex;
std::atomic<ThreadPool*> the_pool{nullptr};
std::atomic<bool> exiting{false};
thread_local bool inside_task = false;

void forget_pool_in_child() {
  the_pool.store(nullptr, std::memory_order_relaxed);  // its threads did not come along; its memory is given up
  pool_mutex.unlock();
}

/// Ends the workers before the library's code goes away.
struct AtExit {
  ~AtExit() {
    exiting.store(true);
    if (running_here) return;  // exit() from a task, or from a runtime that cannot start its threads
    std::lock_guard lock(pool_mutex);
    if (ThreadPool* pool = the_pool.load()) pool->stop();  // not deleted: another thread may be in run()
  }
};

/// Null if there is no memory for one.
ThreadPool* pool() {
  ThreadPool* found = the_pool.load(std::memory_order_acquire);
  if (found) return found;
  std::lock_guard lock(pool_mutex);
  if (!the_pool.load(std::memory_order_relaxed)) {
    static const int registered =
        pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); }, forget_pool_in_child);
    static AtExit at_exit;
    static_cast<void>(registered);
    the_pool.store(new (std::nothrow) ThreadPool, std::memory_order_release);
  }
  return the_pool.load(std::memory_order_relaxed);
}

struct TaskCall {
  TaskBody body;
  void* context;
};

// ---- How many threads -----------------------------------------------------------------------------------------------

constexpr int kManyProcessors = 65536;

/// Processors that the control group pays for (cgroup v2); kManyProcessors without a limit ("max").
int processors_of_cgroup() {
  double quota = 0, period = 0;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return kManyProcessors;
  return static_cast<int>(std::min<double>(std::ceil(quota / period), kManyProcessors));
}

int default_threads() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
#endif
  const int limit = processors_of_cgroup();
  if (count > limit) count = limit;
  return count < 1 ? 1 : count;
}

std::atomic<int> wanted_threads{0};  // 0: not asked yet

}  // namespace

void run_tasks(int lanes, int64_t tasks, TaskBody body, void* context) {
  TaskCall call{body, context};
  const auto marked = [](void* call_of_task, int64_t task, int lane) {
    const auto* task_call = static_cast<TaskCall*>(call_of_task);
    inside_task = true;
    task_call->body(task_call->context, task, lane);
    inside_task = false;
  };
  if (!inside_task && !exiting.load(std::memory_order_relaxed)) {
    const int useful_lanes = static_cast<int>(lanes < tasks ? lanes : tasks);
    ThreadPool* const threads = pool();
    if (threads && threads->run({marked, &call, tasks, useful_lanes, float_mode()})) return;
  }
  for (int64_t task = 0; task < tasks; ++task) body(context, task, 0);
}

void set_num_threads(int count) { wanted_threads.store(count < 1 ? 1 : count, std::memory_order_relaxed); }

int num_threads() {
  int count = wanted_threads.load(std::memory_order_relaxed);
  if (count == 0) {
    int none = 0;
    count = default_threads();
    if (!wanted_threads.compare_exchange_strong(none, count)) count = none;
  }
  return count;
}

}  // namespace normact::cpu
