// Every collective is one or two exchanges: messages to some ranks and from some, all at once, so that no order of
// them can block. A message is a head and its bytes; the head says what it is, so that ranks that do not agree notice.
#include "device/group/socket_group.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "device/group/rendezvous.h"

namespace celer {
namespace {

enum class Kind : uint32_t { kReduce, kSums, kGather, kBroadcast, kBarrier, kLeave, kAbort };

struct Head {
  uint32_t kind = 0;
  uint32_t call = 0;  // number of the collective
  int64_t bytes = 0;
};
static_assert(sizeof(Head) == 16);

const char* KindName(uint32_t kind) {
  constexpr const char* kNames[] = {"all_reduce", "all_reduce",   "all_gather", "broadcast",
                                    "barrier",    "nothing more", "abort"};
  return kind < std::size(kNames) ? kNames[kind] : "something else";
}

struct Message {
  size_t peer;
  bool sends;
  Head head = {};
  std::span<const std::byte> send = {};
  std::span<std::byte> receive = {};
  size_t done = 0;  // bytes, of the head and the rest

  size_t total() const { return sizeof(Head) + (sends ? send.size() : receive.size()); }
};

constexpr int64_t kMostAbortText = 4096;
// Up to here every rank sends all that it has to every other one, and each adds up by itself: one hop instead of two.
constexpr int64_t kOneShotFloats = 16384;

class SocketCommunicator final : public Communicator {
 public:
  SocketCommunicator(const SocketGroupOptions& options, std::vector<Peer> peers)
      : Communicator(options.rank, options.size), peers_(std::move(peers)), watchdog_(options.watchdog) {
    broken_.resize(peers_.size());
    left_.resize(peers_.size());
  }
  // Others may still be busy with the last collective, which this rank has done.
  ~SocketCommunicator() override {
    if (!error_) Tell(Kind::kLeave, "");
  }

  Status AllReduceSum(std::span<float> values) override {
    if (error_) return *error_;
    if (size() == 1 || values.empty()) return {};
    return std::ssize(values) <= kOneShotFloats ? SumOneShot(values) : SumInParts(values);
  }

  Status AllGather(std::span<const std::byte> mine, std::span<const int64_t> sizes, std::byte* all) override {
    CELER_CHECK_EQ(std::ssize(sizes), size());
    CELER_CHECK_EQ(std::ssize(mine), sizes[static_cast<size_t>(rank())]);
    if (error_) return *error_;
    Begin(Kind::kGather);
    std::byte* to = all;
    for (int r = 0; r < size(); ++r) {
      const auto bytes = static_cast<size_t>(sizes[static_cast<size_t>(r)]);
      if (r == rank()) {
        if (bytes > 0) std::memcpy(to, mine.data(), bytes);
      } else {
        Send(r, mine);
        Receive(r, {to, bytes});
      }
      to += bytes;
    }
    return Run(Wait::kWatchdog);
  }

  Status Broadcast(std::span<std::byte> bytes, int root, Wait wait) override {
    CELER_CHECK(root >= 0 && root < size());
    if (error_) return *error_;
    Begin(Kind::kBroadcast);
    if (rank() != root)
      Receive(root, bytes);
    else
      for (int r = 0; r < size(); ++r)
        if (r != root) Send(r, bytes);
    return Run(wait);
  }

  Status Barrier(Wait wait) override {
    if (error_) return *error_;
    Begin(Kind::kBarrier);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) {
        Send(r, {});
        Receive(r, {});
      }
    return Run(wait);
  }

  using Communicator::Barrier;
  using Communicator::Broadcast;

  void Abort(const Error& why) override { [[maybe_unused]] const Error first = Fail(why); }
  Status status() const override { return error_ ? Status(*error_) : Status(); }

 private:
  Status SumOneShot(std::span<float> values) {
    Begin(Kind::kReduce);
    const size_t n = values.size();
    scratch_.resize(peers_.size() * n);
    for (int r = 0; r < size(); ++r) {
      const std::span<float> theirs(scratch_.data() + static_cast<size_t>(r) * n, n);
      if (r == rank()) {
        std::copy(values.begin(), values.end(), theirs.begin());
      } else {
        Send(r, std::as_bytes(values));
        Receive(r, std::as_writable_bytes(theirs));
      }
    }
    CELER_RETURN_IF_ERROR(Run(Wait::kWatchdog));
    AddUp(n, values.data());
    return {};
  }

  Status SumInParts(std::span<float> values) {
    const auto part = [&](int r) {
      const GroupPart p = PartOfRank(std::ssize(values), r, size());
      return values.subspan(static_cast<size_t>(p.begin), static_cast<size_t>(p.end - p.begin));
    };
    const std::span<float> mine = part(rank());
    Begin(Kind::kReduce);
    scratch_.resize(peers_.size() * mine.size());
    for (int r = 0; r < size(); ++r) {
      const std::span<float> theirs(scratch_.data() + static_cast<size_t>(r) * mine.size(), mine.size());
      if (r == rank()) {
        std::copy(mine.begin(), mine.end(), theirs.begin());
      } else {
        Send(r, std::as_bytes(part(r)));
        Receive(r, std::as_writable_bytes(theirs));
      }
    }
    CELER_RETURN_IF_ERROR(Run(Wait::kWatchdog));
    AddUp(mine.size(), mine.data());
    Begin(Kind::kSums);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) {
        Send(r, std::as_bytes(mine));
        Receive(r, std::as_writable_bytes(part(r)));
      }
    return Run(Wait::kWatchdog);
  }

  // In the order of the ranks.
  void AddUp(size_t n, float* out) const {
    std::copy_n(scratch_.data(), n, out);
    for (size_t r = 1; r < peers_.size(); ++r) {
      const float* const from = scratch_.data() + r * n;
      for (size_t i = 0; i < n; ++i) out[i] += from[i];
    }
  }

  void Begin(Kind kind) {
    ++call_;
    kind_ = kind;
    messages_.clear();
  }
  Head HeadFor(size_t bytes) const {
    return {static_cast<uint32_t>(kind_), call_, static_cast<int64_t>(bytes)};
  }
  void Send(int to, std::span<const std::byte> bytes) {
    messages_.push_back(
        {.peer = static_cast<size_t>(to), .sends = true, .head = HeadFor(bytes.size()), .send = bytes});
  }
  void Receive(int from, std::span<std::byte> bytes) {
    messages_.push_back({.peer = static_cast<size_t>(from), .sends = false, .receive = bytes});
  }

  // Until all messages are sent and received.
  Status Run(Wait wait);
  // As far as it goes without waiting; the number of bytes, or an error.
  Result<size_t> Push(Message* message);
  Result<size_t> Pull(Message* message);
  Status CheckHead(const Message& message);
  // A connection that was closed, from which nothing is expected now; or that has an abort to tell.
  Status CheckClosed(size_t peer);
  Error TakeAbort(size_t peer, int64_t bytes);
  Error Ended(size_t peer, const std::string& why) const {
    return Error::Device(peers_[peer].name, " has ended: ", why);
  }
  Error Fail(const Error& error);
  void Tell(Kind kind, const std::string& text);  // the last message to all

  std::vector<Peer> peers_;
  std::chrono::milliseconds watchdog_;
  std::optional<Error> error_;
  uint32_t call_ = 0;
  Kind kind_ = Kind::kBarrier;
  std::vector<Message> messages_;
  std::vector<bool> broken_;  // [peers]: a message was sent in part, so that no other can follow
  std::vector<bool> left_;    // [peers]: it has ended, and nothing went wrong
  std::vector<float> scratch_;
};

Result<size_t> SocketCommunicator::Push(Message* message) {
  const size_t total = message->total(), before = message->done;
  while (message->done < total) {
    std::array<iovec, 2> parts;
    size_t count = 0;
    const size_t in_head = std::min(message->done, sizeof(Head)), in_rest = message->done - in_head;
    if (in_head < sizeof(Head))
      parts[count++] = {reinterpret_cast<std::byte*>(&message->head) + in_head, sizeof(Head) - in_head};
    if (in_rest < message->send.size())
      parts[count++] = {const_cast<std::byte*>(message->send.data()) + in_rest,
                        message->send.size() - in_rest};
    msghdr header = {};
    header.msg_iov = parts.data();
    header.msg_iovlen = count;
    const ssize_t sent = sendmsg(peers_[message->peer].socket.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return Error::Io(SystemError(errno));
    }
    message->done += static_cast<size_t>(sent);
  }
  broken_[message->peer] = message->done > 0 && message->done < total;
  return message->done - before;
}

Result<size_t> SocketCommunicator::Pull(Message* message) {
  const size_t total = message->total(), before = message->done;
  while (message->done < total) {
    const bool in_head = message->done < sizeof(Head);
    std::byte* const to = in_head ? reinterpret_cast<std::byte*>(&message->head) + message->done
                                  : message->receive.data() + (message->done - sizeof(Head));
    const size_t room = in_head ? sizeof(Head) - message->done : total - message->done;
    const ssize_t got = recv(peers_[message->peer].socket.fd(), to, room, MSG_DONTWAIT);
    if (got == 0) return Error::Io("the connection was closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return Error::Io(SystemError(errno));
    }
    message->done += static_cast<size_t>(got);
    if (in_head && message->done == sizeof(Head)) {
      if (message->head.kind == static_cast<uint32_t>(Kind::kLeave))
        return Ended(message->peer, "it has left");
      if (message->head.kind == static_cast<uint32_t>(Kind::kAbort))
        return TakeAbort(message->peer, message->head.bytes);
      CELER_RETURN_IF_ERROR(CheckHead(*message));
    }
  }
  return message->done - before;
}

Status SocketCommunicator::CheckHead(const Message& message) {
  const Head want = HeadFor(message.receive.size()), &got = message.head;
  if (got.kind == want.kind && got.call == want.call && got.bytes == want.bytes) return {};
  return Error::Device(peers_[message.peer].name, " sends ", KindName(got.kind), " ", got.call, " with ",
                       got.bytes, " bytes, rank ", rank(), " is at ", KindName(want.kind), " ", want.call,
                       " with ", want.bytes);
}

Error SocketCommunicator::TakeAbort(size_t peer, int64_t bytes) {
  std::string text(static_cast<size_t>(std::clamp<int64_t>(bytes, 0, kMostAbortText)), '\0');
  const Status got = ReceiveAll(peers_[peer].socket, std::as_writable_bytes(std::span(text)),
                                SocketClock::now() + std::chrono::seconds(1));
  if (!got || text.empty()) return Ended(peer, "it has ended the group");
  return Error::Device(text);
}

Status SocketCommunicator::CheckClosed(size_t peer) {
  Head head;
  const int fd = peers_[peer].socket.fd();
  const ssize_t got = recv(fd, &head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return Ended(peer, "the connection was closed");
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
    return Ended(peer, SystemError(errno));
  }
  if (static_cast<size_t>(got) < sizeof head) return {};
  left_[peer] = head.kind == static_cast<uint32_t>(Kind::kLeave);
  if (head.kind != static_cast<uint32_t>(Kind::kAbort)) return {};
  if (recv(fd, &head, sizeof head, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof head)) return {};
  return TakeAbort(peer, head.bytes);
}

Status SocketCommunicator::Run(Wait wait) {
  auto deadline = SocketClock::now() + watchdog_;
  std::vector<pollfd> entries(peers_.size());
  for (;;) {
    bool moved = false;
    std::optional<size_t> waits_for;
    for (size_t r = 0; r < peers_.size(); ++r)
      entries[r] = {.fd = left_[r] ? -1 : peers_[r].socket.fd(), .events = POLLRDHUP, .revents = 0};
    for (Message& message : messages_) {
      if (message.done == message.total()) continue;
      const auto bytes = message.sends ? Push(&message) : Pull(&message);
      if (!bytes) {
        const Error& error = bytes.error();
        if (error.code() != Error::Code::kIo) return Fail(error);
        // A rank that has ended may have said why.
        const Status told = message.sends ? CheckClosed(message.peer) : Status();
        return Fail(told ? Ended(message.peer, error.message()) : told.error());
      }
      moved |= *bytes > 0;
      if (message.done == message.total()) continue;
      waits_for = message.peer;
      entries[message.peer].fd = peers_[message.peer].socket.fd();
      int16_t& events = entries[message.peer].events;
      events = static_cast<int16_t>(events | (message.sends ? POLLOUT : POLLIN));
    }
    if (!waits_for) break;
    if (moved) deadline = SocketClock::now() + watchdog_;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SocketClock::now()).count();
    if (wait == Wait::kWatchdog && left <= 0) {
      return Fail(Error::Device(peers_[*waits_for].name, " has not answered within ", watchdog_.count(),
                                " ms (", KindName(static_cast<uint32_t>(kind_)), ")"));
    }
    const int ready = poll(entries.data(), entries.size(), wait == Wait::kIdle ? -1 : static_cast<int>(left));
    if (ready < 0 && errno != EINTR) {
      return Fail(Error::Device("waiting for other ranks: ", SystemError(errno)));
    }
    for (size_t r = 0; ready > 0 && r < peers_.size(); ++r) {
      if (!(entries[r].revents & (POLLRDHUP | POLLERR | POLLHUP)) || (entries[r].events & POLLIN)) continue;
      if (const Status open = CheckClosed(r); !open) {
        return Fail(open.error());
      }
    }
  }
  return {};
}

Error SocketCommunicator::Fail(const Error& error) {
  if (error_) return *error_;
  error_ = error;
  Tell(Kind::kAbort, error.message().substr(0, kMostAbortText));
  return error;
}

void SocketCommunicator::Tell(Kind kind, const std::string& text) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    const int fd = peers_[r].socket.fd();
    if (fd < 0) continue;
    if (!broken_[r]) {
      Head head{static_cast<uint32_t>(kind), call_, std::ssize(text)};
      std::array<iovec, 2> parts = {iovec{&head, sizeof head},
                                    iovec{const_cast<char*>(text.data()), text.size()}};
      msghdr header = {};
      header.msg_iov = parts.data();
      header.msg_iovlen = parts.size();
      // Who cannot hear it sees that the connection is closed.
      [[maybe_unused]] const ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    shutdown(fd, SHUT_WR);
  }
}

}  // namespace

Result<std::unique_ptr<Communicator>> JoinSocketGroup(const SocketGroupOptions& options) {
  CELER_ASSIGN(std::vector<Peer> peers, Meet(options));
  return std::unique_ptr<Communicator>(std::make_unique<SocketCommunicator>(options, std::move(peers)));
}

}  // namespace celer
