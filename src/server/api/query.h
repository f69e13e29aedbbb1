// A request of a client, parsed from its body and validated, before it is tokenized.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "server/api/api_error.h"

namespace celer::server {

// A field that is there and not null, or nullptr.
inline const Json* Field(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

enum Endpoint : unsigned {
  kChat = 1,
  kCompletions = 2,
  kResponses = 4,
  kMessages = 8,
  kTokenize = 16,
  kDetokenize = 32,
  kEmbeddings = 64,
  kCountTokens = 128,
};
constexpr bool IsAnthropic(Endpoint endpoint) {
  return endpoint == kMessages || endpoint == kCountTokens;
}
constexpr unsigned kNotInBatch = 1u << 16;  // of a parameter that celer batch does not support

// How the numbers of an embedding are written.
enum class Encoding { kFloat, kBase64 };

// A prompt of /v1/completions, or an input of /v1/embeddings: text, or token ids.
struct PromptInput {
  std::string text = {};
  std::vector<int32_t> ids = {};
  bool is_text = true;
};

// An adapter of `lora`: by its number, or by its name if that is not empty.
struct AdapterChoice {
  int64_t id = 0;
  std::string name = {};
  float scale = 1;
};

// Structured output: the form that an answer must have.
struct Constraint {
  enum class Kind { kNone, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar } kind = Kind::kNone;
  std::string text = {};  // the schema as JSON, the regular expression, the grammar
  std::vector<std::string> choices = {};
  std::string param = "structured_outputs";  // the parameter that it comes from
};

// `resume`: an answer that can go on elsewhere after an interruption, or one that does.
struct Resume {
  std::vector<int32_t> token_ids = {};  // of the answer, as far as its client has them
  std::optional<uint64_t> seed = {};
  std::string fingerprint = {};  // of everything else that decides its tokens; "": not checked
};

// `kv_transfer_params`, vLLM's: a prompt that is computed for another server, or that another one has computed.
struct KvTransferParams {
  bool remote_decode = false, remote_prefill = false;
  std::string host = {}, engine = {}, transfer = {};
  int64_t port = 0;
  int64_t tokens = 0;  // of the prompt; 0: not said
};

struct Query {
  Endpoint endpoint = kChat;
  bool in_batch = false;  // a line of a file, answered as a whole
  std::string model = {};
  std::optional<std::vector<AdapterChoice>> lora = {};

  // The prompt.
  Json messages = nullptr;  // of the endpoint's form
  Json input = nullptr;     // of /v1/responses
  Json system = nullptr;    // of /v1/messages; `instructions` of /v1/responses
  std::vector<PromptInput> prompts = {};
  Json tools = nullptr;
  Json tool_choice = nullptr;
  bool parallel_tool_calls = true;
  Json template_variables = nullptr;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<bool> add_special_tokens = {};
  int64_t truncate_prompt = 0;                      // to its last so many tokens; -1: to what fits
  std::optional<std::vector<int32_t>> tokens = {};  // of /detokenize

  // The answer. `request` is complete but for its prompt, seed, stop tokens and mask.
  Request request = {};
  std::optional<int64_t> max_tokens = {};
  const char* max_tokens_param = "max_tokens";  // the parameter that it comes from
  std::optional<uint64_t> seed = {};
  std::vector<std::string> stop = {};
  std::vector<int32_t> stop_token_ids = {};
  std::vector<std::string> bad_words = {};
  bool include_stop = false, ignore_eos = false, skip_special = true;
  bool beam = false;
  Constraint constraint = {};
  std::optional<double> timeout = {};  // seconds
  std::optional<Resume> resume = {};
  std::optional<KvTransferParams> kv_transfer = {};

  // What the answer reports.
  bool stream = false, include_usage = false, usage_in_every_chunk = false;
  bool echo = false;
  bool logprobs = false;  // of chat
  int top_logprobs = 0;
  bool tokens_as_ids = false, return_token_ids = false;
  bool ReportsIds() const { return return_token_ids || resume; }  // of the answer's tokens
  std::string request_id = {};
  std::string previous_response_id = {};
  bool store = true;
  Json metadata = nullptr;
  bool token_strings = false;  // of /tokenize
  bool separate_reasoning = true;

  // Of /v1/embeddings.
  Encoding encoding = Encoding::kFloat;
  int64_t dimensions = 0;  // 0: all
};

}  // namespace celer::server
