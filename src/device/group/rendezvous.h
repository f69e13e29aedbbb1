// How the processes of a group find each other: all go to rank 0, which tells them where the others are.
#pragma once

#include <vector>

#include "base/result.h"
#include "device/group/socket.h"
#include "device/group/socket_group.h"

namespace celer {

struct Peer {
  Socket socket;     // none of the rank itself
  std::string name;  // "rank 2 (10.0.0.3)"
};

// A connection with every other rank, in the order of the ranks.
Result<std::vector<Peer>> Meet(const SocketGroupOptions& options);

}  // namespace celer
