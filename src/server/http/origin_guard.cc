#include "server/http/origin_guard.h"

#include <algorithm>
#include <cctype>

#include "io/file/printable.h"
#include "server/http/http_head.h"

namespace celer::server {
namespace {

bool Contains(const std::vector<std::string>& list, std::string_view one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

ApiError Forbidden(std::string message, const char* code) {
  return {.status = 403, .message = std::move(message), .code = code};
}

// "https://name:8443" -> "name:8443"; "" for what is no origin of a server, such as "null".
std::string Authority(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? "" : LowerCase(origin.substr(at + 3));
}

// The media type alone: "application/json; charset=utf-8" -> "application/json".
std::string MediaType(std::string_view content_type) {
  std::string type = LowerCase(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.pop_back();
  return type;
}

}  // namespace

std::string HostName(std::string_view authority) {
  if (authority.starts_with('[')) {
    authority = authority.substr(0, authority.find(']') + 1);
  } else if (const size_t colon = authority.find(':');
             colon != std::string_view::npos && authority.find(':', colon + 1) == std::string_view::npos) {
    authority = authority.substr(0, colon);
  }
  if (authority.ends_with('.')) authority.remove_suffix(1);
  std::string name = LowerCase(authority);
  // An address of IPv6 as it is given to --host.
  if (name.find(':') != std::string::npos && !name.starts_with('[')) name = "[" + name + "]";
  return name;
}

std::string WrongHostName(std::string_view name) {
  if (name == "*") return "";
  const bool good =
      !name.empty() && name.size() <= 255 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':' || c == '[' || c == ']';
      });
  if (good) return "";
  return "--allowed-hosts '" + Printable(name, 60) +
         "': expected a host name such as chat.example.com, or '*'";
}

std::string WrongOrigin(std::string_view origin) {
  const std::string authority = Authority(origin);
  const size_t slash = authority.find('/');
  if (origin == "*" || (!authority.empty() && slash >= authority.size() - 1)) return "";
  return "--cors-origin '" + Printable(origin, 60) +
         "': expected the origin of a page such as https://chat.example.com, or '*'";
}

OriginGuard::OriginGuard(OriginGuardOptions options)
    : hosts_{"localhost", "127.0.0.1", "[::1]"},
      origins_(std::move(options.cors_origins)),
      has_keys_(options.has_keys),
      hosts_given_(!options.allowed_hosts.empty()) {
  for (const std::string& host : options.allowed_hosts) {
    all_hosts_ |= host == "*";
    hosts_.push_back(HostName(host));
  }
  all_origins_ = Contains(origins_, "*");
  for (std::string& origin : origins_) {
    origin = LowerCase(origin);
    if (origin.ends_with('/')) origin.pop_back();
  }
}

void OriginGuard::ListensOn(std::string_view host, bool loopback) {
  hosts_.push_back(HostName(host));
  loopback_ = loopback;
}

Refusal OriginGuard::CheckHost(const HttpRequest& request) const {
  // The names that resolve to other addresses are not known here; --allowed-hosts lists them.
  const bool needed = hosts_given_ || (loopback_ && !has_keys_);
  const std::string_view host = request.Header("host");
  // Every browser sends a Host; what comes without one is a probe that speaks HTTP/1.0.
  if (!needed || all_hosts_ || host.empty() || Contains(hosts_, HostName(host))) return {};
  const std::string name = Printable(HostName(host), 100);
  return Forbidden(
      "this server is not known as '" + name + "'; if it should be, start it with --allowed-hosts " + name,
      "host_not_allowed");
}

Refusal OriginGuard::CheckOrigin(const HttpRequest& request) const {
  const std::string_view origin = request.Header("origin");
  if (has_keys_ || origin.empty() || all_origins_ || ListsOrigin(origin)) return {};
  // The page that this server itself shows. A proxy in front may speak TLS where this server does not.
  if (const std::string from = Authority(origin); !from.empty() && from == LowerCase(request.Header("host")))
    return {};
  const std::string name = Printable(origin, 100);
  return Forbidden("pages of '" + name +
                       "' may not use this server; if they should, start it with --cors-origin " + name +
                       ", or with --api-key-file FILE",
                   "origin_not_allowed");
}

Refusal OriginGuard::CheckContentType(const HttpRequest& request) const {
  if (has_keys_ || all_origins_ || ListsOrigin(request.Header("origin"))) return {};
  const std::string_view given = request.Header("content-type");
  const std::string type = MediaType(given);
  if (type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"))) return {};
  std::string message = "the header Content-Type is " +
                        (given.empty() ? "missing" : "'" + Printable(given, 60) + "'") +
                        ", expected application/json";
  if (type == "application/x-www-form-urlencoded")
    message += "; with curl -d, add -H 'Content-Type: application/json'";
  return ApiError{.status = 415, .message = std::move(message), .code = "unsupported_media_type"};
}

bool OriginGuard::ListsOrigin(std::string_view origin) const {
  return !origin.empty() && (all_origins_ || Contains(origins_, LowerCase(origin)));
}

}  // namespace celer::server
