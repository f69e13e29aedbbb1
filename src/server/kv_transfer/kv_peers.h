// From which addresses keys and values may be fetched. A client names the address, so that without a list every client could
// make this server connect to any other (server-side request forgery).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace celer::server {

// "10.0.0.1:5600", "[fd00::1]:5600", "prefill-0.celer:5600".
struct HostPort {
  std::string host;
  uint16_t port = 0;

  static Result<HostPort> Parse(std::string_view text);
};

class KvPeers {
 public:
  KvPeers() = default;  // none
  // Each is a name or an address, with a port or for all ports, or a network: "10.0.0.0/8". Names are compared as they are
  // written: the server resolves no name that is not in the list.
  static Result<KvPeers> Parse(std::span<const std::string> texts);

  bool Allows(std::string_view host, uint16_t port) const;
  bool empty() const { return entries_.empty(); }

 private:
  using Address = std::array<uint8_t, 16>;  // IPv4 as ::ffff:a.b.c.d
  struct Entry {
    std::string name = {};  // "": an address
    Address address = {};
    int bits = 128;     // of the address that count
    uint16_t port = 0;  // 0: any
  };
  static bool ParseAddress(std::string_view text, Address* out);

  std::vector<Entry> entries_;
};

}  // namespace celer::server
