#include "server/kv_transfer/kv_peers.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "io/file/printable.h"

namespace celer::server {
namespace {

std::optional<int> NumberIn(std::string_view text, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0 || value > most)
    return std::nullopt;
  return value;
}

Error Wrong(std::string_view text, const char* expected) {
  return Error::Invalid("KV transfer: '", Printable(text), "' is no ", expected);
}

// The text without its port, which is empty if it has none: "[::1]:80", "a:80", "::1".
std::string_view SplitPort(std::string_view text, std::string_view* port) {
  *port = {};
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return text;
    if (text.substr(end + 1).starts_with(':')) *port = text.substr(end + 2);
    return text.substr(end + 1).empty() || !port->empty() ? text.substr(1, end - 1) : text;
  }
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos) return text;
  *port = text.substr(colon + 1);
  return text.substr(0, colon);
}

bool IsName(std::string_view host) {
  return !host.empty() && host.size() <= 253 && std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

}  // namespace

Result<HostPort> HostPort::Parse(std::string_view text) {
  std::string_view port_text;
  const std::string_view host = SplitPort(text, &port_text);
  const std::optional<int> port = NumberIn(port_text, 65535);
  in6_addr address = {};
  if (!port || (!IsName(host) && inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1))
    return Wrong(text, "HOST:PORT, such as 10.0.0.1:5600");
  return HostPort{std::string(host), static_cast<uint16_t>(*port)};
}

bool KvPeers::ParseAddress(std::string_view text, Address* out) {
  const std::string whole(text);
  in_addr four = {};
  if (inet_pton(AF_INET, whole.c_str(), &four) == 1) {
    *out = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::copy_n(reinterpret_cast<const uint8_t*>(&four), 4, out->begin() + 12);
    return true;
  }
  return inet_pton(AF_INET6, whole.c_str(), out->data()) == 1;
}

Result<KvPeers> KvPeers::Parse(std::span<const std::string> texts) {
  KvPeers peers;
  for (const std::string& text : texts) {
    Entry entry;
    if (const size_t slash = text.find('/'); slash != std::string::npos) {
      const std::string_view network = std::string_view(text).substr(0, slash);
      const bool four = network.find(':') == std::string_view::npos;
      const std::optional<int> bits = NumberIn(std::string_view(text).substr(slash + 1), four ? 32 : 128);
      if (!bits || !ParseAddress(network, &entry.address)) return Wrong(text, "network, such as 10.0.0.0/8");
      entry.bits = *bits + (four ? 96 : 0);
    } else {
      std::string_view port_text;
      const std::string_view host = SplitPort(text, &port_text);
      const std::optional<int> port = NumberIn(port_text, 65535);
      const bool has_port = host.size() + (text.starts_with('[') ? 2 : 0) < text.size();
      if (has_port && (!port || *port == 0)) return Wrong(text, "peer, such as 10.0.0.1:5600 or 10.0.0.0/8");
      entry.port = static_cast<uint16_t>(port.value_or(0));
      if (!ParseAddress(host, &entry.address)) {
        if (!IsName(host)) return Wrong(text, "peer, such as 10.0.0.1:5600 or 10.0.0.0/8");
        entry.name = host;
      }
    }
    peers.entries_.push_back(std::move(entry));
  }
  return peers;
}

bool KvPeers::Allows(std::string_view host, uint16_t port) const {
  Address address;
  const bool number = ParseAddress(host, &address);
  return port != 0 && std::ranges::any_of(entries_, [&](const Entry& entry) {
           if (entry.port != 0 && entry.port != port) return false;
           if (!number || !entry.name.empty()) return !number && !host.empty() && entry.name == host;
           for (int bit = 0; bit < entry.bits; ++bit)
             if ((address[bit / 8] ^ entry.address[bit / 8]) >> (7 - bit % 8) & 1) return false;
           return true;
         });
}

}  // namespace celer::server
