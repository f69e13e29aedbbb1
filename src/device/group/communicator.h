// What the ranks of a group exchange while they run one model together: collectives, and messages from one to another, over
// the threads of one process (thread_group.h), or over processes, also on several hosts (socket_group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

  // From one rank to another, in order. Send() never waits: what the other one does not take yet is kept.
  virtual Status Send(std::span<const std::byte> bytes, int to) = 0;
  // The sender may compute for long before it sends, as long as it reports progress at least once in the time of the
  // watchdog. While this rank waits, it reports that to `behind`, a rank that waits for it (-1: none does).
  virtual Status Receive(std::span<std::byte> bytes, int from, int behind) = 0;
  // Sends what is kept, and lets `behind` know that this rank is at work. Cheap enough for each layer of a model.
  virtual void ReportProgress(int behind) = 0;

  // The ranks first to first + count - 1 of this group, of which this is one, as a group of their own. An error of
  // either is one of both. All ranks must make their calls to both groups in an order that fits; this group must
  // outlive the part.
  virtual std::unique_ptr<Communicator> Part(int first, int count) = 0;

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

// Some bytes of each rank.
Result<std::vector<std::vector<std::byte>>> GatherMessages(Communicator& group,
                                                           std::span<const std::byte> mine);

// The part of `values` numbers that rank `rank` sums up: begins at whole cache lines.
struct GroupPart {
  int64_t begin = 0, end = 0;
};
GroupPart PartOfRank(int64_t values, int rank, int size);

}  // namespace celer
