// The sockets of a rank, and the messages on them: what all groups that the rank is part of have in common. A message is a
// head and its bytes; the head says what it is, so that ranks that do not agree notice.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/group/rendezvous.h"
#include "device/group/socket.h"
#include "device/group/socket_group.h"

namespace celer {

enum class MessageKind : uint16_t {
  kReduce,
  kSums,
  kGather,
  kBroadcast,
  kBarrier,
  kMessage,
  kProgress,
  kLeave,
  kAbort
};

struct MessageHead {
  uint16_t kind = 0;
  uint16_t part = 0;  // of which group: 0, or 1 + the first rank of some consecutive ones
  uint32_t call = 0;  // number of the collective in that group; of messages from one rank to another one
  int64_t bytes = 0;
};
static_assert(sizeof(MessageHead) == 16);

struct SocketMessage {
  size_t peer;
  bool sends;
  MessageHead head = {};  // of a message to send; what is expected of the others
  std::span<const std::byte> send = {};
  std::span<std::byte> receive = {};
  size_t done = 0;        // bytes, of the head and the rest
  MessageHead came = {};  // of the others

  size_t total() const { return sizeof(MessageHead) + (sends ? send.size() : receive.size()); }
};

// The connections of a rank with all others, on which every group that it is part of sends. Messages of one rank to
// another are read in the order in which they were sent.
class Connections {
 public:
  Connections(const SocketGroupOptions& options, std::vector<Peer> peers)
      : rank_(options.rank), peers_(std::move(peers)), watchdog_(options.watchdog) {
    broken_.resize(peers_.size());
    left_.resize(peers_.size());
    kept_.resize(peers_.size());
    sent_.resize(peers_.size());
    received_.resize(peers_.size());
  }

  int rank() const { return rank_; }
  const std::optional<Error>& error() const { return error_; }
  Error Fail(const Error& error);
  void Tell(MessageKind kind, const std::string& text);  // the last message to all

  // How long, and who waits for this rank meanwhile (-1: none).
  struct Patience {
    std::optional<std::chrono::milliseconds> limit;
    int behind = -1;
  };
  Patience Watchdog() const { return {.limit = watchdog_}; }
  // For messages: a rank that waits reports that a little late.
  Patience WatchdogFor(int behind) const { return {.limit = watchdog_ + 2 * Interval(), .behind = behind}; }

  // Until all messages are sent and received.
  Status Run(std::span<SocketMessage> messages, const Patience& patience);
  // Takes a copy, and sends what goes without waiting.
  Status Post(int to, std::span<const std::byte> bytes);
  MessageHead NextFrom(int from, size_t bytes) {
    return {static_cast<uint16_t>(MessageKind::kMessage), 0, received_[static_cast<size_t>(from)]++,
            static_cast<int64_t>(bytes)};
  }
  void ReportProgress(int behind);

 private:
  struct Kept {
    MessageHead head;
    std::vector<std::byte> bytes;
    size_t done = 0;
  };

  // As far as it goes without waiting; whether anything went, or an error.
  Result<bool> Push(SocketMessage* message);
  Result<bool> Pull(SocketMessage* message);
  Result<bool> PushKept();
  Status CheckHead(const SocketMessage& message);
  // A connection that was closed, from which nothing is expected now; or that has an abort to tell.
  Status CheckClosed(size_t peer);
  Error TakeAbort(size_t peer, int64_t bytes);
  Error WhyGone(size_t peer, bool sends, const Error& error);
  Error Ended(size_t peer, const std::string& why) const {
    return Error::Device(peers_[peer].name, " has ended: ", why);
  }
  // How often a rank that is at work says so at most.
  std::chrono::milliseconds Interval() const {
    return std::min(std::chrono::milliseconds(1000), watchdog_ / 4);
  }

  int rank_;
  std::vector<Peer> peers_;
  std::chrono::milliseconds watchdog_;
  std::optional<Error> error_;
  std::vector<bool> broken_;               // [peers]: a message was sent in part, so that no other can follow
  std::vector<bool> left_;                 // [peers]: it has ended, and nothing went wrong
  std::vector<std::deque<Kept>> kept_;     // [peers], not sent yet
  std::vector<uint32_t> sent_, received_;  // [peers], messages
  SocketClock::time_point reported_ = {};
};

}  // namespace celer
