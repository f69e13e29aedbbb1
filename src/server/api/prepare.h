// From a client's query to requests of the engine: templates, tokenization, checks against the model. Runs on
// a worker thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "celer/adapters.h"
#include "celer/engine.h"
#include "celer/text.h"
#include "server/api/answer_parser.h"
#include "server/api/conversation.h"
#include "server/api/grammar_masks.h"
#include "server/api/pooling.h"
#include "server/api/query.h"

namespace celer::server {

// What requests are prepared for. Immutable.
struct ServedModel {
  std::string name;                  // as clients call it
  std::vector<std::string> aliases;  // other names that are accepted
  Prompter prompter;
  Engine::Info info;
  std::string chat_template;
  std::shared_ptr<Grammars> grammars = {};
  ToolStyle tool_style = ToolStyle::kNone;
  const ThoughtSyntax* thoughts = nullptr;  // nullptr: the template shows none
  bool control_tags = false;                // of the answer's syntax: some are control tokens
  bool reasoning() const { return thoughts != nullptr; }
  bool model_defaults = false;  // sampling defaults of the model's folder, not OpenAI's
  bool prefix_cache = true;
  bool kv_transfer = false;  // blocks of its KV go from server to server
  PoolingChoice pooling = {};
  std::shared_ptr<Adapters> adapters = {};  // each of them is a model's name, too; nullptr: there are none

  bool Answers(std::string_view asked_name) const;
};

// `chat_template`: a file to use instead of the model's own, or "".
Result<ServedModel> MakeServedModel(std::string name, const Prompter& prompter, const Engine::Info& info,
                                    const std::string& chat_template);

struct Prepared {
  std::vector<Request> requests = {};          // one per prompt
  std::vector<std::string> prompt_texts = {};  // of each, with echo
  Conversation conversation = {};
  ToolChoice tool_choice = {};
  PartsOptions parts = {};
  bool drop_answer = false;      // max_tokens 0: only the prompt is reported
  std::string fingerprint = {};  // as in Resume, where an answer can be resumed
  std::vector<std::string> adapters = {};
  std::string model_name = {};  // as answers have it: the model's, or an adapter's
};

// Sampling defaults.
SamplingParams DefaultSampling(const ServedModel& model);

Refusal CheckModel(const ServedModel& model, const Query& query);
// `before`: as in ReadConversation().
Refusal Prepare(const ServedModel& model, const Json& before, Query& query, Prepared* out);
Refusal PrepareEmbeddings(const ServedModel& model, Query& query, Prepared* out);
// Tokens of one prompt of /v1/completions or /tokenize, or of a conversation.
Refusal Tokenize(const ServedModel& model, Query& query, const Json& before, Prepared* out);

}  // namespace celer::server
