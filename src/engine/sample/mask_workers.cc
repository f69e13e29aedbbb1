#include "engine/sample/mask_workers.h"

#include <algorithm>

#include "device/thread_priority.h"

namespace celer {

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
    wake_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<MaskWorkers::Job> MaskWorkers::Post(std::shared_ptr<TokenMask> mask, uint64_t spent) {
  auto job = std::make_shared<Job>();
  job->mask = std::move(mask);
  const std::lock_guard lock(mutex_);
  if (threads_.empty()) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = thread_count_ > 0 ? thread_count_ : std::clamp(cores / 4, 1, 4);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  queue_.emplace(spent, job);
  wake_.notify_one();
  return job;
}

void MaskWorkers::WaitForAny(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, timeout, [&] { return ended_jobs_ != seen_jobs_; });
  seen_jobs_ = ended_jobs_;
}

void MaskWorkers::Loop() {
  LowerThreadPriority();
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    std::shared_ptr<Job> job = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    lock.unlock();
    // Not if the answer has ended meanwhile and dropped its mask.
    if (job->mask.use_count() > 1) {
      if (const Result<TokenMask::Prepared> prepared = job->mask->Prepare(TokenMask::kAnyWork); prepared)
        job->work = prepared->work;
      else
        job->error = prepared.error();
    }
    job->mask.reset();
    job->done.store(true, std::memory_order_release);
    job.reset();
    lock.lock();
    ++ended_jobs_;
    ended_.notify_all();
  }
}

}  // namespace celer
