// tokenizer.json and tokenizer_config.json of a vocabulary.
#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "text/tokenizer/gguf_pre.h"
#include "text/tokenizer/metaspace.h"
#include "text/tokenizer/stored/vocabulary.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;
using Vocab = StoredVocabulary;

Json Replace(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json ByteLevel(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json Sequence(const char* list, Json items) {
  return {{"type", "Sequence"}, {list, std::move(items)}};
}

std::vector<size_t> CharacterStarts(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  return starts;
}

// All pairs of tokens that make a token, the best scores first: SentencePiece merges by the score of what comes out.
Json MergesByScore(const Vocab& vocab) {
  std::unordered_map<std::string_view, size_t> ids;
  const auto takes_part = [&](size_t id) {
    return vocab.types[id] == Vocab::kNormal || vocab.types[id] == Vocab::kUserDefined;
  };
  for (size_t id = 0; id < vocab.tokens.size(); ++id)
    if (takes_part(id)) ids.emplace(vocab.tokens[id], id);
  struct Merge {
    float score;
    size_t left_length, right_length;  // in characters
    std::string_view left, right;
  };
  std::vector<Merge> merges;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (!takes_part(id)) continue;
    const std::string_view token = vocab.tokens[id];
    const std::vector<size_t> starts = CharacterStarts(token);
    const size_t first = merges.size();
    for (size_t i = 1; i < starts.size(); ++i) {
      const std::string_view left = token.substr(0, starts[i]), right = token.substr(starts[i]);
      if (ids.contains(left) && ids.contains(right))
        merges.push_back({vocab.scores[id], i, starts.size() - i, left, right});
    }
    std::sort(
        merges.begin() + static_cast<ptrdiff_t>(first), merges.end(), [&](const Merge& a, const Merge& b) {
          return std::pair(ids.at(a.left), ids.at(a.right)) < std::pair(ids.at(b.left), ids.at(b.right));
        });
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tie(a.score, a.left_length, a.right_length) >
           std::tie(b.score, b.left_length, b.right_length);
  });
  Json out = Json::array();
  for (const Merge& merge : merges) out.push_back({merge.left, merge.right});
  return out;
}

Json MergeList(const Vocab& vocab) {
  if (vocab.kind == Vocab::Kind::kScored) return MergesByScore(vocab);
  Json out = Json::array();
  for (const auto& [left, right] : vocab.merges) out.push_back({left, right});
  return out;
}

Json AddedList(const Vocab& vocab) {
  Json added = Json::array();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const int32_t type = vocab.types[id];
    const bool special = type == Vocab::kControl || type == Vocab::kUnknown;
    if ((!special && type != Vocab::kUserDefined) || vocab.tokens[id].empty()) continue;
    added.push_back({{"id", id},
                     {"content", vocab.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return added;
}

// Special tokens at the ends of a text.
Json Template(const Vocab& vocab) {
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto special = [&](int32_t id, int type_id, Json* list) {
    const std::string& token = vocab.tokens[id];
    list->push_back({{"SpecialToken", {{"id", token}, {"type_id", type_id}}}});
    tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  const auto text = [&](const char* which, int type_id, Json* list) {
    if (vocab.add_bos) special(*vocab.bos, type_id, list);
    list->push_back({{"Sequence", {{"id", which}, {"type_id", type_id}}}});
    if (vocab.add_eos) special(*vocab.eos, type_id, list);
  };
  text("A", 0, &single);
  text("A", 0, &pair);
  text("B", 1, &pair);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

void SetByteLevel(const Vocab& vocab, Json* out) {
  const GgufPre* pre = FindGgufPre(vocab.pre);
  if (!pre) pre = FindGgufPre("default");
  Json splits = Json::array();
  for (const std::string& regex : pre->regexes)
    splits.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
  splits.push_back(ByteLevel(false));
  (*out)["pre_tokenizer"] = Sequence("pretokenizers", std::move(splits));
  (*out)["decoder"] = ByteLevel(true);
  (*out)["model"]["ignore_merges"] = pre->ignore_merges;
}

void SetSentencePiece(const Vocab& vocab, Json* out) {
  const std::string_view space = kMetaspace;
  Json steps = Json::array();
  if (vocab.space_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", space}});
  steps.push_back(Replace(" ", space));
  (*out)["normalizer"] = Sequence("normalizers", std::move(steps));
  Json decoders = Json::array({Replace(space, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (vocab.space_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  (*out)["decoder"] = Sequence("decoders", std::move(decoders));
  (*out)["model"]["byte_fallback"] = true;
  (*out)["model"]["fuse_unk"] = true;
  if (vocab.unk) (*out)["model"]["unk_token"] = vocab.tokens[*vocab.unk];
}

}  // namespace

Json StoredVocabulary::TokenizerJson() const {
  Json ids = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!ids.contains(tokens[id])) ids[tokens[id]] = id;
  Json out = {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", AddedList(*this)},
              {"normalizer", nullptr},
              {"pre_tokenizer", nullptr},
              {"post_processor", add_bos || add_eos ? Template(*this) : Json(nullptr)},
              {"decoder", nullptr},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", std::move(ids)},
                {"merges", MergeList(*this)}}}};
  kind == Kind::kByteLevel ? SetByteLevel(*this, &out) : SetSentencePiece(*this, &out);
  return out;
}

Json StoredVocabulary::TokenizerConfigJson() const {
  Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto token = [&](const char* role, std::optional<int32_t> id) {
    if (id) out[role] = tokens[*id];
  };
  token("bos_token", bos);
  token("eos_token", eos);
  token("unk_token", unk);
  token("pad_token", pad);
  out["add_bos_token"] = add_bos;
  out["add_eos_token"] = add_eos;
  return out;
}

}  // namespace celer
