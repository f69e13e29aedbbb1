// TCP sockets that do not block, for socket_group.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace celer {

using SocketClock = std::chrono::steady_clock;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

struct Endpoint {
  std::string host;  // as a number
  uint16_t port = 0;
};

// At this address, or at all addresses of this host if it is not one of its own (an address that is translated).
// Port 0: any that is free.
Result<Socket> Listen(const std::string& host, uint16_t port);
// Tries again until there is somebody.
Result<Socket> Connect(const std::string& host, uint16_t port, SocketClock::time_point until);
// Without trying again.
Result<Socket> ConnectOnce(const std::string& host, uint16_t port, SocketClock::time_point until);
// No socket when the time is over.
Result<Socket> Accept(const Socket& listener, SocketClock::time_point until);
Result<Endpoint> LocalEndpoint(const Socket& socket);
Result<Endpoint> RemoteEndpoint(const Socket& socket);

// Sends at once, and notices hosts that are gone.
void PrepareForMessages(const Socket& socket, std::chrono::milliseconds watchdog);

// All of it, within the time.
Status SendAll(const Socket& socket, std::span<const std::byte> bytes, SocketClock::time_point until);
Status ReceiveAll(const Socket& socket, std::span<std::byte> bytes, SocketClock::time_point until);

std::string SystemError(int number);  // "Connection refused"

}  // namespace celer
