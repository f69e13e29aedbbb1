// An HTTP request and its response, as handlers see them; only http_server.cc deals with sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/event_loop.h"

namespace celer::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // "/v1/models", percent-decoded
  std::string query;    // behind '?', not decoded
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;    // X-Request-Id: the client's if it is valid, else generated
  std::string peer;  // "127.0.0.1:40312"
  Clock::time_point arrived = {};

  std::string_view Header(std::string_view name) const;  // "" if there is none; name in lower case
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  bool close = false;  // Connection: close
};

// Splits "/path?query" and decodes the path. False if it is no path or has what a path must not: control
// characters, broken escapes.
bool ParseTarget(std::string_view target, HttpRequest* request);
// 1 to 128 of letters, digits and "._-".
bool IsValidRequestId(std::string_view id);
std::string NewId(std::string_view prefix);  // the prefix and 24 random hexadecimal digits
const char* ReasonPhrase(int status);

// One request and its response. On the loop's thread only. Exactly one of Send() and Begin() is called; both
// do nothing once the client has disconnected.
class Exchange {
 public:
  virtual ~Exchange() = default;
  const HttpRequest& request() const { return request_; }
  // The body, which request() does not have any more.
  std::string TakeBody() { return std::exchange(request_.body, {}); }

  virtual void Send(HttpResponse response) = 0;
  // A streamed response: head, chunks, end. Chunks that the client does not read are buffered; above
  // max_unsent_bytes the client is disconnected.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string_view chunk) = 0;
  virtual void End() = 0;
  virtual bool disconnected() const = 0;  // from any thread
  // Called once if the client disconnects, or reads too slowly, before the response is complete.
  virtual void OnDisconnect(std::function<void()> handle) = 0;

  // For the access log: why it ended, and more fields.
  std::string note;
  HttpHeaders facts;

 protected:
  HttpRequest request_;
};

}  // namespace celer::server
