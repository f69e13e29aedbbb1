#include "loadtest/http/client.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <type_traits>
#include <vector>

namespace celer::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

class Connection;

}  // namespace

struct HttpClient::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& context, HttpClientOptions from) : io(context), options(std::move(from)) {}

  asio::io_context& io;
  HttpClientOptions options;
  std::optional<ssl::context> tls;
  std::vector<tcp::endpoint> endpoints;
  std::vector<std::shared_ptr<Connection>> idle;  // open, and free for the next request

  Status Open();
  std::shared_ptr<Connection> NewConnection();
};

namespace {

// One request after the other on one socket. While a request runs, its handlers hold the connection.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpClient::Impl> client, tcp::socket& lowest)
      : client_(client), lowest_(lowest), timer_(client->io) {}
  virtual ~Connection() = default;

  void Run(std::string request, HttpReply reply) {
    request_ = std::move(request);
    reply_ = std::move(reply);
    running_ = true;
    answered_ = told_head_ = timed_out_ = false;
    timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(client_->options.timeout_s)));
    timer_.async_wait([self = shared_from_this(), number = ++number_](ErrorCode error) {
      if (!error && self->running_ && self->number_ == number) self->TimedOut();
    });
    if (open_) return Write();
    asio::async_connect(lowest_, client_->endpoints,
                        [self = shared_from_this()](ErrorCode error, const tcp::endpoint&) {
                          if (error) return self->Failed("connect", error);
                          ErrorCode ignored;
                          self->lowest_.set_option(tcp::no_delay(true), ignored);
                          self->Handshake();
                        });
  }

 protected:
  virtual void Handshake() = 0;
  virtual void WriteAll(asio::const_buffer from) = 0;
  virtual void ReadSome() = 0;

  void Write() {
    open_ = true;
    parser_.emplace();
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    parser_->eager(true);
    WriteAll(asio::buffer(request_));
  }
  void OnWritten(ErrorCode error) {
    // A server that refuses a request may close before it has read all of it: its answer says why.
    if (error && error != asio::error::broken_pipe && error != asio::error::connection_reset)
      return Failed("broken", error);
    ReadSome();
  }
  // Beast's own reading would go on until the message is complete: pieces are to be seen when they come.
  void OnRead(ErrorCode error, size_t bytes) {
    answered_ |= bytes > 0;
    buffer_.commit(bytes);
    if (error == asio::error::eof && parser_->got_some()) {
      error = {};
      parser_->put_eof(error);
    }
    while (!error && buffer_.size() > 0 && !parser_->is_done())
      buffer_.consume(parser_->put(buffer_.data(), error));
    if (error && error != http::error::need_more) return Failed("broken", error);
    if (parser_->is_header_done()) {
      if (!told_head_) {
        told_head_ = true;
        const auto type = parser_->get()[http::field::content_type];
        reply_.on_head(static_cast<int>(parser_->get().result_int()), {type.data(), type.size()});
      }
      std::string& body = parser_->get().body();
      if (!body.empty()) reply_.on_body(body);
      body.clear();
    }
    if (!parser_->is_done()) return ReadSome();
    const bool again = parser_->keep_alive();
    if (!again) Close();
    End({}, again);
  }
  void Failed(const char* kind, ErrorCode error) {
    Close();
    // A server may close a connection that nobody uses just when the next request is sent on it.
    if (used_before_ && !answered_ && !timed_out_) {
      const auto fresh = client_->NewConnection();
      running_ = false;
      timer_.cancel();
      return fresh->Run(std::move(request_), std::move(reply_));
    }
    if (timed_out_)
      return End(
          HttpFailure{"timeout", fmt::format("no whole answer within {:g} s", client_->options.timeout_s)},
          false);
    End(HttpFailure{kind, error.message()}, false);
  }

  std::shared_ptr<HttpClient::Impl> client_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;

 private:
  void TimedOut() {
    timed_out_ = true;
    ErrorCode ignored;
    lowest_.close(ignored);  // what waits on it fails
  }
  void Close() {
    open_ = false;
    buffer_.consume(buffer_.size());
    ErrorCode ignored;
    lowest_.close(ignored);
  }
  void End(const std::optional<HttpFailure>& failure, bool again) {
    running_ = false;
    timer_.cancel();
    used_before_ = true;
    const HttpReply reply = std::move(reply_);
    reply_ = {};
    if (again) client_->idle.push_back(shared_from_this());
    reply.on_end(failure);
  }

  tcp::socket& lowest_;
  asio::steady_timer timer_;
  std::string request_;
  HttpReply reply_;
  int64_t number_ = 0;  // of this request
  bool open_ = false, running_ = false, used_before_ = false;
  bool answered_ = false, told_head_ = false, timed_out_ = false;  // of this request
};

template <class Stream>
class ConnectionOf : public Connection {
 public:
  ConnectionOf(std::shared_ptr<HttpClient::Impl> client, std::unique_ptr<Stream> stream)
      : Connection(std::move(client), Lowest(*stream)), stream_(std::move(stream)) {}

 private:
  static constexpr bool kPlain = std::is_same_v<Stream, tcp::socket>;

  static tcp::socket& Lowest(Stream& stream) {
    if constexpr (kPlain)
      return stream;
    else
      return stream.next_layer();
  }
  std::shared_ptr<ConnectionOf> Self() { return std::static_pointer_cast<ConnectionOf>(shared_from_this()); }

  void Handshake() override {
    if constexpr (kPlain) {
      Write();
    } else {
      ErrorCode is_name;
      asio::ip::make_address(client_->options.url.host, is_name);
      if (is_name) SSL_set_tlsext_host_name(stream_->native_handle(), client_->options.url.host.c_str());
      stream_->async_handshake(ssl::stream_base::client, [self = Self()](ErrorCode error) {
        error ? self->Failed("tls", error) : self->Write();
      });
    }
  }
  void WriteAll(asio::const_buffer from) override {
    asio::async_write(*stream_, from, [self = Self()](ErrorCode error, size_t) { self->OnWritten(error); });
  }
  void ReadSome() override {
    constexpr size_t kMost = 16 << 10;
    stream_->async_read_some(buffer_.prepare(kMost),
                             [self = Self()](ErrorCode error, size_t bytes) { self->OnRead(error, bytes); });
  }

  std::unique_ptr<Stream> stream_;
};

}  // namespace

Status HttpClient::Impl::Open() {
  const ServerUrl& url = options.url;
  ErrorCode error;
  tcp::resolver resolver(io);
  for (const auto& found : resolver.resolve(url.host, url.port, error)) endpoints.push_back(found.endpoint());
  if (error || endpoints.empty())
    return Error::Io(url.Origin(), ": the host cannot be found: ", error.message());
  if (!url.tls) return {};
  tls.emplace(ssl::context::tls_client);
  if (options.insecure) return {};
  tls->set_default_verify_paths(error);  // or what SSL_CERT_FILE names
  tls->set_verify_mode(ssl::verify_peer);
  tls->set_verify_callback(ssl::host_name_verification(url.host));
  return {};
}

std::shared_ptr<Connection> HttpClient::Impl::NewConnection() {
  if (tls)
    return std::make_shared<ConnectionOf<ssl::stream<tcp::socket>>>(
        shared_from_this(), std::make_unique<ssl::stream<tcp::socket>>(io, *tls));
  return std::make_shared<ConnectionOf<tcp::socket>>(shared_from_this(), std::make_unique<tcp::socket>(io));
}

HttpClient::HttpClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() {
  impl_->idle.clear();  // they hold the client, too
}

Result<std::unique_ptr<HttpClient>> HttpClient::Make(server::EventLoop& loop,
                                                     const HttpClientOptions& options) {
  auto impl = std::make_shared<Impl>(loop.io(), options);
  CELER_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

void HttpClient::Send(std::string_view method, const std::string& target, std::string_view json,
                      HttpReply reply) {
  const ServerUrl& url = impl_->options.url;
  std::string request =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: celer-bench\r\nAccept: */*\r\n", method, target,
                  url.Origin().substr(url.Origin().find("//") + 2));
  if (!impl_->options.api_key.empty()) request += "Authorization: Bearer " + impl_->options.api_key + "\r\n";
  if (method != "GET")
    request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", json.size());
  request += "\r\n";
  request += json;
  std::shared_ptr<Connection> connection;
  if (impl_->idle.empty()) {
    connection = impl_->NewConnection();
  } else {
    connection = std::move(impl_->idle.back());
    impl_->idle.pop_back();
  }
  connection->Run(std::move(request), std::move(reply));
}

Result<HttpAnswer> Fetch(const HttpClientOptions& options, std::string_view method, const std::string& target,
                         std::string_view json) {
  server::EventLoop loop;
  CELER_ASSIGN(const auto client, HttpClient::Make(loop, options));
  HttpAnswer answer;
  std::optional<HttpFailure> failed;
  client->Send(method, target, json,
               {.on_head = [&](int status, std::string_view) { answer.status = status; },
                .on_body = [&](std::string_view piece) { answer.body += piece; },
                .on_end =
                    [&](const std::optional<HttpFailure>& failure) {
                      failed = failure;
                      loop.Stop();
                    }});
  loop.Run();
  if (failed) return Error::Io(options.url.Origin(), ": ", failed->kind, ": ", failed->message);
  return answer;
}

}  // namespace celer::cli
