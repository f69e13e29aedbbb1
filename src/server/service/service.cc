#include "server/service/service.h"

#include "base/log.h"
#include "server/api/adapters.h"

namespace celer::server {
namespace {

constexpr auto kTick = std::chrono::seconds(1);

}  // namespace

Service::Service(EventLoop& loop, ServiceOptions options, ModelLoader loader)
    : loop_(loop),
      options_(std::move(options)),
      loader_(std::move(loader)),
      guard_({.allowed_hosts = options_.allowed_hosts,
              .cors_origins = options_.cors_origins,
              .has_keys = options_.keys.Required()}),
      responses_(options_.max_responses, options_.max_response_bytes),
      admission_({.max_jobs = options_.max_jobs,
                  .max_queue = options_.max_queue,
                  .max_queue_tokens = options_.max_queue_tokens,
                  .max_ttft = options_.max_ttft},
                 metrics_),
      key_limits_(options_.key_limits),
      workers_(std::make_unique<WorkerPool>(options_.workers)) {
  tick_ = loop_.After(kTick, [this] { Tick(); });
}

Service::~Service() {
  alive_.reset();
  if (loading_.joinable()) loading_.join();
  workers_.reset();
  for (auto& [id, generation] : generations_) generation->Cancel();
  replicas_.reset();
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
                if (status == 429) error = *admission_.TooManyRequests("bytes", message, 1);
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
  // After a fault also the adapters that clients had loaded.
  std::vector<LoraSpec> adapters;
  if (model_ && model_->adapters)
    for (const Adapters::Info& info : model_->adapters->List())
      adapters.push_back({.name = info.name, .path = info.path, .scale = info.scale});
  loading_ = std::thread([this, adapters = std::move(adapters), ready = std::move(ready)] {
    auto loaded = std::make_shared<Result<LoadedModel>>(loader_());
    for (const LoraSpec& spec : adapters)
      if (*loaded && (*loaded)->model->adapters && !FindAdapter(*(*loaded)->model, spec.name))
        if (const Status again = (*loaded)->model->adapters->Load(spec); !again)
          log::Warning("the adapter '{}' is not there any more: {}", spec.name, again.error().message());
    loop_.Post([this, ready, loaded, alive = std::weak_ptr<int>(alive_)] {
      if (alive.expired()) return;
      if (!*loaded) return ready(loaded->error());
      model_ = (*loaded)->model;
      machine_ = (*loaded)->machine;
      replicas_ = std::make_shared<Replicas>(std::move((*loaded)->engines));
      ++loads_;
      last_stats_ = replicas_->stats();
      metrics_.engines.resize(last_stats_.size());
      if (state_ == State::kLoading) state_ = State::kReady;
      ready({});
    });
  });
}

void Service::OnDeviceFault() {
  if (state_ == State::kFaulted) return;
  const auto fault = replicas_->fault();
  log::Warning("the device failed: {}", fault ? fault->message() : "no reason was given");
  state_ = State::kFaulted;
  exit_code_ = 1;
  // Requests in flight get their errors first; then the process exits, or the model is reloaded.
  loop_.Post([this] {
    if (!options_.reload_on_fault) return Drain();
    replicas_.reset();
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
  const bool busy = !generations_.empty() || admission_.jobs() > 0 || (server_ && server_->HasUnsent());
  if (!busy || Clock::now() >= drain_end_ + std::chrono::seconds(2)) return loop_.Stop();
  drain_timer_ = loop_.After(std::chrono::milliseconds(20), [this] { StopIfDrained(); });
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
      return sleep_.level >= 0 ? "the server is asleep, until POST /wake_up" : nullptr;
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
  if (!replicas_) return;
  std::vector<EngineStats> stats = replicas_->stats();
  bool busy = false;
  double tokens_per_s = 0;
  for (size_t rank = 0; rank < stats.size(); ++rank) {
    LimitShare& limit = metrics_.engines[rank].limit;
    if (stats[rank].busy_seconds > last_stats_[rank].busy_seconds) {
      limit = LimitShare::Between(last_stats_[rank], stats[rank]);
      busy = true;
    }
    tokens_per_s += limit.tokens_per_s;  // of an idle one as it was
  }
  if (busy) admission_.ObserveRate(tokens_per_s);
  last_stats_ = std::move(stats);
}

Metrics::Now Service::Now() const {
  Metrics::Now now;
  if (model_) {
    now.model = model_->name;
    now.prefix_cache = model_->prefix_cache;
  }
  now.engines.resize(metrics_.engines.size());
  for (size_t rank = 0; rank < now.engines.size(); ++rank) {
    Metrics::EngineNow& engine = now.engines[rank];
    if (replicas_) engine.stats = replicas_->engine(static_cast<int64_t>(rank)).stats();
    if (replicas_) engine.kv_tokens = replicas_->engine(static_cast<int64_t>(rank)).info().kv_tokens;
    if (rank < publishers_.size()) engine.kv_events = publishers_[rank];
  }
  if (model_ && model_->adapters) {
    now.adapters = std::ssize(model_->adapters->List());
    now.max_adapters = model_->adapters->options().max_adapters;
    now.adapter_bytes = model_->adapters->bytes();
    for (const auto& [id, generation] : generations_)
      for (const std::string& name : generation->job->prepared.adapters)
        if (auto& engine = now.engines[static_cast<size_t>(generation->rank())]; generation->began())
          engine.running_adapters.insert(name);
        else
          engine.waiting_adapters.insert(name);
  }
  now.connections = server_ ? server_->connections() : 0;
  now.body_bytes = server_ ? server_->body_bytes() : 0;
  now.jobs = admission_.jobs();
  now.healthy = state_ == State::kReady && sleep_.level < 0;
  now.keys = key_limits_.figures();
  now.sleep_level = sleep_.level;
  now.kv_transfer = transfer_;
  return now;
}

}  // namespace celer::server
