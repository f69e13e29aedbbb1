#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "core/log.h"
#include "server/page/page.h"
#include "server/params.h"

namespace celer::server {
namespace {

constexpr auto kTick = std::chrono::seconds(1);

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

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

HttpHandlers Service::Handlers() {
  return {.check = [this](const HttpRequest& request) { return Check(request); },
          .handle = [this](std::shared_ptr<Exchange> exchange) { Handle(exchange); },
          .refuse =
              [](int status, const std::string& message) {
                return ApiError{.status = status, .message = message}.ToResponse(ApiForm::kOpenAi);
              },
          .finish = [this](const HttpRequest& request,
                           HttpResponse* response) { FinishHeaders(request, response); },
          .log = [this](const HttpRequest& request, const HttpHandlers::Done& done) { Log(request, done); }};
}

// ---- the engine's life ----

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
      last_stats_ = {};
      if (state_ == State::kLoading) state_ = State::kReady;
      ready({});
    });
  });
}

void Service::Faulted() {
  if (state_ == State::kFaulted) return;
  const auto fault = engine_->fault();
  log::Warning("the device failed: {}", fault ? fault->message() : "no reason was given");
  state_ = State::kFaulted;
  exit_code_ = 1;
  // Those that run hear of it first; then the process ends, or the model is loaded again.
  loop_.Post([this] {
    if (!options_.reload_on_fault) return Drain();
    engine_.reset();
    Load([this](const Status& status) {
      if (status) {
        exit_code_ = 0;
        log::Warning("the model was loaded again; requests are taken");
        return;
      }
      log::Warning("the model could not be loaded again: {}", status.error().message());
      state_ = State::kFaulted;
      Drain();
    });
  });
}

void Service::Drain() {
  if (state_ == State::kDraining) return loop_.Stop();  // asked twice: at once
  const bool broken = state_ == State::kFaulted || state_ == State::kLoading;
  state_ = State::kDraining;
  const auto grace = broken ? std::chrono::milliseconds(0) : options_.drain_grace;
  drain_end_ = Clock::now() + grace + options_.drain_limit;
  if (!broken) log::Info("draining: {} requests run", generations_.size());
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

ApiForm Service::FormOf(const HttpRequest& request) {
  return request.path == "/v1/messages" ? ApiForm::kAnthropic : ApiForm::kOpenAi;
}

std::optional<HttpResponse> Service::Check(const HttpRequest& request) const {
  const ApiForm form = FormOf(request);
  if (request.method == "OPTIONS") {  // a browser asks before it asks
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers.emplace_back("Allow", "GET, POST, DELETE, OPTIONS");
    return response;
  }
  bool other_method = false;
  const Route* route = FindRoute(request, &other_method);
  if ((!route || !route->open) && !options_.keys.Allows(request)) {
    HttpResponse response =
        ApiError{.status = 401,
                 .message = "the API key is missing or wrong; send 'Authorization: Bearer KEY'",
                 .code = "invalid_api_key"}
            .ToResponse(form);
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
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
  return std::nullopt;
}

void Service::Handle(const std::shared_ptr<Exchange>& exchange) {
  bool ignored = false;
  const Route* route = FindRoute(exchange->request(), &ignored);
  try {
    (this->*route->handle)(exchange);
  } catch (const std::exception& error) {
    // One request's fault is its own. What went wrong is for the log, not for the client.
    log::Warning("request {}: {}", exchange->request().id, error.what());
    exchange->note = error.what();
    exchange->Send(
        ApiError{.status = 500, .message = "the request failed; the server's log knows more"}.ToResponse(
            FormOf(exchange->request())));
  }
}

void Service::FinishHeaders(const HttpRequest& request, HttpResponse* response) const {
  response->headers.emplace_back("X-Content-Type-Options", "nosniff");
  const std::string_view origin = request.Header("origin");
  if (origin.empty() || options_.cors_origins.empty()) return;
  const auto& known = options_.cors_origins;
  const bool all = std::find(known.begin(), known.end(), "*") != known.end();
  if (!all && std::find(known.begin(), known.end(), origin) == known.end()) return;
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
    for (const auto& [name, value] : done.facts) {  // text in our own words; numbers are to be numbers here
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
      return "the model is being loaded";
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

// ---- requests for the engine ----

void Service::PrepareJob(const std::shared_ptr<Exchange>& exchange, Next next) {
  const ApiForm form = FormOf(exchange->request());
  if (const auto refusal = CheckReady()) return exchange->Send(refusal->ToResponse(form));
  bool ignored = false;
  const Endpoint endpoint = static_cast<Endpoint>(FindRoute(exchange->request(), &ignored)->endpoint);
  // The conversation to go on from is the loop's. Whether it is needed is in the body, which the worker
  // reads.
  const auto body = std::make_shared<std::string>(exchange->request().body);
  const auto job = std::make_shared<Job>();
  job->model = model_;
  job->asked.endpoint = endpoint;
  job->asked.request.sampling = DefaultSampling(*model_);
  ++jobs_;
  const auto read = [this, job, body]() -> Refusal {
    Json json;
    if (auto refusal = ParseBody(*body, &json)) return refusal;
    if (auto refusal = ReadParams(json, &job->asked, options_.lenient ? &job->ignored : nullptr))
      return refusal;
    return CheckModel(*job->model, job->asked);
  };
  const auto prepare = [job]() -> Refusal {
    return job->asked.endpoint == kDetokenize ? Refusal()
           : job->asked.endpoint == kTokenize ? Tokenize(*job->model, job->asked, job->before, &job->prepared)
           : job->asked.endpoint == kEmbeddings
               ? PrepareEmbeddings(*job->model, job->asked, &job->prepared)
               : Prepare(*job->model, job->before, job->asked, &job->prepared);
  };
  // Runs `work` on a worker's thread and `then` on the loop's, unless the work ends in an answer.
  const auto step = [this, exchange, form](std::function<Refusal()> work, std::function<void()> then) {
    // `exchange` here is const, and a plain copy of it would be: it could not be moved from.
    workers_->Post([this, exchange = std::shared_ptr<Exchange>(exchange), form, work = std::move(work),
                    then = std::move(then), alive = std::weak_ptr<int>(alive_)]() mutable {
      auto refusal = std::make_shared<Refusal>();
      try {
        *refusal = work();
      } catch (const std::exception& error) {
        log::Warning("request {}: {}", exchange->request().id, error.what());
        *refusal = ApiError{.status = 500, .message = "the request failed; the server's log knows more"};
      }
      // The exchange is the loop's: it must not end here.
      loop_.Post([this, exchange = std::move(exchange), form, refusal, then = std::move(then), alive] {
        if (alive.expired()) return;
        if (!*refusal && !exchange->gone()) return then();
        --jobs_;
        if (*refusal) exchange->note = (*refusal)->message;
        if (*refusal) exchange->Send((*refusal)->ToResponse(form));
      });
      work = nullptr;
    });
  };
  const auto finish = [this, exchange, job, next] {
    --jobs_;
    (this->*next)(exchange, job);
  };
  step(read, [this, exchange, form, job, prepare, step, finish] {
    if (const std::string& id = job->asked.previous_response_id; !id.empty()) {
      const ResponseStore::Entry* entry = responses_.Find(id);
      if (!entry) {
        --jobs_;
        return exchange->Send(
            ApiError{.status = 404,
                     .message = "there is no response " + Quoted(id) + "; it may have been forgotten",
                     .param = "previous_response_id",
                     .code = "previous_response_not_found"}
                .ToResponse(form));
      }
      job->before = entry->messages;
    }
    step(prepare, finish);
  });
}

void Service::Generate(const std::shared_ptr<Exchange>& exchange) {
  PrepareJob(exchange, &Service::StartGeneration);
}

Refusal Service::Admit(const Job& job) const {
  int64_t tokens = 0;
  for (const Request& request : job.prepared.requests) tokens += static_cast<int64_t>(request.prompt.size());
  const double ahead = static_cast<double>(waiting_tokens_ + tokens);
  const double predicted = tokens_per_second_ > 0 ? ahead / tokens_per_second_ : 0;
  const auto full = [&](std::string what) -> Refusal {
    return ApiError{.status = 429,
                    .message = "too many requests wait: " + std::move(what),
                    .code = "queue_full",
                    .retry_after = std::clamp(static_cast<int>(std::ceil(predicted)), 1, 60)};
  };
  if (waiting_ >= options_.max_queue) return full(fmt::format("{} of {}", waiting_, options_.max_queue));
  const int64_t max_tokens =
      options_.max_queue_tokens > 0 ? options_.max_queue_tokens : 8 * model_->info.kv_tokens;
  if (waiting_ > 0 && waiting_tokens_ + tokens > max_tokens)
    return full(fmt::format("{} prompt tokens and {} more of {}", waiting_tokens_, tokens, max_tokens));
  if (options_.max_ttft > 0 && predicted > options_.max_ttft && waiting_ > 0)
    return full(fmt::format("the first token would come in {:.1f} s, and {:.1f} s is the limit", predicted,
                            options_.max_ttft));
  return {};
}

void Service::StartGeneration(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job) {
  const ApiForm form = FormOf(exchange->request());
  Refusal refusal = CheckReady();
  if (!refusal) refusal = Admit(*job);
  if (refusal) {
    exchange->note = refusal->message;
    return exchange->Send(refusal->ToResponse(form));
  }
  if (job->asked.endpoint == kEmbeddings && !model_->pooling.meant && !warned_of_pooling_) {
    warned_of_pooling_ = true;
    log::Warning("{} is not made for embeddings: what it gives is the {} of its hidden states", model_->name,
                 model_->pooling.pooling == Pooling::kMean ? "mean" : "last");
  }
  const auto generation = std::make_shared<Generation>(next_generation_++, job, exchange);
  generation->submitted = Clock::now();
  double seconds = options_.max_seconds;
  if (job->asked.timeout)
    seconds = seconds > 0 ? std::min(seconds, *job->asked.timeout) : *job->asked.timeout;
  for (size_t prompt = 0; prompt < job->prepared.requests.size(); ++prompt) {
    Request request = job->prepared.requests[prompt];
    if (seconds > 0)
      request.deadline =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    auto ticket = engine_->Submit(std::move(request),
                                  [this, inbox = inbox_, id = generation->id, prompt](TokenEvent event) {
                                    const std::lock_guard lock(inbox->mutex);
                                    inbox->items.push_back({id, prompt, std::move(event)});
                                    if (inbox->posted) return;
                                    inbox->posted = true;
                                    loop_.Post([this] { TakeEvents(); });
                                  });
    if (!ticket) {
      generation->Cancel();
      exchange->note = ticket.error().message();
      return exchange->Send(FromError(ticket.error()).ToResponse(form));
    }
    generation->tickets.push_back(std::move(*ticket));
  }
  ++waiting_;
  waiting_tokens_ += generation->told.PromptTokens();
  generations_[generation->id] = generation;
  exchange->OnGone([this, id = generation->id] {
    const auto it = generations_.find(id);
    if (it == generations_.end()) return;
    it->second->Cancel();
    End(*it->second);
  });
}

void Service::TakeEvents() {
  std::vector<Inbox::Item> items;
  {
    const std::lock_guard lock(inbox_->mutex);
    items.swap(inbox_->items);
    inbox_->posted = false;
  }
  bool failed = false;
  for (Inbox::Item& item : items) {
    const auto it = generations_.find(item.generation);
    if (it == generations_.end()) continue;  // its client left
    const std::shared_ptr<Generation> generation = it->second;
    const bool began = generation->began();
    const bool device_failed = item.event.finish == FinishReason::kError && engine_ && engine_->fault();
    failed |= device_failed;
    bool ended = true;
    try {
      ended = generation->OnEvent(item.prompt, item.event, device_failed);
    } catch (const std::exception& error) {
      log::Warning("request {}: {}", generation->exchange->request().id, error.what());
      generation->Fail({.status = 500, .message = "the request failed; the server's log knows more"});
      generation->Cancel();
    }
    if (!began && generation->began()) {
      --waiting_;
      waiting_tokens_ -= generation->told.PromptTokens();
      metrics_.ttft.Observe(Seconds(generation->first_token - generation->exchange->request().arrived));
    }
    for (const double gap : generation->gaps) metrics_.inter_token.Observe(gap);
    generation->gaps.clear();
    if (ended) End(*generation);
  }
  if (failed) Faulted();
}

void Service::End(Generation& generation) {
  const auto it = generations_.find(generation.id);
  if (it == generations_.end()) return;
  const std::shared_ptr<Generation> keep = it->second;
  generations_.erase(it);
  const Told& told = generation.told;
  const int64_t prompt = told.PromptTokens(), answer = told.AnswerTokens();
  if (!generation.began()) {
    --waiting_;
    waiting_tokens_ -= prompt;
  }
  ++metrics_.finished[generation.outcome];
  metrics_.prompt_tokens.Observe(static_cast<double>(prompt));
  metrics_.generation_tokens.Observe(static_cast<double>(answer));
  Exchange& exchange = *generation.exchange;
  exchange.facts.emplace_back("prompt_tokens", std::to_string(prompt));
  exchange.facts.emplace_back("cached_tokens", std::to_string(told.cached_tokens));
  exchange.facts.emplace_back("answer_tokens", std::to_string(answer));
  exchange.facts.emplace_back("finish", generation.outcome);
  const bool has_begun = generation.begun != Clock::time_point();
  const Clock::time_point begun = has_begun ? generation.begun : generation.submitted;
  if (has_begun) metrics_.queue_time.Observe(Seconds(begun - generation.submitted));
  if (generation.began()) {
    const double rest = Seconds(generation.last_token - generation.first_token);
    exchange.facts.emplace_back(
        "ttft_ms", fmt::format("{:.2f}", 1e3 * Seconds(generation.first_token - exchange.request().arrived)));
    metrics_.prefill_time.Observe(Seconds(generation.first_token - begun));
    metrics_.decode_time.Observe(rest);
    metrics_.inference_time.Observe(Seconds(generation.last_token - begun));
    metrics_.e2e.Observe(Seconds(generation.last_token - exchange.request().arrived));
    const auto answers = static_cast<int64_t>(told.answers.size());
    if (answer > answers)
      metrics_.per_output_token.Observe(rest * static_cast<double>(answers) /
                                        static_cast<double>(answer - answers));
  } else if (generation.embedded != Clock::time_point()) {
    metrics_.prefill_time.Observe(Seconds(generation.embedded - begun));
    metrics_.inference_time.Observe(Seconds(generation.embedded - begun));
    metrics_.e2e.Observe(Seconds(generation.embedded - exchange.request().arrived));
  }
  if (!generation.body.empty() && told.asked.endpoint == kResponses && told.asked.store) {
    Json messages = Json::array();
    for (const Json& message : told.prepared.conversation.messages) messages.push_back(message);
    if (told.asked.system.is_string() && !messages.empty()) messages.erase(messages.begin());
    const Answer& said = told.answers[0];
    Json reply = {{"role", "assistant"}, {"content", said.content}};
    for (const Answer::Call& call : said.calls)
      reply["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", Json::parse(call.arguments, nullptr, false)}}}});
    messages.push_back(std::move(reply));
    responses_.Add({.id = told.id, .messages = std::move(messages), .body = generation.body});
  }
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
  now.healthy = state_ == State::kReady;
  return now;
}

}  // namespace celer::server
