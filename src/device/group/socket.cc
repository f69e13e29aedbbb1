#include "device/group/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

namespace celer {
namespace {

constexpr std::chrono::milliseconds kRetry{100};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(const std::string& host, uint16_t port, bool passive) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (passive) hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0 || !found)
    return Error::Invalid("the host '", host, "' is not known here: ", gai_strerror(code));
  return Addresses(found, &freeaddrinfo);
}

void SetOption(int fd, int level, int name, int value) {
  // A refusal costs time or notice, nothing else.
  [[maybe_unused]] const int code = setsockopt(fd, level, name, &value, sizeof value);
}

Result<Socket> ListenAt(const addrinfo& address) {
  Socket socket(
      ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket) return Error::Io(SystemError(errno));
  SetOption(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  constexpr int kWaiting = 128;
  if (bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0 || listen(socket.fd(), kWaiting) != 0) {
    const int error = errno;
    if (error == EADDRNOTAVAIL) return Error::NotFound(SystemError(error));
    return Error::Io(SystemError(error));
  }
  return socket;
}

// True when `events` are there, false when the time is over.
Result<bool> WaitFor(int fd, int16_t events, SocketClock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SocketClock::now()).count();
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return Error::Io(SystemError(errno));
    if (ready == 0 && left <= 0) return false;
  }
}

Result<Endpoint> EndpointOf(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int code = getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port,
                               sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  if (code != 0) return Error::Io(gai_strerror(code));
  return Endpoint{host, static_cast<uint16_t>(std::stoi(port))};
}

// One try.
Result<Socket> ConnectTo(const addrinfo& address, SocketClock::time_point until) {
  Socket socket(
      ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket) return Error::Io(SystemError(errno));
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return Error::Io(SystemError(errno));
  CELER_ASSIGN(const bool ready, WaitFor(socket.fd(), POLLOUT, until));
  if (!ready) return Error::Io("no answer");
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return Error::Io(SystemError(error));
  return socket;
}

// The first of these addresses where somebody is.
Result<Socket> ConnectToAny(const Addresses& addresses, const std::string& host, uint16_t port,
                            SocketClock::time_point until) {
  std::string why = "no answer";
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    auto socket = ConnectTo(*address, until);
    if (socket) return socket;
    why = socket.error().message();
  }
  return Error::Io("nobody is reached at ", host, ":", port, ": ", why);
}

}  // namespace

std::string SystemError(int number) {
  return std::generic_category().message(number);
}

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Result<Socket> Listen(const std::string& host, uint16_t port) {
  CELER_ASSIGN(const Addresses addresses, Resolve(host, port, /*passive=*/true));
  auto socket = ListenAt(*addresses);
  if (!socket && socket.error().code() == Error::Code::kNotFound) {
    CELER_ASSIGN(const Addresses any, Resolve("", port, /*passive=*/true));
    socket = ListenAt(*any);
  }
  if (!socket)
    return Error::Io(host, ":", port, " cannot be listened at: ", socket.error().message(),
                     "; choose another port");
  return socket;
}

Result<Socket> Connect(const std::string& host, uint16_t port, SocketClock::time_point until) {
  CELER_ASSIGN(const Addresses addresses, Resolve(host, port, /*passive=*/false));
  for (;;) {
    auto socket = ConnectToAny(addresses, host, port, until);
    if (socket || SocketClock::now() + kRetry > until) return socket;
    std::this_thread::sleep_for(kRetry);
  }
}

Result<Socket> ConnectOnce(const std::string& host, uint16_t port, SocketClock::time_point until) {
  CELER_ASSIGN(const Addresses addresses, Resolve(host, port, /*passive=*/false));
  return ConnectToAny(addresses, host, port, until);
}

Result<Socket> Accept(const Socket& listener, SocketClock::time_point until) {
  for (;;) {
    CELER_ASSIGN(const bool ready, WaitFor(listener.fd(), POLLIN, until));
    if (!ready) return Socket();
    const int fd = accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) return Socket(fd);
    // What waited may be gone again.
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED)
      return Error::Io("no connection is taken: ", SystemError(errno));
  }
}

Result<Endpoint> LocalEndpoint(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return Error::Io(SystemError(errno));
  return EndpointOf(address, length);
}

Result<Endpoint> RemoteEndpoint(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return Error::Io(SystemError(errno));
  return EndpointOf(address, length);
}

void PrepareForMessages(const Socket& socket, std::chrono::milliseconds watchdog) {
  constexpr int kIdleSeconds = 10, kProbeSeconds = 5, kProbes = 3;
  SetOption(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  SetOption(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  SetOption(socket.fd(), IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  SetOption(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(watchdog.count()));
}

Status SendAll(const Socket& socket, std::span<const std::byte> bytes, SocketClock::time_point until) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      CELER_ASSIGN(const bool ready, WaitFor(socket.fd(), POLLOUT, until));
      if (!ready) return Error::Io("nothing is taken in time");
    } else if (errno != EINTR) {
      return Error::Io(SystemError(errno));
    }
  }
  return {};
}

Status ReceiveAll(const Socket& socket, std::span<std::byte> bytes, SocketClock::time_point until) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Error::Io("the connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      CELER_ASSIGN(const bool ready, WaitFor(socket.fd(), POLLIN, until));
      if (!ready) return Error::Io("nothing comes in time");
    } else if (errno != EINTR) {
      return Error::Io(SystemError(errno));
    }
  }
  return {};
}

}  // namespace celer
