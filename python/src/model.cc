// Language models: an engine on its own thread, its tokenizer, and queues that gather the answers of requests.
#include <malloc.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <semaphore.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "celer/engine_thread.h"
#include "celer/eval.h"
#include "celer/text.h"
#include "common.h"
#include "device/allocator.h"
#include "engine/runners/find_device.h"
#include "engine/text/prompter.h"
#include "hub/model_path.h"
#include "limits/measured_machine.h"
#include "server/api/answer_text.h"
#include "server/api/params.h"
#include "server/api/pooling.h"
#include "server/api/prepare.h"

namespace celer::python {
namespace {

using server::Json;
using server::Prepared;
using server::Query;

// ---- one answer of a request, as far as it was not reported ----

struct AnswerState {
  explicit AnswerState(const Prompter& prompter, const server::AnswerTextOptions& options)
      : decoder(prompter, options) {}

  server::AnswerText decoder;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenEvent> logprobs;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = TokenEvent::kNoToken;
  std::string error;
  double score = 0;
  bool changed = false;
};

struct Flight {
  int64_t key = 0;
  std::optional<EngineThread::Ticket> ticket;
  std::vector<int32_t> stop_token_ids;
  bool logprobs = false, include_stop = false;
  std::vector<AnswerState> answers;
  std::vector<TokenEvent::PromptToken> prompt;
  std::vector<float> embedding;
  int64_t cached_tokens = 0;
  bool begun = false, last = false, changed = false;

  void Push(TokenEvent event) {
    if (!begun) {
      begun = true;
      cached_tokens = event.cached_tokens;
      prompt = std::move(event.prompt);
    }
    last |= event.last;
    changed = true;
    if (!event.embedding.empty()) embedding = std::move(event.embedding);
    const auto at = static_cast<size_t>(event.answer);
    if (event.answer < 0 || at >= answers.size()) return;
    Deliver(answers[at], std::move(event));
  }

 private:
  void Deliver(AnswerState& answer, TokenEvent event) {
    if (answer.finish != FinishReason::kNone) return;  // the event of our own cancellation, say
    answer.changed = true;
    answer.text += answer.decoder.Push(event);
    answer.finish = answer.decoder.finish();
    answer.score = event.score;
    if (!event.error.empty()) answer.error = event.error;
    if (event.token != TokenEvent::kNoToken) {
      const bool ends = event.finish == FinishReason::kStop;
      const bool named =
          std::find(stop_token_ids.begin(), stop_token_ids.end(), event.token) != stop_token_ids.end();
      if (ends && named) answer.stop_token = event.token;
      answer.tokens.push_back(event.token);
      if (logprobs) answer.logprobs.push_back(std::move(event));
    }
    const bool all_ended = std::all_of(answers.begin(), answers.end(), [](const AnswerState& one) {
      return one.finish != FinishReason::kNone;
    });
    if (answer.decoder.wants_cancel() && all_ended && ticket) ticket->Cancel();
  }
};

// Events of a queue's requests, from the engine's thread. A semaphore tells of them: unlike that of a condition variable its wait
// ends when a signal is handled, so that Python answers Ctrl-C at once.
class Mailbox {
 public:
  using Events = std::deque<std::pair<int64_t, TokenEvent>>;  // by the request's key
  using Time = std::chrono::steady_clock::time_point;

  Mailbox() { sem_init(&arrived_, 0, 0); }
  ~Mailbox() { sem_destroy(&arrived_); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void Push(int64_t key, TokenEvent event) {
    Change([&] { events_.emplace_back(key, std::move(event)); });
  }
  // Ends a wait.
  void Wake() {
    Change([&] { woken_ = true; });
  }
  // What came, waiting for something. `*ends`: set where Wake() or a signal ended the wait.
  Events Take(Time until, bool* ends) {
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
    const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    if (sem_clockwait(&arrived_, CLOCK_MONOTONIC, &time) != 0 && errno == EINTR) *ends = true;
    const std::lock_guard lock(mutex_);
    told_ = false;
    *ends |= std::exchange(woken_, false);
    return std::exchange(events_, {});
  }

 private:
  template <class Fn>
  void Change(const Fn& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
      if (std::exchange(told_, true)) return;
    }
    sem_post(&arrived_);
  }

  sem_t arrived_{};
  std::mutex mutex_;
  Events events_;
  bool told_ = false, woken_ = false;
};

Error ToError(const server::ApiError& error) {
  return Error(error.status >= 500 ? Error::Code::kDevice : Error::Code::kInvalid, error.message);
}
void OrRaise(const server::Refusal& refusal) {
  if (refusal) throw Raised(ToError(*refusal));
}

struct Loaded {
  Loaded(server::ServedModel its_model, std::unique_ptr<Engine> engine)
      : model(std::move(its_model)), thread(std::move(engine)) {}

  const server::ServedModel model;
  EngineThread thread;
};

// What a Model and its queues share. A call that began before the model was closed, on another thread, keeps what it uses.
class Handle {
 public:
  explicit Handle(std::unique_ptr<Loaded> loaded) : loaded_(Guarded(std::move(loaded))) {}

  std::shared_ptr<Loaded> Get() const {
    python::OrRaise(CheckFork());
    const std::lock_guard lock(mutex_);
    if (!loaded_) throw Raised(Error::Invalid("the model was closed"));
    return loaded_;
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return !loaded_;
  }
  void Close() {
    std::shared_ptr<Loaded> last;
    {
      const std::lock_guard lock(mutex_);
      last.swap(loaded_);
    }
    if (!last) return;
    if (!IsOrphaned()) last->thread.Stop(EngineThread::Ending::kCancel);
    last.reset();
    ReleaseCachedMemory();  // of GPUs
    malloc_trim(0);         // else what threads that are gone had freed stays with the process
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Loaded> loaded_;
};

nb::object LogprobRow(const std::vector<TokenLogprob>& top, int32_t token, float logprob) {
  nb::list row;
  row.append(nb::make_tuple(token, logprob));
  for (const TokenLogprob& one : top) row.append(nb::make_tuple(one.token, one.logprob));
  return row;
}

// ---- a queue: some requests, and what came of them ----

class Queue {
 public:
  explicit Queue(std::shared_ptr<Handle> model) : model_(std::move(model)) {}
  // (key, token ids of the prompt) of a request whose body is like one of vLLM's server for that endpoint.
  std::pair<int64_t, std::vector<int32_t>> Submit(const std::string& endpoint, const std::string& body,
                                                  double timeout) {
    const std::shared_ptr<Loaded> kept = model_->Get();
    Loaded& loaded = *kept;
    Query query;
    Prepared prepared;
    Read(loaded, endpoint, body, &query, &prepared);
    Request& request = prepared.requests.front();
    if (timeout > 0)
      request.deadline =
          std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                 std::chrono::duration<double>(timeout));
    std::vector<int32_t> prompt = request.prompt;
    const std::lock_guard lock(mutex_);
    const int64_t key = next_key_++;
    Flight& flight = Begin(loaded, query, request, key);
    auto ticket = loaded.thread.Submit(
        std::move(request), [to = mailbox_, key](TokenEvent event) { to->Push(key, std::move(event)); });
    if (!ticket) {
      flights_->erase(key);
      throw Raised(ticket.error());
    }
    flight.ticket.emplace(std::move(*ticket));
    return {key, std::move(prompt)};
  }

  void Cancel(int64_t key) {
    if (IsOrphaned()) return;
    const std::lock_guard lock(mutex_);
    if (const auto found = flights_->find(key); found != flights_->end()) found->second.ticket->Cancel();
  }

  // Requests whose end was not reported.
  size_t size() {
    const std::lock_guard lock(mutex_);
    return flights_->size();
  }

  // Ends a Take() that waits.
  void Wake() { mailbox_->Wake(); }

  // What came since the last call, waiting for something; [] if nothing did in time or before a signal was handled. `whole`:
  // requests that have ended, each once; else everything new.
  nb::list Take(double seconds, bool whole) {
    python::OrRaise(CheckFork());
    std::vector<std::pair<bool, Flight*>> ready;
    std::unique_lock taking(taking_, std::defer_lock);
    {
      const ReleaseGil release;
      taking.lock();
      const Mailbox::Time until = std::chrono::steady_clock::now() +
                                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)));
      bool ends = false;
      do {
        Drain(until, &ends);
        const std::lock_guard lock(mutex_);
        for (auto& [key, flight] : *flights_)
          if (whole ? flight.last : flight.changed) ready.emplace_back(flight.last, &flight);
      } while (ready.empty() && !ends && std::chrono::steady_clock::now() < until);
    }
    // Only who takes changes or removes flights, so the pointers hold.
    nb::list out;
    for (const auto& [last, flight] : ready) {
      out.append(Report(*flight));
      const std::lock_guard lock(mutex_);
      if (last) flights_->erase(flight->key);
    }
    return out;
  }

 private:
  static void Read(Loaded& loaded, const std::string& endpoint, const std::string& body, Query* query,
                   Prepared* prepared) {
    const server::ServedModel& model = loaded.model;
    Json json;
    OrRaise(server::ParseBody(body, &json));
    query->endpoint = endpoint == "chat"    ? server::kChat
                      : endpoint == "embed" ? server::kEmbeddings
                                            : server::kCompletions;
    query->request.sampling = DefaultSampling(model);
    OrRaise(server::ReadParams(json, query, nullptr));
    if (query->endpoint == server::kEmbeddings) {
      OrRaise(server::PrepareEmbeddings(model, *query, prepared));
      return;
    }
    // An answer never exceeds the context: max_tokens is cut to what is left.
    const std::optional<int64_t> asked = std::exchange(query->max_tokens, std::nullopt);
    if (query->endpoint == server::kCompletions) {
      Prepared ids;
      OrRaise(server::Tokenize(model, *query, nullptr, &ids));
      if (ids.requests.size() != 1)
        throw Raised(Error::Invalid("prompt holds several prompts, expected one"));
      std::vector<int32_t>& prompt = ids.requests.front().prompt;
      if (prompt.empty() && model.prompter.bos()) prompt = {*model.prompter.bos()};
      auto length = static_cast<int64_t>(prompt.size());
      if (query->truncate_prompt > 0) length = std::min(length, query->truncate_prompt);
      const int64_t left = std::max<int64_t>(1, model.info.context - length);
      query->max_tokens = std::min(asked.value_or(left), left);
      query->prompts = {{.text = {}, .ids = std::move(prompt), .is_text = false}};
    }
    OrRaise(server::Prepare(model, nullptr, *query, prepared));
    Request& request = prepared->requests.front();
    if (asked) request.max_tokens = std::min(std::max<int64_t>(1, *asked), request.max_tokens);
    if (request.min_tokens > request.max_tokens)
      throw Raised(Error::Invalid("min_tokens is ", request.min_tokens, ", but the answer may have ",
                                  request.max_tokens, " tokens"));
  }

  Flight& Begin(const Loaded& loaded, const Query& query, const Request& request, int64_t key) {
    Flight& flight = (*flights_)[key];
    flight.key = key;
    flight.stop_token_ids = query.stop_token_ids;
    flight.logprobs = request.sampling.logprobs >= 0;
    flight.include_stop = query.include_stop;
    const server::AnswerTextOptions options{.stop = query.stop,
                                            .include_stop = query.include_stop,
                                            .skip_special = query.skip_special,
                                            .min_tokens = request.min_tokens};
    for (int i = 0; i < request.n; ++i) flight.answers.emplace_back(loaded.model.prompter, options);
    return flight;
  }

  // Moves events to their requests, waiting for the first.
  void Drain(Mailbox::Time until, bool* ends) {
    Mailbox::Events events = mailbox_->Take(until, ends);
    const std::lock_guard lock(mutex_);
    for (auto& [key, event] : events)
      if (const auto found = flights_->find(key); found != flights_->end())
        found->second.Push(std::move(event));
  }

  static nb::object Report(Flight& flight) {
    flight.changed = false;
    nb::list answers;
    for (size_t i = 0; i < flight.answers.size(); ++i) {
      AnswerState& answer = flight.answers[i];
      if (!std::exchange(answer.changed, false)) continue;
      nb::dict row;
      row["index"] = i;
      row["text"] = nb::str(answer.text.data(), answer.text.size());
      nb::list tokens;
      for (const int32_t token : answer.tokens) tokens.append(token);
      row["tokens"] = tokens;
      nb::list logprobs;
      for (const TokenEvent& event : answer.logprobs)
        logprobs.append(LogprobRow(event.top, event.token, event.logprob));
      row["logprobs"] = logprobs;
      if (answer.finish != FinishReason::kNone) {
        row["finish"] = nb::str(Name(answer.finish));
        row["score"] = answer.score;
        if (!answer.error.empty()) row["error"] = nb::str(answer.error.data(), answer.error.size());
        const std::string& stop = answer.decoder.stop_string();
        if (!stop.empty())
          row["stop_reason"] = nb::str(stop.data(), stop.size());
        else if (answer.stop_token != TokenEvent::kNoToken)
          row["stop_reason"] = answer.stop_token;
      }
      answer.text.clear();
      answer.tokens.clear();
      answer.logprobs.clear();
      answers.append(row);
    }
    nb::dict out;
    out["key"] = flight.key;
    out["answers"] = answers;
    out["last"] = flight.last;
    out["cached_tokens"] = flight.cached_tokens;
    if (!flight.prompt.empty()) {
      nb::list rows;
      for (const TokenEvent::PromptToken& token : flight.prompt) {
        nb::list row;
        row.append(token.logprob);
        for (const TokenLogprob& one : token.top) row.append(nb::make_tuple(one.token, one.logprob));
        rows.append(row);
      }
      out["prompt_logprobs"] = rows;
      flight.prompt.clear();
    }
    if (!flight.embedding.empty()) {
      nb::list values;
      for (const float value : flight.embedding) values.append(value);
      out["embedding"] = values;
    }
    return out;
  }

  std::shared_ptr<Handle> model_;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::mutex taking_;  // one Take() at a time; of the next, too
  std::mutex mutex_;   // of the next
  // In a forked child they are left alone: their tickets would wait for a lock of the parent's.
  std::shared_ptr<std::map<int64_t, Flight>> flights_ =
      Guarded(std::make_unique<std::map<int64_t, Flight>>());
  int64_t next_key_ = 0;
};

// ---- the model ----

struct LoadSettings {
  std::string model, tokenizer, chat_template, weights, kv, kv_memory, device, speculation, pooling;
  int64_t kv_host_memory, context, chunk, sequences, max_loras, max_lora_rank, threads, tensor_parallel_size;
  double gpu_memory;  // share of a GPU for keys and values where kv_memory says nothing; 0: nearly all
  bool prefix_cache, deterministic, enable_lora;
};

Result<EngineOptions> ToOptions(const LoadSettings& given) {
  EngineOptions options;
  CELER_ASSIGN(const auto path, cli::ResolveModelPath(given.model));
  options.model = path.string();
  CELER_ASSIGN(options.weights, WeightOptions::Parse(given.weights));
  CELER_ASSIGN(options.kv, ParseKvType(given.kv));
  if (!given.kv_memory.empty()) {
    CELER_ASSIGN(options.kv_memory, KvMemory::Parse(given.kv_memory));
  }
  CELER_RETURN_IF_ERROR(SetPlacement({.device = given.device}, &options));
  if (!(given.gpu_memory >= 0 && given.gpu_memory <= 1))
    return Error::Invalid("gpu_memory is ", given.gpu_memory, ", expected 0 to 1");
  if (given.kv_memory.empty() && given.gpu_memory > 0) {
    CELER_ASSIGN(const Device device, FindDevice(options.device));
    if (!device.is_cpu()) options.kv_memory.share = given.gpu_memory;
  }
  CELER_ASSIGN(options.speculation, Speculation::Parse(given.speculation));
  if (std::string& draft = options.speculation.draft; !draft.empty() && !draft.starts_with("self:")) {
    CELER_ASSIGN(const auto draft_path, cli::ResolveModelPath(draft));
    draft = draft_path.string();
  }
  const auto check = [](const char* name, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return Error::Invalid(name, " is ", value, ", expected ", low, " to ", high);
  };
  CELER_RETURN_IF_ERROR(check("threads", given.threads, 0, 1024));
  CELER_RETURN_IF_ERROR(check("context", given.context, 0, int64_t{1} << 31));
  CELER_RETURN_IF_ERROR(check("chunk", given.chunk, 1, 65536));
  CELER_RETURN_IF_ERROR(check("sequences", given.sequences, 0, 1 << 20));
  CELER_RETURN_IF_ERROR(check("kv_host_memory", given.kv_host_memory, 0, int64_t{1} << 50));
  options.threads = static_cast<int>(given.threads);
  options.context = given.context;
  options.chunk = given.chunk;
  options.sequences = given.sequences;
  options.kv_host_memory = given.kv_host_memory;
  options.prefix_cache = given.prefix_cache;
  options.deterministic = given.deterministic;
  CELER_RETURN_IF_ERROR(check("tensor_parallel_size", given.tensor_parallel_size, 1, 64));
  options.parallel.tensor_parallel_size = given.tensor_parallel_size;
  CELER_RETURN_IF_ERROR(check("max_loras", given.max_loras, 0, 1 << 20));
  CELER_RETURN_IF_ERROR(check("max_lora_rank", given.max_lora_rank, 0, 1 << 20));
  options.lora = {.standing = false,
                  .max_adapters = given.max_loras,
                  .max_rank = given.max_lora_rank,
                  .grows = given.enable_lora};
  return options;
}

Result<Pooling> ParsePooling(const std::string& text) {
  if (text.empty()) return Pooling::kNone;
  if (text == "mean") return Pooling::kMean;
  if (text == "last") return Pooling::kLast;
  return Error::Invalid("pooling is '", text, "', expected mean or last");
}

Result<std::unique_ptr<Loaded>> LoadModel(const LoadSettings& given) {
  CELER_ASSIGN(const EngineOptions options, ToOptions(given));
  CELER_ASSIGN(const Pooling pooling, ParsePooling(given.pooling));
  CELER_ASSIGN(Prompter prompter, Prompter::Load({.model = options.model,
                                                  .tokenizer = given.tokenizer,
                                                  .chat_template = given.chat_template}));
  CELER_ASSIGN(auto engine, Engine::Load(options));
  CELER_RETURN_IF_ERROR(prompter.CheckFits(engine->info()));
  CELER_ASSIGN(server::ServedModel model,
               server::MakeServedModel(given.model, prompter, engine->info(), given.chat_template));
  CELER_ASSIGN(model.pooling, server::ChoosePooling(options.model, pooling));
  model.adapters = engine->adapters();
  return std::make_unique<Loaded>(std::move(model), std::move(engine));
}

using Floats = nb::ndarray<nb::numpy, float>;

// A numpy array that owns the memory.
Floats ToNumpy(std::vector<float> values, std::initializer_list<size_t> shape) {
  auto* const kept = new std::vector<float>(std::move(values));
  const nb::capsule owner(kept,
                          [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
  return Floats(kept->data(), shape, owner);
}

class Model {
 public:
  explicit Model(const LoadSettings& settings) {
    python::OrRaise(NoteThreads());
    const ReleaseGil release;
    handle_ = std::make_shared<Handle>(python::OrRaise(LoadModel(settings)));
  }
  ~Model() { Close(); }

  void Close() {
    const ReleaseGil release;
    if (handle_) handle_->Close();
  }
  bool closed() const { return handle_->closed(); }
  Queue* NewQueue() {
    Get();
    return new Queue(handle_);
  }

  nb::dict Info() const {
    const std::shared_ptr<Loaded> kept = Get();
    const Engine::Info& info = kept->thread.info();
    nb::dict out;
    out["architecture"] = info.architecture;
    out["vocab_size"] = info.vocab;
    out["context"] = info.context;
    out["max_positions"] = info.max_positions;
    out["kv_tokens"] = info.kv_tokens;
    out["hidden_size"] = info.shape.hidden;
    out["layers"] = info.shape.layers;
    out["weight_bytes"] = info.weight_bytes;
    out["kv_bytes_per_token"] = info.kv_bytes_per_token;
    out["threads"] = info.threads;
    out["device"] = info.device;
    nb::dict formats;
    for (const auto& [format, bytes] : info.bytes_by_format) formats[nb::str(format.c_str())] = bytes;
    out["bytes_by_format"] = formats;
    return out;
  }

  nb::dict Stats() const {
    const std::shared_ptr<Loaded> kept = Get();
    const EngineStats stats = kept->thread.stats();
    nb::dict out;
    out["steps"] = stats.steps;
    out["requests"] = stats.requests;
    out["finished"] = stats.finished;
    out["running"] = stats.running;
    out["waiting"] = stats.waiting;
    out["generated_tokens"] = stats.generated_tokens;
    out["prompt_tokens"] = stats.prompt_tokens;
    out["cached_tokens"] = stats.cached_tokens;
    out["kv_blocks"] = stats.kv_blocks;
    out["kv_blocks_used"] = stats.kv_blocks_used;
    out["kv_blocks_cached"] = stats.kv_blocks_cached;
    out["evictions"] = stats.evictions;
    out["drafted_tokens"] = stats.drafted_tokens;
    out["accepted_tokens"] = stats.accepted_tokens;
    return out;
  }

  nb::dict Defaults() const {
    const std::shared_ptr<Loaded> kept = Get();
    const SamplingParams& sampling = kept->model.prompter.default_sampling();
    nb::dict out;
    out["temperature"] = sampling.temperature;
    out["top_k"] = sampling.top_k;
    out["top_p"] = sampling.top_p;
    out["min_p"] = sampling.min_p;
    out["repetition_penalty"] = sampling.repetition_penalty;
    return out;
  }

  void LoadAdapter(const std::string& name, const std::string& path, bool replace) const {
    const std::shared_ptr<Loaded> kept = Get();
    const Loaded& loaded = *kept;
    const ReleaseGil release;
    python::OrRaise(loaded.model.adapters->Load(
        {.name = name, .path = path}, {.replace = replace, .when_full = Adapters::WhenFull::kUnloadIdle}));
  }
  void UnloadAdapter(const std::string& name) const { python::OrRaise(Get()->model.adapters->Unload(name)); }
  nb::list ListAdapters() const {
    nb::list list;
    for (const Adapters::Info& info : Get()->model.adapters->List()) {
      nb::dict row;
      row["name"] = info.name;
      row["path"] = info.path;
      row["bytes"] = info.bytes;
      row["rank"] = info.rank;
      row["in_use"] = info.in_use;
      list.append(row);
    }
    return list;
  }

  std::vector<int32_t> Encode(const std::string& text, bool add_special, bool parse_special) const {
    const std::shared_ptr<Loaded> kept = Get();
    const Loaded& loaded = *kept;
    const ReleaseGil release;
    return GetTokenizer(loaded.model.prompter)
        .Encode(text, {.add_special = add_special, .parse_special = parse_special});
  }
  std::string Decode(const std::vector<int32_t>& tokens, bool skip_special) const {
    const std::shared_ptr<Loaded> kept = Get();
    const Loaded& loaded = *kept;
    CheckTokens(tokens);
    const ReleaseGil release;
    return loaded.model.prompter.Decode(tokens, skip_special);
  }
  std::vector<int32_t> EncodeChat(const std::string& body) const {
    const std::shared_ptr<Loaded> kept = Get();
    const Loaded& loaded = *kept;
    const ReleaseGil release;
    Json json;
    OrRaise(server::ParseBody(body, &json));
    Query query;
    query.endpoint = server::kTokenize;
    OrRaise(server::ReadParams(json, &query, nullptr));
    Prepared prepared;
    OrRaise(server::Tokenize(loaded.model, query, nullptr, &prepared));
    return std::move(prepared.requests.front().prompt);
  }
  nb::bytes Piece(int32_t token) const {
    CheckTokens({token});
    const std::shared_ptr<Loaded> kept = Get();
    const std::string piece(GetTokenizer(kept->model.prompter).Piece(token));
    return nb::bytes(piece.data(), piece.size());
  }
  std::optional<int32_t> Bos() const { return Get()->model.prompter.bos(); }
  std::vector<int32_t> EndTokens() const { return Get()->model.prompter.end_tokens(); }
  bool HasChatTemplate() const { return Get()->model.prompter.has_chat_template(); }

  // [tokens, vocab]: row i predicts what follows token i.
  Floats Logits(std::vector<int32_t> tokens) const {
    const std::shared_ptr<Loaded> kept = Get();
    Loaded& loaded = *kept;
    CheckTokens(tokens);
    if (tokens.empty()) throw Raised(Error::Invalid("tokens is empty, expected at least one"));
    const size_t rows = tokens.size(), vocab = static_cast<size_t>(loaded.thread.info().vocab);
    tokens.push_back(0);  // is predicted, and not read
    std::vector<float> out;
    {
      const ReleaseGil release;
      CheckContext(loaded, tokens.size());
      out.resize(rows * vocab);
      python::OrRaise(OnEngine(loaded, [&](Engine& engine) {
        return engine.VisitLogits(tokens, 1, [&](int64_t i, std::span<const float> logits) {
          std::copy(logits.begin(), logits.end(),
                    out.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i - 1) * vocab));
        });
      }));
    }
    return ToNumpy(std::move(out), {rows, vocab});
  }

  // log p(tokens[i] | those before) for i from `first` on.
  Floats Score(const std::vector<int32_t>& tokens, int64_t first) const {
    const std::shared_ptr<Loaded> kept = Get();
    Loaded& loaded = *kept;
    CheckTokens(tokens);
    std::vector<float> out;
    {
      const ReleaseGil release;
      CheckContext(loaded, tokens.size());
      if (first < 1 || first >= std::ssize(tokens))
        throw Raised(Error::Invalid("first is ", first, ", expected 1 to ", std::ssize(tokens) - 1));
      python::OrRaise(OnEngine(loaded, [&](Engine& engine) -> Status {
        CELER_ASSIGN(out, engine.Score(tokens, first));
        return {};
      }));
    }
    const size_t count = out.size();
    return ToNumpy(std::move(out), {count});
  }

  // The windows of `celer ppl`: token ids, and the first that is scored.
  nb::list Windows(const std::string& text, int64_t window, int64_t stride) const {
    const std::shared_ptr<Loaded> kept = Get();
    const Loaded& loaded = *kept;
    const auto cut = [&] {
      const ReleaseGil release;
      CheckContext(loaded, static_cast<size_t>(window));
      return python::OrRaise(TextWindows::Cut(loaded.model.prompter, text, "the text", window, stride, 0));
    }();
    nb::list out;
    for (int64_t i = 0; i < cut.count(); ++i) {
      nb::list tokens;
      for (const int32_t token : cut.Tokens(i)) tokens.append(token);
      out.append(nb::make_tuple(tokens, cut.First(i)));
    }
    return out;
  }

 private:
  std::shared_ptr<Loaded> Get() const { return handle_->Get(); }
  void CheckTokens(const std::vector<int32_t>& tokens) const {
    const int64_t vocab = Get()->thread.info().vocab;
    for (const int32_t token : tokens)
      if (token < 0 || token >= vocab)
        throw Raised(Error::Invalid("there is no token ", token, ": the model has ", vocab, " tokens"));
  }
  static void CheckContext(const Loaded& loaded, size_t tokens) {
    const int64_t context = loaded.thread.info().context;
    if (static_cast<int64_t>(tokens) > context)
      throw Raised(Error::Invalid("there are ", tokens, " tokens, and the context holds ", context,
                                  "; load the model with a larger context"));
  }
  // Between two steps of the engine's thread.
  template <class Fn>
  static Status OnEngine(Loaded& loaded, const Fn& work) {
    Status status;
    CELER_RETURN_IF_ERROR(loaded.thread.Run([&](Engine& engine) { status = work(engine); }));
    return status;
  }

  std::shared_ptr<Handle> handle_;
};

}  // namespace

void BindModel(nb::module_& module) {
  nb::class_<Queue>(module, "Queue")
      .def(
          "submit",
          [](Queue& queue, const std::string& endpoint, const std::string& body, double timeout) {
            const auto [key, prompt] = [&] {
              const ReleaseGil release;
              return queue.Submit(endpoint, body, timeout);
            }();
            nb::list tokens;
            for (const int32_t token : prompt) tokens.append(token);
            return nb::make_tuple(key, tokens);
          },
          nb::arg("endpoint"), nb::arg("body"), nb::arg("timeout") = 0.0)
      .def("take", &Queue::Take, nb::arg("seconds"), nb::arg("whole") = false)
      .def("cancel", &Queue::Cancel, nb::arg("key"), nb::call_guard<ReleaseGil>())
      .def("wake", &Queue::Wake, nb::call_guard<ReleaseGil>())
      .def("__len__", &Queue::size);
  nb::class_<Model>(module, "Model")
      .def(
          "__init__",
          [](Model* self, std::string model, std::string tokenizer, std::string chat_template,
             std::string weights, std::string kv, std::string kv_memory, int64_t kv_host_memory,
             std::string device, int64_t threads, int64_t context, int64_t chunk, int64_t sequences,
             bool prefix_cache, bool deterministic, std::string speculation, std::string pooling,
             bool enable_lora, int64_t max_loras, int64_t max_lora_rank, int64_t tensor_parallel_size,
             double gpu_memory) {
            new (self) Model({.model = std::move(model),
                              .tokenizer = std::move(tokenizer),
                              .chat_template = std::move(chat_template),
                              .weights = std::move(weights),
                              .kv = std::move(kv),
                              .kv_memory = std::move(kv_memory),
                              .device = std::move(device),
                              .speculation = std::move(speculation),
                              .pooling = std::move(pooling),
                              .kv_host_memory = kv_host_memory,
                              .context = context,
                              .chunk = chunk,
                              .sequences = sequences,
                              .max_loras = max_loras,
                              .max_lora_rank = max_lora_rank,
                              .threads = threads,
                              .tensor_parallel_size = tensor_parallel_size,
                              .gpu_memory = gpu_memory,
                              .prefix_cache = prefix_cache,
                              .deterministic = deterministic,
                              .enable_lora = enable_lora});
          },
          nb::arg("model"), nb::kw_only(), nb::arg("tokenizer"), nb::arg("chat_template"), nb::arg("weights"),
          nb::arg("kv"), nb::arg("kv_memory"), nb::arg("kv_host_memory"), nb::arg("device"),
          nb::arg("threads"), nb::arg("context"), nb::arg("chunk"), nb::arg("sequences"),
          nb::arg("prefix_cache"), nb::arg("deterministic"), nb::arg("speculation"), nb::arg("pooling"),
          nb::arg("enable_lora"), nb::arg("max_loras"), nb::arg("max_lora_rank"),
          nb::arg("tensor_parallel_size"), nb::arg("gpu_memory"))
      .def("close", &Model::Close)
      .def_prop_ro("closed", &Model::closed)
      .def("queue", &Model::NewQueue, nb::rv_policy::take_ownership)
      .def("info", &Model::Info)
      .def("stats", &Model::Stats)
      .def("defaults", &Model::Defaults)
      .def("load_adapter", &Model::LoadAdapter, nb::arg("name"), nb::arg("path"), nb::arg("replace"))
      .def("unload_adapter", &Model::UnloadAdapter, nb::arg("name"))
      .def("adapters", &Model::ListAdapters)
      .def("encode", &Model::Encode, nb::arg("text"), nb::arg("add_special"), nb::arg("parse_special"))
      .def("decode", &Model::Decode, nb::arg("tokens"), nb::arg("skip_special"))
      .def("encode_chat", &Model::EncodeChat, nb::arg("body"))
      .def("piece", &Model::Piece, nb::arg("token"))
      .def("bos", &Model::Bos)
      .def("end_tokens", &Model::EndTokens)
      .def("has_chat_template", &Model::HasChatTemplate)
      .def("logits", &Model::Logits, nb::arg("tokens"))
      .def("score", &Model::Score, nb::arg("tokens"), nb::arg("first"))
      .def("windows", &Model::Windows, nb::arg("text"), nb::arg("window"), nb::arg("stride"));
}

}  // namespace celer::python
