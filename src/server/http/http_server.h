// HTTP/1.1 and TLS on one thread: keep-alive, pipelining, chunked streams, and a limit on everything that a
// client can make the server buffer or wait for.
//
// A client that closes its sending side (half-close) counts as disconnected: TCP cannot tell the two apart,
// and a request whose client has disconnected must not go on computing.
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
  int64_t max_body_memory = 256 << 20;               // of all requests in flight; at least max_body_bytes
  int64_t max_unsent_bytes = 1 << 20;                // of a stream that the client does not read
  std::chrono::milliseconds header_timeout{10'000};  // for a whole head, from its first byte
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds write_timeout{30'000};
};

struct HttpHandlers {
  // Called with the head, before the body is read: a response here ends the request.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check;
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // The error response to a request that is not HTTP, too large, too slow or above a limit. The request holds
  // what was read by then.
  std::function<HttpResponse(const HttpRequest&, int status, const std::string& message)> refuse;
  // Called with every response before it is sent.
  std::function<void(const HttpRequest&, HttpResponse*)> finish;
  struct Done {
    int status = 0;  // 499 (nginx): the client disconnected before the response was complete
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
  const std::string& host() const;  // as configured
  bool loopback() const;            // bound to a loopback address
  int64_t connections() const;
  int64_t body_bytes() const;  // of requests in flight
  void StopAccepting();
  void CloseIdle();  // keep-alive connections between requests
  bool HasUnsent() const;

  struct Impl;

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace celer::server
