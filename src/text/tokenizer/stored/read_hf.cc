// A vocabulary out of tokenizer.json, tokenizer.model and the files beside them.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <unordered_map>

#include "base/utf8.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/gguf_pre.h"
#include "text/tokenizer/metaspace.h"
#include "text/tokenizer/stored/vocabulary.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_json.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Vocab = StoredVocabulary;

constexpr size_t kMostTokens = size_t{1} << 24;

bool IsThere(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string TypeOf(const json& value) {
  return value.is_object() ? value.value("type", std::string()) : std::string();
}

// The steps of a normalizer, pre-tokenizer or decoder, which may be a sequence.
std::vector<json> StepsOf(const json& root, const char* key, const char* list) {
  if (!root.contains(key) || !root[key].is_object()) return {};
  const json& value = root[key];
  if (TypeOf(value) != "Sequence" || !value.contains(list) || !value[list].is_array()) return {value};
  return value[list].get<std::vector<json>>();
}

bool Has(const std::vector<json>& steps, std::string_view type) {
  return std::any_of(steps.begin(), steps.end(), [&](const json& step) { return TypeOf(step) == type; });
}

// One spelling of an expression: characters for \x{...}, escapes for line ends.
std::string Canonical(std::string_view regex) {
  std::string out;
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex.substr(i).starts_with("\\x{")) {
      const size_t end = regex.find('}', i);
      if (end != std::string_view::npos) {
        const std::string digits(regex.substr(i + 3, end - i - 3));
        const auto code = static_cast<char32_t>(std::strtoul(digits.c_str(), nullptr, 16));
        utf8::Append(code, out);
        i = end;
        continue;
      }
    }
    if (regex[i] == '\r')
      out += "\\r";
    else if (regex[i] == '\n')
      out += "\\n";
    else
      out += regex[i];
  }
  return out;
}

// What text is split by, in GGUF's terms; nullopt for a step that GGUF has no name for.
std::optional<std::vector<std::string>> SplitsOf(const std::vector<json>& steps) {
  std::vector<std::string> out;
  for (const json& step : steps) {
    const std::string type = TypeOf(step);
    if (type == "ByteLevel") {
      if (step.value("use_regex", true)) out.push_back(Canonical(FindGgufPre("gpt-2")->regexes[0]));
    } else if (type == "Digits") {
      out.push_back(step.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    } else if (type == "Split") {
      const json pattern = step.value("pattern", json::object());
      if (!pattern.is_object() || !pattern.contains("Regex") || !pattern["Regex"].is_string())
        return std::nullopt;
      out.push_back(Canonical(pattern["Regex"].get<std::string>()));
    } else if (type == "Punctuation") {
      out.emplace_back(Canonical(FindGgufPre("falcon")->regexes[0]));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

Result<std::string> PreOf(const json& root, const std::string& where) {
  const auto splits = SplitsOf(StepsOf(root, "pre_tokenizer", "pretokenizers"));
  const json& model = root["model"];
  const bool ignores = model.is_object() && model.value("ignore_merges", false);
  const GgufPre* close = nullptr;
  for (const GgufPre& pre : GgufPres()) {
    if (!splits || pre.regexes.size() != splits->size()) continue;
    bool same = true;
    for (size_t i = 0; i < splits->size(); ++i) same = same && Canonical(pre.regexes[i]) == (*splits)[i];
    if (!same) continue;
    if (pre.ignore_merges == ignores) return std::string(pre.written.empty() ? pre.names[0] : pre.written);
    if (!close) close = &pre;
  }
  if (close) return std::string(close->written.empty() ? close->names[0] : close->written);
  return Error::Unsupported(where,
                            ": its 'pre_tokenizer' splits text in a way that GGUF has no name for; "
                            "--no-tokenizer converts the model without its tokenizer");
}

// "a b" or ["a", "b"]
Status ReadMerges(const json& merges, const std::string& where, Vocab* out) {
  if (!merges.is_array()) return Error::Corrupt(where, ": the model has no 'merges'");
  for (const json& merge : merges) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (text.starts_with("#version") || space == std::string::npos) continue;
      left = text.substr(0, space), right = text.substr(space + 1);
    }
    if (left.empty() || right.empty() || (left + right).find(' ') != std::string::npos)
      return Error::Unsupported(where, ": merge ", out->merges.size(), " is ", Printable(JsonText(merge), 60),
                                ", which a line of GGUF cannot hold");
    out->merges.emplace_back(std::move(left), std::move(right));
  }
  return {};
}

void Place(const std::string& token, size_t id, int32_t type, Vocab* out) {
  if (id >= kMostTokens) return;
  if (id >= out->tokens.size()) {
    out->tokens.resize(id + 1);
    out->types.resize(id + 1, Vocab::kUnused);
  }
  out->tokens[id] = token;
  out->types[id] = type;
}

// Ids that no token has.
void NameGaps(Vocab* out) {
  for (size_t id = 0; id < out->tokens.size(); ++id)
    if (out->types[id] == Vocab::kUnused && out->tokens[id].empty())
      out->tokens[id] = "[PAD" + std::to_string(id) + "]";
}

// A token is as good as the first merge that makes it; those that none makes are never asked.
void ScoresOfMerges(Vocab* out) {
  std::unordered_map<std::string, size_t> rank;
  for (size_t i = 0; i < out->merges.size(); ++i)
    rank.emplace(out->merges[i].first + out->merges[i].second, i);
  out->scores.assign(out->tokens.size(), 0.0f);
  const auto last = static_cast<float>(out->merges.size());
  for (size_t id = 0; id < out->tokens.size(); ++id) {
    if (out->types[id] != Vocab::kNormal) continue;
    const auto found = rank.find(out->tokens[id]);
    out->scores[id] = found == rank.end() ? -last : -static_cast<float>(found->second);
  }
}

Status ReadTokens(const json& root, const std::string& where, Vocab* out) {
  const json& model = root["model"];
  if (!model.contains("vocab") || !model["vocab"].is_object())
    return Error::Corrupt(where, ": the model has no 'vocab'");
  for (const auto& [token, id] : model["vocab"].items())
    if (id.is_number_unsigned())
      Place(token, id.get<size_t>(), ParseByteToken(token) ? Vocab::kByte : Vocab::kNormal, out);
  if (root.contains("added_tokens") && root["added_tokens"].is_array())
    for (const json& token : root["added_tokens"]) {
      if (!token.is_object() || !token.contains("id") || !token["id"].is_number_unsigned()) continue;
      Place(token.value("content", ""), token["id"].get<size_t>(),
            token.value("special", false) ? Vocab::kControl : Vocab::kUserDefined, out);
    }
  return {};
}

Result<Vocab> FromJson(const fs::path& path) {
  const std::string where = path.string();
  CELER_ASSIGN(const json root, ReadJsonFile(path));
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object())
    return Error::Corrupt(where, ": has no 'model'");
  const std::string type = root["model"].value("type", root["model"].contains("merges") ? "BPE" : "");
  if (type != "BPE")
    return Error::Unsupported(where, ": a tokenizer of the kind '", Printable(type, 40),
                              "', and only BPE can be ",
                              "converted; --no-tokenizer converts the model without its tokenizer");
  const std::vector<json> normalizers = StepsOf(root, "normalizer", "normalizers"),
                          splits = StepsOf(root, "pre_tokenizer", "pretokenizers"),
                          decoders = StepsOf(root, "decoder", "decoders");
  Vocab out;
  CELER_RETURN_IF_ERROR(ReadTokens(root, where, &out));
  CELER_RETURN_IF_ERROR(ReadMerges(root["model"].value("merges", json()), where, &out));
  if (Has(splits, "ByteLevel") || Has(decoders, "ByteLevel")) {
    CELER_ASSIGN(out.pre, PreOf(root, where));
    for (int32_t& one : out.types)  // bytes have no tokens of their own here
      if (one == Vocab::kByte) one = Vocab::kNormal;
    return out;
  }
  if (!root["model"].value("byte_fallback", false))
    return Error::Unsupported(where,
                              ": its tokens are neither of bytes nor of SentencePiece's kind; "
                              "--no-tokenizer converts the model without its tokenizer");
  out.kind = Vocab::Kind::kScored;
  out.space_prefix = Has(normalizers, "Prepend");
  for (const json& split : splits) {
    if (TypeOf(split) != "Metaspace") continue;
    const std::string scheme =
        split.value("prepend_scheme", split.value("add_prefix_space", true) ? "always" : "never");
    out.space_prefix = out.space_prefix || scheme != "never";
  }
  const std::string unk = root["model"].contains("unk_token") && root["model"]["unk_token"].is_string()
                              ? root["model"]["unk_token"].get<std::string>()
                              : "";
  for (size_t id = 0; id < out.tokens.size(); ++id)
    if (!unk.empty() && out.tokens[id] == unk)
      out.types[id] = Vocab::kUnknown, out.unk = static_cast<int32_t>(id);
  return out;
}

// The pieces with their scores. `out` may have tokens and types of tokenizer.json already.
Status FromSentencePiece(const fs::path& path, Vocab* out) {
  sentencepiece::SentencePieceProcessor processor;
  if (!processor.Load(path.string()).ok())
    return Error::Corrupt(path.string(), ": is not a SentencePiece model");
  const bool alone = out->tokens.empty();
  out->kind = Vocab::Kind::kScored;
  const auto count = static_cast<size_t>(processor.GetPieceSize());
  out->scores.assign(std::max(count, out->tokens.size()), 0.0f);
  for (size_t i = 0; i < count; ++i) {
    const int id = static_cast<int>(i);
    const float score = processor.GetScore(id);
    if (score != std::floor(score))
      return Error::Unsupported(path.string(),
                                ": is a unigram model, and only BPE can be converted; "
                                "--no-tokenizer converts the model without its tokenizer");
    out->scores[i] = score;
    const int32_t type = processor.IsUnknown(id)   ? Vocab::kUnknown
                         : processor.IsControl(id) ? Vocab::kControl
                         : processor.IsUnused(id)  ? Vocab::kUnused
                         : processor.IsByte(id)    ? Vocab::kByte
                                                   : Vocab::kNormal;
    if (alone) Place(processor.IdToPiece(id), i, type, out);
    if (processor.IsUnknown(id)) out->unk = id;
  }
  if (!alone) return {};
  std::vector<std::string> pieces;
  out->space_prefix =
      processor.Encode("a", &pieces).ok() && !pieces.empty() && pieces[0].starts_with(kMetaspace);
  return {};
}

void ReadSpecial(const HfTokenizerConfig& config, const Tokenizer& tokenizer, Vocab* out) {
  for (const AddedToken& token : config.added)
    if (token.id >= 0 && token.id >= std::ssize(out->tokens))
      Place(token.content, static_cast<size_t>(token.id),
            token.special ? Vocab::kControl : Vocab::kUserDefined, out);
  if (out->kind == Vocab::Kind::kScored) out->scores.resize(out->tokens.size(), 0.0f);
  NameGaps(out);
  out->bos = tokenizer.bos_id();
  out->eos = tokenizer.eos_id();
  if (!out->unk) out->unk = tokenizer.unk_id();
  out->pad = tokenizer.pad_id();
  if (out->eos) out->ends.push_back(*out->eos);
  for (const int32_t id : config.end_ids)
    if (id < std::ssize(out->tokens) && std::find(out->ends.begin(), out->ends.end(), id) == out->ends.end())
      out->ends.push_back(id);
  const std::vector<int32_t> around = tokenizer.Encode("");
  out->add_bos = out->bos && !around.empty() && around.front() == *out->bos;
  out->add_eos = out->eos && std::ssize(around) > (out->add_bos ? 1 : 0) && around.back() == *out->eos;
  out->chat_template = tokenizer.chat_template();
}

}  // namespace

Result<std::optional<StoredVocabulary>> StoredVocabulary::FromHf(const fs::path& folder) {
  const fs::path by_json = folder / "tokenizer.json", by_model = folder / "tokenizer.model";
  if (!IsThere(by_json) && !IsThere(by_model)) return std::optional<StoredVocabulary>();
  CELER_ASSIGN(const HfTokenizerConfig config, HfTokenizerConfig::Read(folder));
  CELER_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer,
               Tokenizer::FromHfDirectory(folder));  // checks all of it
  Vocab out;
  if (IsThere(by_json)) {
    CELER_ASSIGN(out, FromJson(by_json));
  }
  const bool gemma4 = out.kind == Kind::kScored && tokenizer->Find("<|turn>") && !IsThere(by_model);
  if (gemma4)
    out.kind = Kind::kMerged;
  else if (IsThere(by_model) && (out.tokens.empty() || out.kind == Kind::kScored))
    CELER_RETURN_IF_ERROR(FromSentencePiece(by_model, &out));
  else if (out.kind == Kind::kScored)
    ScoresOfMerges(&out);
  ReadSpecial(config, *tokenizer, &out);
  return std::optional(std::move(out));
}

}  // namespace celer
