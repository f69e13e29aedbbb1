// A Hugging Face directory: which files are there, and what the small ones say.
#include <algorithm>

#include "base/log.h"
#include "io/file/printable.h"
#include "text/tokenizer/tokenizer_json.h"

namespace celer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t kMaxTemplate = size_t{4} << 20;

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// An optional file; null JSON when it is not there.
Result<json> ReadIfThere(const fs::path& path) {
  if (!IsFile(path)) return json();
  return ReadJsonFile(path);
}

// "<s>" or {"content": "<s>", ...}
std::optional<std::string> TokenContent(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return std::nullopt;
}

void ReadSpecial(const json& file, HfTokenizerConfig& config) {
  for (const char* role : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto it = file.find(role);
    if (it == file.end() || config.special.contains(role)) continue;
    if (const auto content = TokenContent(*it); content && !content->empty()) config.special[role] = *content;
  }
}

// A string, or [{"name": "default", "template": "..."}, ...].
std::string ReadTemplate(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return "";
  std::string first;
  for (const json& entry : value) {
    if (!entry.is_object() || !entry.contains("template") || !entry["template"].is_string()) continue;
    if (entry.contains("name") && entry["name"] == "default") return entry["template"].get<std::string>();
    if (first.empty()) first = entry["template"].get<std::string>();
  }
  return first;
}

Status ReadAddedDecoder(const json& map, const std::string& where, HfTokenizerConfig& config) {
  if (!map.is_object()) return Error::Corrupt(where, ": 'added_tokens_decoder' is not an object");
  for (const auto& [key, value] : map.items()) {
    CELER_ASSIGN(const JsonFields fields, JsonFields::Of(value, where + ": 'added_tokens_decoder'"));
    CELER_ASSIGN(AddedToken token, ParseAddedToken(fields));
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
      return Error::Corrupt(where, ": 'added_tokens_decoder' has the key '", Printable(key),
                            "', not a token id");
    token.id = std::stoi(key);
    config.added.push_back(std::move(token));
  }
  return {};
}

void ReadEndIds(const json& file, HfTokenizerConfig& config) {
  if (!file.is_object() || !file.contains("eos_token_id")) return;
  const json& value = file["eos_token_id"];
  const auto add = [&](const json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX)
      config.end_ids.push_back(id.get<int32_t>());
  };
  if (value.is_array())
    for (const json& id : value) add(id);
  else
    add(value);
}

}  // namespace

Result<HfTokenizerConfig> HfTokenizerConfig::Read(const fs::path& directory) {
  HfTokenizerConfig config;
  const fs::path path = directory / "tokenizer_config.json";
  CELER_ASSIGN(const json main, ReadIfThere(path));
  if (!main.is_null()) {
    CELER_ASSIGN(const JsonFields fields, JsonFields::Of(main, path.string()));
    CELER_ASSIGN(config.tokenizer_class, fields.GetString("tokenizer_class", ""));
    CELER_ASSIGN(config.add_bos, fields.FindBool("add_bos_token"));
    CELER_ASSIGN(config.add_eos, fields.FindBool("add_eos_token"));
    CELER_ASSIGN(config.legacy, fields.FindBool("legacy"));
    CELER_ASSIGN(config.add_prefix_space, fields.FindBool("add_prefix_space"));
    ReadSpecial(main, config);
    if (const json* decoder = fields.Find("added_tokens_decoder"))
      CELER_RETURN_IF_ERROR(ReadAddedDecoder(*decoder, path.string(), config));
    if (const json* text = fields.Find("chat_template")) config.chat_template = ReadTemplate(*text);
  }
  CELER_ASSIGN(const json map, ReadIfThere(directory / "special_tokens_map.json"));
  if (map.is_object()) ReadSpecial(map, config);
  CELER_ASSIGN(const json added, ReadIfThere(directory / "added_tokens.json"));  // {"<|x|>": 32000}
  if (added.is_object())
    for (const auto& [content, id] : added.items()) {
      const auto same = [&, &name = content](const AddedToken& token) { return token.content == name; };
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX ||
          std::any_of(config.added.begin(), config.added.end(), same))
        continue;
      config.added.push_back({.content = content, .id = id.get<int32_t>(), .normalized = true});
    }
  for (AddedToken& token : config.added)
    for (const auto& [role, content] : config.special)
      if (token.content == content) token.special = true;
  CELER_ASSIGN(const json generation, ReadIfThere(directory / "generation_config.json"));
  CELER_ASSIGN(const json model, ReadIfThere(directory / "config.json"));
  ReadEndIds(generation, config);
  ReadEndIds(model, config);
  // A template in a file of its own comes before the one in the config.
  CELER_ASSIGN(const json separate, ReadIfThere(directory / "chat_template.json"));
  if (separate.is_object() && separate.contains("chat_template"))
    config.chat_template = ReadTemplate(separate["chat_template"]);
  if (const fs::path jinja = directory / "chat_template.jinja"; IsFile(jinja)) {
    CELER_ASSIGN(config.chat_template, ReadTextFile(jinja, kMaxTemplate));
  }
  return config;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromHfDirectory(const fs::path& path) {
  std::error_code error;
  const bool is_directory = fs::is_directory(path, error);
  if (!is_directory && !IsFile(path)) return Error::NotFound(path.string(), ": no such file or directory");
  const fs::path directory = is_directory ? path : path.parent_path();
  CELER_ASSIGN(const HfTokenizerConfig config, HfTokenizerConfig::Read(directory));
  const fs::path json_path = is_directory ? path / "tokenizer.json" : path;
  const fs::path model_path = is_directory ? path / "tokenizer.model" : path;
  const bool want_model = !is_directory && path.extension() == ".model";
  if (!want_model && IsFile(json_path)) {
    CELER_ASSIGN(const json root, ReadJsonFile(json_path));
    auto made = TokenizerFromJson(root, config, json_path.string());
    if (made || made.error().code() != Error::Code::kUnsupported || !is_directory || !IsFile(model_path))
      return made;
    log::WarningOnce("{}; tokenizer.model is used instead", made.error().message());
  }
  if (IsFile(model_path)) return TokenizerFromSentencePiece(model_path, config);
  return Error::NotFound(
      path.string(),
      ": has neither tokenizer.json nor tokenizer.model; fetch them from where the model is from");
}

}  // namespace celer
