#include "models/load/open_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "formats/decode.h"
#include "io/file/detect.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"
#include "io/llama2c/llama2c.h"
#include "models/config/family.h"
#include "models/config/part_names.h"
#include "models/load/arranged_source.h"
#include "weights/published/published_source.h"

namespace celer {
namespace {

DecoderConfig FromLlama2c(const Llama2cFile::Config& header) {
  DecoderConfig config;
  static_cast<ModelShape&>(config) = header;
  config.family = config.architecture = "llama";
  config.max_positions = header.max_positions;
  config.norm_eps = 1e-5f;
  config.rope.dim = config.head_dim;
  config.rope.layout = RopeLayout::kInterleaved;
  return config;
}

template <class File>
std::unique_ptr<TensorSource> MakeSource(File file, const std::filesystem::path& path) {
  return std::make_unique<FileTensorSource<File>>(std::move(file), path.string());
}

Result<std::unique_ptr<TensorSource>> HfSource(const std::filesystem::path& path, bool keep_fp8) {
  CELER_ASSIGN(std::unique_ptr<TensorSource> source, published::OpenFolder(path, keep_fp8));
  if (const auto* coded = dynamic_cast<const published::PublishedSource*>(source.get())) {
    log::Info("{}: {}", path.string(), coded->scheme());
    for (const std::string& line : coded->Warnings()) log::WarningOnce("{}", line);
    for (const std::string& line : coded->Notes()) log::Info("{}", line);
  }
  return source;
}

bool SameValues(const TensorRecord& a, const TensorRecord& b) {
  if (a.shape != b.shape) return false;
  if (a.dtype == b.dtype) return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
  if (a.shape.rank() != 2 || !CanDecode(a.dtype) || !CanDecode(b.dtype)) return false;
  const int64_t rows = a.shape[0], cols = a.shape[1];
  const auto a_bytes = BytesFor(a.dtype, cols), b_bytes = BytesFor(b.dtype, cols);
  if (!a_bytes || !b_bytes) return false;
  std::vector<float> a_row(cols), b_row(a_row.size());
  for (int64_t r = 0; r < rows; ++r) {
    DecodeRow(a.dtype, a.bytes.data() + r * *a_bytes, cols, a_row.data());
    DecodeRow(b.dtype, b.bytes.data() + r * *b_bytes, cols, b_row.data());
    if (a_row != b_row) return false;
  }
  return true;
}

// The tensors of the part of a model that reads images, audio or video. Text is all that is read here.
void SkipOtherParts(TensorRules* rules) {
  for (const char* name : {"vision_tower.", "vision_model.", "visual.", "vision_embedder.", "embed_vision.",
                           "audio_tower.", "audio_model.", "embed_audio.", "multi_modal_projector.",
                           "mm_projector.", "patch_merger.", "vision_language_adapter.", "image_newline"})
    for (const char* prefix : {"", "model."})
      rules->Skip(std::string(prefix) + name, "images or audio, which are not supported");
}

}  // namespace

TensorRules RulesOf(const DecoderConfig& config, bool gguf, bool nested) {
  const Family& family = *FindFamily(config.family);
  TensorRules rules(gguf ? kGgufNames : kHfNames);
  if (nested) {
    SkipOtherParts(&rules);
    rules.Prefix("model.language_model.", "model.");
    rules.Prefix("language_model.model.", "model.");
    rules.Prefix("language_model.lm_head.", "lm_head.");
  }
  const auto arrange = gguf ? family.gguf_tensors : family.hf_tensors;
  if (arrange) arrange(config, &rules);
  return rules;
}

namespace {

// Where a file has the layer for multi-token prediction: DeepSeek's and GLM's number it like the others, Qwen's do not.
struct PredictorPlace {
  std::string prefix;
  const char* join;  // the tensor that shows that there is one
};

PredictorPlace PlaceOfPredictor(const DecoderConfig& config, bool gguf) {
  if (gguf) return {fmt::format("blk.{}.", config.layers), "nextn.eh_proj.weight"};
  if (config.family.starts_with("qwen")) return {"mtp.", "fc.weight"};
  return {fmt::format("model.layers.{}.", config.layers), "eh_proj.weight"};
}

// DeepSeek's names for what the files of others call otherwise.
void NamePredictor(const DecoderConfig& config, bool gguf, TensorRules* rules) {
  const std::string layer = fmt::format(fmt::runtime(gguf ? "blk.{}." : "model.layers.{}."), config.layers);
  struct Names {
    const char *file, *part;
  };
  if (gguf) {
    for (const auto& [file, part] : {Names{"eh_proj", "eh_proj"},
                                     {"enorm", "enorm"},
                                     {"hnorm", "hnorm"},
                                     {"shared_head_norm", "shared_head.norm"},
                                     {"shared_head_head", "shared_head.head"}})
      rules->Rename(fmt::format("{}nextn.{}.weight", layer, file), fmt::format("{}{}.weight", layer, part));
    return;
  }
  rules->Prefix("mtp.layers.0.", layer);
  for (const auto& [file, part] : {Names{"fc", "eh_proj"},
                                   {"pre_fc_norm_embedding", "enorm"},
                                   {"pre_fc_norm_hidden", "hnorm"},
                                   {"norm", "shared_head.norm"}}) {
    const std::string name = fmt::format("{}{}.weight", layer, part);
    rules->Rename(fmt::format("mtp.{}.weight", file), name);
    if (part != std::string_view("eh_proj") && rules->PlusOne(rules->parts().norm)) rules->AddOne(name);
  }
}

// The tensors under the names of the parts that they hold.
Status ArrangeTensors(bool nested, Opened* opened) {
  const TensorRules rules = RulesOf(opened->config, opened->gguf, nested);
  if (rules.empty()) return {};
  CELER_ASSIGN(auto arranged, ArrangedSource::Open(std::move(opened->source), rules));
  for (const std::string& line : arranged->warnings()) log::WarningOnce("{}", line);
  opened->source = std::move(arranged);
  return {};
}

}  // namespace

Result<DecoderConfig> ReadHfConfig(const std::filesystem::path& config_path) {
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(config_path));
  return ConfigFromHf(json, config_path.string());
}

Result<std::unique_ptr<TensorSource>> OpenFolderToCopy(const std::filesystem::path& path, bool every_part) {
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(path / "config.json"));
  CELER_ASSIGN(const DecoderConfig config, ConfigFromHf(json, (path / "config.json").string()));
  CELER_ASSIGN(std::unique_ptr<TensorSource> source, published::OpenFolder(path));
  CELER_ASSIGN(auto arranged,
               ArrangedSource::OpenToCopy(std::move(source), RulesOf(config, /*gguf=*/false, IsNested(json)),
                                          every_part));
  return std::unique_ptr<TensorSource>(std::move(arranged));
}

Result<Opened> OpenModel(const std::filesystem::path& path, bool keep_fp8) {
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  Opened opened;
  switch (kind) {
    case FileKind::kHfDirectory: {
      const std::filesystem::path config_path = path / "config.json";
      CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(config_path));
      CELER_ASSIGN(opened.config, ConfigFromHf(json, config_path.string()));
      CELER_ASSIGN(opened.source, HfSource(path, keep_fp8));
      CELER_RETURN_IF_ERROR(ArrangeTensors(IsNested(json), &opened));
      return opened;
    }
    case FileKind::kGguf: {
      CELER_ASSIGN(GgufFile file, GgufFile::Open(path));
      CELER_ASSIGN(opened.config, ConfigFromGguf(file, path.string()));
      opened.source = MakeSource(std::move(file), path);
      opened.gguf = true;
      CELER_RETURN_IF_ERROR(ArrangeTensors(/*nested=*/false, &opened));
      return opened;
    }
    case FileKind::kLlama2c: {
      CELER_ASSIGN(Llama2cFile file, Llama2cFile::Open(path));
      opened.config = FromLlama2c(file.config());
      CELER_RETURN_IF_ERROR(Validate(opened.config, path.string()));
      opened.source = MakeSource(std::move(file), path);
      return opened;
    }
    case FileKind::kSafetensors:
      return Error::Invalid(
          path.string(),
          ": one safetensors file has no configuration; give the folder that holds it and its config.json");
  }
  return Error::Unsupported(path.string(), ": unknown kind of file");
}

Result<std::optional<Opened>> OpenPredictor(const std::filesystem::path& path, const DecoderConfig& config) {
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  if (kind != FileKind::kHfDirectory && kind != FileKind::kGguf) return std::optional<Opened>();
  Opened opened{.config = config, .source = nullptr, .gguf = kind == FileKind::kGguf};
  bool nested = false;
  if (opened.gguf) {
    CELER_ASSIGN(GgufFile file, GgufFile::Open(path));
    opened.source = MakeSource(std::move(file), path);
  } else {
    CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(path / "config.json"));
    nested = IsNested(json);
    CELER_ASSIGN(opened.source, published::OpenFolder(path));
  }
  const PredictorPlace place = PlaceOfPredictor(config, opened.gguf);
  if (!opened.source->Find(place.prefix + place.join)) return std::optional<Opened>();
  TensorRules rules = RulesOf(config, opened.gguf, nested);
  NamePredictor(config, opened.gguf, &rules);
  CELER_ASSIGN(opened.source, ArrangedSource::Open(std::move(opened.source), rules, place.prefix));
  return std::optional<Opened>(std::move(opened));
}

bool SameTensor(const TensorSource& source, const std::string& a, const std::string& b) {
  const TensorRecord *first = source.Find(a), *second = source.Find(b);
  return first && second && !source.Coded(a) && !source.Coded(b) && SameValues(*first, *second);
}

std::string ResolveTiedHead(const TensorSource& source, DecoderConfig* config) {
  const TensorRecord* embedding = source.Find(kHfNames.embedding);
  const TensorRecord* head = source.Find(kHfNames.head);
  if (!config->tied_embeddings || !head) return kHfNames.embedding;
  if (!embedding) return kHfNames.head;
  // A quantized head is not the embedding.
  if (source.Coded(embedding->name) || source.Coded(head->name) || !SameValues(*embedding, *head)) {
    config->tied_embeddings = false;
    config->warnings.push_back(
        fmt::format("{}: 'tie_word_embeddings' is true and yet '{}' is not '{}'; both are used as they are",
                    source.path(), kHfNames.head, kHfNames.embedding));
  }
  source.DropPages(*embedding);
  source.DropPages(*head);
  return kHfNames.embedding;
}

}  // namespace celer
