// What of the client knows no sockets: addresses and the framing of streams.
#include <algorithm>

#include "loadtest/http/client.h"

namespace celer::cli {

Result<ServerUrl> ServerUrl::Parse(const std::string& text) {
  const auto wrong = [&](const char* why) {
    return Error::Invalid("--server ", text, ": ", why, "; expected an address like http://127.0.0.1:8000");
  };
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  ServerUrl url;
  std::string_view rest = text;
  if (rest.starts_with(kHttp))
    rest.remove_prefix(kHttp.size());
  else if (rest.starts_with(kHttps))
    rest.remove_prefix(kHttps.size()), url.tls = true;
  else
    return wrong("it begins with neither http:// nor https://");
  if (std::any_of(rest.begin(), rest.end(),
                  [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; }))
    return wrong("it has spaces or control characters");
  if (rest.find_first_of("?#@") != rest.npos) return wrong("it has more than a host, a port and a path");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view path = rest.substr(slash);
  std::string_view host = rest.substr(0, slash), port;
  if (host.starts_with('[')) {  // IPv6
    const size_t end = host.find(']');
    if (end == host.npos) return wrong("the bracket is not closed");
    port = host.substr(end + 1);
    host = host.substr(1, end - 1);
    if (!port.empty() && !port.starts_with(':')) return wrong("what follows the bracket is no port");
    if (!port.empty()) port.remove_prefix(1);
  } else if (const size_t colon = host.find(':'); colon != host.npos) {
    port = host.substr(colon + 1);
    host = host.substr(0, colon);
  }
  if (host.empty()) return wrong("the host is missing");
  url.host = host;
  url.port = port.empty() ? (url.tls ? "443" : "80") : std::string(port);
  if (url.port.size() > 5 || url.port.find_first_not_of("0123456789") != url.port.npos ||
      std::stoi(url.port) > 65535 || std::stoi(url.port) < 1)
    return wrong("the port is no number from 1 to 65535");
  while (path.ends_with('/')) path.remove_suffix(1);
  url.base = path.empty() ? "/v1" : std::string(path);
  return url;
}

std::string ServerUrl::Origin() const {
  const std::string name = host.find(':') == host.npos ? host : "[" + host + "]";
  return (tls ? "https://" : "http://") + name + ":" + port;
}

void EventStream::Push(std::string_view piece, const std::function<void(std::string_view data)>& on_data) {
  for (size_t end; (end = piece.find('\n')) != piece.npos; piece.remove_prefix(end + 1)) {
    if (rest_.empty()) {
      Line(piece.substr(0, end), on_data);
      continue;
    }
    rest_ += piece.substr(0, end);
    Line(rest_, on_data);
    rest_.clear();
  }
  rest_ += piece;
}

void EventStream::Line(std::string_view line, const std::function<void(std::string_view data)>& on_data) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) return;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

}  // namespace celer::cli
