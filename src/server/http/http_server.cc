#include "server/http/http_server.h"

#include <fmt/format.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ctime>
#include <set>

#include "base/log.h"
#include "server/http/body_lease.h"
#include "server/http/http_head.h"

namespace celer::server {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxPipelined = 64 << 10;  // read ahead while a request is answered
constexpr size_t kMaxDiscarded = 32 << 20;  // of a body that was rejected
constexpr auto kLinger = std::chrono::seconds(5);

// "Sun, 06 Nov 1994 08:49:37 GMT", made once a second.
const std::string& DateHeader() {
  static std::time_t last = 0;
  static std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != last) {
    last = now;
    std::tm parts{};
    gmtime_r(&now, &parts);
    char buffer[64];
    text.assign(buffer, std::strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts));
  }
  return text;
}

class Session;

}  // namespace

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(EventLoop& loop, HttpOptions from, HttpHandlers to)
      : io(loop.io()), options(std::move(from)), handlers(std::move(to)), acceptor(io), retry(io) {}

  Status Open();
  void Accept();

  asio::io_context& io;
  HttpOptions options;
  HttpHandlers handlers;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::optional<ssl::context> tls;
  std::set<Session*> sessions;
  std::shared_ptr<std::atomic<int64_t>> body_bytes = std::make_shared<std::atomic<int64_t>>(0);
};

namespace {

class SessionExchange;

// One connection. Everything happens on the loop's thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<HttpServer::Impl> server, tcp::socket& lowest, std::string peer)
      : server_(std::move(server)),
        lowest_(lowest),
        peer_(std::move(peer)),
        buffer_(static_cast<size_t>(server_->options.max_header_bytes) + kMaxPipelined + kReadBytes),
        lease_(server_->body_bytes),
        read_timer_(server_->io),
        write_timer_(server_->io) {
    server_->sessions.insert(this);
  }
  virtual ~Session() { server_->sessions.erase(this); }

  virtual void Start() { Next(); }

  bool idle() const { return state_ == State::kIdle; }
  bool has_unsent() const { return write_pending_ && state_ != State::kClosed; }
  void Close();
  void Abandon();  // its exchange was destroyed without a response
  void TakeFacts(Exchange& exchange) {
    note_ = std::move(exchange.note);
    facts_ = std::move(exchange.facts);
  }
  void Send(HttpResponse response);
  void Begin(HttpResponse head);
  void WriteChunk(std::string_view chunk);
  void EndStream();

 protected:
  using Parser = http::request_parser<http::string_body>;

  virtual void ReadSome(asio::mutable_buffer into) = 0;  // then OnRead()
  virtual void ReadHead() = 0;                           // then OnHead()
  virtual void ReadBody() = 0;                           // some of it, then OnBody()
  virtual void WriteAll(asio::const_buffer from) = 0;    // then OnWritten()
  virtual void EndSending() = 0;

  void Next();
  void OnRead(ErrorCode error, size_t bytes);
  void OnHead(ErrorCode error);
  void OnBody(ErrorCode error);
  void OnWritten(ErrorCode error);
  void Arm(asio::steady_timer& timer, std::chrono::milliseconds limit, void (Session::*late)());
  void Disarm(asio::steady_timer& timer);

  std::shared_ptr<HttpServer::Impl> server_;
  tcp::socket& lowest_;
  std::string peer_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  BodyLease lease_;  // for the body in the parser
  std::string sending_;

 private:
  enum class State { kIdle, kHead, kBody, kAnswering, kClosing, kClosed };

  void Read();
  void StartHead();
  void FailedRead(ErrorCode error);
  void Refuse(int status, const std::string& message);
  bool RefuseBody(int64_t more);
  void Head(const HttpResponse& response, bool stream);
  void Queue(std::string_view data);
  void Flush();
  void Answered();
  void Log(int status, const char* note);
  void OnTimeout() { Abort("too slow"); }
  void OnReadTimeout() {
    linger_ = false;  // a read is under way
    Refuse(408, "the request did not arrive in time");
  }
  void Abort(const char* why);

  State state_ = State::kIdle;
  asio::steady_timer read_timer_, write_timer_;
  bool read_pending_ = false, write_pending_ = false;
  std::string waiting_;  // to be sent after sending_
  std::weak_ptr<SessionExchange> exchange_;
  std::string note_;
  HttpHeaders facts_;
  HttpRequest logged_;  // the request that is answered, for the log: its exchange may be gone by then
  int status_ = 0;
  int64_t sent_ = 0;
  size_t discarded_ = 0;
  bool linger_ = true;
  bool keep_alive_ = false, head_only_ = false, chunked_ = false, complete_ = false, begun_ = false;
};

class SessionExchange : public Exchange {
 public:
  SessionExchange(std::weak_ptr<Session> session, HttpRequest request, BodyLease lease)
      : session_(std::move(session)), lease_(std::move(lease)) {
    request_ = std::move(request);
  }
  ~SessionExchange() override {
    const auto session = session_.lock();
    if (!session || disconnected_) return;
    session->TakeFacts(*this);
    if (!complete_) session->Abandon();
  }
  void Send(HttpResponse response) override {
    const auto session = session_.lock();
    if (disconnected_ || complete_ || !session) return;
    complete_ = true;
    session->Send(std::move(response));
  }
  void Begin(HttpResponse head) override {
    if (const auto session = session_.lock(); session && !disconnected_) session->Begin(std::move(head));
  }
  void Write(std::string_view chunk) override {
    if (const auto session = session_.lock(); session && !disconnected_) session->WriteChunk(chunk);
  }
  void End() override {
    const auto session = session_.lock();
    if (disconnected_ || complete_ || !session) return;
    complete_ = true;
    session->EndStream();
  }
  bool disconnected() const override { return disconnected_; }
  void OnDisconnect(std::function<void()> handle) override { on_disconnect_ = std::move(handle); }

  void MarkDisconnected() {
    if (disconnected_ || complete_) return;
    disconnected_ = true;
    if (const auto handle = std::move(on_disconnect_)) handle();
  }

 private:
  std::weak_ptr<Session> session_;
  BodyLease lease_;
  std::function<void()> on_disconnect_;
  bool complete_ = false;
  std::atomic<bool> disconnected_ = false;
};

void Session::Arm(asio::steady_timer& timer, std::chrono::milliseconds limit, void (Session::*late)()) {
  timer.expires_after(limit);
  timer.async_wait([this, weak = weak_from_this(), late, &timer, at = timer.expiry()](ErrorCode error) {
    const auto self = weak.lock();
    // The handler of the previous deadline may already be queued when the timer is reset.
    if (!self || error || timer.expiry() != at) return;
    (this->*late)();
  });
}

// As cancel(), and a handler that is already queued becomes a no-op.
void Session::Disarm(asio::steady_timer& timer) {
  timer.expires_at(Clock::time_point::max());
}

void Session::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  Disarm(read_timer_);
  Disarm(write_timer_);
  ErrorCode ignored;
  lowest_.close(ignored);
}

// The client disconnected, or is too slow.
void Session::Abort(const char* why) {
  if (state_ == State::kClosed) return;
  const bool answering = state_ == State::kAnswering && !logged_.id.empty();
  const auto exchange = exchange_.lock();
  Close();
  if (exchange) exchange->MarkDisconnected();
  if (answering) Log(499, why);
}

void Session::Abandon() {
  asio::post(server_->io, [self = shared_from_this()] { self->Abort("left without an answer"); });
}

void Session::Read() {
  if (read_pending_) return;
  read_pending_ = true;
  ReadSome(buffer_.prepare(kReadBytes));
}

// The connection is free for another request.
void Session::Next() {
  state_ = State::kIdle;
  exchange_.reset();
  parser_.reset();
  Arm(read_timer_, server_->options.idle_timeout, &Session::Close);
  if (buffer_.size() == 0) return Read();
  if (!read_pending_) return StartHead();
  // A pipelined request arrived during the last response, and a read is pending: cancel that read.
  ErrorCode ignored;
  lowest_.cancel(ignored);
}

void Session::OnRead(ErrorCode error, size_t bytes) {
  read_pending_ = false;
  if (state_ == State::kClosed) return;
  if (state_ == State::kClosing) {
    discarded_ += bytes;
    if (error || discarded_ > kMaxDiscarded) return Close();
    return Read();
  }
  if (!error) buffer_.commit(bytes);
  if (state_ == State::kIdle) {
    if (buffer_.size() == 0) return Close();
    return StartHead();
  }
  if (state_ != State::kAnswering) return;
  if (error) return Abort("the client disconnected");
  if (buffer_.size() < kMaxPipelined) Read();
}

void Session::StartHead() {
  state_ = State::kHead;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_->options.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(server_->options.max_body_bytes));
  Arm(read_timer_, server_->options.header_timeout, &Session::OnReadTimeout);
  ReadHead();
}

void Session::FailedRead(ErrorCode error) {
  if (error == http::error::header_limit)
    return Refuse(431, fmt::format("the head is larger than {} bytes", server_->options.max_header_bytes));
  if (error == http::error::body_limit)
    return Refuse(413, fmt::format("the body is larger than {} bytes", server_->options.max_body_bytes));
  // A client that disconnects in the middle of a request gets no response.
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  if (error.category() == http::make_error_code(http::error::bad_method).category())
    return Refuse(400, fmt::format("this is not HTTP/1.1: {}", error.message()));
  Close();
}

void Session::OnHead(ErrorCode error) {
  if (state_ != State::kHead) return;
  logged_ = {};
  // A body that is too large by its Content-Length still has a valid head.
  if (error && error != http::error::body_limit) return FailedRead(error);
  const auto& head = parser_->get();
  logged_.method = std::string(View(head.method_string()));
  logged_.peer = peer_;
  logged_.arrived = Clock::now();
  const std::string wrong = CheckHead(head, &logged_);
  const std::string_view given = logged_.Header("x-request-id");
  logged_.id = IsValidRequestId(given) ? std::string(given) : NewId("req-");
  if (error) return FailedRead(error);
  head_only_ = logged_.method == "HEAD";
  keep_alive_ = parser_->keep_alive();
  chunked_ = head.version() == 11;
  if (!wrong.empty()) return Refuse(400, wrong);
  if (auto answer = server_->handlers.check(logged_)) {
    const bool has_body = parser_->chunked() || parser_->content_length().value_or(0) > 0;
    answer->close |= has_body;  // the rest of the body would be taken for a request
    state_ = State::kAnswering;
    Disarm(read_timer_);
    return Send(std::move(*answer));
  }
  if (parser_->content_length() && RefuseBody(static_cast<int64_t>(*parser_->content_length()))) return;
  state_ = State::kBody;
  if (!parser_->is_done() && LowerCase(logged_.Header("expect")) == "100-continue")
    Queue("HTTP/1.1 100 Continue\r\n\r\n");
  if (parser_->is_done()) return OnBody({});
  parser_->eager(true);
  Arm(read_timer_, server_->options.body_timeout, &Session::OnReadTimeout);
  ReadBody();
}

// Backpressure: whether that many more bytes exceed max_body_memory; then 429 was sent.
bool Session::RefuseBody(int64_t more) {
  const int64_t most = std::max(server_->options.max_body_memory, server_->options.max_body_bytes);
  const int64_t held = *server_->body_bytes;
  if (held + more <= most) return false;
  Refuse(429,
         fmt::format("the requests in flight hold {} bytes, {} are held at once; try again later, or raise "
                     "--max-body-memory",
                     held, most));
  return true;
}

void Session::OnBody(ErrorCode error) {
  if (state_ != State::kBody) return;
  if (error) return FailedRead(error);
  lease_.Resize(static_cast<int64_t>(parser_->get().body().size()));
  if (RefuseBody(0)) {
    lease_.Resize(0);
    parser_.reset();
    return;
  }
  if (!parser_->is_done()) return ReadBody();
  state_ = State::kAnswering;
  Disarm(read_timer_);
  HttpRequest request = logged_;
  request.body = std::move(parser_->get().body());
  const auto exchange =
      std::make_shared<SessionExchange>(weak_from_this(), std::move(request), std::move(lease_));
  exchange_ = exchange;
  complete_ = begun_ = false;
  if (buffer_.size() < kMaxPipelined) Read();  // detects a client that disconnects
  server_->handlers.handle(exchange);
}

void Session::Refuse(int status, const std::string& message) {
  state_ = State::kAnswering;
  Disarm(read_timer_);
  if (logged_.id.empty()) {
    logged_.id = NewId("req-");
    logged_.peer = peer_;
    logged_.arrived = Clock::now();
  }
  HttpResponse response = server_->handlers.refuse(logged_, status, message);
  response.close = true;
  Send(std::move(response));
}

void Session::Head(const HttpResponse& response, bool stream) {
  status_ = response.status;
  sent_ = 0;
  keep_alive_ = keep_alive_ && !response.close && (!stream || chunked_);
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: celer\r\nDate: {}\r\nX-Request-Id: {}\r\n",
                                 response.status, ReasonPhrase(response.status), DateHeader(), logged_.id);
  if (!response.content_type.empty()) head += "Content-Type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  if (stream) {
    if (chunked_) head += "Transfer-Encoding: chunked\r\n";
  } else if (response.status != 204 && response.status != 304) {
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  head += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  Queue(head);
}

void Session::Send(HttpResponse response) {
  if (state_ != State::kAnswering) return;
  server_->handlers.finish(logged_, &response);
  begun_ = complete_ = true;
  Head(response, false);
  if (!head_only_) {
    sent_ = static_cast<int64_t>(response.body.size());
    Queue(response.body);
  }
}

void Session::Begin(HttpResponse head) {
  if (state_ != State::kAnswering || begun_) return;
  server_->handlers.finish(logged_, &head);
  begun_ = true;
  Head(head, true);
}

void Session::WriteChunk(std::string_view chunk) {
  if (state_ != State::kAnswering || chunk.empty() || head_only_) return;
  if (waiting_.size() + sending_.size() > static_cast<size_t>(server_->options.max_unsent_bytes)) {
    if (const auto exchange = exchange_.lock()) exchange->note = "the client reads too slowly";
    asio::post(server_->io, [self = shared_from_this()] { self->OnTimeout(); });
    return;
  }
  sent_ += static_cast<int64_t>(chunk.size());
  if (!chunked_) return Queue(chunk);
  std::string framed;
  framed.reserve(chunk.size() + 16);
  fmt::format_to(std::back_inserter(framed), "{:x}\r\n", chunk.size());
  framed += chunk;
  framed += "\r\n";
  Queue(framed);
}

void Session::EndStream() {
  if (state_ != State::kAnswering) return;
  complete_ = true;
  if (chunked_ && !head_only_) return Queue("0\r\n\r\n");
  if (!write_pending_) Answered();
}

void Session::Queue(std::string_view data) {
  waiting_ += data;
  // Deferred to the end of the handler: the chunks of one engine step become one packet.
  if (!write_pending_) {
    write_pending_ = true;
    asio::post(server_->io, [self = shared_from_this()] { self->Flush(); });
  }
}

void Session::Flush() {
  if (state_ == State::kClosed) return;
  sending_.swap(waiting_);
  waiting_.clear();
  Arm(write_timer_, server_->options.write_timeout, &Session::OnTimeout);
  WriteAll(asio::buffer(sending_));
}

void Session::OnWritten(ErrorCode error) {
  write_pending_ = false;
  Disarm(write_timer_);
  if (sending_.capacity() > kMaxPipelined) sending_.shrink_to_fit();
  sending_.clear();
  if (state_ == State::kClosed) return;
  if (error) return Abort("the client disconnected");
  if (!waiting_.empty()) {
    write_pending_ = true;
    return Flush();
  }
  if (state_ == State::kAnswering && complete_) Answered();
}

void Session::Answered() {
  Log(status_, "");
  complete_ = begun_ = false;
  if (keep_alive_) return Next();
  // Lingering close: what the client still sends is read for a while. Closing at once would make the kernel
  // send RST, and the response could be lost.
  state_ = State::kClosing;
  EndSending();
  if (!linger_) return Close();
  Arm(read_timer_, std::chrono::duration_cast<std::chrono::milliseconds>(kLinger), &Session::Close);
  buffer_.consume(buffer_.size());
  Read();
}

void Session::Log(int status, const char* note) {
  HttpHandlers::Done done;
  done.status = status;
  done.bytes = sent_;
  done.seconds = std::chrono::duration<double>(Clock::now() - logged_.arrived).count();
  done.note = note;
  // The fields of an exchange that is already destroyed.
  if (const auto exchange = exchange_.lock()) TakeFacts(*exchange);
  done.facts = std::move(facts_);
  if (!note_.empty()) done.note = std::move(note_);
  facts_.clear();
  note_.clear();
  server_->handlers.log(logged_, done);
  logged_ = {};
}

template <class Stream>
class StreamSession : public Session {
 public:
  template <class... Args>
  StreamSession(std::shared_ptr<HttpServer::Impl> server, std::string peer, tcp::socket socket, Args&... args)
      : StreamSession(std::move(server), std::move(peer),
                      std::make_unique<Stream>(std::move(socket), args...)) {}

  void Start() override {
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      Next();
    } else {
      Arm(handshake_timer_, server_->options.header_timeout, &Session::Close);
      stream_->async_handshake(ssl::stream_base::server, [this, self = Self()](ErrorCode error) {
        Disarm(handshake_timer_);
        error ? Close() : Next();
      });
    }
  }

 private:
  StreamSession(std::shared_ptr<HttpServer::Impl> server, std::string peer, std::unique_ptr<Stream> stream)
      : Session(server, Lowest(*stream), std::move(peer)),
        stream_(std::move(stream)),
        handshake_timer_(server->io) {}

  static tcp::socket& Lowest(Stream& stream) {
    if constexpr (std::is_same_v<Stream, tcp::socket>)
      return stream;
    else
      return stream.next_layer();
  }
  std::shared_ptr<Session> Self() { return shared_from_this(); }

  void ReadSome(asio::mutable_buffer into) override {
    stream_->async_read_some(into,
                             [this, self = Self()](ErrorCode error, size_t bytes) { OnRead(error, bytes); });
  }
  void ReadHead() override {
    http::async_read_header(*stream_, buffer_, *parser_,
                            [this, self = Self()](ErrorCode error, size_t) { OnHead(error); });
  }
  void ReadBody() override {
    http::async_read_some(*stream_, buffer_, *parser_,
                          [this, self = Self()](ErrorCode error, size_t) { OnBody(error); });
  }
  void WriteAll(asio::const_buffer from) override {
    asio::async_write(*stream_, from, [this, self = Self()](ErrorCode error, size_t) { OnWritten(error); });
  }
  void EndSending() override {
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      ErrorCode ignored;
      stream_->shutdown(tcp::socket::shutdown_send, ignored);
    } else {
      stream_->async_shutdown([self = Self()](ErrorCode) { self->Close(); });
    }
  }

  std::unique_ptr<Stream> stream_;
  asio::steady_timer handshake_timer_;
};

std::string PeerName(const tcp::socket& socket) {
  ErrorCode error;
  const auto peer = socket.remote_endpoint(error);
  return error ? "unknown" : fmt::format("{}:{}", peer.address().to_string(), peer.port());
}

}  // namespace

Status HttpServer::Impl::Open() {
  ErrorCode error;
  if (options.tls_cert.empty() != options.tls_key.empty())
    return Error::Invalid("TLS needs both a certificate and a key");
  if (!options.tls_cert.empty()) {
    tls.emplace(ssl::context::tls_server);
    tls->set_options(ssl::context::no_sslv2 | ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                     ssl::context::no_tlsv1_1);
    tls->use_certificate_chain_file(options.tls_cert, error);
    if (error) return Error::Invalid(options.tls_cert, ": no certificate in PEM form: ", error.message());
    tls->use_private_key_file(options.tls_key, ssl::context::pem, error);
    if (error)
      return Error::Invalid(options.tls_key,
                            ": no private key in PEM form for that certificate: ", error.message());
  }
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty())
    return Error::Invalid("host '", options.host, "' is not an address of this machine: ", error.message());
  const tcp::endpoint endpoint = *found.begin();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return Error::Io("cannot listen on ", options.host, ":", options.port, ": ", error.message(),
                     "; is another server running there? --port takes another one");
  return {};
}

void HttpServer::Impl::Accept() {
  acceptor.async_accept([this, self = shared_from_this()](ErrorCode error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (error) {  // such as EMFILE: retried, because other connections will be closed
      log::Warning("a connection could not be accepted: {}", error.message());
      retry.expires_after(std::chrono::milliseconds(100));
      retry.async_wait([this, self](ErrorCode stopped) {
        if (!stopped) Accept();
      });
      return;
    }
    ErrorCode ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    if (static_cast<int64_t>(sessions.size()) >= options.max_connections) {
      const HttpResponse full = handlers.refuse(
          {}, 503,
          fmt::format("{} connections are open already (--max-connections)", options.max_connections));
      const std::string text = fmt::format(
          "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
          "Connection: close\r\n\r\n{}",
          full.content_type, full.body.size(), full.body);
      socket.non_blocking(true, ignored);
      if (!tls) socket.write_some(asio::buffer(text), ignored);
    } else {
      std::string peer = PeerName(socket);
      if (tls)
        std::make_shared<StreamSession<ssl::stream<tcp::socket>>>(self, std::move(peer), std::move(socket),
                                                                  *tls)
            ->Start();
      else
        std::make_shared<StreamSession<tcp::socket>>(self, std::move(peer), std::move(socket))->Start();
    }
    Accept();
  });
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(EventLoop& loop, HttpOptions options,
                                                       HttpHandlers handlers) {
  auto impl = std::make_shared<Impl>(loop, std::move(options), std::move(handlers));
  CELER_RETURN_IF_ERROR(impl->Open());
  impl->Accept();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  StopAccepting();
}

std::string HttpServer::url() const {
  ErrorCode error;
  const auto at = impl_->acceptor.local_endpoint(error);
  const std::string address = at.address().to_string();
  return fmt::format("{}://{}:{}", impl_->tls ? "https" : "http",
                     at.address().is_v6() ? "[" + address + "]" : address, at.port());
}
const std::string& HttpServer::host() const {
  return impl_->options.host;
}
bool HttpServer::loopback() const {
  ErrorCode error;
  const auto address = impl_->acceptor.local_endpoint(error).address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  return address.is_loopback();
}
int64_t HttpServer::body_bytes() const {
  return *impl_->body_bytes;
}
int64_t HttpServer::connections() const {
  return static_cast<int64_t>(impl_->sessions.size());
}
void HttpServer::StopAccepting() {
  ErrorCode ignored;
  impl_->acceptor.close(ignored);
  impl_->retry.cancel();
}
void HttpServer::CloseIdle() {
  std::vector<Session*> idle;
  for (Session* session : impl_->sessions)
    if (session->idle()) idle.push_back(session);
  for (Session* session : idle) session->Close();
}
bool HttpServer::HasUnsent() const {
  for (const Session* session : impl_->sessions)
    if (session->has_unsent()) return true;
  return false;
}

}  // namespace celer::server
