// Text on both sides of an engine: a Prompter makes token ids of text and conversations, and a TextStream
// makes text of a request's events. Neither has an engine inside, so both work with Engine::Step() in a loop,
// with an EngineThread, or with ids from anywhere else:
//
//   auto prompter = Prompter::Load({.model = "smollm2"});
//   auto prompt = prompter->EncodeChat(std::vector<ChatMessage>{{"user", "Why is the sky blue?"}});
//   ... submit *prompt; for each of its events:
//   TextDelta delta = stream.Push(event);
//   std::cout << delta.text;
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "celer/engine.h"
#include "celer/error.h"

namespace celer {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // end with the beginning of the answer
  std::string tools = {};             // a JSON array of what the model may call; "": nothing
  std::string variables = {};  // a JSON object of more variables for the template, e.g. enable_thinking
};

struct PrompterOptions {
  std::string model = {};          // a Hugging Face folder, a GGUF file, a llama2.c checkpoint
  std::string tokenizer = {};      // a file or folder; "": beside the model or inside it
  std::string chat_template = {};  // a Jinja file; "": the model's own
};

// A tokenizer, a chat template and the defaults that a model's files give. Immutable: threads may share one,
// and copies are cheap.
class Prompter {
 public:
  static Result<Prompter> Load(const PrompterOptions& options);
  // An error if there are tokens that the model does not have: it is another model's tokenizer.
  Status CheckFits(const Engine::Info& info) const;

  // The text as it stands, with BOS where the model wants it. Special-token strings in it become control
  // tokens.
  std::vector<int32_t> EncodeText(std::string_view text) const;

  // A conversation through the chat template. What it says stays text: only the template's own words become
  // control tokens, so no message can end its turn or begin another. An error if the model has no template,
  // if the template refuses the conversation, or if a role is not known.
  Result<std::vector<int32_t>> EncodeChat(std::span<const ChatMessage> messages,
                                          const ChatOptions& options = {}) const;
  // The same of a JSON array of messages as OpenAI's API has them: with content parts, tool calls and names.
  Result<std::vector<int32_t>> EncodeChatJson(std::string_view messages,
                                              const ChatOptions& options = {}) const;

  std::string Decode(std::span<const int32_t> tokens, bool skip_special = true) const;

  bool has_chat_template() const;
  // From generation_config.json where there is one, else greedy. `defaults_from` says which, for people.
  const SamplingParams& default_sampling() const;
  const std::string& defaults_from() const;
  const std::vector<int32_t>& end_tokens() const;  // Request::stop_tokens of a chat
  std::optional<int32_t> bos() const;

  // Opaque: the implementation.
  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Prompter(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// What one event adds to an answer.
struct TextDelta {
  std::string text = {};  // whole code points; may be empty
  // With kNone more may come. kStop: the model's end, or a stop string.
  FinishReason finish = FinishReason::kNone;
  std::string error = {};  // with kError: one sentence
  // The event's token with its logprobs, as the engine gave it, if it has one.
  std::optional<TokenEvent> token = {};
};

// The events of one answer of a request, in order, become text. Holds back what is not a whole code point
// yet, and what may yet become a stop string. One thread at a time.
class TextStream {
 public:
  // `stop`: strings that end the answer and are not part of it.
  explicit TextStream(const Prompter& prompter, std::vector<std::string> stop = {});
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;

  // After the delta with a finish other than kNone the answer is complete, and further events add nothing.
  TextDelta Push(TokenEvent event);

  FinishReason finish() const;
  // A stop string was found while the engine goes on: cancel the request.
  bool wants_cancel() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
