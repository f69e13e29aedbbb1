// The tokenizer of a synthetic model: every byte is a token, so that any text can be encoded; the rest of the
// vocabulary is filled with names that no text is ever encoded to. No merges.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/gguf/gguf_writer.h"

namespace celer {

// 256 bytes in the byte-level alphabet of GPT-2, "<t256>", "<t257>", ..., and "<|endoftext|>" last.
std::vector<std::string> SynthVocabulary(int64_t size);

void SetSynthTokenizer(int64_t vocab, GgufWriter* writer);
nlohmann::json SynthTokenizerJson(int64_t vocab);  // tokenizer.json
nlohmann::json SynthTokenizerConfigJson();         // tokenizer_config.json

}  // namespace celer
