// Threads that prepare token masks, so that the engine's own never waits for one. They run at a lower
// priority than those that compute the model.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "celer/engine.h"

namespace celer {

class MaskWorkers {
 public:
  struct Job {
    std::shared_ptr<TokenMask> mask;
    std::atomic<bool> done = false;
    // Once it is done.
    uint64_t work = 0;
    std::optional<Error> error = {};
  };

  // 0: as many as suit this machine. They start with the first job.
  explicit MaskWorkers(int threads = 0) : thread_count_(threads) {}
  ~MaskWorkers();  // waits for what runs, drops what does not run yet
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // `spent`: the work of this answer's masks so far. Fair queueing: the answer with the least goes first, so
  // that one with slow masks does not delay the others.
  std::shared_ptr<Job> Post(std::shared_ptr<TokenMask> mask, uint64_t spent);
  // Returns when a job has ended since the last call, or after `timeout`.
  void WaitForAny(std::chrono::nanoseconds timeout);

 private:
  void Loop();

  const int thread_count_;
  std::mutex mutex_;  // of all below
  std::condition_variable wake_, ended_;
  std::multimap<uint64_t, std::shared_ptr<Job>> queue_;  // by work so far
  int64_t ended_jobs_ = 0, seen_jobs_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace celer
