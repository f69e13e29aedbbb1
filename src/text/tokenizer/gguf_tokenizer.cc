// The vocabulary in the metadata of a GGUF file.
#include <algorithm>
#include <cctype>

#include "base/log.h"
#include "io/file/printable.h"
#include "io/gguf/gguf.h"
#include "text/tokenizer/gguf_pre.h"
#include "text/tokenizer/metaspace.h"
#include "text/tokenizer/pipeline.h"

namespace celer {
namespace {

// tokenizer.ggml.token_type
enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct GgufTable {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;
  std::vector<float> scores;  // empty if there are none
  std::optional<int32_t> bos, eos, unk, pad;
};

Result<std::optional<int32_t>> ReadId(const GgufFile& file, std::string_view name, size_t count) {
  const std::string key = "tokenizer.ggml." + std::string(name);
  if (!file.Has(key)) return std::optional<int32_t>();
  const auto value = file.GetInt(key);
  if (!value) return Error::Corrupt(file.source(), ": '", key, "' is not an integer");
  if (*value == -1 || *value == UINT32_MAX) return std::optional<int32_t>();  // some writers' way to say none
  if (*value < 0 || *value >= static_cast<int64_t>(count))
    return Error::Corrupt(file.source(), ": '", key, "' is ", *value, ", but there are only ", count,
                          " tokens");
  return std::optional<int32_t>(static_cast<int32_t>(*value));
}

Result<GgufTable> ReadTable(const GgufFile& file) {
  GgufTable table;
  auto tokens = file.GetStringArray("tokenizer.ggml.tokens");
  if (!tokens || tokens->empty())
    return Error::Corrupt(
        file.source(), ": has no vocabulary ('tokenizer.ggml.tokens' is missing or not a list of strings)");
  table.tokens = std::move(*tokens);
  const size_t count = table.tokens.size();
  if (count > INT32_MAX) return Error::Corrupt(file.source(), ": ", count, " tokens are too many");
  table.types.assign(count, kNormal);
  if (file.Has("tokenizer.ggml.token_type")) {
    auto types = file.GetIntArray("tokenizer.ggml.token_type");
    if (!types || types->size() != count)
      return Error::Corrupt(file.source(), ": 'tokenizer.ggml.token_type' is not a list of ", count,
                            " integers");
    table.types = std::move(*types);
  }
  if (file.Has("tokenizer.ggml.scores")) {
    auto scores = file.GetFloatArray("tokenizer.ggml.scores");
    if (!scores || scores->size() != count)
      return Error::Corrupt(file.source(), ": 'tokenizer.ggml.scores' is not a list of ", count, " numbers");
    table.scores = std::move(*scores);
    for (size_t i = 0; i < count; ++i)
      if (table.scores[i] != table.scores[i])
        return Error::Corrupt(file.source(), ": 'tokenizer.ggml.scores' has NaN for token ", i);
  }
  CELER_ASSIGN(table.bos, ReadId(file, "bos_token_id", count));
  CELER_ASSIGN(table.eos, ReadId(file, "eos_token_id", count));
  CELER_ASSIGN(table.unk, ReadId(file, "unknown_token_id", count));
  CELER_ASSIGN(table.pad, ReadId(file, "padding_token_id", count));
  return table;
}

bool IsSpecialType(int64_t type) {
  return type == kControl || type == kUnknown;
}

// Fills everything that does not depend on the kind of model.
Result<Pipeline::Parts> Common(const GgufFile& file, const GgufTable& table, std::vector<bool>& never) {
  Pipeline::Parts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  const auto count = static_cast<int32_t>(table.tokens.size());
  never.assign(count, false);
  for (int32_t id = 0; id < count; ++id) {
    const std::string_view token = table.tokens[id];
    const int64_t type = table.types[id];
    parts.vocabulary->Add(std::string(token), id);
    if ((IsSpecialType(type) || type == kUserDefined) && !token.empty())
      parts.added.push_back({.content = std::string(token), .id = id, .special = IsSpecialType(type)});
    never[id] = IsSpecialType(type) || type == kByte;
  }
  // A vocabulary without types still has its BOS and EOS.
  for (const auto& id : {table.bos, table.eos}) {
    if (!id || table.types[*id] != kNormal || file.Has("tokenizer.ggml.token_type")) continue;
    parts.added.push_back({.content = std::string(table.tokens[*id]), .id = *id, .special = true});
    never[*id] = true;
  }
  parts.info = {.bos = table.bos, .eos = table.eos, .unk = table.unk, .pad = table.pad};
  for (const char* name : {"eot_token_id", "eom_token_id"}) {
    CELER_ASSIGN(const auto id, ReadId(file, name, table.tokens.size()));
    if (id) parts.info.end_of_turn.push_back(*id);
  }
  if (const auto text = file.GetString("tokenizer.chat_template")) parts.info.chat_template = *text;
  return parts;
}

void AddBosEos(const GgufFile& file, bool bos_by_default, Pipeline::Parts& parts) {
  if (file.GetBool("tokenizer.ggml.add_bos_token").value_or(bos_by_default) && parts.info.bos)
    parts.prefix = {*parts.info.bos};
  if (file.GetBool("tokenizer.ggml.add_eos_token").value_or(false) && parts.info.eos)
    parts.suffix = {*parts.info.eos};
}

// Phi-3's special tokens take the white space after them, which GGUF has no field for.
void StripAfterPhi3Tokens(const GgufFile& file, Pipeline::Parts& parts) {
  std::string name(file.GetString("general.name").value_or(""));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) return;
  for (AddedToken& token : parts.added)
    token.rstrip = token.content != "<unk>" && token.content != "<s>" && token.content != "<|endoftext|>";
}

// "llama": SentencePiece's BPE, by scores.
Result<std::unique_ptr<Tokenizer>> MakeLlama(const GgufFile& file, GgufTable table) {
  const auto count = static_cast<int32_t>(table.tokens.size());
  if (table.scores.empty())
    return Error::Corrupt(file.source(), ": a 'llama' vocabulary without 'tokenizer.ggml.scores'");
  // The places that SentencePiece gives them, for files that do not say.
  if (!file.Has("tokenizer.ggml.unknown_token_id")) table.unk = 0;
  if (!file.Has("tokenizer.ggml.bos_token_id") && count > 1) table.bos = 1;
  if (!file.Has("tokenizer.ggml.eos_token_id") && count > 2) table.eos = 2;
  std::vector<bool> never;
  CELER_ASSIGN(Pipeline::Parts parts, Common(file, table, never));
  const bool space = file.GetBool("tokenizer.ggml.add_space_prefix").value_or(true);
  std::vector<std::unique_ptr<Normalizer>> steps;
  if (space) steps.push_back(MakePrepend(" "));
  steps.push_back(MakeReplace(" ", std::string(kMetaspace)));
  parts.normalizer = MakeSequence(std::move(steps));
  parts.model = MakeScoredBpe(*parts.vocabulary, std::move(table.scores), never,
                              FindByteTokens(*parts.vocabulary), {.unk_id = table.unk.value_or(0)});
  parts.decoder = Decoder::SentencePiece(space ? 1 : 0);
  parts.raw_bytes = true;
  StripAfterPhi3Tokens(file, parts);
  AddBosEos(file, true, parts);
  return Pipeline::Make(std::move(parts));
}

using Merges = std::vector<std::pair<std::string, std::string>>;

Result<Merges> ReadMerges(const GgufFile& file, std::string_view kind) {
  const auto lines = file.GetStringArray("tokenizer.ggml.merges");
  if (!lines)
    return Error::Corrupt(file.source(), ": a '", kind,
                          "' vocabulary without 'tokenizer.ggml.merges' as a list of strings");
  Merges merges;
  merges.reserve(lines->size());
  for (const std::string_view line : *lines) {
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos)
      return Error::Corrupt(file.source(), ": merge ", merges.size(), " is '", Printable(line),
                            "', not two tokens with a space between them");
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

// "gemma4": SentencePiece's BPE by merges, over the whole text.
Result<std::unique_ptr<Tokenizer>> MakeGemma4(const GgufFile& file, GgufTable table) {
  CELER_ASSIGN(const Merges merges, ReadMerges(file, "gemma4"));
  std::vector<bool> never;
  CELER_ASSIGN(Pipeline::Parts parts, Common(file, table, never));
  parts.normalizer = MakeReplace(" ", std::string(kMetaspace));
  const std::string unk(table.unk ? table.tokens[*table.unk] : "");
  CELER_ASSIGN(parts.model,
               MakeBpe(*parts.vocabulary, merges, never,
                       {.unk_token = unk, .fuse_unk = true, .byte_fallback = true}, file.source()));
  parts.decoder = Decoder::SentencePiece(0);
  parts.raw_bytes = true;
  AddBosEos(file, true, parts);
  return Pipeline::Make(std::move(parts));
}

// "gpt2": byte-level BPE by merges.
Result<std::unique_ptr<Tokenizer>> MakeGpt2(const GgufFile& file, GgufTable table) {
  CELER_ASSIGN(const Merges merges, ReadMerges(file, "gpt2"));
  std::vector<bool> never;
  CELER_ASSIGN(Pipeline::Parts parts, Common(file, table, never));
  parts.verbatim.resize(table.tokens.size());
  for (const AddedToken& token : parts.added) parts.verbatim[token.id] = true;

  const std::string pre(file.GetString("tokenizer.ggml.pre").value_or(""));
  const GgufPre* known = FindGgufPre(pre);
  if (!known) {
    known = FindGgufPre("default");
    if (pre.empty())
      log::WarningOnce(
          "{}: does not say how text is split ('tokenizer.ggml.pre'); the default is used, and tokens may "
          "differ "
          "from the model's own",
          file.source());
    else
      log::WarningOnce(
          "{}: pre-tokenizer '{}' is not known; the default is used, and tokens may differ from the model's "
          "own",
          file.source(), pre);
  }
  CELER_ASSIGN(parts.pre_tokenizer, MakeSplits(known->regexes, true));
  CELER_ASSIGN(parts.model, MakeBpe(*parts.vocabulary, merges, never, {.ignore_merges = known->ignore_merges},
                                    file.source()));
  parts.decoder = Decoder::ByteLevel();
  AddBosEos(file, known->add_bos, parts);
  return Pipeline::Make(std::move(parts));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  const auto model = file.GetString("tokenizer.ggml.model");
  if (!model) return Error::Corrupt(file.source(), ": has no tokenizer ('tokenizer.ggml.model' is missing)");
  if (*model != "llama" && *model != "gpt2" && *model != "gemma4")
    return Error::Unsupported(file.source(), ": a tokenizer of kind '", *model,
                              "'; 'llama' (SentencePiece BPE), 'gemma4' (the same by merges) and 'gpt2' "
                              "(byte-level BPE) are supported");
  CELER_ASSIGN(GgufTable table, ReadTable(file));
  if (*model == "gemma4") return MakeGemma4(file, std::move(table));
  return *model == "llama" ? MakeLlama(file, std::move(table)) : MakeGpt2(file, std::move(table));
}

}  // namespace celer
