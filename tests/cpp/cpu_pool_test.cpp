// SPDX-License-Identifier: Apache-2.0
// The thread pool: every task once, many callers, calls inside tasks, forks. Meant to be run under ThreadSanitizer too.
// Built twice: alone, and with an OpenMP runtime of 16 threads, which then do the work.
#include <atomic>
#include <thread>

#include "cpu/openmp_team.h"
#include "cpu/thread_pool.h"
#include "cpu_fixture.h"

namespace {

using normact::cpu::parallel_for;

/// Whether 0 .. tasks-1 ran once each, with lanes in range.
bool runs_each_once(int lanes, int64_t tasks) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
  std::atomic<bool> lanes_right{true};
  parallel_for(lanes, tasks, [&](int64_t task, int lane) {
    runs[static_cast<size_t>(task)].fetch_add(1, std::memory_order_relaxed);
    if (lane < 0 || lane >= lanes) lanes_right = false;
  });
  for (const std::atomic<int>& count : runs) {
    if (count.load(std::memory_order_relaxed) != 1) return false;
  }
  return lanes_right;
}

TEST(every_task_runs_once) {
  for (int lanes : {1, 2, 5, 3, 16}) {
    for (int64_t tasks : {0, 1, 2, 3, 100, 5000}) CHECK(runs_each_once(lanes, tasks));
  }
}

TEST(two_tasks_never_share_a_lane) {
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> shared{false};
  parallel_for(4, 2000, [&](int64_t, int lane) {
    std::atomic<int>& mine = busy[static_cast<size_t>(lane)];
    if (mine.fetch_add(1) != 0) shared = true;
    mine.fetch_sub(1);
  });
  CHECK(!shared);
}

TEST(what_tasks_wrote_is_there_afterwards) {
  std::vector<int64_t> values(3000);
  for (int64_t round = 0; round < 300; ++round) {
    parallel_for(3, 30, [&](int64_t task, int) {
      for (int64_t i = task * 100; i < task * 100 + 100; ++i) values[static_cast<size_t>(i)] += i + round;
    });
  }
  int wrong = 0;
  for (int64_t i = 0; i < 3000; ++i) wrong += values[static_cast<size_t>(i)] != 300 * i + 300 * 299 / 2;
  CHECK_EQ(wrong, 0);
}

TEST(callers_do_not_wait_for_each_other) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) wrong += !runs_each_once(3, 20);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(a_task_may_call_again) {
  std::atomic<int> runs{0}, wrong{0};
  parallel_for(3, 10, [&](int64_t, int) {
    parallel_for(3, 10, [&](int64_t, int lane) {
      ++runs;
      wrong += lane != 0;  // on the task's own thread
    });
  });
  CHECK_EQ(runs.load(), 100);
  CHECK_EQ(wrong.load(), 0);
}

bool has_team(int lanes) {
  std::atomic<int> runs{0};
  const bool ran = normact::cpu::run_on_openmp_team(
      lanes, 0, [](void* context, int) { ++*static_cast<std::atomic<int>*>(context); }, &runs);
  CHECK_EQ(runs.load(), ran ? lanes : 0);
  return ran;
}

TEST(the_threads_of_an_openmp_runtime_are_used_if_there_is_one) {
#if defined(NORMACT_TEST_OPENMP)
  std::atomic<int> threads{0};
#pragma omp parallel
  ++threads;
  CHECK_EQ(threads.load(), 16);
  CHECK(has_team(2) && has_team(16));
  CHECK(!has_team(17));  // it has fewer
#else
  CHECK(!has_team(2));
#endif
}

#if !defined(__SANITIZE_THREAD__)  // which cannot follow a fork of a threaded process
TEST(a_forked_child_has_a_pool_of_its_own) {
  CHECK(runs_each_once(3, 100));
  std::atomic<bool> stop{false};
  std::thread other([&] {  // the pool is in use while the process forks
    std::atomic<int> runs{0};
    while (!stop) parallel_for(3, 50, [&](int64_t, int) { ++runs; });
  });
  for (int i = 0; i < 20; ++i) {
    fixture::in_child("", [] {
      CHECK(!has_team(2));  // its threads did not come along
      for (int round = 0; round < 20; ++round) CHECK(runs_each_once(3, 100));
    });
  }
  stop = true;
  other.join();
  CHECK(runs_each_once(3, 100));
}
#endif

TEST(the_thread_count_can_be_set) {
  CHECK(normact::cpu::num_threads() >= 1);
  normact::cpu::set_num_threads(7);
  CHECK_EQ(normact::cpu::num_threads(), 7);
}

}  // namespace
