// Threads for one computation at a time, split over the cores: fork, work, join, within a few microseconds.
// Workers spin for a short while after each run, so that the next one finds them awake, and then park.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"

namespace celer {

class ThreadPool {
 public:
  struct Options {
    int threads = 0;   // including the caller; 0: ThreadsFromEnvironment()
    bool pin = false;  // worker t stays on the t-th usable CPU; the caller is not touched
    // How long an idle worker stays awake. Several times what waking all of them takes (half a millisecond
    // for 15 in a virtual machine): else those that wake first park again before the last one has finished,
    // and every run pays for waking them.
    std::chrono::microseconds spin{3000};
  };

  ThreadPool() : ThreadPool(Options{}) {}
  explicit ThreadPool(const Options& options);
  ~ThreadPool();  // joins; nobody may be inside
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }  // threads, including the caller

  // Calls fn(t) once for every t in [0, size()), fn(0) on the calling thread, and returns when all are done.
  // Callers from several threads take turns. From inside a run (of this pool or another) the calls are made
  // one after the other on the calling thread; so fn(t) must not wait for another fn(u) if runs may nest.
  // What fn throws (std::bad_alloc, in practice) is thrown again here when all are done; the first, if
  // several do.
  void Run(FunctionRef<void(int thread)> fn);

  // Calls fn(begin, end) for pieces that cover [0, n) once. Pieces start at multiples of `grain`; work of
  // up to one grain runs on the caller alone.
  // Static: at most one piece per thread, the same for the same n; for work that costs the same everywhere.
  void ParallelFor(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> fn);
  // Dynamic: pieces of one grain, taken by whichever thread is free; for work of uneven cost, or cores of
  // uneven speed.
  void ParallelForDynamic(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> fn);

  // True on a thread that is inside a run of any pool: runs started here are not parallel.
  static bool InsideRun();

 private:
  void Work(int thread, int cpu);
  template <class Ready>
  bool SpinUntil(const Ready& ready) const;

  int size_ = 1;
  bool crowded_ = false;  // more threads than CPUs: spinning would keep the others from working
  std::chrono::nanoseconds spin_{};
  std::mutex callers_;

  // Each on its own cache line: workers poll epoch_ while others count down running_.
  alignas(64) std::atomic<uint32_t> epoch_{0};    // one more for each run; workers wait for it to change
  alignas(64) std::atomic<uint32_t> running_{0};  // workers that have not finished this run
  alignas(64) std::atomic<int> parked_workers_{0};
  std::atomic<bool> parked_caller_{false};
  alignas(64) const FunctionRef<void(int)>* task_ = nullptr;  // published by epoch_; null asks workers to end
  std::vector<std::thread> workers_;
};

// CPUs this process may run on, by number.
std::vector<int> UsableCpuList();
// How many threads can run at once: the affinity mask, or the container's CPU quota if that is lower. The
// quota is rounded down: one throttled thread makes all the others wait at the join.
int UsableCpus();
// CELER_THREADS if set, else UsableCpus(). An error when CELER_THREADS is not a number from 1 to 1024.
Result<int> ThreadsFromEnvironment();
// Keeps the calling thread on one CPU; false when the system refuses.
bool PinThisThread(int cpu);

// The pool that kernels share. Made at the first call, lives until the process ends.
ThreadPool& DefaultThreadPool();

}  // namespace celer
