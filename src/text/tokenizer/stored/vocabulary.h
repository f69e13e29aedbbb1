// A tokenizer as model files store it, between their forms: Hugging Face's folder, GGUF's metadata, llama2.c's
// tokenizer.bin.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_writer.h"

namespace celer {

struct StoredVocabulary {
  enum class Kind : uint8_t {
    kByteLevel,  // merges over bytes: GPT-2's alphabet
    kScored,     // SentencePiece's BPE, by scores
    kMerged,     // the same by merges over the whole text: Gemma 4
  };
  // As GGUF's tokenizer.ggml.token_type.
  enum Type : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  Kind kind = Kind::kByteLevel;
  std::vector<std::string> tokens;  // by id
  std::vector<int32_t> types;
  std::vector<float> scores;                                // kScored
  std::vector<std::pair<std::string, std::string>> merges;  // the others
  std::string pre;                                          // kByteLevel: GGUF's name of how text is split
  bool space_prefix = false;                                // kScored: a space before the text
  std::optional<int32_t> bos, eos, unk, pad;
  std::vector<int32_t> ends;  // of an answer, eos first
  bool add_bos = false, add_eos = false;
  std::string chat_template;

  // nullopt: the folder has no tokenizer. An error for one that GGUF has no form of.
  static Result<std::optional<StoredVocabulary>> FromHf(const std::filesystem::path& folder);
  static Result<std::optional<StoredVocabulary>> FromGguf(const GgufFile& file);

  // As many tokens as the model has rows, at least.
  void Pad(int64_t size);

  void WriteTo(GgufWriter* writer) const;
  // tokenizer.json and tokenizer_config.json.
  nlohmann::ordered_json TokenizerJson() const;
  nlohmann::ordered_json TokenizerConfigJson() const;
  // tokenizer.bin. An error for a vocabulary that the format cannot hold.
  Result<std::string> Llama2cBytes(int64_t size) const;
};

}  // namespace celer
