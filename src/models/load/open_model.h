// A model's file, opened: its configuration and its tensors under the names of the parts they hold.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "models/config/decoder_config.h"
#include "models/config/tensor_rules.h"
#include "weights/tensor_source.h"

namespace celer {

struct Opened {
  DecoderConfig config;
  std::unique_ptr<TensorSource> source;
  bool gguf = false;
};

Result<Opened> OpenModel(const std::filesystem::path& path, bool keep_fp8);
// How the tensors of a model's files become parts; `nested` as IsNested() says.
TensorRules RulesOf(const DecoderConfig& config, bool gguf, bool nested);
// The same file once more, for the layer for multi-token prediction behind the last one of `config`: its tensors have the
// names of a layer with the number config.layers. Nothing if there is none.
Result<std::optional<Opened>> OpenPredictor(const std::filesystem::path& path, const DecoderConfig& config);
// A Hugging Face folder's tensors as ArrangedSource::OpenToCopy() has them.
Result<std::unique_ptr<TensorSource>> OpenFolderToCopy(const std::filesystem::path& path, bool every_part);
Result<DecoderConfig> ReadHfConfig(const std::filesystem::path& config_path);

// Whether both are there and have the same values.
bool SameTensor(const TensorSource& source, const std::string& a, const std::string& b);

// A Hugging Face file whose config.json says that the head is the embedding may still hold both. Does
// as transformers does: if they differ, the head counts. Gives the name of the embedding's tensor.
std::string ResolveTiedHead(const TensorSource& source, DecoderConfig* config);

}  // namespace celer
