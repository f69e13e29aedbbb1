#include "server/service/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/log.h"
#include "server/api/params.h"
#include "server/page/page.h"

namespace celer::server {
namespace {

constexpr auto kTick = std::chrono::seconds(1);

// A route's path that ends with '/' stands for all that begin with it.
bool Matches(std::string_view route, std::string_view path) {
  const bool prefix = route.size() > 1 && route.ends_with('/');
  return prefix ? path.starts_with(route) && path.size() > route.size() : path == route;
}

std::string Timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char buffer[32];
  return {buffer, std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace

Service::Service(EventLoop& loop, ServiceOptions options, ModelLoader loader)
    : loop_(loop),
      options_(std::move(options)),
      loader_(std::move(loader)),
      guard_({.allowed_hosts = options_.allowed_hosts,
              .cors_origins = options_.cors_origins,
              .has_keys = options_.keys.Required()}),
      responses_(options_.max_responses, options_.max_response_bytes),
      workers_(std::make_unique<WorkerPool>(options_.workers)) {
  tick_ = loop_.After(kTick, [this] { Tick(); });
}

Service::~Service() {
  alive_.reset();
  if (loading_.joinable()) loading_.join();
  workers_.reset();
  for (auto& [id, generation] : generations_) generation->Cancel();
  engine_.reset();
}

void Service::UseServer(HttpServer* server) {
  server_ = server;
  guard_.ListensOn(server->host(), server->loopback());
}

HttpHandlers Service::Handlers() {
  return {.check = [this](const HttpRequest& request) { return Check(request); },
          .handle = [this](std::shared_ptr<Exchange> exchange) { Handle(exchange); },
          .refuse =
              [this](const HttpRequest& request, int status, const std::string& message) {
                ApiError error{.status = status, .message = message};
                if (status == 429) error = *TooManyRequests("bytes", message, 1);
                return error.ToResponse(FormOf(request));
              },
          .finish = [this](const HttpRequest& request,
                           HttpResponse* response) { FinishHeaders(request, response); },
          .log = [this](const HttpRequest& request, const HttpHandlers::Done& done) { Log(request, done); }};
}

// ---- lifecycle of the engine ----

void Service::Load(std::function<void(const Status&)> ready) {
  if (loading_.joinable()) loading_.join();
  state_ = State::kLoading;
  loading_ = std::thread([this, ready = std::move(ready)] {
    auto loaded = std::make_shared<Result<LoadedModel>>(loader_());
    loop_.Post([this, ready, loaded, alive = std::weak_ptr<int>(alive_)] {
      if (alive.expired()) return;
      if (!*loaded) return ready(loaded->error());
      model_ = (*loaded)->model;
      machine_ = (*loaded)->machine;
      engine_ = std::move((*loaded)->engine);
      ++engines_;
      last_stats_ = {};
      if (state_ == State::kLoading) state_ = State::kReady;
      ready({});
    });
  });
}

void Service::OnDeviceFault() {
  if (state_ == State::kFaulted) return;
  const auto fault = engine_->fault();
  log::Warning("the device failed: {}", fault ? fault->message() : "no reason was given");
  state_ = State::kFaulted;
  exit_code_ = 1;
  // Requests in flight get their errors first; then the process exits, or the model is reloaded.
  loop_.Post([this] {
    if (!options_.reload_on_fault) return Drain();
    engine_.reset();
    Load([this](const Status& status) {
      if (status) {
        exit_code_ = 0;
        log::Warning("the model was reloaded; requests are accepted");
        return;
      }
      log::Warning("the model could not be reloaded: {}", status.error().message());
      state_ = State::kFaulted;
      Drain();
    });
  });
}

void Service::Drain() {
  if (state_ == State::kDraining) return loop_.Stop();  // a second signal: at once
  const bool broken = state_ == State::kFaulted || state_ == State::kLoading;
  state_ = State::kDraining;
  const auto grace = broken ? std::chrono::milliseconds(0) : options_.drain_grace;
  drain_end_ = Clock::now() + grace + options_.drain_limit;
  if (!broken) log::Info("draining: {} requests in flight", generations_.size());
  drain_timer_ = loop_.After(grace, [this] { StopIfDrained(); });
}

void Service::StopIfDrained() {
  const bool late = Clock::now() >= drain_end_;
  if (late)
    for (auto& [id, generation] : std::exchange(generations_, {})) {
      generation->Fail({.status = 503, .message = "the server is shutting down", .code = "shutting_down"});
      generation->Cancel();
    }
  const bool busy = !generations_.empty() || jobs_ > 0 || (server_ && server_->HasUnsent());
  if (!busy || Clock::now() >= drain_end_ + std::chrono::seconds(2)) return loop_.Stop();
  drain_timer_ = loop_.After(std::chrono::milliseconds(20), [this] { StopIfDrained(); });
}

// ---- every request ----

const Service::Route* Service::FindRoute(const HttpRequest& request, bool* other_method) {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route& route : Routes()) {
    if (!Matches(route.path, request.path)) continue;
    if (method == route.method) return &route;
    *other_method = true;
  }
  // The page's other files are routes like the page.
  for (const PageFile& file : PageFiles())
    if (request.path == file.path && method == "GET") return &Routes()[0];
  return nullptr;
}

// By path, or by Anthropic's header on routes that both APIs have: /v1/models.
ApiForm Service::FormOf(const HttpRequest& request) {
  const bool anthropic = request.path == "/v1/messages" || request.path.starts_with("/v1/messages/") ||
                         !request.Header("anthropic-version").empty();
  return anthropic ? ApiForm::kAnthropic : ApiForm::kOpenAi;
}

std::optional<HttpResponse> Service::CheckKey(const HttpRequest& request) const {
  if (options_.keys.Allows(request)) return std::nullopt;
  HttpResponse response =
      ApiError{.status = 401,
               .message = "the API key is missing or wrong; send 'Authorization: Bearer KEY'",
               .code = "invalid_api_key"}
          .ToResponse(FormOf(request));
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::optional<HttpResponse> Service::Check(const HttpRequest& request) const {
  const ApiForm form = FormOf(request);
  bool other_method = false;
  const Route* route = FindRoute(request, &other_method);
  // Health probes of load balancers may send any Host, and get nothing but a status.
  const bool probe = route && (route->handle == &Service::Health || route->handle == &Service::Live);
  Refusal refusal = probe ? Refusal() : guard_.CheckHost(request);
  if (!refusal) refusal = guard_.CheckOrigin(request);
  if (refusal) return refusal->ToResponse(form);
  if (request.method == "OPTIONS") {  // CORS preflight
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers.emplace_back("Allow", "GET, POST, DELETE, OPTIONS");
    return response;
  }
  if (!route || !route->open)
    if (auto response = CheckKey(request)) return response;
  if (!route && other_method) {
    HttpResponse response = ApiError{.status = 405,
                                     .message = request.path + " does not take " + request.method,
                                     .code = "method_not_allowed"}
                                .ToResponse(form);
    std::string allowed = "OPTIONS";
    for (const Route& one : Routes())
      if (Matches(one.path, request.path)) allowed += std::string(", ") + one.method;
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (!route)
    return ApiError{.status = 404,
                    .message = "there is no " + Quoted(request.path) + " here; /openapi.json lists what is",
                    .code = "not_found"}
        .ToResponse(form);
  if (route->endpoint != 0)
    if (const auto wrong = guard_.CheckContentType(request)) return wrong->ToResponse(form);
  return std::nullopt;
}

void Service::Handle(const std::shared_ptr<Exchange>& exchange) {
  bool ignored = false;
  const Route* route = FindRoute(exchange->request(), &ignored);
  try {
    (this->*route->handle)(exchange);
  } catch (const std::exception& error) {
    // An exception fails this request alone. The reason goes to the log, not to the client.
    log::Warning("request {}: {}", exchange->request().id, error.what());
    exchange->note = error.what();
    exchange->Send(ApiError{.status = 500, .message = "internal error; see the server's log"}.ToResponse(
        FormOf(exchange->request())));
  }
}

void Service::FinishHeaders(const HttpRequest& request, HttpResponse* response) const {
  response->headers.emplace_back("X-Content-Type-Options", "nosniff");
  const std::string_view origin = request.Header("origin");
  if (!guard_.ListsOrigin(origin)) return;
  const bool all = guard_.AllowsAllOrigins();
  response->headers.emplace_back("Access-Control-Allow-Origin", all ? "*" : std::string(origin));
  response->headers.emplace_back("Access-Control-Expose-Headers",
                                 "X-Request-Id, Retry-After, X-Celer-Ignored, X-Celer-Warning");
  if (!all) response->headers.emplace_back("Vary", "Origin");
  if (request.method != "OPTIONS") return;
  response->headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  response->headers.emplace_back("Access-Control-Allow-Headers", "*, Authorization");
  response->headers.emplace_back("Access-Control-Max-Age", "3600");
}

void Service::Log(const HttpRequest& request, const HttpHandlers::Done& done) {
  bool ignored = false;
  const Route* route = request.path.empty() ? nullptr : FindRoute(request, &ignored);
  ++metrics_.http_requests[{route ? route->path : "other", done.status}];
  const bool probe =
      route && (request.path == "/health" || request.path == "/metrics" || request.path == "/health/live");
  if (!options_.log_requests || (probe && done.status == 200 && !options_.log_probes)) return;
  std::string line;
  if (options_.log_json) {
    Json json = {{"time", Timestamp()},      {"event", "request"},
                 {"id", request.id},         {"peer", request.peer},
                 {"method", request.method}, {"path", request.path.substr(0, 256)},
                 {"status", done.status},    {"ms", std::round(done.seconds * 1e5) / 100},
                 {"bytes", done.bytes}};
    for (const auto& [name, value] : done.facts) {  // values are text; numbers become JSON numbers
      const Json number = Json::parse(value, nullptr, false);
      json[name] = number.is_number() ? number : Json(value);
    }
    if (!done.note.empty()) json["note"] = done.note;
    line = JsonText(json);
  } else {
    line = fmt::format("{} request id={} peer={} method={} path={} status={} ms={:.2f} bytes={}", Timestamp(),
                       request.id, request.peer, request.method, JsonText(Json(request.path.substr(0, 256))),
                       done.status, done.seconds * 1e3, done.bytes);
    for (const auto& [name, value] : done.facts) line += " " + name + "=" + value;
    if (!done.note.empty()) line += " note=" + JsonText(Json(done.note));
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

const char* Service::NotReady() const {
  switch (state_) {
    case State::kLoading:
      return "the model is loading";
    case State::kFaulted:
      return "the device failed";
    case State::kDraining:
      return Clock::now() < drain_end_ - options_.drain_limit ? nullptr : "the server is shutting down";
    case State::kReady:
      return nullptr;
  }
  return nullptr;
}

Refusal Service::CheckReady() const {
  if (const char* why = NotReady())
    return ApiError{.status = 503, .message = why, .code = "not_ready", .retry_after = 1};
  return {};
}

// ---- once a second ----

void Service::Tick() {
  tick_ = loop_.After(kTick, [this] { Tick(); });
  const auto now = Clock::now();
  for (const auto& [id, generation] : generations_) generation->Ping(now, options_.ping_interval);
  if (engine_) {
    const EngineStats stats = engine_->stats();
    if (stats.busy_seconds > last_stats_.busy_seconds) {
      metrics_.limit = LimitShare::Between(last_stats_, stats);
      const double rate = metrics_.limit.tokens_per_s;
      tokens_per_second_ = tokens_per_second_ == 0 ? rate : 0.7 * tokens_per_second_ + 0.3 * rate;
    }
    last_stats_ = stats;
  }
}

Metrics::Now Service::Now() const {
  Metrics::Now now;
  if (model_) {
    now.model = model_->name;
    now.info = model_->info;
    now.prefix_cache = model_->prefix_cache;
  }
  if (engine_) now.engine = engine_->stats();
  now.connections = server_ ? server_->connections() : 0;
  now.body_bytes = server_ ? server_->body_bytes() : 0;
  now.jobs = jobs_;
  now.healthy = state_ == State::kReady;
  return now;
}

}  // namespace celer::server
