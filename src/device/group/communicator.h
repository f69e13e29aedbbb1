// What the ranks of a group exchange while they run one model together: collectives over the threads of one process
// (thread_group.h), or over processes, also on several hosts (socket_group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace celer {

class Communicator {
 public:
  // How long a rank waits for the others.
  enum class Wait : uint8_t {
    kWatchdog,  // as long as the group's watchdog says; then the group has failed
    kIdle,      // without end, for work that may come tomorrow; ranks that end are noticed
  };

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // All ranks make the same calls in the same order, each from one thread at a time. An error ends the group: every
  // rank gets it from the call that it is in, or from its next one, and from all calls after that. What a failed call
  // was to write is undefined.

  // The sum over all ranks, in their order: the bits are the same on every rank and in every run.
  virtual Status AllReduceSum(std::span<float> values) = 0;
  // Rank r gives sizes[r] bytes; `all` gets those of all ranks, one after the other.
  virtual Status AllGather(std::span<const std::byte> mine, std::span<const int64_t> sizes,
                           std::byte* all) = 0;
  virtual Status Broadcast(std::span<std::byte> bytes, int root, Wait wait) = 0;
  Status Broadcast(std::span<std::byte> bytes, int root) { return Broadcast(bytes, root, Wait::kWatchdog); }
  virtual Status Barrier(Wait wait) = 0;
  Status Barrier() { return Barrier(Wait::kWatchdog); }

  // Ends the group: the others get this sentence.
  virtual void Abort(const Error& why) = 0;
  virtual Status status() const = 0;  // the error that ended the group

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

// A broadcast whose size the receivers do not know.
Status SendMessage(Communicator& group, std::span<const std::byte> message);
Result<std::vector<std::byte>> ReceiveMessage(Communicator& group, int root, Communicator::Wait wait);

// One number of each rank.
Result<std::vector<int64_t>> GatherNumbers(Communicator& group, int64_t mine);
Result<int64_t> SumOfNumbers(Communicator& group, int64_t mine);
Result<int64_t> LeastOfNumbers(Communicator& group, int64_t mine);

// The part of `values` numbers that rank `rank` sums up: begins at whole cache lines.
struct GroupPart {
  int64_t begin = 0, end = 0;
};
GroupPart PartOfRank(int64_t values, int rank, int size);

}  // namespace celer
