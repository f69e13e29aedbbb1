#include "convert/convert.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "convert/source.h"
#include "formats/decode.h"
#include "io/file/detect.h"
#include "io/json/json.h"
#include "models/config/family.h"
#include "models/load/gguf_keys.h"
#include "models/load/hf_keys.h"
#include "models/load/open_model.h"

namespace celer {
namespace {

// The configuration as a folder would say it, with what GGUF has in tensors instead.
Status ConfigOfGguf(const ConvertOptions& options, Opened* opened, ConvertSource* out) {
  RopeConfig& rope = opened->config.rope;
  const std::string path = out->path.string();
  if (const TensorRecord* const factors = opened->source->Find("rope_freqs.weight")) {
    if (factors->dtype != DType::kF32 || factors->shape.elements() != rope.dim / 2)
      return Error::Corrupt(path, ": tensor 'rope_freqs.weight' has type ", Name(factors->dtype),
                            " and shape ", factors->shape.ToString(), ", expected ", rope.dim / 2, " f32");
    rope.freq_factors.resize(static_cast<size_t>(rope.dim / 2));
    std::memcpy(rope.freq_factors.data(), factors->bytes.data(), factors->bytes.size());
  }
  auto json = HfKeys(opened->config);
  if (!json) return Error(json.error().code(), path + ": " + json.error().message());
  out->json = *std::move(json);
  CELER_ASSIGN(const DecoderConfig config, ConfigFromHf(nlohmann::json(out->json), path));
  CELER_RETURN_IF_ERROR(CheckDifference(DifferenceOfModels(opened->config, config), path,
                                        "a config.json that says all of it is not known", options,
                                        &out->notes));
  opened->config = config;
  return {};
}

// Ids of special tokens that the model has rows for. Of padding, -1 says that there is none.
Status CheckTokenIds(const nlohmann::json& json, const std::string& file, int64_t vocab) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, file));
  for (const char* const key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (!fields.Has(key)) continue;
    CELER_ASSIGN(const std::vector<int64_t> ids, fields.GetInts(key));
    const bool may_lack = std::string_view(key) == "pad_token_id";
    for (const int64_t id : ids)
      if (id < (may_lack ? -1 : 0) || id >= vocab)
        return Error::Corrupt(file, ": '", key, "' is ", id, ", expected 0 to ", vocab - 1,
                              ", as the model has rows for; correct it, or convert with --no-tokenizer");
  }
  return {};
}

Status CheckTokensOfFolder(const std::filesystem::path& folder, const nlohmann::json& config, int64_t vocab) {
  CELER_RETURN_IF_ERROR(CheckTokenIds(config, (folder / "config.json").string(), vocab));
  const std::filesystem::path generation = folder / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(generation, error)) return {};
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(generation));
  return CheckTokenIds(json, generation.string(), vocab);
}

Status CheckPair(const std::filesystem::path& path, FileKind kind, ConvertTarget target) {
  if (kind != FileKind::kGguf && kind != FileKind::kHfDirectory)
    return Error::Unsupported(path.string(), ": is a ", Name(kind),
                              " file; a Hugging Face folder or a GGUF file can be converted");
  const bool same = (kind == FileKind::kGguf && target == ConvertTarget::kGguf) ||
                    (kind == FileKind::kHfDirectory && target == ConvertTarget::kHf);
  if (!same) return {};
  return Error::Unsupported(path.string(), ": is ", Name(target),
                            " already; celer quantize writes another one of the same kind");
}

}  // namespace

const char* Name(ConvertTarget target) {
  switch (target) {
    case ConvertTarget::kGguf:
      return "a GGUF file";
    case ConvertTarget::kHf:
      return "a Hugging Face folder";
    default:
      return "a llama2.c file";
  }
}

Status CheckDifference(const std::optional<std::string>& difference, const std::string& out, const char* what,
                       const ConvertOptions& options, std::vector<std::string>* notes) {
  if (!difference) return {};
  const std::string sentence = out + ": " + what + ": " + *difference;
  if (!options.lossy)
    return Error::Unsupported(sentence, "; --lossy writes it nevertheless, which gives another model");
  notes->push_back(sentence);
  return {};
}

DType UsualType(const TensorSource& source) {
  std::map<DType, int64_t> values;
  for (const TensorRecord& record : source.tensors()) {
    if (record.shape.rank() < 2) continue;
    const CodedTensor* const coded = source.Coded(record.name);
    values[coded && !coded->plain ? DType::kQ4_0 : record.dtype] += record.shape.elements().value_or(0);
  }
  const auto most = std::max_element(values.begin(), values.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == values.end()) return DType::kF32;
  const bool plain = most->first == DType::kF32 || most->first == DType::kF16 || most->first == DType::kBf16;
  return plain ? most->first : DType::kBf16;
}

Result<ConvertSource> OpenToConvert(const std::filesystem::path& path, ConvertTarget target,
                                    const ConvertOptions& options) {
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  CELER_RETURN_IF_ERROR(CheckPair(path, kind, target));
  ConvertSource out;
  out.path = path;
  out.gguf = kind == FileKind::kGguf;
  CELER_ASSIGN(Opened opened, OpenModel(path, /*keep_fp8=*/false));
  for (const std::string& warning : opened.config.warnings) log::WarningOnce("{}", warning);
  if (out.gguf) {
    CELER_RETURN_IF_ERROR(ConfigOfGguf(options, &opened, &out));
  } else {
    CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(path / "config.json"));
    out.json = TextConfigOf(nlohmann::ordered_json(json));
    if (options.tokenizer)
      CELER_RETURN_IF_ERROR(CheckTokensOfFolder(path, nlohmann::json(out.json), opened.config.vocab));
  }
  CELER_ASSIGN(out.parts, ModelParts::Make(opened.config, std::move(opened.source), out.gguf));
  if (!options.tokenizer) return out;
  if (out.gguf) {
    CELER_ASSIGN(const GgufFile file, GgufFile::Open(path));
    CELER_ASSIGN(out.vocabulary, StoredVocabulary::FromGguf(file));
  } else {
    CELER_ASSIGN(out.vocabulary, StoredVocabulary::FromHf(path));
  }
  if (!out.vocabulary) out.notes.push_back(path.string() + ": has no tokenizer, and so the output has none");
  return out;
}

Result<Converted> ConvertModel(const std::filesystem::path& model, const std::filesystem::path& out,
                               ConvertTarget target, const ConvertOptions& options, ThreadPool& pool) {
  CELER_ASSIGN(ConvertSource source, OpenToConvert(model, target, options));
  switch (target) {
    case ConvertTarget::kGguf:
      return ConvertToGguf(std::move(source), out, options, pool);
    case ConvertTarget::kHf:
      return ConvertToHf(std::move(source), out, options, pool);
    default:
      return ConvertToLlama2c(std::move(source), out, options, pool);
  }
}

}  // namespace celer
