// Accounting of the memory that request bodies hold, for backpressure (--max-body-memory).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace celer::server {

// The bytes of one request's body in the server's total. They count from the first byte read until the
// request has ended, because what is parsed from a body is of its size.
class BodyLease {
 public:
  explicit BodyLease(std::shared_ptr<std::atomic<int64_t>> total) : total_(std::move(total)) {}
  BodyLease(BodyLease&& other) noexcept : total_(other.total_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;
  ~BodyLease() { Resize(0); }
  void Resize(int64_t bytes) { *total_ += bytes - std::exchange(bytes_, bytes); }

 private:
  std::shared_ptr<std::atomic<int64_t>> total_;
  int64_t bytes_ = 0;
};

}  // namespace celer::server
