#include "loadtest/http/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "io/json/json.h"

namespace celer::cli {
namespace {

// The message of an error in OpenAI's form, or the beginning of whatever it is.
std::string ErrorMessage(const std::string& body) {
  const nlohmann::json parsed = nlohmann::json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error")) {
    const nlohmann::json& error = parsed["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>();
    if (error.is_string()) return error.get<std::string>();
  }
  constexpr size_t kMost = 200;
  return body.substr(0, kMost);
}

int64_t CountIn(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

std::string_view TextIn(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_string()) return {};
  return it->get_ref<const std::string&>();
}

// The answer to one request, piece by piece.
class AnswerReader {
 public:
  // True if the data brings a piece of the answer.
  bool Take(std::string_view data) {
    if (data == "[DONE]") {
      ended_ = true;
      return false;
    }
    const nlohmann::json chunk = nlohmann::json::parse(data, nullptr, false);
    if (!chunk.is_object()) {
      error_ = "a piece of the stream is no JSON object: " + std::string(data.substr(0, 100));
      return false;
    }
    if (const auto error = chunk.find("error"); error != chunk.end() && !error->is_null()) {
      error_ = ErrorMessage(std::string(data));
      return false;
    }
    if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) TakeUsage(*usage);
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array() || choices->empty()) return false;
    return TakeChoice(choices->front());
  }

  bool complete() const { return ended_ || finished_; }
  const std::string& error() const { return error_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }  // -1: the server did not say
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t answer_tokens() const { return answer_tokens_; }
  uint64_t checksum() const { return checksum_; }

 private:
  void TakeUsage(const nlohmann::json& usage) {
    prompt_tokens_ = CountIn(usage, "prompt_tokens");
    answer_tokens_ = CountIn(usage, "completion_tokens");
    if (const auto details = usage.find("prompt_tokens_details");
        details != usage.end() && details->is_object())
      cached_tokens_ = CountIn(*details, "cached_tokens");
  }

  bool TakeChoice(const nlohmann::json& choice) {
    if (!choice.is_object()) return false;
    bool piece = AddText(TextIn(choice, "text"));
    if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
      piece |= AddText(TextIn(*delta, "content"));
      piece |= AddText(TextIn(*delta, "reasoning_content"));
      piece |= delta->contains("tool_calls") && !(*delta)["tool_calls"].empty();
    }
    const auto finish = choice.find("finish_reason");
    const bool finished = finish != choice.end() && !finish->is_null();
    finished_ |= finished;
    // An answer whose tokens are all invisible still came.
    piece |= finished && !any_;
    any_ |= piece;
    return piece;
  }

  bool AddText(std::string_view text) {
    for (const char c : text) checksum_ = ExtendChecksum(checksum_, static_cast<unsigned char>(c));
    return !text.empty();
  }

  bool ended_ = false, finished_ = false, any_ = false;
  std::string error_;
  int64_t prompt_tokens_ = -1, cached_tokens_ = -1, answer_tokens_ = -1;
  uint64_t checksum_ = 0;
};

class LoadPlayer {
 public:
  LoadPlayer(const HttpClientOptions& server, const Trace& trace, const LoadShape& shape,
             const RequestMaker& maker, const std::function<void(int64_t)>& progress)
      : target_(server.url.base + maker.path()),
        trace_(trace),
        prompts_(maker.InWords(trace)),
        shape_(shape),
        maker_(maker),
        progress_(progress),
        checksums_(trace.requests.size()) {
    for (const TraceRequest& request : trace.requests)
      run_.replay.requests.push_back(
          {.arrival_s = request.arrival_s, .prompt = request.prompt, .output = request.output});
  }

  Result<ServerRun> Run(const HttpClientOptions& server) {
    CELER_ASSIGN(client_, HttpClient::Make(loop_, server));
    const std::clock_t cpu = std::clock();
    start_ = server::Clock::now();
    loop_.Post([this] { SendArrived(); });
    loop_.Run();
    run_.cpu_s = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
    for (size_t i = 0; i < checksums_.size(); ++i) run_.replay.text += ExtendChecksum(checksums_[i], i);
    client_.reset();
    return std::move(run_);
  }

 private:
  struct Running {
    size_t index = 0;
    int status = 0;
    bool stream = false;
    std::string body = {};  // of what is no stream
    EventStream events = {};
    AnswerReader answer = {};
    int64_t pieces = 0;
  };

  double Now() const { return std::chrono::duration<double>(server::Clock::now() - start_).count(); }

  void SendArrived() {
    timer_.reset();
    for (; next_ < trace_.requests.size(); ++next_) {
      const bool waits_for_others = shape_.concurrency > 0 && open_ >= shape_.concurrency;
      if (waits_for_others) return;
      ReplayedRequest& request = run_.replay.requests[next_];
      const double now = Now();
      if (shape_.closed) {
        request.arrival_s = now;
      } else if (request.arrival_s > now) {
        timer_ = loop_.After(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::duration<double>(request.arrival_s - now)),
                             [this] { SendArrived(); });
        return;
      } else if (shape_.concurrency == 0) {
        run_.late_s = std::max(run_.late_s, now - request.arrival_s);
      }
      Start(next_);
    }
    if (open_ == 0) loop_.Stop();
  }

  void Start(size_t index) {
    run_.most_open = std::max(run_.most_open, ++open_);
    const auto running = std::make_shared<Running>();
    running->index = index;
    client_->Send(
        "POST", target_, maker_.Body(prompts_, index, true).dump(),
        {.on_head =
             [running](int status, std::string_view type) {
               running->status = status;
               running->stream = status == 200 && type.starts_with("text/event-stream");
             },
         .on_body = [this, running](std::string_view piece) { TakeBody(*running, piece); },
         .on_end = [this, running](const std::optional<HttpFailure>& failure) { End(*running, failure); }});
  }

  void TakeBody(Running& running, std::string_view piece) {
    constexpr size_t kMostKept = 64 << 10;
    if (!running.stream) {
      if (running.body.size() < kMostKept) running.body += piece;
      return;
    }
    const double now = Now();
    running.events.Push(piece, [&](std::string_view data) {
      if (!running.answer.Take(data)) return;
      ReplayedRequest& request = run_.replay.requests[running.index];
      if (running.pieces++ == 0)
        request.first_s = now;
      else
        run_.replay.gaps.push_back(now - request.last_s);
      request.last_s = now;
      run_.token_s.push_back(now);
    });
  }

  void End(const Running& running, const std::optional<HttpFailure>& failure) {
    ReplayedRequest& request = run_.replay.requests[running.index];
    const AnswerReader& answer = running.answer;
    if (answer.prompt_tokens() > 0) request.prompt = answer.prompt_tokens();
    request.cached = std::max<int64_t>(0, answer.cached_tokens());
    request.tokens = answer.answer_tokens() > 0 ? answer.answer_tokens() : running.pieces;
    run_.reported += answer.answer_tokens() > 0 ? 1 : 0;
    run_.pieces += running.pieces;
    if (failure)
      Failed(&request, failure->kind, failure->message);
    else if (running.status != 200)
      Failed(&request, fmt::format("HTTP {}", running.status), ErrorMessage(running.body));
    else if (!running.stream)
      Failed(&request, "no stream", "the answer is no event stream: " + ErrorMessage(running.body));
    else if (!answer.error().empty())
      Failed(&request, "in the stream", answer.error());
    else if (!answer.complete() || running.pieces == 0)
      Failed(&request, "cut off", "the stream ended before the answer did");
    else
      request.done = true;
    checksums_[running.index] = answer.checksum();
    --open_;
    progress_(++ended_);
    SendArrived();
  }

  void Failed(ReplayedRequest* request, const std::string& kind, const std::string& message) {
    request->error = kind + ": " + message;
    LoadError& error = run_.errors[kind];
    if (error.count++ == 0) error.first = message;
  }

  server::EventLoop loop_;
  std::unique_ptr<HttpClient> client_;
  std::unique_ptr<server::EventLoop::Timer> timer_;
  server::Clock::time_point start_ = {};
  const std::string target_;
  const Trace& trace_;
  const Trace prompts_;  // as the requests have them
  const LoadShape shape_;
  const RequestMaker& maker_;
  const std::function<void(int64_t)>& progress_;
  ServerRun run_;
  std::vector<uint64_t> checksums_;
  size_t next_ = 0;
  int64_t open_ = 0, ended_ = 0;
};

// A prompt that begins like none of the trace's.
Trace Sample(int64_t words) {
  return {.name = "sample",
          .block_tokens = static_cast<double>(words),
          .requests = {{.prompt = words, .output = 1, .hashes = {-words}}}};
}

// Tokens of the prompt as the server counts them; 0: it does not say.
Result<int64_t> PromptTokens(const HttpClientOptions& server, const Trace& trace, const RequestMaker& maker) {
  const std::string target = server.url.base + maker.path();
  CELER_ASSIGN(const HttpAnswer answer, Fetch(server, "POST", target, maker.Body(trace, 0, false).dump()));
  const std::string where = server.url.Origin() + target;
  if (answer.status != 200)
    return Error::Io(where, ": HTTP ", answer.status, ": ", ErrorMessage(answer.body));
  CELER_ASSIGN(const nlohmann::json body, ParseJson(answer.body, where));
  if (!body.is_object() || !body.contains("usage") || !body["usage"].is_object()) return 0;
  return std::max<int64_t>(0, CountIn(body["usage"], "prompt_tokens"));
}

}  // namespace

Status Prepare(const HttpClientOptions& server, RequestMaker* maker) {
  if (maker->model.empty()) {
    const std::string target = server.url.base + "/models", where = server.url.Origin() + target;
    CELER_ASSIGN(const HttpAnswer answer, Fetch(server, "GET", target, ""));
    if (answer.status != 200)
      return Error::Io(where, ": HTTP ", answer.status, ": ", ErrorMessage(answer.body));
    CELER_ASSIGN(const nlohmann::json body, ParseJson(answer.body, where));
    if (!body.is_object() || !body.contains("data") || !body["data"].is_array() || body["data"].empty() ||
        TextIn(body["data"][0], "id").empty())
      return Error::Io(where, ": names no model; give MODEL");
    maker->model = TextIn(body["data"][0], "id");
  }
  constexpr int64_t kFew = 8, kMany = 72;
  CELER_ASSIGN(const int64_t first, PromptTokens(server, Sample(kFew), *maker));
  if (maker->token_ids > 0 || first == 0) return {};
  CELER_ASSIGN(const int64_t second, PromptTokens(server, Sample(kMany), *maker));
  if (second <= first) return {};
  maker->words_per_token = static_cast<double>(kMany - kFew) / static_cast<double>(second - first);
  maker->tokens_before =
      std::max(0.0, static_cast<double>(first) - static_cast<double>(kFew) / maker->words_per_token);
  return {};
}

Result<ServerRun> PlayAgainstServer(const HttpClientOptions& server, const Trace& trace,
                                    const LoadShape& shape, const RequestMaker& maker,
                                    const std::function<void(int64_t)>& progress) {
  CELER_CHECK(!shape.closed || shape.concurrency > 0);
  return LoadPlayer(server, trace, shape, maker, progress).Run(server);
}

}  // namespace celer::cli
