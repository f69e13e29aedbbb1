// Requests for the engine: parsed and prepared by workers, admitted, and tracked until they end.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/log.h"
#include "server/api/params.h"
#include "server/service/resume.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Refusal CheckTransfer(Job* job, bool lenient) {
  Query& query = job->query;
  if (!query.kv_transfer) return {};
  if (!job->model->kv_transfer) {
    const char* const name = "kv_transfer_params";
    if (!lenient) return NotSupported(name, "start the server with --kv-transfer HOST:PORT");
    job->ignored.emplace_back(name);
    query.kv_transfer.reset();
    return {};
  }
  if (query.prompts.size() > 1)
    return ApiError{.message = "kv_transfer_params is of one prompt, and there are " +
                               std::to_string(query.prompts.size()),
                    .param = "kv_transfer_params"};
  return {};
}

// From the parsed query to requests of the engine.
Refusal PrepareRead(Job& job, bool lenient) {
  Query& query = job.query;
  switch (query.endpoint) {
    case kDetokenize:
      return {};
    case kTokenize:
    case kCountTokens:
      return Tokenize(*job.model, query, job.before, &job.prepared);
    case kEmbeddings:
      return PrepareEmbeddings(*job.model, query, &job.prepared);
    default:
      if (auto refusal = CheckResume(&query)) return refusal;
      if (auto refusal = CheckTransfer(&job, lenient)) return refusal;
      if (auto refusal = Prepare(*job.model, job.before, query, &job.prepared)) return refusal;
      return ReplayAnswer(&job);
  }
}

// Parses the body and, unless an earlier conversation is needed, prepares it in the same job: parsed JSON
// takes a multiple of the body's memory, so it should not wait for a worker a second time.
Refusal ReadJob(Job& job, bool lenient) {
  Json json;
  if (auto refusal = ParseBody(job.body, &json)) return refusal;
  job.body = {};
  job.body.shrink_to_fit();
  if (auto refusal = ReadParams(json, &job.query, lenient ? &job.ignored : nullptr)) return refusal;
  json = nullptr;
  if (auto refusal = CheckModel(*job.model, job.query)) return refusal;
  return job.query.previous_response_id.empty() ? PrepareRead(job, lenient) : Refusal();
}

constexpr const char* kRankHeader = "x-data-parallel-rank";

// A router may name the rank that it wants. As in vLLM, what is no number says nothing.
std::optional<int64_t> WantedRank(const HttpRequest& request) {
  const std::string_view text = request.Header(kRankHeader);
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (text.empty() || end != text.data() + text.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return -1;  // no server has that
  return error == std::errc() ? std::optional(rank) : std::nullopt;
}

ApiError DeviceFault(bool reloads) {
  return {.status = 503,
          .message = reloads ? "the device failed; the model is being reloaded"
                             : "the device failed; this server accepts no more requests",
          .code = "device_fault",
          .retry_after = reloads ? 1 : 0};
}

}  // namespace

void Service::PrepareJob(const std::shared_ptr<Exchange>& exchange, Next next) {
  const ApiForm form = FormOf(exchange->request());
  Refusal busy = CheckReady();
  if (!busy) busy = admission_.CheckCapacity(next == &Service::StartGeneration);
  if (!busy && next == &Service::StartGeneration) busy = CheckKeyLimits(exchange->request());
  if (busy) {
    exchange->note = busy->message;
    return exchange->Send(busy->ToResponse(form));
  }
  bool ignored = false;
  const auto job = std::make_shared<Job>();
  job->body = exchange->TakeBody();
  job->model = model_;
  job->query.endpoint = static_cast<Endpoint>(FindRoute(exchange->request(), &ignored)->endpoint);
  job->query.request.sampling = DefaultSampling(*model_);
  admission_.BeginJob();
  // Runs `work` on a worker thread and `then` on the loop's, unless `work` returns an error.
  const auto step = [this, exchange, form](std::function<Refusal()> work, std::function<void()> then) {
    // Copied into a non-const capture, so that it can be moved from.
    workers_->Post([this, exchange = std::shared_ptr<Exchange>(exchange), form, work = std::move(work),
                    then = std::move(then), alive = std::weak_ptr<int>(alive_)]() mutable {
      auto refusal = std::make_shared<Refusal>();
      try {
        if (!exchange->disconnected()) *refusal = work();
      } catch (const std::exception& error) {
        log::Warning("request {}: {}", exchange->request().id, error.what());
        *refusal = ApiError{.status = 500, .message = "internal error; see the server's log"};
      }
      work = nullptr;
      // The exchange belongs to the loop's thread, and must not be destroyed here.
      loop_.Post([this, exchange = std::move(exchange), form, refusal, then = std::move(then), alive] {
        if (alive.expired()) return;
        if (!*refusal && !exchange->disconnected()) return then();
        admission_.EndJob();
        if (*refusal) exchange->note = (*refusal)->message;
        if (*refusal) exchange->Send((*refusal)->ToResponse(form));
      });
    });
  };
  const auto finish = [this, exchange, job, next] {
    admission_.EndJob();
    (this->*next)(exchange, job);
  };
  const bool lenient = options_.lenient;
  step([job, lenient] { return ReadJob(*job, lenient); },
       [this, exchange, form, job, step, finish, lenient] {
         const std::string& id = job->query.previous_response_id;
         if (id.empty()) return finish();
         // The stored conversations belong to the loop's thread.
         const ResponseStore::Entry* entry = responses_.Find(id);
         if (!entry) {
           admission_.EndJob();
           return exchange->Send(
               ApiError{.status = 404,
                        .message = "there is no response " + Quoted(id) + "; it may have been forgotten",
                        .param = "previous_response_id",
                        .code = "previous_response_not_found"}
                   .ToResponse(form));
         }
         job->before = entry->messages;
         step([job, lenient] { return PrepareRead(*job, lenient); }, finish);
       });
}

Refusal Service::CheckKeyLimits(const HttpRequest& request) {
  if (!key_limits_.any()) return {};
  return key_limits_.Check(*options_.keys.Find(ApiKeys::KeyOf(request)), Clock::now(), admission_);
}

Refusal Service::CheckRank(const HttpRequest& request) const {
  const std::optional<int64_t> rank = WantedRank(request);
  if (!rank || !replicas_ || (*rank >= 0 && *rank < replicas_->size())) return {};
  const int64_t last = replicas_->size() - 1;
  return ApiError{.message = fmt::format("the header X-Data-Parallel-Rank is {}, but this server has rank{}",
                                         request.Header(kRankHeader),
                                         last == 0 ? " 0 alone" : fmt::format("s 0 to {}", last))};
}

void Service::Generate(const std::shared_ptr<Exchange>& exchange) {
  if (const Refusal wrong = CheckRank(exchange->request()))
    return exchange->Send(wrong->ToResponse(FormOf(exchange->request())));
  PrepareJob(exchange, &Service::StartGeneration);
}

void Service::StartGeneration(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job) {
  const ApiForm form = FormOf(exchange->request());
  Refusal refusal = CheckReady();
  if (!refusal) refusal = CheckRank(exchange->request());
  int64_t prompt_tokens = 0;
  for (const Request& request : job->prepared.requests)
    prompt_tokens += static_cast<int64_t>(request.prompt.size() + request.resumed.size());
  if (!refusal) refusal = admission_.Admit(prompt_tokens, replicas_->kv_tokens());
  if (!refusal) refusal = CheckKeyLimits(exchange->request());
  if (refusal) {
    exchange->note = refusal->message;
    return exchange->Send(refusal->ToResponse(form));
  }
  if (job->query.endpoint == kEmbeddings && !model_->pooling.meant && !warned_of_pooling_) {
    warned_of_pooling_ = true;
    log::Warning("{} is not made for embeddings: what it gives is the {} of its hidden states", model_->name,
                 model_->pooling.pooling == Pooling::kMean ? "mean" : "last");
  }
  const auto generation = std::make_shared<Generation>(next_generation_++, job, exchange);
  generation->submitted = Clock::now();
  if (key_limits_.any()) {
    generation->key = options_.keys.Find(ApiKeys::KeyOf(exchange->request()));
    generation->place = key_limits_.Take(*generation->key, prompt_tokens);
  }
  generation->engine = loads_;
  double seconds = options_.max_seconds;
  if (job->query.timeout)
    seconds = seconds > 0 ? std::min(seconds, *job->query.timeout) : *job->query.timeout;
  if (seconds > 0)
    generation->deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  generation->wanted_rank = WantedRank(exchange->request());
  if (!StartFetch(generation) && !SubmitPrompts(*generation)) return;
  admission_.Enqueue(generation->reply.PromptTokens());
  generations_[generation->id] = generation;
  exchange->OnDisconnect([this, id = generation->id] {
    const auto it = generations_.find(id);
    if (it == generations_.end()) return;
    it->second->Cancel();
    End(*it->second);
  });
}

bool Service::SubmitPrompts(Generation& generation) {
  const Job& job = *generation.job;
  Exchange& exchange = *generation.exchange;
  const auto deliver = [this, inbox = inbox_, id = generation.id](size_t prompt, TokenEvent event) {
    const std::lock_guard lock(inbox->mutex);
    inbox->items.push_back({id, prompt, std::move(event)});
    if (inbox->posted) return;
    inbox->posted = true;
    loop_.Post([this] { TakeEvents(); });
  };
  std::set<int64_t> ranks;
  const bool has_ended = generation.has_ended();
  if (has_ended) deliver(0, {.finish = generation.reply.answers[0].decoder.finish(), .last = true});
  for (size_t prompt = 0; prompt < job.prepared.requests.size() && !has_ended; ++prompt) {
    Request request = job.prepared.requests[prompt];
    // What clients say of priority would undo the keys' shares.
    if (generation.key) request.priority = generation.place;
    request.deadline = generation.deadline;
    // One whose keys and values were fetched has its place.
    if (prompt >= generation.places.size())
      generation.places.push_back(replicas_->Choose(request, generation.wanted_rank));
    const int64_t rank = generation.places[prompt].rank();
    ranks.insert(rank);
    EngineThread& engine = replicas_->engine(rank);
    EngineThread::OnEvent on_event = [deliver, prompt](TokenEvent event) {
      deliver(prompt, std::move(event));
    };
    if (generation.transfer) on_event = WithTransfer(generation, engine, request, std::move(on_event));
    auto ticket = engine.Submit(std::move(request), std::move(on_event));
    if (!ticket) {
      generation.Cancel();
      exchange.note = ticket.error().message();
      const bool fault = engine.fault().has_value();
      exchange.Send((fault ? DeviceFault(options_.reload_on_fault) : FromError(ticket.error()))
                        .ToResponse(FormOf(exchange.request())));
      if (fault) OnDeviceFault();
      return false;
    }
    generation.tickets.push_back(std::move(*ticket));
  }
  if (replicas_->size() > 1) generation.ranks = fmt::format("{}", fmt::join(ranks, ","));
  return true;
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
    if (it == generations_.end()) continue;  // its client disconnected
    const std::shared_ptr<Generation> generation = it->second;
    const bool began = generation->began();
    // An engine is destroyed only after a fault, so the last events of an earlier one report that fault, also
    // while the next one is loaded or runs.
    const bool left_behind = !replicas_ || generation->engine != loads_;
    const bool ends =
        item.event.finish == FinishReason::kError || item.event.finish == FinishReason::kCancelled;
    const bool fault = ends && (left_behind || replicas_->fault());
    failed |= fault && !left_behind;
    bool ended = true;
    try {
      if (fault)
        generation->Fail(DeviceFault(options_.reload_on_fault));
      else
        ended = generation->OnEvent(item.prompt, item.event);
    } catch (const std::exception& error) {
      log::Warning("request {}: {}", generation->exchange->request().id, error.what());
      generation->Fail({.status = 500, .message = "internal error; see the server's log"});
      generation->Cancel();
    }
    if (!began && generation->began()) {
      admission_.Dequeue(generation->reply.PromptTokens());
      if (generation->key) key_limits_.Begin(generation->place);
      metrics_.engines[static_cast<size_t>(generation->rank())].ttft.Observe(
          Seconds(generation->first_token - generation->exchange->request().arrived));
    }
    for (const double gap : generation->gaps)
      metrics_.engines[static_cast<size_t>(generation->rank())].inter_token.Observe(gap);
    generation->gaps.clear();
    if (ended) End(*generation);
  }
  if (failed) OnDeviceFault();
}

void Service::End(Generation& generation) {
  const auto it = generations_.find(generation.id);
  if (it == generations_.end()) return;
  const std::shared_ptr<Generation> keep = it->second;
  generations_.erase(it);
  const Reply& reply = generation.reply;
  const int64_t prompt = reply.PromptTokens(), answer = reply.AnswerTokens();
  if (!generation.began()) admission_.Dequeue(prompt);
  if (generation.key) key_limits_.End(*generation.key, answer);
  EngineFigures& figures = metrics_.engines[static_cast<size_t>(generation.rank())];
  ++figures.finished[generation.outcome];
  figures.prompt_tokens.Observe(static_cast<double>(prompt));
  const int64_t generated = answer - reply.ResumedTokens();
  figures.generation_tokens.Observe(static_cast<double>(generated));
  Exchange& exchange = *generation.exchange;
  exchange.facts.emplace_back("prompt_tokens", std::to_string(prompt));
  exchange.facts.emplace_back("cached_tokens", std::to_string(reply.cached_tokens));
  exchange.facts.emplace_back("answer_tokens", std::to_string(answer));
  exchange.facts.emplace_back("finish", generation.outcome);
  if (!generation.ranks.empty()) exchange.facts.emplace_back("rank", generation.ranks);
  if (generation.fetched)
    exchange.facts.emplace_back("fetched_tokens", std::to_string(generation.fetched->tokens));
  if (const auto& adapters = reply.prepared.adapters; !adapters.empty())
    exchange.facts.emplace_back("lora", fmt::format("{}", fmt::join(adapters, ",")));
  const bool has_begun = generation.begun != Clock::time_point();
  const Clock::time_point begun = has_begun ? generation.begun : generation.submitted;
  if (has_begun) figures.queue_time.Observe(Seconds(begun - generation.submitted));
  if (generation.began()) {
    const double rest = Seconds(generation.last_token - generation.first_token);
    exchange.facts.emplace_back(
        "ttft_ms", fmt::format("{:.2f}", 1e3 * Seconds(generation.first_token - exchange.request().arrived)));
    figures.prefill_time.Observe(Seconds(generation.first_token - begun));
    figures.decode_time.Observe(rest);
    figures.inference_time.Observe(Seconds(generation.last_token - begun));
    figures.e2e.Observe(Seconds(generation.last_token - exchange.request().arrived));
    const auto answers = static_cast<int64_t>(reply.answers.size());
    if (generated > answers)
      figures.per_output_token.Observe(rest * static_cast<double>(answers) /
                                       static_cast<double>(generated - answers));
  } else if (generation.embedded != Clock::time_point()) {
    figures.prefill_time.Observe(Seconds(generation.embedded - begun));
    figures.inference_time.Observe(Seconds(generation.embedded - begun));
    figures.e2e.Observe(Seconds(generation.embedded - exchange.request().arrived));
  }
  if (!generation.body.empty() && reply.query.endpoint == kResponses && reply.query.store) {
    Json messages = Json::array();
    for (const Json& message : reply.prepared.conversation.messages) messages.push_back(message);
    if (reply.query.system.is_string() && !messages.empty()) messages.erase(messages.begin());
    const Answer& said = reply.answers[0];
    Json turn = {{"role", "assistant"}, {"content", said.content}};
    for (const Answer::Call& call : said.calls)
      turn["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", ParsePartialObject(call.arguments)}}}});
    messages.push_back(std::move(turn));
    responses_.Add({.id = reply.id, .messages = std::move(messages), .body = generation.body});
  }
}

}  // namespace celer::server
