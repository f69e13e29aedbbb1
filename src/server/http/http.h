// A request over HTTP and the way to answer it. Who handles requests sees this; http_server.cc alone knows
// sockets.
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
  std::string query;    // what stands behind '?', as it is
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;    // X-Request-Id: the client's if it gave a decent one, else ours
  std::string peer;  // "127.0.0.1:40312"
  Clock::time_point arrived = {};

  std::string_view Header(std::string_view name) const;  // "" if there is none; name in lower case
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  bool close = false;  // the connection ends with it
};

// Splits "/path?query" and decodes the path. False if it is no path or has what a path must not: control
// characters, broken escapes.
bool ParseTarget(std::string_view target, HttpRequest* request);
// 1 to 128 of letters, digits and "._-".
bool IsValidRequestId(std::string_view id);
std::string NewId(std::string_view prefix);  // the prefix and 24 random hexadecimal digits
const char* ReasonPhrase(int status);

// One request and its answer. On the loop's thread only. Exactly one of Send() and Begin() is called; both do
// nothing once the client has gone.
class Exchange {
 public:
  virtual ~Exchange() = default;
  const HttpRequest& request() const { return request_; }
  // The body, which request() does not have any more.
  std::string TakeBody() { return std::exchange(request_.body, {}); }

  virtual void Send(HttpResponse response) = 0;
  // A stream: head, pieces, end. Pieces that the client does not fetch wait; when there are too many the
  // client counts as gone.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string_view piece) = 0;
  virtual void End() = 0;
  virtual bool gone() const = 0;  // from any thread
  // Called once if the client leaves, or reads too slowly, before the answer is complete.
  virtual void OnGone(std::function<void()> handle) = 0;

  // For the log line: why it ended as it did, and more fields with their values.
  std::string note;
  HttpHeaders facts;

 protected:
  HttpRequest request_;
};

}  // namespace celer::server
