// The C interface to an engine on its own thread, with its tokenizer.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "c_api/guard.h"
#include "celer/engine_thread.h"
#include "celer/text.h"

namespace celer::c_api {
namespace {

// Events of all requests, from the engine's thread to whoever polls.
class Mailbox {
 public:
  void Begin() {
    const std::lock_guard lock(mutex_);
    ++open_;
  }
  // A request that was not accepted after all.
  void Abandon() {
    const std::lock_guard lock(mutex_);
    --open_;
  }
  void Push(TokenEvent event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    arrived_.notify_one();
  }
  // None in time, or none in flight. -1 ms: waits.
  std::optional<TokenEvent> Take(int64_t timeout_ms) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return !events_.empty() || open_ == 0; };
    if (timeout_ms < 0)
      arrived_.wait(lock, ready);
    else
      arrived_.wait_for(lock, std::chrono::milliseconds(std::min<int64_t>(timeout_ms, 1'000'000'000)), ready);
    if (events_.empty()) return std::nullopt;
    TokenEvent event = std::move(events_.front());
    events_.pop_front();
    if (event.last) --open_;
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<TokenEvent> events_;
  int64_t open_ = 0;  // requests whose last event was not taken
};

struct InFlight {
  EngineThread::Ticket ticket;
  size_t n;  // answers
  std::vector<std::string> stop;
  std::map<int, TextStream> answers = {};
};

celer_finish FinishOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return CELER_GOES_ON;
    case FinishReason::kStop:
      return CELER_STOP;
    case FinishReason::kLength:
      return CELER_LENGTH;
    case FinishReason::kCancelled:
      return CELER_FINISH_CANCELLED;
    case FinishReason::kDeadline:
      return CELER_FINISH_DEADLINE;
    case FinishReason::kRefused:
    case FinishReason::kConstraint:
    case FinishReason::kError:
      break;
  }
  return CELER_FINISH_ERROR;
}

}  // namespace
}  // namespace celer::c_api

struct celer_model {
  celer_model(celer::Prompter its_prompter, std::unique_ptr<celer::Engine> engine)
      : prompter(std::move(its_prompter)), thread(std::move(engine)) {}

  celer::Prompter prompter;
  std::shared_ptr<celer::c_api::Mailbox> mailbox = std::make_shared<celer::c_api::Mailbox>();
  celer::EngineThread thread;
  std::mutex mutex;                                         // of the next
  std::map<int64_t, celer::c_api::InFlight> requests = {};  // whose last event was not taken
  std::string text, error;                                  // of the last event
};

namespace celer::c_api {
namespace {

const celer_model_options kModelDefaults = {.struct_size = sizeof(celer_model_options),
                                            .model = nullptr,
                                            .tokenizer = nullptr,
                                            .chat_template = nullptr,
                                            .weights = "stored",
                                            .kv = "f16",
                                            .kv_memory = nullptr,
                                            .device = "cpu",
                                            .threads = 0,
                                            .prefix_cache = 1,
                                            .context = 0,
                                            .sequences = 0,
                                            .split = nullptr,
                                            .gpu_memory = nullptr,
                                            .gpu_layers = nullptr,
                                            .cpu_experts = nullptr,
                                            .place = nullptr};

const celer_request kRequestDefaults = {.struct_size = sizeof(celer_request),
                                        .prompt = nullptr,
                                        .prompt_count = 0,
                                        .max_tokens = 256,
                                        .min_tokens = 0,
                                        .n = 1,
                                        .ignore_end = 0,
                                        .priority = 0,
                                        .top_k = 0,
                                        .temperature = 0,
                                        .top_p = 1,
                                        .min_p = 0,
                                        .repetition_penalty = 1,
                                        .presence_penalty = 0,
                                        .frequency_penalty = 0,
                                        .seed = 0,
                                        .stop = nullptr,
                                        .stop_count = 0,
                                        .stop_tokens = nullptr,
                                        .stop_token_count = 0,
                                        .timeout_seconds = 0};

std::string OrEmpty(const char* text) {
  return text ? text : "";
}

Result<EngineOptions> ReadOptions(const celer_model_options& given) {
  EngineOptions options;
  options.model = given.model;
  if (given.weights) {
    CELER_ASSIGN(options.weights, WeightOptions::Parse(given.weights));
  }
  if (given.kv) {
    CELER_ASSIGN(options.kv, ParseKvType(given.kv));
  }
  if (given.kv_memory) {
    CELER_ASSIGN(options.kv_memory, KvMemory::Parse(given.kv_memory));
  }
  const auto text = [](const char* chars) { return chars ? std::string_view(chars) : std::string_view(); };
  CELER_RETURN_IF_ERROR(SetPlacement({.device = text(given.device),
                                      .split = text(given.split),
                                      .gpu_memory = text(given.gpu_memory),
                                      .gpu_layers = text(given.gpu_layers),
                                      .cpu_experts = text(given.cpu_experts),
                                      .place = text(given.place)},
                                     &options));
  if (given.threads < 0 || given.threads > 1024)
    return Error::Invalid("threads is ", given.threads, ", expected 0 to 1024");
  if (given.context < 0) return Error::Invalid("context is ", given.context, ", expected 0 or more");
  if (given.sequences < 0) return Error::Invalid("sequences is ", given.sequences, ", expected 0 or more");
  options.threads = given.threads;
  options.prefix_cache = given.prefix_cache != 0;
  options.context = given.context;
  options.sequences = given.sequences;
  return options;
}

Status Load(const celer_model_options* given, celer_model** model) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  *model = nullptr;
  CELER_RETURN_IF_ERROR(NoteThreads());
  celer_model_options read = kModelDefaults;
  CELER_RETURN_IF_ERROR(Read(given, "celer_model_options", &read));
  CELER_RETURN_IF_ERROR(Need(read.model, "celer_model_options.model"));
  CELER_ASSIGN(const EngineOptions options, ReadOptions(read));
  CELER_ASSIGN(Prompter prompter, Prompter::Load({.model = read.model,
                                                  .tokenizer = OrEmpty(read.tokenizer),
                                                  .chat_template = OrEmpty(read.chat_template)}));
  CELER_ASSIGN(auto engine, Engine::Load(options));
  CELER_RETURN_IF_ERROR(prompter.CheckFits(engine->info()));
  *model = new celer_model(std::move(prompter), std::move(engine));
  return {};
}

Status GetInfo(const celer_model* model, celer_model_info* out) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  const Engine::Info& info = model->thread.info();
  const celer_model_info filled = {.struct_size = sizeof(celer_model_info),
                                   .vocab = info.vocab,
                                   .context = info.context,
                                   .kv_tokens = info.kv_tokens,
                                   .hidden = info.shape.hidden,
                                   .layers = info.shape.layers,
                                   .weight_bytes = info.weight_bytes,
                                   .threads = info.threads,
                                   .has_chat_template = model->prompter.has_chat_template() ? 1 : 0,
                                   .architecture = info.architecture.c_str(),
                                   .device = info.device.c_str()};
  return Write(filled, "celer_model_info", out);
}

Status Give(const std::vector<int32_t>& tokens, int32_t* out, size_t capacity, size_t* count) {
  CELER_RETURN_IF_ERROR(Need(count, "count"));
  if (capacity > 0) CELER_RETURN_IF_ERROR(Need(out, "tokens"));
  std::copy_n(tokens.begin(), std::min(capacity, tokens.size()), out);
  *count = tokens.size();
  return {};
}

Status EncodeChat(const celer_model* model, const char* messages, const char* tools, int32_t* tokens,
                  size_t capacity, size_t* count) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  CELER_RETURN_IF_ERROR(Need(messages, "messages"));
  CELER_ASSIGN(const std::vector<int32_t> prompt,
               model->prompter.EncodeChatJson(messages, {.tools = OrEmpty(tools)}));
  return Give(prompt, tokens, capacity, count);
}

Status CheckTokens(const celer_model& model, const int32_t* tokens, size_t count, const char* name) {
  if (count > 0) CELER_RETURN_IF_ERROR(Need(tokens, name));
  const int64_t vocab = model.thread.info().vocab;
  for (size_t i = 0; i < count; ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      return Error::Invalid(name, "[", i, "] is ", tokens[i], ", but the model has ", vocab, " tokens");
  return {};
}

Status Decode(const celer_model* model, const int32_t* tokens, size_t token_count, char* text,
              size_t capacity, size_t* count) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  CELER_RETURN_IF_ERROR(Need(count, "count"));
  CELER_RETURN_IF_ERROR(CheckTokens(*model, tokens, token_count, "tokens"));
  if (capacity > 0) CELER_RETURN_IF_ERROR(Need(text, "text"));
  const std::string made = model->prompter.Decode({tokens, token_count});
  std::copy_n(made.begin(), std::min(capacity, made.size()), text);
  if (capacity > made.size()) text[made.size()] = '\0';
  *count = made.size();
  return {};
}

Result<Request> ReadRequest(const celer_model& model, const celer_request& given) {
  if (const int64_t context = model.thread.info().context; given.prompt_count >= static_cast<size_t>(context))
    return Error::Invalid("prompt_count is ", given.prompt_count, ", and the context holds ", context,
                          " tokens with the answer");
  CELER_RETURN_IF_ERROR(CheckTokens(model, given.prompt, given.prompt_count, "prompt"));
  CELER_RETURN_IF_ERROR(CheckTokens(model, given.stop_tokens, given.stop_token_count, "stop_tokens"));
  Request request;
  request.prompt.assign(given.prompt, given.prompt + given.prompt_count);
  request.sampling.temperature = given.temperature;
  request.sampling.top_k = given.top_k;
  request.sampling.top_p = given.top_p;
  request.sampling.min_p = given.min_p;
  request.sampling.repetition_penalty = given.repetition_penalty;
  request.sampling.presence_penalty = given.presence_penalty;
  request.sampling.frequency_penalty = given.frequency_penalty;
  request.sampling.seed = given.seed;
  request.max_tokens = given.max_tokens;
  request.min_tokens = given.min_tokens;
  request.n = given.n;
  request.priority = given.priority;
  request.stop_tokens.assign(given.stop_tokens, given.stop_tokens + given.stop_token_count);
  const auto& end = model.prompter.end_tokens();
  if (given.ignore_end == 0) request.stop_tokens.insert(request.stop_tokens.end(), end.begin(), end.end());
  if (!(given.timeout_seconds >= 0 && given.timeout_seconds <= 1e9))
    return Error::Invalid("timeout_seconds is ", given.timeout_seconds, ", expected 0 to 1e9");
  if (given.timeout_seconds > 0)
    request.deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                               std::chrono::duration<double>(given.timeout_seconds));
  return request;
}

Result<std::vector<std::string>> ReadStop(const celer_request& given) {
  std::vector<std::string> stop;
  if (given.stop_count > 0) CELER_RETURN_IF_ERROR(Need(given.stop, "stop"));
  for (size_t i = 0; i < given.stop_count; ++i) {
    if (!given.stop[i] || !*given.stop[i]) return Error::Invalid("stop[", i, "] is null or empty");
    stop.emplace_back(given.stop[i]);
  }
  return stop;
}

Status Submit(celer_model* model, const celer_request* given, int64_t* id) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  CELER_RETURN_IF_ERROR(Need(id, "id"));
  celer_request read = kRequestDefaults;
  CELER_RETURN_IF_ERROR(Read(given, "celer_request", &read));
  CELER_ASSIGN(Request request, ReadRequest(*model, read));
  CELER_ASSIGN(std::vector<std::string> stop, ReadStop(read));
  // celer_poll() must not see an event of a request that is not listed yet.
  const std::lock_guard lock(model->mutex);
  model->mailbox->Begin();
  auto ticket = model->thread.Submit(std::move(request),
                                     [to = model->mailbox](TokenEvent event) { to->Push(std::move(event)); });
  if (!ticket) {
    model->mailbox->Abandon();
    return ticket.error();
  }
  *id = ticket->id();
  model->requests.emplace(
      *id, InFlight{.ticket = std::move(*ticket), .n = static_cast<size_t>(read.n), .stop = std::move(stop)});
  return {};
}

Status Cancel(celer_model* model, int64_t id) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  const std::lock_guard lock(model->mutex);
  const auto found = model->requests.find(id);
  if (found == model->requests.end()) return Error::NotFound("no request ", id, " is in flight");
  found->second.ticket.Cancel();
  return {};
}

// What an event adds to its answer. False: nothing, and it is not the request's last.
bool Convert(celer_model& model, TokenEvent event, celer_event* out) {
  const std::lock_guard lock(model.mutex);
  const auto found = model.requests.find(event.request);
  if (found == model.requests.end()) return false;
  InFlight& request = found->second;
  auto answer = request.answers.find(event.answer);
  if (answer == request.answers.end())
    answer = request.answers.emplace(event.answer, TextStream(model.prompter, request.stop)).first;
  TextStream& stream = answer->second;
  const bool ended = stream.finish() != FinishReason::kNone;
  out->request = event.request;
  out->answer = event.answer;
  out->last = event.last ? 1 : 0;
  out->cached_tokens = event.cached_tokens;
  const int32_t token = event.token;
  TextDelta delta = stream.Push(std::move(event));
  model.text = std::move(delta.text);
  model.error = std::move(delta.error);
  out->token = ended ? -1 : token;
  out->finish = ended ? CELER_GOES_ON : FinishOf(delta.finish);
  out->text = model.text.c_str();
  out->text_bytes = model.text.size();
  out->error = model.error.c_str();
  const bool all_ended = request.answers.size() == request.n &&
                         std::all_of(request.answers.begin(), request.answers.end(), [](const auto& one) {
                           return one.second.finish() != FinishReason::kNone;
                         });
  if (stream.wants_cancel() && all_ended) request.ticket.Cancel();
  if (out->last) model.requests.erase(found);
  return !ended || out->last;
}

// 1: an event; 0: none came.
Result<bool> Poll(celer_model* model, int64_t timeout_ms, celer_event* out) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  celer_event event = {.struct_size = sizeof(celer_event),
                       .request = 0,
                       .answer = 0,
                       .token = -1,
                       .finish = CELER_GOES_ON,
                       .last = 0,
                       .cached_tokens = 0,
                       .text = "",
                       .text_bytes = 0,
                       .error = ""};
  CELER_RETURN_IF_ERROR(Write(event, "celer_event", out));
  while (auto came = model->mailbox->Take(timeout_ms))
    if (Convert(*model, std::move(*came), &event)) {
      CELER_RETURN_IF_ERROR(Write(event, "celer_event", out));
      return true;
    }
  return false;
}

}  // namespace
}  // namespace celer::c_api

using celer::c_api::Guard;

void celer_model_options_init(celer_model_options* options, size_t struct_size) {
  celer::c_api::Init(celer::c_api::kModelDefaults, struct_size, options);
}

celer_code celer_model_load(const celer_model_options* options, celer_model** model) {
  return Guard([&] { return celer::c_api::Load(options, model); });
}

void celer_model_free(celer_model* model) {
  if (!celer::IsOrphaned()) delete model;
}

celer_code celer_model_get_info(const celer_model* model, celer_model_info* info) {
  return Guard([&] { return celer::c_api::GetInfo(model, info); });
}

celer_code celer_encode(const celer_model* model, const char* text, int32_t* tokens, size_t capacity,
                        size_t* count) {
  return Guard([&]() -> celer::Status {
    CELER_RETURN_IF_ERROR(celer::c_api::Need(model, "model"));
    CELER_RETURN_IF_ERROR(celer::c_api::Need(text, "text"));
    return celer::c_api::Give(model->prompter.EncodeText(text), tokens, capacity, count);
  });
}

celer_code celer_encode_chat(const celer_model* model, const char* messages, const char* tools,
                             int32_t* tokens, size_t capacity, size_t* count) {
  return Guard([&] { return celer::c_api::EncodeChat(model, messages, tools, tokens, capacity, count); });
}

celer_code celer_decode(const celer_model* model, const int32_t* tokens, size_t token_count, char* text,
                        size_t capacity, size_t* count) {
  return Guard([&] { return celer::c_api::Decode(model, tokens, token_count, text, capacity, count); });
}

void celer_request_init(celer_request* request, size_t struct_size) {
  celer::c_api::Init(celer::c_api::kRequestDefaults, struct_size, request);
}

celer_code celer_submit(celer_model* model, const celer_request* request, int64_t* id) {
  return Guard([&] { return celer::c_api::Submit(model, request, id); });
}

celer_code celer_cancel(celer_model* model, int64_t id) {
  return Guard([&] { return celer::c_api::Cancel(model, id); });
}

celer_code celer_poll(celer_model* model, int64_t timeout_ms, celer_event* event) {
  bool came = false;
  const celer_code status = Guard([&]() -> celer::Status {
    CELER_ASSIGN(came, celer::c_api::Poll(model, timeout_ms, event));
    return {};
  });
  return status == CELER_OK && !came ? CELER_TIMEOUT : status;
}
