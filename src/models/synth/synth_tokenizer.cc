#include "models/synth/synth_tokenizer.h"

#include "base/check.h"
#include "models/synth/synth.h"

namespace celer {
namespace {

constexpr const char* kEnd = "<|endoftext|>";

// GGUF's tokenizer.ggml.token_type.
constexpr int32_t kNormal = 1, kControl = 3;

bool IsPrintableLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// GPT-2's alphabet: bytes that print stand for themselves, the others for U+0100 and up, in order.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = IsPrintableLatin1(byte) ? byte : next++;
    if (code < 0x80)
      tokens.emplace_back(1, static_cast<char>(code));
    else
      tokens.push_back({static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))});
  }
  return tokens;
}

}  // namespace

std::vector<std::string> SynthVocabulary(int64_t size) {
  CELER_CHECK_GE(size, kSynthMinVocab);
  std::vector<std::string> tokens = ByteTokens();
  tokens.reserve(size);
  for (int64_t id = 256; id < size - 1; ++id) tokens.push_back("<t" + std::to_string(id) + ">");
  tokens.emplace_back(kEnd);
  return tokens;
}

void SetSynthTokenizer(int64_t vocab, GgufWriter* writer) {
  const std::vector<std::string> tokens = SynthVocabulary(vocab);
  std::vector<int32_t> types(tokens.size(), kNormal);
  types.back() = kControl;
  const auto end = static_cast<uint32_t>(vocab - 1);
  writer->SetString("tokenizer.ggml.model", "gpt2");
  writer->SetString("tokenizer.ggml.pre", "gpt-2");
  writer->SetStringArray("tokenizer.ggml.tokens", tokens);
  writer->SetIntArray("tokenizer.ggml.token_type", types);
  writer->SetStringArray("tokenizer.ggml.merges", {});
  writer->SetUint32("tokenizer.ggml.bos_token_id", end);
  writer->SetUint32("tokenizer.ggml.eos_token_id", end);
  writer->SetBool("tokenizer.ggml.add_bos_token", false);
}

nlohmann::json SynthTokenizerJson(int64_t vocab) {
  using nlohmann::json;
  const std::vector<std::string> tokens = SynthVocabulary(vocab);
  json ids = json::object();
  for (size_t id = 0; id < tokens.size(); ++id) ids[tokens[id]] = id;
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json end = {{"id", vocab - 1}, {"content", kEnd},     {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false}, {"special", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", std::move(ids)},
            {"merges", json::array()}}}};
}

nlohmann::json SynthTokenizerConfigJson() {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"add_bos_token", false},
          {"bos_token", kEnd},
          {"eos_token", kEnd},
          {"clean_up_tokenization_spaces", false}};
}

}  // namespace celer
