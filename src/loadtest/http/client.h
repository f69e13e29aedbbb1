// An HTTP/1.1 client for load: many requests at once on one thread, connections used again, answers as they
// come, TLS if the address says so.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http/event_loop.h"

namespace celer::cli {

struct ServerUrl {
  bool tls = false;
  std::string host, port;
  std::string base;  // before "/chat/completions": "/v1" unless the address has a path

  // "http://127.0.0.1:8000", "https://example.org/openai/v1".
  static Result<ServerUrl> Parse(const std::string& text);
  std::string Origin() const;  // "http://127.0.0.1:8000"
};

struct HttpClientOptions {
  ServerUrl url = {};
  std::string api_key = {};
  bool insecure = false;   // take any certificate
  double timeout_s = 600;  // of a whole request
};

struct HttpFailure {
  std::string kind;  // "connect", "tls", "timeout", "broken": few, to be counted
  std::string message;
};

// What happens to a request, on the loop's thread.
struct HttpReply {
  std::function<void(int status, std::string_view content_type)> on_head;
  std::function<void(std::string_view piece)> on_body;                    // as it comes
  std::function<void(const std::optional<HttpFailure>& failure)> on_end;  // always, and last
};

class HttpClient {
 public:
  // Looks the host up; connects later.
  static Result<std::unique_ptr<HttpClient>> Make(server::EventLoop& loop, const HttpClientOptions& options);
  ~HttpClient();

  // On the loop's thread. `method` is GET or POST; `target` begins with a slash.
  void Send(std::string_view method, const std::string& target, std::string_view json, HttpReply reply);

  struct Impl;

 private:
  explicit HttpClient(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};
// One request by itself.
Result<HttpAnswer> Fetch(const HttpClientOptions& options, std::string_view method, const std::string& target,
                         std::string_view json);

// Server-sent events: gives the data of each event that is complete. Comments and other fields are left out.
class EventStream {
 public:
  void Push(std::string_view piece, const std::function<void(std::string_view data)>& on_data);

 private:
  void Line(std::string_view line, const std::function<void(std::string_view data)>& on_data);

  std::string rest_;  // a line that is not complete
  std::string data_;
  bool has_data_ = false;
};

}  // namespace celer::cli
