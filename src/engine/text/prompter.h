// The inside of a Prompter (celer/text.h), for callers that have a conversation as JSON already.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "celer/text.h"
#include "engine/text/prompter_hide.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

struct Prompter::Impl {
  std::string model;  // as given in the options
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::optional<SpecialStrings> special;  // with a chat template
  SamplingParams sampling;
  std::string defaults_from;
  std::vector<int32_t> end_tokens;
};

inline const Tokenizer& GetTokenizer(const Prompter& prompter) {
  return *prompter.impl().tokenizer;
}

struct ChatJson {
  nlohmann::ordered_json messages = nullptr;   // an array of objects
  nlohmann::ordered_json tools = nullptr;      // an array, or null
  nlohmann::ordered_json variables = nullptr;  // an object, or null
  bool add_generation_prompt = true;
  // The prompt ends within the last message, whose content the answer goes on with. Without a generation
  // prompt then.
  bool continue_final_message = false;
};
Result<std::vector<int32_t>> EncodeChat(const Prompter& prompter, ChatJson chat);

}  // namespace celer
