// HTTP/1.1 and TLS on one thread: keep-alive, pipelining, streams, and a bound on everything a client can
// make the server hold or wait for.
//
// A client that closes its sending side counts as gone: a request whose client left must not go on computing,
// and TCP does not tell the two apart.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "server/http/http.h"

namespace celer::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any that is free
  std::string tls_cert = {}, tls_key = {};
  int64_t max_header_bytes = 32 << 10;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_connections = 1024;
  int64_t max_body_memory = 256 << 20;  // of all requests that are read or answered; at least max_body_bytes
  int64_t max_unsent_bytes = 1 << 20;   // of a stream that the client does not fetch
  std::chrono::milliseconds header_timeout{10'000};  // for a whole head, from its first byte
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds write_timeout{30'000};
};

struct HttpHandlers {
  // With the head, before the body is read: an answer here ends the request.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check;
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // The answer to a request that is no HTTP, too large, too slow or one too many. Of the request, what was
  // read by then.
  std::function<HttpResponse(const HttpRequest&, int status, const std::string& message)> refuse;
  // Every answer passes here before it is sent.
  std::function<void(const HttpRequest&, HttpResponse*)> finish;
  struct Done {
    int status = 0;  // 499: the client left before the answer was complete
    int64_t bytes = 0;
    double seconds = 0;
    std::string note = {};
    HttpHeaders facts = {};
  };
  std::function<void(const HttpRequest&, const Done&)> log;
};

class HttpServer {
 public:
  // Listens from here on.
  static Result<std::unique_ptr<HttpServer>> Listen(EventLoop& loop, HttpOptions options,
                                                    HttpHandlers handlers);
  ~HttpServer();

  std::string url() const;          // "http://127.0.0.1:8000"
  const std::string& host() const;  // as it was asked for
  bool loopback() const;            // only this machine can reach it
  int64_t connections() const;
  int64_t body_bytes() const;  // of requests that are read or answered
  void StopAccepting();
  void CloseIdle();  // connections that wait for a request
  bool HasUnsent() const;

  struct Impl;

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace celer::server
