#include "server/service/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace celer::server {

Refusal Admission::TooManyRequests(const char* reason, const std::string& what, double seconds) {
  ++metrics_.rejected[reason];
  // A full queue empties sooner than anyone can tell; what a key may have comes when it comes.
  const bool own = std::string_view(reason) == "key";
  return ApiError{.status = 429,
                  .message = "too many requests: " + what,
                  .code = own ? "rate_limit_exceeded" : "queue_full",
                  .retry_after = static_cast<int>(std::clamp(std::ceil(seconds), 1.0, own ? 86400.0 : 60.0))};
}

Refusal Admission::CheckCapacity(bool generates) {
  if (jobs_ >= limits_.max_jobs)
    return TooManyRequests(
        "jobs", fmt::format("{} of {} are being prepared (--max-jobs)", jobs_, limits_.max_jobs), 1);
  return generates ? CheckQueue() : Refusal();
}

Refusal Admission::CheckQueue() {
  if (waiting_ < limits_.max_queue) return {};
  return TooManyRequests("queue", fmt::format("{} of {} wait (--max-queue)", waiting_, limits_.max_queue),
                         SecondsFor(waiting_tokens_));
}

Refusal Admission::Admit(int64_t prompt_tokens, int64_t kv_tokens) {
  if (auto refusal = CheckQueue()) return refusal;
  if (waiting_ == 0) return {};
  const double predicted = SecondsFor(waiting_tokens_ + prompt_tokens);
  const int64_t max_tokens = limits_.max_queue_tokens > 0 ? limits_.max_queue_tokens : 8 * kv_tokens;
  if (waiting_tokens_ + prompt_tokens > max_tokens)
    return TooManyRequests(
        "tokens",
        fmt::format("{} prompt tokens and {} more of {} wait", waiting_tokens_, prompt_tokens, max_tokens),
        predicted);
  if (limits_.max_ttft > 0 && predicted > limits_.max_ttft)
    return TooManyRequests("ttft",
                           fmt::format("the first token would come in {:.1f} s, and {:.1f} s is the limit",
                                       predicted, limits_.max_ttft),
                           predicted);
  return {};
}

void Admission::ObserveRate(double tokens_per_second) {
  tokens_per_second_ =
      tokens_per_second_ == 0 ? tokens_per_second : 0.7 * tokens_per_second_ + 0.3 * tokens_per_second;
}

double Admission::SecondsFor(int64_t tokens) const {
  return tokens_per_second_ > 0 ? static_cast<double>(tokens) / tokens_per_second_ : 0;
}

}  // namespace celer::server
