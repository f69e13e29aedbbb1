#include "text/tokenizer/stored/vocabulary.h"

#include <algorithm>
#include <cstring>

#include "text/tokenizer/metaspace.h"

namespace celer {

void StoredVocabulary::Pad(int64_t size) {
  for (auto id = std::ssize(tokens); id < size; ++id) {
    tokens.push_back("[PAD" + std::to_string(id) + "]");
    types.push_back(kUnused);
    if (kind == Kind::kScored) scores.push_back(-1000);
  }
}

void StoredVocabulary::WriteTo(GgufWriter* writer) const {
  const auto key = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
  constexpr const char* kModels[] = {"gpt2", "llama", "gemma4"};
  writer->SetString(key("model"), kModels[static_cast<int>(kind)]);
  if (kind == Kind::kByteLevel) writer->SetString(key("pre"), pre);
  if (kind != Kind::kByteLevel) writer->SetString(key("pre"), "default");
  writer->SetStringArray(key("tokens"), tokens);
  writer->SetIntArray(key("token_type"), types);
  if (kind == Kind::kScored) writer->SetFloatArray(key("scores"), scores);
  if (kind != Kind::kScored) {
    std::vector<std::string> lines;
    for (const auto& [left, right] : merges) lines.push_back(left + " " + right);
    writer->SetStringArray(key("merges"), lines);
  }
  const auto id = [&](const char* name, std::optional<int32_t> value) {
    if (value) writer->SetUint32(key(name), static_cast<uint32_t>(*value));
  };
  id("bos_token_id", bos);
  id("eos_token_id", eos);
  id("unknown_token_id", unk);
  id("padding_token_id", pad);
  constexpr const char* kOtherEnds[] = {"eot_token_id", "eom_token_id"};
  size_t others = 0;
  for (const int32_t end : ends)
    if (end != eos && others < std::size(kOtherEnds)) id(kOtherEnds[others++], end);
  if (bos) writer->SetBool(key("add_bos_token"), add_bos);
  if (eos) writer->SetBool(key("add_eos_token"), add_eos);
  if (kind == Kind::kScored) writer->SetBool(key("add_space_prefix"), space_prefix);
  if (!chat_template.empty()) writer->SetString("tokenizer.chat_template", chat_template);
}

Result<std::string> StoredVocabulary::Llama2cBytes(int64_t size) const {
  if (kind != Kind::kScored)
    return Error::Unsupported("its tokenizer has merges, and llama2.c's tokenizer.bin holds scores alone");
  if (bos != 1 || eos != 2)
    return Error::Unsupported("its tokenizer begins with token ", bos.value_or(-1), " and ends with ",
                              eos.value_or(-1), ", which llama2.c has as 1 and 2");
  std::string out;
  const auto put = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  std::vector<std::string> texts;
  int32_t longest = 0;
  for (int64_t i = 0; i < size; ++i) {
    std::string text = i < std::ssize(tokens) ? tokens[i] : "";
    if (i == bos) text = "\n<s>\n";
    if (i == eos) text = "\n</s>\n";
    for (size_t at = 0; (at = text.find(kMetaspace, at)) != std::string::npos; ++at)
      text.replace(at, kMetaspace.size(), " ");
    longest = std::max(longest, static_cast<int32_t>(text.size()));
    texts.push_back(std::move(text));
  }
  put(longest);
  for (int64_t i = 0; i < size; ++i) {
    put(i < std::ssize(scores) ? scores[i] : 0.0f);
    put(static_cast<int32_t>(texts[i].size()));
    out += texts[i];
  }
  return out;
}

}  // namespace celer
