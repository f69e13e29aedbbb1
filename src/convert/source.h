// What is converted, opened.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/convert.h"
#include "convert/model_parts.h"
#include "text/tokenizer/stored/vocabulary.h"

namespace celer {

struct ConvertSource {
  std::filesystem::path path;
  bool gguf = false;
  nlohmann::ordered_json json;  // config.json, of a GGUF file the one that says the same
  ModelParts parts;
  std::optional<StoredVocabulary> vocabulary;
  std::vector<std::string> notes;
};

Result<ConvertSource> OpenToConvert(const std::filesystem::path& path, ConvertTarget target,
                                    const ConvertOptions& options);

// f32, f16 or bf16: that of most values, and bf16 where these are quantized.
DType UsualType(const TensorSource& source);
// An error where `difference` would change what is computed, or a note with options.lossy.
Status CheckDifference(const std::optional<std::string>& difference, const std::string& out, const char* what,
                       const ConvertOptions& options, std::vector<std::string>* notes);

Result<Converted> ConvertToGguf(ConvertSource source, const std::filesystem::path& out,
                                const ConvertOptions& options, ThreadPool& pool);
Result<Converted> ConvertToHf(ConvertSource source, const std::filesystem::path& out,
                              const ConvertOptions& options, ThreadPool& pool);
Result<Converted> ConvertToLlama2c(ConvertSource source, const std::filesystem::path& out,
                                   const ConvertOptions& options, ThreadPool& pool);

inline constexpr std::string_view kNoRoomRemedy = "give -o a place with more room";

}  // namespace celer
