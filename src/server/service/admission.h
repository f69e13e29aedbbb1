// Admission: backpressure before a request is prepared, and whether it may join the queue. On the loop's
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/api_error.h"
#include "server/service/metrics.h"

namespace celer::server {

struct AdmissionLimits {
  int64_t max_jobs = 0;          // being read, rendered and tokenized
  int64_t max_queue = 0;         // requests without a first token
  int64_t max_queue_tokens = 0;  // and their prompt tokens; 0: eight times the KV
  double max_ttft = 0;           // seconds, predicted; 0: any
};

class Admission {
 public:
  Admission(const AdmissionLimits& limits, Metrics& metrics) : limits_(limits), metrics_(metrics) {}

  // Before the body is parsed. `generates`: a request that the queue would reject is not prepared first.
  Refusal CheckCapacity(bool generates);
  // Once its prompt tokens are known; the engine's KV holds `kv_tokens`.
  Refusal Admit(int64_t prompt_tokens, int64_t kv_tokens);
  // 429, counted under `reason`; `seconds`: for Retry-After.
  Refusal TooManyRequests(const char* reason, const std::string& what, double seconds);

  void BeginJob() { ++jobs_; }
  void EndJob() { --jobs_; }
  void Enqueue(int64_t prompt_tokens) { ++waiting_, waiting_tokens_ += prompt_tokens; }
  void Dequeue(int64_t prompt_tokens) { --waiting_, waiting_tokens_ -= prompt_tokens; }
  void ObserveRate(double tokens_per_second);

  int64_t jobs() const { return jobs_; }
  int64_t waiting() const { return waiting_; }
  int64_t waiting_tokens() const { return waiting_tokens_; }

 private:
  Refusal CheckQueue();
  double SecondsFor(int64_t tokens) const;  // 0: the rate is not known yet

  const AdmissionLimits limits_;
  Metrics& metrics_;
  int64_t jobs_ = 0;                          // queued at or running on a worker
  int64_t waiting_ = 0, waiting_tokens_ = 0;  // generations without a first token, and their prompt tokens
  double tokens_per_second_ = 0;              // a moving average
};

}  // namespace celer::server
