// A model's file, opened: its configuration and its tensors under the names of the parts they hold.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "models/config/decoder_config.h"
#include "weights/tensor_source.h"

namespace celer {

struct Opened {
  DecoderConfig config;
  std::unique_ptr<TensorSource> source;
  bool gguf = false;
};

Result<Opened> OpenModel(const std::filesystem::path& path, bool keep_fp8);
Result<DecoderConfig> ReadHfConfig(const std::filesystem::path& config_path);

// A Hugging Face file whose config.json says that the head is the embedding may still hold both. Does
// as transformers does: if they differ, the head counts. Gives the name of the embedding's tensor.
std::string ResolveTiedHead(const TensorSource& source, DecoderConfig* config);

}  // namespace celer
