// The wire format of an endpoint's answers: one JSON object, or the frames of an SSE stream.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/answer_parser.h"
#include "server/api/answer_text.h"
#include "server/api/prepare.h"
#include "server/api/query.h"

namespace celer::server {

// What one event adds to one answer.
struct AnswerDelta {
  std::string text = {};
  std::vector<Part> parts = {};
  const TokenEvent* event = nullptr;  // with a token
  bool finished = false;
};

// One of a request's answers, so far.
struct Answer {
  Answer(int at, const Prompter& prompter, AnswerTextOptions text_options, PartsOptions parts_options)
      : index(at), decoder(prompter, std::move(text_options)), splitter(std::move(parts_options)) {}

  struct Call {
    std::string id, name, arguments;
    bool complete = true;  // else the answer ended within the arguments, which are no JSON yet
  };

  int index;
  AnswerText decoder;
  AnswerParts splitter;
  std::string text;                // all of it
  std::string reasoning, content;  // and what it means
  std::vector<Call> calls;
  int64_t tokens = 0;
  std::vector<TokenEvent> events;  // if their log-probabilities or ids are reported
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = TokenEvent::kNoToken;  // one of stop_token_ids that ended it
  double score = 0;

  int64_t resumed = 0;       // of the tokens: those that the client had already
  size_t resumed_calls = 0;  // likewise of the calls

  // What an event adds. After the last one of an answer that had ended in Replay() only its end is reported.
  AnswerDelta Take(const TokenEvent& event, const Query& query);
  // The tokens of `resume`: nothing of their text is reported again. An error: one ends the answer, and others follow it.
  Refusal Replay(const Query& query, const Request& request);

  bool MadeCalls() const;          // and ended with the last of them
  const char* FinishName() const;  // OpenAI's finish_reason: stop, length, tool_calls
  Json StopReason() const;         // vLLM's stop_reason: the stop string, the stop token, or null
};

// A request with its answers so far, as the formats see it.
struct Reply {
  const ServedModel& model;
  const Query& query;
  const Prepared& prepared;
  std::string id = {};               // "chatcmpl-..."
  int64_t created = 0;               // seconds since 1970
  std::vector<Answer> answers = {};  // of the first prompt, then of the second, ...
  std::vector<std::vector<TokenEvent::PromptToken>> prompt_logprobs = {};  // per prompt
  int64_t cached_tokens = 0;
  Json kv_transfer = nullptr;                // kv_transfer_params of the answer; null: none
  std::vector<std::string> embeddings = {};  // of each prompt, as JSON; of /v1/embeddings

  int64_t PromptTokens() const;
  int64_t AnswerTokens() const;
  int64_t ResumedTokens() const;  // of them
  Json Usage() const;             // OpenAI's
  int answers_per_prompt() const { return query.request.n; }
  Json ResumeInfo() const;  // what `resume` of a later request has to say
};

std::string Dump(const Json& json);  // on one line; what is not UTF-8 becomes U+FFFD

class Format {
 public:
  virtual ~Format() = default;
  virtual const char* id_prefix() const = 0;
  virtual Json Whole(const Reply& reply) = 0;
  virtual std::string Text(const Reply& reply) {
    return Dump(Whole(reply));
  }  // of an answer that is no stream
  // The frames of a stream. Start() comes with the first event.
  virtual void Start(const Reply& reply, std::string* out) = 0;
  virtual void Delta(const Reply& reply, const Answer& answer, const AnswerDelta& delta,
                     std::string* out) = 0;
  virtual void Finish(const Reply& reply, std::string* out) = 0;
  virtual void Fail(const Reply& reply, const ApiError& error, std::string* out) = 0;
  virtual const char* Ping() const { return ": ping\n\n"; }
};

std::unique_ptr<Format> MakeChatFormat();
std::unique_ptr<Format> MakeCompletionFormat();
std::unique_ptr<Format> MakeResponsesFormat();
std::unique_ptr<Format> MakeMessagesFormat();
std::unique_ptr<Format> MakeEmbeddingFormat();
std::unique_ptr<Format> MakeFormat(Endpoint endpoint);

// Truncates a vector to its first `dimensions` numbers (0: all) and normalizes it. False: its norm is 0 or
// not finite.
bool NormaliseEmbedding(std::vector<float>* values, int64_t dimensions);
std::string EmbeddingText(std::span<const float> values, Encoding encoding);  // as JSON

void DataFrame(const Json& json, std::string* out);  // data: {...}
void EventFrame(const char* event, const Json& json, std::string* out);

// A token's text as log-probabilities report it, and its bytes.
std::string TokenText(const Reply& reply, int32_t token);
Json TokenBytes(const Reply& reply, int32_t token);
// Whether a token's log-probability is reported. A token that ends the answer is not part of it.
bool ReportsLogprob(const Reply& reply, const TokenEvent& event);
Json ChatLogprob(const Reply& reply, const TokenEvent& event);
Json PromptLogprobs(const Reply& reply, size_t prompt);  // vLLM's

}  // namespace celer::server
