// CSRF and DNS rebinding protection for a server without API keys. A browser lets any page send requests to
// 127.0.0.1, and by DNS rebinding (a name of the attacker's that resolves to 127.0.0.1) read the answers,
// too. Such a request is recognized by its Host, its Origin, or a Content-Type that needs no CORS preflight.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace celer::server {

struct OriginGuardOptions {
  std::vector<std::string> allowed_hosts = {};  // names besides the server's own; "*": any
  std::vector<std::string> cors_origins = {};   // "https://page.example"; "*": any
  bool has_keys = false;                        // a page has no key, so no check is needed
};

class OriginGuard {
 public:
  explicit OriginGuard(OriginGuardOptions options);

  // Where the server listens, as configured. Until then a loopback address is assumed.
  void ListensOn(std::string_view host, bool loopback);

  // 403 if the request comes from a page of another origin.
  Refusal CheckHost(const HttpRequest& request) const;
  Refusal CheckOrigin(const HttpRequest& request) const;
  // 415 if the Content-Type is not JSON: a page can send some other types without a preflight.
  Refusal CheckContentType(const HttpRequest& request) const;

  bool AllowsAllOrigins() const { return all_origins_; }
  bool ListsOrigin(std::string_view origin) const;  // by --cors-origin

 private:
  std::vector<std::string> hosts_;  // in lower case, without a port
  std::vector<std::string> origins_;
  bool all_hosts_ = false, all_origins_ = false, has_keys_, hosts_given_, loopback_ = true;
};

// "example.com:8000" and "[::1]:8000" without the port, in lower case and without a dot at the end.
std::string HostName(std::string_view authority);
// One value of --allowed-hosts or --cors-origin: "" if a browser could send it, else what is wrong with it.
std::string WrongHostName(std::string_view name);
std::string WrongOrigin(std::string_view origin);

}  // namespace celer::server
