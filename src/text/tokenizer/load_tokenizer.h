// The tokenizer that belongs to a path, whatever the path names.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

// A Hugging Face folder, tokenizer.json, tokenizer.model, a GGUF file (also with a vocabulary only),
// llama2.c's tokenizer.bin, or a model file that has one of these beside it.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& path);

}  // namespace celer
