// A group whose ranks are processes, on one host or several, connected by TCP, each with each. Who reaches the ports
// can disturb the group: they belong into a network that is trusted.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "device/group/communicator.h"

namespace celer {

struct SocketGroupOptions {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";  // where rank 0 listens; the others connect to it
  uint16_t port = 0;
  std::string identity = {};  // one line that must be the same on all ranks: version, model, options
  std::chrono::milliseconds join{60'000};      // until all have come
  std::chrono::milliseconds watchdog{30'000};  // without a byte from a rank that is waited for
};

// Waits until all ranks have come.
Result<std::unique_ptr<Communicator>> JoinSocketGroup(const SocketGroupOptions& options);

}  // namespace celer
