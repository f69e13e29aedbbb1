#include "device/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace celer {
namespace {

double ProcessCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Sets or clears a variable for one test.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* const old = std::getenv(name)) had_ = true, old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~ScopedEnv() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

TEST(ThreadPool, RunsEveryThreadOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool({.threads = threads});
    ASSERT_EQ(pool.size(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int run = 1; run <= 200; ++run) {
      const auto caller = std::this_thread::get_id();
      bool zero_is_the_caller = false;
      pool.Run([&](int t) {
        ++calls[t];
        if (t == 0) zero_is_the_caller = std::this_thread::get_id() == caller;
      });
      EXPECT_TRUE(zero_is_the_caller);
      ASSERT_EQ(std::ranges::count(calls, run), threads);
    }
  }
}

TEST(ThreadPool, ThreadsRunAtTheSameTime) {
  ThreadPool pool({.threads = 3});
  std::atomic<int> arrived{0};
  pool.Run([&](int) {
    arrived.fetch_add(1);
    while (arrived.load() < 3) std::this_thread::yield();  // ends only if all three are there
  });
  EXPECT_EQ(arrived.load(), 3);
}

// Each index is covered exactly once, and pieces begin at multiples of the grain.
template <class For>
void ExpectCovers(const For& parallel_for) {
  for (const int64_t n : {1, 2, 3, 5, 16, 17, 100, 1023}) {
    for (const int64_t grain : {1, 2, 7, 16, 1000, 5000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_EQ(begin % grain, 0);
        for (int64_t i = begin; i < end; ++i) hits[i].fetch_add(1);
      });
      for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1) << "n " << n << " grain " << grain;
    }
  }
}

TEST(ThreadPool, ParallelForCoversEachIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool({.threads = threads});
    ExpectCovers([&](int64_t n, int64_t grain, auto fn) { pool.ParallelFor(n, grain, fn); });
    ExpectCovers([&](int64_t n, int64_t grain, auto fn) { pool.ParallelForDynamic(n, grain, fn); });
  }
}

TEST(ThreadPool, NothingToDoCallsNothing) {
  ThreadPool pool({.threads = 2});
  for (const int64_t n : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    pool.ParallelFor(n, 1, [](int64_t, int64_t) { FAIL(); });
    pool.ParallelForDynamic(n, 1, [](int64_t, int64_t) { FAIL(); });
  }
}

TEST(ThreadPool, HugeRangesDoNotOverflow) {
  ThreadPool pool({.threads = 3});
  for (const int64_t grain : {int64_t{1}, int64_t{1000}, INT64_MAX / 2, INT64_MAX}) {
    std::atomic<int64_t> total{0};
    pool.ParallelFor(INT64_MAX, grain, [&](int64_t begin, int64_t end) { total.fetch_add(end - begin); });
    EXPECT_EQ(total.load(), INT64_MAX);
  }
  std::atomic<int64_t> total{0};
  pool.ParallelForDynamic(INT64_MAX, INT64_MAX / 3,
                          [&](int64_t begin, int64_t end) { total.fetch_add(end - begin); });
  EXPECT_EQ(total.load(), INT64_MAX);
}

TEST(ThreadPool, StaticPiecesAreEven) {
  ThreadPool pool({.threads = 4});
  std::mutex mutex;
  std::vector<int64_t> sizes;
  pool.ParallelFor(103, 8, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    sizes.push_back(end - begin);
  });
  std::ranges::sort(sizes);
  EXPECT_EQ(sizes,
            (std::vector<int64_t>{23, 24, 24, 32}));  // 13 units of 8: 4, 3, 3 and 3, the last one short
}

TEST(ThreadPool, NestedRunsHappenInline) {
  ThreadPool pool({.threads = 3});
  ThreadPool other({.threads = 2});
  EXPECT_FALSE(ThreadPool::InsideRun());
  std::atomic<int> inner{0}, loop{0};
  pool.Run([&](int) {
    EXPECT_TRUE(ThreadPool::InsideRun());
    const auto self = std::this_thread::get_id();
    pool.Run([&](int) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      inner.fetch_add(1);
    });
    other.Run([&](int) { inner.fetch_add(1); });
    pool.ParallelFor(10, 1,
                     [&](int64_t begin, int64_t end) { loop.fetch_add(static_cast<int>(end - begin)); });
    pool.ParallelForDynamic(
        10, 1, [&](int64_t begin, int64_t end) { loop.fetch_add(static_cast<int>(end - begin)); });
  });
  EXPECT_EQ(inner.load(), 3 * (3 + 2));
  EXPECT_EQ(loop.load(), 3 * 20);
  EXPECT_FALSE(ThreadPool::InsideRun());
}

// A worker that runs out of memory ends no program: the caller hears of it, and the pool works on.
TEST(ThreadPool, WhatAThreadThrowsReachesTheCaller) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(ThreadPool::Options{.threads = threads});
    for (int thrower = 0; thrower < threads; ++thrower)
      EXPECT_THROW(pool.Run([&](int thread) {
        if (thread == thrower) throw std::bad_alloc();
      }),
                   std::bad_alloc);
    EXPECT_THROW(pool.ParallelFor(1000, 1, [](int64_t, int64_t) { throw std::bad_alloc(); }), std::bad_alloc);
    EXPECT_THROW(pool.ParallelForDynamic(1000, 1, [](int64_t, int64_t) { throw std::bad_alloc(); }),
                 std::bad_alloc);
    EXPECT_FALSE(ThreadPool::InsideRun());
    std::atomic<int> ran{0};
    pool.Run([&](int) { ++ran; });
    EXPECT_EQ(ran, threads);
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool({.threads = 3});
  std::atomic<int> inside{0}, total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        pool.Run([&](int) {
          EXPECT_LE(inside.fetch_add(1), 2);  // never more than the threads of one run
          total.fetch_add(1);
          inside.fetch_sub(1);
        });
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 100 * 3);
}

TEST(ThreadPool, ParkedWorkersWakeUp) {
  ThreadPool pool({.threads = 3, .spin = std::chrono::microseconds(1)});
  std::atomic<int> total{0};
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 3));
    pool.Run([&](int t) {
      if (t == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the caller parks as well
      total.fetch_add(1);
    });
  }
  EXPECT_EQ(total.load(), 90);
}

TEST(ThreadPool, IdleWorkersDoNotBurn) {
  for (const int threads : {2, 8}) {
    ThreadPool pool({.threads = threads});
    pool.Run([](int) {});
    const double before = ProcessCpuSeconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(ProcessCpuSeconds() - before, 0.05) << threads;
  }
}

TEST(ThreadPool, ManyMoreThreadsThanCores) {
  ThreadPool pool({.threads = 32});
  std::atomic<int> total{0};
  for (int i = 0; i < 100; ++i) pool.Run([&](int) { total.fetch_add(1, std::memory_order_relaxed); });
  EXPECT_EQ(total.load(), 3200);
}

TEST(ThreadPool, EndsWithoutHavingRun) {
  for (int i = 0; i < 20; ++i) ThreadPool pool({.threads = 4});
}

TEST(ThreadPool, PinsWorkersWhenAsked) {
  const std::vector<int> cpus = UsableCpuList();
  if (cpus.size() < 2)
    GTEST_SKIP() << "only " << cpus.size() << " CPU is usable, and a worker needs the second";
  ThreadPool pool({.threads = 2, .pin = true});
  std::vector<int> mask;
  pool.Run([&](int t) {
    if (t == 1) mask = UsableCpuList();  // of the calling thread
  });
  EXPECT_EQ(mask, std::vector<int>{cpus[1]});
  EXPECT_EQ(UsableCpuList(), cpus);  // the caller is not touched
}

TEST(ThreadPool, WorkIsDoneInFull) {
  ThreadPool pool({.threads = 2});
  std::vector<int64_t> values(100'000);
  pool.ParallelFor(std::ssize(values), 1000, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = i;
  });
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), int64_t{100'000} * 99'999 / 2);
}

TEST(ThreadCount, ComesFromTheEnvironmentOrTheMachine) {
  {
    const ScopedEnv env("CELER_THREADS", nullptr);
    EXPECT_EQ(*ThreadsFromEnvironment(), UsableCpus());
    EXPECT_GE(UsableCpus(), 1);
    EXPECT_LE(UsableCpus(), static_cast<int>(UsableCpuList().size()));
  }
  {
    const ScopedEnv env("CELER_THREADS", "3");
    EXPECT_EQ(*ThreadsFromEnvironment(), 3);
    EXPECT_EQ(ThreadPool().size(), 3);
  }
  for (const char* const bad : {"0", "-1", "many", "2x", " 2", "1025", "99999999999999999999"}) {
    const ScopedEnv env("CELER_THREADS", bad);
    const auto threads = ThreadsFromEnvironment();
    ASSERT_FALSE(threads) << bad;
    EXPECT_EQ(threads.error().message(),
              std::string("CELER_THREADS='") + bad + "' is not a number from 1 to 1024");
  }
}

TEST(ThreadCount, DefaultPoolIsShared) {
  EXPECT_EQ(&DefaultThreadPool(), &DefaultThreadPool());
  EXPECT_GE(DefaultThreadPool().size(), 1);
}

TEST(ThreadPoolDeathTest, GrainMustBePositive) {
  ThreadPool pool({.threads = 1});
  EXPECT_DEATH(pool.ParallelFor(10, 0, [](int64_t, int64_t) {}), "grain >= 1");
}

TEST(FunctionRef, CallsWhatItRefersTo) {
  int count = 0;
  auto add = [&count](int by) { return count += by; };
  const FunctionRef<int(int)> ref = add;
  EXPECT_EQ(ref(2), 2);
  EXPECT_EQ(FunctionRef<int(int)>(ref)(3), 5);
  const auto constant = [] { return 7; };
  EXPECT_EQ(FunctionRef<int()>(constant)(), 7);
}

}  // namespace
}  // namespace celer
