#include "device/group/connections.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace celer {
namespace {

const char* KindName(uint16_t kind) {
  constexpr const char* kNames[] = {"all_reduce", "all_reduce", "all_gather",   "broadcast", "barrier",
                                    "message",    "progress",   "nothing more", "abort"};
  return kind < std::size(kNames) ? kNames[kind] : "something else";
}

constexpr int64_t kMostAbortText = 4096;
// Writes `done` and the following bytes of a head and what it announces, as far as it goes.
Result<size_t> Write(const Socket& socket, const MessageHead& head, std::span<const std::byte> rest,
                     size_t done) {
  std::array<iovec, 2> parts;
  size_t count = 0;
  const size_t in_head = std::min(done, sizeof(MessageHead)), in_rest = done - in_head;
  // sendmsg() only reads them.
  if (in_head < sizeof(MessageHead))
    parts[count++] = {const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&head)) + in_head,
                      sizeof(MessageHead) - in_head};
  if (in_rest < rest.size())
    parts[count++] = {const_cast<std::byte*>(rest.data()) + in_rest, rest.size() - in_rest};
  msghdr header = {};
  header.msg_iov = parts.data();
  header.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = sendmsg(socket.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Error::Io(SystemError(errno));
  }
}

}  // namespace

Result<bool> Connections::Push(SocketMessage* message) {
  if (!kept_[message->peer].empty()) return false;  // which goes first
  const size_t total = message->total(), before = message->done;
  while (message->done < total) {
    CELER_ASSIGN(const size_t sent,
                 Write(peers_[message->peer].socket, message->head, message->send, message->done));
    if (sent == 0) break;
    message->done += sent;
  }
  broken_[message->peer] = message->done > 0 && message->done < total;
  return message->done > before;
}

Result<bool> Connections::PushKept() {
  bool moved = false;
  for (size_t r = 0; r < kept_.size(); ++r)
    while (!kept_[r].empty()) {
      Kept& first = kept_[r].front();
      const auto sent = Write(peers_[r].socket, first.head, first.bytes, first.done);
      if (!sent) return WhyGone(r, /*sends=*/true, sent.error());
      first.done += *sent;
      moved |= *sent > 0;
      broken_[r] = first.done > 0 && first.done < sizeof(MessageHead) + first.bytes.size();
      if (first.done < sizeof(MessageHead) + first.bytes.size()) {
        if (*sent == 0) break;
        continue;
      }
      kept_[r].pop_front();
    }
  return moved;
}

Status Connections::Post(int to, std::span<const std::byte> bytes) {
  if (error_) return *error_;
  const auto peer = static_cast<size_t>(to);
  kept_[peer].push_back(
      {.head = {static_cast<uint16_t>(MessageKind::kMessage), 0, sent_[peer]++, std::ssize(bytes)},
       .bytes = {bytes.begin(), bytes.end()}});
  reported_ = SocketClock::now();
  const auto pushed = PushKept();
  return pushed ? Status() : Status(Fail(pushed.error()));
}

void Connections::ReportProgress(int behind) {
  if (error_) return;
  // A fault is seen by the next call.
  [[maybe_unused]] const auto pushed = PushKept();
  const auto now = SocketClock::now();
  if (behind < 0 || now - reported_ < Interval()) return;
  reported_ = now;
  // What is kept says the same.
  const auto peer = static_cast<size_t>(behind);
  if (kept_[peer].empty() && !broken_[peer]) {
    kept_[peer].push_back({.head = {static_cast<uint16_t>(MessageKind::kProgress), 0, 0, 0}, .bytes = {}});
    [[maybe_unused]] const auto reported = PushKept();
  }
}

Result<bool> Connections::Pull(SocketMessage* message) {
  const size_t total = message->total();
  bool moved = false;
  while (message->done < total) {
    const bool in_head = message->done < sizeof(MessageHead);
    std::byte* const to = in_head ? reinterpret_cast<std::byte*>(&message->came) + message->done
                                  : message->receive.data() + (message->done - sizeof(MessageHead));
    const size_t room = in_head ? sizeof(MessageHead) - message->done : total - message->done;
    const ssize_t got = recv(peers_[message->peer].socket.fd(), to, room, MSG_DONTWAIT);
    if (got == 0) return Error::Io("the connection was closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      return Error::Io(SystemError(errno));
    }
    message->done += static_cast<size_t>(got);
    moved = true;
    if (in_head && message->done == sizeof(MessageHead)) {
      if (message->came.kind == static_cast<uint16_t>(MessageKind::kProgress)) {
        message->done = 0;
        continue;
      }
      if (message->came.kind == static_cast<uint16_t>(MessageKind::kLeave))
        return Ended(message->peer, "it has left");
      if (message->came.kind == static_cast<uint16_t>(MessageKind::kAbort))
        return TakeAbort(message->peer, message->came.bytes);
      CELER_RETURN_IF_ERROR(CheckHead(*message));
    }
  }
  return moved;
}

Status Connections::CheckHead(const SocketMessage& message) {
  const MessageHead &want = message.head, &got = message.came;
  if (got.kind == want.kind && got.part == want.part && got.call == want.call && got.bytes == want.bytes)
    return {};
  return Error::Device(peers_[message.peer].name, " sends ", KindName(got.kind), " ", got.call, " with ",
                       got.bytes, " bytes, rank ", rank_, " is at ", KindName(want.kind), " ", want.call,
                       " with ", want.bytes);
}

Error Connections::TakeAbort(size_t peer, int64_t bytes) {
  std::string text(static_cast<size_t>(std::clamp<int64_t>(bytes, 0, kMostAbortText)), '\0');
  const Status got = ReceiveAll(peers_[peer].socket, std::as_writable_bytes(std::span(text)),
                                SocketClock::now() + std::chrono::seconds(1));
  if (!got || text.empty()) return Ended(peer, "it has ended the group");
  return Error::Device(text);
}

Status Connections::CheckClosed(size_t peer) {
  MessageHead head;
  const int fd = peers_[peer].socket.fd();
  const ssize_t got = recv(fd, &head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return Ended(peer, "the connection was closed");
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
    return Ended(peer, SystemError(errno));
  }
  if (static_cast<size_t>(got) < sizeof head) return {};
  left_[peer] = head.kind == static_cast<uint16_t>(MessageKind::kLeave);
  if (head.kind != static_cast<uint16_t>(MessageKind::kAbort)) return {};
  if (recv(fd, &head, sizeof head, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof head)) return {};
  return TakeAbort(peer, head.bytes);
}

Error Connections::WhyGone(size_t peer, bool sends, const Error& error) {
  if (error.code() != Error::Code::kIo) return error;
  // A rank that has ended may have said why.
  const Status told = sends ? CheckClosed(peer) : Status();
  return told ? Ended(peer, error.message()) : told.error();
}

Status Connections::Run(std::span<SocketMessage> messages, const Patience& patience) {
  using std::chrono::ceil, std::chrono::milliseconds;
  auto heard = SocketClock::now();
  std::vector<pollfd> entries(peers_.size());
  for (;;) {
    std::optional<size_t> waits_for;
    const auto kept = PushKept();
    if (!kept) return Fail(kept.error());
    bool moved = false;
    for (size_t r = 0; r < peers_.size(); ++r)
      entries[r] = {.fd = left_[r] ? -1 : peers_[r].socket.fd(),
                    .events = static_cast<int16_t>(POLLRDHUP | (kept_[r].empty() ? 0 : POLLOUT)),
                    .revents = 0};
    for (SocketMessage& message : messages) {
      if (message.done == message.total()) continue;
      const auto went = message.sends ? Push(&message) : Pull(&message);
      if (!went) return Fail(WhyGone(message.peer, message.sends, went.error()));
      moved |= *went;
      if (message.done == message.total()) continue;
      waits_for = message.peer;
      entries[message.peer].fd = peers_[message.peer].socket.fd();
      int16_t& events = entries[message.peer].events;
      events = static_cast<int16_t>(events | (message.sends ? POLLOUT : POLLIN));
    }
    if (!waits_for) break;
    const auto now = SocketClock::now();
    if (moved) heard = now;
    if (patience.limit && now - heard >= *patience.limit)
      return Fail(Error::Device(peers_[*waits_for].name, " has not answered within ", watchdog_.count(),
                                " ms (", KindName(messages.front().head.kind), ")"));
    int timeout = -1;
    if (patience.limit) timeout = static_cast<int>(ceil<milliseconds>(heard + *patience.limit - now).count());
    if (patience.behind >= 0) {
      ReportProgress(patience.behind);
      timeout = std::min(timeout, static_cast<int>(Interval().count()));
    }
    const int ready = poll(entries.data(), entries.size(), timeout);
    if (ready < 0 && errno != EINTR)
      return Fail(Error::Device("waiting for other ranks: ", SystemError(errno)));
    for (size_t r = 0; ready > 0 && r < peers_.size(); ++r) {
      if (!(entries[r].revents & (POLLRDHUP | POLLERR | POLLHUP)) || (entries[r].events & POLLIN)) continue;
      if (const Status open = CheckClosed(r); !open) return Fail(open.error());
    }
  }
  return {};
}

Error Connections::Fail(const Error& error) {
  if (error_) return *error_;
  error_ = error;
  Tell(MessageKind::kAbort, error.message().substr(0, kMostAbortText));
  return error;
}

void Connections::Tell(MessageKind kind, const std::string& text) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    const int fd = peers_[r].socket.fd();
    if (fd < 0) continue;
    if (!broken_[r]) {
      MessageHead head{static_cast<uint16_t>(kind), 0, 0, std::ssize(text)};
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

}  // namespace celer
