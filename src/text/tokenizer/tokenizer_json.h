// Readers of the Hugging Face files, apart from each other so that each can be tested and fuzzed.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "io/json/json.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/pipeline.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

// What tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json, config.json
// and chat_template.jinja say. All of them are optional.
struct HfTokenizerConfig {
  std::map<std::string, std::string> special;  // "bos_token" -> "<s>"
  std::vector<AddedToken> added;
  std::vector<int32_t> end_ids;
  std::string tokenizer_class;
  std::optional<bool> add_bos, add_eos, legacy, add_prefix_space;
  std::string chat_template;

  static Result<HfTokenizerConfig> Read(const std::filesystem::path& directory);
};

// The whole of tokenizer.json. `where` is what error sentences call the file.
Result<std::unique_ptr<Tokenizer>> TokenizerFromJson(const nlohmann::json& json,
                                                     const HfTokenizerConfig& config,
                                                     const std::string& where);

// An entry of "added_tokens" or "added_tokens_decoder".
Result<AddedToken> ParseAddedToken(const JsonFields& fields);

// tokenizer.model.
Result<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(const std::filesystem::path& path,
                                                              const HfTokenizerConfig& config);

}  // namespace celer
