#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <unordered_set>

#include "base/log.h"
#include "io/file/printable.h"

namespace celer {
namespace {

using nlohmann::json;

constexpr size_t kMaxTokens = size_t{1} << 24;

Result<int32_t> CheckId(int64_t id, size_t count, std::string_view token, const std::string& where) {
  const int64_t limit = std::min<int64_t>(Vocabulary::IdLimit(count), INT32_MAX);
  if (id < 0 || id >= limit)
    return Error::Corrupt(where, ": token '", Printable(token), "' has id ", id, ", but ids of ", count,
                          " tokens must lie in [0, ", limit, ")");
  return static_cast<int32_t>(id);
}

// {"token": id, ...}
Status ReadVocabulary(const json& vocab, const std::string& where, Vocabulary& out) {
  if (!vocab.is_object()) return Error::Corrupt(where, ": 'vocab' is not an object");
  if (vocab.size() > kMaxTokens)
    return Error::Corrupt(where, ": ", vocab.size(), " tokens; at most ", kMaxTokens, " are accepted");
  for (const auto& [token, value] : vocab.items()) {
    if (!value.is_number_integer())
      return Error::Corrupt(where, ": the id of token '", Printable(token), "' is not an integer");
    const int64_t raw = value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX
                            ? int64_t{INT32_MAX} + 1
                            : value.get<int64_t>();
    CELER_ASSIGN(const int32_t id, CheckId(raw, vocab.size(), token, where));
    if (!out.Add(token, id))
      return Error::Corrupt(where, ": tokens '", Printable(out.Get(id)), "' and '", Printable(token),
                            "' both have id ", id);
  }
  return {};
}

// "a b" or ["a", "b"]
Result<std::vector<std::pair<std::string, std::string>>> ReadMerges(const json& merges,
                                                                    const std::string& where) {
  if (!merges.is_array()) return Error::Corrupt(where, ": 'merges' is not a list");
  if (merges.size() > kMaxTokens)
    return Error::Corrupt(where, ": ", merges.size(), " merges; at most ", kMaxTokens, " are accepted");
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(merges.size());
  for (const json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      out.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    if (!merge.is_string())
      return Error::Corrupt(where, ": merge ", out.size(), " is neither a string nor a pair of strings");
    const std::string& text = merge.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      return Error::Corrupt(where, ": merge ", out.size(), " is '", Printable(text),
                            "', not two tokens with one space between them");
    out.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return out;
}

Result<std::unique_ptr<TokenModel>> ReadBpe(const JsonFields& fields, const std::string& where,
                                            const std::vector<bool>& never, const Vocabulary& vocabulary) {
  BpeOptions options;
  CELER_ASSIGN(options.unk_token, fields.GetString("unk_token", ""));
  CELER_ASSIGN(options.continuing_subword_prefix, fields.GetString("continuing_subword_prefix", ""));
  CELER_ASSIGN(options.end_of_word_suffix, fields.GetString("end_of_word_suffix", ""));
  CELER_ASSIGN(options.fuse_unk, fields.GetBool("fuse_unk", false));
  CELER_ASSIGN(options.byte_fallback, fields.GetBool("byte_fallback", false));
  CELER_ASSIGN(options.ignore_merges, fields.GetBool("ignore_merges", false));
  const json* list = fields.Find("merges");
  if (!list) return Error::Corrupt(where, ": the model has no 'merges'");
  CELER_ASSIGN(const auto merges, ReadMerges(*list, where));
  return MakeBpe(vocabulary, merges, never, options, where);
}

// The two models of words. Files from before 2020 do not say which they have.
std::string WordModelType(const JsonFields& model) {
  if (model.Has("max_input_chars_per_word")) return "WordPiece";
  return model.Has("unk_token") ? "WordLevel" : "";
}

Result<std::unique_ptr<TokenModel>> ReadWordModel(const JsonFields& fields, const std::string& type,
                                                  const std::string& where, const std::vector<bool>& never,
                                                  const Vocabulary& vocabulary, std::optional<int32_t>& unk) {
  CELER_ASSIGN(const std::string unk_token,
               fields.GetString("unk_token", type == "WordLevel" ? "<unk>" : "[UNK]"));
  unk = vocabulary.Find(unk_token);
  if (!unk)
    log::Warning("{}: the unknown token '{}' is not in the vocabulary; words that are not in it vanish",
                 where, Printable(unk_token));
  if (type == "WordLevel") return MakeWordLevel(vocabulary, never, unk);
  WordPieceOptions options{.unk_id = unk};
  CELER_ASSIGN(options.continuing_subword_prefix, fields.GetString("continuing_subword_prefix", "##"));
  CELER_ASSIGN(const int64_t most, fields.GetInt("max_input_chars_per_word", 0, INT32_MAX, 100));
  options.max_characters = static_cast<size_t>(most);
  return MakeWordPiece(vocabulary, never, options);
}

// [["token", score], ...]; the place in the list is the id.
Status ReadUnigramVocabulary(const json& vocab, const std::string& where, Vocabulary& out,
                             std::vector<double>& scores) {
  if (!vocab.is_array()) return Error::Corrupt(where, ": 'vocab' of a Unigram model is not a list");
  if (vocab.size() > kMaxTokens)
    return Error::Corrupt(where, ": ", vocab.size(), " tokens; at most ", kMaxTokens, " are accepted");
  for (const json& entry : vocab) {
    const auto id = static_cast<int32_t>(scores.size());
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      return Error::Corrupt(where, ": entry ", id, " of 'vocab' is not a token with a score");
    out.Add(entry[0].get<std::string>(), id);
    scores.push_back(entry[1].get<double>());
  }
  return {};
}

// Appends the template's tokens to parts.prefix until the text itself, then to parts.suffix.
Status ReadTemplate(const JsonFields& fields, Pipeline::Parts& parts) {
  const json* single = fields.Find("single");
  if (!single || !single->is_array()) return Error::Corrupt(fields.where(), ": 'single' is not a list");
  const json* special = fields.Find("special_tokens");
  bool after = false;
  for (const json& item : *single) {
    if (item.is_object() && item.contains("Sequence")) {
      after = true;
      continue;
    }
    if (!item.is_object() || !item.contains("SpecialToken") || !item["SpecialToken"].is_object())
      return Error::Corrupt(fields.where(), ": an item of 'single' is neither Sequence nor SpecialToken");
    CELER_ASSIGN(const JsonFields token, JsonFields::Of(item["SpecialToken"], fields.where()));
    CELER_ASSIGN(const std::string name, token.GetString("id"));
    if (!special || !special->is_object() || !special->contains(name))
      return Error::Corrupt(fields.where(), ": 'single' names '", Printable(name),
                            "', which 'special_tokens' does not have");
    CELER_ASSIGN(const JsonFields entry, JsonFields::Of((*special)[name], fields.where()));
    CELER_ASSIGN(const std::vector<int64_t> ids, entry.GetInts("ids"));
    for (const int64_t id : ids) {
      if (id < 0 || id > INT32_MAX) return Error::Corrupt(fields.where(), ": special token id ", id);
      (after ? parts.suffix : parts.prefix).push_back(static_cast<int32_t>(id));
    }
  }
  if (!after) return Error::Corrupt(fields.where(), ": 'single' has no place for the text (Sequence)");
  return {};
}

Status ReadPostProcessor(const json& spec, const std::string& where, Pipeline::Parts& parts,
                         bool& has_template, int depth) {
  if (spec.is_null()) return {};
  if (depth > 8) return Error::Corrupt(where, ": the post_processor is nested too deep");
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(spec, where + ": 'post_processor'"));
  CELER_ASSIGN(const std::string type, fields.GetString("type"));
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "Sequence") {
    const json* list = fields.Find("processors");
    if (!list || !list->is_array()) return Error::Corrupt(fields.where(), ": 'processors' is not a list");
    for (const json& step : *list)
      CELER_RETURN_IF_ERROR(ReadPostProcessor(step, where, parts, has_template, depth + 1));
    return {};
  }
  if (type == "TemplateProcessing") {
    has_template = true;
    return ReadTemplate(fields, parts);
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {  // ["token", id]
    has_template = true;
    for (const auto& [key, into] : {std::pair("cls", &parts.prefix), std::pair("sep", &parts.suffix)}) {
      const json* pair = fields.Find(key);
      if (!pair || !pair->is_array() || pair->size() != 2 || !(*pair)[1].is_number_unsigned() ||
          (*pair)[1].get<uint64_t>() > INT32_MAX)
        return Error::Corrupt(fields.where(), ": '", key, "' is not a token with its id");
      into->push_back((*pair)[1].get<int32_t>());
    }
    return {};
  }
  return Error::Unsupported(
      where, ": post_processor '", type,
      "' is not supported (TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel and "
      "Sequence are)");
}

// The tokens of "added_tokens", then those that the other files add.
Status ReadAddedTokens(const json& list, const HfTokenizerConfig& config, const std::string& where,
                       const Vocabulary& vocabulary, std::vector<AddedToken>& out) {
  if (!list.is_null() && !list.is_array()) return Error::Corrupt(where, ": 'added_tokens' is not a list");
  const size_t count = static_cast<size_t>(vocabulary.size()) + list.size() + config.added.size();
  std::unordered_set<std::string> known;
  std::unordered_set<int32_t> taken;
  const auto add = [&](AddedToken token) -> Status {
    if (token.content.empty()) return {};
    // The model's own id comes first, as in the Hugging Face package.
    if (const auto id = vocabulary.Find(token.content)) token.id = *id;
    CELER_ASSIGN(token.id, CheckId(token.id, count, token.content, where));
    known.insert(token.content);
    taken.insert(token.id);
    out.push_back(std::move(token));
    return {};
  };
  for (const json& entry : list) {
    CELER_ASSIGN(const JsonFields fields, JsonFields::Of(entry, where + ": an entry of 'added_tokens'"));
    CELER_ASSIGN(AddedToken token, ParseAddedToken(fields));
    CELER_ASSIGN(token.id, fields.GetInt("id", 0, INT32_MAX));
    CELER_RETURN_IF_ERROR(add(std::move(token)));
  }
  for (const AddedToken& token : config.added)
    if (!known.contains(token.content) && !taken.contains(token.id)) CELER_RETURN_IF_ERROR(add(token));
  for (const auto& [role, content] : config.special) {
    if (known.contains(content)) continue;
    if (const auto id = vocabulary.Find(content))
      out.push_back({.content = content, .id = *id, .special = true});
    else
      log::Debug("{}: {} is '{}', which the vocabulary does not have", where, role, content);
  }
  return {};
}

bool IsLlamaClass(std::string_view name) {
  return name.starts_with("Llama") || name.starts_with("CodeLlama") || name.starts_with("Gemma");
}

}  // namespace

Result<AddedToken> ParseAddedToken(const JsonFields& fields) {
  AddedToken token;
  CELER_ASSIGN(token.content, fields.GetString("content"));
  CELER_ASSIGN(token.special, fields.GetBool("special", false));
  CELER_ASSIGN(token.single_word, fields.GetBool("single_word", false));
  CELER_ASSIGN(token.lstrip, fields.GetBool("lstrip", false));
  CELER_ASSIGN(token.rstrip, fields.GetBool("rstrip", false));
  CELER_ASSIGN(token.normalized, fields.GetBool("normalized", !token.special));
  return token;
}

Result<std::unique_ptr<Tokenizer>> TokenizerFromJson(const json& root, const HfTokenizerConfig& config,
                                                     const std::string& where) {
  CELER_ASSIGN(const JsonFields top, JsonFields::Of(root, where));
  const auto part = [&](std::string_view key) {
    static const json kNull;
    const json* found = top.Find(key);
    return found ? found : &kNull;
  };
  CELER_ASSIGN(const JsonFields model, top.GetObject("model"));
  CELER_ASSIGN(std::string type, model.GetString("type", ""));
  if (type.empty())  // old files
    type = model.Has("merges") ? "BPE" : model.Has("unk_id") ? "Unigram" : WordModelType(model);
  const json* vocab = model.Find("vocab");
  if (!vocab) return Error::Corrupt(where, ": the model has no 'vocab'");

  Pipeline::Parts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  std::vector<double> scores;
  if (type == "BPE" || type == "WordPiece" || type == "WordLevel")
    CELER_RETURN_IF_ERROR(ReadVocabulary(*vocab, where, *parts.vocabulary));
  else if (type == "Unigram")
    CELER_RETURN_IF_ERROR(ReadUnigramVocabulary(*vocab, where, *parts.vocabulary, scores));
  else
    return Error::Unsupported(where, ": a tokenizer model of type '", type,
                              "'; BPE, Unigram, WordPiece and WordLevel are supported");

  CELER_RETURN_IF_ERROR(
      ReadAddedTokens(*part("added_tokens"), config, where, *parts.vocabulary, parts.added));
  std::vector<bool> never(parts.vocabulary->size());
  for (const AddedToken& token : parts.added)
    if (token.special && parts.vocabulary->Get(token.id) == token.content) never[token.id] = true;

  std::optional<int32_t> unk;
  if (type == "BPE") {
    CELER_ASSIGN(parts.model, ReadBpe(model, where, never, *parts.vocabulary));
    CELER_ASSIGN(const std::string unk_token, model.GetString("unk_token", ""));
    if (!unk_token.empty()) unk = parts.vocabulary->Find(unk_token);
  } else if (type != "Unigram") {
    CELER_ASSIGN(parts.model, ReadWordModel(model, type, where, never, *parts.vocabulary, unk));
  } else {
    UnigramOptions options;
    if (model.Has("unk_id")) {
      CELER_ASSIGN(const int64_t id, model.GetInt("unk_id", 0, static_cast<int64_t>(scores.size()) - 1));
      options.unk_id = unk = static_cast<int32_t>(id);
    }
    CELER_ASSIGN(options.byte_fallback, model.GetBool("byte_fallback", false));
    parts.model = MakeUnigram(*parts.vocabulary, std::move(scores), never, options);
  }

  CELER_ASSIGN(parts.normalizer, ParseNormalizer(*part("normalizer"), where));
  CELER_ASSIGN(parts.pre_tokenizer, ParsePreTokenizer(*part("pre_tokenizer"), where));
  CELER_ASSIGN(parts.decoder, Decoder::Parse(*part("decoder"), where));
  bool has_template = false;
  CELER_RETURN_IF_ERROR(ReadPostProcessor(*part("post_processor"), where, parts, has_template, 0));

  const auto find = [&](const char* role) -> std::optional<int32_t> {
    const auto it = config.special.find(role);
    if (it == config.special.end()) return std::nullopt;
    for (const AddedToken& token : parts.added)
      if (token.content == it->second) return token.id;
    return parts.vocabulary->Find(it->second);
  };
  parts.info = {.bos = find("bos_token"),
                .eos = find("eos_token"),
                .unk = find("unk_token"),
                .pad = find("pad_token"),
                .end_of_turn = config.end_ids,
                .chat_template = config.chat_template};
  if (!parts.info.unk) parts.info.unk = unk;
  // These classes of transformers build their template from the config when the file has none.
  if (!has_template && IsLlamaClass(config.tokenizer_class)) {
    if (config.add_bos.value_or(false) && parts.info.bos) parts.prefix = {*parts.info.bos};
    if (config.add_eos.value_or(false) && parts.info.eos) parts.suffix = {*parts.info.eos};
  }
  int32_t size = parts.vocabulary->size();
  for (const AddedToken& token : parts.added) size = std::max(size, token.id + 1);
  for (const auto* ids : {&parts.prefix, &parts.suffix})
    for (const int32_t id : *ids)
      if (id >= size)
        return Error::Corrupt(where, ": the post_processor adds token ", id, ", but there are only ", size,
                              " tokens");
  return Pipeline::Make(std::move(parts));
}

}  // namespace celer
